# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states of hosts and Nodes as text: the table of a terminal, the rows of the page. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.states import (
    DEGRADED,
    DISABLED,
    NOT_READY,
    READY,
    STATES,
    UPGRADING,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style

HEAD = ("state", "nodes", "reason", "driver")
ALL_HEAD = ("node", "state", "reason", "since", "driver", "reboot pending", "as planned")
# The signs and colours of states: states of cells.
SIGNS = {NOT_READY: "failed", UPGRADING: "pending", DEGRADED: "warning", DISABLED: "none", READY: "ok"}
# The most rows of the table in a terminal, so that it fits a screen.
_ROWS = 24
# In the order of the summary.
_SUMMARY = (READY, *(state for state in STATES if state != READY))


class Group(t.NamedTuple):
    """Alike hosts and Nodes. names: sorted; one: one of them; mixed: whether their messages differ."""

    names: t.Sequence[str]
    one: NodeState
    mixed: bool = False

    @property
    def cells(self) -> list[Cell]:
        """The cells of a row. The columns are HEAD."""
        several = f"{len(self.names)}: " if self.names[1:] else ""
        return [Cell(self.one.state, SIGNS[self.one.state]), Cell(f"{several}{fold(self.names)}"),
                Cell(self.one.reason), Cell(driver(self.one))]


def grouped(states: t.Sequence[NodeState]) -> list[Group]:
    """Those with the same state, reason and driver are one group. Those that need a person come first."""
    groups: dict[tuple[str, str, str], list[NodeState]] = {}
    for one in states:
        groups.setdefault((one.state, one.reason, driver(one)), []).append(one)
    return sorted((Group(sorted(one.name for one in group), group[0], len({one.message for one in group}) > 1)
                   for group in groups.values()),
                  key=lambda group: (STATES.index(group.one.state), group.one.reason, group.names))


def driver(one: NodeState) -> str:
    """The driver that runs, and the desired one if it is another: C(580.126.20 → 595.91.07), C(none → 595.91.07). If
    it is not known which driver runs: C(→ 595.91.07)."""
    # A branch is desired if the version is not known; the digest of an image cannot be compared.
    as_planned = not one.desired or f"{one.running}.".startswith(f"{one.desired}.") or ":" in one.desired
    if one.running and as_planned:
        return one.running
    shown = "" if one.running is None else one.running or "none"
    return f"{shown} → {one.desired}".strip() if one.desired else shown


def summary(states: t.Sequence[NodeState]) -> str:
    """C(95 Ready, 3 Degraded, 2 NotReady): the states that occur."""
    counts = numbers(states)
    return ", ".join(f"{counts[state]} {state}" for state in _SUMMARY if counts[state])


def numbers(states: t.Iterable[NodeState]) -> dict[str, int]:
    """The number of hosts and Nodes in each state."""
    counts = dict.fromkeys(STATES, 0)
    for one in states:
        counts[one.state] += 1
    return counts


def render(states: t.Sequence[NodeState], style: Style) -> list[str]:
    """The table of groups, and the summary; nothing without hosts and Nodes."""
    if not states:
        return []
    groups = grouped(states)
    left = [name for group in groups[_ROWS:] for name in group.names]
    lines = [style.table(HEAD, [group.cells for group in groups[:_ROWS]])]
    more = [style.entry("", f"and {counted(len(groups) - _ROWS, 'more group')} with {counted(len(left), 'node')}: set "
                        "gpu_report_json or gpu_report_html to see all.", 0)] if left else []
    return [*lines, *more, style.entry("", f"States: {summary(states)}", 0)]


def failing(states: t.Sequence[NodeState], fail_on: t.Collection[str]) -> str:
    """The hosts and Nodes in one of these states as a sentence, empty if there are none."""
    found = [f"{len(names)} {state} ({fold(names)})" for state in STATES if state in fail_on
             for names in [[one.name for one in states if one.state == state]] if names]
    return f"gpu_status_fail_on is {', '.join(fail_on)}: {', '.join(found)}." if found else ""


def row(one: NodeState) -> list[Cell]:
    """A host or Node as a row of the page, without its message. The columns are ALL_HEAD."""
    words = {None: "", True: "yes", False: "no"}
    planned = None if one.drift is None else not one.drift
    return [Cell(one.name), Cell(one.state, SIGNS[one.state]), Cell(one.reason),
            Cell(one.since.replace("T", " ").replace("Z", " UTC")), Cell(driver(one)), Cell(words[one.reboot_pending]),
            Cell(words[planned])]


def worst_first(states: t.Sequence[NodeState]) -> list[NodeState]:
    """The states in the order of STATES, then of the names."""
    return sorted(states, key=lambda one: (STATES.index(one.state), one.name))
