# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the status of Nodes and pods. Pure. PRIVATE to the collection."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live

_PREFIX = "nvidia.com/"
# A number of ASCII digits. int() alone would accept other digits, and raises ValueError for very long numbers.
_COUNT = re.compile("[0-9]{1,19}")


def is_ready(live: Live) -> bool:
    """Whether the condition Ready of a pod or a Node is True and the object is not being deleted."""
    conditions = (live.get("status") or {}).get("conditions") or ()
    return "deletionTimestamp" not in live["metadata"] and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def is_gpu(resource: str) -> bool:
    """Whether an extended resource is a GPU or a MIG device: C(nvidia.com/gpu), C(nvidia.com/gpu.shared),
    C(nvidia.com/mig-1g.10gb), or a name of the device plugin's configuration.

    Other resources of NVIDIA, such as the resources of the Network Operator, are not GPUs.
    """
    name = resource[len(_PREFIX):]
    return resource.startswith(_PREFIX) and ("gpu" in name or name.startswith("mig-"))


def offered_gpus(node: Live) -> dict[str, int]:
    """Maps each GPU resource of a Node to its allocatable number. Resources with the number 0 are left out.

    The numbers of a Node that is NotReady may be out of date.
    """
    return {name: amount for name, amount in _gpus(node, "allocatable").items() if amount}


def gpu_capacity(node: Live) -> dict[str, int]:
    """Maps each GPU resource of a Node to its capacity. A resource that is no longer registered has the number 0."""
    return _gpus(node, "capacity")


def _gpus(node: Live, field: str) -> dict[str, int]:
    amounts = (node.get("status") or {}).get(field) or {}
    return {name: int(amount) for name, amount in amounts.items() if is_gpu(name) and _COUNT.fullmatch(str(amount))}
