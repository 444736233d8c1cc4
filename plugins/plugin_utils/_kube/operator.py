# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detects the GPU Operator of a cluster, checks whether it can be stopped, and stops and starts it. PRIVATE.

Source: the chart, the bundle and the controllers of GPU Operator 26.7 (github.com/NVIDIA/gpu-operator).
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object

# The annotation of the Deployment of a stopped operator. Its value is the former number of replicas.
REPLICAS = "gpuops.nvidia/replicas"
# The operator updates a DaemonSet only if the hash of the rendered manifest differs from this annotation.
HASH = "nvidia.com/last-applied-hash"

_NAMED = 12  # the maximum number of Nodes that a message names
_NAME = "gpu-operator"  # the name of the Deployment, and in the chart the value of its label app
# The states of a driver upgrade in which the operator has not started to change a Node, or has finished.
_AT_REST = ("", upgrades.REQUIRED, upgrades.DONE, upgrades.FAILED)
# Maps a label or annotation of a Deployment to the tool that would scale the Deployment up again, and to the remedy.
_KEEPERS = {
    "olm.owner": ("the Operator Lifecycle Manager", "Delete the operator's Subscription, then its "
                  "ClusterServiceVersion {value}: this removes the operator and keeps the ClusterPolicy, its "
                  "CustomResourceDefinition and the operands."),
    "helm.toolkit.fluxcd.io/name": ("Flux (HelmRelease {value})", "Suspend the HelmRelease: flux suspend helmrelease "
                                    "{value}."),
    "kustomize.toolkit.fluxcd.io/name": ("Flux (Kustomization {value})", "Remove the operator from the Kustomization."),
    "argocd.argoproj.io/tracking-id": ("Argo CD ({value})", "Remove the operator from this application, or disable the "
                                       "automatic sync of the application."),
    "argocd.argoproj.io/instance": ("Argo CD ({value})", "Remove the operator from this application, or disable the "
                                    "automatic sync of the application."),
}


@dataclass(frozen=True)
class Operator:
    """The objects of an operator.

    policies: the ClusterPolicies; clusters: the GPUClusters; deployments: the Deployments of the operator itself;
    nodes: all Nodes. Only the Deployments are complete; the other objects have only their metadata.
    """

    policies: t.Sequence[Object] = field(default=())
    clusters: t.Sequence[Object] = field(default=())
    deployments: t.Sequence[Object] = field(default=())
    nodes: t.Sequence[Object] = field(default=())

    @property
    def running(self) -> t.List[Object]:
        """The Deployments with at least one replica."""
        return [deployment for deployment in self.deployments if replicas(deployment) > 0]


def read(client: Client) -> Operator:
    """Reads the objects of the operator; empty, after only one request, if the cluster has no ClusterPolicy."""
    policies = client.list("nvidia.com/v1", "ClusterPolicy", metadata_only=True)
    if not policies:
        return Operator()
    return Operator(policies, client.list("nvidia.com/v1alpha1", "GPUCluster", metadata_only=True),
                    deployments(client), client.list("v1", "Node", metadata_only=True))


def deployments(client: Client) -> t.List[Object]:
    """The Deployments of the operator itself: those with the label of the chart, or with the name gpu-operator."""
    candidates = [*client.list("apps/v1", "Deployment", label_selector=f"app={_NAME}"),
                  *client.list("apps/v1", "Deployment", field_selector=f"metadata.name={_NAME}")]
    return list({deployment["metadata"]["uid"]: deployment for deployment in candidates}.values())


def version(client: Client) -> str:
    """The release of the operator, such as C(26.7.0), from the label that the chart sets; empty without the label."""
    versions = [(deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")
                for deployment in deployments(client)]
    return next((text.lstrip("v") for text in versions if text), "")


def replicas(deployment: Object) -> int:
    """The desired number of replicas of a Deployment."""
    return int((deployment.get("spec") or {}).get("replicas", 1))


def owns(live: Live) -> bool:
    """Whether an owner reference of the object names a ClusterPolicy or NVIDIADriver."""
    return any(objects.is_operators(owner) for owner in live["metadata"].get("ownerReferences") or [])


def other_owners(live: Object) -> t.List[Object]:
    """The owner references of an object, without references to resources of the GPU Operator."""
    return [owner for owner in live["metadata"].get("ownerReferences") or [] if not objects.is_operators(owner)]


def refuse(found: Operator) -> None:
    """Raises ClusterError if the operator cannot be stopped now, or if another tool would start it again."""
    for gpu_cluster in found.clusters:
        name = gpu_cluster["metadata"]["name"]
        raise ClusterError(
            f"The operator cannot be stopped, because the finalizer of the GPUCluster {name} needs it.",
            f"Delete the GPUCluster while the operator runs (kubectl delete gpucluster {name}), then run again. "
            "Nothing has been changed.", verb="plan", object=f"GPUCluster {name}", reason="Owned")
    for deployment in found.deployments:
        metadata = deployment["metadata"]
        marks = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
        for key, (tool, remedy) in _KEEPERS.items():
            if key in marks:
                label = f"Deployment {metadata['namespace']}/{metadata['name']}"
                raise ClusterError(
                    f"{label} is managed by {tool.format(value=marks[key])}, which would start the operator again.",
                    f"{remedy.format(value=marks[key])} Then run again. Nothing has been changed.", verb="plan",
                    object=label, reason="Owned")
    busy = {node["metadata"]["name"]: state for node in found.nodes
            if (state := (node["metadata"].get("labels") or {}).get(upgrades.STATE, "")) not in _AT_REST}
    if busy and found.running:
        # The label of one Node is enough to refuse, although the Node may have forged it: if the operator is stopped
        # during an upgrade, the Node stays cordoned. To wait or to remove a label is the smaller harm.
        name = next(iter(busy))
        upgrading = some_of([f"{node} ({state})" for node, state in busy.items()], _NAMED)
        scale = " and ".join(f"kubectl scale deployment {one['metadata']['name']} --namespace "
                             f"{one['metadata']['namespace']} --replicas 0" for one in found.running)
        raise ClusterError(
            f"The operator is upgrading the driver of {counted(len(busy), 'Node')}: {upgrading}. If the operator were "
            "stopped now, these Nodes would stay cordoned.",
            f"Wait until the label {upgrades.STATE} of these Nodes is upgrade-done. If you cannot wait, stop the "
            f"operator ({scale}), run again, and then run the playbook upgrade: it finishes these Nodes. Or set "
            "driver.upgradePolicy.autoUpgrade to false in the ClusterPolicy and uncordon the Nodes. If the "
            "label of a Node without an upgrade appears again after its removal, the Node itself may write it: remove "
            "the Node from the cluster. Nothing has been changed. To remove the label of a Node on which no upgrade "
            f"runs: kubectl label node {name} {upgrades.STATE}-", verb="plan",
            object=f"Node {name}", reason="Busy", nodes=busy)


def stop(found: Operator) -> t.List[Change]:
    """The changes that scale the operator's Deployments to 0. An annotation keeps the former number of replicas."""
    return [_scaled("stop", deployment, 0, str(replicas(deployment))) for deployment in found.running]


def start(found: t.Sequence[Object]) -> t.List[Change]:
    """The changes that scale stopped Deployments to their former number of replicas, at least 1."""
    former = {id(deployment): (deployment["metadata"].get("annotations") or {}).get(REPLICAS) for deployment in found}
    return [_scaled("start", deployment, max(1, replicas(deployment), _number(former[id(deployment)])), None)
            for deployment in found if former[id(deployment)] is not None or not replicas(deployment)]


def scale(client: Client, change: Change) -> None:
    """Applies a change of L(stop) or L(start)."""
    patch = t.cast(Object, change.manifest)
    metadata = patch["metadata"]
    client.merge_patch("apps/v1", "Deployment", metadata["name"], metadata["namespace"],
                       {"metadata": {"annotations": metadata["annotations"]}, "spec": patch["spec"]})


def notes(found: Operator) -> t.List[str]:
    """Notes about the Helm release that installed the operator."""
    texts = []
    for deployment in found.deployments:
        annotations = deployment["metadata"].get("annotations") or {}
        release, space = (annotations.get(f"meta.helm.sh/release-{part}") for part in ("name", "namespace"))
        if release:
            texts.append(
                f"The Helm release {release} in namespace {space} still contains the operator. Do not upgrade this "
                f"release: an upgrade would start the operator again. 'helm uninstall {release} -n {space} --no-hooks' "
                "deletes the operator, the ClusterPolicy with the objects that it still owns and, if it is part of the "
                "release, Node Feature Discovery (the next run of site.yml delivers it again). It keeps the operands "
                "and the CustomResourceDefinitions. Without --no-hooks, it also removes the labels of Node Feature "
                "Discovery from all Nodes and, with operator.cleanupCRD, the CustomResourceDefinitions.")
    return texts


def _scaled(action: str, live: Object, count: int, mark: t.Optional[str]) -> Change:
    """A change whose manifest is a merge patch; its live object has only the fields of the patch, for a short diff.

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
