# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the status of Nodes and pods says. Pure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

Object = t.Mapping[str, t.Any]


def says_ready(one: Object) -> bool:
    """Whether the condition Ready of a pod or a Node is true (of a Node: its kubelet reports)."""
    conditions = (one.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
