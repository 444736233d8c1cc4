# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which services run, stop before modules are unloaded, and start again."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric import Fabric
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import in_order
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import gate_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import (
    Services,
    pause,
    request_restart,
    restart,
    resume,
    running,
    wanted_units,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import SERVICES, Service, read_services
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
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
    with pytest.raises(HostError, match=f"{PERSISTENCED} is masked, but must run: it keeps the GPUs initialised"):
        made.ids(Services)
    assert made.ids(Services, persistenced=False) == []


def test_the_manager_starts_after_persistenced(made: t.Any) -> None:
    made.desired = replace(made.desired, fabric="nvswitch")
    assert made.ids(Services) == [f"serve/enable and start service: {unit}" for unit in (PERSISTENCED, MANAGER)]


def test_what_ran_before_an_unload_comes_back(made: t.Any) -> None:
    made.works(persistenced="active", fabricmanager="active", dcgm="active", imex="inactive")
    made.desired = replace(made.desired, fabric="nvswitch", reload="why")
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
    assert restart(host, made.now, made.desired, IMEX, False) == []
    steps = restart(host, made.now, made.desired, IMEX, True)
    assert [step.id for _phase, step in steps] == [f"restart service: {IMEX}"]
    request_restart(made.journal, IMEX)  # a run was killed after it had written
    steps = restart(host, made.now, made.desired, IMEX, False)
    assert [step.id for _phase, step in steps] == [f"restart service: {IMEX}"]
    made.part(Services).execute(steps[0][1])
    assert made.asked == [("systemctl", "restart", IMEX)]
    assert restart(host, made.now, made.desired, IMEX, False) == []
    assert restart(host, made.now, replace(made.desired, reload="why"), IMEX, True) == []  # it starts anew then


def test_a_service_that_runs_and_is_only_enabled_is_restarted_for_its_files(made: t.Any) -> None:
    made.now = replace(made.now, services={**made.now.services, PERSISTENCED: Service("active", "disabled")})
    request_restart(made.journal, PERSISTENCED)
    made.do(Services)
    assert [argv[1] for argv in made.asked] == ["enable", "restart"]


def test_a_wish_that_is_taken_back(made: t.Any) -> None:
    made.works(persistenced="active", imex="active")
    assert made.ids(Services) == []  # somebody else's
    made.journal.keep("service", IMEX, {"state": "inactive", "enabled": "disabled"})
    assert made.ids(Services) == [f"interrupt/disable and stop service: {IMEX}"]
    assert [step.id for _phase, step in made.part(Services).absent(made.now)] == [
        f"disable and stop service: {IMEX}"]


def client(made: t.Any, unit: str = "") -> None:
    """A process of a service or of a container that has opened a GPU."""
    made.put("/dev/nvidia0")
    made.put("/proc/4711/comm", "python3\n")
    made.put("/proc/4711/cgroup", f"0::/system.slice/{unit or 'docker-' + 'a' * 64 + '.scope'}\n")
    made.link("/proc/4711/fd/0", "/dev/nvidia0")


@pytest.mark.parametrize(("user", "needs", "reasons"), [
    (None, "idle", ["gpu_disruption is 'never', this needs 'idle' or higher", "", ""]),
    ("train.service", "drain", ["held by train.service; gpu_disruption is 'never', this needs 'drain' or higher",
                                "held by train.service; gpu_disruption is 'idle', this needs 'drain' or higher", ""]),
    ("", "drain", [f"in use by python3 (pid 4711, container {'a' * 12})"] * 3)])
@pytest.mark.parametrize("unit", [MANAGER, IMEX])
def test_what_aborts_jobs_needs_a_level(made: t.Any, unit: str, user: str | None, needs: str, reasons: list[str]
                                        ) -> None:
    made.works(persistenced="active", fabricmanager="active", imex="active", dcgm="active")
    if user is not None:
        client(made, user)
    for one in (unit, DCGM):
        made.journal.keep("service", one, {"state": "inactive", "enabled": "disabled"})
    part = made.part(Services)
    assert [(phase, step.target, step.needs) for phase, step in part.plan(made.now, made.desired)] == [
        ("interrupt", unit, needs), ("serve", DCGM, "never")]
    assert {step.target: step.needs for _phase, step in part.absent(made.now)} == {unit: needs, DCGM: "never"}
    steps = restart(part.host, made.now, made.desired, unit, True)
    assert [(phase, step.needs) for phase, step in steps] == [("interrupt", needs)]
    pending = [gate_driver([steps[0][1]], level)[1] for level in ("never", "idle", "drain")]
    assert ["".join(one.pending_reason for one in steps) for steps in pending] == reasons


@pytest.mark.parametrize("unit", [MANAGER, IMEX])
def test_clients_that_have_started_since_the_plan_keep_the_service(made: t.Any, unit: str) -> None:
    made.works(persistenced="active", fabricmanager="active", imex="active")
    made.journal.keep("service", unit, {"state": "inactive", "enabled": "disabled"})
    part = made.part(Services)

    def steps() -> list[Step]:
        return [part.plan(made.now, made.desired)[0][1], restart(part.host, made.now, made.desired, unit, True)[0][1]]

    planned = steps()
    client(made, "train.service")
    for step in planned:
        with pytest.raises(InUse, match=f"{unit} is in use by python3 .* since the plan was made"):
            part.execute(step)
    assert made.asked == []
    for step, words in zip(steps(), (["disable", "--now"], ["restart"])):
        made.asked.clear()
        part.execute(step)
        assert made.asked == [("systemctl", "stop", "train.service"), ("systemctl", *words, unit),
                              ("systemctl", "start", "train.service")]
    assert not made.journal.of_kind("paused")


@pytest.mark.parametrize("state", ["active", "inactive"])
def test_a_service_that_has_started_since_the_plan_is_not_stopped_under_clients(made: t.Any, state: str) -> None:
    """Package scripts can have started it. A service that does not run is only disabled, whoever uses a GPU."""
    made.works(persistenced="active", fabricmanager="inactive")
    made.journal.keep("service", MANAGER, {"state": "inactive", "enabled": "disabled"})
    part = made.part(Services)
    (_phase, step), = part.plan(made.now, made.desired)
    client(made, "train.service")
    made.answers["systemctl show"] = 0, f"LoadState=loaded\nActiveState={state}\nUnitFileState=enabled"
    if state == "inactive":
        part.execute(step)
    else:
        with pytest.raises(InUse, match=f"{MANAGER} is in use by python3 .* since the plan was made"):
            part.execute(step)
    assert (("systemctl", "disable", "--now", MANAGER) in made.asked) == (state == "inactive")


def test_what_an_unload_has_stopped_is_not_started_by_a_removal(made: t.Any) -> None:
    made.works(fabricmanager="active")
    client(made, "train.service")
    made.journal.keep("service", MANAGER, {"state": "inactive", "enabled": "disabled"})
    stop = made.part(Services).absent(made.now)[0][1]
    pause(made.run, made.journal, ["train.service", MANAGER])
    made.asked.clear()
    made.part(Services).execute(stop)
    assert made.asked == [("systemctl", "disable", "--now", MANAGER)]


def test_a_service_that_does_not_run_or_is_stopped_for_an_unload_interrupts_nothing(made: t.Any) -> None:
    made.journal.keep("service", MANAGER, {"state": "inactive", "enabled": "disabled"})
    made.works(persistenced="active", fabricmanager="failed")
    client(made)
    steps = made.part(Services).plan(made.now, made.desired)
    assert restart(made.part(Services).host, made.now, made.desired, MANAGER, True) == []
    made.works(fabricmanager="active")
    steps += made.part(Services).plan(made.now, replace(made.desired, reload="why"))
    assert [(step.action, step.needs) for _phase, step in steps if step.target == MANAGER] == [
        ("disable and stop service", "never")] * 2


def test_to_enable_a_service_does_not_restart_it(made: t.Any) -> None:
    """IMEX runs but is not enabled; its nodes have changed."""
    made.works(persistenced="active")
    made.now = replace(made.now, services={**made.now.services, IMEX: Service("active", "disabled")})
    made.desired = replace(made.desired, fabric="nvlink5_rack")
    client(made)
    spec = {"imex_nodes": ["10.0.0.1"]}
    request_restart(made.journal, IMEX)
    made.do(Services, **spec)
    assert made.asked == [("systemctl", "enable", "--now", IMEX)]
    steps = [step for phase, step in made.part(Fabric, **spec).plan(made.now, made.desired) if phase == "interrupt"]
    assert [(step.id, step.needs) for step in steps] == [(f"restart service: {IMEX}", "drain")]


def test_services_that_a_killed_run_stopped_start_beside_an_interruption_that_waits(made: t.Any) -> None:
    made.works(persistenced="active", imex="active")
    pause(made.run, made.journal, ["training.service"])
    client(made)
    made.journal.keep("service", IMEX, {"state": "inactive", "enabled": "disabled"})
    steps = in_order(made.part(Services).plan(made.now, made.desired))
    allowed, pending = gate_driver(steps, "never", ["training.service"])
    assert [step.target for step in allowed] == ["training.service"]
    assert [step.target for step in pending] == [IMEX]


def test_disagreements(made: t.Any) -> None:
    made.works(persistenced="active", fabricmanager="failed")
    made.desired = replace(made.desired, fabric="nvswitch")
    assert made.part(Services).disagreements(made.now, made.desired) == [f"{MANAGER} is failed"]
