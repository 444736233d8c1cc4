# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the status of Nodes and pods says. Pure. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

Object = t.Mapping[str, t.Any]

_PREFIX = "nvidia.com/"
# As an API server writes a whole number; no other digits than these, and none that Python refuses for their count.
_COUNT = re.compile("[0-9]{1,19}")


def says_ready(one: Object) -> bool:
    """Whether a pod or a Node is there to stay and its condition Ready is true (of a Node: its kubelet reports)."""
    conditions = (one.get("status") or {}).get("conditions") or ()
    return "deletionTimestamp" not in one["metadata"] and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_gpu(resource: str) -> bool:
    """Whether a resource is a GPU or a part of one: C(nvidia.com/gpu), C(nvidia.com/gpu.shared),
    C(nvidia.com/mig-1g.10gb), or one that the device plugin's configuration has named otherwise.

    Others of the vendor's, such as those of its network operator, are none.
    """
    word = resource[len(_PREFIX):]
    return resource.startswith(_PREFIX) and ("gpu" in word or word.startswith("mig-"))


def offered_gpus(node: Object) -> dict[str, int]:
    """By resource how many GPUs, or parts of them, a kubelet offers to pods; those of which it has none are left out.

    It is the last word of a kubelet: of a Node that is not Ready it may be an old one.
    """
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: int(amount) for name, amount in allocatable.items()
            if is_gpu(name) and _COUNT.fullmatch(str(amount)) and amount != "0"}
