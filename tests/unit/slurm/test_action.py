# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action waits for jobs between executions of its module, and takes a node over only from a run that has ended."""

from __future__ import annotations

import typing as t
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gpuops.nvidia.plugins.action import slurm_maintenance
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder

JOB = "job 12 of trainer (running)"
DRAIN = {"id": "drain: node n1 of Slurm", "action": "drain"}
GONE = "elsewhere/9/9@2020-01-01T00:00:00Z"
Answer = t.Dict[str, t.Any]


def answer(started: bool = False, plan: t.Sequence[Answer] = (), pending: t.Sequence[Answer] = (),
           **node: t.Any) -> Answer:
    """What the module returns."""
    return {"started": started, "plan": list(plan), "pending": list(pending), "changed": bool(plan),
            "slurm_node": {"name": "n1", "jobs": "", "waits": "", "held_by": "", **node}}


FAILED = {"failed": True, "msg": "Slurm is away."}


class Played:
    """A task. answers: of the module, in order; parents: the parent process at each look. given: the options of each
    execution. told: what was printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: list[Answer], parents: t.Sequence[int] = (),
                 **args: t.Any) -> None:
        self.given: list[Answer] = []
        self.told: list[str] = []
        clock, parent = iter(range(0, 10_000)), iter((*parents, *[7] * 10_000))

        def run_module(_self: HostAction, _task_vars: Answer, module_args: Answer) -> Answer:
            self.given.append(dict(module_args))
            found: t.Any = answers.pop(0)
            if isinstance(found, Exception):
                raise found
            return dict(found)

        monkeypatch.setattr(HostAction, "run_module", run_module)
        monkeypatch.setattr(slurm_maintenance, "tell", self.told.append)
        monkeypatch.setattr(slurm_maintenance, "time", SimpleNamespace(
            monotonic=lambda: float(next(clock)), sleep=lambda _seconds: None))
        monkeypatch.setattr(slurm_maintenance, "os", SimpleNamespace(getppid=lambda: next(parent)))
        action = slurm_maintenance.ActionModule.__new__(slurm_maintenance.ActionModule)
        action._task = SimpleNamespace(args={"state": "started", "node": "n1", "disruption": "drain", **args})
        self.result = action.run_module({})
        assert not answers, "the module was executed too seldom"

    @property
    def states(self) -> list[str]:
        """The state of each execution."""
        return [one["state"] for one in self.given]


def test_it_waits_for_jobs_and_names_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, [answer(plan=[DRAIN], jobs=JOB), answer(jobs=JOB), answer(waits="a job releases it"),
                                  answer(started=True)])
    assert played.result["started"] and played.result["changed"] and played.result["plan"] == [DRAIN]
    assert played.told == [f"node n1 of Slurm: waits for {JOB}", "node n1 of Slurm: waits for a job releases it"]
    run = Holder.read(played.given[0]["run"])
    assert run is not None and run.is_same_run(Holder.of_run())


@pytest.mark.parametrize("away", [FAILED, AnsibleConnectionFailure("the connection was lost")])
def test_a_failed_look_does_not_end_a_wait(monkeypatch: pytest.MonkeyPatch, away: t.Any) -> None:
    """A wait may take hours, in which slurmctld is restarted. The first look must succeed."""
    played = Played(monkeypatch, [answer(plan=[DRAIN], jobs=JOB), away, away, answer(started=True)])
    assert played.result["started"] and played.result["plan"] == [DRAIN]
    played = Played(monkeypatch, [answer(plan=[DRAIN], jobs=JOB), *[away] * 3, answer()], timeout=10)
    assert played.result["failed"] and "was not changed and is as it was before" in played.result["msg"]
    if isinstance(away, Exception):
        with pytest.raises(AnsibleConnectionFailure):
            Played(monkeypatch, [away])


def test_a_run_that_takes_the_node_over_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    other = f"elsewhere{Holder.of_run().text[Holder.of_run().text.index('/'):]}"
    played = Played(monkeypatch, [answer(plan=[DRAIN], jobs=JOB), answer(jobs=JOB, held_by=other)])
    assert played.result["failed"] and "is held by another run" in played.result["msg"]


def test_the_mark_gets_the_present_time_while_the_run_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_maintenance, "_RENEW", 1.0)
    texts = iter(f"here/1/1@2026-11-27T2{hour}:00:00Z" for hour in range(4))
    monkeypatch.setattr(slurm_maintenance.Holder, "of_run", lambda: Holder.read(next(texts)))
    played = Played(monkeypatch, [answer(jobs=JOB), answer(started=True)])
    assert played.given[0]["run"] != played.given[1]["run"]


def test_it_ends_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a task goes on when the run is killed. The node is left to the next run."""
    played = Played(monkeypatch, [answer(plan=[DRAIN], jobs=JOB), answer(jobs=JOB)], parents=[42, 42, 1])
    assert played.result["failed"] and played.states == ["started", "started"]


@pytest.mark.parametrize("last", [answer(started=True), answer(pending=[{"id": "x"}], jobs=JOB), FAILED])
def test_it_does_not_wait_without_need(monkeypatch: pytest.MonkeyPatch, last: Answer) -> None:
    assert Played(monkeypatch, [last]).states == ["started"]


def test_it_gathers_and_ends_without_waiting_for_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Played(monkeypatch, [answer(jobs=JOB)], state="gathered").result.get("failed")
    assert not Played(monkeypatch, [answer(jobs=JOB)], state="ended").result.get("failed")
    assert Played(monkeypatch, [answer(waits="slurmd"), answer()], state="ended").states == ["ended", "ended"]


@pytest.mark.parametrize(("undone", "message"), [
    (answer(), f"Node n1 of Slurm was not changed and is as it was before: {JOB} did not end within the time. Run "
               "again later, or set maintenance_slurm_timeout to more seconds."),
    (FAILED, f"Node n1 of Slurm was not changed and stays drained (Slurm is away.): {JOB} did not end")])
def test_after_the_timeout_the_node_is_as_before(monkeypatch: pytest.MonkeyPatch, undone: Answer, message: str) -> None:
    played = Played(monkeypatch, [answer(plan=[DRAIN], jobs=JOB), answer(jobs=JOB), undone], timeout=5)
    assert played.result["failed"] and played.result["msg"].startswith(message)
    assert played.states == ["started", "started", "ended"]


@pytest.mark.parametrize("timeout", [0, "no number"])
def test_a_slurmd_that_stays_away(monkeypatch: pytest.MonkeyPatch, timeout: t.Any) -> None:
    played = Played(monkeypatch, [answer(waits="slurmd on the host does not respond")], state="ended", timeout=timeout)
    assert played.result["msg"].startswith("Node n1 of Slurm stays drained: slurmd on the host does not respond.")


def test_a_node_is_taken_over_from_a_run_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, [answer(held_by=GONE), answer(started=True, plan=[DRAIN])])
    assert played.result["started"] and [one.get("from_run") for one in played.given] == [None, GONE]
    Played(monkeypatch, [answer(held_by="no run"), answer(started=True)])


@pytest.mark.parametrize("answers", [
    [answer(held_by=GONE), answer(held_by="other")],  # a third run was faster
    [answer(held_by=f"elsewhere{Holder.of_run().text[Holder.of_run().text.index('/'):]}")]])
def test_a_node_of_a_run_that_may_be_active_is_refused(monkeypatch: pytest.MonkeyPatch, answers: list[Answer]) -> None:
    played = Played(monkeypatch, list(answers))
    assert played.result["failed"] and "is held by another run (" in played.result["msg"]
    assert "scontrol update NodeName=n1 State=RESUME" in played.result["msg"]
