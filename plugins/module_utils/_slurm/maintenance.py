# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains a node of Slurm before its host is changed, and resumes it afterwards. PRIVATE to the collection.

Each call is one look and at most one change; the action waits between calls. The state of the maintenance is the reason
of the drained node (L(Mark)), so that another run continues after a killed one. No job is ever ended: a node that is
draining keeps its jobs (scontrol(1), State=DRAIN).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result, Step, allows, outcome
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._slurm.nodes import (
    Job,
    Mark,
    SlurmNode,
    candidates,
    checked_name,
    find_by_host,
    named,
    plain,
    read_jobs,
    read_node,
)

# Jobs that have resources of the node; those that are pending have none.
_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT,RESIZING"
_LIMIT = 120  # seconds for a command: slurmctld answers late under load
_HINT = ("Check that slurmctld runs and that this host has slurm.conf and the key of munge (scontrol ping). To run "
         "these commands on another host, set gpu_slurm_controller.")


@dataclass(frozen=True)
class Request:
    """What is asked. state: started, ended or gathered. node: the name of the node or of its host. run: this run of
    Ansible. what: what will be changed. level: that of gpu_disruption. from_run: a run that has ended, whose mark may
    be replaced. reason: why the change has failed, empty if it has not. responds: whether slurmd must respond before
    the node is resumed. drained: whether an earlier task of this run has drained the node. check: check
    mode."""

    state: str
    node: str
    run: str = ""
    what: str = ""
    level: str = "never"
    from_run: str = ""
    reason: str = ""
    responds: bool = False
    drained: bool = False
    check: bool = False


class SlurmMaintenance:
    """One call of the module."""

    def __init__(self, request: Request, run: Runner) -> None:
        self._request = request
        self._run = run
        for name in candidates(request.node):
            checked_name(name)
        if request.state != "gathered" and (not request.run or set(request.run) & set(" ()")):
            raise InputError("it must name a run of Ansible, without spaces and parentheses.",
                             "Leave the option out: the action of the module sets it.", path="run", value=request.run)

    def work(self) -> Result:
        """Does what the request says. Raises HostError."""
        node = self._read()
        if self._request.state == "gathered":
            return self._result(node, self._jobs(node))
        mark, me = node.mark, self._request.run
        if mark and not mark.failed and not mark.is_of(me) and mark.run != self._request.from_run:
            return self._result(node, self._jobs(node), held_by=mark.run)
        return self._started(node) if self._request.state == "started" else self._ended(node)

    def _started(self, node: SlurmNode) -> Result:
        """Drains the node unless it is drained. Below the level drain, a node with jobs stays in service."""
        waits = allows(self._request.level, "drain")
        jobs, steps = self._jobs(node), []
        if node.busy:  # its jobs would be requeued, or the host would be rebooted during the change
            reason = f"Slurm reboots its host or switches it on or off ({node.busy})"
            if waits:
                return self._result(node, jobs, waits=reason)
            pending = Step("drain", _target(node), self._request.what, "drain").pending(reason)
            return {**self._result(node, jobs), "pending": [pending.as_dict()]}
        if waits or not (jobs or node.has_jobs):
            steps = self._drain(node)
            if steps and not self._request.check:
                node = self._read()
                jobs = self._jobs(node)
        if not waits and (jobs or node.has_jobs):
            # A job has started before the node was drained, or an earlier run was killed while it waited for this job.
            undo = self._resume(node) if node.mark and not node.mark.failed else []
            reason = f"{named(jobs) or 'a job'} runs there: gpu_disruption is '{self._request.level}', and only " \
                     "'drain' waits for jobs"
            pending = Step("drain", _target(node), self._request.what, "drain").pending(reason)
            after = node if self._request.check or not undo else self._read()
            return {**self._result(after, jobs, [] if steps else undo), "pending": [pending.as_dict()]}
        empty = self._request.check or not (jobs or node.has_jobs)
        return self._result(node, jobs, steps, started=empty)

    def _drain(self, node: SlurmNode) -> list[Step]:
        """Sets our mark. The reason of somebody else who has drained the node is never replaced."""
        former = node.mark
        if node.drained and former is None:
            return []
        if former and former.is_of(self._request.run) and not former.failed:
            if former.run != self._request.run:  # the time in it is old, and other controllers compare it
                self._update(node, f"Reason={Mark(former.what, self._request.run, former=former.former).text}")
            return []
        before = former.former if former else node.reason if node.down else None
        mark = Mark(self._request.what, self._request.run, former=before)
        state = [] if node.drained else ["State=DRAIN"]
        step = Step("drain", _target(node), mark.what, "idle") if state else \
            Step("keep drained", _target(node), mark.what, "idle")
        self._update(node, *state, f"Reason={mark.text}")
        return [step]

    def _ended(self, node: SlurmNode) -> Result:
        """Resumes a node that has our mark, or records why the change has failed."""
        mark, jobs = node.mark, self._jobs(node)
        if mark is None:
            would = self._request.check and self._request.drained and not self._request.reason
            found = self._result(node, jobs, [Step("resume", _target(node))] if would else [])
            if self._request.drained and node.drained and not self._request.check:
                found["warnings"] = [f"Node {node.name} of Slurm stays drained, because its reason is now "
                                     f"'{plain(node.reason)}', which this run has not set. If nothing else keeps it "
                                     f"out of service: scontrol update NodeName={node.name} State=RESUME"]
            return found
        if self._request.reason:
            failed = Mark(self._request.reason, self._request.run, True, mark.former)
            if mark.failed and mark.is_of(self._request.run):
                return self._result(node, jobs)
            self._update(node, f"Reason={failed.text}")
            steps = [Step("record a failure", _target(node), failed.what)]
            return self._result(node if self._request.check else self._read(), jobs, steps)
        if self._request.responds and not node.responds and mark.former is None and not self._request.check:
            return self._result(node, jobs, waits="slurmd on the host does not respond, or reports fewer resources "
                                                  "than slurm.conf states")
        steps = self._resume(node)
        return self._result(node if self._request.check else self._read(), jobs, steps)

    def _resume(self, node: SlurmNode) -> list[Step]:
        """Undoes our drain. UNDRAIN keeps a node DOWN that was DOWN before; RESUME also ends a state DOWN that the
        change has caused, as by a reboot (slurm.conf(5), ReturnToService)."""
        former = node.mark.former if node.mark else None
        if former is None:
            self._update(node, "State=RESUME")
        else:
            self._update(node, "State=UNDRAIN")
            self._update(node, f"Reason={former}")
        return [Step("resume", _target(node))]

    def _update(self, node: SlurmNode, *settings: str) -> None:
        if not self._request.check:
            self._run(["scontrol", "update", f"NodeName={node.name}", *settings], timeout=_LIMIT,
                      hint="The user of the task must be root, SlurmUser, or an operator of Slurm.")

    def _read(self) -> SlurmNode:
        """The node with this name, or the one of the host with this name. Raises HostError."""
        names = candidates(self._request.node)
        for name in names:
            done = self._run(["scontrol", "show", "node", name], timeout=_LIMIT, check=False)
            if done.rc == 127:
                raise HostError("scontrol is not installed here.", "Set gpu_slurm_controller to a host of the "
                                "inventory on which it works; if the host is not a node of Slurm, set gpu_slurm: "
                                "false for it.")
            if done.rc == 0 and done.stdout.strip():
                return read_node(done.stdout)
            if "not found" not in done.stdout + done.stderr:
                raise CommandError(done.argv, done.rc, done.stdout, done.stderr, _HINT)
        listed = self._run(["sinfo", "--noheader", "--all", "--format=%n|%N"], timeout=_LIMIT, hint=_HINT)
        name = find_by_host(listed.stdout, names)
        return read_node(self._run(["scontrol", "show", "node", name], timeout=_LIMIT, hint=_HINT).stdout)

    def _jobs(self, node: SlurmNode) -> list[Job]:
        argv = ["squeue", "--noheader", f"--nodelist={node.name}", f"--states={_STATES}", "--format=%A|%T|%u"]
        return read_jobs(self._run(argv, timeout=_LIMIT, hint=_HINT).stdout)

    def _result(self, node: SlurmNode, jobs: t.Sequence[Job], steps: t.Sequence[Step] = (), started: bool = False,
                held_by: str = "", waits: str = "") -> Result:
        mark = node.mark
        if self._request.state == "started" and not jobs and node.has_jobs:
            waits = waits or "a job is about to release the node"
        return outcome(steps, started=started, slurm_node={
            "name": node.name, "states": sorted(node.states), "reason": plain(node.reason), "jobs": named(jobs),
            "left": mark is not None, "failed": bool(mark and mark.failed), "responds": node.responds,
            "held_by": held_by, "waits": waits})


def _target(node: SlurmNode) -> str:
    return f"node {node.name} of Slurm"
