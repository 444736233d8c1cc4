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
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import says_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import (
    Workload,
    asking,
    lagging,
    without_place,
    workload,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import checks, logs
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import (
    RESTARTED,
    Row,
    Stuck,
    after_a_restart,
    node_of,
    restarted_lately,
    rows,
    runs_since,
    where_it_stands,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.progress import Progress, Tell

OURS = "app.kubernetes.io/managed-by=gpuops.nvidia"
# Seconds. A DaemonSet counts nodes that were labelled a moment ago later, as its busy controller first makes up to 250
# pods, 20 in a second unless it is told otherwise; a lost node may be a short break;
# what only somebody else can mend may be mended at once; pods are looked at at most so often.
_SETTLE, _LOST, _CERTAIN, _LOOK, _FRESH = 30.0, 15.0, 45.0, 5.0, 0.5
# What crashes over and over is ready for moments in between; the kubelet's first pause between two starts is 10 s.
_STEADY = 12.0
_PAUSE_FIRST, _PAUSE_LAST = 1.0, 4.0
_NODES_ONE_BY_ONE = 50
# Pods of workloads that lack some, from which on a look on the way is at the printed list and some of each kind.
_MANY, _OF_A_KIND = 200, 2
_ENDED = ("Error", "CrashLoopBackOff", "Completed")
_REVISION = "controller-revision-hash"

Data = t.Dict[str, t.Any]


class Asked(t.Protocol):
    """What is needed of a client (L(client.Client))."""

    def list(self, api_version: str, kind: str, namespace: str | None = None, label_selector: str | None = None,
             field_selector: str | None = None, metadata_only: bool = False) -> t.List[Data]:
        """Objects."""

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Data | None:
        """An object."""

    def pod_rows(self, namespace: str) -> Data:
        """The pods of a namespace as a Table."""

    def log(self, name: str, namespace: str, container: str, previous: bool = False, lines: int = 40) -> str:
        """The last lines of a container's log."""

    def many(self, do: t.Callable[[t.Any], t.Any], items: t.Iterable[t.Any]) -> t.Sequence[t.Any]:
        """The same for all."""


@dataclass
class _Failed:
    """Pods of a component that failed, and when that was seen last."""

    pods: list[Stuck]
    at: float


class Rollout:
    """Follows the components of one cluster.

    seen: the workloads as somebody has just read them; where they are settled the cluster is not asked again.
    every: seconds between two things that are told.
    clock, sleep: seconds, as of the module time.
    """

    def __init__(self, client: Asked, cluster: t.Mapping[str, t.Any], components: t.Sequence[str],
                 tell: Tell = lambda progress: None, clock: t.Callable[[], float] = time.monotonic,
                 sleep: t.Callable[[float], None] = time.sleep, seen: t.Sequence[Workload] = (),
                 every: float = 5.0) -> None:
        self._client, self._cluster, self._components = client, cluster, list(components)
        self._namespace = str(cluster["namespace"])
        self._clock, self._sleep = clock, sleep
        self._progress = Progress(tell, self._components, every)
        self._logs = logs.OnTheWay(client, self._namespace)
        self._seen = [work for work in seen if work.component in self._components]
        self._stuck: list[Stuck] = []
        self._stands: list[checks.Standing] = []
        self._sure: dict[tuple[str, str], float] = {}
        self._lost: set[str] = set()
        self._labels: dict[str, t.Mapping[str, str]] = {}
        self._look_at, self._looked, self._whole = 0.0, float("-inf"), True
        self._failed: dict[str, _Failed] = {}
        self._asked_restarts = False
        self._layouts: list[mig.Stand] = []

    def now(self, check_mode: bool = False) -> list[Data]:
        """The checks as things are now (L(checks.checks)), without waiting."""
        works = self._counts()
        self._layouts = self._unsettled(works)
        return self._conclude(works, check_mode)

    def follow(self, timeout: float) -> list[Data]:
        """The checks once all is ready, or nothing more can come by waiting, or after timeout seconds.

        Where the run has just found all of it as it should be, nothing is asked again but which pods were restarted
        lately and which layouts of MIG are not settled.
        """
        if self._seen and all(work.settled for work in self._seen):
            self._remember_restarts(self._seen)
            self._layouts = self._unsettled(self._seen)
            if not self._failed and not any(one.waits for one in self._layouts):
                return self._conclude(self._seen)
        begin, pause = self._clock(), _PAUSE_FIRST
        self._look_at = begin
        nodes: list[Data] | None = None
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
                self._look(lacking)
            hope = late or self._hope(lacking, passed)
            if not hope and not self._whole:
                self._look(lacking, whole=True)  # pods that stand alike may differ in why
                hope = self._hope(lacking, passed)
            over = passed >= timeout or not hope
            ends = "" if not over or not lacking else "the time is over" if hope else "waiting cannot help"
            self._progress.look(passed, timeout, works, self._stands if lacking else (), self._layouts, ends)
            if over:
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

    def _look(self, lacking: t.Sequence[Workload], whole: bool = False) -> None:
        """Which pods lack and where. The more it costs the rarer it happens. whole: each pod is read."""
        begin = self._clock()
        many = not whole and sum(work.desired for work in lacking) > _MANY
        some = self._some(lacking) if many else None
        self._whole = some is None
        read, alike = some or ([where_it_stands(pod, work.component) for work in lacking for pod in self._pods(work)
                                if not says_ready(pod)], [])
        self._stuck = [*read, *alike]
        for work in lacking:
            failing = [stuck for stuck in self._stuck if stuck.component == work.component and stuck.failed]
            if failing:
                self._failed[work.component] = _Failed(failing, begin)
        self._lost = self._not_ready({stuck.node for stuck in read if stuck.node})
        self._stands = self._explain()
        self._looked = self._clock()
        self._look_at = self._looked + max(_LOOK, 10 * (self._looked - begin))

    def _some(self, lacking: t.Sequence[Workload]) -> tuple[list[Stuck], list[Stuck]] | None:
        """Where pods stand, by the list that the server prints: a hundredth of what the pods themselves are. Of those
        that stand alike some are read; the others follow. None where it does not tell who lacks: what is on lost nodes
        is printed as if it ran."""
        listed = rows(self._client.pod_rows(self._namespace))
        alike: dict[tuple[str, str], list[Row]] = {}
        for work in lacking:
            mine = [row for row in listed if work.made(row.name)]
            waiting = [row for row in mine if not row.ready]
            if len(mine) >= work.desired and len(waiting) < work.desired - work.ready:
                return None
            for row in waiting:
                alike.setdefault((work.component, row.status), []).append(row)
        few = sum(map(len, alike.values())) <= _NODES_ONE_BY_ONE
        chosen = [row.name for group in alike.values() for row in (group if few else group[:_OF_A_KIND])]
        pods = dict(zip(chosen, without_errors(self._client.many(
            lambda name: self._client.get("v1", "Pod", name, self._namespace), chosen))))
        found: tuple[list[Stuck], list[Stuck]] = ([], [])
        for (component, _status), group in alike.items():
            read = [where_it_stands(pod, component) for row in group if (pod := pods.get(row.name))
                    and not says_ready(pod)]
            found[0].extend(read)
            found[1].extend(replace(read[0], pod=row.name, node=row.node, since="") for row in group
                            if read and row.name not in pods)
        return found

    def _remember_restarts(self, works: t.Sequence[Workload]) -> None:
        """Once: pods that count as ready now, but were restarted a moment ago."""
        if self._asked_restarts:
            return
        self._asked_restarts = True
        try:
            lately = restarted_lately(self._client.pod_rows(self._namespace))
        except GpuopsError:
            return  # who may not list pods is told only what the counts say
        mine = [name for name in lately if any(name.startswith(f"{work.name}-") for work in works)]
        pods = without_errors(self._client.many(
            lambda name: self._client.get("v1", "Pod", name, self._namespace), mine[:_NODES_ONE_BY_ONE]))
        owned = {work.uid: work.component for work in works}
        for pod in pods:
            component = next((owned[owner["uid"]] for owner in (pod or {"metadata": {}})["metadata"].get(
                "ownerReferences") or () if owner["uid"] in owned), None)
            if pod and component and runs_since(pod, lately[pod["metadata"]["name"]]) < _STEADY:
                failed = self._failed.setdefault(component, _Failed([], self._clock()))
                failed.pods.append(after_a_restart(pod, component))

    def _unsteady(self, lacking: t.Sequence[Workload]) -> list[Stuck]:
        """Pods that failed before, of components that are ready since a moment only: their containers run again."""
        now, missing = self._clock(), {work.component for work in lacking}
        for component in missing & self._failed.keys():
            self._failed[component].at = now
        return [replace(stuck, reason=RESTARTED) for component, failed in self._failed.items() for stuck in failed.pods
                if component not in missing and now - failed.at < _STEADY]

    def _explain(self) -> list[checks.Standing]:
        """Why the pods are not ready, and since when that is certain of some."""
        seen = checks.Seen(self._stuck, frozenset(self._lost), labels=self._labels)
        stands = checks.standings(self._cluster, seen)
        seen = seen._replace(logs=self._logs.of([one.stuck for one in stands if not one.before]))
        stands = checks.standings(self._cluster, seen) if seen.logs else stands
        now, sure = self._clock(), {}
        for stuck, cause, _before in stands:
            # The log of another pod makes nothing certain.
            if cause.certain and seen.logs.get(stuck.pod, logs.Log(of=stuck.pod)).of == stuck.pod:
                sure[stuck.component, stuck.node] = self._sure.get((stuck.component, stuck.node), now)
        self._sure = sure
        return stands

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
        self._labels = {str(node["metadata"]["name"]): node["metadata"].get("labels") or {} for node in found if node}
        return {str(node["metadata"]["name"]) for node in _silent(found)} & nodes

    def _hope(self, lacking: t.Sequence[Workload], passed: float) -> bool:
        """Whether something may come by waiting."""
        return (any(one.waits for one in self._layouts) or bool(self._unsteady(lacking))
                or any(self._hopeful(work, passed) for work in lacking))

    def _hopeful(self, work: Workload, passed: float) -> bool:
        """Whether waiting may help: not where all that lacks is on lost nodes, or only somebody else can mend it."""
        mine = [stuck for stuck in self._stuck if stuck.component == work.component]
        if not mine or not work.seen or len(mine) < work.desired - work.ready:
            return True
        now = self._clock()
        sure = {key for key, since in self._sure.items() if now - since >= _CERTAIN}
        behind = {(stuck.component, stuck.node) for stuck, _cause, before in self._stands
                  if (before, stuck.node) in sure}
        away = sure | behind
        return not all((stuck.component, stuck.node) in away or stuck.node in self._lost and passed >= _LOST
                       for stuck in mine)

    def _conclude(self, works: t.Sequence[Workload], check_mode: bool = False) -> list[Data]:
        lacking = [work for work in works if not work.settled]
        former = [stuck for work in works if work.manual and work.updated < work.desired
                  for stuck in self._former(work)]
        events: dict[tuple[str, str], list[str]] = {}
        unsteady = self._unsteady(lacking)
        if lacking and (not self._whole or self._clock() > self._looked + _FRESH):
            self._look(lacking, whole=True)
        if lacking or unsteady:
            events = self._warnings()
        seen = checks.Seen([*(self._stuck if lacking else ()), *unsteady], frozenset(self._lost), self._away(works),
                           former, events, self._explained(works), {}, self._labels)
        seen = seen._replace(logs=logs.read(self._client, self._namespace, checks.roots(self._cluster, seen)))
        return checks.checks(self._cluster, self._components, works, seen, check_mode)

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

    def _former(self, work: Workload) -> t.Iterator[checks.Former]:
        """Pods of an OnDelete DaemonSet that are otherwise than its newest revision wants them, their Nodes apart."""
        revisions = [item for item in self._client.list(
            "apps/v1", "ControllerRevision", namespace=self._namespace, label_selector=work.selector)
            if any(owner["uid"] == work.uid for owner in item["metadata"].get("ownerReferences") or ())]
        if not revisions:
            return
        newest = max(revisions, key=lambda item: int(item["revision"]))
        template = newest["data"]["spec"]["template"]
        same = {item["metadata"]["labels"][_REVISION] for item in revisions
                if without_place(item["data"]["spec"]["template"]) == without_place(template)}
        wanted = _tag(template)
        for pod in self._pods(work):
            if (pod["metadata"].get("labels") or {}).get(_REVISION) not in same:
                yield checks.Former(where_it_stands(pod, work.component), _tag(pod), wanted)

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


def _tag(pod: Data) -> str:
    """C(570.172.08-ubuntu22.04) of the image of the first container of a pod, or of a template; or its digest."""
    return str(pod["spec"]["containers"][0]["image"]).rpartition("/")[2].partition(":")[2]


def _silent(nodes: t.Iterable[Data | None]) -> list[Data]:
    """Those that are not Ready, or are being removed."""
    return [node for node in nodes if isinstance(node, dict) and not says_ready(node)]
