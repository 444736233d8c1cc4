# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU Operator that a cluster has: what shows it, whether it can be stopped, what it left half done. PRIVATE.

From the chart, the bundle and the controllers of GPU Operator 26.7 (github.com/NVIDIA/gpu-operator).
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

Object = t.Dict[str, t.Any]

# On the Deployment of an operator that we have stopped: how many replicas it had.
REPLICAS = "gpuops.nvidia/replicas"
# The operator updates a DaemonSet only where what it renders has another hash than this annotation.
HASH = "nvidia.com/last-applied-hash"
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"

_NAMED = 12  # Nodes in a message
_NAME = "gpu-operator"  # of the Deployment, and the value of its label app in the chart
# States of a driver upgrade in which the operator has not begun with a Node, or has ended.
_AT_REST = ("", "upgrade-required", "upgrade-done", "upgrade-failed")
# Label or annotation of a Deployment to who writes it, and would scale it up again.
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
    """What there is of it. policies: ClusterPolicies; clusters: GPUClusters; deployments: of the operator itself;
    nodes: all Nodes. Of all but the Deployments the metadata alone."""

    policies: t.Sequence[Object] = field(default=())
    clusters: t.Sequence[Object] = field(default=())
    deployments: t.Sequence[Object] = field(default=())
    nodes: t.Sequence[Object] = field(default=())

    @property
    def running(self) -> t.List[Object]:
        """The Deployments that are to have pods."""
        return [one for one in self.deployments if replicas(one) > 0]


def read(client: Client) -> Operator:
    """Nothing but one request where there is no policy of an operator."""
    policies = client.list("nvidia.com/v1", "ClusterPolicy", metadata_only=True)
    if not policies:
        return Operator()
    return Operator(policies, client.list("nvidia.com/v1alpha1", "GPUCluster", metadata_only=True),
                    deployments(client), client.list("v1", "Node", metadata_only=True))


def deployments(client: Client) -> t.List[Object]:
    """The operator's own Deployments: by the label of the chart, or by the name that the bundle has too."""
    found = [*client.list("apps/v1", "Deployment", label_selector=f"app={_NAME}"),
             *client.list("apps/v1", "Deployment", field_selector=f"metadata.name={_NAME}")]
    return list({one["metadata"]["uid"]: one for one in found}.values())


def version(client: Client) -> str:
    """The release of the operator that is installed, C(26.7.0), as the chart labels it; empty where nobody says so."""
    said = [(one["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "") for one in deployments(client)]
    return next((one.lstrip("v") for one in said if one), "")


def replicas(deployment: Object) -> int:
    """How many pods a Deployment is to have."""
    return int((deployment.get("spec") or {}).get("replicas", 1))


def owns(live: Object) -> bool:
    """Whether an object goes with a ClusterPolicy or NVIDIADriver."""
    return any(objects.is_operators(owner) for owner in live["metadata"].get("ownerReferences") or [])


def other_owners(live: Object) -> t.List[Object]:
    """Its other owners."""
    return [owner for owner in live["metadata"].get("ownerReferences") or [] if not objects.is_operators(owner)]


def refuse(found: Operator) -> None:
    """Raises ClusterError where this operator cannot be stopped now, or would come back."""
    for one in found.clusters:
        name = one["metadata"]["name"]
        raise ClusterError(
            f"GPUCluster {name} is there: its finalizer needs the operator, which therefore cannot be taken over.",
            f"Delete it while the operator runs (kubectl delete gpucluster {name}), then run again. Nothing has been "
            "changed.", verb="plan", object=f"GPUCluster {name}", reason="Owned")
    for one in found.deployments:
        metadata = one["metadata"]
        marks = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
        for key, (who, remedy) in _KEEPERS.items():
            if key in marks:
                label = _label(one)
                raise ClusterError(
                    f"{label} is kept by {who.format(value=marks[key])}, which would start it again.",
                    f"{remedy.format(value=marks[key])} Then run again. Nothing has been changed.", verb="plan",
                    object=label, reason="Owned")
    busy = {one["metadata"]["name"]: state for one in found.nodes
            if (state := (one["metadata"].get("labels") or {}).get(UPGRADE_STATE, "")) not in _AT_REST}
    if busy and found.running:
        # The label of one Node refuses this for all, also a forged one: a Node whose upgrade loses its operator stays
        # cordoned, and to wait or to remove a label costs less.
        name = next(iter(busy))
        told = some_of([f"{one} ({state})" for one, state in busy.items()], _NAMED)
        raise ClusterError(
            f"The operator upgrades the driver of {counted(len(busy), 'Node')} now: {told}. Without it they stay "
            "cordoned.", f"Wait until {UPGRADE_STATE} is upgrade-done there, or set "
            "driver.upgradePolicy.autoUpgrade to false in the ClusterPolicy and uncordon them. If no upgrade runs on a "
            f"Node, remove its label: kubectl label node {name} {UPGRADE_STATE}-. If the label comes back, the Node "
            "itself may write it: take such a Node out of the cluster. Nothing has been changed.", verb="plan",
            object=f"Node {name}", reason="Busy", nodes=busy)


def stop(found: Operator) -> t.List[Change]:
    """The operator's Deployments at rest. What they had is kept on them, so that a hand back can start them."""
    return [_scaled("stop", one, 0, str(replicas(one))) for one in found.running]


def start(found: t.Sequence[Object]) -> t.List[Change]:
    """The Deployments that L(stop) has stopped as they were before."""
    kept = {id(one): (one["metadata"].get("annotations") or {}).get(REPLICAS) for one in found}
    return [_scaled("start", one, max(1, replicas(one), _number(kept[id(one)])), None) for one in found
            if kept[id(one)] is not None or not replicas(one)]


def scale(client: Client, change: Change) -> None:
    """Carries out what L(stop) or L(start) has planned."""
    patch = t.cast(Object, change.manifest)
    metadata = patch["metadata"]
    client.merge_patch("apps/v1", "Deployment", metadata["name"], metadata["namespace"],
                       {"metadata": {"annotations": metadata["annotations"]}, "spec": patch["spec"]})


def notes(found: Operator) -> t.List[str]:
    """What a user has to know of who installed the operator, each a text."""
    said = []
    for one in found.deployments:
        annotations = one["metadata"].get("annotations") or {}
        release, space = (annotations.get(f"meta.helm.sh/release-{part}") for part in ("name", "namespace"))
        if release:
            said.append(
                f"Helm release {release} in namespace {space} still lists the operator. Do not upgrade it: that would "
                f"start the operator again. 'helm uninstall {release} -n {space} --no-hooks' removes the operator, its "
                "ClusterPolicy, what still belongs to that, and Node Feature Discovery where the release brought it "
                "(the next run of site.yml delivers it); the operands and the definitions stay. Without --no-hooks the "
                "labels of Node Feature Discovery vanish from all Nodes, and with operator.cleanupCRD the definitions.")
    return said


def _scaled(action: str, live: Object, count: int, mark: t.Optional[str]) -> Change:
    """A Change whose manifest is a merge patch and whose live object is what that is about, for a short difference."""
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


def _label(item: Object) -> str:
    return f"{item.get('kind', 'Deployment')} {item['metadata']['namespace']}/{item['metadata']['name']}"
