# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the labels that hosts have computed for their Nodes. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import Variables
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.inventory_vars import NODE_NAME

FACT, UNREAD = "gpu_labels", "gpu_labels_unread"


class HostLabels(t.NamedTuple):
    """The labels that hosts have computed.

    labels: the labels by Node; silent: the hosts without the fact gpu_labels; refused: the hosts with invalid facts;
    unread: the Nodes in labels on whose hosts some GPUs could not be read; nodes: the hosts by Node, for all hosts.
    """

    labels: dict[str, dict[str, str]]
    silent: list[str]
    refused: list[str]
    unread: set[str]
    nodes: dict[str, str]


def read_labels(task_vars: Variables, hosts: t.Sequence[str]) -> HostLabels:
    """Reads the fact gpu_labels of hosts, from this run or from a fact cache.

    A host is refused if L(inventory_vars.rejected) contains it. If its facts set gpu_node_name, its Node is unknown as
    well. Raises InputError for a host that is not in the inventory, and for two hosts with the same Node.
    """
    hostvars, nodes = task_vars["hostvars"], dict[str, str]()
    found = HostLabels({}, [], [], set(), nodes)
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
            raise InputError(f"{other} and {host} have the same Node {node}.", f"Set {NODE_NAME} of each host.",
                             path="hosts", value=[other, host])
        if inventory_vars.rejected(task_vars, [host]):
            found.refused.append(host)
            continue
        facts = hostvars.raw_get(host).get("ansible_facts") or {}
        labels = facts.get(FACT)
        # state absent leaves an empty fact. A host without GPUs still has one label: whether it is a vGPU guest.
        if isinstance(labels, t.Mapping) and labels:
            found.labels[node] = {str(key): _text(value) for key, value in labels.items()}
            if facts.get(UNREAD):
                found.unread.add(node)
        else:
            found.silent.append(host)
    return found


def _text(value: object) -> str:
    """The value of a label as GPU feature discovery writes it, even if a fact cache or set_fact converted it to a
    boolean."""
    return str(value).lower() if isinstance(value, bool) else str(value)
