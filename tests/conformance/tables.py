# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device tables as plain data: the published ones, and those that a library returns (through ctypes or pynvml).

A board is a mapping with name, device, architecture (NVML's number), compute_capability, memory_mib, mig and profiles;
a profile is a mapping of the columns below. Run as a program, it prints what pynvml reads on this machine, as JSON.
"""

from __future__ import annotations

import json
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any, Dict

import yaml

from tests.conformance import nvml

ARCHITECTURES = {"Volta": 5, "Turing": 6, "Ampere": 7, "Ada": 8, "Hopper": 9, "Blackwell": 10}
ENUM = (
    "1_SLICE",
    "2_SLICE",
    "3_SLICE",
    "4_SLICE",
    "7_SLICE",
    "8_SLICE",
    "6_SLICE",
    "1_SLICE_REV1",
    "2_SLICE_REV1",
    "1_SLICE_REV2",
    "1_SLICE_GFX",
    "2_SLICE_GFX",
    "4_SLICE_GFX",
    "1_SLICE_NO_ME",
    "2_SLICE_NO_ME",
    "1_SLICE_ALL_ME",
    "2_SLICE_ALL_ME",
    "3_SLICE_GFX",
)
COUNTS = ("id", "slices", "instances", "mib", "sm", "ce", "dec", "enc", "jpeg", "ofa")
Board = Dict[str, Any]  # read by Python 3.8, too


def published() -> dict[str, Any]:
    """published.yaml with its profile rows expanded; a value that is not published is absent."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    for board in data["boards"].values():
        rows = board.pop("profiles", "")
        board.pop("sources")
        board["architecture"] = ARCHITECTURES[board["architecture"]]
        board["profiles"] = dict(profile_row(line) for line in rows.splitlines())
    return data


def profile_row(line: str) -> tuple[str, dict[str, Any]]:
    """One row of published.yaml as (name, columns)."""
    name, enum, *cells, places, _default_ci = line.split()
    starts, size = places.split(":")
    row: dict[str, Any] = {key: int(cell) for key, cell in zip(COUNTS, cells) if cell != "?"}
    row["enum"] = ENUM.index(enum)
    row["placements"] = [[int(start), int(size)] for start in starts.split(",")]
    return name, row


def differences(wanted: Board, got: Board) -> list[str]:
    """The places where C(got) differs from the published values; empty if it agrees."""
    found = [
        f"{key}: published {wanted[key]}, got {got[key]}"
        for key in wanted
        if key != "profiles" and wanted[key] != got[key]
    ]
    names, have = set(wanted["profiles"]), set(got["profiles"])
    found += [f"profile {name} is {'missing' if name in names else 'not published'}" for name in sorted(names ^ have)]
    for name in sorted(names & have):
        row, other = wanted["profiles"][name], got["profiles"][name]
        found += [f"{name} {key}: published {row[key]}, got {other[key]}" for key in row if row[key] != other[key]]
    return found


def read_ctypes(library: nvml.Nvml) -> list[Board]:
    """All GPUs of the machine, read with our own structures."""
    boards = []
    for gpu in library.gpus():
        board: Board = {
            "name": library.text("DeviceGetName", gpu),
            "device": f"{library.fill(nvml.PciInfo, 'DeviceGetPciInfo_v3', gpu).pciDeviceId >> 16:04x}",
            "architecture": library.number("DeviceGetArchitecture", gpu),
            "compute_capability": library.capability(gpu),
            "memory_mib": library.fill(nvml.Memory, "DeviceGetMemoryInfo", gpu).total >> 20,
            "profiles": {},
        }
        current, pending = c_uint(), c_uint()
        board["mig"] = library.library.nvmlDeviceGetMigMode(gpu, byref(current), byref(pending)) == 0
        for enum in range(nvml.GI_PROFILES):
            try:
                old = library.fill(nvml.GiProfileInfo, "DeviceGetGpuInstanceProfileInfo", gpu, enum)
            except nvml.NvmlError as error:
                if error.code != nvml.NOT_SUPPORTED:
                    raise
                continue
            infos = [
                library.fill(nvml.GiProfileInfoV2, "DeviceGetGpuInstanceProfileInfoV", gpu, enum, version=2),
                library.fill(nvml.GiProfileInfoV3, "DeviceGetGpuInstanceProfileInfoV", gpu, enum, version=3),
                library.fill(nvml.GiProfileInfoV3, "DeviceGetGpuInstanceProfileInfoByIdV", gpu, old.id, version=3),
            ]
            row = profile_of(old, enum, library.placements(gpu, old.id))
            for info in infos:
                again = profile_of(info, enum, row["placements"])
                if again != row or info.name != infos[0].name:
                    raise ValueError(f"{board['name']}: the versions of profile {enum} differ: {row} and {again}")
            board["profiles"][infos[0].name.decode().removeprefix("MIG ")] = row
        boards.append(board)
    return boards


def profile_of(info: Any, enum: int, placements: list[Any]) -> dict[str, Any]:
    """A row from any version of NVML's profile structure."""
    values = [
        info.id,
        info.sliceCount,
        info.instanceCount,
        info.memorySizeMB,
        info.multiprocessorCount,
        info.copyEngineCount,
        info.decoderCount,
        info.encoderCount,
        info.jpegCount,
        info.ofaCount,
    ]
    return {**dict(zip(COUNTS, values)), "enum": enum, "placements": [list(place) for place in placements]}


def read_pynvml() -> list[Board]:
    """All GPUs of the machine, read with the Python binding of NVIDIA."""
    import pynvml

    pynvml.nvmlInit()
    boards = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(gpu)
        board: Board = {
            "name": pynvml.nvmlDeviceGetName(gpu),
            "device": f"{pynvml.nvmlDeviceGetPciInfo(gpu).pciDeviceId >> 16:04x}",
            "architecture": pynvml.nvmlDeviceGetArchitecture(gpu),
            "compute_capability": f"{major}.{minor}",
            "memory_mib": pynvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
            "mig": True,
            "profiles": {},
        }
        try:
            pynvml.nvmlDeviceGetMigMode(gpu)
        except pynvml.NVMLError_NotSupported:
            board["mig"] = False
        for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum, version=2)
            except pynvml.NVMLError_NotSupported:
                continue
            count = c_uint()
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, info.id, None, byref(count))
            places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, info.id, places, byref(count))
            name = info.name.decode() if isinstance(info.name, bytes) else info.name
            board["profiles"][name.removeprefix("MIG ")] = profile_of(info, enum, [(p.start, p.size) for p in places])
        boards.append(board)
    pynvml.nvmlShutdown()
    return boards


if __name__ == "__main__":
    print(json.dumps(read_pynvml()))
