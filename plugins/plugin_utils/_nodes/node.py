# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and changes a Node. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import Labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold

_LOST_RACES = 20
# Maps labels or annotations to their new values, None to remove one.
Changes = t.Mapping[str, t.Optional[str]]
# C({key, value, effect, timeAdded}), as in the Kubernetes API.
Taint = t.Mapping[str, str]


@dataclass(frozen=True)
class NodeState:
    """A Node, as read from the API server. version: its resourceVersion; ready: its condition Ready. Fields that were
    not requested, such as the status in a list of metadata, are empty."""

    name: str
    labels: Labels
    annotations: Labels
    version: str = ""
    cordoned: bool = False
    taints: t.Sequence[Taint] = ()
    ready: bool = False

    @classmethod
    def read(cls, one: Live) -> NodeState:
        """Reads an object of the API server."""
        meta, spec, status = one["metadata"], one.get("spec") or {}, one.get("status") or {}
        return cls(meta["name"], meta.get("labels") or {}, meta.get("annotations") or {},
                   meta.get("resourceVersion", ""), bool(spec.get("unschedulable")), spec.get("taints") or (),
                   any(condition.get("type") == "Ready" and condition.get("status") == "True"
                       for condition in status.get("conditions") or ()))


@dataclass(frozen=True)
class NodePatch:
    """A change of a Node. spec: maps fields to new values, None to remove a field. An empty patch is false."""

    labels: Changes = field(default_factory=dict)
    annotations: Changes = field(default_factory=dict)
    spec: t.Mapping[str, bool | t.Sequence[Taint] | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.spec)

    def body(self, version: str) -> Object:
        """The merge patch (RFC 7396). The server refuses it if the resourceVersion of the Node is not version."""
        metadata = {name: part for name, part in (("labels", self.labels), ("annotations", self.annotations)) if part}
        return {"metadata": {**metadata, "resourceVersion": version}, **({"spec": self.spec} if self.spec else {})}


class Nodes(t.Protocol):
    """The methods of L(client.Client) that are needed to write a Node."""

    def get(self, api_version: str, kind: str, name: str) -> Live | None:
        """Reads a Node. Returns None if there is no Node with this name."""

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: str | None, body: Live) -> Live:
        """Changes a Node."""


def objects(client: Client, names: t.Sequence[str]) -> dict[str, Object]:
    """Maps the names to the Nodes, which are read concurrently. Raises InputError if a Node does not exist,
    ClusterError if a request fails."""
    answers = without_errors(client.many(lambda name: client.get("v1", "Node", name), names))
    found = {name: one for name, one in zip(names, answers) if one is not None}
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{client.server} has no Node {fold(missing)}.",
                         "Name Nodes as kubectl get nodes shows them.", path="nodes", value=missing)
    return found


def named(client: Client, names: t.Sequence[str]) -> dict[str, NodeState]:
    """Maps the names to the states of the Nodes. Reads them and raises errors as L(objects) does."""
    return {name: NodeState.read(one) for name, one in objects(client, names).items()}


def write(client: Nodes, name: str, change: t.Callable[[NodeState], NodePatch]) -> bool:
    """Writes a change that is computed from the state of the Node. If another client changes the Node meanwhile, reads
    the Node and computes the change again, up to _LOST_RACES times.

    Returns whether something was written, False if the Node was deleted. Raises ClusterError if the write fails.
    """
    for _ignored in range(_LOST_RACES):
        one = client.get("v1", "Node", name)
        node = NodeState.read(one) if one else None
        patch = change(node) if node else None
        if not node or not patch:
            return False
        try:
            client.merge_patch("v1", "Node", name, None, patch.body(node.version))
        except ClusterError as error:
            if error.status == 404:
                return False
            if error.status != 409:
                raise
        else:
            return True
    raise ClusterError(f"Node {name}: it was not written, because other clients changed it {_LOST_RACES} times "
                       "meanwhile.", "Find these clients (kubectl get node -o yaml --show-managed-fields), and run "
                       "again.", verb="patch", object=f"Node {name}", status=409, reason="Conflict")
