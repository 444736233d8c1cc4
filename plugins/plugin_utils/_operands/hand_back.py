# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives our objects to a GPU Operator that is installed and stopped. PRIVATE to the collection.

First the policy is written to the ClusterPolicy. Then our marks are removed from each object, and the ClusterPolicy
becomes its owner, which changes no pod. The operator is started last. If the run is killed, the operator stays stopped,
and the next run continues.

The operator writes a DaemonSet only if the hash of the rendered DaemonSet differs from the hash in an annotation. The
annotation is therefore removed, so that the operator writes each DaemonSet again. A driver pod that the operator has
created stays. A driver pod that we have created has an older revision, and is replaced according to
driver.upgradePolicy. The operator searches for pods of older revisions before it renders anything. The pod template of
the driver is therefore first restored to the operator's last template: otherwise release 26.7.0 cordons Nodes and ends
GPU pods.

If a run of the playbook upgrade was killed, the operator finishes the Nodes in the middle of their upgrade, because it
knows their states. It has no notion of the rest that the run has left there: paused operands, which are resumed, and
whether the Node was cordoned before, which is written as the operator writes it. What the operator would not finish is
refused.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver_containers import operators_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import IN_CLUSTERS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.cluster_nodes import NVIDIA_DRIVER, SYSTEM
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, live, objects, operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Key, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, deploy_labels, node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import (
    PAUSED,
    PAUSES,
    REASON,
    REMOVING,
    left_behind,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodePatch, NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder, refuse_held
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import apply, compare, node_by_node

_POLICY, _NVIDIA_DRIVER = ("nvidia.com/v1", "ClusterPolicy"), ("nvidia.com/v1alpha1", "NVIDIADriver")
# Components that the chart installs beside the operator, and kinds that no operator owns.
_OTHERS = ("nfd",)
_NOT_OWNED = ("Namespace", "CustomResourceDefinition")
_NODE_MARKS = (deploy_labels.ANNOTATION, deploy_labels.GONE, deploy_labels.HOST_GONE)
# A driver DaemonSet that the operator creates without an NVIDIADriver has this name, or its pods have this label.
_DRIVER, _PRECOMPILED = "nvidia-driver-daemonset", "nvidia.com/precompiled"
_OS, _KERNEL = "nvidia.com/node.os-version", "feature.node.kubernetes.io/kernel-version.full"
# The states of a Node in which the operator ends pods that use a GPU next, or its driver pod.
_BEFORE_RESTART = (upgrades.WAIT, upgrades.POD_DELETION, upgrades.DRAIN, upgrades.POD_RESTART)
_ROUNDS = 6
# Seconds to wait until the controller of DaemonSets has observed a change.
_PATIENCE = 120.0


def plan(client: Client, policy: Object, me: Holder) -> list[Change] | None:
    """All steps; None if no operator is installed. policy: the ClusterPolicy that the operator is to use; me: this run.

    Raises ClusterError if the operator could not continue with the present objects.
    """
    deployments = operator.deployments(client)
    if not deployments or not client.serves(kinds.find(*_POLICY)):
        return None
    there = live.read(client, [], everything=True)
    nodes = client.list("v1", "Node", metadata_only=True)
    refuse_unfinished(nodes, policy, me)
    policies = client.list(*_POLICY)
    mine, drivers = ours(there), client.list(*_NVIDIA_DRIVER)
    refuse(mine, drivers)
    return [*policy_step(policy, policies), *_handed(mine, _revisions(client, mine)), *_forgotten(nodes),
            *operator.start(deployments)]


def ours(there: t.Mapping[Key, Object]) -> list[Object]:
    """Our objects of the components that the operator also has. Pure."""
    known = {objects.SHARED, *(one.name for one in IN_CLUSTERS)} - set(_OTHERS)
    return [have for have in there.values() if have["kind"] not in _NOT_OWNED and objects.is_ours(have)
            and objects.component_of(have) in known and "deletionTimestamp" not in have["metadata"]]


def refuse(mine: t.Sequence[Object], drivers: t.Sequence[Object]) -> None:
    """Raises ClusterError if the operator would not find a driver DaemonSet, because it expects another name.

    drivers: all NVIDIADrivers. Pure.
    """
    known = {one["metadata"]["name"]: one for one in drivers}
    odd = [objects.label_of(one) for one in mine if _is_driver(one) and not _is_known(one, known)]
    if odd:
        raise ClusterError(
            f"The operator would not adopt these drivers, because its drivers have other names if Nodes have several "
            f"operating systems or an NVIDIADriver is new: {', '.join(odd)}.", "Remove them first: when no pod on "
            "their Nodes uses a GPU, run gpuops.nvidia.remove --tags driver, then run again. Nothing has been changed.",
            verb="plan", object=odd[0], reason="Foreign", found=odd)


def refuse_unfinished(nodes: t.Sequence[Object], policy: Object, me: Holder) -> None:
    """Raises ClusterError if a Node waits for its driver, if a run has left it out of service and the operator would
    not finish its upgrade, or if a run may still work on it. Pure."""
    left = [one for one in nodes
            if node_by_node.is_paused(one) or left_behind(one["metadata"].get("annotations") or {})]
    refuse_held(me, map(NodeState.read, left))
    found = [one["metadata"]["name"] for one in left
             if node_by_node.is_paused(one) or not (_upgrades(policy) and _is_upgrading(NodeState.read(one)))]
    if found:
        raise ClusterError(f"An earlier run has not finished its work on {fold(found)}, and an operator cannot finish "
                           "it.", "Run the playbook site, and upgrade if a driver upgrade is not finished, until no "
                           "Node is pending, then run again. Nothing has been changed.", verb="plan",
                           object=f"Node {found[0]}", reason="Unfinished", found=found)


def _upgrades(policy: Object) -> bool:
    """Whether the operator upgrades drivers with this ClusterPolicy. Otherwise, it removes the states of all Nodes and
    leaves them cordoned."""
    spec = policy.get("spec") or {}
    driver, sandbox = spec.get("driver") or {}, spec.get("sandboxWorkloads") or {}
    return (driver.get("enabled") is not False and sandbox.get("enabled") is not True
            and (driver.get("upgradePolicy") or {}).get("autoUpgrade") is True)


def _is_upgrading(one: NodeState) -> bool:
    """Whether a run has left a Node in the middle of the upgrade of its driver pod. It has not if the upgrade has
    failed, also an earlier one, because the driver may not work, or if the run has removed the driver."""
    return (one.labels.get(upgrades.STATE) in upgrades.IN_PROGRESS and HELD in one.annotations
            and REASON not in one.annotations and REMOVING not in one.annotations)


def _is_known(daemon: Object, drivers: t.Mapping[str, Object]) -> bool:
    template, name = daemon["spec"]["template"], daemon["metadata"]["name"]
    labels, driver = template["metadata"].get("labels") or {}, _driver_of(daemon)
    if not driver:
        return name == _DRIVER or labels.get(_PRECOMPILED) == "true"
    if driver not in drivers:
        return False
    kernel = (template["spec"].get("nodeSelector") or {}).get(_KERNEL, "")
    return bool(name == operators_name(drivers[driver]["spec"].get("driverType", "gpu"), labels.get(_OS, ""), kernel,
                                       drivers[driver]["metadata"]["uid"]))


def _driver_of(one: Object) -> str:
    """The NVIDIADriver for which a DaemonSet was created; empty if there is none."""
    return str((one["metadata"].get("annotations") or {}).get(NVIDIA_DRIVER, ""))


def policy_step(policy: Object, policies: t.Sequence[Object]) -> list[Change]:
    """The change of the ClusterPolicy; empty if the live ClusterPolicy has the same fields. Raises ClusterError if
    there is another ClusterPolicy. Pure."""
    kind = kinds.find(*_POLICY)
    found = {one["metadata"]["name"]: one for one in policies}
    name = policy["metadata"].get("name") or next(iter(found), "cluster-policy")
    wanted = {**policy, "metadata": {"name": name}}
    have = found.pop(name, None)
    if found:
        # The operator uses only the oldest ClusterPolicy.
        raise ClusterError(f"The cluster has the ClusterPolicy {', '.join(found)}, but the policy has the name {name}.",
                           "Delete it, or give the exported policy its name.", verb="plan",
                           object=f"ClusterPolicy {name}")
    if have is None:
        return [Change("create", kind, "", wanted, None)]
    differs = sorted({*compare.differences(wanted["spec"], have.get("spec") or {}, "spec"),
                      *compare.differences(have.get("spec") or {}, wanted["spec"], "spec")})
    return [Change("update", kind, "", wanted, have, differs)] if differs else []


def execute(client: Client, changes: t.Sequence[Change]) -> None:
    """Executes all steps in their order. Raises ClusterError if one fails."""
    policy: Object | None = None
    for change in changes:
        if change.kind.kind == "ClusterPolicy":
            policy = _write_policy(client, change)
    handed = [change for change in changes if change.action == "hand over"]
    if handed:
        policy = policy or client.list(*_POLICY)[0]
        owners = {"": owner_of(policy), **{one["metadata"]["name"]: owner_of(one)
                                           for one in client.list(*_NVIDIA_DRIVER)}}
        without_errors(client.many(lambda one: _hand_over(client, one, owners), handed))
        _wait_noticed(client, [change for change in handed if change.manifest])
    without_errors(client.many(lambda one: _forget(client, one),
                               [change for change in changes if change.action == "forget"]))
    apply.execute(client, [change for change in changes if change.action == "start"])


def owner_of(resource: Object) -> Object:
    """The owner reference that the operator sets on the objects of a ClusterPolicy or an NVIDIADriver. Pure."""
    return {"apiVersion": resource["apiVersion"], "kind": resource["kind"], "name": resource["metadata"]["name"],
            "uid": resource["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


def former(daemon: Object, revisions: t.Sequence[Object]) -> Object | None:
    """The DaemonSet with the operator's last pod template; None if it already has this template,
    or never had a template of the operator.

    revisions: all ControllerRevisions, each with the annotations that its DaemonSet had at that time. Pure.
    """
    own = [one for one in revisions if any(owner["uid"] == daemon["metadata"]["uid"]
                                           for owner in one["metadata"].get("ownerReferences") or ())]
    theirs = [one for one in own if objects.APPLIED not in (one["metadata"].get("annotations") or {})]
    newest, last = (max(items, key=lambda one: int(one["revision"]), default=None) for items in (own, theirs))
    if last is None or last is newest:
        return None
    template = {key: value for key, value in last["data"]["spec"]["template"].items() if key != "$patch"}
    return {**daemon, "spec": {**daemon["spec"], "template": template}}


def _revisions(client: Client, mine: t.Sequence[Object]) -> list[Object]:
    spaces = sorted({one["metadata"]["namespace"] for one in mine if _is_driver(one)})
    return [item for space in spaces for item in client.list("apps/v1", "ControllerRevision", space)]


def _is_driver(one: Object) -> bool:
    return bool(one["kind"] == "DaemonSet" and objects.component_of(one) == "driver")


def _handed(mine: t.Sequence[Object], revisions: t.Sequence[Object]) -> list[Change]:
    steps = []
    for one in mine:
        back = former(one, revisions) if _is_driver(one) else None
        steps.append(Change("hand over", kinds.find(one["apiVersion"], one["kind"]), objects.component_of(one), back,
                            one, ("spec.template",) if back else ()))
    return sorted(steps, key=lambda one: (one.kind.rank, one.label))


def _forgotten(nodes: t.Sequence[Object]) -> list[Change]:
    return [Change("forget", kinds.find("v1", "Node"), "", None, one) for one in nodes
            if forgotten(NodeState.read(one))]


def _write_policy(client: Client, change: Change) -> Object:
    wanted = t.cast(Object, change.manifest)
    if change.live is None:
        return client.apply(wanted)
    return client.json_patch(*_POLICY, wanted["metadata"]["name"], None, [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": change.live["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/spec", "value": wanted["spec"]}])


def _hand_over(client: Client, change: Change, owners: t.Mapping[str, Object]) -> None:
    have: Object | None = change.live
    for _ignored in range(_ROUNDS):
        if have is None or not objects.is_ours(have):
            return
        metadata = have["metadata"]
        try:
            client.json_patch(have["apiVersion"], have["kind"], metadata["name"], metadata.get("namespace"), [
                *apply.unmarked(have, operator.HASH, SYSTEM, NVIDIA_DRIVER),
                {"op": "add", "path": "/metadata/ownerReferences",
                 "value": [*operator.other_owners(have), owners[_driver_of(have)]]},
                *([{"op": "add", "path": "/spec/template", "value": change.manifest["spec"]["template"]}]
                  if change.manifest else [])])
            return
        except ClusterError as error:
            if error.status not in (404, 409):
                raise
        have = client.get(have["apiVersion"], have["kind"], metadata["name"], metadata.get("namespace"))
    raise ClusterError(f"{change.label}: others write it all the time.", "Run again.", verb="patch",
                       object=change.label, status=409)


def _wait_noticed(client: Client, changes: t.Sequence[Change]) -> None:
    """Waits until the controller has observed the restored templates of these DaemonSets."""
    for change in changes:
        def noticed(name: str = t.cast(Object, change.live)["metadata"]["name"], space: str = change.namespace) -> bool:
            now = client.get("apps/v1", "DaemonSet", name, space)
            return now is None or now["status"].get("observedGeneration", 0) >= now["metadata"]["generation"]

        if not apply.wait_until(noticed, _PATIENCE):
            raise ClusterError(f"{change.label}: no controller has seen its change for {_PATIENCE:.0f} s; the operator "
                               "was not started.", "Check that kube-controller-manager runs, then run again.",
                               verb="patch", object=change.label, reason="Timeout")


def _forget(client: Client, change: Change) -> None:
    node.write(client, t.cast(Object, change.live)["metadata"]["name"], forgotten)


def forgotten(one: NodeState) -> NodePatch:
    """The patch that removes our annotations from a Node. If the Node is in the middle of its upgrade, it is then as if
    the operator had brought it there. Pure."""
    marks: dict[str, str | None] = dict.fromkeys(key for key in _NODE_MARKS if key in one.annotations)
    if not _is_upgrading(one):
        return NodePatch(annotations=marks)
    # The time since which the validator is late would count from the killed run on.
    marks.update(dict.fromkeys(key for key in (HELD, cordon.ANNOTATION, upgrades.VALIDATING_SINCE)
                               if key in one.annotations))
    labels: dict[str, str | None] = dict.fromkeys([key for key in PAUSES if one.labels.get(key) == PAUSED], "true")
    if one.cordoned and cordon.before(one) is not False:
        marks[upgrades.CORDONED_BEFORE] = "true"
    elif not one.cordoned and one.labels[upgrades.STATE] in _BEFORE_RESTART:
        # Below the level drain, a run does not cordon the Node: new pods would start while the operator evicts others.
        labels[upgrades.STATE] = upgrades.CORDON
    return NodePatch(labels, marks)
