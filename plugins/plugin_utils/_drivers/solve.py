# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A finite choice under named constraints: what is left; where nothing is, the fewest that exclude each other. Pure.

Candidates are numbered; a constraint is the set of numbers that it allows, as bits of an integer. PRIVATE.
"""

from __future__ import annotations

import itertools
import typing as t
from dataclasses import dataclass


@dataclass(frozen=True)
class Constraint:
    """One reason why candidates are excluded.

    id: for machines (C(driver.version)), several constraints may share one; text: for people, a clause without a full
    stop; allows: bits of the allowed candidates; change: how a user frees what it excludes, empty where nobody can.
    """

    id: str
    text: str
    allows: int
    change: str = ""


def allowed(universe: int, constraints: t.Iterable[Constraint]) -> int:
    """The candidates of the universe that every constraint allows."""
    for constraint in constraints:
        universe &= constraint.allows
    return universe


def core(universe: int, constraints: t.Sequence[Constraint]) -> tuple[Constraint, ...] | None:
    """A smallest set of constraints that leaves no candidate, None where all together leave one.

    Of several smallest sets the one whose members stand first. Exact: every smaller set leaves a candidate, and so does
    this one without any of its members. Its cost grows with the size of the result, which is two or three in practice.
    """
    if allowed(universe, constraints):
        return None
    relevant = [constraint for constraint in constraints if universe & ~constraint.allows]
    for size in range(len(relevant)):
        for chosen in itertools.combinations(relevant, size):
            if not allowed(universe, chosen):
                return chosen
    return tuple(relevant)


def cores(universe: int, constraints: t.Sequence[Constraint]) -> list[tuple[Constraint, ...]]:
    """Conflicts that can be told apart: a smallest one, then a smallest one that is left when its members that a user
    can change are gone, and so on. Empty where the constraints leave a candidate."""
    found: list[tuple[Constraint, ...]] = []
    rest = list(constraints)
    while True:
        conflict = core(universe, rest)
        if conflict is None:
            return found
        found.append(conflict)
        ids = {constraint.id for constraint in conflict if constraint.change}
        if not ids:
            return found
        rest = [constraint for constraint in rest if constraint.id not in ids]


def without(constraints: t.Iterable[Constraint], ids: t.Collection[str]) -> list[Constraint]:
    """The constraints apart from those with these ids."""
    return [constraint for constraint in constraints if constraint.id not in ids]


def also(universe: int, constraints: t.Sequence[Constraint], dropped: str) -> tuple[str, ...] | None:
    """What must be changed beside one constraint so that a candidate is left: the fewest ids, None where none do."""
    rest = without(constraints, {dropped})
    others = list(dict.fromkeys(constraint.id for constraint in rest if constraint.change
                                and universe & ~constraint.allows))
    for size in range(len(others) + 1):
        for more in itertools.combinations(others, size):
            if allowed(universe, without(rest, more)):
                return more
    return None
