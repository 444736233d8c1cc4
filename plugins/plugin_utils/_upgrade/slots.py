# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which Nodes are upgraded next. Pure. PRIVATE.

The numbers are those of driver.upgradePolicy. Unlike the operator, a Node whose upgrade has failed in this run does not
count, so that it does not keep other Nodes waiting; how many Nodes may fail is another limit.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Waiting:
    """A Node that waits for its upgrade. daemon_set: the DaemonSet of its driver pod."""

    name: str
    daemon_set: str


@dataclass(frozen=True)
class Slots:
    """The state of one driver's upgrade.

    parallel: how many Nodes are upgraded at the same time, 0 for no limit; unavailable: how many may be unavailable at
    the same time; down: the Nodes that are unavailable, without those that this run is upgrading or that have failed in
    it; working: maps each Node that is being upgraded to its DaemonSet; proved: the DaemonSets of which a Node has been
    upgraded.
    """

    parallel: int
    unavailable: int
    down: t.AbstractSet[str] = frozenset()
    working: t.Mapping[str, str] = field(default_factory=dict)
    proved: t.AbstractSet[str] = frozenset()

    def next(self, waiting: t.Iterable[Waiting]) -> list[str]:
        """The Nodes whose upgrade may start now, in the order of waiting.

        Until the first Node of a DaemonSet has been upgraded, only one of its Nodes is upgraded at a time. A Node that
        is cordoned already does not become unavailable by its upgrade.
        """
        chosen: dict[str, str] = {}
        for one in waiting:
            working = {**self.working, **chosen}
            if self.parallel and len(working) >= self.parallel:
                break
            if one.daemon_set not in self.proved and one.daemon_set in working.values():
                continue
            if one.name in self.down or len(self.down | working.keys()) < self.unavailable:
                chosen[one.name] = one.daemon_set
        return list(chosen)
