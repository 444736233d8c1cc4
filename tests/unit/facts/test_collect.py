# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole hosts: a tree of files in, the sample facts out."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._collect import collect
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.tests.unit import facts_sample
from ansible_collections.gpuops.nvidia.tests.unit.facts import samples, trees

CONTAINERD = trees.package("containerd", "1.6.20~ds1-1+deb12u1", "Debian Go Packaging Team <team@lists.debian.org>")
ACTIVE = {tuple(trees.SYSTEMCTL): "Id=containerd.service\nActiveState=active\n"}


def nvml_of(facts: dict[str, t.Any]) -> dict[str, t.Any]:
    """The NVML snapshot that these facts would have come from."""
    keys = ("pci", "device_id", "subsystem", "model", "index", "uuid", "minor", "serial", "memory_mib",
            "compute_capability", "mig", "error")
    return {"available": True, "error": None, "driver": samples.DRIVER, "library": samples.DRIVER, "cuda": "13.2",
            "gpus": [{key: gpu[key] for key in keys} for gpu in facts["gpus"]], "clients": []}


def test_a100_before_driver(tmp_path: Path) -> None:
    """Everything from the bus and the file system; one command."""
    trees.host(tmp_path, "a100-1", "DGXA100 920-23687-2530-000")
    trees.dpkg(tmp_path, CONTAINERD)
    for address in samples.ADDRESSES:
        trees.pci(tmp_path, address, "20b2", driver="nouveau")
    trees.pci(tmp_path, "0000:00:1f.0", "1234", vendor="8086", pci_class="0601")
    (tmp_path / "sys/module/nouveau").mkdir()
    run = trees.Answers(ACTIVE)
    assert collect(Root(str(tmp_path)), run, trees.NO_NVML) == samples.a100_before()
    assert run.asked == [[*trees.SYSTEMCTL, "containerd.service"]]


def test_a100_converged(tmp_path: Path) -> None:
    """With driver, toolkit and NVML."""
    trees.host(tmp_path, "a100-1", "DGXA100 920-23687-2530-000")
    trees.dpkg(tmp_path, CONTAINERD, *(trees.package(name, version) for name, version in
                                       {**samples.DRIVER_PACKAGES, **samples.TOOLKIT_PACKAGES}.items()),
               trees.package("nvidia-smi-old", "1", status="deinstall ok config-files"))
    for address in samples.ADDRESSES:
        trees.pci(tmp_path, address, "20b2", driver="nvidia")
    for name in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
        (tmp_path / f"sys/module/{name}").mkdir()
    trees.put(tmp_path, "/sys/module/nvidia/version", "595.91.07\n")
    trees.put(tmp_path, "/proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.91.07  Release Build  (root@host)\n")
    trees.link(tmp_path, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.595.91.07")
    trees.put(tmp_path, "/etc/containerd/conf.d/99-nvidia.toml", '[plugins.runtimes.nvidia]\n')
    trees.put(tmp_path, "/var/run/cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    trees.put(tmp_path, "/etc/cdi/other.yaml", "kind: vendor.com/nic\n")
    for name in ("nvidiactl", *(f"nvidia{minor}" for minor in range(8))):
        trees.put(tmp_path, f"/dev/{name}", "")
    trees.process(tmp_path, 812, "nvidia-persiste", *(f"/dev/nvidia{minor}" for minor in range(8)), "/dev/nvidiactl",
                  group="/system.slice/nvidia-persistenced.service")
    trees.process(tmp_path, 1, "systemd")
    wanted = samples.a100_converged()
    assert collect(Root(str(tmp_path)), trees.Answers(ACTIVE), nvml_of(wanted)) == wanted


def test_h100_with_switches_and_adapter(tmp_path: Path) -> None:
    """NVSwitches are bridges of the vendor, no GPUs."""
    trees.host(tmp_path, "h100-1", "DGXH100")
    trees.dpkg(tmp_path, CONTAINERD)
    for address in samples.ADDRESSES:
        trees.pci(tmp_path, address, "2330", "10de:16c1")
    for number in (1, 2, 3, 4):
        trees.pci(tmp_path, f"0000:0{number}:00.0", "22a3", pci_class="0680")
    trees.pci(tmp_path, "0000:18:00.0", "1021", "15b3:0041", vendor="15b3", pci_class="0207")
    assert collect(Root(str(tmp_path)), trees.Answers(ACTIVE), trees.NO_NVML) == samples.h100_before()


@pytest.mark.parametrize(("sample", "boards"), [
    ("l40s_before", [("26b9", "10de:1851")] * 4),
    ("v100_before", [("1db5", "10de:1249")] * 4),
    ("mixed_before", [("1db5", "10de:1249"), ("2901", "10de:1999")]),
    ("no_gpu", []),
])
def test_other_samples(tmp_path: Path, sample: str, boards: list[tuple[str, str]]) -> None:
    """The remaining samples."""
    wanted = samples.ALL[sample]()
    trees.host(tmp_path, wanted["host"]["hostname"], wanted["host"]["machine"])
    trees.dpkg(tmp_path, CONTAINERD)
    for address, (device, subsystem) in zip(samples.ADDRESSES, boards):
        trees.pci(tmp_path, address, device, subsystem)
    assert collect(Root(str(tmp_path)), trees.Answers(ACTIVE), trees.NO_NVML) == wanted


def test_empty_root(tmp_path: Path) -> None:
    """Nothing readable at all is no error: every key is there, and what is unknown is null or empty."""
    facts = collect(Root(str(tmp_path)), trees.Answers(), trees.NO_NVML)
    assert set(facts) == set(samples.no_gpu())
    assert facts["gpus"] == [] and facts["clients"] == []
    assert facts["host"]["os"] == {"id": None, "version_id": None, "codename": None, "family": "other",
                                   "pretty_name": None}
    assert facts["driver"] == {"loaded": None, "flavour": None, "library": None, "packages": {}, "source": None,
                               "dkms": [], "reboot_pending": False,
                               "nvml": {"available": False, "error": None, "cuda": None}}
    assert facts["runtimes"] == {"containerd": None, "docker": None, "crio": None, "podman": None}


def test_all_samples_have_one_shape() -> None:
    """What is a key in one sample is a key in all, those made for other tests included."""
    shapes = []
    for make in (*samples.ALL.values(), facts_sample.facts, lambda: facts_sample.driven(facts_sample.facts(), "595.1")):
        facts = make()
        shapes.append((set(facts), set(facts["host"]), set(facts["host"]["kernel"]), set(facts["driver"]),
                       set(facts["modules"]), set(facts["runtimes"]), set(facts["toolkit"])))
        assert all(set(gpu) == set(samples.gpu("", "", "", None, "", "", False)) for gpu in facts["gpus"])
    assert all(one == shapes[0] for one in shapes)
