# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_settings leaves on a host for the next boot, and what the program of the unit does. Uses only files of the
test."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _boot_unit
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import program
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import at_boot, work
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import boot as boot_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.device import SettingsNvml
from ansible_collections.gpuops.nvidia.tests.unit.settings.test_run import (
    ALL,
    H100,
    HOPPER,
    T4,
    Host,
    ids,
    pytestmark,  # noqa: F401
)

REMEMBER, INSTALL, REMOVE = ("remember GPU settings for boot: {0}", "install boot unit: gpuops-settings.service",
                             "remove boot unit: gpuops-settings.service")


class Booting(Host):
    """The host with the files of the unit in a folder of the test, whose systemctl only makes and removes the link."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        root = folder / "root"
        self.path = {name: root / str(getattr(boot_module, name)).lstrip("/")
                     for name in ("STATE", "UNIT_FILE", "ENABLED", "PROGRAM", "PYNVML")}
        for name, path in self.path.items():
            monkeypatch.setattr(boot_module, name, str(path))
        monkeypatch.setattr(boot_module, "_SYSTEMD", str(root))
        monkeypatch.setattr(boot_module, "Root", lambda: Root(""))
        for module in (boot_module, _boot_unit):
            monkeypatch.setattr(module, "pynvml", lambda _root: b"# pynvml\n")
        monkeypatch.setattr(work, "run", self.systemctl)
        monkeypatch.setattr(at_boot, "Journal", lambda concern, wait: Journal(concern, str(self.journal)))
        self.path["ENABLED"].parent.mkdir(parents=True)
        self.state = str(self.path["STATE"])

    def systemctl(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        link = self.path["ENABLED"]
        if "enable" in argv and not link.is_symlink():
            link.symlink_to(self.path["UNIT_FILE"])
        if "disable" in argv:
            link.unlink(missing_ok=True)
        return Completed(tuple(argv), 0, "NeedDaemonReload=no", "")

    def lasting(self, *entries: dict[str, t.Any], state: str = "present", check: bool = False, boot: bool = True
                ) -> dict[str, t.Any]:
        with SettingsNvml() as nvml:
            self.run = boot_module.PersistentSettingsRun(work.Request(state, list(entries), "never", check), nvml, boot)
            return self.run.run()

    def boot(self) -> list[str]:
        """What the unit prints after a reboot; its error is the last line."""
        self.gpus.sim("reload")
        self.boot_id.write_text(self.boot_id.read_text() + "x")
        return self.start()

    def start(self) -> list[str]:
        said: list[str] = []
        try:
            at_boot.work(said.append)
        except HostError as error:
            said.append(str(error))
        return said


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Booting:
    return Booting(tmp_path, monkeypatch)


def last(result: dict[str, t.Any]) -> list[str]:
    return [step for step in ids(result) if "boot" in step]


def test_installed_as_planned_kept_and_removed(host: Booting) -> None:
    check = host.lasting(ALL, HOPPER, check=True)
    done = host.lasting(ALL, HOPPER)
    assert ids(check) == ids(done) and last(done) == [REMEMBER.format(host.state), INSTALL]
    assert host.path["PROGRAM"].read_bytes() == program(at_boot.__name__) and host.path["ENABLED"].is_symlink()
    kept = json.loads(host.path["STATE"].read_text())
    assert [sorted(entry) for entry in kept["entries"]] == [
        ["gpus", "persistence"], ["gpus", "persistence"],
        ["gpus", "locked_graphics_clocks", "persistence", "power_limit"]]
    assert not host.lasting(ALL, HOPPER)["changed"]
    assert last(host.lasting(ALL)) == [REMEMBER.format(host.state)]
    host.path["PROGRAM"].write_bytes(b"")
    assert ids(host.lasting(ALL)) == [INSTALL]
    removed = host.lasting(state="absent")
    assert last(removed) == [REMOVE] and not any(path.exists() for path in host.path.values())
    assert not host.journal.exists() and host.settings() == ["000"]


def test_boot_false_and_no_declaration_remove_the_unit(host: Booting) -> None:
    for entries, boot in (([ALL], False), ([], True)):
        host.lasting(ALL)
        assert last(host.lasting(*entries, boot=boot)) == [REMOVE]
        assert not host.path["UNIT_FILE"].exists() and not host.path["STATE"].exists()


def test_a_masked_unit_stays_masked(host: Booting) -> None:
    host.path["UNIT_FILE"].symlink_to(os.devnull)
    assert last(host.lasting(ALL)) == []
    assert "is masked, so the next reboot loses the settings" in host.run.warnings[0]


def test_before_a_driver_the_steps_are_those_of_the_run(host: Booting, monkeypatch: pytest.MonkeyPatch) -> None:
    host.gpus.sim("driver", "none")
    monkeypatch.setattr(work.SettingsRun, "read", lambda _self, _journal: [
        work.Gpu(work._target(0, H100, "2330", "10de:16c1"), assumed=True)])
    assert last(host.lasting(HOPPER, check=True)) == [REMEMBER.format(host.state), INSTALL]
    waits = host.lasting(HOPPER)
    assert not waits["changed"] and waits["plan"] == [] and not host.path["STATE"].exists()
    assert [step["id"] for step in waits["pending"]][-2:] == [REMEMBER.format(host.state), INSTALL]
    assert {step["pending_reason"] for step in waits["pending"]} == {"the driver is not loaded yet"}


def test_while_the_driver_is_not_loaded_the_next_boot_has_the_former_settings(
        host: Booting, monkeypatch: pytest.MonkeyPatch) -> None:
    host.lasting(HOPPER)
    kept = host.path["STATE"].read_bytes()
    host.gpus.sim("driver", "none")
    monkeypatch.setattr(work.SettingsRun, "read", lambda _self, _journal: [
        work.Gpu(work._target(0, H100, "2330", "10de:16c1"), assumed=True)])
    waits = host.lasting({**HOPPER, "power_limit": 400})
    assert not waits["changed"] and host.path["STATE"].read_bytes() == kept and last(waits) == []


def test_the_unit_applies_what_the_driver_forgets(host: Booting) -> None:
    host.lasting(ALL, HOPPER, {"gpus": ["0"], "ecc": False})
    wanted = host.settings()
    assert host.boot() == [
        f"done: set persistence mode: {T4} on", "done: set persistence mode: 0000:18:00.0 on",
        f"done: set persistence mode: {H100} on", f"done: set power limit: {H100} 500 W",
        f"done: lock graphics clocks: {H100} 1200-1800 MHz"]
    assert host.settings() == [wanted[0].replace(" 1 0", " 0 0"), *wanted[1:]]
    assert not host.lasting(ALL, HOPPER, {"gpus": ["0"], "ecc": False})["changed"]
    # Started again, it locks clocks again, because nobody can read them.
    assert host.start() == [f"GPU {T4} has the declared settings.", "GPU 0000:18:00.0 has the declared settings.",
                            f"done: lock graphics clocks: {H100} 1200-1800 MHz"]


def test_the_unit_does_not_forget_former_values(host: Booting) -> None:
    shipped = host.settings()
    host.lasting(ALL, HOPPER)
    host.boot()
    host.lasting(state="absent")
    assert host.settings() == shipped and not host.journal.exists()


def test_a_gpu_that_fails_or_is_gone_does_not_stop_the_others(host: Booting) -> None:
    host.lasting(ALL)
    host.gpus.sim("fault", "set", "no-permission", "0")
    host.gpus.sim("fault", "set", "off-bus", "1")
    gone, done, error = host.boot()
    assert gone.startswith("<4>GPU GPU-") and "is not in this host any more" in gone
    assert done == f"done: set persistence mode: {H100} on"
    assert "NO_PERMISSION" in error and error.endswith("with the gpu_disruption that its steps need.")


def test_a_setting_that_a_gpu_has_lost_does_not_stop_its_others(host: Booting) -> None:
    host.lasting({"gpus": [H100], "persistence": True, "compute_mode": "prohibited"})
    host.gpus.sim("reload")
    with SettingsNvml() as nvml:
        nvml.set_mode(nvml.devices()[2], True)
    warning, done = host.start()
    assert warning.startswith("<4>") and "each MIG device has its own compute mode" in warning
    assert done == f"done: set persistence mode: {H100} on"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "entries": []}', '{"version": 1}',
                                  '{"version": 1, "entries": [{"gpus": "all"}]}'])
def test_a_damaged_file_is_an_error_and_is_replaced_by_the_next_run(host: Booting, text: str) -> None:
    host.lasting(ALL)
    host.path["STATE"].write_text(text)
    assert host.start() == [f"{host.state} is missing or damaged, so the settings are unknown. Run gpu_settings again, "
                            "which writes the file."]
    assert ids(host.lasting(ALL)) == [REMEMBER.format(host.state)]


def test_a_silent_gpu_keeps_its_settings_for_the_next_boot(host: Booting) -> None:
    host.lasting(ALL, HOPPER)
    kept = json.loads(host.path["STATE"].read_text())["entries"]
    host.gpus.sim("fault", "set", "gpu-lost", "2")
    host.lasting(ALL, {"gpus": ["0"], "power_limit": 60})
    now = json.loads(host.path["STATE"].read_text())["entries"]
    assert now[1:] == kept[1:] and now[0] == {**kept[0], "power_limit": 60}
