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
Compute = t.Tuple[int, int]  # a compute instance: (slices, first slice in its GPU instance)


class Placement(t.NamedTuple):
    """A GPU instance in a layout. profile: name of its profile; start: its first memory unit; compute: its compute
    instances; busy: the compute instances that processes use."""

    profile: str
    start: int
    compute: t.Tuple[Compute, ...]
    busy: t.Tuple[Compute, ...] = ()


Layout = t.Tuple[Placement, ...]


def layout_of(instances: t.Sequence[Instance]) -> Layout:
    """The layout of the instances that NVML reports."""
    return tuple(Placement(instance.profile.name, instance.start,
                           tuple((compute.slices, compute.start) for compute in instance.compute))
                 for instance in instances)


def devices_of(layout: Layout) -> dict[tuple[str, int], int]:
    """Maps (GPU instance profile, slices of the compute instance) to the number of such MIG devices in a layout."""
    return dict(collections.Counter((item.profile, slices) for item in layout for slices, _first in item.compute))


class Board:
    """The profiles of a GPU model, and the layouts that they allow."""

    def __init__(self, profiles: t.Sequence[Profile]) -> None:
        self.profiles = {profile.name: profile for profile in profiles}
        self._targets: dict[tuple[Layout, frozenset[tuple[tuple[str, int], int]]], Layout | None] = {}

    def cells(self, profile: str, start: int) -> range:
        """The memory units that a GPU instance occupies."""
        return range(start, start + self.profiles[profile].size)

    def compatible(self, names: t.Iterable[str]) -> bool:
        """Whether GPU instances of these profiles can exist together, if their placements do not overlap.

        A GPU has one set of shared media engines, so at most one `+me` instance. Beside a `+me.all` instance, only
        `-me` instances can exist. Sources: nvml.h, comments on the profiles; NVIDIA MIG User Guide.
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
        """Whether a layout is possible: each instance has a placement of its profile, and instances do not overlap.

        The values may have any type, because the layout can be from a file that somebody has edited.
        """
        if not all(self._can_be(placement) for placement in layout):
            return False
        cells = [cell for placement in layout for cell in self.cells(placement.profile, placement.start)]
        return len(cells) == len(set(cells)) and self.compatible(placement.profile for placement in layout)

    def _can_be(self, placement: Placement) -> bool:
        """Whether the GPU instance is possible, and its compute instances do not overlap."""
        profile = self.profiles.get(placement.profile) if isinstance(placement.profile, str) else None
        numbers = [placement.start, *(number for compute in placement.compute for number in compute)]
        # In Python, True is an int.
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if profile is None or not whole or placement.start not in profile.starts:
            return False
        if not all(0 < size <= profile.slices - first <= profile.slices for size, first in placement.compute):
            return False
        slices = [cell for size, first in placement.compute for cell in range(first, first + size)]
        return len(slices) == len(set(slices))

    def target(self, present: Layout, desired: Devices) -> Layout | None:
        """The best layout with the desired devices, None if they do not fit.

        The best layout destroys the fewest busy compute instances; among these, the fewest others; among these, it has
        the lowest placements.
        """
        key = (present, frozenset(desired.items()))
        if key not in self._targets:
            self._targets[key] = self._find(present, desired)
        return self._targets[key]

    def _find(self, present: Layout, desired: Devices) -> Layout | None:
        if devices_of(present) == dict(desired) and all(placement.compute for placement in present):
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
        """The name of a MIG device, such as `1c.3g.40gb`. slices: those of the compute instance."""
        return compute_name(profile, self.profiles[profile].slices, slices)

    def devices(self, layout: Layout) -> dict[str, int]:
        """Maps the names of the MIG devices of a layout to their numbers, as mig-parted's `mig-devices`."""
        return dict(sorted((self.device(*key), count) for key, count in devices_of(layout).items()))

    def describe(self, layout: Layout) -> str:
        """A layout in words: `3g.40gb at 4, 1g.10gb at 0,1`; with compute instances, `1c.3g.40gb at 4.0,4.1`."""
        places: dict[str, list[str]] = collections.defaultdict(list)
        for placement in sorted(layout, key=lambda item: (-self.profiles[item.profile].size, item.profile, item.start)):
            for slices, first in placement.compute or ((self.profiles[placement.profile].slices, 0),):
                name = self.device(placement.profile, slices)
                places[name].append(str(placement.start) if name == placement.profile else f"{placement.start}.{first}")
        return ", ".join(f"{name} at {','.join(starts)}" for name, starts in places.items())


class Difference(t.NamedTuple):
    """The difference of two layouts, by compute instance.

    A GPU instance that is not destroyed is in `kept`, even if all of its compute instances are destroyed or created.
    """

    kept: Layout
    destroyed: Layout
    created: Layout


def difference(present: Layout, target: Layout) -> Difference:
    """The difference of two layouts. Instances are equal if profile and placement are equal."""
    old = {(placement.profile, placement.start): placement for placement in present}
    new = {(placement.profile, placement.start): placement for placement in target}
    kept, destroyed, created = [], [], []
    for key, placement in old.items():
        stays = set(new[key].compute) if key in new else set()
        lost = tuple(compute for compute in placement.compute if compute not in stays)
        if key in new:
            kept.append(placement._replace(compute=tuple(compute for compute in placement.compute if compute in stays)))
        if lost or key not in new:
            destroyed.append(placement._replace(compute=lost))
    for key, placement in new.items():
        former = set(old[key].compute) if key in old else set()
        added = tuple(compute for compute in placement.compute if compute not in former)
        if added or key not in old:
            created.append(placement._replace(compute=added))
    return Difference(tuple(kept), tuple(destroyed), tuple(created))
