# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds objects and labels of Nodes that differ from the plan of a cluster. Reads only. PRIVATE.

It calls the functions by which site.yml plans objects and labels, and holds back changes that gpu_disruption does not
allow. So it finds exactly the changes that a run would make. L(rollout) checks the pods.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import live, objects, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import label_nodes, startup_taints
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver, pending_changes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.plan import plan

NODES = "nodes"
_REPAIR = "Run site.yml: it repairs this."
# The maximum number of objects or labels that a difference names, and of fields of an object.
_NAMED, _FIELDS = 3, 2
# The cluster's part of a plan (C(gpu_plan.cluster)), as it comes from a task.
Plan = t.Mapping[str, t.Any]


class Difference(t.NamedTuple):
    """A difference from the plan.

    component: a component, C(cluster) for objects that all components share, or C(nodes) for the labels of Nodes;
    cause: what differs; hint: what a user should do; level: C(failed), or C(pending) if the repair needs a higher
    gpu_disruption; nodes: the Nodes whose labels differ.
    """

    component: str
    cause: str
    hint: str
    level: str = "failed"
    nodes: t.Tuple[str, ...] = ()


def differences(client: Client, cluster: Plan, components: t.Collection[str] | None,
                with_gpus: t.Mapping[str, int] | None = None) -> list[Difference]:
    """The differences that a run of site.yml would repair.

    components: the components to compare, None for all of them and the labels of Nodes; with_gpus: maps a Node to the
    number of GPUs of its host, for hosts that compute the labels of their Nodes. If the comparison is not possible (a
    foreign object has a planned name, or a permission is missing), the reason is the only difference. Raises
    InputError for an invalid plan.
    """
    wanted, names = deliver.of_plan(cluster, None if components is None else [*components])
    try:
        with rights.named(client, str(cluster["namespace"])):
            objects_differ = _of_objects(client, cluster, wanted, names)
            return objects_differ if components is not None else [
                *objects_differ, *_of_labels(client, cluster, with_gpus or {})]
    except ClusterError as error:
        return [Difference(objects.SHARED, f"the cluster cannot be compared with the plan: {error.message}".rstrip("."),
                           error.hint)]


def _of_objects(client: Client, cluster: Plan, wanted: t.Sequence[objects.Wanted],
                names: t.Collection[str]) -> list[Difference]:
    there = live.read(client, wanted)
    changes = plan(client, wanted, there, names, kept=deliver.kept_daemon_sets(cluster))
    components = {change.id: change.component for change in changes}
    level = cluster.get("disruption", LEVELS[0])
    changes, pending = pending_changes.hold(changes, level, lambda: client.list("v1", "Node"), there=there.values())
    found = []
    for name in dict.fromkeys(change.component for change in changes if change.writes):
        texts = [_describe(change) for change in changes if change.writes and change.component == name]
        more = f"; {counted(len(texts) - _NAMED, 'more object')}" if len(texts) > _NAMED else ""
        found.append(Difference(name, "; ".join(texts[:_NAMED]) + more, _REPAIR))
    return found + [Difference(components[step.id], f"{step.id}: {step.pending_reason}",
                               pending_changes.advice(level, step.needs), "pending")
                    for step in pending]


def _describe(change: Change) -> str:
    """A clause such as C(DaemonSet gpu-operator/nvidia-dcgm differs in spec.template...image)."""
    if change.action == "create":
        return f"{change.label} is missing"
    if change.action in ("delete", "release"):
        return f"{change.label} is no longer planned"
    return f"{change.label} differs in {some_of(change.reasons, _FIELDS)}"


def startup_taint(client: Client, key: str, verified: t.Collection[str]) -> list[Difference]:
    """One difference for the Nodes from which a run would remove the startup taint; empty if there are none.

    key: the key of the taint; verified: the Nodes without a problem.
    """
    nodes = startup_taints.ready_with(client, key, verified)
    return [Difference(NODES, f"the startup taint {key} is still set", "Run site.yml: it removes this taint from "
                       "the Nodes whose GPUs are ready.", "pending", tuple(nodes))] if nodes else []


def _of_labels(client: Client, cluster: Plan, with_gpus: t.Mapping[str, int]) -> list[Difference]:
    """The differences of the deploy labels of Nodes, one for each set of keys that differ.

    Labels that hosts compute are not compared here, but on the hosts.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, summary in label_nodes.differing(client, cluster["deploy"], with_gpus).items():
        keys = tuple(sorted({**summary["added"], **summary["changed"], **summary["removed"]}))
        if keys:  # without keys only an annotation differs: when a GPU of the Node was last seen
            groups.setdefault(keys, []).append(name)
    return [Difference(NODES, f"{'labels differ' if keys[1:] else 'a label differs'} from the plan "
                       f"({some_of(keys, _NAMED)})", _REPAIR, nodes=tuple(sorted(names)))
            for keys, names in groups.items()]
