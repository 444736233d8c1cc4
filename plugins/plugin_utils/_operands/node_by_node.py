# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends the pods of drivers and MPS daemons whose DaemonSets are removed, a few Nodes at a time. PRIVATE.

When the container of a driver ends, it unloads the kernel modules, which fails as long as a process uses a GPU of the
Node. When an MPS daemon ends, its clients end with it. The DaemonSets are therefore deleted without their pods (orphan
propagation). Then each Node is taken out of service (L(maintenance)): the run holds and cordons the Node, evicts its
GPU pods and pauses its operands. The run deletes the MPS daemon and waits until it has ended, then the driver pod, and
puts the Node back into service. The ControllerRevisions, which orphan propagation also leaves, are deleted last.

If a new driver or MPS daemon replaces a former one, the new DaemonSet is created before the first Node is changed. The
paused deploy label (L(GATES)) keeps the new pod away from a Node until the former pod has ended; then the run waits for
the new pod.

A Node that cannot be taken out of service is skipped, for example because a disruption budget forbids it, another run
holds the Node, or the Node is not Ready. If an error occurs after that, the Node has failed. Nodes are changed one at a
time until the first one succeeds. If more Nodes fail than Terms.max_fail allows, no further Node is changed. Nodes on
which an earlier run has failed come last. The next run finds the remaining pods by their labels, and the Nodes that are
still out of service by their annotation.
"""

from __future__ import annotations

import functools
import itertools
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS, Step
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import DEPLOY
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.host_nodes import batch
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import (
    MPS_DAEMON,
    Key,
    Object,
    component_of,
    controller_uid,
    is_ours,
    label_of,
    label_selector,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, drain, node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import (
    PAUSED,
    REASON,
    Maintenance,
    Outcome,
    Request,
    unfinished,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodePatch
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.pod import has_ended
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.pending_changes import (
    DRIVER,
    DRIVER_LABEL,
    serves_gpu_clients,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.successors import (
    keeps,
    runs_on,
    selects,
    time_to_start,
)

_PAUSE = 1.0  # seconds between two requests
_ROUNDS = 10  # how often the search for pods is repeated, because pods may have started meanwhile
_NAMED = 10  # the maximum number of Nodes that a message lists with their reasons
_NO_NODE = "no Node"
# If an error has one of these reasons, the Node is skipped. With any other reason, the Node has failed.
_NOT_BEGUN = ("Blocked", "Changing", "Held", "NotReady", "Refused", "Upgrading")
# Maps a component to the labels of its driver or MPS pods. Adopted pods of a GPU Operator also have these labels.
MPS = "device_plugin"
LABELS: t.Mapping[str, t.Mapping[str, str]] = {DRIVER: DRIVER_LABEL, MPS: {"app": MPS_DAEMON}}
# Maps a component to the deploy label that its pods select, and to the value that keeps new pods away from a Node until
# the former pod has ended there. For the MPS daemon, L(maintenance) pauses operands with another value than this one.
GATES = {DRIVER: (deploy_labels.LABELS[DRIVER], PAUSED), MPS: (deploy_labels.LABELS[MPS], "paused-for-mps-daemon")}
_REVISION = ("apps/v1", "ControllerRevision")

Pod = Object


@dataclass(frozen=True)
class Terms:
    """How Nodes are taken out of service. at_once: how many at the same time, as C(gpu_max_unavailable); timeout:
    seconds, as in L(drain.Request); evictions: which pods may be evicted; level: gpu_disruption; holder: this run;
    max_fail: the percentage of the Nodes that may fail, as C(gpu_max_fail_percentage); closed: why no further Node is
    begun now, empty if one may be (C(gpu_maintenance_windows))."""

    holder: Holder
    level: str = LEVELS[-1]
    at_once: t.Any = 1
    timeout: float = 600
    evictions: EvictionOptions = EvictionOptions()
    max_fail: int = 0
    closed: t.Callable[[], str] = str


@dataclass(frozen=True)
class Search:
    """The criteria by which L(find) finds pods and Nodes.

    components: the components whose pods end, or whose Nodes are put back into service; sets: the uids of the
    DaemonSets that are deleted; places: C((namespace, component, label selector)) of their pods and revisions, with an
    empty namespace for all namespaces; over: components that still have pods afterwards; successors: the wanted
    DaemonSets of these components, if they may replace others; left: Nodes that stay out of service unless a pod on
    them is to be ended; leaving: C((component, Node)) if the Node loses the label by which pods of the component run
    there, although their DaemonSet stays; back: whether an MPS daemon whose Node is still paused may keep running if
    its DaemonSet is created again.
    """

    components: frozenset[str]
    sets: frozenset[str]
    places: t.Sequence[tuple[str, str, str]]
    over: frozenset[str] = frozenset()
    successors: t.Sequence[Object] = ()
    left: frozenset[str] = frozenset()
    leaving: frozenset[tuple[str, str]] = frozenset()
    back: bool = False

    def coming(self, name: str) -> list[str]:
        """The components whose pods run on a Node again when its former pods have ended. The label of the MPS daemon is
        also the label of the device plugin, which runs there even if no MPS daemon is wanted."""
        return [part for part in LABELS if part in (self.over if part == DRIVER else self.components)
                and (part, name) not in self.leaving]

    def find(self, client: Client) -> Found:
        """Finds pods and Nodes. Reads the Nodes last, so that the Node of each pod is found even if the Node is new."""
        looks = [(*one, *kind) for one in self.places for kind in (("v1", "Pod"), _REVISION)[:2 if one[0] else 1]]
        answers = without_errors(client.many(lambda one: client.list(one[3], one[4], one[0] or None, one[2]), looks))
        pods = {pod["metadata"]["uid"]: (look[1], pod) for look, answer in zip(looks, answers) for pod in answer
                if look[4] == "Pod" and (look[0] or controller_uid(pod) and (look[1], pod["spec"].get("nodeName"))
                                         in self.leaving)}
        nodes = {str(one["metadata"]["name"]): one for one in client.list("v1", "Node", metadata_only=True)}
        ours = [pod for _component, pod in pods.values() if controller_uid(pod) in {"", *self.sets}]
        if self.successors and ours:
            nodes = {str(one["metadata"]["name"]): one for one in client.list("v1", "Node")}
        found = Found({name: [] for name, one in sorted(nodes.items())
                       if name not in self.left and (
                           unfinished(one) & self.components or is_paused(one, self.coming(name)))},
                      nodes=nodes, search=self, revisions=[
                          one for look, answer in zip(looks, answers) for one in answer
                          if look[4] != "Pod" and controller_uid(one) in {"", *self.sets}])
        for component, pod in sorted(pods.values(), key=lambda one: (not _is_mps(one[1]), label_of(one[1]))):
            owner = controller_uid(pod)
            name = pod["spec"].get("nodeName")
            waits = self.back and not owner and component == MPS and name in nodes and is_paused(nodes[name], [MPS])
            if (component, name) not in self.leaving and (owner and owner not in self.sets or name in nodes and keeps(
                    self.successors, pod, _resumed(nodes[name]) if waits else nodes[name])):
                if waits:
                    found.back.add(name)
                continue
            # No container runs in a pod that has ended, for example because the kubelet rejected it after a restart.
            runs = not has_ended(pod)
            if not owner and runs:
                found.orphans.append((component, pod))
            (found.pods.setdefault(name, []) if name in nodes and runs else found.loose).append(pod)
        return found


@dataclass
class Found:
    """The work to do.

    pods: maps a Node to the pods to end on it, and is empty for a Node that only has to be put back into service;
    loose: pods that are on no Node or have ended; orphans: C((component, pod)) for pods whose DaemonSet was deleted;
    revisions: ControllerRevisions to delete, which another DaemonSet would otherwise adopt; nodes: all Nodes by name;
    stuck: why no pod may be ended although the level allows it; back: the Nodes with an MPS daemon that its DaemonSet
    adopts again once their label is resumed.
    """

    pods: dict[str, list[Pod]] = field(default_factory=dict)
    loose: list[Pod] = field(default_factory=list)
    orphans: list[tuple[str, Pod]] = field(default_factory=list)
    revisions: list[Object] = field(default_factory=list)
    nodes: t.Mapping[str, Object] = field(default_factory=dict)
    search: Search = Search(frozenset(), frozenset(), ())
    stuck: str = ""
    back: set[str] = field(default_factory=set)


def find(client: Client, live: t.Mapping[Key, Object], components: t.Collection[str] | None,
         over: t.Collection[str] = (), going: t.Collection[str] = (), successors: t.Sequence[Object] | None = None,
         leaving: t.Collection[tuple[str, str]] = (), back: bool = False) -> Found:
    """Finds the pods of our DaemonSets among the live objects, and the pods of deleted DaemonSets in all namespaces
    that have live or wanted objects of ours.

    components: the components whose pods end, None for all; over: components whose pods stay because they are wanted;
    going: uids of DaemonSets of over that are deleted nevertheless, including DaemonSets of a GPU Operator; successors:
    as in L(Search), None to search no pods of deleted DaemonSets of over; leaving, back: as in L(Search).
    """
    ours = [one for one in live.values() if is_ours(one)]
    spaces = {str(one["metadata"]["name"] if one["kind"] == "Namespace" else one["metadata"].get("namespace", ""))
              for one in [*ours, *(successors or ())]} - {""}
    sets = [one for one in live.values() if one["metadata"]["uid"] in going or is_ours(one) and serves_gpu_clients(one)
            and (components is None or component_of(one) in components)]
    ending = frozenset(LABELS if components is None else LABELS.keys() & set(components))
    places = {(space, component, label_selector(LABELS[component])) for space in spaces
              for component in (ending if successors is None else ending | set(over))}
    places |= {(one["metadata"]["namespace"], MPS if one["metadata"]["name"] == MPS_DAEMON else DRIVER,
                label_selector(one["spec"]["selector"]["matchLabels"])) for one in sets}
    places |= {("", component, label_selector(LABELS[component])) for component, _name in leaving}
    return Search(ending | set(over), frozenset(one["metadata"]["uid"] for one in sets), sorted(places),
                  frozenset(over), successors or (), leaving=frozenset(leaving), back=back).find(client)


def without(found: Found, left: t.Collection[str]) -> Found:
    """The same work, except that Nodes in left stay out of service if no pod is to be ended on them."""
    search = replace(found.search, left=found.search.left | set(left))
    return replace(found, pods={name: pods for name, pods in found.pods.items() if pods or name not in left},
                   search=search)


def only_to_put_back(found: Found) -> Found:
    """The work on Nodes that an earlier run has left out of service and on which no pod is to be ended any more."""
    return Found({name: [] for name, pods in found.pods.items() if not pods}, nodes=found.nodes,
                 search=replace(found.search, sets=frozenset(), places=()))


def only_leaving(found: Found) -> Found:
    """Like L(only_to_put_back), with the pods that end because of a label although their DaemonSets stay."""
    pods = {name: [pod for pod in group if (_component(pod), name) in found.search.leaving and controller_uid(pod)]
            for name, group in found.pods.items()}
    places = [one for one in found.search.places if not one[0]]
    return Found({name: group for name, group in pods.items() if group or not found.pods[name]}, nodes=found.nodes,
                 search=replace(found.search, sets=frozenset(), places=places))


def unfinished_nodes(nodes: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[str]:
    """The Nodes on which a run has started, but not finished, to end driver or MPS pods. nodes: maps names to the
    labels and annotations of Nodes, as L(read_cluster) returns them."""
    return [name for name, one in sorted(nodes.items()) if is_paused({"metadata": one}) or unfinished(
        {"metadata": one})]


def is_unfinished(one: Object, components: t.AbstractSet[str]) -> bool:
    """Whether a run has started, but not finished, to replace pods of these components on a Node or remove a driver."""
    return is_paused(one, components) or DRIVER in components & unfinished(one)


def is_paused(node: Object, components: t.Iterable[str] = (*GATES,)) -> bool:
    """Whether new pods of one of the components are kept away from a Node until the former pod has ended there."""
    return any(_labels(node).get(key) == value for key, value in map(GATES.__getitem__, components))


def ending_on(client: Client, name: str) -> list[Pod]:
    """The driver and MPS pods of a Node that were deleted and have not ended yet. name: the Node."""
    answers = without_errors(client.many(lambda labels: client.list(
        "v1", "Pod", label_selector=label_selector(labels), field_selector=f"spec.nodeName={name}"), LABELS.values()))
    return [pod for pods in answers for pod in pods if "deletionTimestamp" in pod["metadata"]]


def uids_without_owner(found: Found) -> list[str]:
    """The uids of pods and revisions that a killed run has left behind. They are ours although they have no owner."""
    left = [*(pod for _component, pod in found.orphans), *(one for one in found.revisions if not controller_uid(one))]
    return [one["metadata"]["uid"] for one in left]


def _component(pod: Pod) -> str:
    return MPS if _is_mps(pod) else DRIVER


def _is_mps(pod: Pod) -> bool:
    """Whether a pod is an MPS daemon, which uses the GPUs and therefore must end before the driver."""
    return (pod["metadata"].get("labels") or {}).get("app") == MPS_DAEMON


class NodeByNode:
    """Ends the pods that L(find) has found. tell: called with a line of progress.

    late: why Nodes wait for the next maintenance window, by Node.
    """

    def __init__(self, client: Client, found: Found, terms: Terms, tell: t.Callable[[str], None]) -> None:
        self._client, self._found, self._terms, self._tell = client, found, terms, tell
        batch(terms.at_once, len(found.pods))  # raises for an invalid number before anything is deleted
        # The errors of the Nodes that were skipped or have failed; the Nodes that have failed; the Nodes on which pods
        # were ended; the Nodes that are not changed because too many have failed.
        self._left: dict[str, GpuopsError] = {}
        self._failed: set[str] = set()
        self._served: set[str] = set()
        self._untouched: set[str] = set()
        self.late: dict[str, str] = {}
        self._broken: list[GpuopsError] = []
        self._seen: set[str] = set()
        self._turns = itertools.count(1)

    @property
    def moves(self) -> bool:
        """Whether new pods replace some of the pods to end, or Nodes wait for such new pods."""
        return bool(self._former()) or any(
            is_paused(self._found.nodes[name], self._found.search.over) for name in self._found.pods)

    def _former(self, names: t.Collection[str] | None = None) -> dict[tuple[str, str], list[Pod]]:
        """Maps (component, Node) to the pods to end that new pods replace. names: the Nodes, None for all Nodes."""
        found: dict[tuple[str, str], list[Pod]] = {}
        search = self._found.search
        for name in self._found.pods if names is None else names:
            for pod in self._found.pods[name]:
                if _component(pod) in search.over and (not controller_uid(pod) or controller_uid(pod) in search.sets):
                    found.setdefault((_component(pod), name), []).append(pod)
        return found

    def ended_on(self) -> list[str]:
        """The Nodes that may lose the labels, because no pod that needs them is left there."""
        left = {*self._left, *self._untouched, *self.late}
        return sorted({name for _component, name in self._found.search.leaving} - left)

    @property
    def ends_mps(self) -> bool:
        """Whether there are MPS daemons to end; after L(run), whether some could not be ended."""
        return any(_is_mps(pod) for pods in self._found.pods.values() for pod in pods)

    def needed_rights(self) -> list[rights.Right]:
        """The permissions that L(run) needs."""
        found = self._found
        pods = [pod for group in [*found.pods.values(), found.loose] for pod in group]
        spaces = sorted({pod["metadata"]["namespace"] for pod in pods})
        return [*(("delete", kinds.find("v1", "Pod"), space) for space in spaces),
                *(("delete", kinds.find(*_REVISION), space)
                  for space in sorted({one["metadata"]["namespace"] for one in found.revisions})),
                *(("patch", kinds.find("v1", "Pod"), space) for space in (spaces if self._former() else ())),
                *([rights.LABEL_NODES] if found.pods else []),
                *([rights.EVICT_PODS] if any(found.pods.values()) else [])]

    def preview(self) -> tuple[list[Step], list[str]]:
        """(the steps, sentences about pods that use a GPU and stay). L(foreseen) names the Nodes that are skipped."""
        names = sorted(self._found.pods)
        answers = self._client.many(self._preview, names)
        self._left = {name: one for name, one in zip(names, answers) if isinstance(one, GpuopsError)}
        previews = [one for one in answers if not isinstance(one, GpuopsError)]
        if self._left:
            self._ask_server()
        loose = [_step(pod, "it runs on no Node") for pod in self._found.loose]
        loose += [Step("pause", _of(component, name), "the former pod runs until this Node is changed", "drain")
                  for component, name in self._former()
                  if _labels(self._found.nodes[name]).get(GATES[component][0]) == "true"]
        return ([*loose, *(step for steps, _staying in previews for step in steps)],
                [text for _steps, staying in previews for text in staying])

    def foreseen(self) -> ClusterError | None:
        """The error with the Nodes that L(run) would skip now, and the reasons; None if there are none. Call L(preview)
        first."""
        return self._error(ahead=True) if self._left else None

    def keep_apart(self) -> None:
        """Keeps new pods away from the Nodes on which former pods run. The DaemonSets of the former pods must be gone.

        The deploy label of each such Node is paused until L(run) has ended its former pod. The former pod loses the
        labels by which a new DaemonSet would adopt it: because the DaemonSet does not select the Node, it would end the
        pod at once. If the DaemonSet of an MPS daemon is created again, it adopts the MPS daemon at once, so the label
        of the Node is resumed before.
        """
        if self._former() or self._found.back:
            self._found = self._found.search.find(self._client)
            former = self._former()
            pods = [pod for group in former.values() for pod in group if not _is_mps(pod)]
            without_errors(self._client.many(self._disown, pods))
            without_errors(self._client.many(lambda one: self._pause(*one), list(former)))
            back = sorted(self._found.back)
            without_errors(self._client.many(lambda name: self._pause(MPS, name, resume=True), back))

    def _pause(self, component: str, name: str, resume: bool = False) -> bool:
        """Pauses or resumes a component on a Node. Returns whether the label was changed."""
        key, paused = GATES[component]
        former, value = ({paused}, "true") if resume else ({"true", PAUSED} - {paused}, paused)
        return node.write(self._client, name, lambda one: NodePatch(
            {key: value} if one.labels.get(key) in former else {}))

    def _disown(self, pod: Pod) -> None:
        meta = pod["metadata"]
        labels = meta.get("labels") or {}
        keys = {key for one in self._found.search.successors if one["metadata"]["namespace"] == meta["namespace"]
                and selects(one, labels) for key in one["spec"]["selector"].get("matchLabels") or {}} - {*DRIVER_LABEL}
        if keys:
            self._client.merge_patch("v1", "Pod", meta["name"], meta["namespace"],
                                     {"metadata": {"uid": meta["uid"], "labels": dict.fromkeys(sorted(keys))}})

    def run(self) -> ClusterError | None:
        """Ends the pods. Returns an error that names the Nodes that were skipped, that have failed (C(failed) in its
        details) and that were not changed, None if there are none. Raises GpuopsError if the API server itself fails.

        The DaemonSets must be gone. As they may have created pods until then, the search for pods is repeated until
        only the pods of Nodes that were skipped or have failed are left.
        """
        found = self._found
        for _ignored in range(_ROUNDS if found.pods or found.loose or found.search.sets else 0):
            if found.search.places:
                self._found = found.search.find(self._client)
            self._seen |= self._found.pods.keys()
            todo = sorted(self._found.pods.keys() - self._left.keys() - self.late.keys(), key=self._turn)
            loose = self._found.loose if _NO_NODE not in self._left else []
            if self._untouched or not (todo or loose):
                break
            self._try(_NO_NODE, functools.partial(self._end_all, loose))
            self._serve(todo)
            without_errors(self._broken)
            if not found.search.places:
                break
        for one in self._found.revisions:
            meta = one["metadata"]
            self._client.delete(*_REVISION, meta["name"], meta["namespace"], meta["uid"])
        return self._error() if self._left or self._untouched else None

    def _turn(self, name: str) -> tuple[int, str]:
        """The sort key of a Node: Nodes that are already out of service come first, Nodes that have failed last."""
        one = self._found.nodes[name]
        marks = one["metadata"].get("annotations") or {}
        works = self._found.pods[name] or DRIVER in self._found.search.over & unfinished(one)
        if works and REASON in marks and HELD not in marks:
            return 2, name
        return (0 if unfinished(one) else 1), name

    def _serve(self, names: t.Sequence[str]) -> None:
        """Changes the Nodes: one at a time until the first one succeeds, then several at the same time."""
        rest = list(names)
        while rest and not self._served:
            self._one(rest.pop(0))
        with ThreadPoolExecutor(batch(self._terms.at_once, len(self._found.pods))) as threads:
            list(threads.map(self._one, rest))

    def _one(self, name: str) -> None:
        late = "" if unfinished(self._found.nodes[name]) else self._terms.closed()
        if self._stops():
            self._untouched.add(name)
        elif late:
            self.late[name] = late
        else:
            self._try(name, functools.partial(self._end_on, name))

    def _stops(self) -> bool:
        """Whether no further Node is changed, by the same rule as in the role maintenance."""
        return len(self._failed) * 100 > self._terms.max_fail * len(self._seen)

    def _error(self, ahead: bool = False) -> ClusterError:
        """The error about all Nodes on which pods are left. ahead: whether L(run) has not been called yet."""
        been = "will not be" if ahead else "have not been"
        told = {name: error.message for name, error in sorted(self._left.items())}
        why = f"not changed, because {fold(self._failed)} failed before. See gpu_max_fail_percentage."
        stopped = f" {fold(self._untouched)}: {why}" if self._untouched else ""
        more = f" The reasons of {len(told) - _NAMED} more are in error.nodes." if len(told) > _NAMED else ""
        hints = dict.fromkeys(error.hint for error in self._left.values() if error.hint)
        what = "removed or replaced" if self._found.search.successors else "removed"
        return ClusterError(
            f"The driver and MPS pods of {fold([*told, *self._untouched])} {been} {what}. "
            + " ".join(f"{name}: {text}" for name, text in [*told.items()][:_NAMED]) + more + stopped,
            " ".join([*hints, "" if ahead else "Then run again: the next run continues with these Nodes."]).strip(),
            verb="delete", object=f"Node {next(iter(told))}", reason="Timeout", failed=sorted(self._failed),
            nodes={**told, **dict.fromkeys(sorted(self._untouched), why)},
            blocked=[pod for error in self._left.values() for pod in error.details.get("blocked") or ()])

    def _maintenance(self, name: str, check: bool = False, **more: t.Any) -> Maintenance:
        terms, found = self._terms, self._found
        work = {MPS if _is_mps(pod) else DRIVER for pod in found.pods[name]}
        work |= unfinished(found.nodes[name]) & found.search.components
        request = drain.Request([name], terms.evictions, None, terms.timeout, terms.level, check)
        return Maintenance(self._client, Request(request, terms.holder, removing=work, **more), self._tell,
                           time.monotonic, time.sleep)

    def _preview(self, name: str) -> tuple[list[Step], list[str]]:
        pods, one = self._found.pods[name], self._found.nodes[name]
        leaving = [component for component in (DRIVER, MPS) if (component, name) in self._found.search.leaving]
        former = self._former([name])
        comes = [component for component in self._found.search.coming(name)
                 if is_paused(one, [component]) or (component, name) in former]
        seen = {name: dict(GATES[component] for component in comes)}
        begun = self._maintenance(name, check=True, seen=seen).started() if pods else Outcome()
        stays = [key for key in begun.paused if key not in [GATES[part][0] for part in leaving]]
        ended = self._maintenance(name, check=True, begun=replace(begun, paused=stays), seen=seen).ended()
        ending_pods = [_step(pod, f"it runs on {name}") for pod in pods]
        if pods and DRIVER in leaving and (DRIVER, name) not in former:
            ending_pods.insert(0, Step("pause", _of(DRIVER, name), "no driver is planned there any more", "drain"))
        resumed = {part: [Step("resume", _of(part, name), "", "drain" if pods else "never")] for part in comes}
        steps = [*begun.steps, *ending_pods, *resumed.get(DRIVER, ()), *ended.steps,
                 *resumed.get(MPS, ())]
        ending = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods}
        return steps, [f"A pod that uses a GPU stays: {one['pod']} on {name}: {one['reason']}."
                       for one in begun.staying if one["pod"] not in ending]

    def _try(self, name: str, work: t.Callable[[], None]) -> None:
        """Does the work on a Node and stores its error. name: the Node."""
        try:
            if not self._broken:
                work()
        except GpuopsError as error:
            try:
                self._ask_server()
            except GpuopsError as broken:
                self._broken.append(broken)
            else:
                self._left[name] = error
                passed = name == _NO_NODE or name not in self._served and (
                    isinstance(error, InputError) or isinstance(error, ClusterError) and error.reason in _NOT_BEGUN)
                self._served.discard(name)
                if not passed:
                    self._failed.add(name)
                self._tell(f"{name} {'is skipped' if passed else 'has failed'}. {error}")

    def _ask_server(self) -> None:
        """Raises GpuopsError if requests to the API server itself fail, and not only those for single Nodes."""
        self._client.count("v1", "Node", "")

    def _end_on(self, name: str) -> None:
        self._tell(f"{name} is taken out of service, {next(self._turns)} of {len(self._seen)}")
        if not self._found.pods[name]:
            self._finish(name, Outcome(ready=False))  # there is no pod to end, so the Node need not be Ready
            return
        begun = self._maintenance(name).started()
        if begun.failure:
            raise ClusterError(begun.failure, verb="evict", object=f"Node {name}", reason="Blocked",
                               blocked=begun.blocked)
        self._served.add(name)
        self._finish(name, begun)

    def _finish(self, name: str, begun: Outcome) -> None:
        """Ends the pods of a Node that is out of service, and puts the Node back into service."""
        try:
            for component in (MPS, DRIVER):
                if (component, name) in self._found.search.leaving:
                    self._pause(component, name)
                self._end_all([pod for pod in self._found.pods[name] if _component(pod) == component])
            self._await_new(DRIVER, name)
            self._maintenance(name, begun=begun).ended()
        except GpuopsError as error:
            self._maintenance(name, begun=begun, reason=error.message).ended()
            raise
        self._await_new(MPS, name)  # last, because the MPS daemon waits for other operands

    def _await_new(self, component: str, name: str) -> None:
        """Resumes the deploy label that kept the new pod away from a Node, and waits until this pod is Ready."""
        if component not in self._found.search.coming(name):
            return
        resumed = self._pause(component, name, resume=True)
        if component not in self._found.search.over:
            return
        one = node.objects(self._client, [name])[name]
        if not resumed and (component == MPS or DRIVER not in unfinished(self._found.nodes[name])):
            return
        coming = [wanted for wanted in self._found.search.successors
                  if (wanted["metadata"]["name"] == MPS_DAEMON) == (component == MPS) and runs_on(wanted, one)]
        limit = max([self._terms.timeout, *map(time_to_start, coming)])
        end = time.monotonic() + limit
        while True:
            pods = [pod for pod in self._client.list("v1", "Pod", label_selector=label_selector(LABELS[component]),
                                                     field_selector=f"spec.nodeName={name}")
                    if (controller_uid(pod) or keeps(coming, pod, one)) and "deletionTimestamp" not in pod["metadata"]]
            if any(is_ready(pod) for pod in pods) or not (pods or coming):
                return
            if time.monotonic() >= end:
                what = f"{label_of({'apiVersion': 'v1', 'kind': 'Pod', **pods[0]})} is not Ready" if pods else \
                    f"No {'driver' if component == DRIVER else 'MPS'} pod was created on Node {name}"
                raise ClusterError(f"{what} {limit:g} s after the former one has ended.", "Check its DaemonSet and "
                                   "the log of the pod (kubectl describe pod).", verb="get", object=f"Node {name}",
                                   reason="NoDriver")
            time.sleep(_PAUSE)

    def _end_all(self, pods: t.Sequence[Pod]) -> None:
        """Deletes pods and waits until they have ended."""
        for pod in pods:
            meta = pod["metadata"]
            self._client.delete("v1", "Pod", meta["name"], meta["namespace"], meta["uid"])
        end = time.monotonic() + self._terms.timeout
        while True:
            left = [pod for pod in pods if self._is_there(pod)]
            if not left:
                return
            if time.monotonic() >= end:
                raise ClusterError(f"{label_of(left[0])} has not ended {self._terms.timeout:g} s after it was deleted.",
                                   "Check its Node and its log (kubectl describe pod).", verb="delete",
                                   object=label_of(left[0]), reason="NotEnded")
            time.sleep(_PAUSE)

    def _is_there(self, pod: Pod) -> bool:
        meta = pod["metadata"]
        now = self._client.get("v1", "Pod", meta["name"], meta["namespace"], metadata_only=True)
        return now is not None and bool(now["metadata"]["uid"] == meta["uid"])


def _of(component: str, name: str) -> str:
    """The object of a step that pauses or resumes a component, as L(maintenance) names it."""
    return f"{GATES[component][0][len(DEPLOY):]} on Node {name}"


def _resumed(one: Object) -> Object:
    """The Node with the deploy label of the device plugin resumed."""
    return {**one, "metadata": {**one["metadata"], "labels": {**_labels(one), GATES[MPS][0]: "true"}}}


def _labels(one: t.Mapping[str, t.Any]) -> t.Mapping[str, str]:
    return one["metadata"].get("labels") or {}


def _step(pod: Pod, reason: str) -> Step:
    return Step("delete", label_of(pod), reason, "drain")
