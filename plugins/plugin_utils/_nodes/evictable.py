# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which pods of a Node are evicted, which must not be evicted, and which stay. Pure. PRIVATE.

The rules are those of C(kubectl drain), Kubernetes 1.36: pods of DaemonSets stay because they would be created again,
mirror pods because they belong to the kubelet, and pods that have ended because they run nothing.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.pod import Pod


@dataclass(frozen=True)
class EvictionOptions:
    """Which pods to evict. only_gpu: only pods that use a GPU; force: also pods without a controller, which are not
    created again; empty_dirs: also pods whose emptyDir volumes are lost."""

    only_gpu: bool = True
    force: bool = False
    empty_dirs: bool = False


@dataclass
class SortedPods:
    """The pods of one Node. evicted: pods to evict, pods with GPUs first; refused: C((pod, reason)) for pods that must
    not be evicted; staying: C((pod, reason)) for pods that use a GPU but stay."""

    evicted: list[Pod] = field(default_factory=list)
    refused: list[tuple[Pod, str]] = field(default_factory=list)
    staying: list[tuple[Pod, str]] = field(default_factory=list)


def sort(pods: t.Iterable[Pod], evictions: EvictionOptions) -> SortedPods:
    """Divides the pods of a Node into pods to evict, pods that must not be evicted and pods that stay."""
    found = SortedPods()
    for pod in sorted(pods, key=lambda pod: pod.label):
        if pod.ended or (evictions.only_gpu and not pod.uses_gpu):
            continue
        stays, why_not = _stays(pod), _refused(pod, evictions)
        if stays:
            if pod.uses_gpu:
                found.staying.append((pod, stays))
        elif why_not:
            found.refused.append((pod, why_not))
        else:
            found.evicted.append(pod)
    found.evicted.sort(key=lambda pod: not pod.uses_gpu)
    return found


def _stays(pod: Pod) -> str:
    if pod.mirror:
        return "it belongs to the kubelet (a mirror pod)"
    # The run that has deleted the DaemonSet of the MPS daemon deletes this pod after its clients have ended.
    if not pod.controller and pod.mps:
        return "it belongs to a DaemonSet that is being removed"
    return "it belongs to a DaemonSet" if pod.controller == "DaemonSet" else ""


def _refused(pod: Pod, evictions: EvictionOptions) -> str:
    if pod.ending:
        return ""
    if not evictions.force and not pod.controller:
        return "no controller creates it again on another Node (force: true evicts it)"
    if not evictions.empty_dirs and pod.empty_dirs:
        return "its emptyDir volumes would be lost (delete_emptydir_data: true evicts it)"
    return ""
