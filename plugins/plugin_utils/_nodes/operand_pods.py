# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until the pods of operands that a deploy label has paused have ended. PRIVATE to the collection."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import node

_PAUSE = 1.0  # seconds between two requests
Object = t.Mapping[str, t.Any]


def await_end(client: Client, names: t.Sequence[str], keys: t.Collection[str], value: str, timeout: float,
              clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
    """Returns when the DaemonSets that select a paused label have no pods left on the Nodes.

    names: those of the Nodes; keys: the labels, each of which is paused if it has this value; timeout: seconds for all
    Nodes. Raises ClusterError with the names of the remaining pods.
    """
    sets = [one for one in client.list("apps/v1", "DaemonSet") if selected(one) & set(keys)]
    end = clock() + timeout
    while True:
        left = [pod for name, one in node.named(client, names).items()
                for pod in _pods(client, name, {key for key in keys if labels(one).get(key) == value}, sets)]
        if not left:
            return
        if clock() >= end:
            raise ClusterError(f"Operands do not end within {timeout:g} seconds: {', '.join(left)}.",
                               "Find out why with kubectl describe pod.", verb="wait", object=left[0], reason="Timeout")
        sleep(_PAUSE)


def _pods(client: Client, name: str, paused: t.AbstractSet[str], sets: t.Sequence[Object]) -> list[str]:
    uids = {item["metadata"]["uid"] for item in sets if selected(item) & paused}
    pods = client.list("v1", "Pod", field_selector=f"spec.nodeName={name}") if uids else []
    return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods
            if any(owner.get("uid") in uids for owner in pod["metadata"].get("ownerReferences") or ())]


def labels(one: Object) -> dict[str, str]:
    """The labels of an object."""
    return dict(one["metadata"].get("labels") or {})


def selected(item: Object) -> set[str]:
    """The keys of the Node labels that a DaemonSet selects."""
    return set(item["spec"]["template"]["spec"].get("nodeSelector") or {})
