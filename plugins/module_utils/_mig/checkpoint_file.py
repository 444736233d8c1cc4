# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What mig-parted's C(checkpoint) writes (version v1): placements by GPU UUID. Written, checked, resolved. PRIVATE.

C({Version: v1, MigState: {Devices: [{UUID, MigMode: 0 or 1, GpuInstances: [{ProfileID, Placement: {Start, Size},
ComputeInstances: [{ProfileID, EngProfileID}]}]}]}}). Profiles are NVML's enums, not the board's ids; an empty list is
null. Where compute instances lie in their GPU instance is not in it.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Piece
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.planning import Goal, Gpu
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.search import Search
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import COMPUTE_SLICES, Instance

_HINT = "Give what state=gathered returns as checkpoint, or what nvidia-mig-parted checkpoint has written."
_NUMBER = (int, "a number")
_LIST = (list, "a list")
_FIELDS: dict[str, tuple[type, str]] = {"UUID": (str, "a text"), "MigMode": _NUMBER, "ProfileID": _NUMBER,
                                        "Start": _NUMBER, "Size": _NUMBER, "Placement": (dict, "a mapping"),
                                        "MigState": (dict, "a mapping"), "Devices": _LIST, "GpuInstances": _LIST,
                                        "ComputeInstances": _LIST}


def write(gpus: t.Iterable[tuple[str, bool, t.Sequence[Instance]]]) -> dict[str, t.Any]:
    """The document for GPUs as (UUID, MIG on, instances), in the order in which mig-parted lists them."""
    devices = [{"UUID": uuid, "MigMode": int(enabled), "GpuInstances": [
        {"ProfileID": item.profile.enum, "Placement": {"Start": item.start, "Size": item.profile.size},
         "ComputeInstances": [{"ProfileID": part.profile, "EngProfileID": 0}
                              for part in sorted(item.compute, key=lambda part: (part.profile, part.id))] or None}
        for item in sorted(instances, key=lambda item: (item.profile.enum, item.id))] or None}
        for uuid, enabled, instances in gpus]
    return {"Version": "v1", "MigState": {"Devices": devices}}


def read(document: t.Mapping[str, t.Any]) -> dict[str, tuple[str, t.Mapping[str, t.Any]]]:
    """The devices by UUID in small letters, each with its path. Raises InputError."""
    if document.get("Version") != "v1":
        raise InputError(f"{document.get('Version')!r} is not a version of mig-parted's checkpoints.", _HINT,
                         path="checkpoint.Version", value=document.get("Version"), allowed=["v1"])
    path = "checkpoint.MigState.Devices"
    devices = _field(_field(document, "MigState", "checkpoint"), "Devices", "checkpoint.MigState")
    found = {}
    for index, device in enumerate(devices):
        uuid = _field(device, "UUID", f"{path}[{index}]").lower()
        if uuid in found:
            raise InputError(f"GPU {uuid} stands here twice.", "Keep one of them.", path=f"{path}[{index}].UUID")
        found[uuid] = (f"{path}[{index}]", device)
    return found


def goal_of(gpu: Gpu, path: str, device: t.Mapping[str, t.Any]) -> Goal:
    """What a device of the document asks of its GPU. Raises InputError where the GPU cannot have it."""
    enabled = bool(_field(device, "MigMode", path))
    pieces = [_piece(gpu, f"{path}.GpuInstances[{index}]", item)
              for index, item in enumerate(_field(device, "GpuInstances", path) if enabled else [])]
    if gpu.board is None or not gpu.target.profiles:
        if enabled:
            raise InputError(f"GPU {gpu.pci} ({gpu.target.model}) cannot do MIG.", "Leave it out.", path=path)
        return Goal(False, (), path)
    if not gpu.board.holds(tuple(pieces)):
        raise InputError(f"{gpu.board.describe(tuple(pieces))} do not fit together on GPU {gpu.pci}.", _HINT,
                         path=f"{path}.GpuInstances")
    return Goal(enabled, tuple(pieces), path)


def _piece(gpu: Gpu, path: str, item: t.Any) -> Piece:
    """A GPU instance with its compute instances where present ones lie, as far as they are the same."""
    enum, place = _field(item, "ProfileID", path), _field(item, "Placement", path)
    start, size = _field(place, "Start", f"{path}.Placement"), _field(place, "Size", f"{path}.Placement")
    profile = next((one for one in gpu.target.profiles or () if one.enum == enum), None)
    if profile is None or gpu.board is None:
        raise InputError(f"GPU {gpu.pci} ({gpu.target.model}) has no profile of this number.", _HINT,
                         path=f"{path}.ProfileID", value=enum, allowed=[one.enum for one in gpu.target.profiles or ()])
    if start not in profile.starts or size != profile.size:
        raise InputError(f"{profile.name} of GPU {gpu.pci} ({gpu.target.model}) cannot lie at {start}:{size}.",
                         f"It can at {', '.join(f'{one}:{profile.size}' for one in profile.starts)}.",
                         path=f"{path}.Placement", value=start, allowed=list(profile.starts))
    sizes = [COMPUTE_SLICES.get(_field(part, "ProfileID", f"{path}.ComputeInstances[{index}]"), 0)
             for index, part in enumerate(_field(item, "ComputeInstances", path))]
    there = next((piece.parts for piece in gpu.layout if (piece.profile, piece.start) == (profile.name, start)), ())
    parts = Search(gpu.board).pack(profile.name, sizes, there)
    if parts is None:
        raise InputError(f"these compute instances do not fit in a {profile.name}.", _HINT,
                         path=f"{path}.ComputeInstances", value=sizes)
    return Piece(profile.name, start, parts)


def _field(data: t.Any, name: str, path: str) -> t.Any:
    """A field of the right type; a list that is null or missing is empty. Raises InputError."""
    kind, word = _FIELDS[name]
    value = data.get(name) if isinstance(data, dict) else None
    if value is None and kind is list:
        return []
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{value!r} is not {word}.", _HINT, path=f"{path}.{name}", value=value)
    return value
