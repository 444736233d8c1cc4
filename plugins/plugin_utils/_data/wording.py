# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Phrases that messages about hosts and clusters share. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t

SHOWN = 12  # the maximum number of names, or ranges of names, that fold shows
_NUMBERED = re.compile(r"([^.]*?)(\d+)([^\d.]*(?:\..*)?)")


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as C(1 GPU) or C(2 GPUs)."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def some_of(names: t.Sequence[str], most: int = 3) -> str:
    """The first names and the number of the others, such as C(gpu-a1, gpu-a2, gpu-a3 and 12 more)."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def mig_manager_not_started(nodes: str) -> str:
    """A note about Nodes that do not get the deploy label of the MIG manager yet. nodes: their names."""
    return (f"{nodes}: nvidia.com/gpu.deploy.mig-manager is not set, because gpu_disruption is never: the MIG manager "
            "would start, and apply the layout that the label nvidia.com/mig.config requests, which destroys other MIG "
            "instances. Set gpu_disruption: idle to allow this.")


def labels_stay(nodes: str, labels: t.Sequence[str], may_end: bool = False) -> str:
    """A note about deploy labels that are no longer planned and are kept.

    nodes: names of the Nodes. may_end: whether the level permits their removal after the pods have ended.
    """
    stay, them = ("stay", "them") if len(labels) > 1 else ("stays", "it")
    how = f"A run of site.yml removes {them} after it has stopped these pods Node by Node" if may_end else \
        f"Set gpu_disruption: drain to remove {them}"
    return (f"{nodes}: {', '.join(labels)} {stay}, because the removal would end driver or MPS pods that GPU clients "
            f"use. {how}.")


def fold(names: t.Iterable[str]) -> str:
    """Names as ranges, such as C(gpu-[000-019,025], login), with at most SHOWN names or ranges."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    pieces = []
    for name in sorted(names):
        match = _NUMBERED.fullmatch(name)
        if match:
            groups.setdefault((match[1], len(match[2]), match[3]), []).append(int(match[2]))
        else:
            pieces.append((name, 1))
    for (start, width, end), numbers in sorted(groups.items()):
        ranges = _ranges(sorted(numbers))
        listed, shown = ranges[:SHOWN], sum(last - first + 1 for first, last in ranges[:SHOWN])
        text = ",".join("-".join(f"{number:0{width}d}" for number in sorted({*one})) for one in listed)
        more = f" and {len(numbers) - shown} more" if shown < len(numbers) else ""
        pieces.append((f"{start}{f'[{text}]' if len(numbers) > 1 else text}{end}{more}", len(numbers)))
    left = sum(count for _name, count in pieces[SHOWN:])
    return ", ".join(name for name, _count in pieces[:SHOWN]) + (f" and {left} more" if left else "")


def _ranges(numbers: t.Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) of each sequence of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
