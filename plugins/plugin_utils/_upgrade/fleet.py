# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads which Nodes of a cluster need an upgrade of their driver pod. PRIVATE."""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects, revisions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import (
    Live,
    Object,
    component_of,
    controller_uid,
    is_ours,
    label_selector,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import without_node_selection
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import REASON
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.pending_changes import DRIVER, DRIVER_LABEL
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.successors import runs_on
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.upgrade_policy import UpgradePolicy

SELECTOR = label_selector(DRIVER_LABEL)
# Seconds: for the controller to see a change of a DaemonSet; between two requests.
_OBSERVED, _PAUSE = 60.0, 0.5


@dataclass(frozen=True)
class Group:
    """The Nodes of one driver: of one NVIDIADriver, or of the section driver of the policy.

    name: the NVIDIADriver, empty for the section driver; policy: how its Nodes are upgraded; nodes: all its Nodes.
    """

    name: str
    policy: UpgradePolicy
    nodes: frozenset[str]


@dataclass(frozen=True)
class Candidate:
    """A Node that needs an upgrade, or whose upgrade is not finished.

    daemon_set: that of its driver pod; group: the name of its L(Group); pod: the name of the outdated pod, empty if
    the pod has been replaced already; drains: whether pods that use its GPUs must end; current, desired: the tags of
    the driver images; state: the state in its label; excluded: why the user does not want its upgrade, empty otherwise;
    former: the hashes of the revisions whose pods are outdated.
    """

    node: NodeState
    daemon_set: Object
    group: str
    pod: str
    drains: bool
    current: str
    desired: str
    state: str
    excluded: str = ""
    former: t.FrozenSet[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the Node."""
        return self.node.name

    @property
    def set_name(self) -> str:
        """The name of the DaemonSet."""
        return str(self.daemon_set["metadata"]["name"])

    @property
    def is_unfinished(self) -> bool:
        """Whether an earlier run or the operator has started the upgrade."""
        return self.state in upgrades.IN_PROGRESS or HELD in self.node.annotations

    @property
    def can_be_undone(self) -> bool:
        """Whether the user does not want the upgrade, and an earlier run has begun it, but not replaced the driver."""
        return bool(self.excluded and self.pod and REASON not in self.node.annotations
                    and self.state in (upgrades.CORDON, upgrades.WAIT, upgrades.POD_DELETION, upgrades.DRAIN))

    @property
    def must_be_finished(self) -> bool:
        """Whether the user does not want the upgrade, but an earlier run has replaced the driver."""
        return bool(self.excluded and not self.pod and self.state in upgrades.IN_PROGRESS)

    @property
    def has_failed(self) -> bool:
        """Whether its last upgrade has failed."""
        return self.state == upgrades.FAILED


@dataclass(frozen=True)
class Fleet:
    """The drivers of a cluster. namespace: the namespace of the operands; validates: whether a validator runs on each
    Node; candidates: by the name of the Node; left: maps Nodes that an earlier upgrade has left out of service, and to
    which the policy delivers no driver, to their states; complete: whether all DaemonSets of the plan exist, which in
    check mode may not be so."""

    namespace: str
    validates: bool
    groups: t.Mapping[str, Group] = field(default_factory=dict)
    candidates: t.Mapping[str, Candidate] = field(default_factory=dict)
    left: t.Mapping[str, str] = field(default_factory=dict)
    complete: bool = True


def read(client: Client, cluster: t.Mapping[str, t.Any], names: t.Collection[str] = (), check: bool = False,
         clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> Fleet:
    """Reads the driver pods and the Nodes.

    cluster: the plan of the cluster; names: the Nodes to which the candidates are limited, empty for all Nodes; check:
    whether the DaemonSets may not be as planned yet, because the task that delivers them runs in check mode, too. Then
    a dry run on the API server shows which pods they would make outdated. clock, sleep: as in the module time.
    """
    components = cluster["components"]
    namespace = str(cluster["namespace"])
    pools = {pool["name"]: pool for pool in (components.get(DRIVER) or {}).get("pools") or ()}
    drivers = _observed(client, namespace, pools, clock, sleep)
    reads = [("apps/v1", "ControllerRevision"), ("v1", "Pod"), ("v1", "Node")]
    known, pods, nodes = without_errors(client.many(
        lambda one: client.list(*one) if one[1] == "Node" else
        client.list(*one, namespace=namespace, label_selector=SELECTOR), reads))
    delivered = {one.manifest["metadata"]["name"]: one.manifest for one in objects.wanted(
        {DRIVER: render(DRIVER, cluster)}) if one.kind.kind == "DaemonSet"} if check and drivers else {}
    groups: dict[str, Group] = {}
    candidates: dict[str, Candidate] = {}
    for one in drivers:
        pool = pools[one["metadata"]["name"]]
        own = {pod["spec"].get("nodeName", ""): pod for pod in pods if controller_uid(pod) == one["metadata"]["uid"]}
        served = {node["metadata"]["name"]: node for node in nodes
                  if node["metadata"]["name"] in own or runs_on(one, _resumed(node))}
        former = groups.get(pool["owner"])
        groups[pool["owner"]] = Group(pool["owner"], pool["upgrade"], frozenset(served).union(
            former.nodes if former else ()))
        rows = revisions.of_daemon_set(one["metadata"]["uid"], known)
        if rows and one["metadata"]["name"] in delivered:
            rows = _planned(client, delivered[one["metadata"]["name"]], one, rows)
        for name, node in served.items():
            found = _candidate(one, pool, node, own.get(name), rows) if rows else None
            if found and (not names or name in names):
                candidates[name] = found
    validator = components.get("validator") or {}
    served_nodes = {name for group in groups.values() for name in group.nodes}
    states = {one.name: one.labels.get(upgrades.STATE, "") for one in map(NodeState.read, nodes)}
    complete = len(drivers) == len(pools)
    left = {name: state for name, state in states.items() if complete and state in upgrades.IN_PROGRESS
            and name not in served_nodes and (not names or name in names)}
    return Fleet(namespace, validator.get("state") == "present", groups, candidates, left, complete)


def _observed(client: Client, namespace: str, pools: t.Container[str], clock: t.Callable[[], float],
              sleep: t.Callable[[float], None]) -> list[Object]:
    """The DaemonSets of the drivers. Waits until their controller has seen their last change, because only then a
    changed DaemonSet has its new revision. Raises ClusterError."""
    end = clock() + _OBSERVED
    while True:
        found = [one for one in client.list("apps/v1", "DaemonSet", namespace=namespace)
                 if is_ours(one) and component_of(one) == DRIVER and one["metadata"]["name"] in pools]
        late = [one["metadata"]["name"] for one in found
                if int((one.get("status") or {}).get("observedGeneration") or 0)
                < int(one["metadata"].get("generation") or 0)]
        if not late:
            return found
        if clock() >= end:
            raise ClusterError(f"The controller of DaemonSets has not seen the last change of {', '.join(late)} for "
                               f"{_OBSERVED:g} s.", "Check kube-controller-manager, then run again.", verb="get",
                               object=f"DaemonSet {namespace}/{late[0]}", reason="NotObserved")
        sleep(_PAUSE)


def _planned(client: Client, manifest: Object, live: Object, rows: revisions.Revisions) -> revisions.Revisions:
    """The revisions of a DaemonSet after the delivery of its manifest."""
    template = client.apply(manifest, dry_run=True)["spec"]["template"]
    former, new = map(without_node_selection, (live["spec"]["template"], template))
    return rows if former == new else revisions.Revisions(template, frozenset(), rows.current | rows.former)


def _candidate(daemon_set: Object, pool: t.Mapping[str, t.Any], node: Object, pod: Object | None,
               rows: revisions.Revisions) -> Candidate | None:
    """A Node of a DaemonSet as a candidate, None if it needs nothing."""
    state = NodeState.read(node)
    label = state.labels.get(upgrades.STATE, "")
    asked = state.annotations.get(upgrades.REQUESTED) == "true"
    waits = upgrades.SAFE_LOAD in state.annotations
    outdated = pod is not None and (asked or rows.is_outdated(pod))
    # A Node whose driver pod is not outdated any more, but whose upgrade is required, is upgraded already.
    begun = label in upgrades.UNFINISHED or label == upgrades.REQUIRED and pod is not None
    if not (outdated or asked or waits or begun):
        return None
    excluded = ""
    if state.labels.get(upgrades.SKIP) == "true":
        excluded = f"the label {upgrades.SKIP} excludes it"
    elif not pool["upgrade"]["automatic"]:
        excluded = "driver.upgradePolicy.autoUpgrade is false"
    return Candidate(state, daemon_set, pool["owner"], pod["metadata"]["name"] if pod and outdated else "",
                     outdated or waits and label not in upgrades.CORDONED, revisions.tag(pod) if pod else "",
                     revisions.tag(rows.template), label, excluded, rows.former)


def pods_of(client: Client, fleet: Fleet, name: str) -> list[Object]:
    """The driver pods of a Node."""
    return client.list("v1", "Pod", namespace=fleet.namespace, label_selector=SELECTOR,
                       field_selector=f"spec.nodeName={name}")


def unavailable(nodes: t.Iterable[Live]) -> set[str]:
    """The Nodes that are cordoned or not Ready."""
    return {str(one["metadata"]["name"]) for one in nodes
            if (one.get("spec") or {}).get("unschedulable") or not is_ready(one)}


def _resumed(node: Object) -> Object:
    """The Node as it is when it is in service, because a cordoned Node still gets pods of DaemonSets."""
    taints = [one for one in (node.get("spec") or {}).get("taints") or ()
              if one["key"] not in ("node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready",
                                    "node.kubernetes.io/unreachable")]
    return {**node, "spec": {**(node.get("spec") or {}), "taints": taints}}
