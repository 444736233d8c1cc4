# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the objects and the labels of Nodes differ from the plan of a cluster. Reads, never writes. PRIVATE.

To find what a run of site.yml would do, it calls the same functions as such a run: the plan of objects, the part of it
that gpu_disruption forbids, and the plan of labels. It does not look at pods; L(rollout) does.
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
_REPAIR = "Run site.yml: it repairs exactly this."
_NAMED, _FIELDS = 3, 2


class Difference(t.NamedTuple):
    """What differs from the plan. component: a component, C(cluster) for objects that all components share, or C(nodes)
    for the labels of Nodes.

    cause: what differs, in words; hint: what to do; level: C(failed), or C(pending) for what only a higher
    gpu_disruption allows; nodes: the Nodes whose labels differ.
    """

    component: str
    cause: str
    hint: str
    level: str = "failed"
    nodes: t.Tuple[str, ...] = ()


def differences(client: Client, cluster: t.Mapping[str, t.Any],
                components: t.Collection[str] | None, with_gpus: t.Mapping[str, int] | None = None) -> list[Difference]:
    """What a run would repair. cluster: the part of the plan; components: only these, or None for all and the labels;
    with_gpus: by Node the number of GPUs of its host, of hosts that tell which labels their Nodes get.

    If something cannot be compared, this is a difference too: an object of somebody else with the same name, or a
    missing right to read. Raises InputError if the plan is not valid.
    """
    wanted, names = deliver.of_plan(cluster, None if components is None else [*components])
    try:
        with rights.named(client, str(cluster["namespace"])):
            found = _of_objects(client, cluster, wanted, names)
            return found if components is not None else found + _of_labels(client, cluster, with_gpus or {})
    except ClusterError as error:
        return [Difference(objects.SHARED, f"the cluster cannot be compared with its plan: {error.message}".rstrip("."),
                           error.hint)]


def _of_objects(client: Client, cluster: t.Mapping[str, t.Any], wanted: t.Sequence[objects.Wanted],
                names: t.Collection[str]) -> list[Difference]:
    changes = plan(client, wanted, live.read(client, wanted), names, kept=deliver.kept_daemon_sets(cluster))
    components = {change.id: change.component for change in changes}
    changes, pending = pending_changes.hold(changes, cluster.get("disruption", LEVELS[0]),
                                            lambda: client.list("v1", "Node"))
    found = []
    for name in dict.fromkeys(change.component for change in changes if change.writes):
        mine = [_told(change) for change in changes if change.writes and change.component == name]
        more = f"; {counted(len(mine) - _NAMED, 'more object')}" if len(mine) > _NAMED else ""
        found.append(Difference(name, "; ".join(mine[:_NAMED]) + more, _REPAIR))
    return found + [Difference(components[one["id"]], f"{one['id']}: {one['pending_reason']}",
                               f"Set gpu_disruption: {one['needs']} in a maintenance window.", "pending")
                    for one in pending]


def _told(change: Change) -> str:
    """C(DaemonSet gpu-operator/nvidia-dcgm differs in spec.template...image)."""
    if change.action == "create":
        return f"{change.label} is missing"
    if change.action in ("delete", "release"):
        return f"{change.label} is no longer planned"
    return f"{change.label} differs in {some_of(change.reasons, _FIELDS)}"


def startup_taint(client: Client, key: str, verified: t.Collection[str]) -> list[Difference]:
    """The Nodes from which a run would take the startup taint. verified: Nodes on which nothing is lacking."""
    nodes = startup_taints.ready_with(client, key, verified)
    return [Difference(NODES, f"the startup taint {key} is still there", "Run site.yml: it removes this taint from "
                       "Nodes whose GPUs are ready.", "pending", tuple(nodes))] if nodes else []


def _of_labels(client: Client, cluster: t.Mapping[str, t.Any], with_gpus: t.Mapping[str, int]) -> list[Difference]:
    """The Nodes whose deploy labels differ, grouped by keys. Labels that hosts compute are compared on the hosts."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, summary in label_nodes.differing(client, cluster["deploy"], with_gpus).items():
        keys = tuple(sorted({**summary["added"], **summary["changed"], **summary["removed"]}))
        if keys:  # nothing but an annotation says when a GPU was last seen
            groups.setdefault(keys, []).append(name)
    return [Difference(NODES, f"{'labels differ' if keys[1:] else 'a label differs'} from the plan "
                       f"({some_of(keys, _NAMED)})", _REPAIR, nodes=tuple(sorted(names)))
            for keys, names in groups.items()]
