# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until the pods of operands that a deploy label has paused have ended. PRIVATE to the collection."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.pod import pods_on

_PAUSE = 1.0  # seconds between two requests


def await_end(client: Client, names: t.Sequence[str], keys: t.Collection[str], value: str, timeout: float,
              clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
    """Waits until the DaemonSets that select a paused label have no pods left on the Nodes.

    names: the Nodes; keys: the deploy labels; value: the value of a paused label; timeout: seconds for all Nodes.
    Raises ClusterError with the names of the remaining pods.
    """
    # Maps the uid of a DaemonSet to the labels among keys that it selects.
    selected = {one["metadata"]["uid"]: _selected(one) & set(keys) for one in client.list("apps/v1", "DaemonSet")}
    end = clock() + timeout
    while True:
        left = []
        for name, one in node.named(client, names).items():
            uids = {uid for uid, mine in selected.items() if any(one.labels.get(key) == value for key in mine)}
            left += [pod.label for pod in (pods_on(client, name) if uids else ()) if pod.owners & uids]
        if not left:
            return
        if clock() >= end:
            raise ClusterError(f"Operands did not end within {timeout:g} seconds: {', '.join(left)}.",
                               "Find out why with kubectl describe pod.", verb="wait", object=left[0], reason="Timeout")
        sleep(_PAUSE)


def _selected(daemon_set: Live) -> set[str]:
    """The keys of the Node labels that a DaemonSet selects."""
    return set(daemon_set["spec"]["template"]["spec"].get("nodeSelector") or {})
