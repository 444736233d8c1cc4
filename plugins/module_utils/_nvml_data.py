# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data types of L(_nvml): GPUs, profiles and instances, and their names. Pure."""

from __future__ import annotations

import typing as t

# A pointer of NVML (ctypes). Only NVML and L(_nvml) look into it.
Handle = t.NewType("Handle", object)
# GPU instance profiles: enum to the suffix of the name. 0 to 6 and 9 have none.
_SUFFIXES = {7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 17: "+gfx", 13: "-me", 14: "-me", 15: "+me.all",
             16: "+me.all"}
# The PCI device ids of boards (A30) for which NVML reports wrong numbers of instances. Source: NVIDIA/mig-parted,
# pkg/mig/discovery, which has constants for this board.
MISCOUNTED = ("20b7",)
# Compute instance profiles: enum to slices. 7 is the profile with one slice and more SMs, which only some GPUs have.
COMPUTE_SLICES = {0: 1, 7: 1, 1: 2, 2: 3, 3: 4, 6: 6, 4: 7, 5: 8}


class Profile(t.NamedTuple):
    """A GPU instance profile of a board. starts, size: its possible placements, in memory slices.

    id: its number on this board. enum: the constant of NVML, equal on all boards.
    """

    name: str
    id: int
    enum: int
    slices: int
    instances: int
    size: int
    starts: t.Tuple[int, ...]


class Device(t.NamedTuple):
    """A GPU. number: its index in NVML. pci: as in sysfs (C(0000:07:00.0)). board: equal for equal models."""

    number: int
    handle: Handle
    pci: str
    device_id: str
    subsystem: str

    @property
    def board(self) -> str:
        return f"{self.device_id}/{self.subsystem}"


class Compute(t.NamedTuple):
    """A compute instance. start: its first slice in the GPU instance. profile: the enum of NVML."""

    slices: int
    start: int
    id: int
    profile: int
    handle: Handle


class Instance(t.NamedTuple):
    """A GPU instance with its compute instances. id: None if this session created it and has not read the id."""

    id: int | None
    profile: Profile
    start: int
    compute: t.Tuple[Compute, ...]
    handle: Handle


def profile_name(enum: int, slices: int, memory_mib: int, total_bytes: int) -> str:
    """The name of a GPU instance profile. Source: go-nvlib, which GFD and mig-parted use.

    memory_mib: memory of an instance. total_bytes: memory of the GPU according to nvmlDeviceGetMemoryInfo (v1).
    """
    eighths = -(-8 * memory_mib * 1024**2 // total_bytes)
    gigabytes = (eighths * -(-total_bytes // 1024**3) + 4) // 8
    return f"{slices}g.{gigabytes}gb{_SUFFIXES.get(enum, '')}"


def compute_name(profile: str, gi_slices: int, ci_slices: int) -> str:
    """The name of a MIG device: C(3g.40gb), or C(1c.3g.40gb) if it does not use all slices of its GPU instance."""
    return profile if ci_slices == gi_slices else f"{ci_slices}c.{profile}"
