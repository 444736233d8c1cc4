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


class Part(t.NamedTuple):
    """A part of the bar of a GPU. start, size: in memory slices; text: what it shows, empty for free memory slices."""

    text: str
    start: int
    size: int

    def shown(self, slices: int) -> str:
        """The text, without the memory of a profile if the part is too small for it."""
        return self.text if self.size * 3 >= slices else self.text.partition(".")[0]


class Bar(t.NamedTuple):
    """A GPU as a bar of memory slices. state: C(whole) without MIG, C(mig), or C(unread) if the GPU could not be read;
    slices: the number of its memory slices."""

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
    model = str(gpu.get("model") or f"GPU {gpu['device_id']}").replace("NVIDIA ", "", 1)
    if gpu.get("error"):
        return Bar(model, "unread", 1, (Part("not read", 0, 1),))
    mig = gpu.get("mig") or {}
    if not mig.get("enabled"):
        return Bar(model, "whole", 1, (Part("MIG off" if gpu.get("mig_capable") else "no MIG", 0, 1),))
    instances = [Part(str(one["profile"]), int(one["start"]), int(one["size"])) for one in mig["instances"]]
    slices = max([profile.size for profile in boards.profiles_of(str(gpu["device_id"])) or ()]
                 + [part.start + part.size for part in instances] + [1])
    return Bar(model, "mig", slices, tuple(_with_gaps(sorted(instances, key=lambda part: part.start), slices)))


def _with_gaps(instances: t.Sequence[Part], slices: int) -> t.Iterator[Part]:
    """The instances, and the free memory slices between and after them."""
    end = 0
    for part in instances:
        if part.start > end:
            yield Part("", end, part.start - end)
        yield part
        end = part.start + part.size
    if end < slices:
        yield Part("", end, slices - end)
