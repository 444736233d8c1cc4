# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the candidates that constraints allow, or the smallest sets of constraints that exclude all. Pure. PRIVATE.

Candidates are numbered. A constraint contains the set of the numbers that it allows, as the bits of an integer.
"""

from __future__ import annotations

import itertools
import typing as t
from dataclasses import dataclass


@dataclass(frozen=True)
class Constraint:
    """A reason why candidates are excluded.

    id: a name such as C(driver.version), which several constraints can have; text: a clause without a full stop, for
    messages; allows: the bits of the allowed candidates; change: the variable or key that removes the constraint, empty
    if no change can.
    """

    id: str
    text: str
    allows: int
    change: str = ""


def allowed(universe: int, constraints: t.Iterable[Constraint]) -> int:
    """The candidates of the universe that all constraints allow."""
    for constraint in constraints:
        universe &= constraint.allows
    return universe


def smallest_conflict(universe: int, constraints: t.Sequence[Constraint]) -> tuple[Constraint, ...] | None:
    """A smallest set of constraints that excludes all candidates, None if the constraints allow a candidate.

    If there are several smallest sets, returns the one whose members come first. The run time grows with the size of
    the result, which is two or three in practice.
    """
    if allowed(universe, constraints):
        return None
    relevant = [constraint for constraint in constraints if universe & ~constraint.allows]
    for size in range(len(relevant)):
        for chosen in itertools.combinations(relevant, size):
            if not allowed(universe, chosen):
                return chosen
    return tuple(relevant)


def conflicts(universe: int, constraints: t.Sequence[Constraint]) -> list[tuple[Constraint, ...]]:
    """Independent conflicts, each a smallest one. After each conflict, its constraints that a user can change are
    removed before the next conflict is searched. Empty if the constraints allow a candidate."""
    found: list[tuple[Constraint, ...]] = []
    rest = list(constraints)
    while True:
        conflict = smallest_conflict(universe, rest)
        if conflict is None:
            return found
        found.append(conflict)
        ids = {constraint.id for constraint in conflict if constraint.change}
        if not ids:
            return found
        rest = [constraint for constraint in rest if constraint.id not in ids]


def without(constraints: t.Iterable[Constraint], ids: t.Collection[str]) -> list[Constraint]:
    """The constraints except those with these ids."""
    return [constraint for constraint in constraints if constraint.id not in ids]


def fewest_further(universe: int, constraints: t.Sequence[Constraint], dropped: str) -> tuple[str, ...] | None:
    """The fewest ids that must be removed together with one constraint (dropped) so that a candidate is allowed, None
    if this is not possible."""
    rest = without(constraints, {dropped})
    others = list(dict.fromkeys(constraint.id for constraint in rest if constraint.change
                                and universe & ~constraint.allows))
    for size in range(len(others) + 1):
        for more in itertools.combinations(others, size):
            if allowed(universe, without(rest, more)):
                return more
    return None
