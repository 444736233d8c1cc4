# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fabric manager that does not work with its new settings gets the former ones, also after a failed change of the
driver."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import services
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric_settings import KIND, SETTINGS_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER, PERSISTENCED

from tests.unit.driver.test_switching import MODULES, NEW, OLD, Delivery, Model, kept, place

PACKAGED = "LOG_LEVEL=4\nFABRIC_MODE=0\n"


@dataclass
class Switched(Model):
    """A host with NVSwitches. mode: the FABRIC_MODE with which the fabric manager runs. It does not start with mode 9,
    ends soon after its start with mode 8, and nvidia-smi does not work with mode 7."""

    mode: str = ""

    def prepare(self) -> None:
        for key, value in {"vendor": "0x10de", "device": "0x20b2", "class": "0x030200"}.items():
            self.put(f"sys/bus/pci/devices/0000:07:00.0/{key}", value)
        for key, value in {"vendor": "0x10de", "device": "0x1af1", "class": "0x068000"}.items():
            self.put(f"sys/bus/pci/devices/0000:c4:00.0/{key}", value)
        self.put(SETTINGS_FILE, PACKAGED)
        self.active.add(FABRIC_MANAGER)
        self.mode = "0"
        self.show()

    @property
    def file(self) -> dict[str, str]:
        return dict(line.split("=") for line in self.read(SETTINGS_FILE).splitlines())

    def _answer(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "nv-fabricmanager":
            return 0, f"Fabric Manager version is : {self.disk}", ""
        if argv[0] == "nvidia-smi" and self.mode == "7":
            return 9, "", "No devices were found"
        return super()._answer(argv)

    def _systemctl(self, words: list[str]) -> tuple[int, str, str]:
        if words[0] in ("start", "restart", "enable") and words[-1] == FABRIC_MANAGER:
            if words[0] == "restart" or FABRIC_MANAGER not in self.active:
                self.mode = self.file["FABRIC_MODE"]
            self.active.discard(FABRIC_MANAGER)
            if self.mode == "9":
                return 1, "", "Job for nvidia-fabricmanager.service failed."
            if self.mode != "8":
                self.active.add(FABRIC_MANAGER)
            return 0, "", ""
        if words[0] == "reset-failed":
            return 0, "", ""
        return super()._systemctl(words)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Switched:
    """A host with NVSwitches, the old driver and one setting of this collection in force."""
    made = Switched(tmp_path)
    place(made, monkeypatch)
    made.begin(OLD)
    made.prepare()
    execute = Delivery.execute

    def install(self: Delivery, step: t.Any) -> bool:
        done = execute(self, step)
        if step.action == "install packages":
            made.put(SETTINGS_FILE, PACKAGED)  # the file belongs to the package
        return done

    monkeypatch.setattr(Delivery, "execute", install)
    run(made, OLD, LOG_LEVEL=5)
    assert made.file == {"LOG_LEVEL": "5", "FABRIC_MODE": "0"}
    return made


def run(made: Switched, version: str, level: str = "idle", **settings: object) -> dict[str, t.Any]:
    made.lines.clear()
    spec = Spec(version, fabric_manager_settings=settings)
    return Driver(spec, level, False, made.run, Root(str(made.folder))).present()


def fails(made: Switched, version: str, **settings: object) -> GpuopsError:
    with pytest.raises(GpuopsError) as caught:
        run(made, version, **settings)
    return caught.value


def settled(made: Switched) -> bool:
    """Whether the host runs with the setting that was in force, and nothing is left to do for a run with it."""
    before = kept(made)
    assert not {kind for kind, _key in before} & {"former", "restart", "paused"}
    assert (made.file, made.mode) == ({"LOG_LEVEL": "5", "FABRIC_MODE": "0"}, "0")
    assert made.active == {PERSISTENCED, FABRIC_MANAGER}
    assert run(made, OLD, LOG_LEVEL=5)["plan"] == [] and kept(made) == before
    return list(dict(key for key in before if key[0] == KIND)) == [KIND] and (KIND, "FABRIC_MODE") not in before


@pytest.mark.parametrize("mode", [9, 8, 7])
def test_a_fabric_manager_that_fails_gets_its_former_settings(host: Switched, mode: int) -> None:
    error = fails(host, OLD, LOG_LEVEL=6, FABRIC_MODE=mode)
    said = f"The fabric manager had new settings (FABRIC_MODE={mode}, LOG_LEVEL=6). It runs with the former ones again."
    assert error.message.endswith(said)
    assert settled(host)


def test_a_setting_that_goes_is_one_too(host: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    run(host, OLD, LOG_LEVEL=5, FABRIC_MODE=1)
    host.put(SETTINGS_FILE, "LOG_LEVEL=5\nFABRIC_MODE=1\n")
    answer = host._systemctl

    def picky(words: list[str]) -> tuple[int, str, str]:
        if words[0] in ("restart", "start") and words[-1] == FABRIC_MANAGER and host.file["FABRIC_MODE"] == "0":
            host.active.discard(FABRIC_MANAGER)
            return 1, "", "Job failed."
        return answer(words)

    monkeypatch.setattr(host, "_systemctl", picky)
    assert "had new settings (FABRIC_MODE=0)" in fails(host, OLD, LOG_LEVEL=5).message
    assert (host.file["FABRIC_MODE"], host.mode, FABRIC_MANAGER in host.active) == ("1", "1", True)
    assert (KIND, "FABRIC_MODE") in kept(host)


@pytest.mark.parametrize("fault", [f"dkms {NEW}", f"start {PERSISTENCED} {NEW}", ""])
def test_a_failed_change_of_the_driver_puts_its_file_back(host: Switched, fault: str) -> None:
    host.fails = {fault}
    error = fails(host, NEW, LOG_LEVEL=6, FABRIC_MODE=0 if fault else 9)
    assert error.details["rolled_back"] == OLD and host.loaded == dict.fromkeys(MODULES, OLD)
    assert ("new settings: FABRIC_MODE=9, LOG_LEVEL=6" in error.message) == (not fault)
    assert settled(host)


def test_a_run_that_was_killed_before_the_restart_knows_the_former_settings(
        host: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = services.Services.execute

    def die(self: services.Services, step: t.Any) -> bool:
        if step.action == services.RESTART:
            raise KeyboardInterrupt
        return execute(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(services.Services, "execute", die)
        with pytest.raises(KeyboardInterrupt):
            run(host, OLD, LOG_LEVEL=5, FABRIC_MODE=9)
    assert host.file["FABRIC_MODE"] == "9"
    assert "had new settings (FABRIC_MODE=9)" in fails(host, OLD, LOG_LEVEL=5, FABRIC_MODE=9).message
    assert settled(host)


def test_settings_that_wait_for_their_restart_stay(host: Switched) -> None:
    result = run(host, OLD, "never", LOG_LEVEL=5, FABRIC_MODE=1)
    assert result["pending"][0]["action"] == "restart service" and host.file["FABRIC_MODE"] == "1"
    assert run(host, OLD, "idle", LOG_LEVEL=5, FABRIC_MODE=1)["pending"] == [] and host.mode == "1"
    assert not {kind for kind, _key in kept(host)} & {"former", "restart"}


def test_an_error_elsewhere_leaves_the_settings_to_the_next_run(host: Switched) -> None:
    host.active.discard(PERSISTENCED)
    host.fails = {f"start {PERSISTENCED} {OLD}"}
    assert "fabric manager" not in fails(host, OLD, LOG_LEVEL=6).message
    host.fails = set()
    assert [step["action"] for step in run(host, OLD, LOG_LEVEL=6)["plan"]] == [
        "enable and start service", "restart service"]
