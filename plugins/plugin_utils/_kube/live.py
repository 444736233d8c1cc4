# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the current objects that are compared with a plan: one list for each kind and namespace. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Key, Object, Wanted

# Of these kinds only the metadata is read, because the whole objects of a large cluster take many MB.
_METADATA_ONLY = ("CustomResourceDefinition", "Namespace")
# Objects of these kinds may be planned in the namespace of the monitoring tools, so all namespaces are read.
_ANYWHERE = ("ServiceMonitor", "PrometheusRule")

# A kind, and the namespace to list, None for all.
Place = t.Tuple[kinds.Kind, t.Optional[str]]


def read(client: Client, wanted: t.Sequence[Wanted], everything: bool = False) -> dict[Key, Object]:
    """Maps keys to the current objects, owned and foreign, of the kinds in wanted and of the shipped kinds.

    Namespaced kinds are listed in the namespaces of wanted and in namespaces with the component label. everything: for
    a removal, also read the kinds of a user's own manifests, and owned objects in all namespaces.
    """
    rows = {one.kind for one in wanted} | set(kinds.shipped(everything))
    named = {one.manifest["metadata"]["namespace"] for one in wanted if one.kind.namespaced}
    whole = {one.kind for one in wanted}
    first = [(row, None) for row in rows if not row.namespaced or row.kind in _ANYWHERE]
    found = _lists(client, [*first, *_places(rows, named)], whole)
    ours = {key[3] for key, live in found.items()
            if key[1] == "Namespace" and objects.COMPONENT in (live["metadata"].get("labels") or {})}
    found.update(_lists(client, _places(rows, ours - named), whole))
    if everything:
        anywhere = [(row, None) for row in rows if row.namespaced]
        found.update(_lists(client, anywhere, whole, f"{objects.MANAGED_BY}={objects.MANAGER_NAME}"))
    return found


def _places(rows: t.Iterable[kinds.Kind], namespaces: t.Iterable[str]) -> list[Place]:
    return [(row, namespace) for namespace in sorted(namespaces) for row in rows
            if row.namespaced and row.kind not in _ANYWHERE]


def _lists(client: Client, places: t.Sequence[Place], whole: t.Collection[kinds.Kind],
           selector: str | None = None) -> dict[Key, Object]:
    def listed(place: Place) -> list[Object]:
        row, namespace = place
        metadata_only = row.kind in _METADATA_ONLY or (row.kind == "Secret" and row not in whole)
        return client.list_row(row, namespace, selector, metadata_only=metadata_only)

    found: dict[Key, Object] = {}
    for answer in without_errors(client.many(listed, places)):
        found.update({objects.key_of(item): item for item in answer})
    return found
