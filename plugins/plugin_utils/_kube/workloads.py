# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What DaemonSets and Deployments say about their pods by counts. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

COMPONENT = "gpuops.nvidia/component"
Object = t.Mapping[str, t.Any]


@dataclass(frozen=True)
class Workload:
    """A DaemonSet or Deployment of ours.

    desired, ready, updated: pods; uncounted: pods on nodes that the controller does not count, such as NotReady ones;
    manual: pods are replaced only when somebody deletes them (OnDelete); seen: whether
    its controller has taken notice of what was applied last; node_selector: what nodes must carry.
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
        """Whether nothing is left that comes by waiting."""
        return self.seen and self.ready >= self.desired and (self.manual or self.updated >= self.desired)

    def made(self, pod: str) -> bool:
        """Whether a pod of this name is one of its: NAME-xxxxx of a DaemonSet, NAME-HASH-xxxxx of a Deployment."""
        between = "" if self.kind == "DaemonSet" else "[a-z0-9]+-"
        return re.fullmatch(rf"{re.escape(self.name)}-{between}[a-z0-9]{{5}}", pod) is not None

    @property
    def selector(self) -> str:
        """Its pods as a label selector."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.labels.items()))


def workload(item: Object) -> Workload:
    """A DaemonSet or Deployment as counts."""
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


def without_place(template: Object) -> dict[str, t.Any]:
    """A pod template without what says on which Nodes its pods may stand: it concerns none that stands there."""
    spec = {key: value for key, value in template["spec"].items() if key not in ("nodeSelector", "affinity")}
    affinity = {key: value for key, value in (template["spec"].get("affinity") or {}).items() if key != "nodeAffinity"}
    return {**template, "spec": {**spec, **({"affinity": affinity} if affinity else {})}}


def asking(work: Workload, nodes: t.Iterable[Object]) -> list[str]:
    """The nodes that carry the labels that a DaemonSet asks for."""
    return [str(node["metadata"]["name"]) for node in nodes
            if work.node_selector.items() <= (node["metadata"].get("labels") or {}).items()]


def lagging(works: t.Iterable[Workload], nodes: t.Collection[Object]) -> bool:
    """Whether DaemonSets want fewer pods than nodes carry the labels that they ask for.

    Drivers for several systems share nodes by affinity: of these the sum counts.
    """
    groups: dict[str, list[Workload]] = {}
    for work in works:
        if work.kind == "DaemonSet" and work.node_selector:
            groups.setdefault("driver" if work.component == "driver" else work.name, []).append(work)
    return any(sum(work.desired + work.uncounted for work in group)
               < len({name for work in group for name in asking(work, nodes)}) for group in groups.values())
