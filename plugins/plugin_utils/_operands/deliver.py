# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does the work of the module `operands`: reads the cluster, plans the changes, executes them and returns the result.
PRIVATE to the collection."""

from __future__ import annotations

import copy
import typing as t
from dataclasses import asdict, replace
from types import MappingProxyType

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    LEVELS,
    PendingStep,
    Result,
    Step,
    allows,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import live, objects, operator, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import COMPONENT, Wanted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, maintenance
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import (
    adopt,
    apply,
    hand_back,
    node_by_node,
    pending_changes,
    removal,
    successors,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.outcome import Outcome
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.pending_changes import DRIVER, NEEDS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.plan import plan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render

_PATIENCE = 120.0  # seconds to wait until a DaemonSet that is deleted without its pods is gone


def of_plan(cluster: t.Mapping[str, t.Any], only: t.Sequence[str] | None) -> tuple[list[Wanted], list[str]]:
    """(the wanted objects, the components whose other objects are deleted). cluster: the plan of the cluster; only: the
    components to which both are limited. Raises InputError if cluster is not the plan of a cluster."""
    check_plan(cluster)
    known = cluster["components"]
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise InputError(f"{unknown[0]} is no component.", f"Choose from {', '.join(known)}.",
                         path="components", value=unknown, allowed=list(known))
    names = only or list(known)
    present = [name for name in names if known[name]["state"] == "present"]
    # The objects that all components need stay while any component exists; only state absent removes the Namespace.
    shared = [objects.SHARED] if present else []
    rendered = {name: render(name, cluster) for name in [*shared, *present]}
    whole = not only
    return objects.wanted(rendered), [*names, *([objects.SHARED] if shared or whole else [])]


def check_plan(cluster: t.Mapping[str, t.Any]) -> None:
    """Raises InputError if cluster is not the plan of a cluster."""
    lacking = [key for key in ("namespace", "common", "components") if key not in cluster]
    if lacking:
        raise InputError(f"It has no {', '.join(lacking)}, so it is not the plan of a cluster.",
                         "Set it to the result cluster of gpu_policy.", path="cluster")


def kept_daemon_sets(cluster: t.Mapping[str, t.Any]) -> t.Collection[str]:
    """Names of DaemonSets that stay as they are although they are not wanted. cluster: the plan of the cluster."""
    return t.cast("t.Collection[str]", (cluster["components"].get("driver") or {}).get("kept") or ())


def present(client: Client, wanted: t.Sequence[Wanted], components: t.Collection[str] | None, check: bool,
            guard: t.Callable[[Client], None] = lambda client: None, level: str = LEVELS[-1],
            labels: bool | None = None, kept: t.Collection[str] = (), terms: node_by_node.Terms | None = None,
            tell: removal.Tell = lambda line: None, unfinished: t.Collection[str] | None = None,
            leaving: t.Mapping[str, t.Collection[str]] = MappingProxyType({})) -> Result:
    """Creates and updates the wanted objects and deletes all other objects of the components (None: of all
    components). Returns the result.

    level: gpu_disruption; the changes that it forbids are not made, and are in C(pending), with a warning.
    terms, tell: as in L(node_by_node.NodeByNode), which ends the driver and MPS pods that are no longer wanted. Nodes
    that are skipped are in C(pending), too, with the reason. While the maintenance windows are closed, the changes that
    would end pods wait, as at the level never; Nodes that are not begun until the windows close wait, too.
    labels: True if the plan requires that Nodes are labelled after this task; False if only new DaemonSets, which
    select Nodes by labels, can require it; None if the run never labels Nodes.
    kept: the result of L(kept_daemon_sets).
    unfinished: Nodes on which an earlier run has not finished the work on these pods, as read for the plan; None if
    they are not known.
    leaving: maps a component to the Nodes that lose the label by which its pods run. If the component is one of
    components, these pods end Node by Node; C(ended_on) in the result lists the Nodes on which they have ended.
    guard: raises an error if this cluster must not be changed. It is called only if there are changes.
    If nothing was changed, the result has C(workloads), with the numbers of pods of the DaemonSets and Deployments.
    """
    late = terms.closed() if terms else ""
    begins = LEVELS[0] if late else level
    with rights.named(client, _space(wanted)):
        there = live.read(client, wanted)
    try:
        changes = plan(client, wanted, there, components, kept=kept)
    except ClusterError:
        guard(client)  # the objects that are in the way may belong to a GPU Operator
        raise
    with rights.named(client, _space(wanted)):
        changes, found = _ended(client, wanted, there, components, kept, changes, begins, unfinished,
                                leaving)
        found, problems = _still_ending(client, found)
    changes, pending = _held(client, changes, found, level, there, late)
    writes = any(change.writes for change in changes)
    if writes or found.pods:
        guard(client)
    new = any(change.action == "create" and change.kind.kind == "DaemonSet" for change in changes)
    nodes = _nodes(client, found, begins, terms, tell)
    rights.require(client, changes, [*([rights.LABEL_NODES] if labels or (new and labels is not None) else []),
                                     *nodes.needed_rights()])
    (steps, notes), moves = nodes.preview(), nodes.moves
    notes += _waiting(pending, level, late)
    if check:
        apply.rehearse(client, changes, there)
        # In check mode these are warnings only, because a pod that is ending may have ended when the run begins.
        failed, notes, problems = nodes.foreseen(), [*notes, *problems], []
    else:
        failed = _execute(client, changes, nodes, tell)
        pending += [Step("delete", f"driver and MPS pods of {name}", needs=NEEDS).pending(why)
                    for name, why in sorted(nodes.late.items())]
    seen = [] if writes else [asdict(workload(item)) for item in there.values()
                              if item["kind"] in ("DaemonSet", "Deployment")
                              and COMPONENT in (item["metadata"].get("labels") or {})]
    return Outcome(changes, steps, moves, pending, failed, problems, notes).as_dict(
        client.server, workloads=seen, ended_on=_ended_on(nodes, leaving, components, begins))


def _ended(client: Client, wanted: t.Sequence[Wanted], there: t.Mapping[objects.Key, objects.Object],
           components: t.Collection[str] | None, kept: t.Collection[str], changes: t.Sequence[Change], level: str,
           unfinished: t.Collection[str] | None = None,
           leaving: t.Mapping[str, t.Collection[str]] = MappingProxyType({})
           ) -> tuple[list[Change], node_by_node.Found]:
    """(the changes, the pods that end Node by Node).

    The pods that end are driver and MPS pods of ours if no driver or no MPS daemon is wanted any more, pods that other
    pods replace, and pods on Nodes that lose their label (leaving, as for L(present)). The second value also has the
    Nodes that an earlier run has left out of service. kept: the result of L(kept_daemon_sets); these DaemonSets serve
    their Nodes although they are not wanted. In a converged cluster, Nodes and pods are not read again: unfinished (as
    for L(present)) and the live objects show that there is no such pod or Node.
    """
    served = {one.component for one in wanted if pending_changes.serves_gpu_clients(one.manifest)}
    served |= {DRIVER} if kept else set()
    asked = [name for name in node_by_node.LABELS if name in (components or [name])]
    ending, over = [name for name in asked if name not in served], served.intersection(asked)
    sets = [one.manifest for one in wanted
            if one.component in over and pending_changes.serves_gpu_clients(one.manifest)]
    going: t.Collection[str] = ()
    stuck = ""
    if allows(level, NEEDS):
        changes, going, stuck = successors.split(changes, there.values(), lambda: client.list("v1", "Node"), over)
    new = any(one.action == "create" and one.manifest in sets for one in changes)
    ours = [one for one in there.values() if objects.is_ours(one)]
    spaces = {one["metadata"]["name"] if one["kind"] == "Namespace" else one["metadata"].get("namespace")
              for one in ours} - {None}
    labels = {(component, name) for component, names in leaving.items() if component in asked for name in names}
    if (unfinished is not None and not (unfinished or labels or going or new) and len(spaces) < 2
            and not any(objects.component_of(one) in ending for one in ours)):
        return list(changes), node_by_node.Found(stuck=stuck)
    found = node_by_node.find(client, there, ending, over, leaving=labels)
    if over and (going or new or any(node_by_node.is_unfinished(one, over) for one in found.nodes.values())):
        found = node_by_node.find(client, there, ending, over, going, sets, labels, allows(level, NEEDS))
    return list(changes), replace(found, stuck=stuck)


def _held(client: Client, changes: t.Sequence[Change], found: node_by_node.Found, level: str,
          there: t.Mapping[objects.Key, objects.Object], late: str = "") -> tuple[list[Change], list[PendingStep]]:
    """The result of L(pending_changes.hold). If pods may end Node by Node, their DaemonSets are deleted first, without
    the pods. late: as for hold."""
    sets = found.search.sets if allows(level, NEEDS) and not (found.stuck or late) else ()
    changes = [replace(one, orphans=True) if one.action == "delete" and one.live
               and one.live["metadata"]["uid"] in sets else one for one in changes]
    return pending_changes.hold(sorted(changes, key=lambda one: not one.orphans), level,
                                lambda: client.list("v1", "Node"), orphans=found.orphans, why=found.stuck,
                                there=there.values(), late=late)


def _ended_on(nodes: node_by_node.NodeByNode, leaving: t.Mapping[str, t.Collection[str]],
              components: t.Collection[str] | None, level: str) -> list[str]:
    """The Nodes that may lose their labels. Nodes that need them for another component are left out."""
    stay = {name for component, names in leaving.items() if component not in (components or leaving) for name in names}
    return [name for name in nodes.ended_on() if name not in stay] if allows(level, NEEDS) else []


def _still_ending(client: Client, found: node_by_node.Found) -> tuple[node_by_node.Found, list[str]]:
    """Finds the Nodes that a removal has left out of service and on which a driver or MPS pod is still ending. Returns
    (found without these Nodes, a problem for each of them)."""
    left, problems = [], []
    for name, pods in found.pods.items():
        ending = () if pods or not maintenance.unfinished(found.nodes[name]) else node_by_node.ending_on(client, name)
        if ending:
            left.append(name)
            problems.append(f"Node {name} is out of service since a removal, because {objects.label_of(ending[0])} "
                            "has not ended. Check the pod and its log (kubectl describe pod). When it has ended, the "
                            "next run puts the Node back into service.")
    return node_by_node.without(found, left), problems


def _nodes(client: Client, found: node_by_node.Found, level: str, terms: node_by_node.Terms | None,
           tell: removal.Tell, removes: bool = False) -> node_by_node.NodeByNode:
    """The object that ends the pods in found. If the level forbids this, it only puts Nodes back into service; in a
    removal (removes), it does nothing."""
    terms = replace(terms or node_by_node.Terms(Holder.of_run()), level=level)
    if found.stuck and not removes:
        found = node_by_node.only_leaving(found)
    if not allows(level, NEEDS):
        found = node_by_node.Found() if removes else node_by_node.only_to_put_back(found)
    return node_by_node.NodeByNode(client, found, terms, tell)


def _execute(client: Client, changes: t.Sequence[Change], nodes: node_by_node.NodeByNode, tell: removal.Tell
             ) -> ClusterError | None:
    """Executes the changes. Returns the error that names the Nodes that were skipped or have failed.

    If MPS daemons end, the DaemonSet of the device plugin is changed first, and each of its pods is replaced when its
    Node is put back into service. If all pods were replaced at once, they would offer GPUs that MPS clients still use;
    if they were replaced after the last Node, the other Nodes would offer no GPU until then. If new pods replace former
    pods, the new DaemonSets are created before the former pods end, and the new pods are kept away from each Node until
    its former pod has ended. Other operands are also changed before that, so that the operands of a former namespace do
    not run beside the new operands during this work.
    """
    ends_mps, moves = nodes.ends_mps, nodes.moves
    kept = {DRIVER, objects.SHARED, *([node_by_node.MPS] if ends_mps else [])}
    first = [one for one in changes if one.writes and not one.orphans and (
        moves and (one.action not in ("delete", "release") or one.component not in kept or one.kind.kind == "DaemonSet")
        or ends_mps and one.component == node_by_node.MPS and one.action not in ("delete", "release", "replace"))]
    rest, failed = removal.end_pods(client, changes, (), _PATIENCE, tell, nodes,
                                    [_by_nodes(one) for one in first] if ends_mps else first)
    late = [one for one in rest if one not in first or (ends_mps and _rolls(one))]
    apply.execute(client, [one for one in late if not (nodes.ends_mps and _rolls(one))])
    return failed


def _rolls(change: Change) -> bool:
    """Whether a change replaces existing pods of the device plugin."""
    return bool(change.component == node_by_node.MPS and change.live and change.kind.kind == "DaemonSet"
                and change.action not in ("delete", "release", "replace"))


def _by_nodes(change: Change) -> Change:
    """The same change, but existing pods of the device plugin stay until their Node is taken out of service. It omits
    our annotation APPLIED, so that the next run changes the DaemonSet again."""
    if not _rolls(change):
        return change
    manifest = copy.deepcopy(t.cast(objects.Object, change.manifest))
    manifest["spec"]["updateStrategy"] = {"type": "OnDelete"}
    del manifest["metadata"]["annotations"][objects.APPLIED]
    return replace(change, manifest=manifest)


def _waiting(pending: t.Sequence[PendingStep], level: str, late: str = "") -> list[str]:
    """A sentence about the changes that L(pending_changes.hold) has held back, and the level that they need; empty if
    nothing is pending. late: as for hold; no other level would help."""
    if not pending:
        return []
    first, more = pending[0], f" and {len(pending) - 1} more" if len(pending) > 1 else ""
    needs = sorted({one.needs for one in pending}, key=LEVELS.index)
    # The highest level allows all others, too. Changes that no level allows need another way.
    advice = dict.fromkeys([needs[-1], *(one for one in needs if allows(level, one))])
    if late and allows(level, needs[-1]):
        return [f"Pending: {first.id}{more}; {first.pending_reason}."]
    return [f"Pending: {first.id}{more}; {first.pending_reason}. "
            f"{' '.join(pending_changes.advice(level, one) for one in advice)}"]


def _space(wanted: t.Sequence[Wanted]) -> str:
    """The namespace of these objects; empty if they are in no namespace or in several."""
    found = {str(one.manifest["metadata"]["namespace"]) for one in wanted if one.kind.namespaced}
    return found.pop() if len(found) == 1 else ""


def adopted(client: Client, wanted: t.Sequence[Wanted], components: t.Collection[str], check: bool,
            level: str = LEVELS[-1], kept: t.Collection[str] = (), terms: node_by_node.Terms | None = None,
            tell: removal.Tell = lambda line: None,
            leaving: t.Mapping[str, t.Collection[str]] = MappingProxyType({})) -> Result:
    """Like L(present), in a cluster with a GPU Operator. The operator is stopped, and its objects that are wanted
    become ours.

    All writes are tried on the server, as a dry run, before the operator is stopped. C(warnings) in the result says
    what the user must know about the tool that installed the operator. kept, terms, tell, leaving: as for L(present).
    Raises ClusterError if level forbids adopting one of the operator's objects.
    """
    def planned() -> tuple[list[Change], node_by_node.Found]:
        changes = plan(client, wanted, there, components, operator.owns, kept)
        return _ended(client, wanted, there, components, kept, changes, level, leaving=leaving)

    with rights.named(client, _space(wanted)):
        found = operator.read(client)
        there = live.read(client, wanted)
    adopt.check(found, wanted, there)
    with rights.named(client, _space(wanted)):
        changes, pods = planned()
        pods, problems = _still_ending(client, pods)
    changes, pending = _held(client, changes, pods, level, there)
    adopt.refuse(pending, level)
    nodes = _nodes(client, pods, level, terms, tell)
    changes = [*operator.stop(found), *changes]
    rights.require(client, changes, [rights.LABEL_NODES, *nodes.needed_rights()])
    (steps, notes), moves = nodes.preview(), nodes.moves
    apply.rehearse(client, changes, there)
    failed = nodes.foreseen()
    if check:
        notes, problems = [*notes, *problems], []
    else:
        apply.execute(client, [change for change in changes if change.action == "stop"])
        adopt.wait_stopped(client, found)
        # Read again, because the operator may have written objects until it ended.
        there = live.read(client, wanted)
        left, pods = planned()
        pods, problems = _still_ending(client, pods)
        left, pending = _held(client, left, pods, level, there)
        nodes = _nodes(client, pods, level, terms, tell)
        failed = _execute(client, left, nodes, tell)
    notes = [*adopt.notes(found, changes, there), *notes, *_waiting(pending, level)]
    return Outcome(changes, steps, moves, pending, failed, problems, notes).as_dict(
        client.server, workloads=[], ended_on=_ended_on(nodes, leaving, components, level))


def handed_back(client: Client, policy: objects.Object, check: bool) -> Result:
    """Gives all our objects to an installed GPU Operator. C(operator) in the result: whether one is installed."""
    with rights.named(client, everything=True):
        changes = hand_back.plan(client, dict(policy), Holder.of_run())
    rights.require(client, changes or [])
    if not check:
        hand_back.execute(client, changes or [])
    return Outcome(changes or []).as_dict(client.server, operator=changes is not None)


def absent(client: Client, components: t.Collection[str] | None, timeout: float, check: bool,
           tell: removal.Tell = lambda line: None, terms: node_by_node.Terms | None = None) -> Result:
    """Removes our objects of these components (None: of all components, and the Namespace), and waits until they are
    gone.

    timeout: the wait ends if no object has disappeared for this many seconds; tell: called with a line about the
    remaining objects; terms: the allowed disruption (by default the highest level), and how Nodes are taken out of
    service before their driver and MPS pods end.
    """
    terms = terms or node_by_node.Terms(Holder.of_run())
    with rights.named(client, everything=True):
        there = live.read(client, [], everything=True)
        found = node_by_node.find(client, there, components)
    # After a removal of all components, our labels are removed from the Nodes. If the permission for that is missing,
    # the removal must fail now, before the operands are gone.
    labelled = components is None and any(
        deploy_labels.ANNOTATION in (one["metadata"].get("annotations") or {}) for one in found.nodes.values())
    by_nodes = allows(terms.level, NEEDS)
    planned = removal.plan(client, there, components, node_by_node.uids_without_owner(found), by_nodes)
    changes, pending = pending_changes.hold(planned, terms.level, removal=True, orphans=found.orphans,
                                            there=there.values())
    nodes = _nodes(client, found, terms.level, terms, tell, removes=True)
    rights.require(client, changes, [*([rights.LABEL_NODES] if labelled and not pending else []),
                                     *nodes.needed_rights()])
    steps, staying = nodes.preview()
    try:
        if not check:
            changes = removal.execute(client, changes, removal.going(there, components), timeout, tell, nodes)
    except ClusterError as error:
        error.details["pending"] = [step.as_dict() for step in pending]
        raise
    notes = [*_waiting(pending, terms.level), *staying, *_of_other_controllers(there, components)]
    failed = nodes.foreseen() if check else None
    return Outcome(changes, steps, pending=pending, failed=failed, notes=notes).as_dict(client.server)


def _of_other_controllers(there: t.Mapping[objects.Key, objects.Object],
                          components: t.Collection[str] | None) -> list[str]:
    """A sentence for each of our objects that a removal leaves because another object is now its controller."""
    found = []
    for have in there.values():
        owner = objects.controller_of(have)
        if owner and objects.is_ours(have) and (components is None or objects.component_of(have) in components):
            found.append(f"{objects.label_of(have)} stays: {owner['kind']} {owner['name']} is its controller by now "
                         "(metadata.ownerReferences). Delete it by hand if nothing needs it.")
    return found
