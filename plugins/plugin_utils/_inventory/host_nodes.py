# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the Nodes of hosts, so that a Node is taken out of service before its host is disrupted. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of

# The plan of a fleet or of a host, or the facts of a host, as JSON.
Plan = t.Dict[str, t.Any]
_SHOWN = 20  # the maximum number of hosts that a message names
# The highest allowed level on a host that belongs to a Kubernetes cluster and whose Node is unknown.
_ALONE = "idle"


def node_of(name: str, left: t.Mapping[str, bool] | None) -> dict[str, str | bool]:
    """C({name, left}) of the Node with this name, empty if the cluster has no such Node. left: as in L(attach)."""
    return {"name": name, "left": left[name]} if left and name in left else {}


def attach(plan: Plan, names: t.Mapping[str, str], left: t.Mapping[str, bool] | None,
           facts: t.Mapping[str, Plan | None], rendered: bool = False) -> list[str]:
    """Sets C(host_nodes) and C(host_levels) of a plan: by host its Node as C({name, left}), empty if it is not a Node,
    and the highest level of gpu_disruption. Both have all hosts with facts, also those on which nothing is delivered
    or that the plan rejects. C(node) of each planned host is the same. Returns notes.

    The level of a host that belongs to another or an unknown Kubernetes cluster is reduced to C(idle).

    names: the name that the Node of each host would have, by host; left: whether a killed or failed run has left the
    Node out of service, by Node, None if no cluster is known; facts: the facts of gpu_info by host, None for none;
    rendered: whether no cluster is known because the run only writes manifests.
    """
    alone: list[str] = []
    level = plan["disruption"]
    plan["host_nodes"] = {host: node_of(names.get(host, host), left) for host, known in facts.items() if known}
    plan["host_levels"] = {host: _level(level, known, plan["host_nodes"][host])
                           for host, known in facts.items() if known}
    for host, parts in plan["hosts"].items():
        parts["node"] = plan["host_nodes"][host]
        if plan["host_levels"][host] != level:
            alone.append(host)
            _cap(parts)
    nodes = [names.get(host, host) for host in alone]
    return [unknown_nodes(alone, nodes, left is not None, plan["disruption"], rendered)] if alone else []


def _level(level: str, facts: Plan, node: t.Mapping[str, t.Any]) -> str:
    """The highest level that applies to a host. level: that of the fleet; node: see L(node_of)."""
    unknown = not node and facts["host"]["markers"]["kubernetes"]
    return _ALONE if unknown and not allows(_ALONE, level) else level


def _cap(parts: Plan) -> None:
    for part in parts.values():
        if isinstance(part, dict) and "disruption" in part and not allows(_ALONE, part["disruption"]):
            part["disruption"] = _ALONE


def removal(names: t.Mapping[str, str], left: t.Mapping[str, bool] | None, level: str, rendered: bool = False
            ) -> dict[str, Plan]:
    """C({node, note}) by host, for a removal, which has no plan.

    node, rendered: as in L(attach); note: the message of L(unknown_nodes), only for a host that is not a Node, and only
    if the level of the fleet (level) is above C(idle). At this time it is unknown whether the host belongs to a
    Kubernetes cluster.
    """
    found: dict[str, Plan] = {host: {"node": node_of(name, left)} for host, name in names.items()}
    for host, one in found.items():
        if not one["node"] and not allows(_ALONE, level):
            one["note"] = unknown_nodes([host], [names[host]], left is not None, level, rendered)
    return found


def unknown_nodes(hosts: t.Sequence[str], nodes: t.Sequence[str], cluster_is_known: bool, level: str, rendered: bool
                  ) -> str:
    """The message about hosts that belong to a Kubernetes cluster and whose Nodes are unknown. nodes: the names that
    these Nodes would have; rendered: as in L(attach)."""
    why, fix = "gpu_kubeconfig is not set", "Set gpu_kubeconfig to the kubeconfig of the cluster."
    if rendered:
        why = "gpu_render_to is set"
        fix = "To change the host through its Node, run without gpu_render_to and with gpu_kubeconfig."
    elif cluster_is_known:
        why = f"the cluster has no Node {some_of(nodes, _SHOWN)}"
        fix = "Set gpu_node_name to the name of the host's Node, or gpu_kubeconfig to its cluster."
    return (f"{some_of(hosts, _SHOWN)}: the host belongs to a Kubernetes cluster, but {why}, so the run cannot cordon "
            f"the Node and evict its pods: gpu_disruption {level} counts as {_ALONE}. {fix}")


def batch(asked: object, hosts: int, path: str = "gpu_max_unavailable") -> int:
    """The maximum number of hosts that may be out of service at the same time, at least one.

    asked: a number, or a percentage of the hosts (C(25%)). Raises InputError with path for any other value.
    """
    found = re.fullmatch(r"([1-9]\d{0,5})(%?)", str(asked))
    if found is None or isinstance(asked, bool) or (found[2] and int(found[1]) > 100):
        raise InputError(f"{asked!r} is not a number of hosts.", "Write 1 or more, or a percentage such as 25%.",
                         path=path, value=asked)
    return max(1, hosts * int(found[1]) // 100) if found[2] else int(found[1])


def check(wanted: t.MutableMapping[str, t.Any]) -> None:
    """Converts C(strict) to a boolean and checks C(max_unavailable), in place. Raises InputError."""
    batch(wanted["max_unavailable"], 1)
    strict = str(wanted["strict"]).lower()
    if strict not in ("true", "false", "yes", "no"):
        raise InputError(f"{wanted['strict']!r} is neither true nor false.", "Write true or false.", path="gpu_strict",
                         value=wanted["strict"], allowed=["true", "false"])
    wanted["strict"] = strict in ("true", "yes")
