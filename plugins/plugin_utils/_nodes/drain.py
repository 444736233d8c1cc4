# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains Nodes by evictions, and restores their former state. PRIVATE to the collection.

The pods of each Node are listed once per round. Pods with GPUs are evicted first; the other pods follow when these have
ended. If a disruption budget forbids an eviction, the eviction is tried again until the timeout. The first pod of a
Node is evicted only after dry runs have shown that all its pods can be evicted, so that no pod ends without need. A
budget that is exhausted after the dry runs still prevents the eviction of the remaining pods.
"""

from __future__ import annotations

import re
import time
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    allows,
    gate,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client, Later
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, evictable, node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions, SortedPods
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder, refuse_held
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.pod import Pod, pods_on

# Seconds: the pause between two rounds; the pause between two requests for a pod if the answer has no Retry-After; how
# long the result of a dry run is used while other pods of the Node cannot be evicted.
_PAUSE, _AGAIN, _COUNTS = 1.0, 5.0, 15.0
_NEVER = float("inf")
_BUDGET = re.compile(r"disruption budget (\S+)")
_NOT_ENDED = "it was evicted or deleted, but has not ended"

# C({node, pod}), with C(reason) or C(budget) where they apply.
PodEntry = t.Dict[str, str]


@dataclass(frozen=True)
class Request:
    """The parameters of a task. names: the Nodes; grace_period: seconds for every pod, None to use each pod's own;
    timeout: seconds for all Nodes together; level: the allowed disruption; seen: in check mode, the Nodes that an
    earlier task of the same run would have cordoned; holder: this run, None to accept Nodes held by another run;
    selector: the label selector of the pods, empty for all pods."""

    names: t.Sequence[str]
    evictions: EvictionOptions = EvictionOptions()
    grace_period: int | None = None
    timeout: float = 300
    level: str = "never"
    check: bool = False
    seen: t.Collection[str] = ()
    holder: Holder | None = None
    selector: str = ""


@dataclass(frozen=True)
class Outcome:
    """The planned or completed actions of a task. cordoned, uncordoned: Nodes; evicted, blocked, staying: pods;
    failure: the message if pods are left, empty otherwise."""

    steps: t.Sequence[Step] = ()
    pending: t.Sequence[PendingStep] = ()
    cordoned: t.Sequence[str] = ()
    uncordoned: t.Sequence[str] = ()
    evicted: t.Sequence[PodEntry] = ()
    blocked: t.Sequence[PodEntry] = ()
    staying: t.Sequence[PodEntry] = ()
    failure: str = ""

    def as_dict(self) -> Result:
        """The result of the task."""
        failed = {"failed": True, "msg": self.failure} if self.failure else {}
        return outcome(self.steps, self.pending, plan_diff("node_drain", self.steps), cordoned=list(self.cordoned),
                       uncordoned=list(self.uncordoned), evicted=list(self.evicted), blocked=list(self.blocked),
                       staying=list(self.staying), **failed)


def staying_warnings(staying: t.Iterable[PodEntry]) -> list[str]:
    """A warning for each pod that uses a GPU and is not evicted."""
    return [f"A pod that uses a GPU stays: {pod['pod']} on {pod['node']}: {pod['reason']}." for pod in staying]


@dataclass
class _Round:
    """The state of the evictions. next: maps the uid of a pod to the time of its next request; why: maps it to the
    reason why the pod has not ended; begun: the Nodes whose pods can all be evicted, and are being evicted."""

    next: dict[str, float] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    why: dict[str, str] = field(default_factory=dict)
    evicted: list[PodEntry] = field(default_factory=list)


class Drain:
    """Runs one task. tell: called with a line for each pod that must wait; clock, sleep: as in the module time."""

    def __init__(self, client: Client, request: Request, tell: t.Callable[[str], None] = lambda line: None,
                 clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
        self._client, self._request = client, request
        self._tell, self._clock, self._sleep = tell, clock, sleep
        self._round = _Round()

    def drained(self) -> Outcome:
        """Cordons the Nodes and evicts pods. If it raises GpuopsError, the Nodes are schedulable or cordoned as before.
        """
        nodes = node.named(self._client, self._request.names)
        refuse_held(self._request.holder, nodes.values())
        pods = self._pods(self._request.names)
        evicts = allows(self._request.level, "drain")
        if evicts:
            _refuse(pods)
        cordons = [name for name, one in nodes.items() if cordon.cordon(one)]
        steps = [Step("cordon", f"Node {name}", "new pods must not start there", "drain") for name in cordons]
        # Below the level drain all evictions are pending, even those of pods that must not be evicted at all.
        steps += [_step(pod) for group in pods.values()
                  for pod in [*group.evicted, *(() if evicts else (pod for pod, _why in group.refused))]]
        allowed, pending = gate(steps, self._request.level)
        result = Outcome(allowed, pending, cordons if allowed else (), staying=_entries(
            (name, group.staying) for name, group in pods.items()))
        if not allowed or self._request.check:
            return result
        try:
            without_errors(self._client.many(lambda name: node.write(self._client, name, cordon.cordon),
                                             self._request.names))
            left = self._evict()
        except GpuopsError:
            self._uncordon(cordons)
            raise
        evicted, planned = self._round.evicted, {step.id for step in allowed}
        late = [Step("evict", f"Pod {one['pod']}", f"it has started on {one['node']} meanwhile", "drain")
                for one in evicted]
        result = replace(result, evicted=evicted, steps=[*allowed, *(step for step in late if step.id not in planned)])
        return self._blocked(result, left) if left else result

    def uncordoned(self) -> Outcome:
        """Uncordons the Nodes that this collection has cordoned. A Node that somebody else has cordoned stays
        cordoned."""
        seen = self._request.seen if self._request.check else ()
        nodes = node.named(self._client, self._request.names)
        ours = {name: one for name, one in nodes.items() if cordon.before(one) is not None or name in seen}
        steps = [Step("uncordon", f"Node {name}", "only our annotation is removed: others have (un)cordoned it"
                      if _keeps(one) else "it was schedulable before") for name, one in ours.items()]
        if not self._request.check:
            self._uncordon(ours)
        return Outcome(steps, uncordoned=[*ours])

    def _pods(self, names: t.Collection[str]) -> dict[str, SortedPods]:
        pods = without_errors(self._client.many(
            lambda name: pods_on(self._client, name, self._request.selector), names))
        return {name: evictable.sort(group, self._request.evictions) for name, group in zip(names, pods)}

    def _uncordon(self, names: t.Iterable[str]) -> None:
        """Restores the former state of the Nodes."""
        without_errors(self._client.many(lambda name: node.write(self._client, name, cordon.uncordon), names))

    def _evict(self) -> dict[str, SortedPods]:
        """Evicts pods until the timeout. Maps each Node to its remaining pods; empty if all have ended."""
        end = self._clock() + self._request.timeout
        left = self._pods(self._request.names)
        while True:
            left = {name: group for name, group in left.items() if group.evicted or group.refused}
            if not left or self._clock() >= end:
                return left
            self._begin(left)
            self._ask([pod for name, group in left.items() if name in self._round.begun
                       for pod in _first(group.evicted)])
            self._sleep(max(min(_PAUSE, end - self._clock()), 0))
            left = self._pods(left)

    def _begin(self, left: t.Mapping[str, SortedPods]) -> None:
        """Finds, by dry runs, the Nodes whose pods can all be evicted. A Node with a single pod needs no dry run."""
        waiting = {name: group for name, group in left.items() if name not in self._round.begun}
        tried = [pod for group in waiting.values() if len(group.evicted) > 1 for pod in group.evicted]
        for pod, answer in self._answers(tried, dry_run=True):
            if answer is None:
                self._round.why.pop(pod.uid, None)
                self._round.next[pod.uid] = self._clock() + _COUNTS
        for name, group in waiting.items():
            if not group.refused and not any(pod.uid in self._round.why for pod in group.evicted):
                self._round.begun.add(name)
                for pod in group.evicted:
                    self._round.next.pop(pod.uid, None)

    def _ask(self, pods: t.Sequence[Pod]) -> None:
        """Requests an eviction for each pod that is due."""
        for pod, answer in self._answers(pods, dry_run=False):
            if answer is None:
                self._round.next[pod.uid], self._round.why[pod.uid] = _NEVER, _NOT_ENDED
                self._round.evicted.append({"node": pod.node, "pod": pod.label})

    def _answers(self, pods: t.Sequence[Pod], dry_run: bool) -> list[tuple[Pod, Later | None]]:
        """Requests the evictions that are due. Returns (pod, answer) for each; the answer is None if the eviction is
        allowed. Records why other pods must wait. Raises ClusterError for an error that waiting cannot solve."""
        now = self._clock()
        due = [pod for pod in pods if not pod.ending and self._round.next.get(pod.uid, now) <= now]
        answers = list(zip(due, without_errors(self._client.many(
            lambda pod: self._client.evict(pod.name, pod.namespace, pod.uid, self._request.grace_period, dry_run),
            due))))
        for pod, answer in answers:
            if answer is not None:
                if self._round.why.get(pod.uid) != answer.why:
                    self._tell(f"{pod.node}: waits for {pod.label}: {answer.why}")
                self._round.next[pod.uid], self._round.why[pod.uid] = now + (answer.after or _AGAIN), answer.why
        return answers

    def _blocked(self, result: Outcome, left: t.Mapping[str, SortedPods]) -> Outcome:
        """The result with the remaining pods. Uncordons the Nodes of these pods if this task, not an earlier one, has
        cordoned them."""
        ours = [name for name in left if name in result.cordoned]
        self._uncordon(ours)
        why = self._round.why
        found = _entries((name, [
            *((pod, why[pod.uid]) for pod in group.evicted if pod.uid in why), *group.refused,
            *((pod, _waiting(pod, name in self._round.begun)) for pod in group.evicted if pod.uid not in why)])
            for name, group in left.items())
        blocked = [{**one, "budget": budget[1] if budget else ""}
                   for one, budget in ((one, _BUDGET.search(one["reason"])) for one in found)]
        first = blocked[0]
        return replace(result, blocked=blocked, uncordoned=ours, failure=(
            f"{fold(left)} could not be emptied within {self._request.timeout:g} seconds; {len(blocked)} "
            f"pod{'s are' if len(blocked) > 1 else ' is'} still there. {first['pod']} on {first['node']}: "
            f"{first['reason'].rstrip('.')}. {'Their' if len(left) > 1 else 'Its'} former state is restored. "
            "Give such pods more replicas or their budget more room, or raise timeout."))


def _keeps(one: NodeState) -> bool:
    """Whether an uncordon only removes our annotation, and leaves the Node schedulable or cordoned as it is now."""
    return one.cordoned if cordon.before(one) is None else not cordon.uncordon(one).spec


def _first(going: t.Sequence[Pod]) -> t.Sequence[Pod]:
    """The pods of a Node that are evicted next."""
    return [pod for pod in going if pod.uses_gpu] or going


def _step(pod: Pod) -> Step:
    return Step("evict", f"Pod {pod.label}", f"{'it uses a GPU' if pod.uses_gpu else 'it runs'} on {pod.node}", "drain")


def _waiting(pod: Pod, begun: bool) -> str:
    if pod.ending:
        return "it was deleted and has not ended yet"
    return "it is evicted only after the pods with GPUs have ended" if begun else (
        "it was not evicted, because another pod of its Node could not be evicted")


def _entries(groups: t.Iterable[tuple[str, t.Iterable[tuple[Pod, str]]]]) -> list[PodEntry]:
    """The entries of a result. groups: (Node, [(pod, reason)])."""
    return [{"node": name, "pod": pod.label, "reason": why} for name, pods in groups for pod, why in pods]


def _refuse(pods: t.Mapping[str, SortedPods]) -> None:
    """Raises ClusterError if pods may not be evicted at all."""
    refused = _entries((name, group.refused) for name, group in pods.items())
    if refused:
        reasons = "; ".join(f"{one['pod']} on {one['node']}: {one['reason']}" for one in refused[:5])
        more = f"; {len(refused) - 5} more" if len(refused) > 5 else ""
        raise ClusterError(f"Pods cannot be evicted: {reasons}{more}.", "Set the option that the reason names, or end "
                           f"these pods first. Nothing was changed on {fold(pods)}.", verb="evict",
                           object=refused[0]["pod"], reason="Refused", blocked=refused)
