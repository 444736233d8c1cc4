# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of hosts with their MIG instances, as the page draws them. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Host

# The memory slices of a GPU whose model is not known: those of most models.
_SLICES = 8


class Part(t.NamedTuple):
    """A part of the bar of a GPU. start, size: in memory slices; text: what it shows, empty for free memory slices."""

    text: str
    start: int
    size: int

    def shown(self, slices: int) -> str:
        """The text, without the memory of a profile if the part is too small for it."""
        return self.text if self.size * 3 >= slices else self.text.partition(".")[0]


class Bar(t.NamedTuple):
    """A GPU as a bar of memory slices. name: its index in NVML, or its PCI address; state: C(whole) without MIG,
    C(mig), or C(unread) if the GPU could not be read; slices: the number of its memory slices."""

    name: str
    model: str
    state: str
    slices: int
    parts: t.Tuple[Part, ...]

    @property
    def words(self) -> str:
        """The content of the bar in words."""
        return ", ".join(part.text or f"{part.size} of {self.slices} memory slices free" for part in self.parts)


class Group(t.NamedTuple):
    """Hosts with equal bars. names: of all; text: the names, folded."""

    names: t.Sequence[str]
    text: str
    bars: t.Sequence[Bar]


def model_of(gpu: Document) -> str:
    """The model of a GPU of gpu_info, such as C(A100-SXM4-80GB)."""
    return str(gpu.get("model") or f"GPU {gpu['device_id']}").replace("NVIDIA ", "", 1)


def groups(hosts: t.Mapping[str, Host]) -> list[Group]:
    """The hosts that have GPUs. Those with equal GPUs and MIG instances, in the same order, are one group."""
    found: dict[tuple[Bar, ...], list[str]] = {}
    for name, host in hosts.items():
        bars = tuple(_bar(gpu) for gpu in (host.facts or {}).get("gpus") or ())
        if bars:
            found.setdefault(bars, []).append(name)
    return [Group(names, f"{len(names)}: {fold(names)}" if names[1:] else names[0], bars)
            for bars, names in found.items()]


def _bar(gpu: Document) -> Bar:
    """The bar of a GPU of gpu_info."""
    index, mig = gpu.get("index"), gpu.get("mig")
    named = str(gpu["pci"] if index is None else index), model_of(gpu)
    if gpu.get("error"):
        return Bar(*named, "unread", 1, (Part("not read", 0, 1),))
    if not gpu.get("mig_capable"):
        return Bar(*named, "whole", 1, (Part("no MIG", 0, 1),))
    if mig is None or not mig["enabled"]:
        return Bar(*named, "whole", 1, (Part("MIG not known" if mig is None else "MIG off", 0, 1),))
    known = boards.profiles_of(str(gpu["device_id"])) or ()
    slices = max([profile.size for profile in known] or [_SLICES])
    parts = _parts(mig["instances"], slices)
    return Bar(*named, "mig", slices, tuple(parts)) if parts else Bar(*named, "unread", 1, (Part("not known", 0, 1),))


def _parts(instances: t.Sequence[Document], slices: int) -> list[Part]:
    """The instances, and the free memory slices between and after them. None if their places are not known, or are
    none of this GPU, because a host may report anything."""
    parts, end = [], 0
    for one in sorted(instances, key=lambda one: one["start"] or 0):
        start, size = one["start"], one["size"]
        if start is None or size is None or start < end or size < 1 or start + size > slices:
            return []
        parts += [Part("", end, start - end)] if start > end else []
        parts.append(Part(str(one["profile"] or "instance"), start, size))
        end = start + size
    return [*parts, *([Part("", end, slices - end)] if end < slices else [])]
