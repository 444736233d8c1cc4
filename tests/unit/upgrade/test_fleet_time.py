# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a fleet of 100 Nodes with five bad ones takes, by our limits and by those of the GPU Operator, in simulated
time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.slots import Slots, Waiting

NODES, BAD = 100, 5
GOOD_SECONDS, BAD_SECONDS = 180, 600  # a driver that starts, and one for whose validator the upgrade waits in vain
# Returns the Nodes that start. Arguments: those that wait, those that are being upgraded, those that have failed,
# whether one has been upgraded.
Rule = Callable[[list[str], Collection[str], Collection[str], bool], list[str]]


def fleet(rule: Rule, bad: Collection[str]) -> tuple[int, float]:
    """(how many Nodes are upgraded, the seconds until nothing starts or runs any more)."""
    waiting, running, failed = [f"n{number}" for number in range(NODES)], list[tuple[float, str]](), set[str]()
    done, now = 0, 0.0
    while True:
        for name in rule(waiting, [name for _end, name in running], failed, done > 0):
            waiting.remove(name)
            heapq.heappush(running, (now + (BAD_SECONDS if name in bad else GOOD_SECONDS), name))
        if not running:
            return done, now
        now, name = heapq.heappop(running)
        if name in bad:
            failed.add(name)
        else:
            done += 1


def ours(parallel: int) -> Rule:
    """A failed Node does not count. The first Node of the DaemonSet is upgraded alone."""
    def rule(waiting: list[str], working: Collection[str], failed: Collection[str], proved: bool) -> list[str]:
        slots = Slots(parallel, NODES // 4, frozenset(), dict.fromkeys(working, "s"), {"s"} if proved else set())
        return slots.next([Waiting(name, "s") for name in waiting])
    return rule


def operators(parallel: int) -> Rule:
    """Source: the upgrade library of the GPU Operator 26.7: a failed Node counts as in progress, and as unavailable."""
    def rule(waiting: list[str], working: Collection[str], failed: Collection[str], proved: bool) -> list[str]:
        busy = len(working) + len(failed)
        return waiting[:max(0, min(parallel, NODES // 4) - busy)]
    return rule


@pytest.mark.parametrize("parallel", [1, 4, 10])
@pytest.mark.parametrize("seed", range(20))
def test_bad_nodes_do_not_hold_the_fleet(parallel: int, seed: int) -> None:
    """All good Nodes are upgraded. If the first Node is good, this takes at most 1.3 times as long as the first upgrade
    and an even distribution of the others."""
    bad = set(random.Random(seed).sample([f"n{number}" for number in range(1, NODES)], BAD))
    upgraded, seconds = fleet(ours(parallel), bad)
    work = (NODES - BAD) * GOOD_SECONDS + BAD * BAD_SECONDS
    ideal = GOOD_SECONDS + work / parallel
    assert upgraded == NODES - BAD and seconds <= 1.3 * ideal


@pytest.mark.parametrize("parallel", [1, 4])
def test_the_rule_of_the_operator_stops_at_bad_nodes(parallel: int) -> None:
    bad = set(random.Random(22).sample([f"n{number}" for number in range(1, NODES)], BAD))
    assert fleet(operators(parallel), bad)[0] < NODES - BAD == fleet(ours(parallel), bad)[0]
