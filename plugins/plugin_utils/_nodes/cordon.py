# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cordons a Node, and restores its former state later. PRIVATE to the collection.

An annotation stores whether the Node was cordoned before. The request that cordons the Node also writes the annotation,
so that the next run can restore the Node even if this run is killed.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodePatch, NodeState

ANNOTATION = "gpuops.nvidia/cordoned-before"


def before(node: NodeState) -> bool | None:
    """Whether a Node was cordoned before this collection cordoned it; None if this collection has not cordoned it."""
    kept = node.annotations.get(ANNOTATION)
    return None if kept is None else kept == "true"


def cordon(node: NodeState) -> NodePatch:
    """The patch that cordons a Node and stores its former state in the annotation; empty if both are done already."""
    kept = before(node)
    if node.cordoned and kept is not None:
        return NodePatch()
    mark = {ANNOTATION: "true" if node.cordoned else "false"} if kept is None else {}
    return NodePatch(annotations=mark, spec={"unschedulable": True})


def uncordon(node: NodeState) -> NodePatch:
    """The patch that reverts L(cordon); empty for a Node that this collection has not cordoned."""
    kept = before(node)
    if kept is None:
        return NodePatch()
    return NodePatch(annotations={ANNOTATION: None},
                     spec={"unschedulable": None} if node.cordoned and not kept else {})
