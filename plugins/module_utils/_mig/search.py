# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for a layout with desired devices. PRIVATE to the collection."""

from __future__ import annotations

import collections
import itertools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board, Compute, Layout, Placement


class Search:
    """The search for one type of GPU.

    A compute instance starts at a multiple of its size. If it does not fill its GPU instance, it has at most half of
    the slices, rounded up. If it has three of seven slices, it starts at 0 or 4 (NVIDIA MIG User Guide, "Compute
    Instances").
    """

    def __init__(self, board: Board) -> None:
        self.board = board

    def part_starts(self, profile: str, slices: int) -> tuple[int, ...]:
        """The possible first slices of a compute instance of this size; none if the size is impossible."""
        total = self.board.profiles[profile].slices
        if slices == total:
            return (0,)
        if slices < 1 or 2 * slices > total + 1:
            return ()
        return tuple(range(0, total - slices + 1, 4 if (slices, total) == (3, 7) else slices))

    def best(self, present: Layout, desired: collections.Counter[tuple[str, int]]) -> Layout | None:
        """See Board.target. Tries all subsets of instances to keep, the best first; a GPU has only a few instances."""
        computes = [(compute in placement.busy, index, compute) for index, placement in enumerate(present)
                    for compute in placement.compute]
        choices = []
        for lost in itertools.product((False, True), repeat=len(computes)):
            kept = [compute for compute, gone in zip(computes, lost) if not gone]
            names = collections.Counter((present[index].profile, compute[0]) for busy, index, compute in kept)
            if not names - desired:
                gone_busy = sum(compute[0] for compute, gone in zip(computes, lost) if gone)
                choices.append((gone_busy, sum(lost), lost, kept, desired - names))
        for _busy, _count, _lost, kept, missing in sorted(choices, key=lambda choice: choice[:3]):
            open_placements: dict[int, list[Compute]] = collections.defaultdict(list)
            for _ignored, index, compute in kept:
                open_placements[index].append(compute)
            # GPU instances without compute instances can be used again. Try to keep all of them first.
            spare = [index for index, placement in enumerate(present) if index not in open_placements
                     and any(name == placement.profile for name, _size in missing)]
            for count in range(len(spare), -1, -1):
                for again in itertools.combinations(spare, count):
                    start = [Placement(placement.profile, placement.start, tuple(open_placements.get(index, ())))
                             for index, placement in enumerate(present) if index in open_placements or index in again]
                    found = self._place(start, sorted(missing.elements(), key=self._largest_first))
                    if found is not None:
                        return found
        return None

    def _largest_first(self, item: tuple[str, int]) -> tuple[int, str, int]:
        return (-self.board.profiles[item[0]].size, item[0], -item[1])

    def _place(self, start: list[Placement], items: list[tuple[str, int]]) -> Layout | None:
        """The layout with added compute instances; None if some do not fit, or a GPU instance would have none.

        start: the kept GPU instances; items: (GPU instance profile, slices) of each compute instance to add.
        """
        failed: set[tuple[int, Layout]] = set()

        def add(position: int, placements: Layout) -> Layout | None:
            if position == len(items):
                filled = all(placement.compute for placement in placements)
                return placements if filled and self.board.compatible(item.profile for item in placements) else None
            if (position, placements) in failed:
                return None
            for option in self._options(placements, *items[position]):
                found = add(position + 1, option)
                if found is not None:
                    return found
            failed.add((position, placements))
            return None

        return add(0, tuple(sorted(start, key=lambda placement: placement.start)))

    def _options(self, placements: Layout, name: str, slices: int) -> t.Iterator[Layout]:
        """Yields each layout with one more compute instance: first in an existing GPU instance, then in a new one."""
        for index, placement in enumerate(placements):
            if placement.profile == name:
                taken = {cell for size, first in placement.compute for cell in range(first, first + size)}
                for first in self.part_starts(name, slices):
                    if taken.isdisjoint(range(first, first + slices)):
                        computes = sorted((*placement.compute, (slices, first)), key=_by_start)
                        extended = placement._replace(compute=tuple(computes))
                        yield (*placements[:index], extended, *placements[index + 1:])
        taken = {cell for placement in placements for cell in self.board.cells(placement.profile, placement.start)}
        for start in self.board.profiles[name].starts:
            if taken.isdisjoint(self.board.cells(name, start)):
                for first in self.part_starts(name, slices):
                    made = Placement(name, start, ((slices, first),))
                    yield tuple(sorted((*placements, made), key=lambda placement: placement.start))

    def pack(self, profile: str, sizes: t.Sequence[int], current: t.Sequence[Compute] = ()
             ) -> t.Tuple[Compute, ...] | None:
        """Compute instances of these sizes in a GPU instance, with as many current ones as possible.

        sizes: in slices. None if they do not fit.
        """
        counts = sorted(collections.Counter(sizes).items(), reverse=True)
        ways = [[[(size, start) for start in starts] for starts in itertools.combinations(
            self.part_starts(profile, size), count)] for size, count in counts]
        best: tuple[int, t.Tuple[Compute, ...]] | None = None
        for way in itertools.product(*ways):
            computes = sorted(itertools.chain(*way), key=_by_start)
            slices = [cell for size, start in computes for cell in range(start, start + size)]
            kept = len(set(computes) & set(current))
            if len(slices) == len(set(slices)) and (best is None or kept > best[0]):
                best = kept, tuple(computes)
        return best and best[1]


def _by_start(compute: Compute) -> tuple[int, int]:
    return (compute[1], compute[0])
