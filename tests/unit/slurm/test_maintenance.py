# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a node of Slurm is drained, resumed or left as it is. tests/integration/test_slurm.py does it with a real Slurm.
"""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._slurm.maintenance import Request, SlurmMaintenance
from ansible_collections.gpuops.nvidia.plugins.module_utils._slurm.nodes import Mark
from ansible_collections.gpuops.nvidia.tests.unit.slurm.test_nodes import RUN, node_text

OTHER_RUN = "control-2/9/9@2026-11-27T20:00:00Z"
OURS, THEIRS = Mark("driver", RUN).text, Mark("driver", OTHER_RUN).text
JOB = "12|RUNNING|trainer"


class Slurm:
    """Behaves like slurmctld for the node n1 of the host gpu-1. states, reason, jobs: its state; appears: a job that
    starts before the node is drained; updates: what was written."""

    def __init__(self, states: str = "IDLE", reason: str = "", jobs: str = "", appears: str = "") -> None:
        self.states, self.reason, self.jobs, self.appears = states.split("+"), reason, jobs, appears
        self.updates: list[str] = []

    def __call__(self, argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
                 env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
        """Runs a command of Slurm."""
        assert all(isinstance(word, str) for word in argv)
        if argv[0] == "sinfo":
            return Completed(tuple(argv), 0, "gpu-1|n1\ngpu-2|n2\n", "")
        if argv[0] == "squeue":
            assert "--nodelist=n1" in argv
            return Completed(tuple(argv), 0, self.jobs, "")
        if argv[1] == "update":
            assert argv[2] == "NodeName=n1"
            self.updates += argv[3:]
            for word in argv[3:]:
                self._set(*word.split("=", 1))
            return Completed(tuple(argv), 0, "", "")
        if argv[3] != "n1":
            return Completed(tuple(argv), 1, f"Node {argv[3]} not found\n", "")
        signed = f"{self.reason} [root@2026-11-27T20:40:51]" if self.reason else ""
        return Completed(tuple(argv), 0, node_text("+".join(self.states), signed), "")

    def _set(self, name: str, value: str) -> None:
        if name == "Reason":
            self.reason = value
        elif value == "DRAIN":
            self.jobs = self.jobs or self.appears
            self.states = ["MIXED" if self.jobs else self.states[0], "DRAIN"]
        else:  # as Slurm 22.05 does: UNDRAIN keeps DOWN and its reason
            down = value == "UNDRAIN" and "DOWN" in self.states
            self.states = ["DOWN" if down else "MIXED" if self.jobs else "IDLE"]
            self.reason = self.reason if down else ""

    def ask(self, state: str, level: str = "drain", node: str = "n1", **more: t.Any) -> dict[str, t.Any]:
        """One call of the module."""
        return SlurmMaintenance(Request(state, node, more.pop("run", RUN), "driver", level, **more), self).work()


def ids(result: dict[str, t.Any]) -> list[str]:
    return [step["action"] for step in result["plan"]]


@pytest.mark.parametrize("level", ["idle", "drain", "reboot"])
def test_an_empty_node_is_drained_and_resumed(level: str) -> None:
    slurm = Slurm()
    begun = slurm.ask("started", level)
    assert begun["started"] and begun["changed"] and ids(begun) == ["drain"] and not begun["pending"]
    assert slurm.updates == ["State=DRAIN", f"Reason={OURS}"] and begun["slurm_node"]["left"]
    assert slurm.ask("started", level)["changed"] is False
    ended = slurm.ask("ended", level, responds=True)
    assert ids(ended) == ["resume"] and not ended["slurm_node"]["left"] and slurm.states == ["IDLE"]
    assert slurm.updates[2:] == ["State=RESUME"]
    assert slurm.ask("ended")["changed"] is False and len(slurm.updates) == 3


@pytest.mark.parametrize("level", ["never", "idle"])
@pytest.mark.parametrize("states", ["MIXED", "MIXED+DRAIN"])
def test_a_job_keeps_the_node_in_service_below_drain(level: str, states: str) -> None:
    slurm = Slurm(states, jobs=JOB)
    result = slurm.ask("started", level)
    assert not result["started"] and not result["changed"] and not slurm.updates
    pending, = result["pending"]
    assert pending["needs"] == "drain" and pending["pending_reason"] == (
        f"job 12 of trainer (running) runs there: gpu_disruption is '{level}', and only 'drain' waits for jobs")


def test_a_node_that_releases_a_job_is_not_idle() -> None:
    pending, = Slurm("COMPLETING").ask("started", "idle")["pending"]
    assert pending["pending_reason"].startswith("a job runs there")
    waits = Slurm("COMPLETING+DRAIN", OURS).ask("started", "drain")
    assert not waits["started"] and waits["slurm_node"]["waits"] == "a job is about to release the node"


def test_a_job_that_starts_before_the_drain_at_idle() -> None:
    slurm = Slurm(appears=JOB)
    result = slurm.ask("started", "idle")
    assert not result["started"] and result["pending"] and slurm.states == ["MIXED"] and slurm.reason == ""
    assert not result["changed"], "the node is as before"


def test_jobs_are_waited_for_at_drain() -> None:
    slurm = Slurm("MIXED", jobs=JOB)
    first = slurm.ask("started")
    assert not first["started"] and first["slurm_node"]["jobs"] == "job 12 of trainer (running)"
    assert slurm.states == ["MIXED", "DRAIN"] and slurm.reason == OURS
    assert slurm.ask("started")["changed"] is False
    slurm.jobs, slurm.states = "", ["IDLE", "DRAIN"]
    assert slurm.ask("started")["started"]


@pytest.mark.parametrize("state", ["started", "ended"])
@pytest.mark.parametrize("failed", ["", "it does not build"])
def test_a_node_that_somebody_else_has_drained_stays_so(state: str, failed: str) -> None:
    slurm = Slurm("IDLE+DRAIN", "disk 3 fails")
    result = slurm.ask(state, reason=failed)
    assert result["started"] is (state == "started") and not result["changed"] and not slurm.updates


@pytest.mark.parametrize("former", ["the fan", ""])
def test_a_node_that_was_down_stays_down(former: str) -> None:
    slurm = Slurm("DOWN", former)
    assert slurm.ask("started")["started"] and slurm.reason == Mark("driver", RUN, former=former).text
    slurm.states = ["DOWN", "DRAIN"]
    slurm.ask("ended", responds=True)
    assert slurm.states == ["DOWN"] and slurm.reason == former
    assert slurm.updates[2:] == ["State=UNDRAIN", f"Reason={former}"]


@pytest.mark.parametrize("appended", [" : Not responding", " : gres/gpu count reported lower than configured (0 < 8)"])
@pytest.mark.parametrize("former", [None, "the fan : it is loud"])
def test_a_reason_to_which_slurm_has_appended_is_still_ours(appended: str, former: str | None) -> None:
    """Slurm 23.02 and newer append to the reason of a node, for example while its host boots."""
    slurm = Slurm("DOWN+DRAIN" if former else "IDLE+DRAIN", f"{Mark('driver', RUN, former=former).text}{appended}")
    assert ids(slurm.ask("ended", responds=True)) == ["resume"]
    assert slurm.reason == (former or "") and slurm.states == (["DOWN"] if former else ["IDLE"])


def test_a_reason_that_slurm_has_replaced_is_named() -> None:
    """Or somebody else has. The run must not end as if the node was in service."""
    slurm = Slurm("IDLE+DRAIN", "Low RealMemory")
    result = slurm.ask("ended", drained=True)
    warning, = result["warnings"]
    assert "stays drained, because its reason is now 'Low RealMemory'" in warning and not slurm.updates
    assert "warnings" not in slurm.ask("ended") and "warnings" not in Slurm("IDLE").ask("ended", drained=True)


@pytest.mark.parametrize("states", ["IDLE+REBOOT_REQUESTED", "IDLE+DRAIN+REBOOT_ISSUED", "MIXED+POWERING_UP"])
def test_a_node_that_slurm_reboots_or_powers_is_waited_for(states: str) -> None:
    slurm = Slurm(states)
    waits, pending = slurm.ask("started"), slurm.ask("started", "idle")
    assert not waits["started"] and "Slurm reboots its host" in waits["slurm_node"]["waits"]
    assert not pending["started"] and "Slurm reboots its host" in pending["pending"][0]["pending_reason"]
    assert not slurm.updates


def test_a_node_that_an_administrator_has_failed_stays_so() -> None:
    slurm = Slurm("IDLE+FAIL", "bad memory")
    assert slurm.ask("started")["started"] and not slurm.ask("ended")["changed"] and not slurm.updates


def test_a_node_whose_slurmd_reports_too_little_is_waited_for() -> None:
    slurm = Slurm("IDLE+DRAIN+INVALID_REG", OURS)
    assert "reports fewer resources" in slurm.ask("ended", responds=True)["slurm_node"]["waits"] and not slurm.updates


def test_the_time_of_the_mark_is_renewed() -> None:
    slurm, later = Slurm("IDLE"), RUN.replace("@2026", "@2027")
    slurm.ask("started")
    again = slurm.ask("started", run=later)
    assert again["started"] and not again["changed"] and slurm.reason == Mark("driver", later).text


def test_a_failed_node_is_not_resumed_below_drain() -> None:
    slurm = Slurm("COMPLETING+DRAIN", Mark("it does not build", OTHER_RUN, True).text)
    assert slurm.ask("started", "idle")["pending"] and not slurm.updates


def test_a_killed_run_is_continued() -> None:
    slurm = Slurm("IDLE+DRAIN", THEIRS)
    for state in ("started", "ended"):
        held = slurm.ask(state)
        assert held["slurm_node"]["held_by"] == OTHER_RUN and not held["started"] and not slurm.updates
    taken = slurm.ask("started", from_run=OTHER_RUN)
    assert taken["started"] and ids(taken) == ["keep drained"] and slurm.updates == [f"Reason={OURS}"]
    slurm.ask("ended")
    assert slurm.states == ["IDLE"]


def test_a_killed_run_that_waited_for_a_job_is_undone_at_idle() -> None:
    slurm = Slurm("MIXED+DRAIN", THEIRS, JOB)
    result = slurm.ask("started", "idle", from_run=OTHER_RUN)
    assert result["pending"] and ids(result) == ["resume"] and slurm.states == ["MIXED"]


def test_a_failure_is_recorded_until_a_run_succeeds() -> None:
    slurm = Slurm("IDLE+DRAIN", OURS)
    failed = slurm.ask("ended", reason="apt:\nno space")
    assert ids(failed) == ["record a failure"] and failed["slurm_node"]["failed"] and failed["slurm_node"]["left"]
    assert slurm.reason == f"gpuops: failed: apt: no space (run {RUN})"
    assert slurm.ask("ended", reason="again")["changed"] is False
    # Another run continues at once, because the failed one has ended.
    again = slurm.ask("started", run=OTHER_RUN)
    assert again["started"] and slurm.reason == THEIRS
    assert ids(slurm.ask("ended", run=OTHER_RUN)) == ["resume"]


def test_a_node_is_resumed_when_slurmd_responds() -> None:
    slurm = Slurm("IDLE+DRAIN+NOT_RESPONDING", OURS)
    waits = slurm.ask("ended", responds=True)
    assert waits["slurm_node"]["waits"] and not waits["changed"] and not slurm.updates
    assert ids(slurm.ask("ended")) == ["resume"], "it did not respond before"


@pytest.mark.parametrize(("slurm", "state", "level", "expected"), [
    (Slurm(), "started", "idle", ["drain"]), (Slurm("MIXED", jobs=JOB), "started", "drain", ["drain"]),
    (Slurm("IDLE+DRAIN", OURS), "ended", "drain", ["resume"]),
    (Slurm("MIXED+DRAIN", OURS, JOB), "started", "idle", ["resume"])])
def test_check_mode_writes_nothing(slurm: Slurm, state: str, level: str, expected: list[str]) -> None:
    result = slurm.ask(state, level, check=True)
    assert ids(result) == expected and not slurm.updates
    assert result["started"] is (state == "started" and not result["pending"])


def test_check_mode_resumes_what_it_would_have_drained() -> None:
    assert ids(Slurm().ask("ended", check=True, drained=True)) == ["resume"]
    assert not ids(Slurm().ask("ended", check=True)) and not ids(Slurm().ask("ended", drained=True))


def test_only_gathering_changes_nothing_and_needs_no_run() -> None:
    slurm = Slurm("MIXED+DRAIN", THEIRS, JOB)
    found = slurm.ask("gathered", run="")
    assert found["slurm_node"] == {
        "name": "n1", "states": ["DRAIN", "MIXED"], "reason": THEIRS, "jobs": "job 12 of trainer (running)",
        "left": True, "failed": False, "responds": True, "held_by": "", "waits": ""}
    assert not found["changed"] and not slurm.updates


@pytest.mark.parametrize("node", ["n1", "n1.example.com", "gpu-1", "gpu-1.example.com"])
def test_a_node_is_found_by_its_name_or_by_that_of_its_host(node: str) -> None:
    assert Slurm().ask("gathered", node=node)["slurm_node"]["name"] == "n1"


@pytest.mark.parametrize(("rc", "stderr", "message"), [
    (127, "", "scontrol is not installed"), (1, "Unable to contact slurm controller", "Unable to contact.*ping")])
def test_a_slurm_that_does_not_answer(rc: int, stderr: str, message: str) -> None:
    def run(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        return Completed(tuple(argv), rc, "", stderr)

    with pytest.raises(HostError, match=message):
        SlurmMaintenance(Request("gathered", "n1"), run).work()


@pytest.mark.parametrize(("node", "run"), [("n[1-3]", RUN), ("-a", RUN), ("n1", ""), ("n1", "a b"), ("n1", "a)")])
def test_arguments_are_checked(node: str, run: str) -> None:
    with pytest.raises(InputError):
        Slurm().ask("started", node=node, run=run)
    assert issubclass(InputError, GpuopsError)
