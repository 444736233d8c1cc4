# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small ctypes client of NVML with its own structures, as a check that is independent of pynvml."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import Structure, byref, c_byte, c_char, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer, sizeof
from pathlib import Path
from typing import Any

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE = 1, 2, 3, 4, 6, 7
DRIVER_NOT_LOADED, TIMEOUT, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED = 9, 10, 14, 15, 16
LIB_RM_VERSION_MISMATCH, IN_USE, INSUFFICIENT_RESOURCES, ARGUMENT_VERSION_MISMATCH, UNKNOWN = 18, 19, 23, 25, 999
GI_PROFILES, CI_PROFILES = 18, 9
# The columns that the profile structures share, in their order.
GI_COUNTS = (
    "sliceCount",
    "instanceCount",
    "multiprocessorCount",
    "copyEngineCount",
    "decoderCount",
    "encoderCount",
    "jpegCount",
    "ofaCount",
)
CI_COUNTS = (
    "sliceCount",
    "instanceCount",
    "multiprocessorCount",
    "sharedCopyEngineCount",
    "sharedDecoderCount",
    "sharedEncoderCount",
    "sharedJpegCount",
    "sharedOfaCount",
)


def structure(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    """A ctypes structure with these fields."""
    return type(name, (Structure,), {"_fields_": list(fields)})


def uints(*names: str) -> list[tuple[str, Any]]:
    """Fields of type unsigned int."""
    return [(name, c_uint) for name in names]


PciInfo = structure(
    "PciInfo",
    ("busIdLegacy", c_char * 16),
    *uints("domain", "bus", "device", "pciDeviceId", "pciSubSystemId"),
    ("busId", c_char * 32),
)
PciInfoOld = structure(
    "PciInfoOld",
    ("busId", c_char * 16),
    *uints("domain", "bus", "device", "pciDeviceId", "pciSubSystemId"),
    ("reserved", c_uint * 4),
)
PciInfoExt = structure(
    "PciInfoExt",
    *uints("version", "domain", "bus", "device", "pciDeviceId", "pciSubSystemId", "baseClass", "subClass"),
    ("busId", c_char * 32),
)
Memory = structure("Memory", *[(name, c_ulonglong) for name in ("total", "free", "used")])
MemoryV2 = structure(
    "MemoryV2", ("version", c_uint), *[(name, c_ulonglong) for name in ("total", "reserved", "free", "used")]
)
Placement = structure("Placement", *uints("start", "size"))
GiProfileInfo = structure("GiProfileInfo", *uints("id", "isP2pSupported", *GI_COUNTS), ("memorySizeMB", c_ulonglong))
GiProfileInfoV2 = structure(
    "GiProfileInfoV2",
    *uints("version", "id", "isP2pSupported", *GI_COUNTS),
    ("memorySizeMB", c_ulonglong),
    ("name", c_char * 96),
)
GiProfileInfoV3 = structure(
    "GiProfileInfoV3",
    *uints("version", "id", *GI_COUNTS),
    ("memorySizeMB", c_ulonglong),
    ("name", c_char * 96),
    ("capabilities", c_uint),
)
GiInfo = structure("GiInfo", ("device", c_void_p), *uints("id", "profileId"), ("placement", Placement))
CiProfileInfo = structure("CiProfileInfo", *uints("id", *CI_COUNTS))
CiProfileInfoV2 = structure("CiProfileInfoV2", *uints("version", "id", *CI_COUNTS), ("name", c_char * 96))
CiProfileInfoV3 = structure(
    "CiProfileInfoV3", *uints("version", "id", *CI_COUNTS), ("name", c_char * 96), ("capabilities", c_uint)
)
CiInfo = structure(
    "CiInfo", ("device", c_void_p), ("gpuInstance", c_void_p), *uints("id", "profileId"), ("placement", Placement)
)
Attributes = structure(
    "Attributes",
    *uints(
        "multiprocessorCount",
        "sharedCopyEngineCount",
        "sharedDecoderCount",
        "sharedEncoderCount",
        "sharedJpegCount",
        "sharedOfaCount",
        "gpuInstanceSliceCount",
        "computeInstanceSliceCount",
    ),
    ("memorySizeMB", c_ulonglong),
)
FABRIC = [("clusterUuid", c_byte * 16), *uints("status", "cliqueId"), ("state", c_byte)]
FabricInfo = structure("FabricInfo", *FABRIC)
FabricInfoV2 = structure("FabricInfoV2", ("version", c_uint), *FABRIC, ("healthMask", c_uint))
FabricInfoV3 = structure(
    "FabricInfoV3", ("version", c_uint), *FABRIC, ("healthMask", c_uint), ("healthSummary", c_byte)
)
ProcessInfo = structure(
    "ProcessInfo", ("pid", c_uint), ("usedGpuMemory", c_ulonglong), *uints("gpuInstanceId", "computeInstanceId")
)
FieldValue = structure(
    "FieldValue", *uints("fieldId", "scopeId"), ("timestamp", c_ulonglong), ("latencyUsec", c_ulonglong),
    *uints("valueType", "nvmlReturn"), ("value", c_ulonglong),
)
Utilization = structure("Utilization", *uints("gpu", "memory"))


class NvmlError(Exception):
    """An NVML call that did not return success; ``code`` is its number."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}")
        self.code = code


class Nvml:
    """One NVML library, as a C program uses it. ``nvml.call("DeviceGetCount_v2", byref(x))`` raises NvmlError."""

    def __init__(self, folder: Path) -> None:
        self.library = ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``nvml<name>``."""
        code = getattr(self.library, f"nvml{name}")(*arguments)
        if code:
            raise NvmlError(name, code)

    def number(self, name: str, *arguments: Any) -> int:
        """The unsigned int that a call returns in its last parameter."""
        value = c_uint()
        self.call(name, *arguments, byref(value))
        return value.value

    def handle(self, name: str, *arguments: Any) -> c_void_p:
        """The handle that a call returns in its last parameter."""
        value = c_void_p()
        self.call(name, *arguments, byref(value))
        return value

    def text(self, name: str, *arguments: Any) -> str:
        """The text that a call writes to (buffer, length)."""
        buffer = create_string_buffer(96)
        self.call(name, *arguments, buffer, 96)
        return buffer.value.decode()

    def fill(self, kind: type[Structure], name: str, *arguments: Any, version: int = 0) -> Any:
        """The structure that a call fills; ``version``: written to its first field as NVML's version word."""
        value = kind()
        if version:
            value.version = sizeof(kind) | version << 24
        self.call(name, *arguments, byref(value))
        return value

    @contextmanager
    def session(self) -> Iterator[Nvml]:
        """A context between nvmlInit_v2 and nvmlShutdown."""
        self.call("Init_v2")
        try:
            yield self
        finally:
            self.call("Shutdown")

    def gpus(self) -> list[c_void_p]:
        """Handles of all GPUs."""
        return [self.handle("DeviceGetHandleByIndex_v2", index) for index in range(self.number("DeviceGetCount_v2"))]

    def mig_mode(self, gpu: c_void_p) -> tuple[int, int]:
        """Current and pending MIG mode."""
        current, pending = c_uint(), c_uint()
        self.call("DeviceGetMigMode", gpu, byref(current), byref(pending))
        return current.value, pending.value

    def set_mig_mode(self, gpu: c_void_p, mode: int) -> int:
        """Sets the MIG mode; returns the activation status."""
        return self.number("DeviceSetMigMode", gpu, mode)

    def placements(self, gpu: c_void_p, profile_id: int) -> list[tuple[int, int]]:
        """(start, size) of each possible placement of a profile."""
        count = c_uint()
        self.call("DeviceGetGpuInstancePossiblePlacements_v2", gpu, profile_id, None, byref(count))
        found = (Placement * count.value)()
        self.call("DeviceGetGpuInstancePossiblePlacements_v2", gpu, profile_id, found, byref(count))
        return [(place.start, place.size) for place in found]

    def create(self, gpu: c_void_p, profile_id: int, start: int | None = None) -> c_void_p:
        """Creates a GPU instance, at start or where the driver chooses."""
        if start is None:
            return self.handle("DeviceCreateGpuInstance", gpu, profile_id)
        size = self.placements(gpu, profile_id)[0][1]
        return self.handle("DeviceCreateGpuInstanceWithPlacement", gpu, profile_id, byref(Placement(start, size)))

    def instances(self, gpu: c_void_p) -> list[tuple[c_void_p, Any]]:
        """(handle, info) of all GPU instances, ordered by id."""
        found: list[tuple[c_void_p, Any]] = []
        for profile in range(GI_PROFILES):
            with suppress(NvmlError):
                info = self.fill(GiProfileInfo, "DeviceGetGpuInstanceProfileInfo", gpu, profile)
                handles, count = (c_void_p * info.instanceCount)(), c_uint()
                self.call("DeviceGetGpuInstances", gpu, info.id, handles, byref(count))
                for handle in map(c_void_p, handles[: count.value]):
                    found.append((handle, self.fill(GiInfo, "GpuInstanceGetInfo", handle)))
        return sorted(found, key=lambda pair: int(pair[1].id))

    def compute_instances(self, instance: c_void_p) -> list[tuple[c_void_p, Any]]:
        """(handle, info) of all compute instances of a GPU instance, ordered by id."""
        found: list[tuple[c_void_p, Any]] = []
        for profile in range(CI_PROFILES):
            with suppress(NvmlError):
                info = self.fill(CiProfileInfo, "GpuInstanceGetComputeInstanceProfileInfo", instance, profile, 0)
                handles, count = (c_void_p * info.instanceCount)(), c_uint()
                self.call("GpuInstanceGetComputeInstances", instance, profile, handles, byref(count))
                for handle in map(c_void_p, handles[: count.value]):
                    found.append((handle, self.fill(CiInfo, "ComputeInstanceGetInfo_v2", handle)))
        return sorted(found, key=lambda pair: int(pair[1].id))

    def profile_ids(self, gpu: c_void_p) -> dict[str, int]:
        """Maps profile names, without "MIG ", to profile ids."""
        found = {}
        for profile in range(GI_PROFILES):
            with suppress(NvmlError):
                info = self.fill(GiProfileInfoV2, "DeviceGetGpuInstanceProfileInfoV", gpu, profile, version=2)
                found[info.name.decode().removeprefix("MIG ")] = info.id
        return found

    def capability(self, gpu: c_void_p) -> str:
        """Compute capability, such as 8.0."""
        major, minor = c_int(), c_int()
        self.call("DeviceGetCudaComputeCapability", gpu, byref(major), byref(minor))
        return f"{major.value}.{minor.value}"
