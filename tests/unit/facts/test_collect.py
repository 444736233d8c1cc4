# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole hosts: the facts of a tree of files are equal to the sample facts."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.collect import collect
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.journals import CONCERNS
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import JOURNAL_ROOT, Journal
from ansible_collections.gpuops.nvidia.tests.unit.facts import samples, trees
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample

CONTAINERD = trees.package("containerd", "1.6.20~ds1-1+deb12u1", "Debian Go Packaging Team <team@lists.debian.org>")
ACTIVE = {tuple(trees.SYSTEMCTL): "Id=containerd.service\nActiveState=active\nUnitFileState=enabled\n"}


def nvml_of(facts: dict[str, t.Any]) -> dict[str, t.Any]:
    """The NVML snapshot that gives these facts."""
    keys = ("pci", "device_id", "subsystem", "model", "index", "uuid", "minor", "serial", "memory_mib",
            "compute_capability", "mig", "health", "error")
    return {"available": True, "error": None, "driver": samples.DRIVER, "library": samples.DRIVER, "cuda": "13.2",
            "gpus": [{key: gpu[key] for key in keys} for gpu in facts["gpus"]], "clients": []}


def test_a100_before_driver(tmp_path: Path) -> None:
    """Everything comes from the bus and the file system; only one command runs."""
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
    """A host with driver, toolkit and NVML."""
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
    trees.put(tmp_path, "/etc/nvidia-container-runtime/config.toml", "# of the packages")
    trees.put(tmp_path, "/etc/cdi/other.yaml", "kind: vendor.com/nic\n")
    for name in ("nvidiactl", *(f"nvidia{minor}" for minor in range(8))):
        trees.put(tmp_path, f"/dev/{name}", "")
    trees.process(tmp_path, 812, "nvidia-persiste", *(f"/dev/nvidia{minor}" for minor in range(8)), "/dev/nvidiactl",
                  group="/system.slice/nvidia-persistenced.service")
    trees.process(tmp_path, 1, "systemd")
    wanted = samples.a100_converged()
    log = "\n".join(f"{seconds}.123456 a100-1 kernel: NVRM: Xid (PCI:0000:07:00): 63, pid=1, name=x"
                    for seconds in (1700000000, 1700000100))
    answers = trees.Answers({**ACTIVE, ("journalctl",): log})
    assert collect(Root(str(tmp_path)), answers, nvml_of(wanted)) == wanted


def test_files_of_packages_that_are_gone(tmp_path: Path) -> None:
    """According to the package database alone, a host without its libraries would look complete."""
    trees.host(tmp_path, "a100-1", None)
    trees.dpkg(tmp_path, *(trees.package(name, "1-1") for name in ("libnvidia-ml1", "nvidia-container-toolkit-base")))
    library, program = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/bin/nvidia-ctk"
    (tmp_path / "var/lib/dpkg/info/libnvidia-ml1.list").unlink()
    trees.put(tmp_path, "/var/lib/dpkg/info/libnvidia-ml1:amd64.list", f"/.\n/usr\n/usr/lib/moved.so\n{library}\n"
              "/usr/share/doc/libnvidia-ml1/copyright\n/etc/by/choice\n")
    trees.put(tmp_path, "/var/lib/dpkg/diversions", "/usr/lib/moved.so\n/usr/lib/moved.so.mine\nglx\n")
    trees.put(tmp_path, "/var/lib/dpkg/info/nvidia-container-toolkit-base.list", f"/usr/bin\n{program}\n")
    facts = collect(Root(str(tmp_path)), trees.Answers(), trees.NO_NVML)
    assert facts["driver"]["missing_files"] == [library]
    assert facts["toolkit"]["missing_files"] == [program, "/etc/nvidia-container-runtime/config.toml"]
    trees.link(tmp_path, library, "libnvidia-ml.so.595.91.07")
    trees.put(tmp_path, program, "x")
    trees.put(tmp_path, "/etc/nvidia-container-runtime/config.toml", "")
    facts = collect(Root(str(tmp_path)), trees.Answers(), trees.NO_NVML)
    assert (facts["driver"]["missing_files"], facts["toolkit"]["missing_files"]) == ([], [])
    (tmp_path / "var/lib/dpkg/info/nvidia-container-toolkit-base.list").unlink()
    facts = collect(Root(str(tmp_path)), trees.Answers(), trees.NO_NVML)
    assert (facts["driver"]["missing_files"], facts["toolkit"]["missing_files"]) == (None, None)


def test_h100_with_switches_and_adapter(tmp_path: Path) -> None:
    """NVSwitches are bridge devices of the vendor, not GPUs."""
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


SHOWN = ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\n"
         "LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n\n"
         "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n\n"
         "LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n")


@pytest.mark.parametrize(("systemd", "answer", "wanted"), [
    (True, SHOWN, [("active", "enabled"), ("absent", "masked"), ("absent", ""), ("inactive", "disabled")]),
    (True, "", None), (False, SHOWN, None)])
def test_the_drivers_services(tmp_path: Path, systemd: bool, answer: str, wanted: t.Any) -> None:
    """If systemd does not respond, the state of the services is unknown, not off."""
    trees.put(tmp_path, "/sys/module/nvidia/version", "595.91.07\n")
    if systemd:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    run = trees.Answers({("systemctl", "show", "nvidia-persistenced.service"): answer})
    found = collect(Root(str(tmp_path)), run, trees.NO_NVML)["driver"]["services"]
    assert found == (wanted and {f"nvidia-{name}.service": {"state": state, "enabled": enabled} for name, (
        state, enabled) in zip(("persistenced", "fabricmanager", "imex", "gridd"), wanted)})


def _write(folder: Path) -> None:
    with Journal("mig", str(folder)) as journal:
        journal.keep("gpu", "gpu-1", {})


@pytest.mark.parametrize(("spoil", "concerns", "words"), [
    (lambda folder: None, [], ""),
    (lambda folder: (folder / "mig.json").write_text("{"), ["mig"], "mig.json is damaged"),
    (lambda folder: (folder / "mig.json").chmod(0o666), ["mig"], "has mode 0666"),
    (lambda folder: (folder / "mig.json").chmod(0o1666), ["mig"], "has mode 1666"),
    (lambda folder: (folder / "driver.lock").mkdir(), ["driver"], "driver.lock is not a file"),
    (lambda folder: folder.chmod(0o777), list(CONCERNS), "has mode 0777"),
])
def test_journals_that_modules_would_refuse(tmp_path: Path, spoil: t.Callable[[Path], t.Any], concerns: list[str],
                                            words: str) -> None:
    folder = tmp_path / JOURNAL_ROOT.lstrip("/")
    _write(folder)
    spoil(folder)
    journals = collect(Root(str(tmp_path)), trees.Answers(), trees.NO_NVML)["journals"]
    faults = journals["faults"]
    assert journals["brought"] == ([] if "mig" in concerns else ["mig"])
    assert [fault["concern"] for fault in faults] == sorted(concerns)
    assert all(words in fault["message"] and fault["hint"] for fault in faults)


def test_a_journal_that_cannot_be_read_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / JOURNAL_ROOT.lstrip("/"))

    def denied(_journal: Journal) -> None:
        raise PermissionError

    monkeypatch.setattr(Journal, "_load", denied)
    assert collect(Root(str(tmp_path)), trees.Answers(), trees.NO_NVML)["journals"] == {
        "brought": [], "faults": [], "former_driver": None}


def test_empty_root(tmp_path: Path) -> None:
    """A root without readable files is no error: every key exists, and unknown values are null or empty."""
    facts = collect(Root(str(tmp_path)), trees.Answers(), trees.NO_NVML)
    assert set(facts) == set(samples.no_gpu())
    assert facts["gpus"] == [] and facts["clients"] == []
    assert facts["host"]["os"] == {"id": None, "version_id": None, "codename": None, "family": "other",
                                   "pretty_name": None}
    assert facts["driver"] == {"loaded": None, "flavour": None, "library": None, "packages": {}, "source": None,
                               "dkms": [], "reboot_pending": False, "missing_files": [], "nodes": None,
                               "services": None, "nvml": {"available": False, "error": None, "cuda": None}}
    assert facts["runtimes"] == {"containerd": None, "docker": None, "crio": None, "podman": None}


def test_all_samples_have_one_shape() -> None:
    """All samples have the same keys, including those of other tests."""
    shapes = []
    for make in (*samples.ALL.values(), facts_sample.facts, lambda: facts_sample.driven(facts_sample.facts(), "595.1")):
        facts = make()
        shapes.append((set(facts), set(facts["host"]), set(facts["host"]["kernel"]), set(facts["driver"]),
                       set(facts["modules"]), set(facts["runtimes"]), set(facts["toolkit"])))
        assert all(set(gpu) == set(samples.gpu("", "", "", None, "", "", False)) for gpu in facts["gpus"])
    assert all(one == shapes[0] for one in shapes)
