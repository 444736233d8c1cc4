# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which services run, stop for an unload and come back."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._services import (
    Services,
    owe_restart,
    pause,
    restart,
    resume,
    running,
    wanted_units,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import SERVICES, Service, read_services
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

PERSISTENCED, MANAGER, IMEX, DCGM = (
    f"nvidia-{name}.service" for name in ("persistenced", "fabricmanager", "imex", "dcgm"))


@pytest.mark.parametrize(("spec", "fabric", "expected"), [
    (Spec(), "none", [PERSISTENCED]),
    (Spec(), "nvswitch", [PERSISTENCED, MANAGER]),
    (Spec(imex_nodes=["10.0.0.1"]), "nvlink5", [PERSISTENCED, MANAGER, IMEX]),
    (Spec(), "nvlink5_rack", [PERSISTENCED]),
    (Spec(persistenced=False, imex_nodes=["10.0.0.1"]), "nvlink5_rack", [IMEX]),
    (Spec(licence={"token": "x"}), "none", [PERSISTENCED, "nvidia-gridd.service"]),
])
def test_wanted(spec: Spec, fabric: str, expected: list[str]) -> None:
    assert list(wanted_units(spec, fabric)) == expected


def test_one_command_asks_for_all() -> None:
    asked = []

    def run(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        asked.append(argv)
        blocks = ["LoadState=loaded\nActiveState=active\nUnitFileState=enabled" if unit == MANAGER else
                  "LoadState=masked\nActiveState=inactive\nUnitFileState=masked" for unit in SERVICES]
        return Completed(tuple(argv), 0, "\n\n".join(blocks) + "\n", "")

    found = read_services(run)
    assert len(asked) == 1
    assert found == {**dict.fromkeys(SERVICES, Service("absent", "masked")), MANAGER: Service("active", "enabled")}


def test_a_masked_service_is_told_before_anything_is_changed(made: t.Any) -> None:
    made.now = replace(made.now, services={**made.now.services, PERSISTENCED: Service("absent", "masked")})
    with pytest.raises(HostError, match=f"{PERSISTENCED} is masked, and it keeps the GPUs initialised"):
        made.ids(Services)
    assert made.ids(Services, persistenced=False) == []


def test_the_manager_starts_after_persistenced(made: t.Any) -> None:
    made.aim = replace(made.aim, fabric="nvswitch")
    assert made.ids(Services) == [f"serve/enable and start service: {unit}" for unit in (PERSISTENCED, MANAGER)]


def test_what_ran_before_an_unload_comes_back(made: t.Any) -> None:
    made.works(persistenced="active", fabricmanager="active", dcgm="active", imex="inactive")
    made.aim = replace(made.aim, fabric="nvswitch", reload="why")
    assert running(made.now.services) == [DCGM, MANAGER, PERSISTENCED]
    assert made.ids(Services) == [
        f"serve/enable and start service: {PERSISTENCED}", f"serve/enable and start service: {MANAGER}",
        f"serve/start service again: {DCGM}"]


def test_a_killed_run_is_not_forgotten(made: t.Any) -> None:
    made.works(persistenced="active", dcgm="active")
    pause(made.run, made.journal, [DCGM, PERSISTENCED])
    assert [argv[1:] for argv in made.asked] == [("stop", DCGM), ("stop", PERSISTENCED)]
    made.works(persistenced="inactive", dcgm="inactive")
    assert made.ids(Services) == [
        f"serve/enable and start service: {PERSISTENCED}", f"serve/start service again: {DCGM}"]
    made.do(Services)
    made.works(persistenced="active", dcgm="inactive")
    assert made.ids(Services) == []  # what somebody stops later stays stopped


def test_resume_goes_the_other_way(made: t.Any) -> None:
    pause(made.run, made.journal, [DCGM, PERSISTENCED])
    made.asked.clear()
    resume(made.run, made.journal)
    assert [argv[1:] for argv in made.asked] == [("start", PERSISTENCED), ("start", DCGM)]


def test_changed_files_ask_for_one_restart(made: t.Any) -> None:
    made.works(persistenced="active", imex="active")
    host = made.part(Services).host
    assert restart(host, made.now, made.aim, IMEX, False) == []
    assert [step.id for _phase, step in restart(host, made.now, made.aim, IMEX, True)] == [f"restart service: {IMEX}"]
    owe_restart(made.journal, IMEX)  # a run was killed after it had written
    steps = restart(host, made.now, made.aim, IMEX, False)
    assert [step.id for _phase, step in steps] == [f"restart service: {IMEX}"]
    made.part(Services).execute(steps[0][1])
    assert made.asked == [("systemctl", "restart", IMEX)]
    assert restart(host, made.now, made.aim, IMEX, False) == []
    assert restart(host, made.now, replace(made.aim, reload="why"), IMEX, True) == []  # it starts anew then


def test_a_service_that_runs_and_is_only_enabled_is_restarted_for_its_files(made: t.Any) -> None:
    made.now = replace(made.now, services={**made.now.services, PERSISTENCED: Service("active", "disabled")})
    owe_restart(made.journal, PERSISTENCED)
    made.do(Services)
    assert [argv[1] for argv in made.asked] == ["enable", "restart"]


def test_a_wish_that_is_taken_back(made: t.Any) -> None:
    made.works(persistenced="active", imex="active")
    assert made.ids(Services) == []  # somebody else's
    made.journal.keep("service", IMEX, {"state": "inactive", "enabled": "disabled"})
    assert made.ids(Services) == [f"serve/disable and stop service: {IMEX}"]
    assert [step.id for _phase, step in made.part(Services).absent(made.now)] == [
        f"disable and stop service: {IMEX}"]


def test_disagreements(made: t.Any) -> None:
    made.works(persistenced="active", fabricmanager="failed")
    made.aim = replace(made.aim, fabric="nvswitch")
    assert made.part(Services).disagreements(made.now, made.aim) == [f"{MANAGER} is failed"]
