# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU instances that a MIG layout defines for the GPUs of a host, and the current instances. Pure. PRIVATE."""

from __future__ import annotations

import collections
import functools
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, config_file, planning, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import BootGpu, Gpu


@dataclass(frozen=True)
class MigState:
    """The current or desired state of a GPU. enabled: whether MIG mode is on, None if unknown; instances: the number of
    GPU instances of each profile, None if unknown; devices: the number of MIG devices (a GPU instance can contain
    several compute instances)."""

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

    def satisfies(self, goal: MigState) -> bool:
        """Whether this state is the desired state (goal). Unknown instances of goal are not compared."""
        return self.enabled == goal.enabled and (
            goal.instances is None or (self.instances, self.devices) == (goal.instances, goal.devices))


OFF = MigState(False, {})
UNKNOWN = MigState(None, None)


def desired_states(config: object, selected: str | None, gpus: t.Sequence[Gpu],
                   devices: t.Sequence[object] = ()) -> dict[str, MigState]:
    """Maps the PCI addresses of GPUs in the selected layout to their desired state.

    config: a document in mig-parted's format, None for the layouts that are generated from the GPUs; devices: the GPUs
    that may be changed, empty for all. Raises InputError for an unknown layout or GPU, for MIG on a GPU that does not
    support it, for an unknown profile, and for instances that do not fit on the GPU.
    """
    targets = [_target(index, gpu) for index, gpu in enumerate(gpus)]
    chosen = profile_names.chosen([str(word) for word in devices] or None, targets)
    if config is None:
        desired = profile_names.generate(selected, [target for target in targets if target.pci in chosen])
    else:
        _name, entries = config_file.select(config_file.parse(config), selected)
        desired = config_file.resolve(entries, targets, chosen)
    return {target.pci: _state(target, desired[target.pci]) for target in targets if target.pci in desired}


def only_layout(config: object) -> str:
    """The name of the only layout in a document. Raises InputError if it has several."""
    return config_file.select(config_file.parse(config), None)[0]


def current(gpu: Gpu) -> MigState:
    """The current state of a GPU."""
    mig = gpu.get("mig")
    # Without a driver, a GPU has no instances. If the driver does not respond, the instances are unknown.
    if mig is None and gpu["mig_capable"] and gpu.get("kernel_driver") == "nvidia":
        return UNKNOWN
    if not mig or not mig["enabled"]:
        return OFF
    counts = collections.Counter(str(instance["profile"]) for instance in mig["instances"])
    return MigState(True, dict(counts), sum(len(instance["uuids"]) for instance in mig["instances"]))


def after_boot(entry: BootGpu) -> MigState:
    """The state of a GPU after the next boot. entry: the entry for the GPU in the fact C(mig_boot.gpus)."""
    if not entry["enabled"]:
        return OFF
    counts = collections.Counter(str(instance["profile"]) for instance in entry["instances"])
    return MigState(True, dict(counts), sum(len(instance["compute"]) for instance in entry["instances"]))


def overview(gpus: t.Sequence[Gpu]) -> str:
    """A description of the states of the GPUs of a host."""
    capable = [gpu for gpu in gpus if gpu["mig_capable"]]
    if not capable:
        return "no MIG"
    stands = {str(current(gpu)) for gpu in capable}
    return stands.pop() if len(stands) == 1 else "mixed"


def _target(index: int, gpu: Gpu) -> profile_names.Target:
    profiles = boards.profiles_of(gpu["device_id"]) if gpu["mig_capable"] else []
    return profile_names.Target(gpu["pci"], index, gpu["device_id"], gpu.get("subsystem") or "",
                                str(gpu.get("model") or gpu["device_id"]), profiles, str(gpu.get("uuid") or ""))


@functools.lru_cache(maxsize=None)
def _board(device_id: str) -> Board:
    # A board caches its placements.
    return Board(boards.profiles_of(device_id) or [])


def _state(target: profile_names.Target, desired: profile_names.DesiredDevices) -> MigState:
    if not desired.enabled:
        return OFF
    if desired.devices is None or target.profiles is None:
        return MigState(True, None)
    layout = planning.goal_of(planning.Gpu(target, _board(target.device_id), (False, False)), desired).layout
    return MigState(True, dict(collections.Counter(piece.profile for piece in layout)),
                    sum(len(piece.compute) for piece in layout))
