# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which changes wait for a higher gpu_disruption, because they would end or start pods. Pure. PRIVATE.

When a driver's pod ends, the driver is unloaded; when the MPS daemon ends, its clients end too. Other operands can end
without harm to GPU clients. When a MIG manager starts, it applies the layout that its Node requests, which destroys
other instances. When Node Feature Discovery is deleted, its master may still process the loss of a Node's features, and
remove the labels by which driver pods run there.
"""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    LEVELS,
    PendingStep,
    Step,
    allows,
    level_too_low,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG, NFD
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untolerated_taints import untolerated
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import (
    MPS_DAEMON,
    SHARED,
    Object,
    component_of,
    label_of,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import required_terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import compare
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.plan import WORKLOADS, keeps_pods

NEEDS = "drain"
DRIVER = "driver"
_MIG_MANAGER, _MIG_NEEDS = "mig_manager", "idle"
_NFD = "nfd"
# Every driver pod, ours or a GPU Operator's, has this label, even if it has lost other labels of its DaemonSet.
DRIVER_LABEL: t.Mapping[str, str] = {"app.kubernetes.io/component": "nvidia-driver"}
_PODS = ("currentNumberScheduled", "numberMisscheduled")
# L(node_by_node) finds these pods by the label by which a new DaemonSet adopts them, so it cannot keep them apart.
_STAYS = "a run cannot end these MPS daemons Node by Node"


def hold(changes: t.Sequence[Change], level: str, nodes: t.Callable[[], t.Sequence[Object]] = tuple,
         removal: bool = False, orphans: t.Sequence[tuple[str, Object]] = (), why: str = "",
         there: t.Iterable[Object] = (), late: str = "") -> tuple[list[Change], list[PendingStep]]:
    """(the allowed changes, the pending changes).

    level: gpu_disruption; nodes: a function that returns all Nodes, called at most once, and only if a selector
    changes, a toleration is removed or the MIG manager moves; removal: whether the changes are a removal; orphans:
    C((component, pod)) for pods that are still to be ended after a removal at a higher level has deleted their
    DaemonSet; why: the reason that forbids ending pods at every level; there: the live objects, including unchanged
    objects; late: why a change that the level allows must wait for a maintenance window, empty if it need not.

    While a change of a driver's DaemonSet is pending, all other changes of the driver are pending, too, because a
    driver that is changed in part does not work. The same holds for the MIG manager; for Node Feature Discovery; for
    the component of the MPS daemon if a new MPS daemon replaces the former one, as they must not run side by side; and
    for each component in a removal. In a removal the Namespace is pending, too, so that pods that stay can start again.
    A change by which the DaemonSet of the MPS daemon leaves Nodes is pending at every level.
    """
    nodes = functools.lru_cache(maxsize=None)(nodes)
    if not why:
        why = late if allows(level, NEEDS) else level_too_low(level, NEEDS)
    ending = {one.id: reason for one in changes if (why or _stays_mps(one)) and (reason := ends(one, nodes))}
    ending.update(_takes_labels(changes, there) if why else {})
    starts = late if allows(level, _MIG_NEEDS) else level_too_low(level, _MIG_NEEDS)
    ending.update(_restarts(changes, nodes) if starts else {})
    whole = {DRIVER, _MIG_MANAGER, _NFD, *(one.component for one in changes if one.action == "create"
                                           and serves_gpu_clients(t.cast(Object, one.manifest)))}
    first = {one.component: one.id for one in reversed(changes)
             if one.id in ending and (removal or one.component in whole)}
    pending: list[PendingStep] = []
    left: list[Change] = []
    for component, pod in orphans if why else ():
        pending.append(Step("delete", label_of(pod), needs=NEEDS).pending(
            f"{why}: its DaemonSet is gone, and GPU clients may need it"))
        if removal or component in whole:
            first.setdefault(component, pending[-1].id)
    if removal and first:
        first.setdefault(SHARED, next((one.id for one in changes if one.id in ending), next(iter(first.values()))))
    for one in changes:
        reason = ending.get(one.id, "")
        if not reason and one.component in first and one.writes:
            reason = f"it follows '{first[one.component]}'"
        if reason:
            needs, because = (_MIG_NEEDS, starts) if one.component == _MIG_MANAGER else (NEEDS, why)
            if one.id in ending and _stays_mps(one):
                needs, because = LEVELS[0], _STAYS
            step = Step(one.action, one.label, ", ".join(one.reasons), needs=needs)
            pending.append(step.pending(f"{because}: {reason}"))
        else:
            left.append(one)
    return left, pending


def advice(level: str, needs: str) -> str:
    """What the user can do about changes that are pending at this level. needs: the level that allows them; if it is
    this level or a lower one, they are pending for another reason."""
    if allows(level, needs):
        return ("Drain the Nodes of these pods, set nvidia.com/gpu.deploy.driver=false on each (for the MPS daemon: "
                "nvidia.com/gpu.deploy.device-plugin=false), and run again.")
    by_hand = ", or drain and switch the Nodes one by one" if needs == NEEDS else ""
    return f"Set gpu_disruption: {needs} in a maintenance window{by_hand}."


def serves_gpu_clients(live: Object) -> bool:
    """Whether GPU clients need the pods of a live object: the DaemonSets of a driver and of the MPS daemon."""
    if live["kind"] != "DaemonSet":
        return False
    labels = live["spec"]["template"].get("metadata", {}).get("labels") or {}
    return (component_of(live) == DRIVER or DRIVER_LABEL.items() <= labels.items()
            or live["metadata"]["name"] == MPS_DAEMON)


def _stays_mps(change: Change) -> bool:
    """Whether a change is about a DaemonSet of the MPS daemon that stays."""
    return change.action != "delete" and change.live is not None and change.live["metadata"]["name"] == MPS_DAEMON


def pods_of(live: Object) -> int:
    """The number of pods of a DaemonSet."""
    return sum((live.get("status") or {}).get(name) or 0 for name in _PODS)


def ends(change: Change, nodes: t.Callable[[], t.Sequence[Object]]) -> str:
    """Why a change of a DaemonSet would end running pods; empty if it would not."""
    live = change.live
    if not change.writes or live is None or not serves_gpu_clients(live):
        return ""
    count = pods_of(live)
    if not count:
        return ""
    if change.action == "delete" or (change.action == "replace" and not keeps_pods(change)):
        return f"all {count} pods of it would end"
    moved = _moved(t.cast(Object, change.manifest), live, nodes)
    return f"its pods would end at once on {moved}" if moved else ""


def _restarts(changes: t.Sequence[Change], nodes: t.Callable[[], t.Sequence[Object]]) -> dict[str, str]:
    """Maps the creation of a MIG manager's DaemonSet that replaces a DaemonSet with pods, for example in another
    namespace, to the reason why it waits: the new pods would apply layouts."""
    sets = [one for one in changes if one.component == _MIG_MANAGER and one.kind.kind == "DaemonSet"]
    former = [one for one in sets if one.action == "delete" and pods_of(t.cast(Object, one.live))]
    found = {}
    for one in sets if former else ():
        if one.action == "create":
            chosen = t.cast(Object, one.manifest)["spec"]["template"]["spec"]["nodeSelector"]
            asking = [node for node in nodes()
                      if chosen.items() <= _labels(node).items() and _labels(node).get(MIG_CONFIG)]
            if asking:
                found[one.id] = f"its new pods would apply the MIG layouts of {_some(asking)}"
    return found


def _takes_labels(changes: t.Sequence[Change], there: t.Iterable[Object]) -> dict[str, str]:
    """Maps the deletion of a workload of Node Feature Discovery to the reason why it waits: GPU clients need the pods
    of a DaemonSet that selects its Nodes by labels of Node Feature Discovery, now or after its change."""
    pairs = [*((one, one) for one in there),
             *((one.live, one.manifest) for one in changes if one.live and one.manifest)]
    needing = next((label_of(live) for live, wanted in pairs
                    if serves_gpu_clients(live) and pods_of(live) and _selects_features(wanted)), "")
    return {one.id: f"{needing} selects its Nodes by labels that Node Feature Discovery maintains" for one in changes
            if needing and one.component == _NFD and one.action == "delete" and one.kind.kind in WORKLOADS}


def _selects_features(daemon_set: Object) -> bool:
    """Whether a DaemonSet selects its Nodes by labels of Node Feature Discovery."""
    spec = daemon_set["spec"]["template"]["spec"]
    keys = {*(spec.get("nodeSelector") or ()),
            *(one["key"] for term in required_terms(spec) or () for one in term.get("matchExpressions") or ())}
    return any(key.startswith(NFD) for key in keys)


def _some(nodes: t.Sequence[Object]) -> str:
    return f"{len(nodes)} Nodes, such as {nodes[0]['metadata']['name']}"


def _moved(manifest: Object, live: Object, nodes: t.Callable[[], t.Sequence[Object]]) -> str:
    """A text that names the Nodes that a DaemonSet would no longer select; empty if there are none. The controller of
    DaemonSets ends the pods there, even with the update strategy OnDelete."""
    want, have = (one["spec"]["template"]["spec"] for one in (manifest, live))
    kept = (want.get("affinity") or {}).get("nodeAffinity") or {}
    former = (have.get("affinity") or {}).get("nodeAffinity") or {}
    if compare.differences(kept, former, "") or compare.differences(former, kept, ""):
        return "the Nodes that its new affinity leaves out"
    new, old = want.get("nodeSelector") or {}, have.get("nodeSelector") or {}
    tolerated, before = (one.get("tolerations") or [] for one in (want, have))
    if new.items() <= old.items() and all(one in tolerated for one in before):
        return ""
    left = [one for one in nodes() if old.items() <= _labels(one).items()
            and (not new.items() <= _labels(one).items() or _evicts(one, tolerated, before))]
    return _some(left) if left else ""


def _evicts(node: Object, tolerated: t.Sequence[Object], before: t.Sequence[Object]) -> bool:
    """Whether a Node has a taint that ends pods and that only the former tolerations match."""
    taints = [one for one in (node.get("spec") or {}).get("taints") or () if one["effect"] == "NoExecute"]
    kept = untolerated(taints, before)
    return any(one not in kept for one in untolerated(taints, tolerated))


def _labels(node: Object) -> t.Mapping[str, str]:
    return node["metadata"].get("labels") or {}
