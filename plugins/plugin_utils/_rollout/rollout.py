# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until the components of a cluster are ready, reports the progress, and explains what is not ready. PRIVATE.

To send few requests, each poll reads the numbers of pods from two lists (DaemonSets and Deployments). Pods are read
only for workloads that are not ready, Nodes only for pods that are not ready, events once at the end.
"""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import revisions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import (
    Workload,
    counts_too_few,
    matching_nodes,
    workload,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import checks, logs
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.cluster import Cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import (
    RESTARTED,
    NotReadyPod,
    Row,
    node_of,
    not_ready_pod,
    recently_restarted,
    restarted_pod,
    rows,
    running_seconds,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.progress import Progress, Tell

OURS = "app.kubernetes.io/managed-by=gpuops.nvidia"
# Seconds until the controller of a DaemonSet has counted Nodes that were labelled just before. A busy controller first
# creates up to 250 pods, by default 20 in a second.
_COUNT_DELAY = 30.0
# Seconds after which the rollout no longer waits for a Node that is NotReady, or for a pod whose cause is certain.
_LOST, _CERTAIN = 15.0, 45.0
# Seconds between two reads of pods; the maximum age (in seconds) of a read that is used for the result.
_READ_EVERY, _FRESH = 5.0, 0.5
# Seconds that a restarted container must run to count as ready. The first back-off of a kubelet is 10 s.
_STEADY = 12.0
# Seconds between two polls, at the beginning and at most.
_PAUSE_FIRST, _PAUSE_LAST = 1.0, 4.0
# Up to this number, objects are read one by one, otherwise as a list.
_MAX_SINGLE_READS = 50
# If more than _MANY pods are desired, the rollout reads a Table, and only _PER_STATUS pods of each status.
_MANY, _PER_STATUS = 200, 2
_ENDED = ("Error", "CrashLoopBackOff", "Completed")


@dataclass
class _Failed:
    """The failed pods of a component. at: when they were last observed, in seconds of the monotonic clock."""

    pods: list[NotReadyPod]
    at: float


class Rollout:
    """Follows the rollout of components in one cluster.

    cluster: the cluster's part of the plan (C(gpu_plan.cluster)); tell: called with the progress; seen: workloads that
    the run has already read, which are not read again if all are settled; every: the minimum number of seconds between
    two calls of tell; clock, sleep: as time.monotonic and time.sleep.
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
        self._stuck: list[NotReadyPod] = []
        self._explained: list[checks.Explained] = []
        self._certain_since: dict[tuple[str, str], float] = {}
        self._lost: set[str] = set()
        self._labels: dict[str, t.Mapping[str, str]] = {}
        self._next_read, self._last_read, self._read_all = 0.0, float("-inf"), True
        self._failed: dict[str, _Failed] = {}
        self._restarts_read = False
        self._layouts: list[mig_labels.NodeMig] = []

    def now(self, check_mode: bool = False) -> list[Check]:
        """The checks of the current state. Does not wait."""
        works = self._counts()
        self._layouts = self._unsettled(works)
        return self._conclude(works, check_mode)

    def follow(self, timeout: float) -> list[Check]:
        """The checks, after all components have become ready, waiting cannot help, or timeout seconds have passed.

        If the workloads that the run has already read are all settled, only restarted pods and MIG layouts are read.
        """
        if self._seen and all(work.settled for work in self._seen):
            self._remember_restarts(self._seen)
            self._layouts = self._unsettled(self._seen)
            if not self._failed and not any(layout.is_waiting for layout in self._layouts):
                return self._conclude(self._seen)
        begin, pause = self._clock(), _PAUSE_FIRST
        self._next_read = begin
        nodes: list[Object] | None = None
        while True:
            works = self._counts()
            if nodes is None:
                nodes = self._client.list("v1", "Node", metadata_only=True)
            passed = self._clock() - begin
            uncounted = passed < min(_COUNT_DELAY, timeout) and counts_too_few(works, nodes)
            unsettled = [work for work in works if not work.settled]
            if not unsettled and not uncounted:
                self._remember_restarts(works)
            self._layouts = self._unsettled(works)
            if unsettled and self._clock() >= self._next_read:
                self._read_pods(unsettled)
            may_help = uncounted or self._waiting_helps(unsettled, passed)
            if not may_help and not self._read_all:
                self._read_pods(unsettled, read_all=True)  # pods with the same status may have different causes
                may_help = self._waiting_helps(unsettled, passed)
            stop = passed >= timeout or not may_help
            ends = "" if not stop or not unsettled else "timeout" if may_help else "waiting cannot help"
            self._progress.poll(passed, timeout, works, self._explained if unsettled else (), self._layouts, ends)
            if stop:
                return self._conclude(works)
            self._sleep(min(pause, max(timeout - passed, 0.05)))
            pause = min(pause * 1.2, _PAUSE_LAST)

    def _counts(self) -> list[Workload]:
        found = [workload(item) for kind in ("DaemonSet", "Deployment") for item in self._client.list(
            "apps/v1", kind, namespace=self._namespace, label_selector=OURS)]
        return [work for work in found if work.component in self._components]

    def _unsettled(self, works: t.Sequence[Workload]) -> list[mig_labels.NodeMig]:
        """The MIG layouts that have failed or are being applied. Read only if the MIG manager should have pods."""
        if not any(work.component == "mig_manager" and work.desired for work in works):
            return []
        nodes = self._client.list("v1", "Node", label_selector=mig_labels.NOT_APPLIED, metadata_only=True)
        layouts = [mig_labels.read(NodeState.read(node)) for node in nodes]
        return [layout for layout in layouts
                if layout.managed and layout.layout and (layout.is_waiting or layout.state == mig_labels.FAILED)]

    def _read_pods(self, unsettled: t.Sequence[Workload], read_all: bool = False) -> None:
        """Reads which pods are not ready, and why. The next read follows after ten times the duration of this read.

        read_all: read each pod, even if there are many.
        """
        begin = self._clock()
        many = not read_all and sum(work.desired for work in unsettled) > _MANY
        some = self._read_some(unsettled) if many else None
        self._read_all = some is None
        read, alike = some or ([not_ready_pod(pod, work.component) for work in unsettled for pod in self._pods(work)
                                if not is_ready(pod)], [])
        self._stuck = [*read, *alike]
        for work in unsettled:
            failing = [stuck for stuck in self._stuck if stuck.component == work.component and stuck.failed]
            if failing:
                self._failed[work.component] = _Failed(failing, begin)
        self._lost = self._not_ready({stuck.node for stuck in read if stuck.node})
        self._explained = self._explain()
        self._last_read = self._clock()
        self._next_read = self._last_read + max(_READ_EVERY, 10 * (self._last_read - begin))

    def _read_some(self, unsettled: t.Sequence[Workload]) -> tuple[list[NotReadyPod], list[NotReadyPod]] | None:
        """(pods that were read, pods that are assumed to be like one of these), chosen from a Table of all pods.

        The Table has a hundredth of the size of the pods. Only some pods of each status are read. None if the Table
        does not show which pods are not ready, because it shows pods on lost Nodes as Running.
        """
        listed = rows(self._client.pod_rows(self._namespace))
        alike: dict[tuple[str, str], list[Row]] = {}
        for work in unsettled:
            own = [row for row in listed if work.has_pod(row.name)]
            waiting = [row for row in own if not row.ready]
            if len(own) >= work.desired and len(waiting) < work.desired - work.ready:
                return None
            for row in waiting:
                alike.setdefault((work.component, row.status), []).append(row)
        few = sum(map(len, alike.values())) <= _MAX_SINGLE_READS
        chosen = [row.name for group in alike.values() for row in (group if few else group[:_PER_STATUS])]
        pods = dict(zip(chosen, without_errors(self._client.many(
            lambda name: self._client.get("v1", "Pod", name, self._namespace), chosen))))
        all_read: list[NotReadyPod] = []
        assumed: list[NotReadyPod] = []
        for (component, _status), group in alike.items():
            read = [not_ready_pod(pod, component) for row in group if (pod := pods.get(row.name))
                    and not is_ready(pod)]
            all_read.extend(read)
            assumed.extend(replace(read[0], pod=row.name, node=row.node, since="") for row in group
                           if read and row.name not in pods)
        return all_read, assumed

    def _remember_restarts(self, works: t.Sequence[Workload]) -> None:
        """Stores the pods that are ready but were restarted just before. Only the first call reads them."""
        if self._restarts_read:
            return
        self._restarts_read = True
        try:
            restarted = recently_restarted(self._client.pod_rows(self._namespace))
        except GpuopsError:
            return  # without the permission to list pods, only the numbers of the workloads count
        own = [name for name in restarted if any(name.startswith(f"{work.name}-") for work in works)]
        pods = without_errors(self._client.many(
            lambda name: self._client.get("v1", "Pod", name, self._namespace), own[:_MAX_SINGLE_READS]))
        owned = {work.uid: work.component for work in works}
        for pod in pods:
            component = next((owned[owner["uid"]] for owner in (pod or {"metadata": {}})["metadata"].get(
                "ownerReferences") or () if owner["uid"] in owned), None)
            if pod and component and running_seconds(pod, restarted[pod["metadata"]["name"]]) < _STEADY:
                failed = self._failed.setdefault(component, _Failed([], self._clock()))
                failed.pods.append(restarted_pod(pod, component))

    def _unsteady(self, unsettled: t.Sequence[Workload]) -> list[NotReadyPod]:
        """The failed pods of components that are ready now, but have been ready for fewer than _STEADY seconds."""
        now, not_ready = self._clock(), {work.component for work in unsettled}
        for component in not_ready & self._failed.keys():
            self._failed[component].at = now
        return [replace(stuck, reason=RESTARTED) for component, failed in self._failed.items() for stuck in failed.pods
                if component not in not_ready and now - failed.at < _STEADY]

    def _explain(self) -> list[checks.Explained]:
        """Why the pods are not ready. Stores since when each cause has been certain."""
        observed = checks.Observed(self._stuck, frozenset(self._lost), labels=self._labels)
        found = checks.explained(self._cluster, observed)
        observed = observed._replace(logs=self._logs.of([pod.stuck for pod in found if not pod.waits_for]))
        found = checks.explained(self._cluster, observed) if observed.logs else found
        now, certain_since = self._clock(), {}
        for stuck, cause, _waits_for in found:
            # The log of another pod does not make a cause certain.
            if cause.certain and observed.logs.get(stuck.pod, logs.Log(of=stuck.pod)).of == stuck.pod:
                key = stuck.component, stuck.node
                certain_since[key] = self._certain_since.get(key, now)
        self._certain_since = certain_since
        return found

    def _pods(self, work: Workload) -> list[Object]:
        pods = self._client.list("v1", "Pod", namespace=self._namespace, label_selector=work.selector)
        if work.kind != "DaemonSet":
            return pods
        return [pod for pod in pods if any(owner["uid"] == work.uid
                                           for owner in pod["metadata"].get("ownerReferences") or ())]

    def _not_ready(self, nodes: t.AbstractSet[str]) -> set[str]:
        if len(nodes) > _MAX_SINGLE_READS:
            found: t.Sequence[Object | None] = self._client.list("v1", "Node")
        else:
            found = without_errors(self._client.many(lambda name: self._client.get("v1", "Node", name), sorted(nodes)))
        self._labels = {str(node["metadata"]["name"]): node["metadata"].get("labels") or {} for node in found if node}
        return {str(node["metadata"]["name"]) for node in _lost(found)} & nodes

    def _waiting_helps(self, unsettled: t.Sequence[Workload], passed: float) -> bool:
        """Whether a workload or a MIG layout may become ready without help. passed: seconds of the wait."""
        return (any(layout.is_waiting for layout in self._layouts) or bool(self._unsteady(unsettled))
                or any(self._may_become_ready(work, passed) for work in unsettled))

    def _may_become_ready(self, work: Workload, passed: float) -> bool:
        """Whether a workload may become ready without help: false if all pods that are not ready need help.

        A pod needs help if its Node is lost, or if its cause, or the cause of the pod for which it waits, is certain.
        """
        own = [stuck for stuck in self._stuck if stuck.component == work.component]
        if not own or not work.seen or len(own) < work.desired - work.ready:
            return True
        now = self._clock()
        certain = {key for key, since in self._certain_since.items() if now - since >= _CERTAIN}
        dependent = {(stuck.component, stuck.node) for stuck, _cause, waits_for in self._explained
                     if (waits_for, stuck.node) in certain}
        need_help = certain | dependent
        return not all((stuck.component, stuck.node) in need_help or stuck.node in self._lost and passed >= _LOST
                       for stuck in own)

    def _conclude(self, works: t.Sequence[Workload], check_mode: bool = False) -> list[Check]:
        unsettled = [work for work in works if not work.settled]
        outdated = [pod for work in works if work.manual and work.updated < work.desired
                    for pod in self._outdated(work)]
        events: dict[tuple[str, str], list[str]] = {}
        unsteady = self._unsteady(unsettled)
        if unsettled and (not self._read_all or self._clock() > self._last_read + _FRESH):
            self._read_pods(unsettled, read_all=True)
        if unsettled or unsteady:
            events = self._warnings()
        observed = checks.Observed([*(self._stuck if unsettled else ()), *unsteady], frozenset(self._lost),
                                   self._uncounted(works), outdated, events, self._with_pods(works), {}, self._labels)
        roots = checks.roots(self._cluster, observed)
        observed = observed._replace(logs=logs.read(self._client, self._namespace, roots))
        return checks.checks(self._cluster, self._components, works, observed, check_mode)

    def _with_pods(self, works: t.Sequence[Workload]) -> list[tuple[mig_labels.NodeMig, str]]:
        """The MIG layouts that are not applied, each with the name of the MIG manager's pod on its Node, or empty."""
        pods = {node_of(pod): str(pod["metadata"]["name"]) for work in works if self._layouts
                and work.component == "mig_manager" for pod in self._pods(work)}
        return [(layout, pods.get(layout.node, "")) for layout in self._layouts]

    def _uncounted(self, works: t.Sequence[Workload]) -> list[tuple[str, str]]:
        """(component, Node) for each lost Node that a controller does not count, so that the workload looks ready."""
        uncounted = [work for work in works if work.uncounted]
        lost = _lost(self._client.list("v1", "Node")) if uncounted else []
        return [(work.component, name) for work in uncounted for name in matching_nodes(work, lost)]

    def _outdated(self, work: Workload) -> t.Iterator[checks.Outdated]:
        """The outdated pods of an OnDelete DaemonSet. A pod is not outdated if only its node selection differs."""
        known = revisions.of_daemon_set(work.uid, self._client.list(
            "apps/v1", "ControllerRevision", namespace=self._namespace, label_selector=work.selector))
        if known is None:
            return
        for pod in self._pods(work):
            if known.is_outdated(pod):
                yield checks.Outdated(not_ready_pod(pod, work.component), revisions.tag(pod),
                                      revisions.tag(known.template), work.name == MPS_DAEMON)

    def _warnings(self) -> dict[tuple[str, str], list[str]]:
        """Maps the (kind, name) of an object to the messages of its events of type Warning, the newest last."""
        messages: dict[tuple[str, str], list[str]] = {}
        # If a container has run, its sandbox was created: earlier failures to create the sandbox are obsolete.
        ran = {stuck.pod for stuck in self._stuck if stuck.reason in _ENDED}
        events = self._client.list("v1", "Event", namespace=self._namespace, field_selector="type=Warning")
        for event in sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")):
            involved, message = event["involvedObject"], event.get("message") or ""
            obsolete = event.get("reason") == "FailedCreatePodSandBox" and involved.get("name") in ran
            if event.get("reason") != "BackOff" and not obsolete:  # BackOff means only that there was a failure
                messages.setdefault((involved.get("kind", ""), involved.get("name", "")), []).append(message)
        return messages


def _lost(nodes: t.Iterable[Object | None]) -> list[Object]:
    """The Nodes that are NotReady or are being deleted."""
    return [node for node in nodes if isinstance(node, dict) and not is_ready(node)]
