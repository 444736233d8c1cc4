# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where MIG instances lie, and from what lies there to what is wanted with the least destroyed. Pure. PRIVATE."""

from __future__ import annotations

import collections
import itertools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import (
    Instance,
    Profile,
    compute_name,
)

# What is wanted on a GPU: (GPU instance profile, slices of the compute instance) -> how many MIG devices.
Wanted = t.Mapping[t.Tuple[str, int], int]
Part = t.Tuple[int, int]  # a compute instance: (slices, first slice in its GPU instance)


class Piece(t.NamedTuple):
    """A GPU instance: profile name, first memory unit, compute instances; busy: those on which processes run."""

    profile: str
    start: int
    parts: t.Tuple[Part, ...]
    busy: t.Tuple[Part, ...] = ()


Layout = t.Tuple[Piece, ...]


def layout_of(instances: t.Sequence[Instance]) -> Layout:
    """Instances that NVML reports, as the planner sees them."""
    return tuple(Piece(instance.profile.name, instance.start,
                       tuple((compute.slices, compute.start) for compute in instance.compute))
                 for instance in instances)


class Board:
    """The profiles of a GPU and what they allow.

    Compute instances start at multiples of their size, and one that does not fill its GPU instance takes at most half
    of it, rounded up; three of seven slices start at 0 or 4 (NVIDIA MIG User Guide, "Compute Instances").
    """

    def __init__(self, profiles: t.Sequence[Profile]) -> None:
        self.profiles = {profile.name: profile for profile in profiles}
        self._targets: dict[tuple[Layout, frozenset[t.Any]], Layout | None] = {}

    def part_starts(self, profile: str, slices: int) -> tuple[int, ...]:
        """Where a compute instance of so many slices may start; empty: there is no such one."""
        total = self.profiles[profile].slices
        if slices == total:
            return (0,)
        if slices > total or 2 * slices > total + 1:
            return ()
        return tuple(range(0, total - slices + 1, 4 if (slices, total) == (3, 7) else slices))

    def cells(self, profile: str, start: int) -> range:
        """The memory units that a GPU instance takes."""
        return range(start, start + self.profiles[profile].size)

    def compatible(self, names: t.Iterable[str]) -> bool:
        """What placements do not tell (nvml.h, comments on the profiles; NVIDIA MIG User Guide).

        There is one set of shared media engines, so one C(+me); an instance with all engines leaves none for others.
        """
        counts = collections.Counter(names)
        if any(count > self.profiles[name].instances for name, count in counts.items()):
            return False
        if sum(count for name, count in counts.items() if name.endswith("+me")) > 1:
            return False
        everything = sum(count for name, count in counts.items() if name.endswith("+me.all"))
        others = any(not name.endswith(("+me.all", "-me")) for name in counts)
        return everything == 0 or (everything == 1 and not others)

    def target(self, present: Layout, wanted: Wanted) -> Layout | None:
        """The wanted layout that destroys the fewest compute instances of the present one, busy ones last of all.

        Two such are told apart by the lowest placements. None: it cannot be placed at all.
        """
        key = (present, frozenset(wanted.items()))
        if key not in self._targets:
            # What fits on no empty GPU is found out once for all that there are.
            fits = self._room(wanted) and (not present or self.target((), wanted) is not None)
            self._targets[key] = self._search(present, collections.Counter(dict(wanted))) if fits else None
        return self._targets[key]

    def _room(self, wanted: Wanted) -> bool:
        """Whether there are slices enough, which is told without a search."""
        most = max((profile.slices for profile in self.profiles.values()), default=0)
        return sum(slices * count for (_name, slices), count in wanted.items()) <= most

    # -- the search: few instances fit on a GPU, so all ways to keep some are tried, cheapest first

    def _search(self, present: Layout, wanted: collections.Counter[tuple[str, int]]) -> Layout | None:
        parts = [(part in piece.busy, index, part) for index, piece in enumerate(present) for part in piece.parts]
        choices = []
        for lost in itertools.product((False, True), repeat=len(parts)):
            kept = [part for part, gone in zip(parts, lost) if not gone]
            names = collections.Counter((present[index].profile, part[0]) for busy, index, part in kept)
            if not names - wanted:
                gone_busy = sum(part[0] for part, gone in zip(parts, lost) if gone)
                choices.append((gone_busy, sum(lost), lost, kept, wanted - names))
        for _busy, _count, _lost, kept, missing in sorted(choices, key=lambda choice: choice[:3]):
            open_pieces: dict[int, list[Part]] = collections.defaultdict(list)
            for _ignored, index, part in kept:
                open_pieces[index].append(part)
            # A GPU instance without a compute instance may serve again; most first.
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
        return (-self.profiles[item[0]].size, item[0], -item[1])

    def _place(self, start: list[Piece], items: list[tuple[str, int]]) -> Layout | None:
        """Adds the items to the pieces; None where they do not all fit, or a piece stays without part."""
        failed: set[tuple[int, Layout]] = set()

        def add(position: int, pieces: Layout) -> Layout | None:
            if position == len(items):
                done = all(piece.parts for piece in pieces) and self.compatible(piece.profile for piece in pieces)
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
        """Each way to add one compute instance: in a GPU instance that is there, then in a new one."""
        for index, piece in enumerate(pieces):
            if piece.profile == name:
                taken = {cell for size, first in piece.parts for cell in range(first, first + size)}
                for first in self.part_starts(name, slices):
                    if taken.isdisjoint(range(first, first + slices)):
                        more = piece._replace(parts=tuple(sorted((*piece.parts, (slices, first)), key=_by_start)))
                        yield (*pieces[:index], more, *pieces[index + 1:])
        taken = {cell for piece in pieces for cell in self.cells(piece.profile, piece.start)}
        for start in self.profiles[name].starts:
            if taken.isdisjoint(self.cells(name, start)):
                for first in self.part_starts(name, slices):
                    made = Piece(name, start, ((slices, first),))
                    yield tuple(sorted((*pieces, made), key=lambda piece: piece.start))

    def pack(self, profile: str, sizes: t.Sequence[int], there: t.Sequence[Part] = ()) -> t.Tuple[Part, ...] | None:
        """Where compute instances of these sizes lie in a GPU instance: on as many of those there as can be."""
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

    # -- words

    def device(self, profile: str, slices: int) -> str:
        """The name of a MIG device."""
        return compute_name(profile, self.profiles[profile].slices, slices)

    def devices(self, layout: Layout) -> dict[str, int]:
        """How many MIG devices of each name a layout has: mig-parted's C(mig-devices)."""
        counts = collections.Counter(self.device(piece.profile, part[0]) for piece in layout for part in piece.parts)
        return dict(sorted(counts.items()))

    def describe(self, layout: Layout) -> str:
        """Such as C(3g.40gb at 4, 1g.10gb at 0,1); of compute instances C(1c.3g.40gb at 4.0,4.1)."""
        places: dict[str, list[str]] = collections.defaultdict(list)
        for piece in sorted(layout, key=lambda piece: (-self.profiles[piece.profile].size, piece.profile, piece.start)):
            for slices, first in piece.parts or ((self.profiles[piece.profile].slices, 0),):
                name = self.device(piece.profile, slices)
                places[name].append(str(piece.start) if name == piece.profile else f"{piece.start}.{first}")
        return ", ".join(f"{name} at {','.join(starts)}" for name, starts in places.items())


def _by_start(part: Part) -> tuple[int, int]:
    return (part[1], part[0])


class Difference(t.NamedTuple):
    """What leads from one layout to another. kept, destroyed, created: pieces with the parts concerned.

    A destroyed or created piece whose GPU instance stays is in C(kept) too (with the parts that stay, maybe none).
    """

    kept: Layout
    destroyed: Layout
    created: Layout


def difference(present: Layout, target: Layout) -> Difference:
    """Compares by placement: what is equal is kept."""
    old = {(piece.profile, piece.start): piece for piece in present}
    new = {(piece.profile, piece.start): piece for piece in target}
    kept, destroyed, created = [], [], []
    for key, piece in old.items():
        stays = set(new[key].parts) if key in new else set()
        gone = tuple(part for part in piece.parts if part not in stays)
        if key in new:
            kept.append(piece._replace(parts=tuple(part for part in piece.parts if part in stays)))
        if gone or key not in new:
            destroyed.append(piece._replace(parts=gone))
    for key, piece in new.items():
        there = set(old[key].parts) if key in old else set()
        parts = tuple(part for part in piece.parts if part not in there)
        if parts or key not in old:
            created.append(piece._replace(parts=parts))
    return Difference(tuple(kept), tuple(destroyed), tuple(created))
