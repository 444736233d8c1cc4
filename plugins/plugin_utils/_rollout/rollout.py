# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until the components of a cluster are ready, reports the progress, and finds why a component is not. PRIVATE.

The numbers of pods come from DaemonSets and Deployments: two lists for each poll. Pods are read only of workloads that
are not ready, Nodes only of pods that are not ready, events once at the end.
"""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import says_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import (
    Workload,
    asking,
    lagging,
    without_place,
    workload,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import checks, logs
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.cluster import Cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import (
    RESTARTED,
    Row,
    Stuck,
    after_a_restart,
    node_of,
    restarted_lately,
    rows,
    runs_since,
    stuck_pod,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.progress import Progress, Tell

OURS = "app.kubernetes.io/managed-by=gpuops.nvidia"
# Seconds until a DaemonSet's controller has counted Nodes that were labelled a moment ago. A busy controller first
# creates up to 250 pods, by default 20 in a second.
_SETTLE = 30.0
# Seconds that a Node must be NotReady, and that a cause must be certain, until the rollout no longer waits for it.
_LOST, _CERTAIN = 15.0, 45.0
# Seconds between two reads of pods; age of a read that the result may use.
_LOOK, _FRESH = 5.0, 0.5
# Seconds that a restarted container must run to count as ready. The first back-off of a kubelet is 10 s.
_STEADY = 12.0
# Seconds between two polls.
_PAUSE_FIRST, _PAUSE_LAST = 1.0, 4.0
# The most objects that are read one by one.
_NODES_ONE_BY_ONE = 50
# If there are more pods, the rollout reads a Table, and of each status only a few pods.
_MANY, _OF_A_KIND = 200, 2
_ENDED = ("Error", "CrashLoopBackOff", "Completed")
_REVISION = "controller-revision-hash"


@dataclass
class _Failed:
    """The failed pods of a component. at: when the failure was last observed, in seconds of the clock."""

    pods: list[Stuck]
    at: float


class Rollout:
    """Follows the components of one cluster.

    cluster: its part of the plan (C(gpu_plan.cluster)); tell: called with the progress; seen: workloads that were read
    just before; if they are settled, they are not read again; every: seconds between two calls of tell; clock, sleep:
    in seconds, as in the module time.
    """

    def __init__(self, client: Client, cluster: t.Mapping[str, t.Any], components: t.Sequence[str],
                 tell: Tell = lambda progress: None, clock: t.Callable[[], float] = time.monotonic,
                 sleep: t.Callable[[float], None] = time.sleep, seen: t.Sequence[Workload] = (),
                 every: float = 5.0) -> None:
        self._client, self._cluster, self._components = client, Cluster.of(cluster), list(components)
        self._namespace = self._cluster.namespace
        self._clock, self._sleep = clock, sleep
        self._progress = Progress(tell, self._components, every)
        self._logs = logs.FirstLogs(client, self._namespace)
        self._seen = [work for work in seen if work.component in self._components]
        self._stuck: list[Stuck] = []
        self._explained: list[checks.Explained] = []
        self._sure: dict[tuple[str, str], float] = {}
        self._lost: set[str] = set()
        self._labels: dict[str, t.Mapping[str, str]] = {}
        self._look_at, self._looked, self._whole = 0.0, float("-inf"), True
        self._failed: dict[str, _Failed] = {}
        self._asked_restarts = False
        self._layouts: list[mig.Stand] = []

    def now(self, check_mode: bool = False) -> list[Check]:
        """The checks of the current state, without waiting."""
        works = self._counts()
        self._layouts = self._unsettled(works)
        return self._conclude(works, check_mode)

    def follow(self, timeout: float) -> list[Check]:
        """Waits until all components are ready, or waiting cannot help, or timeout seconds have passed.

        If all workloads that the run has read before are settled, only restarted pods and MIG layouts are read.
        """
        if self._seen and all(work.settled for work in self._seen):
            self._remember_restarts(self._seen)
            self._layouts = self._unsettled(self._seen)
            if not self._failed and not any(one.waits for one in self._layouts):
                return self._conclude(self._seen)
        begin, pause = self._clock(), _PAUSE_FIRST
        self._look_at = begin
        nodes: list[Object] | None = None
        while True:
            works = self._counts()
            if nodes is None:
                nodes = self._client.list("v1", "Node", metadata_only=True)
            passed = self._clock() - begin
            late = passed < min(_SETTLE, timeout) and lagging(works, nodes)
            lacking = [work for work in works if not work.settled]
            if not lacking and not late:
                self._remember_restarts(works)
            self._layouts = self._unsettled(works)
            if lacking and self._clock() >= self._look_at:
                self._read_pods(lacking)
            hope = late or self._waiting_helps(lacking, passed)
            if not hope and not self._whole:
                self._read_pods(lacking, whole=True)  # pods with the same status may have different causes
                hope = self._waiting_helps(lacking, passed)
            over = passed >= timeout or not hope
            ends = "" if not over or not lacking else "timeout" if hope else "waiting cannot help"
            self._progress.look(passed, timeout, works, self._explained if lacking else (), self._layouts, ends)
            if over:
                return self._conclude(works)
            self._sleep(min(pause, max(timeout - passed, 0.05)))
            pause = min(pause * 1.2, _PAUSE_LAST)

    def _counts(self) -> list[Workload]:
        found = [workload(item) for kind in ("DaemonSet", "Deployment") for item in self._client.list(
            "apps/v1", kind, namespace=self._namespace, label_selector=OURS)]
        return [work for work in found if work.component in self._components]

    def _unsettled(self, works: t.Sequence[Workload]) -> list[mig.Stand]:
        """The Nodes whose MIG layout has failed or is being applied. Read only if the MIG manager has pods."""
        if not any(work.component == "mig_manager" and work.desired for work in works):
            return []
        found = self._client.list("v1", "Node", label_selector=mig.UNSETTLED, metadata_only=True)
        stands = [mig.stand(NodeState.read(one)) for one in found]
        return [one for one in stands if one.managed and one.asked and (one.waits or one.state == mig.FAILED)]

    def _read_pods(self, lacking: t.Sequence[Workload], whole: bool = False) -> None:
        """Reads which pods are not ready, and why. The longer this takes, the later is the next look.

        whole: read each pod, also if there are many.
        """
        begin = self._clock()
        many = not whole and sum(work.desired for work in lacking) > _MANY
        some = self._read_some(lacking) if many else None
        self._whole = some is None
        read, alike = some or ([stuck_pod(pod, work.component) for work in lacking for pod in self._pods(work)
                                if not says_ready(pod)], [])
        self._stuck = [*read, *alike]
        for work in lacking:
            failing = [stuck for stuck in self._stuck if stuck.component == work.component and stuck.failed]
            if failing:
                self._failed[work.component] = _Failed(failing, begin)
        self._lost = self._not_ready({stuck.node for stuck in read if stuck.node})
        self._explained = self._explain()
        self._looked = self._clock()
        self._look_at = self._looked + max(_LOOK, 10 * (self._looked - begin))

    def _read_some(self, lacking: t.Sequence[Workload]) -> tuple[list[Stuck], list[Stuck]] | None:
        """(pods that were read, pods that count as these) by a Table, which is a hundredth of the size of the pods.

        Of pods with the same status only some are read. None if the Table does not show which pods are not ready:
        pods of lost Nodes still have the status Running there.
        """
        listed = rows(self._client.pod_rows(self._namespace))
        alike: dict[tuple[str, str], list[Row]] = {}
        for work in lacking:
            own = [row for row in listed if work.made(row.name)]
            waiting = [row for row in own if not row.ready]
            if len(own) >= work.desired and len(waiting) < work.desired - work.ready:
                return None
            for row in waiting:
                alike.setdefault((work.component, row.status), []).append(row)
        few = sum(map(len, alike.values())) <= _NODES_ONE_BY_ONE
        chosen = [row.name for group in alike.values() for row in (group if few else group[:_OF_A_KIND])]
        pods = dict(zip(chosen, without_errors(self._client.many(
            lambda name: self._client.get("v1", "Pod", name, self._namespace), chosen))))
        found: tuple[list[Stuck], list[Stuck]] = ([], [])
        for (component, _status), group in alike.items():
            read = [stuck_pod(pod, component) for row in group if (pod := pods.get(row.name))
                    and not says_ready(pod)]
            found[0].extend(read)
            found[1].extend(replace(read[0], pod=row.name, node=row.node, since="") for row in group
                            if read and row.name not in pods)
        return found

    def _remember_restarts(self, works: t.Sequence[Workload]) -> None:
        """Remembers the pods that are ready now and were restarted a moment ago. Does this only once."""
        if self._asked_restarts:
            return
        self._asked_restarts = True
        try:
            lately = restarted_lately(self._client.pod_rows(self._namespace))
        except GpuopsError:
            return  # without the right to list pods, only the numbers of the workloads count
        own = [name for name in lately if any(name.startswith(f"{work.name}-") for work in works)]
        pods = without_errors(self._client.many(
            lambda name: self._client.get("v1", "Pod", name, self._namespace), own[:_NODES_ONE_BY_ONE]))
        owned = {work.uid: work.component for work in works}
        for pod in pods:
            component = next((owned[owner["uid"]] for owner in (pod or {"metadata": {}})["metadata"].get(
                "ownerReferences") or () if owner["uid"] in owned), None)
            if pod and component and runs_since(pod, lately[pod["metadata"]["name"]]) < _STEADY:
                failed = self._failed.setdefault(component, _Failed([], self._clock()))
                failed.pods.append(after_a_restart(pod, component))

    def _unsteady(self, lacking: t.Sequence[Workload]) -> list[Stuck]:
        """The pods that failed, of components that have been ready for less than _STEADY."""
        now, missing = self._clock(), {work.component for work in lacking}
        for component in missing & self._failed.keys():
            self._failed[component].at = now
        return [replace(stuck, reason=RESTARTED) for component, failed in self._failed.items() for stuck in failed.pods
                if component not in missing and now - failed.at < _STEADY]

    def _explain(self) -> list[checks.Explained]:
        """Why the pods are not ready. Remembers since when a cause has been certain."""
        observed = checks.Observed(self._stuck, frozenset(self._lost), labels=self._labels)
        found = checks.explained(self._cluster, observed)
        observed = observed._replace(logs=self._logs.of([one.stuck for one in found if not one.waits_for]))
        found = checks.explained(self._cluster, observed) if observed.logs else found
        now, sure = self._clock(), {}
        for stuck, cause, _waits_for in found:
            # The log of another pod does not make a cause certain.
            if cause.certain and observed.logs.get(stuck.pod, logs.Log(of=stuck.pod)).of == stuck.pod:
                sure[stuck.component, stuck.node] = self._sure.get((stuck.component, stuck.node), now)
        self._sure = sure
        return found

    def _pods(self, work: Workload) -> list[Object]:
        pods = self._client.list("v1", "Pod", namespace=self._namespace, label_selector=work.selector)
        if work.kind != "DaemonSet":
            return pods
        return [pod for pod in pods if any(owner["uid"] == work.uid
                                           for owner in pod["metadata"].get("ownerReferences") or ())]

    def _not_ready(self, nodes: t.AbstractSet[str]) -> set[str]:
        if len(nodes) > _NODES_ONE_BY_ONE:
            found: t.Sequence[Object | None] = self._client.list("v1", "Node")
        else:
            found = without_errors(self._client.many(lambda name: self._client.get("v1", "Node", name), sorted(nodes)))
        self._labels = {str(node["metadata"]["name"]): node["metadata"].get("labels") or {} for node in found if node}
        return {str(node["metadata"]["name"]) for node in _lost(found)} & nodes

    def _waiting_helps(self, lacking: t.Sequence[Workload], passed: float) -> bool:
        """Whether waiting may help."""
        return (any(one.waits for one in self._layouts) or bool(self._unsteady(lacking))
                or any(self._may_become_ready(work, passed) for work in lacking))

    def _may_become_ready(self, work: Workload, passed: float) -> bool:
        """Whether waiting may help a workload: not if each of its pods is on a lost Node or needs somebody's help."""
        own = [stuck for stuck in self._stuck if stuck.component == work.component]
        if not own or not work.seen or len(own) < work.desired - work.ready:
            return True
        now = self._clock()
        sure = {key for key, since in self._sure.items() if now - since >= _CERTAIN}
        behind = {(stuck.component, stuck.node) for stuck, _cause, waits_for in self._explained
                  if (waits_for, stuck.node) in sure}
        hopeless = sure | behind
        return not all((stuck.component, stuck.node) in hopeless or stuck.node in self._lost and passed >= _LOST
                       for stuck in own)

    def _conclude(self, works: t.Sequence[Workload], check_mode: bool = False) -> list[Check]:
        lacking = [work for work in works if not work.settled]
        outdated = [pod for work in works if work.manual and work.updated < work.desired
                    for pod in self._outdated(work)]
        events: dict[tuple[str, str], list[str]] = {}
        unsteady = self._unsteady(lacking)
        if lacking and (not self._whole or self._clock() > self._looked + _FRESH):
            self._read_pods(lacking, whole=True)
        if lacking or unsteady:
            events = self._warnings()
        observed = checks.Observed([*(self._stuck if lacking else ()), *unsteady], frozenset(self._lost),
                                   self._uncounted(works), outdated, events, self._with_pods(works), {}, self._labels)
        roots = checks.roots(self._cluster, observed)
        observed = observed._replace(logs=logs.read(self._client, self._namespace, roots))
        return checks.checks(self._cluster, self._components, works, observed, check_mode)

    def _with_pods(self, works: t.Sequence[Workload]) -> list[tuple[mig.Stand, str]]:
        """The layouts that are not applied, each with the pod of the MIG manager on its Node."""
        pods = {node_of(pod): str(pod["metadata"]["name"]) for work in works if self._layouts
                and work.component == "mig_manager" for pod in self._pods(work)}
        return [(one, pods.get(one.node, "")) for one in self._layouts]

    def _uncounted(self, works: t.Sequence[Workload]) -> list[tuple[str, str]]:
        """(component, Node) of lost Nodes that controllers leave out, so that a workload seems to be ready."""
        uncounted = [work for work in works if work.uncounted]
        lost = _lost(self._client.list("v1", "Node")) if uncounted else []
        return [(work.component, name) for work in uncounted for name in asking(work, lost)]

    def _outdated(self, work: Workload) -> t.Iterator[checks.Outdated]:
        """The outdated pods of an OnDelete DaemonSet. Differences in the choice of Nodes do not count."""
        revisions = [item for item in self._client.list(
            "apps/v1", "ControllerRevision", namespace=self._namespace, label_selector=work.selector)
            if any(owner["uid"] == work.uid for owner in item["metadata"].get("ownerReferences") or ())]
        if not revisions:
            return
        newest = max(revisions, key=lambda item: int(item["revision"]))
        template = newest["data"]["spec"]["template"]
        same = {item["metadata"]["labels"][_REVISION] for item in revisions
                if without_place(item["data"]["spec"]["template"]) == without_place(template)}
        desired = _tag(template)
        for pod in self._pods(work):
            if (pod["metadata"].get("labels") or {}).get(_REVISION) not in same:
                yield checks.Outdated(stuck_pod(pod, work.component), _tag(pod), desired)

    def _warnings(self) -> dict[tuple[str, str], list[str]]:
        """By (kind, name) of an object the messages of its warnings in the namespace, the newest last."""
        found: dict[tuple[str, str], list[str]] = {}
        # If a container has run, its sandbox was created, so earlier failures to create the sandbox do not matter.
        ran = {stuck.pod for stuck in self._stuck if stuck.reason in _ENDED}
        events = self._client.list("v1", "Event", namespace=self._namespace, field_selector="type=Warning")
        for event in sorted(events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or "")):
            about, message = event["involvedObject"], event.get("message") or ""
            over = event.get("reason") == "FailedCreatePodSandBox" and about.get("name") in ran
            if event.get("reason") != "BackOff" and not over:  # BackOff says only that there was a failure
                found.setdefault((about.get("kind", ""), about.get("name", "")), []).append(message)
        return found


def _tag(pod: Live) -> str:
    """The tag, such as C(570.172.08-ubuntu22.04), or digest of the image of a pod's or template's first container."""
    return str(pod["spec"]["containers"][0]["image"]).rpartition("/")[2].partition(":")[2]


def _lost(nodes: t.Iterable[Object | None]) -> list[Object]:
    """The Nodes that are not Ready or are being deleted."""
    return [node for node in nodes if isinstance(node, dict) and not says_ready(node)]
