# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares the GPUs that Nodes offer with the GPUs that their labels, or their hosts, have. Reads only. PRIVATE.

Source of the expected numbers: the labels of GPU feature discovery. C(nvidia.com/gpu.count) counts the GPUs of one
model, also those in MIG mode, so it is only a minimum, and says nothing for a Node with the MIG strategy C(mixed) and
MIG devices. With the strategy C(single) it counts the MIG devices. C(nvidia.com/mig-PROFILE.count) is exact. The
kubelet's capacity counts all devices of the device plugin, allocatable only those that it calls healthy.
"""

from __future__ import annotations

import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import Labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import gpu_capacity, is_ready, offered_gpus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import Difference

_COMPONENT = "device_plugin"
_GPU = "nvidia.com/gpu"
_MIG = re.compile(r"(nvidia\.com/mig-[a-z0-9.+-]+)\.count")
_NUMBER = re.compile(r"[0-9]{1,6}")
_SHARED = ".shared"  # the suffix of a shared resource with renameByDefault
# Seconds until a kubelet shows what a device plugin that has just started registers: it reports every 10 s.
_REGISTERS, _PAUSE = 60.0, 3.0


class Offer(t.NamedTuple):
    """A number of GPUs that differs. capacity: the number of devices that the device plugin has registered."""

    resource: str
    expected: int
    offered: int
    capacity: int


def differences(client: Client, names: t.Collection[str], gpus: t.Mapping[str, int], wait: float,
                clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep
                ) -> list[Difference]:
    """One difference for all Nodes that lack the same GPUs.

    names: the Nodes to compare, whose device plugin is ready; gpus: maps a Node to the number of GPUs of its host, for
    hosts whose facts show it; wait: seconds to wait for GPUs that are missing, of which at most _REGISTERS are used.
    """
    end = clock() + min(wait, _REGISTERS)
    while True:
        found: dict[Offer, list[str]] = {}
        nodes = client.list("v1", "Node", label_selector=f"{LABELS[_COMPONENT]}=true") if names else []
        for node in nodes:
            name = str(node["metadata"]["name"])
            for offer in differing(node, gpus.get(name)) if name in names and is_ready(node) else ():
                found.setdefault(offer, []).append(name)
        if not found or clock() >= end:
            return [_difference(offer, found[offer]) for offer in sorted(found)]
        sleep(_PAUSE)


def differing(node: Object, gpus: int | None = None) -> list[Offer]:
    """The resources whose allocatable number differs from the expected one.

    gpus: the number of GPUs of the host, None if it is not known. A Node whose device plugin has never registered a GPU
    is left out: the validator waits for that, and is not ready meanwhile.
    """
    labels: Labels = node["metadata"].get("labels") or {}
    capacity, offered = gpu_capacity(node), offered_gpus(node)
    if not capacity:
        return []
    found = []
    mixed = labels.get("nvidia.com/mig.strategy") == "mixed"
    devices = {match[1]: count for key in labels if (match := _MIG.fullmatch(key))
               and (count := _expected(labels, match[1])) is not None} if mixed else {}
    full = _expected(labels, _GPU, gpus)
    if full and (gpus is not None or not devices):
        now, whole = _full(offered), _full(capacity)
        # A Node can have GPUs of further models, which the labels do not count.
        if now < full or now > full and gpus is not None:
            found.append(Offer(_GPU, full, now, whole))
    for resource, count in sorted(devices.items()):
        now = _of(offered, resource)
        if now != count:
            found.append(Offer(resource, count, now, _of(capacity, resource)))
    return found


def _expected(labels: Labels, resource: str, count: int | None = None) -> int | None:
    """The number of devices times their replicas, None if a label is missing or invalid. count: replaces the label."""
    known = labels.get(f"{resource}.count", "") if count is None else str(count)
    replicas = labels.get(f"{resource}.replicas", "1")
    return int(known) * int(replicas) if _NUMBER.fullmatch(known) and _NUMBER.fullmatch(replicas) else None


def _full(resources: t.Mapping[str, int]) -> int:
    """The number of all GPUs that are no MIG devices of the strategy mixed, whatever the configuration calls them."""
    return sum(count for name, count in resources.items() if not name.startswith("nvidia.com/mig-"))


def _of(resources: t.Mapping[str, int], resource: str) -> int:
    return resources.get(resource, 0) + resources.get(resource + _SHARED, 0)


def _difference(offer: Offer, names: t.Sequence[str]) -> Difference:
    cause = f"the kubelet offers {offer.offered} {offer.resource}, {offer.expected} expected"
    if offer.offered > offer.expected:
        cause += ": the labels or the facts are older than the GPUs that the device plugin found"
        hint = "Read the log of the pod nvidia-gpu-feature-discovery on the Node, then run verify again."
    elif offer.capacity >= offer.expected:
        cause += ": the device plugin calls the others unhealthy"
        hint = ("Read the log of the pod nvidia-device-plugin on the Node, and search its kernel log (dmesg) for Xid. "
                "Reset or replace the GPU, then delete this pod.")
    else:
        cause += ": the device plugin did not find the others"
        hint = ("Compare with nvidia-smi -L on the Node. If all GPUs are listed there, delete the pod "
                "nvidia-device-plugin of the Node: it searches for GPUs only at its start.")
    return Difference(_COMPONENT, cause, hint, nodes=tuple(sorted(names)))
