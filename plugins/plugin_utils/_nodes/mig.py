# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The labels by which a Node is asked for a MIG layout and says how it goes. Pure. PRIVATE.

The protocol is that of the MIG manager in GPU Operator 26.7: C(nvidia.com/mig.config) names the layout,
C(nvidia.com/mig.config.state) is pending, success, failed or rebooting, and operands that hold GPUs stop where their
deploy label says C(paused-for-mig-change). Unlike that manager, what is served here creates no label that was not there
and leaves none paused.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import DEPLOY, MIG_CONFIG
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    CLIENT,
    LABELS,
    MIG_DEFAULT,
    MIG_MANAGER,
)

STATE = f"{MIG_CONFIG}.state"
PAUSED = "paused-for-mig-change"
# Why the last layout failed: an annotation of ours, as the vendor's manager says it in its log alone.
REASON = "gpuops.nvidia/mig-reason"
SUCCESS, FAILED, PENDING, REBOOTING = "success", "failed", "pending", "rebooting"
# The states of a change that has not ended: the vendor's manager reboots the host in the midst of one.
UNDER_WAY = (PENDING, REBOOTING)
# Operands and pods of others that hold a GPU or know its parts.
PAUSES = (*(LABELS[name] for name in ("device_plugin", "feature_discovery", "dcgm_exporter", "dcgm")),
          f"{DEPLOY}nvsm", CLIENT)
# Nodes of the vendor's manager whose layout has not come to a good end, as a label selector.
UNSETTLED = f"{MIG_MANAGER}=true,{MIG_CONFIG},{STATE}!={SUCCESS}"
MANAGER = "app=nvidia-mig-manager"  # its pods, as a label selector
_KEPT = 1000  # characters of a reason

Object = t.Mapping[str, t.Any]
Labels = t.Mapping[str, str]
# Label to its new value.
Changes = t.Dict[str, str]


@dataclass(frozen=True)
class Stand:
    """Where a Node stands. asked: the layout, empty for none; state: as its label says, empty where there is none;
    paused: operands; reason: of the last failure; managed: whether the vendor's manager serves it."""

    node: str
    asked: str
    state: str
    paused: t.Tuple[str, ...]
    reason: str
    managed: bool

    @property
    def left(self) -> bool:
        """Whether a run that was killed, or a manager that gave up, has left something here."""
        return bool(self.paused) or self.state in UNDER_WAY

    @property
    def waits(self) -> bool:
        """Whether the vendor's manager is at it. What a GPU has by itself (MIG off) needs no answer."""
        return bool(self.asked) and self.state not in (SUCCESS, FAILED) and (
            bool(self.state) or self.asked != MIG_DEFAULT)

    def as_dict(self) -> dict[str, t.Any]:
        """For results."""
        return {"asked": self.asked, "state": self.state, "paused": list(self.paused), "reason": self.reason,
                "left": self.left, "managed": self.managed}


def stand(node: Object) -> Stand:
    """Of a Node's metadata."""
    labels = node["metadata"].get("labels") or {}
    return Stand(str(node["metadata"]["name"]), labels.get(MIG_CONFIG, ""), labels.get(STATE, ""),
                 tuple(key[len(DEPLOY):] for key in PAUSES if labels.get(key) == PAUSED),
                 (node["metadata"].get("annotations") or {}).get(REASON, ""), labels.get(MIG_MANAGER) == "true")


def changing(labels: Labels, layout: str, pause: bool = True) -> Changes:
    """The labels of a Node whose layout is about to change. Only what runs is paused, and nothing without pause."""
    paused = {key: PAUSED for key in PAUSES if pause and labels.get(key) == "true"}
    wanted = {MIG_CONFIG: layout, STATE: PENDING, **paused}
    return {key: value for key, value in wanted.items() if labels.get(key) != value}


def settled(labels: Labels, layout: str, state: str) -> Changes:
    """The labels of a Node on which nobody works any more. layout: empty where none is asked for any more."""
    wanted = {STATE: state, **({MIG_CONFIG: layout} if layout else {}),
              **{key: "true" for key in PAUSES if labels.get(key) == PAUSED}}
    return {key: value for key, value in wanted.items() if labels.get(key) != value}


def reason_of(text: str, state: str) -> str | None:
    """What the annotation is to say: one line, of a failure alone."""
    return " ".join(text.split())[:_KEPT] if state == FAILED else None


def steps(node: str, changes: Changes, reason_differs: bool = False) -> list[Step]:
    """What a change of labels means."""
    found = []
    if MIG_CONFIG in changes:
        found.append(Step("ask for layout", f"{changes[MIG_CONFIG]} on Node {node}"))
    if STATE in changes:
        found.append(Step("set MIG state", f"{changes[STATE]} on Node {node}"))
    elif reason_differs:
        found.append(Step("say why", f"Node {node}"))
    for key, value in changes.items():
        if key in PAUSES:
            found.append(Step("pause" if value == PAUSED else "resume", f"{key[len(DEPLOY):]} on Node {node}"))
    return found


def says(one: Stand, namespace: str, pod: str) -> tuple[str, str]:
    """(what is the matter, what to do) on a Node of the vendor's manager. pod: the manager's there, empty for none."""
    look = f"kubectl -n {namespace} logs {pod}" if pod else f"kubectl -n {namespace} get pods -o wide"
    paused = f"; it has left {', '.join(one.paused)} paused" if one.paused else ""
    if one.state == FAILED:
        again = f"kubectl -n {namespace} delete pod {pod}" if pod else "restart its pod"
        said = f": {one.reason}" if one.reason else ""
        return (f"the MIG manager could not apply {one.asked}, often because pods hold the GPUs, or the GPUs cannot "
                f"have it{said}{paused}",
                f"The reason is in its log: {look}. It does not try again by itself: put that right, then {again}, or "
                "ask for another layout.")
    if one.state == PENDING:
        return (f"the MIG manager has not finished {one.asked}{paused}",
                f"It evicts nobody: free the GPUs of {one.node} (gpuops.nvidia.node_drain). Where it stands: {look}.")
    if one.state == REBOOTING:
        return f"it reboots for {one.asked}", f"Wait for {one.node} to come back."
    return f"the MIG manager has not taken up {one.asked} yet", f"Look whether it runs on {one.node}: {look}."
