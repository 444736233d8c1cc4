# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the status of Nodes and pods. Pure. PRIVATE to the collection."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live

_PREFIX = "nvidia.com/"
# A whole number of ASCII digits. int() would accept other digits, and refuses numbers that are too long.
_COUNT = re.compile("[0-9]{1,19}")


def says_ready(one: Live) -> bool:
    """Whether a pod or a Node has the condition Ready and is not being deleted."""
    conditions = (one.get("status") or {}).get("conditions") or ()
    return "deletionTimestamp" not in one["metadata"] and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_gpu(resource: str) -> bool:
    """Whether an extended resource is a GPU or a MIG device: C(nvidia.com/gpu), C(nvidia.com/gpu.shared),
    C(nvidia.com/mig-1g.10gb), or a name of the device plugin's configuration.

    Other resources of NVIDIA, such as those of the network operator, are not.
    """
    word = resource[len(_PREFIX):]
    return resource.startswith(_PREFIX) and ("gpu" in word or word.startswith("mig-"))


def offered_gpus(node: Live) -> dict[str, int]:
    """Maps resources to the number of GPUs or MIG devices that are allocatable on a Node, without those with 0.

    If the Node is NotReady, the numbers may be out of date.
    """
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: int(amount) for name, amount in allocatable.items()
            if is_gpu(name) and _COUNT.fullmatch(str(amount)) and amount != "0"}
