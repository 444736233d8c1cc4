# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads Nodes by name, and changes a Node depending on its present state. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold

_LOST_RACES = 20
Object = t.Mapping[str, t.Any]


class Nodes(t.Protocol):
    """The methods of L(client.Client) that are needed here."""

    def get(self, api_version: str, kind: str, name: str) -> t.Dict[str, t.Any] | None:
        """Reads a Node, None if there is none with this name."""

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: str | None,
                    body: t.Mapping[str, t.Any]) -> Object:
        """Changes a Node."""


def named(client: Client, names: t.Sequence[str]) -> dict[str, dict[str, t.Any]]:
    """The Nodes with these names, read at the same time. Raises InputError for names that do not exist, ClusterError.
    """
    answers = without_errors(client.many(lambda name: client.get("v1", "Node", name), names))
    found = {name: one for name, one in zip(names, answers) if one is not None}
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{client.server} has no Node {fold(missing)}.",
                         "Name Nodes as kubectl get nodes shows them.", path="nodes", value=missing)
    return found


def write(client: Nodes, name: str, change: t.Callable[[Object], dict[str, t.Any] | None]) -> bool:
    """Makes a change that depends on the state of the Node. If somebody else changes the Node meanwhile, it is read and
    changed again.

    Returns whether something was written; nothing is if the Node was deleted. Raises ClusterError.
    """
    for _ignored in range(_LOST_RACES):
        node = client.get("v1", "Node", name)
        patch = change(node) if node else None
        if node is None or patch is None:
            return False
        metadata = {**patch.get("metadata", {}), "resourceVersion": node["metadata"]["resourceVersion"]}
        try:
            client.merge_patch("v1", "Node", name, None, {**patch, "metadata": metadata})
        except ClusterError as error:
            if error.status == 404:
                return False
            if error.status != 409:
                raise
        else:
            return True
    raise ClusterError(f"Node {name}: others wrote it {_LOST_RACES} times while it was to be written.",
                       "Look who does (kubectl get node -o yaml --show-managed-fields), and run again.", verb="patch",
                       object=f"Node {name}", status=409, reason="Conflict")
