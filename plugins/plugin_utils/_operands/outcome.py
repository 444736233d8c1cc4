# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The outcome of the module `operands`. Pure. PRIVATE to the collection."""

from __future__ import annotations

import collections
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    diff_entry,
    outcome,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import diff
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.pending_changes import NEEDS

_ACTIONS = ("create", "update", "repair", "replace", "adopt", "delete", "release", "reuse", "keep")
_SHOWN_REASONS = 5


@dataclass(frozen=True)
class Outcome:
    """The actions of a run, or in check mode the actions that a run would take.

    steps: the steps on Nodes. moves: whether new pods replace former pods, so that these steps come after the creation
    of the new DaemonSets. pending: steps that are not executed now. failed: the error with the Nodes that were skipped
    or have failed, each with its reason; in check mode, the error that a run would return. problems: other reasons for
    which the playbook fails at its end. notes: sentences for the user.
    """

    changes: t.Sequence[Change]
    steps: t.Sequence[Step] = ()
    moves: bool = False
    pending: t.Sequence[PendingStep] = ()
    failed: ClusterError | None = None
    problems: t.Sequence[str] = ()
    notes: t.Sequence[str] = ()

    def as_dict(self, server: str, **facts: object) -> Result:
        """The result of the module, with C(warnings) only if there are any. server: the address of the API server."""
        nodes = self.failed.details["nodes"] if self.failed else {}
        skipped = [Step("delete", f"driver and MPS pods of {name}", needs=NEEDS).pending(why)
                   for name, why in nodes.items()]
        problems = [*self.problems, *([str(self.failed)] if self.failed else [])]
        pairs = [_pair(one) for one in self.changes]
        texts = [diff_entry(one.label, diff.text(before), diff.text(after))
                 for one, (before, after) in zip(self.changes, pairs) if one.writes]
        entries = [{"object": one.label, "component": one.component, "action": one.action, "reasons": list(one.reasons),
                    "before": before, "after": after} for one, (before, after) in zip(self.changes, pairs)]
        counts = collections.Counter(one.action for one in self.changes)
        result = outcome(self._ordered_steps(), [*self.pending, *skipped], texts, objects=entries,
                         counts={name: counts[name] for name in _ACTIONS}, server=server, problems=problems, **facts)
        warnings = [*self.notes, *problems]
        return {**result, "warnings": warnings} if warnings else result

    def _ordered_steps(self) -> list[Step]:
        """All steps. Steps on Nodes come after the deletion of the DaemonSets whose pods stay."""
        writes = [one for one in self.changes if one.writes]
        steps = [Step(one.action, one.label, _reason(one)) for one in writes]
        first = max((at for at, one in enumerate(writes, 1) if one.orphans or (
            self.moves and one.action not in ("delete", "release"))), default=0)
        return [*steps[:first], *self.steps, *steps[first:]]


def _pair(change: Change) -> tuple[Object, Object]:
    """The object before and after the change, as the result shows them. Both are empty if only marks change."""
    if not change.writes or change.action in ("hand over", "forget"):
        return {}, {}
    return diff.pair(None if change.action in ("delete", "release") else change.manifest, change.live)


def _reason(change: Change) -> str:
    more = len(change.reasons) - _SHOWN_REASONS
    return ", ".join(change.reasons[:_SHOWN_REASONS]) + (f" and {more} more" if more > 0 else "")
