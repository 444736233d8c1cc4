# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a made-up host: modules, DKMS, nouveau, services, holders."""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._modules import name_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import (
    FABRIC_MANAGER,
    PERSISTENCED,
    SERVICES,
    Service,
    read_dkms,
    read_holders,
    read_services,
    read_situation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._verify import ask_smi
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

from tests.unit.driver.conftest import Tree

KERNEL = "6.1.0-28-amd64"
ARCH = os.uname().machine


@dataclass
class Host(Tree):
    """A file tree and a table of answers to commands."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def root(self) -> Root:
        """The tree as what is read."""
        return Root(str(self.folder))

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = " ".join(argv)
        rc, text = next((answer for start, answer in self.answers.items() if words.startswith(start)), (127, ""))
        return Completed(tuple(argv), rc, text, "")

    def module(self, name: str, refcnt: int = 0, users: t.Sequence[str] = ()) -> None:
        self.put(f"sys/module/{name}/refcnt", f"{refcnt}\n")
        for user in users:
            self.put(f"sys/module/{name}/holders/{user}")

    def process(self, pid: int, name: str, *devices: str, unit: str = "training.service") -> None:
        self.put(f"proc/{pid}/comm", f"{name}\n")
        self.put(f"proc/{pid}/cgroup", f"0::/system.slice/{unit}\n")
        for number, device in enumerate(devices):
            self.link(f"proc/{pid}/fd/{number}", device)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.put("etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    made.put("proc/sys/kernel/osrelease", f"{KERNEL}\n")
    return made


@pytest.fixture
def loaded(host: Host) -> Host:
    host.put("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.91.07  Release Build  (root@host)\n")
    host.put("sys/module/nvidia/version", "595.91.07\n")
    host.put("proc/driver/nvidia/gpus/0000:07:00.0/information", "Model: \t A100\nDevice Minor: \t 0\n")
    host.put("dev/nvidia0")
    host.module("nvidia", 2, ["nvidia_uvm", "nvidia_modeset"])
    host.module("nvidia_uvm")
    host.module("nvidia_modeset")
    host.link(f"var/lib/dkms/nvidia/kernel-{KERNEL}-{ARCH}", f"595.91.07/{KERNEL}/{ARCH}")
    host.put("var/lib/dkms/nvidia/595.91.07/source/dkms.conf")
    return host


def test_bare_host(host: Host) -> None:
    situation = read_situation(host.root, host.run)
    assert (situation.os_id, situation.os_version, situation.family) == ("debian", "12", "debian")
    assert situation.kernel == KERNEL
    assert (situation.loaded, situation.modules, situation.built, situation.nouveau) == (None, (), (), None)
    assert situation.services[PERSISTENCED] == Service("absent", "")
    assert not situation.headers


def test_loaded_host(loaded: Host) -> None:
    loaded.answers["systemctl show"] = (
        0, "\n\n".join("LoadState=loaded\nActiveState=active\nUnitFileState=enabled" if unit == PERSISTENCED
                       else "LoadState=not-found\nActiveState=inactive\nUnitFileState=" for unit in SERVICES))
    situation = read_situation(loaded.root, loaded.run)
    assert (situation.loaded, situation.flavour) == ("595.91.07", "open")
    assert situation.modules == ("nvidia_uvm", "nvidia_modeset", "nvidia")
    assert situation.built == ("595.91.07",)
    assert situation.registered == {"595.91.07": "nvidia"}
    assert situation.services[PERSISTENCED] == Service("active", "enabled")
    assert situation.services[FABRIC_MANAGER] == Service("absent", "")


def test_dkms_of_another_kernel_is_not_built_for_this_one(loaded: Host) -> None:
    assert read_dkms(loaded.root, "6.1.0-31-amd64", ARCH) == ((), {"595.91.07": "nvidia"})


@pytest.mark.parametrize(("text", "expected"), [
    ("LoadState=not-found\nActiveState=inactive\nUnitFileState=\n", Service("absent", "")),
    ("LoadState=loaded\nActiveState=failed\nUnitFileState=disabled\n", Service("failed", "disabled")),
    ("", Service("absent", "")),
])
def test_service(host: Host, text: str, expected: Service) -> None:
    host.answers["systemctl show"] = (0, text)
    assert read_services(host.run, [PERSISTENCED])[PERSISTENCED] == expected


@pytest.mark.parametrize(("refcnt", "expected"), [(0, "loaded"), (1, "used")])
def test_nouveau_loaded(host: Host, refcnt: int, expected: str) -> None:
    host.module("nouveau", refcnt)
    assert read_situation(host.root, host.run).nouveau == expected


def test_nouveau_on_disk(host: Host) -> None:
    host.put(f"lib/modules/{KERNEL}/modules.dep", "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz: kernel/drm.ko\n")
    assert read_situation(host.root, host.run).nouveau == "there"


def test_idle_with_the_drivers_own_services(loaded: Host) -> None:
    loaded.process(100, "nvidia-persiste", "/dev/nvidia0", "/dev/nvidia1", "/dev/null", unit=PERSISTENCED)
    loaded.process(101, "nv-fabricmanage", "/dev/nvidia-nvswitchctl", unit=FABRIC_MANAGER)
    loaded.process(102, "nvidia-persiste", "/dev/nvidia-uvm", unit=PERSISTENCED)
    loaded.module("nvidia", 8)  # two modules, and two for each of the three files (seen with a real kernel)
    loaded.module("nvidia_uvm", 2)
    assert read_holders(loaded.root) == []
    loaded.module("nvidia", 9)
    assert name_holders(read_holders(loaded.root)) == "something that refers to nvidia"


def test_named_holder(loaded: Host) -> None:
    loaded.process(100, "nvidia-persiste", "/dev/nvidia0", unit=PERSISTENCED)
    loaded.process(4711, "python3", "/dev/nvidiactl", "/dev/nvidia0")
    holders = read_holders(loaded.root)
    assert holders == [{"pid": 4711, "name": "python3", "gpu": "0000:07:00.0", "instance": None,
                        "unit": "training.service", "container": None}]
    assert name_holders(holders) == "python3 (pid 4711, training.service) on 0000:07:00.0"


def test_a_module_of_somebody_else_on_ours_holds_it(loaded: Host) -> None:
    loaded.put("sys/module/nvidia/holders/acme_rdma")
    assert name_holders(read_holders(loaded.root)) == "the kernel module acme_rdma, which uses nvidia"


def test_holder_out_of_sight(loaded: Host) -> None:
    loaded.module("nvidia_modeset", 1)
    assert name_holders(read_holders(loaded.root)) == \
        "something that refers to nvidia_modeset (a console or display)"


@pytest.mark.parametrize(("rc", "text", "expected"), [
    (0, "595.91.07\n595.91.07\n", []),
    (0, "580.95.05\n", ["nvidia-smi reports 580.95.05, not 595.91.07"]),
    (0, "", ["nvidia-smi lists no GPU"]),
    (18, "Failed to initialize NVML: Driver/library version mismatch\n",
     ["nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"]),
])
def test_smi(host: Host, rc: int, text: str, expected: list[str]) -> None:
    host.answers["nvidia-smi"] = (rc, text)
    assert ask_smi(host.run, "595.91.07") == expected
