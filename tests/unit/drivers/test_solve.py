# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares the solver with brute force: its explanations are as short as possible, and contain nothing superfluous."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refusals
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import solve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import Version
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import Choice, choose
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import situation_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.solve import Constraint
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts
from hypothesis import given, settings
from hypothesis import strategies as st

CANDIDATES = 8
ALL = (1 << CANDIDATES) - 1


@st.composite
def problems(draw: st.DrawFn) -> list[Constraint]:
    """Up to nine constraints on eight candidates, most of them loose, so that conflicts of all sizes occur."""
    found = []
    changeable = draw(st.sets(st.integers(0, 8)))
    for number in range(draw(st.integers(0, 9))):
        excluded = draw(st.sets(st.integers(0, CANDIDATES - 1), max_size=5))
        allows = ALL & ~sum(1 << bit for bit in excluded)
        name = draw(st.integers(0, number))
        found.append(Constraint(f"c{name}", f"text {number}", allows, "a change" if name in changeable else ""))
    return found


def satisfiable(constraints: tuple[Constraint, ...] | list[Constraint]) -> bool:
    """According to the definition: all constraints allow some candidate."""
    return any(all(one.allows >> bit & 1 for one in constraints) for bit in range(CANDIDATES))


def smallest(constraints: list[Constraint]) -> int | None:
    """The size of the smallest conflict, found by checking every subset."""
    sizes = [len(chosen) for size in range(len(constraints) + 1)
             for chosen in itertools.combinations(constraints, size) if not satisfiable(chosen)]
    return min(sizes, default=None)


@given(problems())
@settings(max_examples=300, deadline=None)
def test_the_core_is_a_conflict_of_the_fewest(constraints: list[Constraint]) -> None:
    found = solve.smallest_conflict(ALL, constraints)
    assert (None if found is None else len(found)) == smallest(constraints)
    if found is not None:
        assert not satisfiable(found)
        for member in found:
            assert satisfiable([one for one in found if one is not member])


@given(problems())
@settings(max_examples=200, deadline=None)
def test_what_frees_it_is_the_least(constraints: list[Constraint]) -> None:
    """Maps each id to the minimum number of others that must be removed with it, or to None if no change of any
    suffices."""
    ids = sorted({one.id for one in constraints})
    changeable = {one.id for one in constraints if one.change}
    for dropped in ids:
        rest = solve.without(constraints, {dropped})
        assert dropped not in {one.id for one in rest}
        enough = [len(more) for size in range(len(changeable) + 1)
                  for more in itertools.combinations(sorted(changeable - {dropped}), size)
                  if satisfiable(solve.without(rest, more))]
        more = solve.fewest_further(ALL, constraints, dropped)
        assert (None if more is None else len(more)) == min(enough, default=None)
        if more is not None:
            assert satisfiable(solve.without(rest, more))


@given(problems())
@settings(max_examples=200, deadline=None)
def test_every_conflict_is_told(constraints: list[Constraint]) -> None:
    """Without the named constraints that a user can change, there is a candidate, or the remaining conflict cannot be
    resolved."""
    found = solve.conflicts(ALL, constraints)
    assert bool(found) == (not satisfiable(constraints))
    gone = {one.id for conflict in found for one in conflict if one.change}
    stuck = bool(found) and not any(one.change for one in found[-1])
    assert stuck or satisfiable(solve.without(constraints, gone))


def test_of_equal_ones_the_first_is_told() -> None:
    one, two, three = (Constraint(name, name, allows) for name, allows in (("a", 0b01), ("b", 0b10), ("c", 0b10)))
    assert [rule.id for rule in solve.smallest_conflict(0b11, [one, two, three]) or ()] == ["a", "b"]
    assert [rule.id for rule in solve.smallest_conflict(0b11, [three, two, one]) or ()] == ["c", "a"]
    assert solve.smallest_conflict(0b11, [two, three]) is None


@pytest.mark.parametrize(("gpus", "wish", "expected"), [
    (["1db5"], Request(version=Version.of("595.91.07"), by="x"), [{"driver.version", "gpu:volta"}]),
    (["1db5", "2901"], Request(), [{"gpu:volta", "gpu:blackwell"}]),
    (["3182"], Request(version=Version.of("580.65.06"), by="x"), [{"driver.version", "gpu:B300"}]),
    (["20b2"], Request(precompiled=True, gds=True, gdrcopy=True), [{"driver.usePrecompiled", "gds.enabled"}]),
    (["1db5"], Request(version=Version.of("595.91.07"), by="x", gds=True),
     [{"driver.version", "gpu:volta"}, {"gds.enabled", "gpu:volta"}]),
])
def test_conflicts_by_name(gpus: list[str], wish: Request, expected: list[set[str]]) -> None:
    with pytest.raises(Refusals) as caught:
        choose(situation_of(facts(gpus)), wish, releases.release("26.7.0"))
    assert [{name for name, _text in one.constraints} for one in caught.value.reasons] == expected


def test_equal_situations_are_worked_out_once() -> None:
    release = releases.release("26.7.0")
    one, other = (situation_of(facts(["20b2"], kernel=f"6.8.0-{number}-generic")) for number in (45, 60))
    assert isinstance(choose(one, Request(), release), Choice)
    assert choose(one, Request(), release) is choose(other, Request(), release)
