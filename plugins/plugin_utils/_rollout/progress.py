# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports the progress of a rollout: only changes, and not too often for a reader. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import checks as model
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.checks import Explained

Tell = t.Callable[[model.Progress], None]
# Seconds after which the state is reported again although it has not changed.
REPEAT_AFTER = 60.0


class _State(t.NamedTuple):
    """The state of a component at one poll.

    done: whether the rollout no longer waits for it; changing: the number of MIG layouts that are being applied;
    updated: the number of updated pods.
    """

    open: model.Open
    done: bool
    changing: int
    updated: int

    @property
    def measures(self) -> tuple[str, int, int, int, int, int]:
        """The values that differ between two polls if the rollout makes progress."""
        component = self.open
        return (component.component, component.ready, component.desired, len(component.failing), self.changing,
                self.updated)


class Progress:
    """Calls tell when the state has changed, at most once in C(every) seconds. If all components are ready at the first
    poll, tell is never called."""

    def __init__(self, tell: Tell, components: t.Sequence[str], every: float) -> None:
        self._tell, self._components, self._every = tell, components, every
        self._reported_at = float("-inf")
        self._reported: tuple[tuple[str, int, int, int, int, int], ...] = ()
        self._failed = False  # whether the last report had a failure
        self._done: set[str] | None = None

    def poll(self, passed: float, timeout: float, works: t.Sequence[Workload], pods: t.Sequence[Explained],
             layouts: t.Sequence[mig_labels.NodeMig], ends: str = "") -> None:
        """Reports the current state if a report is due.

        passed, timeout: in seconds; pods: the pods that are not ready; layouts: the MIG layouts that are not applied;
        ends: why the wait ends, empty while it continues.
        """
        states = [_state(name, works, pods, layouts) for name in self._components
                  if any(work.component == name for work in works)]
        unfinished = [state for state in states if not state.done]
        ready = {state.open.component for state in states if state.done}
        if self._done is None:
            self._done = ready if unfinished else None  # components that are ready at the first poll are not reported
        if self._done is None:
            return
        done = [(state.open.component, state.open.ready) for state in states
                if state.done and state.open.component not in self._done]
        measures = tuple(state.measures for state in unfinished)
        # The end and the first failure are reported at once.
        fails = any(state.open.failing for state in unfinished)
        at_once = bool(ends) or (not unfinished and bool(done)) or (fails and not self._failed)
        elapsed = passed - self._reported_at
        if not at_once and (elapsed < self._every
                            or not done and measures == self._reported and elapsed < REPEAT_AFTER):
            return
        # The last report does not repeat the lines of the report before.
        shown = [] if ends and measures == self._reported else [state.open for state in unfinished]
        self._reported_at, self._reported, self._failed = passed, measures, fails
        self._done = (self._done | ready) - {state.open.component for state in unfinished}
        self._tell(model.Progress(passed, max(timeout - passed, 0.0), ends, done, shown))


def _state(name: str, works: t.Sequence[Workload], pods: t.Sequence[Explained],
           layouts: t.Sequence[mig_labels.NodeMig]) -> _State:
    own = [work for work in works if work.component == name]
    changing = [layout for layout in layouts if layout.is_waiting and name == "mig_manager"]
    done = all(work.settled for work in own) and not changing
    failing, waiting = [], []
    for stuck, cause, waits_for in [] if done else pods:
        if stuck.component != name:
            continue
        if not waits_for and (cause.certain or stuck.failed):
            failing.append(model.Failing(stuck.node, cause.cause))
        else:
            waiting.append(model.Waiting(stuck.node, stuck.container))
    waiting += [model.Waiting(layout.node, f"{layout.layout} {layout.state or 'not started'}") for layout in changing]
    return _State(
        model.Open(name, sum(work.ready for work in own), sum(work.desired for work in own), failing, waiting),
        done, len(changing), sum(work.updated for work in own))
