# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cordons that are taken back to what was there before. PRIVATE to the collection.

What a Node was before is kept in an annotation of it, written by the same request as the cordon, so that a killed run
leaves a Node that the next one can bring back.
"""

from __future__ import annotations

import typing as t

ANNOTATION = "gpuops.nvidia/cordoned-before"
Object = t.Mapping[str, t.Any]


def is_cordoned(node: Object) -> bool:
    """Whether the scheduler leaves the Node alone."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def before(node: Object) -> bool | None:
    """Whether a Node of ours was cordoned before we came, None for one that is not ours."""
    kept = (node["metadata"].get("annotations") or {}).get(ANNOTATION)
    return None if kept is None else kept == "true"


def cordon(node: Object) -> dict[str, t.Any] | None:
    """The patch that cordons a Node, or remembers that somebody has; None where both is done."""
    kept = before(node)
    if is_cordoned(node) and kept is not None:
        return None
    patch: dict[str, t.Any] = {"spec": {"unschedulable": True}}
    if kept is None:
        patch["metadata"] = {"annotations": {ANNOTATION: "true" if is_cordoned(node) else "false"}}
    return patch


def uncordon(node: Object) -> dict[str, t.Any] | None:
    """The patch that takes L(cordon) back; None for a Node that is not ours."""
    kept = before(node)
    if kept is None:
        return None
    patch: dict[str, t.Any] = {"metadata": {"annotations": {ANNOTATION: None}}}
    if not kept and is_cordoned(node):
        patch["spec"] = {"unschedulable": None}
    return patch
