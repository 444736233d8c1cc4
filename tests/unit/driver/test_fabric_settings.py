# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the fabric manager in the file of its package."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import fabric_settings as module
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric_settings import (
    KIND,
    SET,
    SETTINGS_FILE,
    FabricSettings,
    settings,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import plan_absent
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import Services
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

# As in the package: comments, a repeated name, and spaces around a sign.
FILE = "# The log level\nLOG_LEVEL=4\nFABRIC_MODE = 0\n\nFABRIC_MODE=0\nBIND_INTERFACE_IP=127.0.0.1\n"
WISH = {"FABRIC_MODE": 1, "FM_STAY_RESIDENT_ON_FAILURES": True}
EDITED = ("# The log level\nLOG_LEVEL=4\nFABRIC_MODE=1\n\nBIND_INTERFACE_IP=127.0.0.1\n"
          "FM_STAY_RESIDENT_ON_FAILURES=1\n")
STEP = f"configure/set options of the fabric manager: {SETTINGS_FILE}"
RESTART = "interrupt/restart service: nvidia-fabricmanager.service"


@pytest.fixture
def switches(made: t.Any) -> t.Any:
    """A host with NVSwitches whose fabric manager runs."""
    made.put(SETTINGS_FILE, FILE)
    made.works(fabricmanager="active")
    made.desired = replace(made.desired, fabric="nvswitch")
    return made


def test_only_the_lines_of_the_settings_change(switches: t.Any) -> None:
    assert switches.ids(FabricSettings, fabric_manager_settings=WISH) == [STEP, RESTART]
    switches.do(FabricSettings, fabric_manager_settings=WISH)
    assert switches.read(SETTINGS_FILE) == EDITED
    assert switches.journal.get("file", SETTINGS_FILE) is None
    assert switches.journal.get("restart", "nvidia-fabricmanager.service") is not None
    switches.journal.forget("restart", "nvidia-fabricmanager.service")
    assert switches.ids(FabricSettings, fabric_manager_settings=WISH) == []


def test_a_setting_that_goes_gets_its_former_value(switches: t.Any) -> None:
    switches.do(FabricSettings, fabric_manager_settings={**WISH, "LOG_LEVEL": "5"})
    switches.put(SETTINGS_FILE, switches.read(SETTINGS_FILE).replace("LOG_LEVEL=5", "LOG_LEVEL=6"))
    part = switches.part(FabricSettings)
    step = part.plan(switches.now, switches.desired)[0][1]
    assert step.reason == "FABRIC_MODE as it was before, FM_STAY_RESIDENT_ON_FAILURES as it was before"
    part.execute(step)
    assert switches.read(SETTINGS_FILE) == FILE.replace("FABRIC_MODE = 0", "FABRIC_MODE=0").replace(
        "\nFABRIC_MODE=0\nBIND", "\nBIND").replace("LOG_LEVEL=4", "LOG_LEVEL=6")
    assert not switches.journal.of_kind(KIND)


def test_a_value_that_somebody_else_has_set_meanwhile_stays(switches: t.Any) -> None:
    switches.do(FabricSettings, fabric_manager_settings={"FABRIC_MODE": 1})
    switches.journal.forget("restart", "nvidia-fabricmanager.service")
    switches.put(SETTINGS_FILE, "FABRIC_MODE=3\n")  # the package was reinstalled
    assert switches.ids(FabricSettings) == []
    switches.part(FabricSettings).tidy()
    switches.put(SETTINGS_FILE, "FABRIC_MODE=1\n")
    assert switches.ids(FabricSettings) == []


def test_the_former_value_is_that_of_the_present_package(switches: t.Any) -> None:
    switches.put(SETTINGS_FILE, "FABRIC_MODE=2\n")
    switches.do(FabricSettings, fabric_manager_settings={"FABRIC_MODE": 1})
    switches.put(SETTINGS_FILE, "FABRIC_MODE=0\n")
    switches.do(FabricSettings, fabric_manager_settings={"FABRIC_MODE": 1})
    switches.do(FabricSettings)
    assert switches.read(SETTINGS_FILE) == "FABRIC_MODE=0\n"


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("wish", [{}, {"LOG_LEVEL": 6}])
def test_a_run_killed_around_the_write_loses_no_former_value(
        switches: t.Any, monkeypatch: pytest.MonkeyPatch, written: bool, wish: dict[str, t.Any]) -> None:
    switches.do(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 5})

    def killed(path: str, data: bytes) -> None:
        if written:
            real(path, data)
        raise KeyboardInterrupt

    real = module.write_atomic
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            switches.do(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 6})
    switches.do(FabricSettings, fabric_manager_settings=wish).tidy()
    assert switches.read(SETTINGS_FILE).splitlines()[1] == f"LOG_LEVEL={wish.get('LOG_LEVEL', 4)}"
    switches.do(FabricSettings)
    assert switches.read(SETTINGS_FILE).splitlines()[1] == "LOG_LEVEL=4"


def test_other_lines_keep_their_bytes(switches: t.Any) -> None:
    before = b"\n# caf\xe9 \x0cFABRIC_MODE=3\r\n\r\nFABRIC_MODE=0\r\n"
    switches.put(SETTINGS_FILE, before)
    switches.do(FabricSettings, fabric_manager_settings={"FABRIC_MODE": 1})
    assert (switches.folder / SETTINGS_FILE[1:]).read_bytes() == before.replace(b"MODE=0\r\n", b"MODE=1\n")


def test_a_fabric_manager_that_is_not_wanted_is_not_restarted(switches: t.Any) -> None:
    switches.do(FabricSettings, fabric_manager_settings={"FABRIC_MODE": 1})
    switches.desired = replace(switches.desired, fabric="none")
    assert switches.ids(FabricSettings, fabric_manager_settings={"FABRIC_MODE": 1}) == [STEP]


def test_the_file_of_a_newer_package_gets_the_settings_again_and_keeps_its_own(switches: t.Any) -> None:
    switches.do(FabricSettings, fabric_manager_settings=WISH)
    newer = "LOG_LEVEL=3\nFABRIC_MODE=0\nNEW_SETTING=1\n"
    switches.desired = replace(switches.desired, delivered=True)
    part = switches.part(FabricSettings, fabric_manager_settings=WISH)
    planned = [step for _phase, step in part.plan(switches.now, switches.desired)]
    switches.put(SETTINGS_FILE, newer)  # the package is installed before the step is executed
    part.execute(planned[0])
    assert switches.read(SETTINGS_FILE) == "LOG_LEVEL=3\nFABRIC_MODE=1\nNEW_SETTING=1\nFM_STAY_RESIDENT_ON_FAILURES=1\n"
    switches.do(FabricSettings)
    assert switches.read(SETTINGS_FILE) == newer


def test_a_removal_restores_the_settings(switches: t.Any) -> None:
    switches.do(FabricSettings, fabric_manager_settings=WISH)
    part = switches.part(FabricSettings)
    steps = part.absent(switches.now)
    assert [phase for phase, _step in steps] == ["stop", "interrupt"]
    part.execute(steps[0][1])
    switches.journal.forget("restart", "nvidia-fabricmanager.service")
    assert "FABRIC_MODE=0" in switches.read(SETTINGS_FILE) and "FM_STAY" not in switches.read(SETTINGS_FILE)
    assert part.absent(switches.now) == []


def test_a_restart_of_a_killed_run_is_made_up_for(switches: t.Any) -> None:
    switches.do(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 5})
    assert switches.ids(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 5}) == [RESTART]


@pytest.mark.parametrize("fabric", ["none", "nvlink5_rack"])
def test_no_effect_without_a_fabric_manager(switches: t.Any, fabric: str) -> None:
    switches.desired = replace(switches.desired, fabric=fabric)
    assert switches.ids(FabricSettings, fabric_manager_settings=WISH) == []


def test_a_missing_file_is_an_error(switches: t.Any) -> None:
    (switches.folder / SETTINGS_FILE[1:]).unlink()
    with pytest.raises(HostError, match="is missing. Reinstall the package"):
        switches.ids(FabricSettings, fabric_manager_settings=WISH)
    assert switches.ids(FabricSettings) == []
    switches.desired = replace(switches.desired, delivered=True)
    part = switches.part(FabricSettings, fabric_manager_settings=WISH)
    with pytest.raises(HostError, match="is missing after the installation"):
        part.execute(part.plan(switches.now, switches.desired)[0][1])


@pytest.mark.parametrize(("wish", "path"), [
    ({"fabric mode": 1}, "fabric mode"), ({"FABRIC_MODE": "1\nLOG_LEVEL=9"}, "FABRIC_MODE"),
    ({"LOG_FILE_NAME": "a b"}, "LOG_FILE_NAME"), ({"A": "\x1b[0m"}, "A"), ({"A": "é"}, "A"),
    ({"FABRIC_MODE": [1]}, "FABRIC_MODE"),
])
def test_bad_settings(wish: dict[str, t.Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(Spec(fabric_manager_settings=wish))
    assert caught.value.details["path"] == f"fabric_manager_settings.{path}"


def test_values_are_text() -> None:
    assert settings(Spec(fabric_manager_settings={"A": True, "B": 4, "C": "/run/x", "D": None, "E": ""})) == {
        "A": "1", "B": "4", "C": "/run/x", "E": ""}


def test_a_failed_write_asks_for_no_restart(switches: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_words: t.Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomic", full)
        with pytest.raises(OSError, match="No space"):
            switches.do(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 5})
    assert switches.ids(FabricSettings) == []
    switches.part(FabricSettings).tidy()
    assert not switches.journal.of_kind(KIND)
    switches.do(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 5})
    with monkeypatch.context() as patch:  # a restart of an earlier change stays due
        patch.setattr(module, "write_atomic", full)
        with pytest.raises(OSError, match="No space"):
            switches.do(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 6})
    assert RESTART in switches.ids(FabricSettings, fabric_manager_settings={"LOG_LEVEL": 5})


@pytest.mark.parametrize(("service", "displaced", "actions"), [
    ({}, [], [SET, "restart service"]),  # the package was installed before
    ({"before": "disabled"}, [], [SET, "disable and stop service"]),  # this collection has enabled it
    ({}, [Step("purge packages", "all", data={"packages": ["nvidia-driver-cuda"]})], [SET]),  # the driver goes
])
def test_a_fabric_manager_that_outlives_the_removal_runs_with_its_former_settings(
        switches: t.Any, service: dict[str, str], displaced: list[Step], actions: list[str]) -> None:
    switches.do(FabricSettings, fabric_manager_settings=WISH)
    switches.journal.forget("restart", "nvidia-fabricmanager.service")
    if service:
        switches.journal.keep("service", "nvidia-fabricmanager.service", {"enabled": service["before"]})
    parts = [switches.part(FabricSettings), switches.part(Services)]
    host = Host(Spec(), switches.run, Root(str(switches.folder)), switches.journal)
    steps = plan_absent(switches.now, parts, Initramfs(host), displaced, [], [])
    assert [step.action for step in steps if "fabric" in step.target] == actions
