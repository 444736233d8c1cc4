# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods of a Node are evicted, which must not be, and which stay. Pure. PRIVATE.

The rules are those of C(kubectl drain), Kubernetes 1.36: pods of DaemonSets stay because they would come back at once,
mirror pods because they belong to the kubelet, and pods that have ended because they run nothing.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_gpu

Pod = t.Mapping[str, t.Any]

_MIRROR = "kubernetes.io/config.mirror"
# How a pod can name devices to the container runtime, beside its environment (NVIDIA/nvidia-container-toolkit).
_CDI = "cdi.k8s.io/"
_AS_MOUNTS = "/var/run/nvidia-container-devices"
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Wish:
    """Which pods to evict. only_gpu: only pods that use a GPU; force: also pods without a controller, which nobody
    creates again; empty_dirs: also pods whose emptyDir volumes are lost."""

    only_gpu: bool = True
    force: bool = False
    empty_dirs: bool = False


@dataclass
class Sorted:
    """The pods of one Node. going: those to evict, pods with GPUs first; refused: C((pod, reason)) for pods that must
    not be evicted; staying: C((pod, reason)) for pods that use a GPU but stay."""

    going: list[Pod] = field(default_factory=list)
    refused: list[tuple[Pod, str]] = field(default_factory=list)
    staying: list[tuple[Pod, str]] = field(default_factory=list)


def sort(pods: t.Iterable[Pod], wish: Wish) -> Sorted:
    """Sorts the pods of a Node by whether they are evicted, and by their names."""
    found = Sorted()
    for pod in sorted(pods, key=label):
        if ended(pod) or (wish.only_gpu and not uses_gpu(pod)):
            continue
        stays, why_not = _stays(pod), _refused(pod, wish)
        if stays:
            if uses_gpu(pod):
                found.staying.append((pod, stays))
        elif why_not:
            found.refused.append((pod, why_not))
        else:
            found.going.append(pod)
    found.going.sort(key=lambda pod: not uses_gpu(pod))
    return found


def label(pod: Pod) -> str:
    """C(namespace/name) of a pod."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def ended(pod: Pod) -> bool:
    """Whether no container of a pod runs any more."""
    return (pod.get("status") or {}).get("phase") in _ENDED


def uses_gpu(pod: Pod) -> bool:
    """Whether a pod uses a GPU or a part of one, as far as its specification shows it.

    It requests one as a resource (L(status.is_gpu)); or it has a resource claim, whose device is not known here; or the
    container runtime gives it one without a request: because of its environment, of mounts with the same effect, or of
    a CDI annotation.
    """
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("ephemeralContainers") or ())]
    starters = list(spec.get("initContainers") or ())
    # Of the init containers only those that keep running (sidecars).
    containers += [one for one in starters if one.get("restartPolicy") == "Always"]
    annotations = pod["metadata"].get("annotations") or {}
    return (any(_asks(one) for one in (spec, *containers, *starters)) or bool(spec.get("resourceClaims"))
            or any(_is_given(one) for one in containers)
            or any(key.startswith(_CDI) and "nvidia.com/" in str(value) for key, value in annotations.items()))


def _asks(one: t.Mapping[str, t.Any]) -> bool:
    """Whether a container, or a pod with resources for all its containers, requests a GPU."""
    resources = one.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(is_gpu(name) and str(count) != "0" for name, count in asked.items())


def _is_given(container: t.Mapping[str, t.Any]) -> bool:
    """Whether NVIDIA's container runtime gives a container a GPU. A value from valueFrom is not known here, and counts.
    """
    given = [str(one.get("value") or ("?" if one.get("valueFrom") else "")) for one in container.get("env") or ()
             if one.get("name") == "NVIDIA_VISIBLE_DEVICES"]
    mounts = [str(one.get("mountPath")) for one in container.get("volumeMounts") or ()]
    return given[-1:] not in ([], [""], ["void"], ["none"]) or any(path.startswith(_AS_MOUNTS) for path in mounts)


def _controller(pod: Pod) -> str:
    return next((str(owner["kind"]) for owner in pod["metadata"].get("ownerReferences") or ()
                 if owner.get("controller")), "")


def _stays(pod: Pod) -> str:
    if _MIRROR in (pod["metadata"].get("annotations") or {}):
        return "it belongs to the kubelet (a mirror pod)"
    # The run that has deleted the DaemonSet of the MPS daemon ends it, after its clients.
    if not _controller(pod) and (pod["metadata"].get("labels") or {}).get("app") == MPS_DAEMON:
        return "it belongs to a DaemonSet that is being removed"
    return "it belongs to a DaemonSet" if _controller(pod) == "DaemonSet" else ""


def _refused(pod: Pod, wish: Wish) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return ""  # the pod is ending already
    if not wish.force and not _controller(pod):
        return "no controller brings it back elsewhere (force: true gives it up)"
    if not wish.empty_dirs and any("emptyDir" in one for one in pod["spec"].get("volumes") or ()):
        return "its emptyDir volumes would be lost (delete_emptydir_data: true gives them up)"
    return ""
