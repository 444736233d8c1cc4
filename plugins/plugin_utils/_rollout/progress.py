# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told while a cluster comes up: what has changed, seldom enough to be read. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.checks import Standing

Data = t.Dict[str, t.Any]
# {elapsed, left: seconds; done: components that have become ready, [{component, ready}]; open: the others in their
# order, [{component, ready, desired, failing, waiting}]; ends: why nothing more is waited for, empty while it is}.
# failing: [{node, why}] where nothing comes by itself; waiting: [{node, container}] for the others.
Tell = t.Callable[[Data], None]
# Seconds after which it is told again that nothing moves.
AGAIN = 60.0


class Progress:
    """Tells at most every so many seconds, and nothing of a cluster that is ready at the first look."""

    def __init__(self, tell: Tell, components: t.Sequence[str], every: float) -> None:
        self._tell, self._components, self._every = tell, components, every
        self._when, self._before = float("-inf"), ()  # type: t.Tuple[float, t.Tuple[t.Any, ...]]
        self._done: set[str] | None = None

    def look(self, passed: float, timeout: float, works: t.Sequence[Workload], stands: t.Sequence[Standing],
             layouts: t.Sequence[mig.Stand], ends: str = "") -> None:
        """How it stands now. passed, timeout: seconds of the wait."""
        every = [_component(name, works, stands, layouts) for name in self._components]
        there = [one for one in every if one.pop("there")]
        opened = [one for one in there if not one["done"]]
        if self._done is None:
            # What is ready at the first look is not worth a line.
            self._done = {one["component"] for one in there if one["done"]} if opened else None
        if self._done is None:
            return
        done = [one for one in there if one["done"] and one["component"] not in self._done]
        moves = tuple((one["component"], one["ready"], one["desired"], len(one["failing"]), one["moves"])
                      for one in opened)
        # The end of one and a first failure are told at once, as is the end of all.
        at_once = bool(ends) or (not opened and bool(done)) or any(
            one["failing"] for one in opened) and not self._failed()
        if not at_once and (passed - self._when < self._every or not done and moves == self._before
                            and passed - self._when < AGAIN):
            return
        if ends and moves == self._before:
            opened = []  # it has just been told
        self._when, self._before = passed, moves
        self._done |= {one["component"] for one in done}
        self._done -= {one["component"] for one in there if not one["done"]}
        self._tell({"elapsed": passed, "left": max(timeout - passed, 0.0), "ends": ends,
                    "done": [{"component": one["component"], "ready": one["ready"]} for one in done],
                    "open": [{key: one[key] for key in ("component", "ready", "desired", "failing", "waiting")}
                             for one in opened]})

    def _failed(self) -> bool:
        """Whether a failure has been told."""
        return any(one[3] for one in self._before)


def _component(name: str, works: t.Sequence[Workload], stands: t.Sequence[Standing],
               layouts: t.Sequence[mig.Stand]) -> Data:
    mine = [work for work in works if work.component == name]
    changing = [one for one in layouts if one.waits and name == "mig_manager"]
    done = all(work.settled for work in mine) and not changing
    failing, waiting = [], []
    for stuck, cause, before in [] if done else stands:
        if stuck.component != name:
            continue
        if not before and (cause.certain or stuck.failed):
            failing.append({"node": stuck.node, "why": cause.cause})
        else:
            waiting.append({"node": stuck.node, "container": stuck.container})
    waiting += [{"node": one.node, "container": f"{one.asked} {one.state or 'not begun'}"} for one in changing]
    return {"component": name, "there": bool(mine), "done": done, "ready": sum(work.ready for work in mine),
            "desired": sum(work.desired for work in mine), "failing": failing, "waiting": waiting,
            "moves": (len(changing), sum(work.updated for work in mine))}
