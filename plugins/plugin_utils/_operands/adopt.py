# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adopts the objects of a GPU Operator. PRIVATE to the collection.

The operator is stopped first. Then each wanted object loses its owner and becomes ours in one request. If the run is
killed, each object therefore still has exactly one owner, the operator or us, and the next run continues. The
ClusterPolicy and its CustomResourceDefinition stay as they are: the next run can read the policy from them, and
hand_back needs them. Objects that are not wanted, such as the operator's own Service, stay with the ClusterPolicy.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import PendingStep
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import (
    Key,
    Object,
    Wanted,
    label_of,
    label_selector,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.operator import Operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import apply
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.pending_changes import advice
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.plan import WORKLOADS

# Seconds to wait until the pods of a stopped operator are gone; their grace period is 10.
_PATIENCE = 120.0


def check(found: Operator, wanted: t.Sequence[Wanted], live: t.Mapping[Key, Object]) -> None:
    """Raises ClusterError if these objects cannot be adopted, before anything is changed. Pure."""
    operator.refuse(found)
    own = {one["metadata"]["uid"] for one in found.deployments}
    mine = {one.key: one.manifest for one in wanted}
    fixed = [label_of(have) for key, have in live.items() if key in mine and key[1] in WORKLOADS
             and operator.owns(have) and have["spec"].get("selector") != mine[key]["spec"].get("selector")]
    left = [label_of(have) for key, have in live.items() if key not in mine and key[1] in WORKLOADS
            and operator.owns(have) and have["metadata"]["uid"] not in own]
    if fixed:
        raise ClusterError(
            "These objects of the operator have another selector than the plan, and a selector cannot be "
            f"changed: {', '.join(fixed)}.", _REMOVE, verb="plan", object=fixed[0], reason="Immutable", found=fixed)
    if left:
        raise ClusterError(
            f"The operator runs these objects, which are not in the plan: {', '.join(left)}.", "Enable them in the "
            f"policy and gpu_placement (gpu_policy: live is the operator's own policy), or: {_REMOVE}", verb="plan",
            object=left[0], reason="Foreign", found=left)


_REMOVE = ("Stop the operator (kubectl scale deployment gpu-operator --replicas 0) and delete them (kubectl delete "
           "daemonset), which ends their pods; first drain the Nodes of driver pods. Then run again. Nothing has been "
           "changed.")


def refuse(pending: t.Sequence[PendingStep], level: str) -> None:
    """Raises ClusterError if the adoption of one of the operator's objects is pending. Once the operator is stopped,
    nothing would maintain this object, and every run of site.yml would be refused. level: gpu_disruption."""
    first = next((one for one in pending if one.action == "adopt"), None)
    if first:
        raise ClusterError(f"{first.id}: {first.pending_reason}.",
                           f"{advice(level, first.needs)} Or change the policy to match the operator's DaemonSet. "
                           "Nothing has been changed.", verb="plan", object=first.target, reason="Pending")


def wait_stopped(client: Client, found: Operator) -> None:
    """Waits until the operator has no pods. Raises ClusterError after two minutes."""
    for one in found.deployments:
        metadata = one["metadata"]
        name, space = metadata["name"], metadata["namespace"]
        chosen = label_selector(one["spec"]["selector"].get("matchLabels", {}))

        def gone(name: str = name, space: str = space, selector: str = chosen) -> bool:
            # Until the controller has observed the new number of replicas, it may still replace a pod that ends.
            now = client.get("apps/v1", "Deployment", name, space)
            return (now is None or _scaled_down(now)) and not client.list("v1", "Pod", space, selector,
                                                                          metadata_only=True)

        if not apply.wait_until(gone, _PATIENCE):
            label = f"Deployment {space}/{name}"
            raise ClusterError(f"{label} still has pods after {_PATIENCE:.0f} s, so nothing was adopted.",
                               "Check these pods and their Node, then run again.", verb="stop", object=label,
                               reason="Timeout")


def _scaled_down(deployment: Object) -> bool:
    """Whether the controller of a Deployment has scaled it to 0 replicas."""
    status = deployment.get("status") or {}
    return (status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
            and not status.get("replicas"))


def notes(found: Operator, changes: t.Sequence[Change], live: t.Mapping[Key, Object]) -> t.List[str]:
    """Texts for the user about the adoption."""
    taken = {change.label for change in changes if change.action in ("adopt", "delete")}
    left = sorted({label_of(have) for have in live.values() if operator.owns(have)} - taken)
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    return operator.notes(found) + ([
        f"These objects still belong to ClusterPolicy {found.policies[0]['metadata']['name']} and are deleted with it: "
        f"{', '.join(left[:8])}{more}."] if left and found.policies else [])
