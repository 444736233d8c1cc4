# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU instance profiles by PCI device id, for plans without a driver. PRIVATE to the collection.

Sources: NVIDIA MIG User Guide 580 ("Supported MIG Profiles"), names in mig-parted's default configuration, public
output of `nvidia-smi mig -lgip` and `-lgipp`. If there is a driver that reports the profiles, these are used instead.
Drivers before R550 report them only while MIG is on.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import MODELS
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Profile

# slices g, which of the row's sizes, attribute | profile id | NVML's enum | instances | memory units | first units
_GRIDS = {
    # Seven compute slices on eight memory units: A100 to GB300.
    "seven": """1g.0 19 0 7 1 0123456
2g.1 14 1 3 2 024
3g.2 9 2 2 4 04
4g.2 5 3 1 4 0
7g.3 0 4 1 8 0
1g.0+me 20 7 1 1 0123456
1g.1 15 9 4 2 0246""",
    # A30: four of both.
    "four": """1g.0 14 0 4 1 0123
2g.1 5 1 2 2 02
4g.2 0 3 1 4 0
1g.0+me 21 7 1 1 0123
2g.1+me 6 8 1 2 02""",
    # RTX PRO 6000: four compute slices on twelve memory units.
    "twelve": """1g.0 14 0 4 3 0369
2g.1 5 1 2 6 06
4g.2 0 3 1 12 0
1g.0+me 21 7 1 3 0369
1g.0+gfx 47 10 4 3 0369
2g.1+gfx 35 11 2 6 06
4g.2+gfx 32 12 1 12 0
1g.0-me 67 13 4 3 0369
2g.1-me 66 14 2 6 06
1g.0+me.all 65 15 1 3 0369
2g.1+me.all 64 16 1 6 06""",
}

# grid | sizes in GB | PCI device ids
_BOARDS = """
four|6 12 24|20b7
seven|5 10 20 40|20b0 20b1 20f1 20bd 20f6
seven|10 20 40 80|20b2 20b5 20f3 20f5 2330 2324 2331 2322
seven|12 24 47 94|2321 2339 233a
seven|12 24 48 96|2342 233d 2338 20b6 2329
seven|18 36 72 144|2348
seven|18 35 71 141|232c 2335 233b
seven|23 45 90 180|2901
seven|23 47 93 186|2941
seven|34 67 135 269|3182
seven|35 70 139 278|31c2 31c3
twelve|24 48 96|2bb5 2bb1 2bb4
"""


def _profile(row: str, sizes: t.Sequence[str]) -> Profile:
    name, ident, enum, instances, size, starts = row.split()
    slices, rest = name.split("g.")
    return Profile(name=f"{slices}g.{sizes[int(rest[0])]}gb{rest[1:]}", id=int(ident), enum=int(enum),
                   slices=int(slices), instances=int(instances), size=int(size),
                   starts=tuple(int(start) for start in starts))


def _tables() -> t.Iterator[tuple[str, t.List[Profile]]]:
    for line in _BOARDS.split("\n"):
        if line:
            grid, sizes, devices = line.split("|")
            table = [_profile(row, sizes.split()) for row in _GRIDS[grid].split("\n")]
            for device in devices.split():
                yield device, table


_TABLES = dict(_tables())


def profiles_of(device_id: str) -> list[Profile] | None:
    """The profiles of a PCI device id such as `20b2`, in NVML's order; None if they are unknown."""
    return _TABLES.get(device_id.lower())


def with_counts(device_id: str, profiles: t.Sequence[Profile]) -> list[Profile]:
    """Profiles that a driver has reported, with the numbers of instances from the table.

    For the boards in MISCOUNTED of `_nvml_data.py`. A profile that the table lacks keeps its number.
    """
    counts = {profile.enum: profile.instances for profile in profiles_of(device_id) or ()}
    return [profile._replace(instances=counts.get(profile.enum, profile.instances)) for profile in profiles]


def find(word: str) -> tuple[str | None, list[str]]:
    """(PCI device id, other models that the word can mean), or (None, similar models) if no model has this name.

    word: a PCI device id, or NVML's name of a model, with or without NVIDIA. The other models are those with a longer
    name and other profiles, such as H100 PCIe for H100.
    """
    word = word.lower()
    names = [(model.device_id, (model.name or model.device_id).replace("NVIDIA ", "", 1), model.mig_capable)
             for model in MODELS.values()]
    found = [ident for ident, name, _mig in names if word in (ident, name.lower(), f"nvidia {name}".lower())]
    if found:
        return found[0], [name for ident, name, mig in names if mig and name.lower().startswith(f"{word} ")
                          and profiles_of(ident) != profiles_of(found[0])]
    capable = [name for _ident, name, mig in names if mig]
    return None, [name for name in capable if word in name.lower()] or capable


def known() -> t.Tuple[str, ...]:
    """The PCI device ids that have a table."""
    return tuple(_TABLES)
