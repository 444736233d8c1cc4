# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads pods, and finds out whether they use a GPU. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON, Live, controller_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_gpu

_MIRROR = "kubernetes.io/config.mirror"
# How a pod can request devices of the container runtime, besides its environment (NVIDIA/nvidia-container-toolkit).
_CDI = "cdi.k8s.io/"
_AS_MOUNTS = "/var/run/nvidia-container-devices"
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Pod:
    """A pod, as read from the API server.

    node: its Node; ended: whether none of its containers runs any more; ending: whether it was deleted; controller: the
    kind of its controller, empty if none; owners: the uids of its owners; mirror: whether it belongs to the
    kubelet; mps: whether it is an MPS daemon; empty_dirs: whether it has emptyDir volumes; uses_gpu: whether it uses a
    GPU or a part of one, as far as its specification shows it.
    """

    uid: str
    name: str
    namespace: str
    node: str
    ended: bool
    ending: bool
    controller: str
    owners: frozenset[str]
    mirror: bool
    mps: bool
    empty_dirs: bool
    uses_gpu: bool

    @classmethod
    def read(cls, one: Live) -> Pod:
        """Reads an object of the API server."""
        meta, spec = one["metadata"], one["spec"]
        owners = meta.get("ownerReferences") or ()
        return cls(
            meta["uid"], meta["name"], meta["namespace"], spec.get("nodeName", ""),
            has_ended(one), "deletionTimestamp" in meta,
            controller_of(one).get("kind", ""),
            frozenset(owner.get("uid", "") for owner in owners), _MIRROR in (meta.get("annotations") or {}),
            (meta.get("labels") or {}).get("app") == MPS_DAEMON,
            any("emptyDir" in volume for volume in spec.get("volumes") or ()), _uses_gpu(one))

    @property
    def label(self) -> str:
        """C(namespace/name)."""
        return f"{self.namespace}/{self.name}"


def has_ended(pod: Live) -> bool:
    """Whether no container of a pod runs any more."""
    return (pod.get("status") or {}).get("phase") in _ENDED


def pods_on(client: Client, node: str, selector: str = "") -> list[Pod]:
    """The pods of a Node. selector: the label selector of the pods, empty for all pods."""
    return [Pod.read(one) for one in client.list("v1", "Pod", label_selector=selector or None,
                                                 field_selector=f"spec.nodeName={node}")]


def _uses_gpu(pod: Live) -> bool:
    """Whether a pod uses a GPU: it requests a GPU as a resource (L(status.is_gpu)), it has a resource claim, whose
    device is not known here, or it has an environment variable, a mount or a CDI annotation because of which the
    container runtime gives it a GPU."""
    spec = pod["spec"]
    init = list(spec.get("initContainers") or ())
    # Of the init containers only the sidecars keep running.
    running = [*(spec.get("containers") or ()), *(spec.get("ephemeralContainers") or ()),
               *(one for one in init if one.get("restartPolicy") == "Always")]
    annotations = pod["metadata"].get("annotations") or {}
    return (any(map(_requests_gpu, (spec, *running, *init))) or bool(spec.get("resourceClaims"))
            or any(map(_is_given_gpu, running))
            or any(key.startswith(_CDI) and "nvidia.com/" in value for key, value in annotations.items()))


def _requests_gpu(container: Live) -> bool:
    """Whether a container, or a pod with resources for all its containers, requests a GPU."""
    resources = container.get("resources") or {}
    counts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(is_gpu(name) and str(count) != "0" for name, count in counts.items())


def _is_given_gpu(container: Live) -> bool:
    """Whether NVIDIA's container runtime gives a container a GPU. A value from valueFrom is not known here, and counts
    as a GPU."""
    values: list[str] = [one.get("value") or ("?" if one.get("valueFrom") else "") for one in container.get("env") or ()
                         if one.get("name") == "NVIDIA_VISIBLE_DEVICES"]
    mounts: t.Iterable[str] = (one.get("mountPath", "") for one in container.get("volumeMounts") or ())
    return values[-1:] not in ([], [""], ["void"], ["none"]) or any(path.startswith(_AS_MOUNTS) for path in mounts)
