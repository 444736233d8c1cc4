# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints in mig-parted's format (version v1): placements by GPU UUID. PRIVATE to the collection.

`{Version: v1, MigState: {Devices: [{UUID, MigMode: 0 or 1, GpuInstances: [{ProfileID, Placement: {Start, Size},
ComputeInstances: [{ProfileID, EngProfileID}]}]}]}}`. Profiles are NVML's enums, not the ids of the GPU model. An empty
list is null. The format does not contain the placements of compute instances.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Placement
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.planning import Goal, Gpu, hidden, hidden_profiles
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.search import Search
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import COMPUTE_SLICES, Instance

_HINT = "Set checkpoint to the result checkpoint of state gathered, or to the output of nvidia-mig-parted checkpoint."
_TYPES: dict[type, str] = {str: "a string", int: "a number", list: "a list", dict: "a mapping"}
_T = t.TypeVar("_T")


def write(gpus: t.Iterable[tuple[str, bool, t.Sequence[Instance]]]) -> dict[str, object]:
    """The checkpoint of GPUs, in mig-parted's order. gpus: (UUID, whether MIG is on, instances)."""
    devices = [{"UUID": uuid, "MigMode": int(enabled), "GpuInstances": [
        {"ProfileID": item.profile.enum, "Placement": {"Start": item.start, "Size": item.profile.size},
         "ComputeInstances": [{"ProfileID": compute.profile, "EngProfileID": 0} for compute in sorted(
             item.compute, key=lambda compute: (compute.profile, compute.id))] or None}
        for item in sorted(instances, key=lambda item: (item.profile.enum, item.id))] or None}
        for uuid, enabled, instances in gpus]
    return {"Version": "v1", "MigState": {"Devices": devices}}


def read(document: object) -> dict[str, tuple[str, object]]:
    """Maps the UUID of each device, in lower case, to its path and its data. Raises InputError."""
    version = document.get("Version") if isinstance(document, dict) else None
    if version != "v1":
        raise InputError(f"{version!r} is not a version of mig-parted's checkpoints.", _HINT,
                         path="checkpoint.Version", value=version, allowed=["v1"])
    path = "checkpoint.MigState.Devices"
    devices = _field(_field(document, "MigState", dict, "checkpoint"), "Devices", list, "checkpoint.MigState")
    found = {}
    for index, device in enumerate(devices):
        uuid = _field(device, "UUID", str, f"{path}[{index}]").lower()
        if uuid in found:
            raise InputError(f"GPU {uuid} has two entries.", "Remove one of them.", path=f"{path}[{index}].UUID")
        found[uuid] = (f"{path}[{index}]", device)
    return found


def goal_of(gpu: Gpu, path: str, device: object) -> Goal:
    """The goal of a GPU from its data in the checkpoint. Raises InputError if the GPU cannot have this layout."""
    enabled = bool(_field(device, "MigMode", int, path))
    if enabled and hidden(gpu):
        raise hidden_profiles(gpu, f"{path}.GpuInstances")
    placements = [_piece(gpu, f"{path}.GpuInstances[{index}]", item)
                  for index, item in enumerate(_field(device, "GpuInstances", list, path) if enabled else [])]
    if gpu.board is None or not gpu.target.profiles:
        if enabled:
            raise InputError(f"GPU {gpu.pci} ({gpu.target.model}) does not support MIG.",
                             "Remove the GPU from the checkpoint, or set its MigMode to 0.", path=path)
        return Goal(False, (), path)
    if not gpu.board.holds(tuple(placements)):
        raise InputError(f"{gpu.board.describe(tuple(placements))} do not fit together on GPU {gpu.pci}.", _HINT,
                         path=f"{path}.GpuInstances")
    return Goal(enabled, tuple(placements), path)


def _piece(gpu: Gpu, path: str, item: object) -> Placement:
    """A GPU instance of the checkpoint. Its compute instances get the placements of equal current ones if possible.

    Raises InputError if the GPU cannot have the instance.
    """
    enum, place = _field(item, "ProfileID", int, path), _field(item, "Placement", dict, path)
    start, size = _field(place, "Start", int, f"{path}.Placement"), _field(place, "Size", int, f"{path}.Placement")
    profile = next((known for known in gpu.target.profiles or () if known.enum == enum), None)
    if profile is None or gpu.board is None:
        raise InputError(f"GPU {gpu.pci} ({gpu.target.model}) has no profile {enum}.", _HINT, path=f"{path}.ProfileID",
                         value=enum, allowed=[known.enum for known in gpu.target.profiles or ()])
    if start not in profile.starts or size != profile.size:
        raise InputError(f"{profile.name} of GPU {gpu.pci} ({gpu.target.model}) cannot be placed at {start}:{size}.",
                         f"Allowed placements: {', '.join(f'{first}:{profile.size}' for first in profile.starts)}.",
                         path=f"{path}.Placement", value=start, allowed=list(profile.starts))
    sizes = [COMPUTE_SLICES.get(_field(compute, "ProfileID", int, f"{path}.ComputeInstances[{index}]"), 0)
             for index, compute in enumerate(_field(item, "ComputeInstances", list, path))]
    current = next((placement.compute for placement in gpu.layout
                    if (placement.profile, placement.start) == (profile.name, start)), ())
    computes = Search(gpu.board).pack(profile.name, sizes, current)
    if computes is None:
        raise InputError(f"these compute instances do not fit into a {profile.name} instance.", _HINT,
                         path=f"{path}.ComputeInstances", value=sizes)
    return Placement(profile.name, start, computes)


def _field(data: object, name: str, kind: type[_T], path: str) -> _T:
    """The value of a field; an empty list for a list that is null or missing. Raises InputError for another type."""
    value = data.get(name) if isinstance(data, dict) else None
    if value is None and kind is list:
        return kind()
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{value!r} is not {_TYPES[kind]}.", _HINT, path=f"{path}.{name}", value=value)
    return value
