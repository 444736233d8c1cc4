# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until DaemonSets, Deployments and Jobs are ready. PRIVATE to the collection."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object, Wanted

_PAUSE = 1.0


def wait(client: Client, wanted: t.Sequence[Wanted], timeout: float) -> None:
    """Waits until the DaemonSets, Deployments and Jobs among these objects are ready.

    timeout: in seconds. Raises ClusterError if one is not ready at the timeout.
    """
    waited = [desired for desired in wanted if desired.kind.kind in _MISSING]
    end = time.monotonic() + timeout
    while True:
        places = {(desired.kind, desired.manifest["metadata"]["namespace"]) for desired in waited}
        live = {objects.key_of(item): item for kind, namespace in places
                for item in client.list_row(kind, namespace)}
        missing = {desired.label: why for desired in waited for why in [not_ready(live.get(desired.key))] if why}
        if not missing:
            return
        if time.monotonic() > end:
            raise ClusterError(
                f"Objects are not ready after {timeout:.0f} s: "
                f"{'; '.join(f'{name}: {why}' for name, why in missing.items())}.",
                "Run gpu_verify, which names the causes, or read the events of the pods: kubectl describe pod.",
                verb="wait",
                object=next(iter(missing)), reason="Timeout", missing=missing)
        time.sleep(_PAUSE)


def not_ready(live: Object | None) -> str:
    """A clause that says why a workload is not ready; empty if it is ready. live: the current object, None if missing.
    """
    if live is None:
        return "it is missing"
    status = live.get("status") or {}
    if live["kind"] != "Job" and status.get("observedGeneration", 0) < live["metadata"]["generation"]:
        return "the controller has not observed the last change yet"
    return _MISSING[live["kind"]](live["spec"], status)


def _daemon_set(spec: Object, status: Object) -> str:
    desired, available = status.get("desiredNumberScheduled", 0), status.get("numberAvailable", 0)
    updated = status.get("updatedNumberScheduled", 0)
    # With OnDelete, outdated pods run until they are deleted, so they do not count as missing.
    if spec["updateStrategy"]["type"] == "RollingUpdate" and updated < desired:
        return f"{updated} of {desired} pods are updated"
    return f"{available} of {desired} pods are available" if available < desired else ""


def _deployment(spec: Object, status: Object) -> str:
    desired = spec["replicas"]
    done = min(status.get("updatedReplicas", 0), status.get("availableReplicas", 0))
    return f"{done} of {desired} pods are updated and available" if done < desired else ""


def _job(spec: Object, status: Object) -> str:
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or []}
    return "" if conditions.get("Complete") == "True" else "it is not complete"


_MISSING: t.Mapping[str, t.Callable[[Object, Object], str]] = {
    "DaemonSet": _daemon_set, "Deployment": _deployment, "Job": _job}
