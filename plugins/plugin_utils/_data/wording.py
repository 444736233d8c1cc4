# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Phrases that messages about hosts and clusters share. Pure. PRIVATE."""

from __future__ import annotations

import typing as t


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
