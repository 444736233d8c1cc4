# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrades the driver pods of a cluster, a few Nodes at a time. PRIVATE.

A Node that cannot be taken out of service is skipped, for example because a disruption budget forbids it. If an error
occurs after that, the Node has failed. If more Nodes fail than Limits.max_fail allows, no further upgrade starts. An
interrupted upgrade comes first, a Node that an earlier run has failed to upgrade last.
"""

from __future__ import annotations

import typing as t
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    allows,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.drain import PodEntry, staying_warnings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.upgrade_policy import most_unavailable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.fleet import Candidate, Fleet, Group, unavailable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.node_upgrade import NodeUpgrade, Terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.slots import Slots, Waiting

UPGRADED, FAILED, SKIPPED, PENDING, WAITING = "upgraded", "failed", "skipped", "pending", "waiting"
_THREADS = 64  # the maximum number of Nodes at the same time
_NAMED = 10  # the maximum number of Nodes that a message lists with their reasons

_Done = t.Tuple[t.List[Step], t.List[PendingStep]]


@dataclass(frozen=True)
class Limits:
    """The limits of a run. max_parallel, max_unavailable: limits that replace those of the policy if they are stricter,
    None for none; max_fail: the percentage of the Nodes that may fail; first: the Nodes that are upgraded first."""

    max_parallel: int | None = None
    max_unavailable: str | None = None
    max_fail: int = 0
    first: t.Sequence[str] = ()

    def parallel(self, group: Group) -> int:
        """How many Nodes of a group are upgraded at the same time, 0 for no limit."""
        asked = [count for count in (self.max_parallel, group.policy["max_parallel"]) if count]
        return min(asked, default=0)

    def unavailable(self, group: Group) -> int:
        """How many Nodes of a group may be unavailable at the same time. Raises InputError."""
        count = len(group.nodes)
        most = most_unavailable(group.policy["max_unavailable"], count)
        own = most if self.max_unavailable is None else most_unavailable(self.max_unavailable, count, "max_unavailable")
        return min(most, own)


class Row(t.TypedDict):
    """The result for a Node. driver: its NVIDIADriver, empty for none; current, desired: the tags of the driver images;
    state: C(upgraded), C(failed), C(skipped), C(pending) or C(waiting); seconds: the duration of its upgrade."""

    node: str
    driver: str
    current: str
    desired: str
    state: str
    reason: str
    seconds: int


@dataclass
class _Progress:
    """The state of a run. rows: by Node; working: the running upgrades; hints: of the errors; blocked: pods that could
    not be evicted; staying: pods that use a GPU and stay."""

    rows: dict[str, Row]
    steps: list[Step] = field(default_factory=list)
    pending: list[PendingStep] = field(default_factory=list)
    proved: set[str] = field(default_factory=set)
    working: dict[Future[_Done], NodeUpgrade] = field(default_factory=dict)
    hints: dict[str, None] = field(default_factory=dict)
    blocked: list[PodEntry] = field(default_factory=list)
    staying: list[PodEntry] = field(default_factory=list)

    def named(self, *states: str) -> list[str]:
        """The Nodes in one of the states."""
        return [name for name, row in self.rows.items() if row["state"] in states]

    def end(self, name: str, state: str, reason: str = "", seconds: float = 0) -> None:
        """Stores the result for a Node."""
        self.rows[name] = {**self.rows[name], "state": state, "reason": reason, "seconds": round(seconds)}


class Upgrade:
    """Upgrades the candidates of a fleet. tell: called with a line of progress. Raises InputError for wrong limits."""

    def __init__(self, client: Client, fleet: Fleet, terms: Terms, limits: Limits,
                 tell: t.Callable[[str], None] = lambda line: None) -> None:
        self._client, self._fleet, self._terms, self._limits, self._tell = client, fleet, terms, limits, tell
        order = sorted(fleet.candidates.values(), key=self._turn)
        self._progress = _Progress({one.name: {
            "node": one.name, "driver": one.group, "current": one.current, "desired": one.desired, "seconds": 0,
            "state": WAITING, "reason": ""} for one in order})
        self._todo: list[Candidate] = []
        for one in order:
            reason = one.excluded or ("" if one.node.ready else "it is not Ready")
            if reason:
                self._progress.end(one.name, SKIPPED, reason)
            else:
                self._todo.append(one)
        self._room = {group.name: limits.unavailable(group) for group in fleet.groups.values()}

    def _turn(self, one: Candidate) -> tuple[bool, bool, bool, bool, str]:
        """The sort key of a candidate."""
        return (one.has_failed, not one.is_unfinished, one.name not in self._limits.first, not one.node.cordoned,
                one.name)

    def preview(self) -> Result:
        """The result of check mode."""
        upgrades = [self._of(one) for one in self._todo]
        for upgrade, answer in zip(upgrades, self._client.many(lambda one: one.preview(), upgrades)):
            if isinstance(answer, GpuopsError):
                self._failed(upgrade, answer)
                continue
            steps, pending, staying = answer
            self._progress.steps += steps
            self._progress.staying += staying
            self._later(upgrade.name, pending)
        return self._result()

    def run(self) -> Result:
        """The result of a run. Raises GpuopsError if the API server itself fails, or a permission is missing."""
        if self._todo:
            rights.require(self._client, [], [
                rights.LABEL_NODES, ("delete", kinds.find("v1", "Pod"), self._fleet.namespace),
                *([rights.EVICT_PODS] if allows(self._terms.level, "drain") else [])])
        waiting = {one.name: one for one in self._todo}
        with ThreadPoolExecutor(_THREADS) as threads:
            while waiting or self._progress.working:
                for one in self._next(waiting.values()):
                    del waiting[one.name]
                    upgrade = self._of(one)
                    self._tell(f"{one.name}: upgrade started, {len(self._todo) - len(waiting)} of {len(self._todo)}")
                    self._progress.working[threads.submit(upgrade.run)] = upgrade
                if not self._progress.working:
                    break
                for future in wait(self._progress.working, return_when=FIRST_COMPLETED).done:
                    self._ended(self._progress.working.pop(future), future)
        self._not_started(waiting.values())
        return self._result()

    def _of(self, one: Candidate) -> NodeUpgrade:
        return NodeUpgrade(self._client, self._fleet, one, self._terms, self._tell)

    def _next(self, waiting: t.Collection[Candidate]) -> list[Candidate]:
        """The candidates whose upgrade starts now."""
        failed = set(self._progress.named(FAILED))
        if not waiting or len(failed) * 100 > self._limits.max_fail * len(self._todo):
            return []
        working = {upgrade.name: upgrade.one for upgrade in self._progress.working.values()}
        down = unavailable(self._client.list("v1", "Node")) - failed - working.keys()
        chosen: set[str] = set()
        for group in self._fleet.groups.values():
            slots = Slots(self._limits.parallel(group), self._room[group.name], down & group.nodes,
                          {name: one.set_name for name, one in working.items() if one.group == group.name},
                          self._progress.proved)
            chosen.update(slots.next(Waiting(one.name, one.set_name) for one in waiting if one.group == group.name))
        return [one for one in waiting if one.name in chosen]

    def _ended(self, upgrade: NodeUpgrade, future: Future[_Done]) -> None:
        """Stores the result of an upgrade."""
        error = future.exception()
        if isinstance(error, GpuopsError):
            self._client.count("v1", "Node", "")  # raises an error if the API server itself fails
            self._failed(upgrade, error)
            return
        steps, pending = future.result()
        self._progress.steps += steps
        if pending:
            self._later(upgrade.name, pending)
            return
        self._progress.proved.add(upgrade.one.set_name)
        self._progress.end(upgrade.name, UPGRADED, "", upgrade.seconds)
        self._tell(f"{upgrade.name}: upgraded in {upgrade.seconds:.0f} s")

    def _later(self, name: str, pending: t.Sequence[PendingStep]) -> None:
        self._progress.pending += pending
        if pending:
            self._progress.end(name, PENDING, f"{pending[0].id}: {pending[0].pending_reason}")

    def _failed(self, upgrade: NodeUpgrade, error: GpuopsError) -> None:
        state = FAILED if upgrade.has_begun else SKIPPED
        self._progress.end(upgrade.name, state, error.message, upgrade.seconds)
        self._progress.hints[error.hint] = None
        self._progress.blocked += error.details.get("blocked") or ()
        self._tell(f"{upgrade.name}: {state}: {error.message}")

    def _not_started(self, waiting: t.Iterable[Candidate]) -> None:
        """Stores why the upgrades of these candidates have not started."""
        failed = self._progress.named(FAILED)
        for one in waiting:
            room = self._room[one.group]
            self._progress.end(one.name, WAITING, f"not started, because {fold(failed)} failed before. See "
                               "gpu_max_fail_percentage" if failed else
                               f"not started, because only {counted(room, 'Node')} may be unavailable at the same time "
                               "(maxUnavailable), and others are cordoned or not Ready")

    def _result(self) -> Result:
        """The result of the task."""
        done = self._progress
        result = outcome(done.steps, done.pending, plan_diff("node_upgrade", done.steps),
                         nodes=list(done.rows.values()), warnings=staying_warnings(done.staying))
        ended = [name for name in done.rows if done.rows[name]["reason"]
                 and done.rows[name]["state"] in (FAILED, SKIPPED, WAITING)
                 and not self._fleet.candidates[name].excluded]
        if ended:
            result.update(failed=True, msg=self._message(ended), blocked=list(done.blocked))
        return result

    def _message(self, names: t.Sequence[str]) -> str:
        """The error about the Nodes that have not been upgraded."""
        reasons: dict[str, list[str]] = {}
        for name in names:
            reasons.setdefault(self._progress.rows[name]["reason"].rstrip("."), []).append(name)
        told = [f"{fold(group)}: {reason}." for reason, group in reasons.items()]
        more = f" The reasons of {len(told) - _NAMED} more are in nodes." if len(told) > _NAMED else ""
        return " ".join([f"The driver of {fold(names)} has not been upgraded.", *told[:_NAMED]]) + more + " ".join(
            ["", *filter(None, self._progress.hints)])
