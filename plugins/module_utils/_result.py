# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps: their level, their execution, and the result of a module.

A module reads the host and computes a list of steps. In check mode it stops there. Otherwise L(apply) executes exactly
these steps, and the module reads the host again. Steps have the same C(id) in check mode and in a run.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import refused

# The result of a module, as Ansible takes it.
Result = t.Dict[str, t.Any]
# An option in the argument specification of a module.
Option = t.Dict[str, object]
# Each level also allows what those before it allow. `never` allows what does not disturb running work.
LEVELS: t.Tuple[str, ...] = ("never", "idle", "drain", "reboot")


@dataclass(frozen=True)
class Step:
    """One change of a host.

    action: a verb phrase (C(install packages)). target: its object (C(nvidia-open=595.91.07-1)). reason: why it is
    necessary. needs: the lowest level of gpu_disruption that allows it. assumed: whether it is planned from device
    tables, because the device cannot be read yet. data: values for the code that executes the step, without secrets.
    """

    action: str
    target: str
    reason: str = ""
    needs: str = "never"
    assumed: bool = False
    data: t.Mapping[str, t.Any] = field(default_factory=dict, compare=False)

    @property
    def id(self) -> str:
        """Action and target, the same in check mode and in a run."""
        return f"{self.action}: {self.target}"

    def pending(self, reason: str) -> PendingStep:
        """The same step, which is not executed now. reason: why."""
        return PendingStep(self.action, self.target, self.reason, self.needs, self.assumed, self.data, reason)

    def as_dict(self) -> dict[str, str | bool]:
        """The step in results: C({id, action, target, reason, needs, assumed})."""
        return {"id": self.id, "action": self.action, "target": self.target, "reason": self.reason,
                "needs": self.needs, "assumed": self.assumed}


@dataclass(frozen=True)
class PendingStep(Step):
    """A step that is not executed now. pending_reason: why."""

    pending_reason: str = ""

    def as_dict(self) -> dict[str, str | bool]:
        """The step in results: that of L(Step.as_dict) with C(pending_reason)."""
        return {**super().as_dict(), "pending_reason": self.pending_reason}


class StepLog(t.Protocol):
    """The part of the journal that L(apply) uses."""

    def begin(self, step: Step) -> None:
        """Records that the step is about to run."""

    def done(self, step: Step) -> None:
        """Records that the step has run."""


def allows(level: str, needs: str) -> bool:
    """Whether a level allows a step that needs the level needs."""
    return LEVELS.index(level) >= LEVELS.index(needs)


def level_too_low(level: str, needs: str) -> str:
    """Why a step that needs the level needs is pending at a lower level."""
    return f"gpu_disruption is '{level}', this needs '{needs}' or higher"


def gate(steps: t.Sequence[Step], level: str) -> tuple[list[Step], list[PendingStep]]:
    """C((allowed steps, pending steps)).

    All steps from the first forbidden one on are pending, because later steps depend on earlier ones. Call it for each
    group of steps if groups are independent, such as those of GPUs.
    """
    for index, step in enumerate(steps):
        if not allows(level, step.needs):
            return list(steps[:index]), follow(steps[index:], level_too_low(level, step.needs))
    return list(steps), []


def follow(steps: t.Sequence[Step], reason: str) -> list[PendingStep]:
    """The steps as pending ones. reason: why the first one is pending; the others follow it."""
    return [step.pending(f"it follows '{steps[0].id}'" if at else reason) for at, step in enumerate(steps)]


def run_step(execute: t.Callable[[Step], None], step: Step) -> None:
    """Executes one step. All modules execute their steps with this function. Raises GpuopsError."""
    try:
        execute(step)
    except OSError as error:
        raise refused(error) from error


def apply(steps: t.Iterable[Step], execute: t.Callable[[Step], None], log: StepLog) -> None:
    """Executes steps, and records each before and after, so that the next run continues a killed run."""
    for step in steps:
        log.begin(step)
        run_step(execute, step)
        log.done(step)


def diff_entry(name: str, before: str, after: str) -> dict[str, str]:
    """An entry of the result C(diff)."""
    return {"before_header": name, "after_header": name, "before": before, "after": after}


def plan_diff(name: str, steps: t.Sequence[Step]) -> list[dict[str, str]]:
    """The steps as a diff; empty without steps."""
    if not steps:
        return []
    lines = "".join(f"{step.id}{f' ({step.reason})' if step.reason else ''}\n" for step in steps)
    return [diff_entry(f"{name}: steps", "", lines)]


def outcome(steps: t.Sequence[Step], pending: t.Sequence[PendingStep] = (),
            diff: t.Sequence[t.Mapping[str, str]] = (), **facts: object) -> Result:
    """The result of a module: C({changed, plan, pending, diff, **facts})."""
    return {"changed": bool(steps), "plan": [step.as_dict() for step in steps],
            "pending": [step.as_dict() for step in pending], "diff": list(diff), **facts}
