# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What mig_config leaves on a host for the next boot: planned as executed, repaired, removed. Uses only files of the
test."""

from __future__ import annotations

import io
import json
import typing as t
import zipfile
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _boot_unit
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import mig_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import pci as pci_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import Bus, Function
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import at_boot, shown, work
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boot as boot_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import program
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model

A, B = "0000:07:00.0", "0000:0f:00.0"
REMEMBER, INSTALL, REMOVE = ("remember MIG for boot: {0}", "install boot unit: gpuops-mig.service",
                             "remove boot unit: gpuops-mig.service")


class Host:
    """A host whose folders are in one of the test, and whose systemctl only creates and removes the link."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.model = Model((A, "20b2"), (B, "20b2"))
        self.commands: list[str] = []
        paths = {"STATE": mig_boot.STATE, "UNIT_FILE": mig_boot.UNIT_FILE, "ENABLED": mig_boot.ENABLED,
                 "PROGRAM": boot_module.PROGRAM, "PYNVML": boot_module.PYNVML}
        self.path = {name: root / path.lstrip("/") for name, path in paths.items()}
        for name, path in self.path.items():
            monkeypatch.setattr(boot_module, name, str(path))
        monkeypatch.setattr(boot_module, "_SYSTEMD", str(root))
        for module in (boot_module, work):
            monkeypatch.setattr(module, "Root", lambda: Root(str(root)))
        for module in (boot_module, _boot_unit):
            monkeypatch.setattr(module, "pynvml", lambda _root: b"# pynvml\n")
        monkeypatch.setattr(work, "run", self.run)
        journal = str(root / "var" / "journal")
        monkeypatch.setattr(work, "Journal", lambda concern, readonly: Journal(concern, journal, readonly))
        self.path["ENABLED"].parent.mkdir(parents=True)

    def run(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        self.commands.append(" ".join(argv))
        link = self.path["ENABLED"]
        if "enable" in argv and not link.is_symlink():
            link.symlink_to(mig_boot.UNIT_FILE)
        if "disable" in argv:
            link.unlink(missing_ok=True)
        return Completed(tuple(argv), 0, "NeedDaemonReload=no", "")

    def go(self, selected: str | None = "all-1g.10gb", level: str = "idle", check: bool = False,
           state: str = "present", boot: bool = True, devices: list[str] | None = None,
           files_before: t.Sequence[str] = ()) -> dict[str, t.Any]:
        request = work.Request(state, None, selected, devices, level, check, files_before=files_before)
        self.work: work.MigRun = boot_module.PersistentMigRun(request, self.model, boot)  # type: ignore[arg-type]
        if state == "gathered":
            self.work = shown.ReadOnlyRun(request, self.model)  # type: ignore[arg-type]
        return self.work.run()

    def last(self, result: dict[str, t.Any]) -> list[str]:
        """The steps for the next boot."""
        words = ("remember", "install boot", "remove boot")
        return [step["id"] for step in result["plan"] if step["id"].startswith(words)]

    def remembered(self) -> dict[str, t.Any]:
        return t.cast("dict[str, t.Any]", json.loads(self.path["STATE"].read_text())["gpus"])

    def inodes(self) -> list[tuple[int, int]]:
        return [(path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(self.root.rglob("*"))
                if path.is_file() and not path.name.endswith(".lock")]

    @property
    def steps(self) -> list[str]:
        return [REMEMBER.format(self.path["STATE"]), INSTALL]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_planned_as_run_and_then_nothing(host: Host) -> None:
    check = host.go(check=True)
    assert list(host.root.rglob("*.json")) == [] and host.commands == []
    result = host.go()
    assert [step["id"] for step in check["plan"]] == [step["id"] for step in result["plan"]]
    assert host.last(result) == host.steps == [step["id"] for step in result["plan"][-2:]]
    assert check["diff"] == result["diff"] and '"profile": "1g.10gb"' in str(result["diff"])
    assert {entry["pci"]: len(entry["instances"]) for entry in host.remembered().values()} == {A: 7, B: 7}
    inodes, commands = host.inodes(), len(host.commands)
    again = host.go(level="never")
    assert (again["changed"], again["plan"], again["diff"]) == (False, [], [])
    assert (host.inodes(), len(host.commands)) == (inodes, commands)


def test_what_is_kept_for_boots_touches_no_gpu(host: Host) -> None:
    assert host.go()["touched"] == [A, B]
    host.path["UNIT_FILE"].unlink()
    assert (host.last(host.go(check=True)), host.go()["touched"]) == ([INSTALL], [])
    assert host.go("all-3g.40gb", level="never", devices=[B])["touched"] == [B]


@pytest.mark.parametrize("spoil", [
    lambda gpus: gpus.clear() or gpus.update(x=5),
    lambda gpus: gpus[f"gpu-of-{B.replace(':', '-')}"].pop("pci"),
    lambda gpus: gpus[f"gpu-of-{B.replace(':', '-')}"].update(enabled="yes"),
    lambda gpus: gpus[f"gpu-of-{B.replace(':', '-')}"]["instances"][0].update(compute=[["1", 0]]),
    lambda gpus: gpus[f"gpu-of-{B.replace(':', '-')}"].update(instances={"1g.10gb": 7}),
])
def test_a_spoilt_file_is_written_anew(host: Host, spoil: t.Callable[[t.Any], t.Any]) -> None:
    host.go()
    document = json.loads(host.path["STATE"].read_text())
    spoil(document["gpus"])
    host.path["STATE"].write_text(json.dumps(document))
    assert mig_boot.read_mig_boot(Root(str(host.root)))["gpus"] is None
    result = host.go(devices=[A])
    assert host.last(result) == host.steps[:1] and list(host.remembered()) == [f"gpu-of-{A.replace(':', '-')}"]
    assert "the next boot restores only the layouts of this task's GPUs" in host.work.warnings[0]
    assert host.commands[-1] == "systemctl reset-failed gpuops-mig.service"


def test_a_unit_that_somebody_has_masked_stays_so_and_the_rest_goes_on(host: Host) -> None:
    host.path["UNIT_FILE"].symlink_to("/dev/null")
    check, result = host.go(check=True), host.go()
    assert [step["id"] for step in check["plan"]] == [step["id"] for step in result["plan"]]
    assert host.last(result) == [] and result["touched"] == [A, B]
    assert "gpuops-mig.service is masked" in host.work.warnings[0]
    assert host.path["UNIT_FILE"].is_symlink() and host.commands == [] and Path("/dev/null").is_char_device()
    assert host.go(level="never")["changed"] is False


def test_a_unit_that_is_masked_after_us_is_left_alone(host: Host) -> None:
    host.go()
    host.path["UNIT_FILE"].unlink()
    host.path["UNIT_FILE"].symlink_to("/dev/null")
    host.path["STATE"].unlink()
    assert host.go("all-3g.40gb")["touched"] == [A, B]
    assert host.path["UNIT_FILE"].is_symlink() and not host.path["STATE"].exists()
    assert mig_boot.read_mig_boot(Root(str(host.root)))["masked"] is True


def test_the_layout_of_a_gpu_that_does_not_answer_is_kept_for_the_boot(
        host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.go()
    functions = tuple(Function(pci, "10de", "20b2", "10de:0000", "0302", "nvidia") for pci in (A, B))
    monkeypatch.setattr(pci_module, "read_bus", lambda _root: Bus(functions, (), False, None))
    host.model.silent = [(0, "GPU_IS_LOST")]
    assert host.go("all-3g.40gb")["touched"] == [B]
    assert {entry["pci"]: len(entry["instances"]) for entry in host.remembered().values()} == {A: 7, B: 2}


def test_without_loaded_modules_the_plan_starts_from_what_is_kept(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ampere keeps its mode without a driver; existing content of the file is not written again. A run that is not in
    check mode waits for the driver, and keeps the file."""
    host.go()
    functions = tuple(Function(pci, "10de", "20b2", "10de:0000", "0302", None) for pci in (A, B))
    monkeypatch.setattr(pci_module, "read_bus", lambda _root: Bus(functions, (), False, None))
    host.model.available, host.model.error = False, "NVML cannot be used (DRIVER_NOT_LOADED)."
    check = host.go(check=True)
    kept = host.inodes()
    waiting = host.go("all-3g.40gb")
    assert (waiting["changed"], [step["target"] for step in waiting["pending"]], host.inodes()) == (False, [A, B], kept)
    host.model.available = True
    for pci in (A, B):
        host.model.placed[pci].clear()
    assert [step["id"] for step in check["plan"]] == [step["id"] for step in host.go()["plan"]] != []


def test_the_unit_runs_before_what_needs_gpus(host: Host) -> None:
    host.go()
    lines = host.path["UNIT_FILE"].read_text().splitlines()
    before = {unit for line in lines if line.startswith("Before=") for unit in line[7:].split()}
    after = {unit for line in lines if line.startswith("After=") for unit in line[6:].split()}
    assert {"kubelet.service", "docker.service", "containerd.service", "nvidia-dcgm.service",
            "gpuops-cdi-refresh.service"} <= before
    assert {"nvidia-persistenced.service", "nvidia-fabricmanager.service"} <= after and not before & after
    start = next(line for line in lines if line.startswith("ExecStart="))
    assert start.endswith(f" -I -B {host.path['PROGRAM']}")


def test_the_program_has_what_it_imports() -> None:
    archive = program(at_boot.__name__)
    names = zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert archive == program(at_boot.__name__)
    assert any(name.endswith("_mig/planning.py") for name in names) and not any("ansible/" in name for name in names)


@pytest.mark.parametrize(("name", "damage"), [
    ("STATE", lambda path: path.write_text("{}")), ("STATE", lambda path: path.unlink()),
    ("PROGRAM", lambda path: path.write_bytes(b"")), ("PROGRAM", lambda path: path.unlink()),
    ("UNIT_FILE", lambda path: path.write_text("[Unit]\n")), ("UNIT_FILE", lambda path: path.unlink()),
    ("PYNVML", lambda path: path.unlink()), ("ENABLED", lambda path: path.unlink())])
def test_drift_is_repaired(host: Host, name: str, damage: t.Callable[[Path], None]) -> None:
    host.go()
    good = {key: path.read_bytes() for key, path in host.path.items() if key != "ENABLED"}
    damage(host.path[name])
    expected = [host.steps[0] if name == "STATE" else INSTALL]
    assert [step["id"] for step in host.go(check=True)["plan"]] == expected
    assert [step["id"] for step in host.go()["plan"]] == expected
    assert {key: path.read_bytes() for key, path in host.path.items() if key != "ENABLED"} == good
    assert host.path["ENABLED"].is_symlink() and not host.go()["changed"]


def test_a_file_that_the_driver_brings_before_it_is_no_step_of_check_mode(host: Host) -> None:
    host.go()
    host.path["PYNVML"].unlink()
    assert host.last(host.go(check=True)) == [INSTALL]
    assert host.last(host.go(check=True, files_before=[str(host.path["PYNVML"])])) == []
    host.path["PROGRAM"].unlink()
    assert host.last(host.go(check=True, files_before=[str(host.path["PYNVML"])])) == [INSTALL]


def test_what_is_pending_is_remembered_for_boot(host: Host) -> None:
    result = host.go(level="never")
    assert host.model.writes == [] and result["pending"] != []
    assert host.last(result) == host.steps
    assert all(entry["enabled"] and len(entry["instances"]) == 7 for entry in host.remembered().values())
    assert not host.go(level="never")["changed"]


def test_tasks_for_some_gpus_add_up_and_gone_gpus_are_dropped(host: Host) -> None:
    host.go("all-1g.10gb", devices=[A])
    host.go("all-balanced", devices=[B])
    assert {entry["pci"]: len(entry["instances"]) for entry in host.remembered().values()} == {A: 7, B: 4}
    host.model.gpus = [device for device in host.model.gpus if device.pci == B]
    assert host.last(host.go("all-balanced")) == [host.steps[0]]
    assert [entry["pci"] for entry in host.remembered().values()] == [B]


@pytest.mark.parametrize("way", [{"boot": False}, {"state": "absent", "selected": None}])
def test_it_is_taken_out(host: Host, way: dict[str, t.Any]) -> None:
    host.go()
    check = host.go(check=True, **way)
    result = host.go(**way)
    assert [step["id"] for step in check["plan"]] == [step["id"] for step in result["plan"]]
    assert host.last(result) == [REMOVE]
    left = [path for path in host.root.rglob("*") if path.is_file() or path.is_symlink()]
    assert all("journal" in path.parts for path in left), left
    assert not (host.root / "etc" / "gpuops").exists() and not host.go(**way)["changed"]


def test_absent_puts_back_what_was_there(host: Host) -> None:
    host.path["UNIT_FILE"].write_text("[Unit]\nDescription=mine\n")
    host.go()
    assert "mine" not in host.path["UNIT_FILE"].read_text()
    host.go(state="absent", selected=None)
    assert host.path["UNIT_FILE"].read_text() == "[Unit]\nDescription=mine\n"
    assert host.model.counts() == {A: None, B: None}


def test_killed_between_layout_and_boot(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: boot_module.Boot, step: Step) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(boot_module.Boot, "_execute", killed)
        with pytest.raises(KeyboardInterrupt):
            host.go()
    result = host.go()
    assert [step["id"] for step in result["plan"]] == host.steps
    assert not host.go()["changed"]


def test_the_vendors_unit_is_not_fought(host: Host) -> None:
    wants = host.path["ENABLED"].parent
    (wants / "nvidia-mig-manager.service").symlink_to("/lib/systemd/system/nvidia-mig-manager.service")
    with pytest.raises(HostError, match="nvidia-mig-manager.service is enabled.*or set boot to false"):
        host.go()
    assert host.model.writes == [] and host.last(host.go(boot=False)) == []
    assert host.go(state="gathered")["boot"] == {"enabled": False, "masked": False, "gpus": None,
                                                 "vendor": "nvidia-mig-manager.service"}


def test_without_systemd(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_module, "_SYSTEMD", str(host.root / "nothing"))
    assert host.last(host.go()) == [] and "systemd does not run" in host.work.warnings[0]


def test_gathered_and_facts(host: Host) -> None:
    host.go("all-balanced", devices=[A])
    found = host.go(state="gathered")["boot"]
    assert (found["enabled"], found["vendor"], found["gpus"]) == (True, None, host.remembered())
    (host.root / mig_boot.ENABLED.lstrip("/")).unlink()
    assert mig_boot.read_mig_boot(Root(str(host.root)))["enabled"] is False
