# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts have told about their GPUs, by the Nodes that they are. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.inventory_vars import NODE_NAME

FACT, UNREAD = "gpu_labels", "gpu_labels_unread"


class Told(t.NamedTuple):
    """labels: by Node those of its host; silent: hosts that have not told any; refused: hosts that are not believed;
    unread: Nodes among those of labels whose hosts could not read all of their GPUs; nodes: by Node its host, of all
    hosts."""

    labels: dict[str, dict[str, str]]
    silent: list[str]
    refused: list[str]
    unread: set[str]
    nodes: dict[str, str]


def told(task_vars: t.Mapping[str, t.Any], hosts: t.Sequence[str]) -> Told:
    """The fact gpu_labels of hosts, gathered in this run or kept by a fact cache.

    A host whose facts set variables of this collection is not believed, nor is one whose answer to gpu_info had another
    shape than documented. If the facts set gpu_node_name, it is in no Node either. Raises InputError for a host that
    the inventory does not have, and for two that are the same Node.
    """
    hostvars, nodes = task_vars["hostvars"], dict[str, str]()
    found = Told({}, [], [], set(), nodes)
    for host in dict.fromkeys(hosts):
        if host not in hostvars:
            raise InputError(f"The inventory has no host {host}.", "Name hosts as ansible-inventory --list shows them.",
                             path="hosts", value=host)
        node = inventory_vars.node_name(hostvars, host)
        if node is None:
            found.refused.append(host)
            continue
        other = nodes.setdefault(node, host)
        if other != host:
            raise InputError(f"{other} and {host} are both the Node {node}.", f"Set {NODE_NAME} of each.", path="hosts",
                             value=[other, host])
        if inventory_vars.rejected(task_vars, [host]):
            found.refused.append(host)
            continue
        facts = hostvars.raw_get(host).get("ansible_facts") or {}
        labels = facts.get(FACT)
        # Empty is what state absent leaves: a host without GPUs tells at least that it is no guest.
        if isinstance(labels, t.Mapping) and labels:
            found.labels[node] = {str(key): _text(value) for key, value in labels.items()}
            if facts.get(UNREAD):
                found.unread.add(node)
        else:
            found.silent.append(host)
    return found


def _text(value: t.Any) -> str:
    """As GPU feature discovery writes it, whatever a fact cache or a set_fact has made of it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
