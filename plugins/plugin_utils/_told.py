# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts have told about their GPUs, by the Nodes that they are. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

FACT, UNREAD = "gpu_labels", "gpu_labels_unread"
NODE_NAME = "gpu_node_name"


class Told(t.NamedTuple):
    """labels: by Node those of its host; silent: hosts that have not told any; unread: Nodes among those of labels
    whose hosts could not read all of their GPUs."""

    labels: dict[str, dict[str, str]]
    silent: list[str]
    unread: set[str]


def told(task_vars: t.Mapping[str, t.Any], hosts: t.Sequence[str]) -> Told:
    """The fact gpu_labels of hosts, gathered in this run or kept by a fact cache.

    Raises InputError for a host that the inventory does not have, and for two that are the same Node.
    """
    hostvars, found, silent = task_vars["hostvars"], Told({}, [], set()), []
    by_node: dict[str, str] = {}
    for host in dict.fromkeys(hosts):
        if host not in hostvars:
            raise InputError(f"The inventory has no host {host}.", "Name hosts as ansible-inventory --list shows them.",
                             path="hosts", value=host)
        # Raw: what a module returned is data, and templating the variables of the whole fleet would take its time.
        raw = hostvars.raw_get(host)
        node = str(hostvars[host][NODE_NAME]) if raw.get(NODE_NAME) else host
        other = by_node.setdefault(node, host)
        if other != host:
            raise InputError(f"{other} and {host} are both the Node {node}.", f"Set {NODE_NAME} of each.", path="hosts",
                             value=[other, host])
        facts = raw.get("ansible_facts") or {}
        labels = facts.get(FACT)
        if isinstance(labels, t.Mapping):
            found.labels[node] = {str(key): str(value) for key, value in labels.items()}
            if facts.get(UNREAD):
                found.unread.add(node)
        else:
            silent.append(host)
    return found._replace(silent=silent)
