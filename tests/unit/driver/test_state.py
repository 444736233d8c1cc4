# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a simulated host: modules, DKMS, nouveau, services, GPU clients."""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    SERVICES,
    Service,
    modinfo,
    name_holders,
    read_dkms,
    read_driver_state,
    read_holders,
    read_services,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.verify import ask_smi
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER, PERSISTENCED

from tests.unit.driver.conftest import Tree
from tests.unit.facts.trees import pci

KERNEL = "6.1.0-28-amd64"
ARCH = os.uname().machine


@dataclass
class Host(Tree):
    """A file tree and a table of answers to commands."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def root(self) -> Root:
        """The tree as a root to read."""
        return Root(str(self.folder))

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = " ".join(argv)
        rc, text = next((answer for start, answer in self.answers.items() if words.startswith(start)), (127, ""))
        return Completed(tuple(argv), rc, text, "")

    def module(self, name: str, refcnt: int | str = 0, users: t.Sequence[str] = ()) -> None:
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
    situation = read_driver_state(host.root, host.run)
    assert (situation.os_id, situation.os_version, situation.family) == ("debian", "12", "debian")
    assert situation.kernel == KERNEL
    assert (situation.loaded, situation.modules, situation.built, situation.nouveau) == (None, (), (), None)
    assert situation.services[PERSISTENCED] == Service("absent", "")
    assert not situation.headers


def test_loaded_host(loaded: Host) -> None:
    loaded.answers["systemctl show"] = (
        0, "\n\n".join("LoadState=loaded\nActiveState=active\nUnitFileState=enabled" if unit == PERSISTENCED
                       else "LoadState=not-found\nActiveState=inactive\nUnitFileState=" for unit in SERVICES))
    situation = read_driver_state(loaded.root, loaded.run)
    assert (situation.loaded, situation.flavour) == ("595.91.07", "open")
    assert situation.modules == ("nvidia_uvm", "nvidia_modeset", "nvidia")
    assert situation.built == ("595.91.07",)
    assert situation.registered == {"595.91.07": "nvidia"}
    assert situation.services[PERSISTENCED] == Service("active", "enabled")
    assert situation.services[FABRIC_MANAGER] == Service("absent", "")


def test_modules_in_the_order_in_which_they_can_be_unloaded(loaded: Host) -> None:
    for name in ("nvidia_drm", "gdrdrv", "nvidia_fs", "nvidia_peermem", "nv_peer_mem", "nvidia_vgpu_vfio", "ext4"):
        loaded.module(name)
    assert read_driver_state(loaded.root, loaded.run).modules == (
        "nv_peer_mem", "nvidia_peermem", "nvidia_vgpu_vfio", "nvidia_fs", "gdrdrv", "nvidia_uvm", "nvidia_drm",
        "nvidia_modeset", "nvidia")


def test_who_has_a_gpu_open_as_a_part_of_the_driver() -> None:
    """The order is the order of stopping: a service that uses another one stops first."""
    assert tuple(f"nvidia-{name}.service" for name in (
        "dcgm-exporter", "dcgm", "topologyd", "gridd", "imex", "fabricmanager", "persistenced")) == SERVICES


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


def test_gpus_with_their_fabric(host: Host) -> None:
    pci(host.folder, "0000:07:00.0", "2330", "10de:16c1")
    bare = read_driver_state(host.root, host.run)
    assert [(address, model and model.name) for address, model in bare.gpus] == [
        ("0000:07:00.0", "NVIDIA H100 80GB HBM3")]
    pci(host.folder, "0000:0f:00.0", "ffff")
    pci(host.folder, "0000:17:00.0", "22a3", pci_class="0680")
    found = read_driver_state(host.root, host.run)
    assert found.gpus[1] == ("0000:0f:00.0", None)
    assert (bare.fabric, found.fabric) == ("none", "nvswitch")


def test_what_modules_can_be_built_and_loaded(host: Host) -> None:
    assert (read_driver_state(host.root, host.run).secure_boot, read_driver_state(host.root, host.run).headers) == (
        False, False)
    host.put(f"lib/modules/{KERNEL}/build/Makefile", "all:\n")
    host.put("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1")
    found = read_driver_state(host.root, host.run)
    assert (found.secure_boot, found.headers, found.arch) == (True, True, ARCH)


def test_a_loaded_module_of_the_other_flavour(loaded: Host) -> None:
    loaded.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.91.07  Mon\n")
    found = read_driver_state(loaded.root, loaded.run)
    assert (found.loaded, found.flavour) == ("595.91.07", "proprietary")
    assert found.as_dict() == {"loaded": "595.91.07", "flavour": "proprietary", "library": None,
                               "built": ["595.91.07"], "modules": ["nvidia_uvm", "nvidia_modeset", "nvidia"],
                               "persistenced": "absent"}


@pytest.mark.parametrize(("name", "ours"), [
    ("nvidia", True), ("nvidia-open", True), ("nvidia-srv", True), ("nvidia-srv-open", True), ("nvidia-current", True),
    ("nvidia-current-open", True), ("nvidia-fs", False), ("nvidia-legacy-390", False), ("gdrdrv", False)])
def test_dkms_knows_the_driver_by_several_names(host: Host, name: str, ours: bool) -> None:
    """DKMS also has other modules of the vendor."""
    host.link(f"var/lib/dkms/{name}/kernel-{KERNEL}-{ARCH}", f"595.91.07/{KERNEL}/{ARCH}")
    host.put(f"var/lib/dkms/{name}/595.91.07/source/dkms.conf")
    host.put(f"var/lib/dkms/{name}/580.95.05/{KERNEL}/{ARCH}/module/nvidia.ko")  # built, not installed
    assert read_dkms(host.root, KERNEL, ARCH) == (
        (("595.91.07",), {"595.91.07": name, "580.95.05": name}) if ours else ((), {}))


@pytest.mark.parametrize(("there", "expected"), [
    ({"nvidia": "595.91.07"}, "595.91.07"), ({"nvidia": "595.91.07", "nvidia-current": "535.1"}, "595.91.07"),
    ({"nvidia-current": "535.1"}, "535.1"), ({"nvidia-current-open": "550.1"}, "550.1"), ({}, "")])
def test_the_module_file_that_a_kernel_would_load(there: dict[str, str], expected: str) -> None:
    def run(argv: t.Sequence[str], *, check: bool = True) -> Completed:
        assert not check and list(argv[:-1]) == ["modinfo", "-k", KERNEL, "-F", "version"]
        return Completed(tuple(argv), 0 if argv[-1] in there else 1, f"{there.get(argv[-1], '')}\n", "")

    assert modinfo(run, "version", KERNEL) == expected  # type: ignore[arg-type]


def test_nouveau_that_is_built_in_drives_a_gpu(host: Host) -> None:
    pci(host.folder, "0000:07:00.0", "20b2", driver="nouveau")
    assert read_driver_state(host.root, host.run).nouveau == "loaded"


def test_no_nouveau(host: Host) -> None:
    pci(host.folder, "0000:07:00.0", "20b2", driver="vfio-pci")
    host.put(f"lib/modules/{KERNEL}/modules.dep", "kernel/drivers/gpu/drm/i915/i915.ko.xz:\n")
    assert read_driver_state(host.root, host.run).nouveau is None


@pytest.mark.parametrize(("refcnt", "expected"), [
    (0, "loaded"), (1, "used"), (-1, "loaded"), ("9" * 5000, "used"), ("-", "used")])
def test_nouveau_loaded(host: Host, refcnt: int | str, expected: str) -> None:
    host.module("nouveau", refcnt)
    assert read_driver_state(host.root, host.run).nouveau == expected


def test_nouveau_on_disk(host: Host) -> None:
    host.put(f"lib/modules/{KERNEL}/modules.dep", "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz: kernel/drm.ko\n")
    assert read_driver_state(host.root, host.run).nouveau == "installed"


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


def test_services_that_a_run_stops_hold_nothing(loaded: Host) -> None:
    for pid, unit in enumerate(SERVICES, 100):
        loaded.process(pid, unit[:15], "/dev/nvidia0", unit=unit)
    loaded.module("nvidia", 2 + 2 * len(SERVICES))
    assert read_holders(loaded.root) == []


def test_each_file_counts_for_its_own_module(loaded: Host) -> None:
    """A file that a service of the driver has open explains two references to one module, and none to another."""
    files = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidiactl", "/dev/nvidia0")
    loaded.process(100, "nvidia-persiste", *files, unit=PERSISTENCED)
    loaded.module("nvidia", 2 + 2 * 2)
    loaded.module("nvidia_uvm", 2 * 2)
    loaded.module("nvidia_modeset", 2)
    assert read_holders(loaded.root) == []
    loaded.module("nvidia_uvm", 2 * 2 + 1)
    assert name_holders(read_holders(loaded.root)) == "something that refers to nvidia_uvm"


def test_a_module_of_somebody_else_on_ours_holds_it(loaded: Host) -> None:
    loaded.put("sys/module/nvidia/holders/acme_rdma")
    assert name_holders(read_holders(loaded.root)) == "the kernel module acme_rdma, which uses nvidia"


def test_holder_out_of_sight(loaded: Host) -> None:
    loaded.module("nvidia_modeset", 1)
    assert name_holders(read_holders(loaded.root)) == \
        "something that refers to nvidia_modeset (a console or display)"
    loaded.module("nvidia_drm", 1)
    assert "nvidia_drm (a console or display)" in name_holders(read_holders(loaded.root))


@pytest.mark.parametrize(("rc", "text", "faults"), [
    (0, "595.91.07\n595.91.07\n", []),
    (0, "580.95.05\n", ["nvidia-smi reports 580.95.05, not 595.91.07"]),
    (0, "", ["nvidia-smi lists no GPU"]),
    (18, "Failed to initialize NVML: Driver/library version mismatch\n",
     ["nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"]),
])
def test_smi(host: Host, rc: int, text: str, faults: list[str]) -> None:
    host.answers["nvidia-smi"] = (rc, text)
    assert ask_smi(host.run, "595.91.07") == (faults, [])


@pytest.mark.parametrize("text", [
    "Unable to determine the device handle for GPU1: GPU is lost.  Reboot the system to recover this GPU",
    "Unable to determine the device handle for GPU 0000:65:00.0: Unknown Error",
    "595.91.07\nThe GPU requires reset",
])
def test_a_gpu_that_is_lost_is_no_fault_of_the_driver(host: Host, text: str) -> None:
    host.answers["nvidia-smi"] = (15, text)
    assert ask_smi(host.run, "595.91.07") == ([], ["nvidia-smi: " + text.replace("\n", " / ")])
