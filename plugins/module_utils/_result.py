# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans as plain data, their gate by C(gpu_disruption), their execution, and the shape of results.

A module reads the host, computes a list of steps, and in check mode stops there. Otherwise L(apply) executes exactly
these steps, and the module reads again. A step's C(id) is stable: what check mode names is what the run then does.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import refused

# Ordered: each level allows what the former allow. `never` still allows what disturbs nothing that runs.
LEVELS: t.Tuple[str, ...] = ("never", "idle", "drain", "reboot")


@dataclass(frozen=True)
class Step:
    """One act on a host.

    action: a verb phrase (C(install packages)); target: what it acts on (C(nvidia-open=595.91.07-1)).
    reason: why it is needed. needs: the lowest gpu_disruption level that allows it.
    assumed: planned from device tables because the device cannot be read yet.
    data: plain values for the code that executes the step; secrets do not belong here.
    """

    action: str
    target: str
    reason: str = ""
    needs: str = "never"
    assumed: bool = False
    data: t.Mapping[str, t.Any] = field(default_factory=dict, compare=False)

    @property
    def id(self) -> str:
        """What stays the same between check mode and the run: action and target."""
        return f"{self.action}: {self.target}"

    def as_dict(self) -> dict[str, t.Any]:
        """For results and diffs: C({id, action, target, reason, needs, assumed})."""
        return {"id": self.id, "action": self.action, "target": self.target, "reason": self.reason,
                "needs": self.needs, "assumed": self.assumed}


class StepLog(t.Protocol):
    """What L(apply) needs of the journal."""

    def begin(self, step: Step) -> None:
        """Records that the step is about to run."""

    def done(self, step: Step) -> None:
        """Records that the step has run."""


def allows(level: str, needs: str) -> bool:
    """Whether gpu_disruption level permits an act that needs another level."""
    return LEVELS.index(level) >= LEVELS.index(needs)


def gate(steps: t.Sequence[Step], level: str) -> tuple[list[Step], list[dict[str, t.Any]]]:
    """Splits a plan into what may be done now and what stays pending.

    From the first forbidden step on, everything stays pending: later steps build on earlier ones. A domain whose
    steps are independent of each other (GPUs, say) gates each group by itself.
    Returns (steps, pending), pending: C([{id, ..., pending_reason}]).
    """
    for index, step in enumerate(steps):
        if not allows(level, step.needs):
            blocked = f"gpu_disruption is '{level}', this needs '{step.needs}' or higher"
            pending = [{**step.as_dict(), "pending_reason": blocked}]
            pending += [{**later.as_dict(), "pending_reason": f"it follows '{step.id}'"} for later in steps[index + 1:]]
            return list(steps[:index]), pending
    return list(steps), []


def run_step(execute: t.Callable[[Step], None], step: Step) -> None:
    """Executes one step. The only place from which steps are executed, in every module. Raises GpuopsError."""
    try:
        execute(step)
    except OSError as error:
        raise refused(error) from error


def apply(steps: t.Iterable[Step], execute: t.Callable[[Step], None], log: StepLog) -> None:
    """Executes a plan, each step journalled before and after, so that a killed run is continued by the next one."""
    for step in steps:
        log.begin(step)
        run_step(execute, step)
        log.done(step)


def diff_entry(name: str, before: str, after: str) -> dict[str, str]:
    """One entry of Ansible's C(diff) list."""
    return {"before_header": name, "after_header": name, "before": before, "after": after}


def plan_diff(name: str, steps: t.Sequence[Step]) -> list[dict[str, str]]:
    """The steps themselves as a diff, for what is not a file. Empty when there is nothing to do."""
    if not steps:
        return []
    lines = "".join(f"{step.id}{f' ({step.reason})' if step.reason else ''}\n" for step in steps)
    return [diff_entry(f"{name}: steps", "", lines)]


def outcome(steps: t.Sequence[Step], pending: t.Sequence[t.Mapping[str, t.Any]] = (),
            diff: t.Sequence[t.Mapping[str, str]] = (), **facts: t.Any) -> dict[str, t.Any]:
    """The result every module returns: C({changed, plan, pending, diff, **facts})."""
    return {"changed": bool(steps), "plan": [step.as_dict() for step in steps], "pending": list(pending),
            "diff": list(diff), **facts}
