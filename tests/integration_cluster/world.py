# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A namespace with objects of ours, and clients that change them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, live, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import MANAGER, Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver

from lab.controlplane import cluster as clusters
from lab.controlplane import faults, nodes
from tests.integration_cluster.conftest import Kubectl

Object = dict[str, Any]
ROWS = {row.kind.lower(): row for row in kinds.KINDS.values()}


@dataclass
class World:
    """The namespace C(name) with the objects of C(manifests), delivered as the component of that name."""

    tool: Kubectl
    client: Client
    name: str
    manifests: list[Object] = field(default_factory=list)

    def run(self, check: bool = False) -> Object:
        """Runs operands with state present."""
        return deliver.present(self.client, objects.wanted({self.name: self.manifests}), [self.name], check)

    def remove(self, everything: bool = False, check: bool = False) -> Object:
        """Runs operands with state absent."""
        return deliver.absent(self.client, None if everything else [self.name], 180, check)

    def kubectl(self, *words: str, **more: Any) -> str:
        """kubectl as another user."""
        return self.tool("--namespace", self.name, *words, **more)

    def patch(self, kind: str, name: str, *operations: Object) -> None:
        """A JSON patch by another user, as C(kubectl patch --type json) sends it."""
        row = ROWS[kind]
        self.client.json_patch(row.api_version, row.kind, name, self.name if row.namespaced else None, operations,
                               field_manager="kubectl-patch")

    def server_side(self, item: Object) -> None:
        """A server-side apply by another manager."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager", "someone", "--filename", "-",
                     stdin=item)

    def under_our_name(self, kind: str, name: str, change: Callable[[Object], None]) -> None:
        """A server-side apply of the whole object by a client that uses the name of our field manager."""
        item = self.get(kind, name)
        for key in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
            item["metadata"].pop(key, None)
        item.pop("status", None)
        change(item)
        self.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager", MANAGER, "--filename", "-",
                     stdin=item)

    def replace(self, kind: str, name: str, change: Callable[[Object], None]) -> None:
        """A PUT by another user."""
        item = self.get(kind, name)
        change(item)
        self.kubectl("replace", "--filename", "-", stdin=item)

    def recreate(self, kind: str, name: str, change: Callable[[Object], None]) -> None:
        """Deletes the object and creates it again as another user."""
        item = self.get(kind, name)
        for key in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
            item["metadata"].pop(key, None)
        change(item)
        self.kubectl("delete", kind, name)
        self.kubectl("create", "--filename", "-", stdin=item)

    def find(self, kind: str, name: str) -> Object | None:
        """The current object, or None if it does not exist. kind: in lower case."""
        row = ROWS[kind]
        return self.client.get(row.api_version, row.kind, name, self.name if row.namespaced else None)

    def get(self, kind: str, name: str) -> Object:
        """An object that must exist."""
        found = self.find(kind, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def wanted(self, kind: str) -> Object:
        """The manifest of a kind."""
        return next(item for item in self.manifests if item["kind"] == kind)

    def ours(self) -> dict[str, Object]:
        """The current objects of ours."""
        found = live.read(self.client, objects.wanted({self.name: self.manifests}))
        return {str(key): item for key, item in found.items() if objects.is_ours(item) and self.name in key}

    def versions(self) -> dict[str, str]:
        """Their resourceVersions."""
        return {key: item["metadata"]["resourceVersion"] for key, item in self.ours().items()}

    def settled(self) -> dict[str, str]:
        """The same after controllers have written all pending statuses."""
        former: dict[str, str] = {}
        end = time.monotonic() + 120
        while True:
            found = self.ours()
            now = {key: item["metadata"]["resourceVersion"] for key, item in found.items()}
            moving = [key for key, item in found.items() if now[key] != former.get(key) or coming(item)]
            if not moving and now.keys() == former.keys():
                return now
            assert time.monotonic() < end, f"still written by others: {moving}"
            former = now
            time.sleep(0.3)


def release(client: Client, namespace: str) -> None:
    """Removes our label from a Namespace if it exists: each run searches all Namespaces with this label for every
    kind."""
    if client.get("v1", "Namespace", namespace, metadata_only=True):
        client.merge_patch("v1", "Namespace", namespace, None, {"metadata": {"labels": {objects.COMPONENT: None}}})


def retire(made: clusters.Cluster, *names: str) -> None:
    """Removes Nodes with the pods on them, which would otherwise end after 40 s and be visible to later tests."""
    with made.api() as server:
        for name in names:
            server.request("DELETE", f"{nodes.NODES}/{name}", missing_ok=True)
            for pod in server.objects(f"{faults.PODS}?fieldSelector=spec.nodeName%3D{name}"):
                server.request("DELETE", faults.path(pod).removesuffix("/status"), {"gracePeriodSeconds": 0},
                               missing_ok=True)


def coming(item: Object) -> bool:
    """Whether a controller will still write the status of this object."""
    if item["kind"] not in ("DaemonSet", "Deployment"):
        return False
    status = item.get("status") or {}
    if status.get("observedGeneration") != item["metadata"]["generation"] or status.get("terminatingReplicas"):
        return True
    if item["kind"] == "DaemonSet":
        return len({status.get(key, 0) for key in (
            "desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable")}) > 1
    return {status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")} != {
        item["spec"]["replicas"]}
