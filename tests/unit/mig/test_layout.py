# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The placement planner: fixed situations, and random ones that are compared with an exhaustive search."""

from __future__ import annotations

import collections
import itertools
import random
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board, Layout, Placement, difference
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.search import Search

from tests.conformance.tables import published

A100, H200, A30, RTX = "20b2", "2335", "20b7", "2bb5"


def board(device_id: str = A100) -> Board:
    profiles = boards.profiles_of(device_id)
    assert profiles is not None
    return Board(profiles)


def full(grid: Board, *places: tuple[str, int], busy: t.Container[int] = ()) -> Layout:
    """GPU instances, each with one compute instance that fills it."""
    placements = (Placement(name, start, ((grid.profiles[name].slices, 0),)) for name, start in sorted(
        places, key=lambda place: place[1]))
    return tuple(item._replace(busy=item.compute) if item.start in busy else item for item in placements)


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
    assert sorted(placement.start for placement in difference(present, target).destroyed) == destroyed


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
    """The 3g instance can be placed at 0 or 4: two idle instances at 4 are destroyed rather than the busy one at 0."""
    grid = board()
    present = full(grid, ("1g.10gb", 0), ("1g.10gb", 4), ("1g.10gb", 5), busy={0})
    target = grid.target(present, wish(grid, **{"3g.40gb": 1, "1g.10gb": 3}))
    assert target is not None
    assert [placement.start for placement in difference(present, target).destroyed] == [4, 5]


def test_compute_instances_pack_into_gpu_instances() -> None:
    grid = board()
    six = grid.target((), {("3g.40gb", 1): 6})
    assert six is not None and [(placement.start, placement.compute) for placement in six] == [
        (0, ((1, 0), (1, 1), (1, 2))), (4, ((1, 0), (1, 1), (1, 2)))]
    assert grid.describe(six) == "1c.3g.40gb at 0.0,0.1,0.2,4.0,4.1,4.2"
    mixed = grid.target((), {("7g.80gb", 3): 1, ("7g.80gb", 2): 2})
    assert mixed is not None and [(item.start, item.compute) for item in mixed] == [(0, ((2, 0), (2, 2), (3, 4)))]
    assert grid.target((), {("4g.40gb", 3): 1}) is None, "three of four slices are no profile"


def test_only_the_missing_compute_instance_is_made() -> None:
    grid = board()
    present = (Placement("3g.40gb", 4, ((1, 0), (1, 2))),)
    target = grid.target(present, {("3g.40gb", 1): 3})
    assert target is not None
    change = difference(present, target)
    assert (change.destroyed, change.created) == ((), (Placement("3g.40gb", 4, ((1, 1),)),))


def test_gpu_instance_left_without_compute_instance_serves_again() -> None:
    """A run that was killed between the two creations leaves this state."""
    grid = board()
    present = (Placement("1g.10gb", 3, ()),)
    target = grid.target(present, wish(grid, **{"1g.10gb": 1}))
    assert target == (Placement("1g.10gb", 3, ((1, 0),)),)
    nothing = grid.target(present, {})
    assert nothing == ()
    assert difference(present, ()).destroyed == present


def test_of_several_compute_instances_the_idle_one_goes() -> None:
    grid = board()
    present = (Placement("3g.40gb", 4, ((1, 0), (1, 1), (1, 2)), busy=((1, 1), (1, 2))),)
    target = grid.target(present, {("3g.40gb", 1): 2})
    assert target is not None
    assert difference(present, target).destroyed[0].compute == ((1, 0),)


@pytest.mark.parametrize("values", [
    (["3g.40gb"], 4, ()), ("3g.40gb", "4", ()), ("3g.40gb", [4], ()), ("9g.40gb", 4, ()), ("3g.40gb", 2, ()),
    ("1g.10gb", True, ()), ("3g.40gb", 4, (("1", 0),)), ("3g.40gb", 4, ((1, None),)), ("3g.40gb", 4, ((10**9, 0),)),
    ("3g.40gb", 4, ((0, 0),)), ("3g.40gb", 4, ((-1, 1),)), ("3g.40gb", 4, ((1, 3),)), ("3g.40gb", 4, ((1, -1),)),
    ("3g.40gb", 4, ((2, 0), (1, 1))),
], ids=str)
def test_what_somebody_has_edited_is_no_layout(values: t.Any) -> None:
    """Otherwise, existing instances would be destroyed for others that cannot be created."""
    assert not board().holds((Placement(*values),))


def test_a_layout_of_other_origin_holds() -> None:
    assert board().holds((Placement("3g.40gb", 0, ()), Placement("3g.40gb", 4, ((1, 0), (2, 1)))))


def test_no_compute_instance_has_no_slices() -> None:
    assert Search(board()).pack("3g.40gb", [0]) is None
    assert Search(board()).pack("3g.40gb", [-1]) is None


def test_packing_lies_on_what_is_there() -> None:
    grid = board()
    assert Search(grid).pack("7g.80gb", [1, 1, 3], [(3, 4), (1, 2), (2, 0)]) == ((1, 0), (1, 2), (3, 4))
    assert Search(grid).pack("3g.40gb", [2, 2]) is None
    assert Search(grid).pack("3g.40gb", []) == ()


# -- against an exhaustive search that knows the boards from what is published only

PUBLISHED = published()
CI_STARTS = {int(total): {int(row.split(":")[1]): [int(start) for start in row.split()[2].split(":")[0].split(",")]
                          for row in rows} for total, rows in PUBLISHED["compute_instances"].items()}
BOARDS = {name: data for name, data in PUBLISHED["boards"].items() if data["mig"]}
for _data in BOARDS.values():
    for _row in _data["profiles"].values():
        _row["starts"], _row["size"] = [start for start, _size in _row["placements"]], _row["placements"][0][1]
Place = tuple[str, int]
Device = tuple[str, int, int, int]  # profile, first unit, slices, first slice


def fillings(total: int) -> list[tuple[tuple[int, int], ...]]:
    """All ways to fill a GPU instance of so many slices with compute instances, at least one."""
    parts = [(size, start) for size, starts in CI_STARTS[total].items() for start in starts]
    found = []
    for count in range(1, total + 1):
        for chosen in itertools.combinations(parts, count):
            cells = [cell for size, start in chosen for cell in range(start, start + size)]
            if len(cells) == len(set(cells)):
                found.append(chosen)
    return found


def gpu_instances(profiles: dict[str, t.Any], names: t.Sequence[str]) -> t.Iterator[tuple[Place, ...]]:
    """All sets of GPU instances of these profiles that fit beside each other."""
    places = [(name, start) for name in names for start in profiles[name]["starts"]]

    def more(index: int, chosen: tuple[Place, ...], taken: frozenset[int]) -> t.Iterator[tuple[Place, ...]]:
        yield chosen
        for number in range(index, len(places)):
            name, start = places[number]
            cells = frozenset(range(start, start + profiles[name]["size"]))
            if not cells & taken and sum(other == name for other, _start in chosen) < profiles[name]["instances"]:
                yield from more(number + 1, (*chosen, places[number]), taken | cells)

    for chosen in more(0, (), frozenset()):
        media = [name for name, _start in chosen if name.endswith("+me")]
        everything = [name for name, _start in chosen if name.endswith("+me.all")]
        others = [name for name, _start in chosen if not name.endswith(("+me.all", "-me"))]
        if len(media) <= 1 and len(everything) <= 1 and not (everything and others):
            yield chosen


def exhaustive(profiles: dict[str, t.Any], present: set[Device], busy: set[Device],
               wanted: dict[tuple[str, int], int]) -> tuple[int, int] | None:
    """The minimum C((busy lost, lost)) over all layouts, None if there is no layout."""
    best: tuple[int, int] | None = None
    every = {name: fillings(profiles[name]["slices"]) for name, _slices in wanted}
    for places in gpu_instances(profiles, sorted({name for name, _slices in wanted})):
        ways: dict[tuple[t.Any, ...], tuple[int, int]] = {(): (0, 0)}  # counts so far -> (busy kept, kept) at the most
        for name, start in places:
            grown: dict[tuple[t.Any, ...], tuple[int, int]] = {}
            for counts, kept in ways.items():
                for filling in every[name]:
                    total = collections.Counter(dict(counts))
                    total.update((name, size) for size, _start in filling)
                    if any(count > wanted.get(key, 0) for key, count in total.items()):
                        continue
                    stay = {(name, start, size, first) for size, first in filling} & present
                    sums = (kept[0] + len(stay & busy), kept[1] + len(stay))
                    key = tuple(sorted(total.items()))
                    grown[key] = max(grown.get(key, (0, 0)), sums)
            ways = grown
        kept = ways.get(tuple(sorted(wanted.items())))
        if kept is not None:
            cost = (len(busy) - kept[0], len(present) - kept[1])
            best = cost if best is None else min(best, cost)
    return best


def devices_of(layout: Layout) -> set[Device]:
    return {(item.profile, item.start, size, first) for item in layout for size, first in item.compute}


def random_layout(profiles: dict[str, t.Any], chance: random.Random, whole: bool) -> Layout:
    placements: list[Placement] = []
    taken: set[int] = set()
    for _ignored in range(chance.randint(0, 9)):
        name = chance.choice(list(profiles))
        start = chance.choice(profiles[name]["starts"])
        cells = set(range(start, start + profiles[name]["size"]))
        if "+me" in name or taken & cells:
            continue
        taken |= cells
        slices = profiles[name]["slices"]
        parts = ((slices, 0),) if whole else chance.choice(fillings(slices))
        placements.append(Placement(name, start, parts, tuple(part for part in parts if chance.random() < 0.25)))
    return tuple(sorted(placements, key=lambda placement: placement.start))


def random_wish(profiles: dict[str, t.Any], chance: random.Random, whole: bool) -> dict[tuple[str, int], int]:
    found = {}
    for name in chance.sample(list(profiles), chance.randint(1, min(3, len(profiles)))):
        slices = profiles[name]["slices"]
        size = slices if whole else chance.choice(list(CI_STARTS[slices]))
        found[(name, size)] = chance.randint(1, min(4, profiles[name]["instances"] * slices // size))
    return found


@pytest.mark.parametrize("whole", [True, False], ids=["gpu instances", "compute instances"])
@pytest.mark.parametrize("name", BOARDS)
def test_never_more_destroyed_than_an_exhaustive_search(name: str, whole: bool) -> None:
    """Random layouts are planned correctly or refused, on every board with published placements."""
    profiles, grid = BOARDS[name]["profiles"], board(BOARDS[name]["device"])
    chance, refused = random.Random(f"{name} {whole}"), 0
    for _ignored in range(60):
        present, wanted = random_layout(profiles, chance, whole), random_wish(profiles, chance, whole)
        there = devices_of(present)
        busy = {(item.profile, item.start, size, first) for item in present for size, first in item.busy}
        target = grid.target(present, wanted)
        best = exhaustive(profiles, there, busy, wanted)
        assert (target is None) == (best is None), (present, wanted)
        if target is None or best is None:
            refused += 1
            continue
        assert collections.Counter((one[0], one[2]) for one in devices_of(target)) == wanted
        assert any(sorted((placement.profile, placement.start) for placement in target) == sorted(places)
                   for places in gpu_instances(profiles, sorted({key for key, _slices in wanted}))), target
        lost = there - devices_of(target)
        assert (len(lost & busy), len(lost)) == best, (present, wanted, target)
    assert 0 < refused < 60
