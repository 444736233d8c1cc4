# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking everything back, the Namespace where we made it and nothing foreign is left in it. PRIVATE."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import apply, kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.objects import Key, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.plan import Change, prune

# What the cluster itself puts into every namespace, and records that nobody misses.
_SYSTEM = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
_RECORDS = ("Event", "Lease", "Endpoints", "EndpointSlice", "PodMetrics")
_NAMESPACE = ("v1", "Namespace")


def plan(client: Client, live: t.Mapping[Key, Object], components: t.Collection[str] | None) -> list[Change]:
    """The removal of all of ours in components. With None also of what we put on and around the Namespace."""
    changes = prune(client, live, (), components)
    if components is None:
        for key, have in live.items():
            mark = have["metadata"].get("labels") or {}
            if key[:2] == _NAMESPACE and objects.COMPONENT in mark and "deletionTimestamp" not in have["metadata"]:
                changes.append(_namespace(client, have))
    return changes


def execute(client: Client, changes: t.Sequence[Change], timeout: float) -> None:
    """Removes, and waits until everything that is to be deleted is gone. Raises ClusterError after timeout seconds."""
    end = time.monotonic() + timeout
    spaces = [one for one in changes if one.kind.kind == "Namespace"]
    rest = [one for one in changes if one.kind.kind != "Namespace"]
    for group in (rest, spaces):
        apply.execute(client, group)
        _wait(client, [one for one in group if one.action == "delete"], end, timeout)


def foreign_in(client: Client, namespace: str) -> list[str]:
    """Objects in a namespace that are neither ours, nor owned by others, nor the cluster's own. By name, at most 10."""
    rows = client.namespaced_kinds()
    if rows is None:
        return ["(this server does not say which kinds it has)"]
    found = []
    answers = client.many(lambda row: client.list_row(row, namespace, metadata_only=True),
                          [row for row in rows if row.kind not in _RECORDS])
    for answer in without_errors(answers):
        found += [f"{one['kind']} {one['metadata']['name']}" for one in answer
                  if not objects.is_ours(one) and not one["metadata"].get("ownerReferences")
                  and (one["kind"], one["metadata"]["name"]) not in _SYSTEM]
    return sorted(found)[:10]


def _namespace(client: Client, have: Object) -> Change:
    row = kinds.find(*_NAMESPACE)
    if objects.CREATED not in (have["metadata"].get("annotations") or {}):
        return Change("release", row, objects.SHARED, None, have, ("it was there before",))
    left = foreign_in(client, have["metadata"]["name"])
    if left:
        return Change("release", row, objects.SHARED, None, have, (f"others use it: {', '.join(left)}",))
    return Change("delete", row, objects.SHARED, None, have)


def _wait(client: Client, gone: t.Sequence[Change], end: float, timeout: float) -> None:
    uids = {t.cast(Object, one.live)["metadata"]["uid"]: one.label for one in gone}
    places = {(one.kind, one.namespace or None) for one in gone}

    def there() -> list[str]:
        return [uids[item["metadata"]["uid"]] for kind, namespace in places
                for item in client.list_row(kind, namespace, metadata_only=True) if item["metadata"]["uid"] in uids]

    if not apply.wait_until(lambda: not there(), end - time.monotonic()):
        left = there()
        raise ClusterError(f"Not gone after {timeout:.0f} s: {', '.join(left)}.",
                           "Look at their finalizers (metadata.finalizers) and at the pods that they wait for.",
                           verb="delete", object=left[0] if left else "", reason="Timeout", left=left)
