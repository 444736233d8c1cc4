# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layouts of MIG instances, and the difference of two layouts. PRIVATE to the collection."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import (
    Instance,
    Profile,
    compute_name,
)

# The desired MIG devices of a GPU: (GPU instance profile, slices of the compute instance) to number.
Devices = t.Mapping[t.Tuple[str, int], int]
Part = t.Tuple[int, int]  # a compute instance: (slices, first slice in its GPU instance)


class Piece(t.NamedTuple):
    """A GPU instance: profile name, first memory unit, compute instances; busy: those on which processes run."""

    profile: str
    start: int
    parts: t.Tuple[Part, ...]
    busy: t.Tuple[Part, ...] = ()


Layout = t.Tuple[Piece, ...]


def layout_of(instances: t.Sequence[Instance]) -> Layout:
    """The layout of the instances that NVML reports."""
    return tuple(Piece(instance.profile.name, instance.start,
                       tuple((compute.slices, compute.start) for compute in instance.compute))
                 for instance in instances)


class Board:
    """The profiles of a GPU, and the layouts that they allow."""

    def __init__(self, profiles: t.Sequence[Profile]) -> None:
        self.profiles = {profile.name: profile for profile in profiles}
        self._targets: dict[tuple[Layout, frozenset[tuple[tuple[str, int], int]]], Layout | None] = {}

    def cells(self, profile: str, start: int) -> range:
        """The memory units that a GPU instance occupies."""
        return range(start, start + self.profiles[profile].size)

    def compatible(self, names: t.Iterable[str]) -> bool:
        """Whether GPU instances can exist together, besides their placements.

        A GPU has one set of shared media engines, so one `+me`; an instance with all engines leaves none for others.
        Sources: nvml.h, comments on the profiles; NVIDIA MIG User Guide.
        """
        counts = collections.Counter(names)
        if any(count > self.profiles[name].instances for name, count in counts.items()):
            return False
        if sum(count for name, count in counts.items() if name.endswith("+me")) > 1:
            return False
        everything = sum(count for name, count in counts.items() if name.endswith("+me.all"))
        others = any(not name.endswith(("+me.all", "-me")) for name in counts)
        return everything == 0 or (everything == 1 and not others)

    def holds(self, layout: Layout) -> bool:
        """Whether a layout is possible: each instance at a placement of its profile, and no two at the same.

        It can come from a file that somebody has edited, so its values can have any type.
        """
        if not all(self._can_be(piece) for piece in layout):
            return False
        cells = [cell for piece in layout for cell in self.cells(piece.profile, piece.start)]
        return len(cells) == len(set(cells)) and self.compatible(piece.profile for piece in layout)

    def _can_be(self, piece: Piece) -> bool:
        """Whether the GPU instance is possible, and its compute instances do not overlap."""
        profile = self.profiles.get(piece.profile) if isinstance(piece.profile, str) else None
        numbers = [piece.start, *(number for part in piece.parts for number in part)]
        # In Python, True is an int.
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if profile is None or not whole or piece.start not in profile.starts:
            return False
        if not all(0 < size <= profile.slices - first <= profile.slices for size, first in piece.parts):
            return False
        slices = [cell for size, first in piece.parts for cell in range(first, first + size)]
        return len(slices) == len(set(slices))

    def target(self, present: Layout, desired: Devices) -> Layout | None:
        """The layout with the desired devices that destroys the fewest busy, then the fewest other compute instances.

        Among equal ones, it is the one with the lowest placements. None if the devices do not fit.
        """
        key = (present, frozenset(desired.items()))
        if key not in self._targets:
            self._targets[key] = self._find(present, desired)
        return self._targets[key]

    def _find(self, present: Layout, desired: Devices) -> Layout | None:
        there = collections.Counter((piece.profile, part[0]) for piece in present for part in piece.parts)
        if there == dict(desired) and all(piece.parts for piece in present):
            return present
        most = max((profile.slices for profile in self.profiles.values()), default=0)
        if sum(slices * count for (_name, slices), count in desired.items()) > most:
            return None
        # If the devices do not fit on an empty GPU, they fit on none.
        if present and self.target((), desired) is None:
            return None
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.search import Search

        return Search(self).best(present, collections.Counter(dict(desired)))

    # -- words

    def device(self, profile: str, slices: int) -> str:
        """The name of a MIG device."""
        return compute_name(profile, self.profiles[profile].slices, slices)

    def devices(self, layout: Layout) -> dict[str, int]:
        """Name to number of the MIG devices of a layout: mig-parted's `mig-devices`."""
        counts = collections.Counter(self.device(piece.profile, part[0]) for piece in layout for part in piece.parts)
        return dict(sorted(counts.items()))

    def describe(self, layout: Layout) -> str:
        """A layout in words: `3g.40gb at 4, 1g.10gb at 0,1`; with compute instances, `1c.3g.40gb at 4.0,4.1`."""
        places: dict[str, list[str]] = collections.defaultdict(list)
        for piece in sorted(layout, key=lambda piece: (-self.profiles[piece.profile].size, piece.profile, piece.start)):
            for slices, first in piece.parts or ((self.profiles[piece.profile].slices, 0),):
                name = self.device(piece.profile, slices)
                places[name].append(str(piece.start) if name == piece.profile else f"{piece.start}.{first}")
        return ", ".join(f"{name} at {','.join(starts)}" for name, starts in places.items())


class Difference(t.NamedTuple):
    """The difference of two layouts, by compute instance.

    A GPU instance that stays is in `kept` even if all of its compute instances are destroyed or created.
    """

    kept: Layout
    destroyed: Layout
    created: Layout


def difference(present: Layout, target: Layout) -> Difference:
    """Compares two layouts by placement."""
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
