# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for a layout with desired devices. PRIVATE to the collection."""

from __future__ import annotations

import collections
import itertools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board, Layout, Part, Piece


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
        """See Board.target. A GPU has few instances, so all ways to keep some are tried, the cheapest one first."""
        parts = [(part in piece.busy, index, part) for index, piece in enumerate(present) for part in piece.parts]
        choices = []
        for lost in itertools.product((False, True), repeat=len(parts)):
            kept = [part for part, gone in zip(parts, lost) if not gone]
            names = collections.Counter((present[index].profile, part[0]) for busy, index, part in kept)
            if not names - desired:
                gone_busy = sum(part[0] for part, gone in zip(parts, lost) if gone)
                choices.append((gone_busy, sum(lost), lost, kept, desired - names))
        for _busy, _count, _lost, kept, missing in sorted(choices, key=lambda choice: choice[:3]):
            open_pieces: dict[int, list[Part]] = collections.defaultdict(list)
            for _ignored, index, part in kept:
                open_pieces[index].append(part)
            # GPU instances without compute instances can be used again. First all of them are kept.
            spare = [index for index, piece in enumerate(present) if index not in open_pieces
                     and any(name == piece.profile for name, _size in missing)]
            for count in range(len(spare), -1, -1):
                for again in itertools.combinations(spare, count):
                    start = [Piece(piece.profile, piece.start, tuple(open_pieces.get(index, ())))
                             for index, piece in enumerate(present) if index in open_pieces or index in again]
                    found = self._place(start, sorted(missing.elements(), key=self._largest_first))
                    if found is not None:
                        return found
        return None

    def _largest_first(self, item: tuple[str, int]) -> tuple[int, str, int]:
        return (-self.board.profiles[item[0]].size, item[0], -item[1])

    def _place(self, start: list[Piece], items: list[tuple[str, int]]) -> Layout | None:
        """Adds compute instances; None if they do not all fit, or a GPU instance would stay without any."""
        failed: set[tuple[int, Layout]] = set()

        def add(position: int, pieces: Layout) -> Layout | None:
            if position == len(items):
                done = all(piece.parts for piece in pieces) and self.board.compatible(piece.profile for piece in pieces)
                return pieces if done else None
            if (position, pieces) in failed:
                return None
            for option in self._options(pieces, *items[position]):
                found = add(position + 1, option)
                if found is not None:
                    return found
            failed.add((position, pieces))
            return None

        return add(0, tuple(sorted(start, key=lambda piece: piece.start)))

    def _options(self, pieces: Layout, name: str, slices: int) -> t.Iterator[Layout]:
        """Each way to add a compute instance: in a present GPU instance, then in a new one."""
        for index, piece in enumerate(pieces):
            if piece.profile == name:
                taken = {cell for size, first in piece.parts for cell in range(first, first + size)}
                for first in self.part_starts(name, slices):
                    if taken.isdisjoint(range(first, first + slices)):
                        more = piece._replace(parts=tuple(sorted((*piece.parts, (slices, first)), key=_by_start)))
                        yield (*pieces[:index], more, *pieces[index + 1:])
        taken = {cell for piece in pieces for cell in self.board.cells(piece.profile, piece.start)}
        for start in self.board.profiles[name].starts:
            if taken.isdisjoint(self.board.cells(name, start)):
                for first in self.part_starts(name, slices):
                    made = Piece(name, start, ((slices, first),))
                    yield tuple(sorted((*pieces, made), key=lambda piece: piece.start))

    def pack(self, profile: str, sizes: t.Sequence[int], there: t.Sequence[Part] = ()) -> t.Tuple[Part, ...] | None:
        """Compute instances of these sizes in a GPU instance, with as many of the present ones as possible."""
        counts = sorted(collections.Counter(sizes).items(), reverse=True)
        ways = [[[(size, start) for start in starts] for starts in itertools.combinations(
            self.part_starts(profile, size), count)] for size, count in counts]
        best: tuple[int, t.Tuple[Part, ...]] | None = None
        for way in itertools.product(*ways):
            parts = sorted(itertools.chain(*way), key=_by_start)
            slices = [cell for size, start in parts for cell in range(start, start + size)]
            kept = len(set(parts) & set(there))
            if len(slices) == len(set(slices)) and (best is None or kept > best[0]):
                best = kept, tuple(parts)
        return best and best[1]


def _by_start(part: Part) -> tuple[int, int]:
    return (part[1], part[0])
