# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU Operator of a cluster: how it is detected, whether it can be stopped, how it is stopped and started. PRIVATE.

Source: the chart, the bundle and the controllers of GPU Operator 26.7 (github.com/NVIDIA/gpu-operator).
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object

# The annotation of a stopped operator's Deployment that has its former number of replicas.
REPLICAS = "gpuops.nvidia/replicas"
# The operator updates a DaemonSet only if the manifest that it renders has another hash than this annotation.
HASH = "nvidia.com/last-applied-hash"
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"

_NAMED = 12  # the most Nodes that a message names
_NAME = "gpu-operator"  # the Deployment's name, and the value of its label app in the chart
# The states of a driver upgrade in which the operator has not started to change a Node, or has finished.
_AT_REST = ("", "upgrade-required", "upgrade-done", "upgrade-failed")
# Maps a label or annotation of a Deployment to the tool that would scale it up again, and to the remedy.
_KEEPERS = {
    "olm.owner": ("the Operator Lifecycle Manager", "Delete its Subscription, then its ClusterServiceVersion {value}: "
                  "that removes the operator and leaves the ClusterPolicy, its definition and the operands."),
    "helm.toolkit.fluxcd.io/name": ("Flux (HelmRelease {value})", "Suspend it: flux suspend helmrelease {value}."),
    "kustomize.toolkit.fluxcd.io/name": ("Flux (Kustomization {value})", "Take the operator out of it."),
    "argocd.argoproj.io/tracking-id": ("Argo CD ({value})", "Take the operator out of this application, or switch its "
                                       "automatic sync off."),
    "argocd.argoproj.io/instance": ("Argo CD ({value})", "Take the operator out of this application, or switch its "
                                    "automatic sync off."),
}


@dataclass(frozen=True)
class Operator:
    """The objects of an operator. policies: ClusterPolicies; clusters: GPUClusters; deployments: those of the operator
    itself; nodes: all Nodes. Only the Deployments are complete, the other objects have only metadata."""

    policies: t.Sequence[Object] = field(default=())
    clusters: t.Sequence[Object] = field(default=())
    deployments: t.Sequence[Object] = field(default=())
    nodes: t.Sequence[Object] = field(default=())

    @property
    def running(self) -> t.List[Object]:
        """The Deployments with at least one replica."""
        return [one for one in self.deployments if replicas(one) > 0]


def read(client: Client) -> Operator:
    """Reads the objects of an operator. Without a ClusterPolicy this is one request, and the result is empty."""
    policies = client.list("nvidia.com/v1", "ClusterPolicy", metadata_only=True)
    if not policies:
        return Operator()
    return Operator(policies, client.list("nvidia.com/v1alpha1", "GPUCluster", metadata_only=True),
                    deployments(client), client.list("v1", "Node", metadata_only=True))


def deployments(client: Client) -> t.List[Object]:
    """The Deployments of the operator itself: with the label of the chart, or with the name in chart and bundle."""
    found = [*client.list("apps/v1", "Deployment", label_selector=f"app={_NAME}"),
             *client.list("apps/v1", "Deployment", field_selector=f"metadata.name={_NAME}")]
    return list({one["metadata"]["uid"]: one for one in found}.values())


def version(client: Client) -> str:
    """The release of the operator, such as C(26.7.0), from the label that the chart sets; empty without the label."""
    said = [(one["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "") for one in deployments(client)]
    return next((one.lstrip("v") for one in said if one), "")


def replicas(deployment: Object) -> int:
    """The desired number of replicas of a Deployment."""
    return int((deployment.get("spec") or {}).get("replicas", 1))


def owns(live: Live) -> bool:
    """Whether the owner of an object is a ClusterPolicy or NVIDIADriver."""
    return any(objects.is_operators(owner) for owner in live["metadata"].get("ownerReferences") or [])


def other_owners(live: Object) -> t.List[Object]:
    """The owner references of an object, without those to resources of the GPU Operator."""
    return [owner for owner in live["metadata"].get("ownerReferences") or [] if not objects.is_operators(owner)]


def refuse(found: Operator) -> None:
    """Raises ClusterError if this operator cannot be stopped now, or if a tool would start it again."""
    for one in found.clusters:
        name = one["metadata"]["name"]
        raise ClusterError(
            f"The cluster has the GPUCluster {name}. Its finalizer needs the operator, so the operator cannot be "
            "stopped.",
            f"Delete it while the operator runs (kubectl delete gpucluster {name}), then run again. Nothing has been "
            "changed.", verb="plan", object=f"GPUCluster {name}", reason="Owned")
    for one in found.deployments:
        metadata = one["metadata"]
        marks = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
        for key, (who, remedy) in _KEEPERS.items():
            if key in marks:
                label = f"Deployment {metadata['namespace']}/{metadata['name']}"
                raise ClusterError(
                    f"{label} is managed by {who.format(value=marks[key])}, which would start it again.",
                    f"{remedy.format(value=marks[key])} Then run again. Nothing has been changed.", verb="plan",
                    object=label, reason="Owned")
    busy = {one["metadata"]["name"]: state for one in found.nodes
            if (state := (one["metadata"].get("labels") or {}).get(UPGRADE_STATE, "")) not in _AT_REST}
    if busy and found.running:
        # The label of one Node is enough to refuse, even if the Node may have forged it: a Node stays cordoned if the
        # operator is stopped during the upgrade, and it is cheaper to wait or to remove a label.
        name = next(iter(busy))
        told = some_of([f"{one} ({state})" for one, state in busy.items()], _NAMED)
        raise ClusterError(
            f"The operator is upgrading the driver of {counted(len(busy), 'Node')}: {told}. If it were stopped now, "
            f"they would stay cordoned.", f"Wait until their label {UPGRADE_STATE} is upgrade-done, or set "
            "driver.upgradePolicy.autoUpgrade to false in the ClusterPolicy and uncordon them. If no upgrade runs on a "
            f"Node, remove its label: kubectl label node {name} {UPGRADE_STATE}-. If the label comes back, the Node "
            "itself may write it: remove such a Node from the cluster. Nothing has been changed.", verb="plan",
            object=f"Node {name}", reason="Busy", nodes=busy)


def stop(found: Operator) -> t.List[Change]:
    """The changes that scale the operator's Deployments to 0. An annotation keeps the former number of replicas."""
    return [_scaled("stop", one, 0, str(replicas(one))) for one in found.running]


def start(found: t.Sequence[Object]) -> t.List[Change]:
    """The changes that scale the Deployments that L(stop) has stopped to their former number of replicas."""
    kept = {id(one): (one["metadata"].get("annotations") or {}).get(REPLICAS) for one in found}
    return [_scaled("start", one, max(1, replicas(one), _number(kept[id(one)])), None) for one in found
            if kept[id(one)] is not None or not replicas(one)]


def scale(client: Client, change: Change) -> None:
    """Applies a change of L(stop) or L(start)."""
    patch = t.cast(Object, change.manifest)
    metadata = patch["metadata"]
    client.merge_patch("apps/v1", "Deployment", metadata["name"], metadata["namespace"],
                       {"metadata": {"annotations": metadata["annotations"]}, "spec": patch["spec"]})


def notes(found: Operator) -> t.List[str]:
    """Notes about the Helm release that installed the operator."""
    said = []
    for one in found.deployments:
        annotations = one["metadata"].get("annotations") or {}
        release, space = (annotations.get(f"meta.helm.sh/release-{part}") for part in ("name", "namespace"))
        if release:
            said.append(
                f"The Helm release {release} in namespace {space} still has the operator. Do not upgrade this release: "
                f"that would start the operator again. 'helm uninstall {release} -n {space} --no-hooks' deletes the "
                "operator, its ClusterPolicy with the objects that it still owns, and Node Feature Discovery if it is "
                "part of the release (the next run of site.yml delivers it again). The operands and the "
                "CustomResourceDefinitions stay. Without --no-hooks the labels of Node Feature Discovery are removed "
                "from all Nodes, and with operator.cleanupCRD the CustomResourceDefinitions are deleted, too.")
    return said


def _scaled(action: str, live: Object, count: int, mark: t.Optional[str]) -> Change:
    """A change whose manifest is a merge patch. live has the same fields only, so that the difference is short.

    mark: the value of the annotation REPLICAS, None to remove it.
    """
    metadata = live["metadata"]
    name = {"name": metadata["name"], "namespace": metadata["namespace"]}
    head = {"apiVersion": "apps/v1", "kind": "Deployment"}
    before = {key: value for key, value in (metadata.get("annotations") or {}).items() if key == REPLICAS}
    return Change(action, kinds.find("apps/v1", "Deployment"), "",
                  {**head, "metadata": {**name, "annotations": {REPLICAS: mark}}, "spec": {"replicas": count}},
                  {**head, "metadata": {**name, "annotations": before}, "spec": {
                      "replicas": replicas(live), "selector": live["spec"]["selector"]}},
                  (f"spec.replicas {replicas(live)} to {count}",))


def _number(text: t.Optional[str]) -> int:
    return int(text) if text and re.fullmatch("[0-9]{1,9}", text) else 0
