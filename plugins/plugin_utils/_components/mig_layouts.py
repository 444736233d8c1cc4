# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a selected MIG layout means for the GPUs of one host, from facts and device tables. Pure. PRIVATE."""

from __future__ import annotations

import collections
import functools
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, config_file, planning, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import Facts


@dataclass(frozen=True)
class Stand:
    """How a GPU stands or shall stand. enabled: None where it is not known; instances: GPU instances by profile, None
    where they cannot be told yet.

    devices: MIG devices in all (a GPU instance can hold several compute instances).
    """

    enabled: bool | None
    instances: t.Mapping[str, int] | None
    devices: int = 0

    def __str__(self) -> str:
        if self.enabled is None:
            return "MIG unknown"
        if not self.enabled:
            return "MIG off"
        if self.instances is None:
            return "MIG on"
        return ", ".join(f"{count} x {name}" for name, count in sorted(self.instances.items())) or "MIG on, empty"

    def satisfies(self, goal: Stand) -> bool:
        """Whether nothing that is known differs."""
        return self.enabled == goal.enabled and (
            goal.instances is None or (self.instances, self.devices) == (goal.instances, goal.devices))


OFF = Stand(False, {})
UNKNOWN = Stand(None, None)


def wanted(config: object, selected: str | None, gpus: t.Sequence[Facts],
           devices: t.Sequence[object] = ()) -> dict[str, Stand]:
    """What the selected layout asks of each GPU it speaks of, by PCI address, as mig_config will read it.

    config: a document in mig-parted's format, None for the layouts generated from the GPUs; devices: those that may be
    changed, empty for all. Raises InputError for a layout that is not there, a GPU that is not there, MIG on a GPU
    without it, a profile a GPU lacks, and instances that do not fit.
    """
    targets = [_target(index, gpu) for index, gpu in enumerate(gpus)]
    chosen = profile_names.chosen([str(word) for word in devices] or None, targets)
    if config is None:
        wishes = profile_names.generate(selected, [target for target in targets if target.pci in chosen])
    else:
        _name, entries = config_file.select(config_file.parse(config), selected)
        wishes = config_file.resolve(entries, targets, chosen)
    return {target.pci: _stand(target, wishes[target.pci]) for target in targets if target.pci in wishes}


def only(config: object) -> str:
    """The name of the only layout of a document. Raises InputError where it has several."""
    return config_file.select(config_file.parse(config), None)[0]


def present(gpu: Facts) -> Stand:
    """How a GPU of the facts stands."""
    mig = gpu.get("mig")
    # A loaded driver that does not answer has made something of the GPU; without one there is nothing.
    if mig is None and gpu["mig_capable"] and gpu.get("kernel_driver") == "nvidia":
        return UNKNOWN
    if not mig or not mig["enabled"]:
        return OFF
    counts = collections.Counter(str(instance["profile"]) for instance in mig["instances"])
    return Stand(True, dict(counts), sum(len(instance["uuids"]) for instance in mig["instances"]))


def kept(entry: Facts) -> Stand:
    """How a GPU will stand after a boot. entry: of the fact C(mig_boot.gpus)."""
    if not entry["enabled"]:
        return OFF
    counts = collections.Counter(str(instance["profile"]) for instance in entry["instances"])
    return Stand(True, dict(counts), sum(len(instance["compute"]) for instance in entry["instances"]))


def overview(gpus: t.Sequence[Facts]) -> str:
    """The GPUs of a host in a few words."""
    capable = [gpu for gpu in gpus if gpu["mig_capable"]]
    if not capable:
        return "no MIG"
    stands = {str(present(gpu)) for gpu in capable}
    return stands.pop() if len(stands) == 1 else "mixed"


def _target(index: int, gpu: Facts) -> profile_names.Target:
    profiles = boards.profiles_of(gpu["device_id"]) if gpu["mig_capable"] else []
    return profile_names.Target(gpu["pci"], index, gpu["device_id"], gpu.get("subsystem") or "",
                                str(gpu.get("model") or gpu["device_id"]), profiles, str(gpu.get("uuid") or ""))


@functools.lru_cache(maxsize=None)
def _board(device_id: str) -> Board:
    # Kept, as it remembers what it has placed: fleets have few models.
    return Board(boards.profiles_of(device_id) or [])


def _stand(target: profile_names.Target, wish: profile_names.Wish) -> Stand:
    if not wish.enabled:
        return OFF
    if wish.devices is None or target.profiles is None:
        return Stand(True, None)
    layout = planning.goal_of(planning.Gpu(target, _board(target.device_id), (False, False)), wish).layout
    return Stand(True, dict(collections.Counter(piece.profile for piece in layout)),
                 sum(len(piece.parts) for piece in layout))
