# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrades the driver pods of a cluster, a few Nodes at a time. PRIVATE.

A Node that cannot be taken out of service is skipped, for example because a disruption budget forbids it. If an error
occurs after that, the Node has failed. If more Nodes fail than Limits.max_fail allows, no further upgrade starts. An
interrupted upgrade comes first, a Node that an earlier run has failed to upgrade last.

While all maintenance windows are closed, only upgrades that have begun are finished, because a Node is safest in
service. A Node is not begun either if the rest of the window is shorter than the longest upgrade of this run.
"""

from __future__ import annotations

import re
import typing as t
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    allows,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import windows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.drain import PodEntry, staying_warnings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import holder_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.upgrade_policy import most_unavailable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.fleet import Candidate, Fleet, Group, unavailable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.node_upgrade import (
    NodeUpgrade,
    Terms,
    replace_step,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.slots import Slots, Waiting

UPGRADED, FAILED, SKIPPED, PENDING, WAITING = "upgraded", "failed", "skipped", "pending", "waiting"
GONE = "gone"
_THREADS = 64  # the maximum number of Nodes at the same time
_DIGITS = re.compile(r"([0-9]+)")
_BATCHES = 10  # the maximum number of batches that are printed
_NAMED = 10  # the maximum number of Nodes that a message lists with their reasons

_Done = t.Tuple[t.List[Step], t.List[PendingStep]]


@dataclass(frozen=True)
class Limits:
    """The limits of a run. max_parallel, max_unavailable: limits that replace those of the policy if they are stricter,
    None for none; max_fail: the percentage of the Nodes that may fail; first: the Nodes that are upgraded before all
    others; windows: when upgrades may begin, none for always. Raises InputError for numbers that are not allowed."""

    max_parallel: int | None = None
    max_unavailable: str | None = None
    max_fail: int = 0
    first: t.Sequence[str] = ()
    windows: windows.Windows = ()

    def __post_init__(self) -> None:
        if (self.max_parallel or 0) < 0:
            raise InputError("it is negative.", "Write a number of Nodes, 0 for no limit.", path="max_parallel",
                             value=self.max_parallel, allowed="0 or more")
        if not 0 <= self.max_fail <= 100:
            raise InputError("it is not a percentage.", "Write a number from 0 to 100.", path="max_fail_percentage",
                             value=self.max_fail, allowed="0 to 100")

    def check_names(self, fleet: Fleet) -> None:
        """Raises InputError if a Node that is to be upgraded first has no driver of the policy."""
        known = {name for group in fleet.groups.values() for name in group.nodes}
        unknown = [name for name in self.first if name not in known]
        if unknown and fleet.groups and fleet.complete:
            raise InputError(f"the policy delivers no driver to {fold(unknown)}.", "Name Nodes as kubectl get nodes "
                             "shows them (gpu_upgrade_first).", path="first", value=unknown)

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
    state: C(upgraded), C(failed), C(skipped), C(pending), C(waiting) or C(gone); batch: the Nodes of a batch start at
    the same time, 0 if the upgrade does not start; seconds: the duration of its upgrade."""

    node: str
    driver: str
    current: str
    desired: str
    state: str
    reason: str
    batch: int
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
            "node": one.name, "driver": one.group, "current": one.current, "desired": one.desired, "batch": 0,
            "seconds": 0, "state": WAITING, "reason": ""} for one in order})
        limits.check_names(fleet)
        for name, state in fleet.left.items():
            self._progress.rows[name] = {
                "node": name, "driver": "", "current": "", "desired": "", "batch": 0, "seconds": 0, "state": SKIPPED,
                "reason": f"an earlier upgrade has left it in the state {state}, but the policy delivers no driver to "
                          "it. Put it back into service by hand, see docs/maintenance.md"}
        self._todo: list[Candidate] = []
        # Nodes that the user excludes, but that are in the middle of an upgrade; the numbers of batches, by Node.
        self._stuck: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._beside = False  # whether another run upgrades Nodes
        # Why the maintenance windows keep Nodes waiting, and when the next one opens; empty if they do not.
        self._late, self._opens = "", ""
        for one in order:
            # An upgrade that has begun is finished or undone, whatever the user wants now.
            reason = "" if one.can_be_undone or one.must_be_finished else one.excluded
            if reason and one.state in upgrades.IN_PROGRESS:
                reason = (f"{reason}, but an earlier upgrade has left it in the state {one.state}. Allow the upgrade, "
                          "or put the Node back into service by hand, see docs/maintenance.md")
                self._stuck.add(one.name)
            reason = reason or ("" if one.node.ready else "it is not Ready")
            if reason:
                self._progress.end(one.name, SKIPPED, reason)
            else:
                self._todo.append(one)
        self._room = {group.name: limits.unavailable(group) for group in fleet.groups.values()}

    def _turn(self, one: Candidate) -> tuple[bool, bool, bool, bool, list[str | int]]:
        """The sort key of a candidate. Numbers in names are sorted as numbers."""
        parts: list[str | int] = [int(part) if part.isdigit() else part for part in _DIGITS.split(one.name)]
        return (one.has_failed, not one.is_unfinished, one.name not in self._limits.first, not one.node.cordoned, parts)

    def preview(self) -> Result:
        """The result of check mode, in which each upgrade is assumed to succeed."""
        waiting = {one.name: one for one in self._todo}
        planned = [self._of(one) for batch in self._batches() for one in self._start(batch, waiting)]
        for upgrade, answer in zip(planned, self._client.many(lambda one: one.preview(), planned)):
            if isinstance(answer, GpuopsError):
                self._failed(upgrade, answer)
                continue
            steps, pending, staying = answer
            self._progress.steps += steps
            self._progress.staying += staying
            self._later(upgrade.name, pending)
        self._not_started(list(waiting.values()))
        return self._result()

    def run(self) -> Result:
        """The result of a run. Raises GpuopsError if the API server itself fails, or a permission is missing."""
        if self._todo:
            rights.require(self._client, [], [
                rights.LABEL_NODES, ("delete", kinds.find("v1", "Pod"), self._fleet.namespace),
                *([rights.EVICT_PODS] if allows(self._terms.level, "drain") else [])])
        waiting = {one.name: one for one in self._todo}
        self._batches()
        with ThreadPoolExecutor(_THREADS) as threads:
            while waiting or self._progress.working:
                nodes = self._client.list("v1", "Node") if waiting else []
                for one in self._start(self._next(waiting.values(), nodes, self._progress.proved), waiting):
                    upgrade = self._of(one)
                    if allows(self._terms.level, "idle"):
                        self._tell(f"{one.name}: upgrade started, {len(self._todo) - len(waiting)} of "
                                   f"{len(self._todo)}")
                    self._progress.working[threads.submit(upgrade.run)] = upgrade
                if not self._progress.working:
                    break
                for future in wait(self._progress.working, return_when=FIRST_COMPLETED).done:
                    self._ended(self._progress.working.pop(future), future)
                    self._estimate(waiting.values())
        self._not_started(list(waiting.values()))
        return self._result()

    def _batches(self) -> list[list[Candidate]]:
        """The candidates in the order in which their upgrades start if each one succeeds; prints it."""
        waiting, nodes, proved = list(self._todo), self._client.list("v1", "Node") if self._todo else [], set[str]()
        batches = []
        while waiting:
            chosen = self._next(waiting, nodes, proved)
            if not chosen:
                break
            batches.append(chosen)
            names = {one.name for one in chosen}
            waiting = [one for one in waiting if one.name not in names]
            proved.update(one.set_name for one in chosen)
        self._numbers = {one.name: number for number, batch in enumerate(batches, 1) for one in batch}
        about = windows.note(self._limits.windows, self._terms.now()) if self._todo else ""
        if about:
            self._tell(about)
        if not allows(self._terms.level, "idle"):
            return batches
        for number, batch in enumerate(batches[:_BATCHES], 1):
            changes = dict.fromkeys(f"{one.current} becomes {one.desired}" for one in batch
                                    if one.pod and not one.excluded)
            parts = (f"batch {number}", fold(one.name for one in batch), ", ".join(changes))
            self._tell(": ".join(filter(None, parts)))
        if len(batches) > _BATCHES:
            self._tell(f"{len(batches)} batches in all")
        return batches

    def _start(self, chosen: t.Sequence[Candidate], waiting: dict[str, Candidate]) -> t.Sequence[Candidate]:
        """Removes the candidates whose upgrade starts from those that wait, and stores their batch."""
        for one in chosen:
            del waiting[one.name]
            self._progress.rows[one.name]["batch"] = self._numbers.get(one.name, 0)
        return chosen

    def _of(self, one: Candidate) -> NodeUpgrade:
        return NodeUpgrade(self._client, self._fleet, one, self._terms, self._tell)

    def _next(self, waiting: t.Collection[Candidate], nodes: t.Sequence[Live], proved: t.AbstractSet[str]
              ) -> list[Candidate]:
        """The candidates whose upgrade starts now. nodes: the current Nodes; proved: as in L(Slots)."""
        failed = set(self._progress.named(FAILED))
        self._late, self._opens = "", ""
        if not waiting or len(failed) * 100 > self._limits.max_fail * len(self._todo):
            return []
        working = {upgrade.name: upgrade.one for upgrade in self._progress.working.values()}
        down = unavailable(nodes) - failed - working.keys()
        others = self._of_other_runs(nodes) - working.keys() - failed
        self._beside = bool(others)
        self._late, self._opens = self._outside()
        if self._late:
            waiting = [one for one in waiting if _is_begun(one)]
        chosen: set[str] = set()
        for group in self._fleet.groups.values():
            busy = {name: one.set_name for name, one in working.items() if one.group == group.name}
            slots = Slots(self._limits.parallel(group), self._room[group.name], down & group.nodes,
                          {**dict.fromkeys(others & group.nodes, ""), **busy}, proved)
            mine = [one for one in waiting if one.group == group.name]
            # The others wait until all Nodes that are to be first have ended.
            first = [one for one in mine if one.name in self._limits.first]
            if first or any(name in self._limits.first for name in busy):
                mine = [one for one in mine if one.is_unfinished or one in first]
            chosen.update(slots.next(Waiting(one.name, one.set_name) for one in mine))
        return [one for one in waiting if one.name in chosen]

    def _outside(self) -> tuple[str, str]:
        """(why no further upgrade begins now, when the next window opens), empty if one may begin: the windows are
        closed, or close too soon for an upgrade that takes as long as the longest one of this run."""
        given, now = self._limits.windows, self._terms.now()
        closes = windows.closes_at(given, now)
        if closes is None:
            return windows.closed(given, now), windows.stamp(windows.opens_at(given, now)[0])
        longest = max(self._seconds(), default=0)
        if now + longest < closes:
            return "", ""
        return (f"an upgrade took {longest} s in this run, and the maintenance window closes before that, at "
                f"{windows.closing(given, closes)}; the next one opens at {windows.opening(given, closes)}",
                windows.stamp(windows.opens_at(given, closes)[0]))

    def _seconds(self) -> list[int]:
        """How long the upgrades of this run took."""
        return [row["seconds"] for row in self._progress.rows.values() if row["state"] == UPGRADED]

    def _of_other_runs(self, nodes: t.Sequence[Live]) -> set[str]:
        """The Nodes that other runs are upgrading now."""
        found = set()
        for one in map(NodeState.read, nodes):
            holder = holder_of(one)
            if (holder and self._terms.holder.must_wait_for(holder)
                    and one.labels.get(upgrades.STATE) in upgrades.IN_PROGRESS):
                found.add(one.name)
        return found

    def _ended(self, upgrade: NodeUpgrade, future: Future[_Done]) -> None:
        """Stores the result of an upgrade."""
        error = future.exception()
        if isinstance(error, GpuopsError):
            if self._client.get("v1", "Node", upgrade.name) is None:  # raises an error if the API server itself fails
                self._progress.end(upgrade.name, GONE, "it was deleted during its upgrade", upgrade.seconds)
                self._tell(f"{upgrade.name}: it was deleted during its upgrade")
                return
            self._failed(upgrade, error)
            return
        steps, pending = future.result()
        self._progress.steps += steps
        if pending:
            self._later(upgrade.name, pending)
            return
        if upgrade.one.can_be_undone:
            self._progress.end(upgrade.name, SKIPPED, f"its upgrade was undone: {upgrade.one.excluded}")
            return
        self._progress.proved.add(upgrade.one.set_name)
        self._progress.end(upgrade.name, UPGRADED, "", upgrade.seconds)
        self._tell(f"{upgrade.name}: upgraded in {upgrade.seconds:.0f} s")

    def _estimate(self, waiting: t.Collection[Candidate]) -> None:
        """Prints how long the upgrades of the waiting Nodes will take, by the duration of those that have ended."""
        seconds = self._seconds()
        if not seconds or not waiting:
            return
        turns = []
        for group in self._fleet.groups.values():
            places = min(self._limits.parallel(group) or _THREADS, self._room[group.name])
            turns.append(-(-sum(one.group == group.name for one in waiting) // max(places, 1)))
        expected = max(turns) * sum(seconds) / len(seconds)
        given, now = self._limits.windows, self._terms.now()
        closes = windows.closes_at(given, now)
        more = "" if closes is None or now + expected < closes else (
            f", but the maintenance window closes at {windows.closing(given, closes)}")
        self._tell(f"{counted(len(waiting), 'Node')} left, about {expected / 60:.0f} min{more}")

    def _later(self, name: str, pending: t.Sequence[PendingStep]) -> None:
        self._progress.pending += pending
        if pending:
            self._progress.end(name, PENDING, f"{pending[0].id}: {pending[0].pending_reason}")
            self._progress.rows[name]["batch"] = 0

    def _failed(self, upgrade: NodeUpgrade, error: GpuopsError) -> None:
        state = FAILED if upgrade.has_begun else SKIPPED
        self._progress.end(upgrade.name, state, error.message, upgrade.seconds)
        self._progress.hints[error.hint] = None
        self._progress.blocked += error.details.get("blocked") or ()
        self._tell(f"{upgrade.name}: {state}: {error.message}")

    def _not_started(self, waiting: t.Sequence[Candidate]) -> None:
        """Stores why the upgrades of these candidates have not started."""
        failed = self._progress.named(FAILED)
        for one, pending in zip(waiting, self._forbidden(waiting)):
            room = self._room[one.group]
            if pending or self._late:
                self._later(one.name, pending or [replace_step(one).pending(self._late)])
                continue
            self._progress.end(one.name, WAITING, f"not started, because {fold(failed)} failed before. See "
                               "gpu_max_fail_percentage" if failed else
                               f"not started, because only {counted(room, 'Node')} may be unavailable at the same time "
                               "(maxUnavailable), or because another run upgrades as many Nodes as maxParallelUpgrades "
                               "allows, and others are cordoned or not Ready" if self._beside else
                               f"not started, because only {counted(room, 'Node')} may be unavailable at the same time "
                               "(maxUnavailable), and others are cordoned or not Ready")

    def _forbidden(self, waiting: t.Sequence[Candidate]) -> list[t.Sequence[PendingStep]]:
        """For each candidate the steps that the level forbids. From the level drain on, it forbids none."""
        if allows(self._terms.level, "drain"):
            return [()] * len(waiting)
        answers = self._client.many(lambda one: self._of(one).preview(), waiting)
        return [() if isinstance(answer, GpuopsError) else answer[1] for answer in answers]

    def _result(self) -> Result:
        """The result of the task."""
        done = self._progress
        result = outcome(done.steps, done.pending, plan_diff("node_upgrade", done.steps),
                         nodes=list(done.rows.values()), warnings=staying_warnings(done.staying),
                         next_opening=self._opens)
        unwanted = {name for name in done.named(SKIPPED) if name not in {*self._fleet.left, *self._stuck}
                    and self._fleet.candidates[name].excluded}
        ended = [name for name in done.named(FAILED, SKIPPED, WAITING) if done.rows[name]["reason"]
                 and name not in unwanted]
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


def _is_begun(one: Candidate) -> bool:
    """Whether an earlier run has begun the upgrade of a Node and left the Node out of service."""
    return one.is_unfinished or one.has_failed and one.node.cordoned
