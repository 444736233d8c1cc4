# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The placement planner: situations, and random ones against an exhaustive search."""

from __future__ import annotations

import itertools
import random
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import _boards
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig._layout import Board, Layout, Piece, difference

A100, H200, A30, RTX = "20b2", "2335", "20b7", "2bb5"


def board(device_id: str = A100) -> Board:
    profiles = _boards.profiles_of(device_id)
    assert profiles is not None
    return Board(profiles)


def full(grid: Board, *places: tuple[str, int], busy: t.Container[int] = ()) -> Layout:
    """GPU instances, each filled by one compute instance."""
    return tuple(Piece(name, start, ((grid.profiles[name].slices, 0),), start in busy) for name, start in sorted(
        places, key=lambda place: place[1]))


def wish(grid: Board, **counts: int) -> dict[tuple[str, int], int]:
    return {(name, grid.profiles[name].slices): count for name, count in counts.items()}


# before, wanted, what is destroyed
SITUATIONS = [
    pytest.param([], {"1g.10gb": 7}, [], id="empty"),
    pytest.param([("1g.10gb", start) for start in range(7)], {"1g.10gb": 7}, [], id="fits"),
    pytest.param([("1g.10gb", start) for start in (0, 1, 3, 4, 5, 6)], {"1g.10gb": 7}, [], id="one missing"),
    pytest.param([("1g.10gb", start) for start in range(7)], {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
                 [2, 3, 4, 5, 6], id="to balanced"),
    pytest.param([("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)], {"1g.10gb": 7}, [2, 4],
                 id="from balanced"),
    pytest.param([("3g.40gb", 0)], {"4g.40gb": 1, "3g.40gb": 1}, [0], id="4g only at 0, so the 3g must move"),
    pytest.param([("3g.40gb", 4)], {"4g.40gb": 1, "3g.40gb": 1}, [], id="4g beside 3g"),
    pytest.param([("1g.10gb", 0), ("1g.10gb", 5)], {"3g.40gb": 1, "1g.10gb": 2}, [5],
                 id="one of two stands in the way either way: the lower stays"),
    pytest.param([("7g.80gb", 0)], {}, [0], id="to nothing"),
    pytest.param([("1g.20gb", 6)], {"1g.20gb": 4}, [], id="double memory reaches the last unit"),
]


@pytest.mark.parametrize("before, wanted, destroyed", SITUATIONS)
def test_situations(before: list[tuple[str, int]], wanted: dict[str, int], destroyed: list[int]) -> None:
    grid = board()
    present = full(grid, *before)
    target = grid.target(present, wish(grid, **wanted))
    assert target is not None
    assert grid.devices(target) == dict(sorted(wanted.items()))
    assert sorted(piece.start for piece in difference(present, target).destroyed) == destroyed


@pytest.mark.parametrize("device_id, wanted", [
    (A100, {"4g.40gb": 2}), (A100, {"1g.10gb": 8}), (A100, {"7g.80gb": 1, "1g.10gb": 1}), (A100, {"3g.40gb": 3}),
    (A100, {"1g.10gb+me": 2}), (A30, {"1g.6gb+me": 1, "2g.12gb+me": 1}), (RTX, {"1g.24gb+me.all": 1, "1g.24gb": 1}),
    (H200, {"1g.18gb": 7, "1g.35gb": 1}),
])
def test_impossible(device_id: str, wanted: dict[str, int]) -> None:
    grid = board(device_id)
    assert grid.target((), wish(grid, **wanted)) is None


@pytest.mark.parametrize("device_id, wanted", [
    (A100, {"1g.10gb+me": 1, "1g.10gb": 6}), (A100, {"4g.40gb": 1, "3g.40gb": 1}), (A30, {"2g.12gb": 1, "1g.6gb": 2}),
    (A100, {"2g.20gb": 3, "1g.10gb": 1}), (RTX, {"1g.24gb+me.all": 1, "1g.24gb-me": 3}),
    (H200, {"1g.35gb": 4}), (H200, {"1g.18gb": 6, "1g.35gb": 1}),
])
def test_possible(device_id: str, wanted: dict[str, int]) -> None:
    grid = board(device_id)
    target = grid.target((), wish(grid, **wanted))
    assert target is not None and grid.devices(target) == dict(sorted(wanted.items()))


def test_busy_is_spared_even_where_more_idle_ones_go() -> None:
    """The 3g can lie at 0 or 4: two idle ones at 4 go rather than the busy one at 0."""
    grid = board()
    present = full(grid, ("1g.10gb", 0), ("1g.10gb", 4), ("1g.10gb", 5), busy={0})
    target = grid.target(present, wish(grid, **{"3g.40gb": 1, "1g.10gb": 3}))
    assert target is not None
    assert [piece.start for piece in difference(present, target).destroyed] == [4, 5]


def test_compute_instances_pack_into_gpu_instances() -> None:
    grid = board()
    six = grid.target((), {("3g.40gb", 1): 6})
    assert six is not None and [(piece.start, piece.parts) for piece in six] == [
        (0, ((1, 0), (1, 1), (1, 2))), (4, ((1, 0), (1, 1), (1, 2)))]
    assert grid.describe(six) == "1c.3g.40gb at 0.0,0.1,0.2,4.0,4.1,4.2"
    mixed = grid.target((), {("7g.80gb", 3): 1, ("7g.80gb", 2): 2})
    assert mixed is not None and [(piece.start, piece.parts) for piece in mixed] == [(0, ((2, 0), (2, 2), (3, 4)))]
    assert grid.target((), {("4g.40gb", 3): 1}) is None, "three of four slices are no profile"


def test_only_the_missing_compute_instance_is_made() -> None:
    grid = board()
    present = (Piece("3g.40gb", 4, ((1, 0), (1, 2))),)
    target = grid.target(present, {("3g.40gb", 1): 3})
    assert target is not None
    change = difference(present, target)
    assert (change.destroyed, change.created) == ((), (Piece("3g.40gb", 4, ((1, 1),)),))


def test_gpu_instance_left_without_compute_instance_serves_again() -> None:
    """What a run that was killed between the two creations leaves."""
    grid = board()
    present = (Piece("1g.10gb", 3, ()),)
    target = grid.target(present, wish(grid, **{"1g.10gb": 1}))
    assert target == (Piece("1g.10gb", 3, ((1, 0),)),)
    nothing = grid.target(present, {})
    assert nothing == ()
    assert difference(present, ()).destroyed == present


def exhaustive(grid: Board, present: Layout, wanted: dict[tuple[str, int], int]) -> tuple[int, int] | None:
    """(busy lost, lost) at the least, over all placements; every compute instance fills its GPU instance."""
    names = [name for name, _slices in wanted]
    best: tuple[int, int] | None = None
    ways = [itertools.combinations(grid.profiles[name].starts, count) for (name, _slices), count in wanted.items()]
    for choice in itertools.product(*(list(way) for way in ways)):
        places = {(name, start) for name, starts in zip(names, choice) for start in starts}
        cells = [cell for name, start in places for cell in grid.cells(name, start)]
        if len(cells) != len(set(cells)) or not grid.compatible(name for name, _start in places):
            continue
        lost = [piece for piece in present if (piece.profile, piece.start) not in places]
        cost = (sum(piece.busy for piece in lost), len(lost))
        best = cost if best is None else min(best, cost)
    return best


def random_layout(grid: Board, chance: random.Random) -> Layout:
    places: list[tuple[str, int]] = []
    taken: set[int] = set()
    for _ignored in range(chance.randint(0, 7)):
        name = chance.choice(list(grid.profiles))
        start = chance.choice(grid.profiles[name].starts)
        cells = set(grid.cells(name, start))
        if taken.isdisjoint(cells) and grid.compatible([*(known for known, _start in places), name]):
            taken |= cells
            places.append((name, start))
    return full(grid, *places, busy={start for _name, start in places if chance.random() < 0.2})


@pytest.mark.parametrize("seed", range(60))
def test_random_layouts_lose_no_more_than_an_exhaustive_search(seed: int) -> None:
    chance = random.Random(seed)
    grid = board(chance.choice((A100, H200, A30)))
    for _ignored in range(4):
        present = random_layout(grid, chance)
        wanted = {(name, grid.profiles[name].slices): chance.randint(1, min(4, grid.profiles[name].instances))
                  for name in chance.sample(list(grid.profiles), chance.randint(1, 3))}
        target = grid.target(present, wanted)
        best = exhaustive(grid, present, wanted)
        assert (target is None) == (best is None), (present, wanted)
        if target is None:
            continue
        assert {name: count for (name, _slices), count in wanted.items()} == grid.devices(target)
        cells = [cell for piece in target for cell in grid.cells(piece.profile, piece.start)]
        assert len(cells) == len(set(cells))
        assert all(piece.start in grid.profiles[piece.profile].starts for piece in target)
        change = difference(present, target)
        assert (sum(piece.busy for piece in change.destroyed), len(change.destroyed)) == best
