# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The labels that request a MIG layout for a Node and report its state. Pure. PRIVATE.

The protocol is the same as in the MIG manager of GPU Operator 26.7: C(nvidia.com/mig.config) names the layout,
C(nvidia.com/mig.config.state) is pending, success, failed or rebooting, and operands that hold GPUs are paused by the
value C(paused-for-mig-change) of their deploy labels. Unlike that manager, this collection creates no deploy labels
that a Node did not have, and leaves none paused.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result, Step
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import DEPLOY, MIG_CONFIG, Labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    CLIENT,
    LABELS,
    MIG_DEFAULT,
    MIG_FAILED,
    MIG_MANAGER,
    MIG_REASON,
    MIG_STATE,
    MIG_UNDER_WAY,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState

STATE = MIG_STATE
PAUSED = "paused-for-mig-change"
# The annotation that says why the last layout failed. The vendor's manager only writes this into its log.
REASON = MIG_REASON
SUCCESS, FAILED = "success", MIG_FAILED
# The states of a change that has not ended. The vendor's manager may reboot the host during a change.
UNDER_WAY = PENDING, REBOOTING = MIG_UNDER_WAY
# The deploy labels of operands, and of foreign pods, that have opened a GPU or read its MIG instances at their start.
PAUSES = (*(LABELS[name] for name in ("device_plugin", "feature_discovery", "dcgm_exporter", "dcgm")),
          f"{DEPLOY}nvsm", CLIENT)
# The label selector for Nodes of the vendor's manager whose layout has not been applied successfully.
NOT_APPLIED = f"{MIG_MANAGER}=true,{MIG_CONFIG},{STATE}!={SUCCESS}"
MANAGER = "app=nvidia-mig-manager"  # the label selector for the pods of the vendor's manager
_KEPT = 1000  # the maximum number of characters of a reason

# Maps labels to their new values.
Changes = t.Dict[str, str]


@dataclass(frozen=True)
class NodeMig:
    """The MIG state of a Node. layout: the requested layout, empty for none; state: the label's value, empty without
    the label; paused: the operands that are paused; reason: why the last change failed; managed: whether the vendor's
    manager serves the Node."""

    node: str
    layout: str
    state: str
    paused: t.Tuple[str, ...]
    reason: str
    managed: bool

    @property
    def unfinished(self) -> bool:
        """Whether operands are still paused or a change has not ended, for example because a run was killed."""
        return bool(self.paused) or self.state in UNDER_WAY

    @property
    def is_waiting(self) -> bool:
        """Whether the vendor's manager has not finished applying the layout yet. False for a Node without a state if
        the requested layout is the default (MIG off)."""
        return bool(self.layout) and self.state not in (SUCCESS, FAILED) and (
            bool(self.state) or self.layout != MIG_DEFAULT)

    def as_dict(self) -> Result:
        """The state, as shown in results."""
        return {"layout": self.layout, "state": self.state, "paused": list(self.paused), "reason": self.reason,
                "unfinished": self.unfinished, "managed": self.managed}


def read(node: NodeState) -> NodeMig:
    """Reads the MIG state from the labels and annotations of a Node."""
    labels = node.labels
    return NodeMig(node.name, labels.get(MIG_CONFIG, ""), labels.get(STATE, ""),
                   tuple(key[len(DEPLOY):] for key in PAUSES if labels.get(key) == PAUSED),
                   node.annotations.get(REASON, ""), labels.get(MIG_MANAGER) == "true")


def labels_before(labels: Labels, layout: str, pause: bool = True) -> Changes:
    """The labels to write before the layout of a Node changes. pause: whether to pause the operands that run."""
    paused = {key: PAUSED for key in PAUSES if pause and labels.get(key) == "true"}
    wanted = {MIG_CONFIG: layout, STATE: PENDING, **paused}
    return {key: value for key, value in wanted.items() if labels.get(key) != value}


def labels_after(labels: Labels, layout: str, state: str) -> Changes:
    """The labels to write when a change has ended. layout: the layout to request, empty to leave the label as it is."""
    wanted = {STATE: state, **({MIG_CONFIG: layout} if layout else {}),
              **{key: "true" for key in PAUSES if labels.get(key) == PAUSED}}
    return {key: value for key, value in wanted.items() if labels.get(key) != value}


def reason_of(text: str, state: str) -> str | None:
    """The value of the annotation REASON, as one line; None if the change has not failed."""
    return " ".join(text.split())[:_KEPT] if state == FAILED else None


def steps(node: str, changes: Changes, reason_differs: bool = False) -> list[Step]:
    """The steps for a change of labels."""
    result = []
    if MIG_CONFIG in changes:
        result.append(Step("request layout", f"{changes[MIG_CONFIG]} on Node {node}"))
    if STATE in changes:
        result.append(Step("set MIG state", f"{changes[STATE]} on Node {node}"))
    elif reason_differs:
        result.append(Step("write the reason", f"Node {node}"))
    for key, value in changes.items():
        if key in PAUSES:
            result.append(Step("pause" if value == PAUSED else "resume", f"{key[len(DEPLOY):]} on Node {node}"))
    return result


def explain(one: NodeMig, namespace: str, pod: str) -> tuple[str, str]:
    """(the problem, its remedy) of a Node that the vendor's manager serves. pod: the manager's pod there, or empty."""
    look = f"kubectl -n {namespace} logs {pod}" if pod else f"kubectl -n {namespace} get pods -o wide"
    paused = f"; it has left {', '.join(one.paused)} paused" if one.paused else ""
    if one.state == FAILED:
        again = f"kubectl -n {namespace} delete pod {pod}" if pod else "restart its pod"
        why = f": {one.reason}" if one.reason else ""
        return (f"the MIG manager could not apply {one.layout}, often because pods use the GPUs, or the GPUs do "
                f"not support it{why}{paused}",
                f"The reason is in its log: {look}. The MIG manager does not try again by itself. Remove the cause, "
                f"then {again}, or request another layout.")
    if one.state == PENDING:
        return (f"the MIG manager has not finished applying {one.layout}{paused}",
                f"The MIG manager evicts no pods: free the GPUs of {one.node} (gpuops.nvidia.node_drain). Its log: "
                f"{look}.")
    if one.state == REBOOTING:
        return f"the host reboots to apply {one.layout}", f"Wait until {one.node} is Ready again."
    return f"the MIG manager has not begun to apply {one.layout}", f"Check whether it runs on {one.node}: {look}."
