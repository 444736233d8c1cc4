# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cordons a Node, and restores its former state later. PRIVATE to the collection.

An annotation of the Node keeps whether it was cordoned before. It is written by the same request as the cordon, so that
the next run can restore the Node even if this run is killed.
"""

from __future__ import annotations

import typing as t

ANNOTATION = "gpuops.nvidia/cordoned-before"
Object = t.Mapping[str, t.Any]


def is_cordoned(node: Object) -> bool:
    """Whether a Node is cordoned, so that the scheduler assigns no pods to it."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def before(node: Object) -> bool | None:
    """Whether a Node was cordoned before this collection cordoned it, None if this collection has not."""
    kept = (node["metadata"].get("annotations") or {}).get(ANNOTATION)
    return None if kept is None else kept == "true"


def cordon(node: Object) -> dict[str, t.Any] | None:
    """The patch that cordons a Node and writes the annotation with its former state. None if both are done already."""
    kept = before(node)
    if is_cordoned(node) and kept is not None:
        return None
    patch: dict[str, t.Any] = {"spec": {"unschedulable": True}}
    if kept is None:
        patch["metadata"] = {"annotations": {ANNOTATION: "true" if is_cordoned(node) else "false"}}
    return patch


def uncordon(node: Object) -> dict[str, t.Any] | None:
    """The patch that reverts L(cordon); None for a Node that this collection has not cordoned."""
    kept = before(node)
    if kept is None:
        return None
    patch: dict[str, t.Any] = {"metadata": {"annotations": {ANNOTATION: None}}}
    if not kept and is_cordoned(node):
        patch["spec"] = {"unschedulable": None}
    return patch
