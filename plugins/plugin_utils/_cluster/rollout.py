# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until the components of a cluster are ready, says how it goes, and why one is not. PRIVATE.

Counts come from DaemonSets and Deployments alone: two lists a poll. Pods are listed only of workloads that lack some,
nodes only where a pod lacks, events once at the end.
"""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import findings, mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.pods import Stuck, node_of, where_it_stands
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.status import says_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.workloads import Workload, asking, workload

OURS = "app.kubernetes.io/managed-by=gpuops.nvidia"
# Seconds. A DaemonSet counts nodes that were labelled a moment ago a little later; a lost node may be a short break;
# a line about one component comes at most so often, and again after a while in which nothing moved.
_SETTLE, _LOST, _LINE, _AGAIN, _FRESH = 3.0, 15.0, 5.0, 60.0, 0.5
_PAUSE_FIRST, _PAUSE_LAST = 1.0, 4.0
_NODES_ONE_BY_ONE = 50
_ENDED = ("Error", "CrashLoopBackOff", "Completed")
_REVISION = "controller-revision-hash"

Data = t.Dict[str, t.Any]
# Told on the way: {component, ready, desired, waiting: [{node, container}]}.
Tell = t.Callable[[Data], None]


class Asked(t.Protocol):
    """What is needed of a client (L(client.Client))."""

    def list(self, api_version: str, kind: str, namespace: str | None = None, label_selector: str | None = None,
             field_selector: str | None = None, metadata_only: bool = False) -> t.List[Data]:
        """Objects."""

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Data | None:
        """An object."""

    def many(self, do: t.Callable[[str], Data | None], items: t.Iterable[str]
             ) -> t.Sequence[Data | GpuopsError | None]:
        """The same for all."""


class Rollout:
    """Follows the components of one cluster.

    seen: the workloads as somebody has just read them; where they are settled the cluster is not asked again.
    clock, sleep: seconds, as of the module time.
    """

    def __init__(self, client: Asked, cluster: t.Mapping[str, t.Any], components: t.Sequence[str],
                 tell: Tell = lambda progress: None, clock: t.Callable[[], float] = time.monotonic,
                 sleep: t.Callable[[float], None] = time.sleep, seen: t.Sequence[Workload] = ()) -> None:
        self._client, self._cluster, self._components = client, cluster, list(components)
        self._namespace = str(cluster["namespace"])
        self._clock, self._sleep, self._tell = clock, sleep, tell
        self._seen = [work for work in seen if work.component in self._components]
        self._told: dict[str, tuple[float, tuple[int, int, int]]] = {}
        self._stuck: list[Stuck] = []
        self._lost: set[str] = set()
        self._look_at, self._looked = 0.0, float("-inf")
        self._layouts: list[mig.Stand] = []

    def now(self, check_mode: bool = False) -> list[Data]:
        """The checks as things are now (L(findings.checks)), without waiting."""
        works = self._counts()
        self._layouts = self._unsettled(works)
        return self._conclude(works, check_mode)

    def follow(self, timeout: float) -> list[Data]:
        """The checks once all is ready, or nothing more can come by waiting, or after timeout seconds.

        Where the run has just found all of it as it should be, nothing is asked again, nor for layouts of MIG.
        """
        if self._seen and all(work.settled for work in self._seen):
            return self._conclude(self._seen)
        begin, pause = self._clock(), _PAUSE_FIRST
        self._look_at = begin
        nodes: list[Data] | None = None
        while True:
            works = self._counts()
            if nodes is None:
                nodes = self._client.list("v1", "Node", metadata_only=True)
            passed = self._clock() - begin
            late = passed < min(_SETTLE, timeout) and any(
                work.kind == "DaemonSet" and work.node_selector and work.desired < len(asking(work, nodes))
                for work in works)
            lacking = [work for work in works if not work.settled]
            self._layouts = self._unsettled(works)
            if lacking and self._clock() >= self._look_at:
                self._look(lacking)
            self._speak(works, bool(lacking or self._layouts))
            hope = late or any(one.waits for one in self._layouts) or any(
                self._hopeful(work, passed) for work in lacking)
            if passed >= timeout or not hope:
                return self._conclude(works)
            self._sleep(min(pause, max(timeout - passed, 0.05)))
            pause = min(pause * 1.2, _PAUSE_LAST)

    def _counts(self) -> list[Workload]:
        found = [workload(item) for kind in ("DaemonSet", "Deployment") for item in self._client.list(
            "apps/v1", kind, namespace=self._namespace, label_selector=OURS)]
        return [work for work in found if work.component in self._components]

    def _unsettled(self, works: t.Sequence[Workload]) -> list[mig.Stand]:
        """Nodes whose MIG layout has failed or is under way, where a manager of ours serves any: one short list."""
        if not any(work.component == "mig_manager" and work.desired for work in works):
            return []
        found = self._client.list("v1", "Node", label_selector=mig.UNSETTLED, metadata_only=True)
        stands = [mig.stand(one) for one in found]
        return [one for one in stands if one.managed and one.asked and (one.waits or one.state == mig.FAILED)]

    def _look(self, lacking: t.Sequence[Workload]) -> None:
        """Which pods lack and where. The more it costs the rarer it happens."""
        begin = self._clock()
        self._stuck = [where_it_stands(pod, work.component) for work in lacking for pod in self._pods(work)
                       if not says_ready(pod)]
        self._lost = self._not_ready({stuck.node for stuck in self._stuck if stuck.node})
        self._looked = self._clock()
        self._look_at = self._looked + max(_LINE, 10 * (self._clock() - begin))

    def _pods(self, work: Workload) -> list[Data]:
        pods = self._client.list("v1", "Pod", namespace=self._namespace, label_selector=work.selector)
        if work.kind != "DaemonSet":
            return pods
        return [pod for pod in pods if any(owner["uid"] == work.uid
                                           for owner in pod["metadata"].get("ownerReferences") or ())]

    def _not_ready(self, nodes: t.AbstractSet[str]) -> set[str]:
        if len(nodes) > _NODES_ONE_BY_ONE:
            found: t.Sequence[Data | None] = self._client.list("v1", "Node")
        else:
            found = without_errors(self._client.many(lambda name: self._client.get("v1", "Node", name), sorted(nodes)))
        return {str(node["metadata"]["name"]) for node in _silent(found)} & nodes

    def _hopeful(self, work: Workload, passed: float) -> bool:
        """Whether waiting may help: not where all that lacks is on lost nodes."""
        mine = [stuck for stuck in self._stuck if stuck.component == work.component]
        only_lost = bool(mine) and work.seen and len(mine) >= work.desired - work.ready and all(
            stuck.node in self._lost for stuck in mine)
        return not only_lost or passed < _LOST

    def _speak(self, works: t.Sequence[Workload], lacking: bool) -> None:
        """Tells what has changed. A cluster that is ready at the first look needs no lines."""
        now = self._clock()
        if not self._told and not lacking:
            return
        for name in self._components:
            mine = [work for work in works if work.component == name]
            counts = (sum(work.ready for work in mine), sum(work.desired for work in mine))
            layouts = [one for one in self._layouts if one.waits and name == "mig_manager"]
            done = all(work.settled for work in mine) and not layouts
            moves = (*counts, len(layouts))
            if name not in self._told and done:
                self._told[name] = (now, moves)
            when, before = self._told.get(name, (now - _LINE, (-1, -1, -1)))
            if (moves == before and (done or now - when < _AGAIN)) or (now - when < _LINE and not done):
                continue
            self._told[name] = (now, moves)
            waiting = [] if done else [{"node": stuck.node, "container": stuck.container} for stuck in self._stuck
                                       if stuck.component == name]
            waiting += [{"node": one.node, "container": f"{one.asked} {one.state or 'not begun'}"} for one in layouts]
            self._tell({"component": name, "ready": counts[0], "desired": counts[1], "waiting": waiting})

    def _conclude(self, works: t.Sequence[Workload], check_mode: bool = False) -> list[Data]:
        lacking = [work for work in works if not work.settled]
        former = [stuck for work in works if work.manual and work.updated < work.desired
                  for stuck in self._former(work)]
        events: dict[tuple[str, str], list[str]] = {}
        if lacking:
            if self._clock() > self._looked + _FRESH:
                self._look(lacking)
            events = self._warnings()
        seen = findings.Seen(self._stuck if lacking else (), frozenset(self._lost), self._away(works), former, events,
                             self._explained(works))
        return findings.checks(self._cluster, self._components, works, seen, check_mode)

    def _explained(self, works: t.Sequence[Workload]) -> list[tuple[mig.Stand, str]]:
        """The layouts that are not settled, each with the manager's pod on its Node."""
        pods = {node_of(pod): str(pod["metadata"]["name"]) for work in works if self._layouts
                and work.component == "mig_manager" for pod in self._pods(work)}
        return [(one, pods.get(one.node, "")) for one in self._layouts]

    def _away(self, works: t.Sequence[Workload]) -> list[tuple[str, str]]:
        """(component, node) of lost nodes: controllers do not count them, so that the counts alone look good."""
        uncounted = [work for work in works if work.uncounted]
        lost = _silent(self._client.list("v1", "Node")) if uncounted else []
        return [(work.component, name) for work in uncounted for name in asking(work, lost)]

    def _former(self, work: Workload) -> t.Iterator[Stuck]:
        """Pods of an OnDelete DaemonSet that are not of its newest revision."""
        revisions = [item for item in self._client.list(
            "apps/v1", "ControllerRevision", namespace=self._namespace, label_selector=work.selector)
            if any(owner["uid"] == work.uid for owner in item["metadata"].get("ownerReferences") or ())]
        if not revisions:
            return
        newest = max(revisions, key=lambda item: int(item["revision"]))["metadata"]["labels"][_REVISION]
        for pod in self._pods(work):
            if (pod["metadata"].get("labels") or {}).get(_REVISION) != newest:
                yield where_it_stands(pod, work.component)

    def _warnings(self) -> dict[tuple[str, str], list[str]]:
        """By (kind, name) what the namespace's warnings say, the newest last."""
        found: dict[tuple[str, str], list[str]] = {}
        # A container that has ended had its sandbox: what stood in the way of that, such as a runtime that did not know
        # nvidia yet, is over.
        ran = {stuck.pod for stuck in self._stuck if stuck.reason in _ENDED}
        events = self._client.list("v1", "Event", namespace=self._namespace, field_selector="type=Warning")
        for event in sorted(events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or "")):
            about, message = event["involvedObject"], event.get("message") or ""
            over = event.get("reason") == "FailedCreatePodSandBox" and about.get("name") in ran
            if event.get("reason") != "BackOff" and not over:  # BackOff says only that there was a failure
                found.setdefault((about.get("kind", ""), about.get("name", "")), []).append(message)
        return found


def _silent(nodes: t.Iterable[Data | None]) -> list[Data]:
    """Those that are not Ready, or are being removed."""
    return [node for node in nodes if isinstance(node, dict) and not says_ready(node)]
