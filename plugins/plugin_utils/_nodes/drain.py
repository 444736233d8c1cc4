# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains Nodes by evictions, and restores their former state. PRIVATE to the collection.

For each Node the pods are listed once per round. Pods with GPUs are evicted first; the others follow when the last of
these has ended. If a disruption budget forbids an eviction, it is tried again until the timeout. The first pod of a
Node is evicted only after dry runs have shown that all its pods could be evicted, so that no pod ends in vain. A budget
that is used up after that still prevents the eviction of the remaining pods.
"""

from __future__ import annotations

import re
import time
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows, gate, outcome, plan_diff
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, evictable, node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import Pod, Sorted, Wish
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder, refuse_held

# Seconds: the pause between two rounds; the pause between two requests for a pod if the server does not say when to try
# again; how long the result of a dry run is used while other pods of the Node cannot be evicted.
_PAUSE, _AGAIN, _COUNTS = 1.0, 5.0, 15.0
_NEVER = float("inf")
_BUDGET = re.compile(r"disruption budget (\S+)")
_NOT_ENDED = "it was asked to end and has not done so"

Result = t.Dict[str, t.Any]


@dataclass(frozen=True)
class Request:
    """What a task requests. names: the Nodes; grace_period: seconds for every pod, None for the pod's own; timeout:
    seconds for all Nodes together; level: the allowed disruption; seen: in check mode, the Nodes that an earlier task
    of the same run would have cordoned; holder: this run, None if Nodes may be held by another run."""

    names: t.Sequence[str]
    wish: Wish = Wish()
    grace_period: int | None = None
    timeout: float = 300
    level: str = "never"
    check: bool = False
    seen: t.Collection[str] = ()
    holder: Holder | None = None


@dataclass
class _Round:
    """The state of the evictions. next, why: map the uid of a pod to the time of its next request, and to the reason
    why it is still there; begun: the Nodes of which all pods could be evicted."""

    next: dict[str, float] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    why: dict[str, str] = field(default_factory=dict)
    evicted: list[dict[str, str]] = field(default_factory=list)


class Drain:
    """One task. tell: called with a line for each pod that must wait; clock, sleep: as in the module time."""

    def __init__(self, client: Client, request: Request, tell: t.Callable[[str], None] = lambda line: None,
                 clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
        self._client, self._request = client, request
        self._tell, self._clock, self._sleep = tell, clock, sleep
        self._round = _Round()

    def drained(self) -> Result:
        """Cordons the Nodes and evicts pods. If it raises GpuopsError, the Nodes are schedulable or cordoned as before.
        """
        nodes = self._nodes()
        refuse_held(self._request.holder, nodes.values())
        looks = self._look(self._request.names)
        evicts = allows(self._request.level, "drain")
        if evicts:
            _refuse(looks)
        cordons = [name for name, one in nodes.items() if cordon.cordon(one)]
        steps = [Step("cordon", f"Node {name}", "no new pod is to come", "drain") for name in cordons]
        # Below the level drain no pod is evicted. A pod that may not be evicted at all is pending, as the others are.
        steps += [_step(name, pod) for name, look in looks.items()
                  for pod in [*look.going, *(() if evicts else (pod for pod, _why in look.refused))]]
        allowed, pending = gate(steps, self._request.level)
        result = outcome(allowed, pending, plan_diff("node_drain", allowed), cordoned=cordons if allowed else [],
                         uncordoned=[], evicted=[], blocked=[], staying=_staying(looks))
        if not allowed or self._request.check:
            return result
        try:
            self._all(lambda name: node.write(self._client, name, cordon.cordon), self._request.names)
            blocked = self._evict()
        except GpuopsError:
            self._give_back(cordons)
            raise
        result["evicted"] = self._round.evicted
        named = {step["id"] for step in result["plan"]}
        late = [one for one in self._round.evicted if f"evict: Pod {one['pod']}" not in named]
        result["plan"] += [Step("evict", f"Pod {one['pod']}", f"it came to {one['node']} meanwhile", "drain").as_dict()
                           for one in late]
        if blocked:
            result.update(self._blocked(blocked, cordons))
        return result

    def uncordoned(self) -> Result:
        """Uncordons the Nodes that this collection has cordoned. A Node that somebody else has cordoned stays so."""
        seen = self._request.seen if self._request.check else ()
        ours = {name: one for name, one in self._nodes().items() if cordon.before(one) is not None or name in seen}
        steps = [Step("uncordon", f"Node {name}", "only our mark goes: others have cordoned or uncordoned it"
                      if _keeps(one) else "it was schedulable before") for name, one in ours.items()]
        if not self._request.check:
            self._give_back(list(ours))
        return outcome(steps, (), plan_diff("node_drain", steps), cordoned=[], uncordoned=list(ours), evicted=[],
                       blocked=[], staying=[])

    def _nodes(self) -> dict[str, t.Dict[str, t.Any]]:
        return node.named(self._client, self._request.names)

    def _look(self, names: t.Sequence[str]) -> dict[str, Sorted]:
        pods = self._all(lambda name: self._client.list("v1", "Pod", field_selector=f"spec.nodeName={name}"), names)
        return {name: evictable.sort(found, self._request.wish) for name, found in zip(names, pods)}

    def _all(self, do: t.Callable[[str], t.Any], names: t.Sequence[str]) -> list[t.Any]:
        """Calls do for all Nodes at the same time. Raises the first error after all calls have ended."""
        return without_errors(self._client.many(do, names))

    def _give_back(self, names: t.Sequence[str]) -> None:
        self._all(lambda name: node.write(self._client, name, cordon.uncordon), names)

    def _evict(self) -> dict[str, Sorted]:
        """Evicts until the timeout. Returns the pods that are left, by Node; empty if all have ended."""
        end = self._clock() + self._request.timeout
        left = self._look(self._request.names)
        while True:
            left = {name: look for name, look in left.items() if look.going or look.refused}
            if not left or self._clock() >= end:
                return left
            self._begin(left)
            self._ask([pod for name, look in left.items() if name in self._round.begun for pod in _first(look.going)])
            self._sleep(max(min(_PAUSE, end - self._clock()), 0))
            left = self._look(list(left))

    def _begin(self, left: t.Mapping[str, Sorted]) -> None:
        """Finds by dry runs the Nodes of which all pods can be evicted. A single pod needs no dry run."""
        waiting = {name: look for name, look in left.items() if name not in self._round.begun}
        tried = [pod for look in waiting.values() if len(look.going) > 1 for pod in look.going]
        for pod, answer in self._answers(tried, dry_run=True):
            if answer is None:
                uid = pod["metadata"]["uid"]
                self._round.why.pop(uid, None)
                self._round.next[uid] = self._clock() + _COUNTS
        for name, look in waiting.items():
            uids = [pod["metadata"]["uid"] for pod in look.going]
            if not look.refused and not any(uid in self._round.why for uid in uids):
                self._round.begun.add(name)
                for uid in uids:
                    self._round.next.pop(uid, None)

    def _ask(self, pods: t.Sequence[Pod]) -> None:
        """Requests an eviction for each pod whose time has come."""
        for pod, answer in self._answers(pods, dry_run=False):
            if answer is None:
                uid = pod["metadata"]["uid"]
                self._round.next[uid], self._round.why[uid] = _NEVER, _NOT_ENDED
                self._round.evicted.append({"node": pod["spec"]["nodeName"], "pod": evictable.label(pod)})

    def _answers(self, pods: t.Sequence[Pod], dry_run: bool) -> list[tuple[Pod, t.Any]]:
        """(pod, answer of the server to its eviction, None if it is allowed) for each pod whose time has come. Keeps
        the reasons of pods that must wait. Raises errors that waiting cannot solve."""
        def evict(pod: Pod) -> t.Any:
            meta = pod["metadata"]
            return self._client.evict(meta["name"], meta["namespace"], meta["uid"], self._request.grace_period, dry_run)

        now = self._clock()
        due = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]
               and self._round.next.get(pod["metadata"]["uid"], now) <= now]
        answers = list(zip(due, without_errors(self._client.many(evict, due))))
        for pod, answer in answers:
            uid, name = pod["metadata"]["uid"], evictable.label(pod)
            if answer is not None:
                if self._round.why.get(uid) != answer.why:
                    self._tell(f"{pod['spec']['nodeName']}: waits for {name}: {answer.why}")
                self._round.next[uid], self._round.why[uid] = now + (answer.after or _AGAIN), answer.why
        return answers

    def _blocked(self, left: t.Mapping[str, Sorted], cordons: t.Collection[str]) -> Result:
        """The part of the result about pods that are left. Their Nodes are uncordoned if this task has cordoned them,
        not if an earlier task has. cordons: the Nodes that this task has cordoned."""
        ours = [name for name in left if name in cordons]
        self._give_back(ours)
        found = []
        for name, look in left.items():
            asked = [(pod, self._round.why[pod["metadata"]["uid"]]) for pod in look.going
                     if pod["metadata"]["uid"] in self._round.why]
            waiting = [(pod, _waiting(pod, name in self._round.begun)) for pod in look.going
                       if pod["metadata"]["uid"] not in self._round.why]
            for pod, why in [*asked, *look.refused, *waiting]:
                budget = _BUDGET.search(why)
                found.append({"node": name, "pod": evictable.label(pod), "budget": budget[1] if budget else "",
                              "reason": why})
        first = found[0]
        return {"failed": True, "blocked": found, "uncordoned": ours, "msg":
                f"{fold(left)} could not be emptied within {self._request.timeout:g} seconds; {len(found)} "
                f"pod{'s are' if len(found) > 1 else ' is'} still there. {first['pod']} on {first['node']}: "
                f"{first['reason'].rstrip('.')}. {'Their' if len(left) > 1 else 'Its'} former state is restored. "
                "Give such pods more replicas or their budget more room, or raise timeout."}


def _keeps(one: t.Mapping[str, t.Any]) -> bool:
    """Whether a Node stays as schedulable as it is when our annotation is removed."""
    kept = cordon.before(one)
    return cordon.is_cordoned(one) if kept is None else "spec" not in (cordon.uncordon(one) or {})


def _first(going: t.Sequence[Pod]) -> t.Sequence[Pod]:
    """The pods of a Node that are evicted next."""
    return [pod for pod in going if evictable.uses_gpu(pod)] or going


def _step(name: str, pod: Pod) -> Step:
    what = "it uses a GPU" if evictable.uses_gpu(pod) else "it runs"
    return Step("evict", f"Pod {evictable.label(pod)}", f"{what} on {name}", "drain")


def _waiting(pod: Pod, begun: bool) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "it is ending since its deletion"
    return "it was not its turn before the pods with GPUs had ended" if begun else (
        "it was not asked to end, as another pod of its Node could not be evicted")


def _staying(looks: t.Mapping[str, Sorted]) -> list[dict[str, str]]:
    return [{"node": name, "pod": evictable.label(pod), "reason": why}
            for name, look in looks.items() for pod, why in look.staying]


def _refuse(looks: t.Mapping[str, Sorted]) -> None:
    """Raises ClusterError if pods may not be evicted at all."""
    refused = [{"node": name, "pod": evictable.label(pod), "reason": why}
               for name, look in looks.items() for pod, why in look.refused]
    if refused:
        told = "; ".join(f"{one['pod']} on {one['node']}: {one['reason']}" for one in refused[:5])
        more = f"; {len(refused) - 5} more" if len(refused) > 5 else ""
        raise ClusterError(f"Pods cannot be evicted: {told}{more}.", "Allow it by the option named, or end them first. "
                           f"Nothing was changed on {fold(looks)}.", verb="evict", object=refused[0]["pod"],
                           reason="Refused", blocked=refused)
