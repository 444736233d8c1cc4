# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the numbers of pods from the status of DaemonSets and Deployments. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import COMPONENT, Live, Object, label_selector


@dataclass(frozen=True)
class Workload:
    """An owned DaemonSet or Deployment.

    desired, ready, updated: numbers of pods; uncounted: the number of pods on Nodes that should have none
    (numberMisscheduled), for example because the Node is NotReady; manual: whether the update strategy is OnDelete;
    seen: whether the controller has observed the last change; labels: the labels that select its pods; node_selector:
    the labels that a Node must have.
    """

    component: str
    kind: str
    name: str
    uid: str
    desired: int
    ready: int
    updated: int
    uncounted: int
    manual: bool
    seen: bool
    labels: t.Mapping[str, str]
    node_selector: t.Mapping[str, str]

    @property
    def settled(self) -> bool:
        """Whether all pods are ready and updated. With the update strategy OnDelete: whether all pods are ready."""
        return self.seen and self.ready >= self.desired and (self.manual or self.updated >= self.desired)

    def has_pod(self, pod: str) -> bool:
        """Whether a pod has a name of this workload: NAME-xxxxx for a DaemonSet, NAME-HASH-xxxxx for a Deployment."""
        between = "" if self.kind == "DaemonSet" else "[a-z0-9]+-"
        return re.fullmatch(rf"{re.escape(self.name)}-{between}[a-z0-9]{{5}}", pod) is not None

    @property
    def selector(self) -> str:
        """The label selector of the pods, as the API server expects it."""
        return label_selector(self.labels)


def workload(item: Live) -> Workload:
    """Reads a DaemonSet or Deployment object."""
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    pod = spec["template"]["spec"]
    if item["kind"] == "DaemonSet":
        desired, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        updated = status.get("updatedNumberScheduled", 0)
    else:
        desired, ready, updated = spec.get("replicas", 1), status.get("readyReplicas", 0), status.get(
            "updatedReplicas", 0)
    return Workload(
        meta["labels"][COMPONENT], item["kind"], meta["name"], meta["uid"], desired, ready, updated,
        status.get("numberMisscheduled", 0), (spec.get("updateStrategy") or {}).get("type") == "OnDelete",
        status.get("observedGeneration", 0) >= meta.get("generation", 0),
        (spec.get("selector") or {}).get("matchLabels") or {}, pod.get("nodeSelector") or {})


def required_terms(pod: Live) -> t.Optional[t.Sequence[Live]]:
    """The terms of the required node affinity of a pod, of which its Node must match one, None if it has no required
    node affinity. pod: the spec of the pod."""
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution")
    return (required.get("nodeSelectorTerms") or ()) if required else None


def without_node_selection(template: Live) -> Object:
    """A pod template without node selector and node affinity, which do not affect pods that are already scheduled."""
    spec = {key: value for key, value in template["spec"].items() if key not in ("nodeSelector", "affinity")}
    affinity = {key: value for key, value in (template["spec"].get("affinity") or {}).items() if key != "nodeAffinity"}
    return {**template, "spec": {**spec, **({"affinity": affinity} if affinity else {})}}


def matching_nodes(work: Workload, nodes: t.Iterable[Live]) -> list[str]:
    """The names of the Nodes that match the node selector of a workload."""
    return [str(node["metadata"]["name"]) for node in nodes
            if work.node_selector.items() <= (node["metadata"].get("labels") or {}).items()]


def counts_too_few(works: t.Iterable[Workload], nodes: t.Collection[Live]) -> bool:
    """Whether a DaemonSet has fewer desired pods than Nodes match its node selector.

    The driver DaemonSets of several pools have the same node selector and different affinities, so their sum is
    compared.
    """
    groups: dict[str, list[Workload]] = {}
    for work in works:
        if work.kind == "DaemonSet" and work.node_selector:
            groups.setdefault("driver" if work.component == "driver" else work.name, []).append(work)
    return any(sum(work.desired + work.uncounted for work in group)
               < len({name for work in group for name in matching_nodes(work, nodes)}) for group in groups.values())
