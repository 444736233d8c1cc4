# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports the progress of a rollout: changes only, and seldom enough to be read. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import checks as model
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.checks import Explained

Tell = t.Callable[[model.Progress], None]
# Seconds until a progress without changes is reported again.
AGAIN = 60.0


class _Look(t.NamedTuple):
    """A component at one look. done: whether nothing more is waited for; changing: MIG layouts that the manager
    applies; updated: pods."""

    open: model.Open
    done: bool
    changing: int
    updated: int

    @property
    def moves(self) -> tuple[str, int, int, int, int, int]:
        """Values that change between two requests if the rollout makes progress."""
        one = self.open
        return one.component, one.ready, one.desired, len(one.failing), self.changing, self.updated


class Progress:
    """Calls tell with a change at most once in every seconds, and never if all is ready at the first look."""

    def __init__(self, tell: Tell, components: t.Sequence[str], every: float) -> None:
        self._tell, self._components, self._every = tell, components, every
        self._when = float("-inf")
        self._before: tuple[tuple[str, int, int, int, int, int], ...] = ()
        self._failed = False  # whether a failure is reported
        self._done: set[str] | None = None

    def look(self, passed: float, timeout: float, works: t.Sequence[Workload], pods: t.Sequence[Explained],
             layouts: t.Sequence[mig.Stand], ends: str = "") -> None:
        """Reports the current state if it is due.

        passed, timeout: seconds of the wait; pods: those that are not ready; ends: why the rollout stops waiting.
        """
        looks = [_look(name, works, pods, layouts) for name in self._components
                 if any(work.component == name for work in works)]
        opened = [one for one in looks if not one.done]
        ready = {one.open.component for one in looks if one.done}
        if self._done is None:
            self._done = ready if opened else None  # components that are ready at the first request are not reported
        if self._done is None:
            return
        done = [(one.open.component, one.open.ready) for one in looks
                if one.done and one.open.component not in self._done]
        moves = tuple(one.moves for one in opened)
        # The end, and the first failure, are reported at once.
        fails = any(one.open.failing for one in opened)
        at_once = bool(ends) or (not opened and bool(done)) or (fails and not self._failed)
        if not at_once and (passed - self._when < self._every or not done and moves == self._before
                            and passed - self._when < AGAIN):
            return
        shown = [] if ends and moves == self._before else [one.open for one in opened]  # not the same line twice
        self._when, self._before, self._failed = passed, moves, fails
        self._done = (self._done | ready) - {one.open.component for one in opened}
        self._tell(model.Progress(passed, max(timeout - passed, 0.0), ends, done, shown))


def _look(name: str, works: t.Sequence[Workload], pods: t.Sequence[Explained],
          layouts: t.Sequence[mig.Stand]) -> _Look:
    own = [work for work in works if work.component == name]
    changing = [one for one in layouts if one.waits and name == "mig_manager"]
    done = all(work.settled for work in own) and not changing
    failing, waiting = [], []
    for stuck, cause, waits_for in [] if done else pods:
        if stuck.component != name:
            continue
        if not waits_for and (cause.certain or stuck.failed):
            failing.append(model.Failing(stuck.node, cause.cause))
        else:
            waiting.append(model.Waiting(stuck.node, stuck.container))
    waiting += [model.Waiting(one.node, f"{one.asked} {one.state or 'not begun'}") for one in changing]
    return _Look(model.Open(name, sum(work.ready for work in own), sum(work.desired for work in own), failing, waiting),
                 done, len(changing), sum(work.updated for work in own))
