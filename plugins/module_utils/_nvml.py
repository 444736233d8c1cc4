# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All calls of NVML: reads GPUs and MIG as plain data, and changes MIG.

If a GPU or a field is not readable, reads return null or the C(error) of the GPU; writes raise DeviceError. Data that
is equal for all boards of a model is read once in a session. Source: nvml.h (API version 13).
"""

from __future__ import annotations

import ctypes
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils import _libraries, _pynvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import (
    COMPUTE_SLICES,
    Compute,
    Device,
    Handle,
    Instance,
    Profile,
    profile_name,
)

LIBRARY = "libnvidia-ml.so.1"

_GI_PROFILES = 18
_ERROR = "NVML_ERROR_"
_ROOM = 32  # the size of arrays for lists of NVML; no GPU has more elements
_NO_INSTANCE = 0xFFFFFFFF
# The errors for a profile that a board does not have; the second one if the driver does not know the profile.
_NO_PROFILE = ("NOT_SUPPORTED", "INVALID_ARGUMENT")

_HINTS = {
    "NO_PERMISSION": "This needs root: set become.",
    "IN_USE": "A GPU client uses the GPU: check nvidia-smi, and fuser -v /dev/nvidia*",
    "INSUFFICIENT_RESOURCES": "The GPU has too little free memory: a process may use it.",
    "GPU_IS_LOST": "The GPU has fallen off the bus: reboot or power-cycle the host.",
    "RESET_REQUIRED": "Reset the GPU or reboot the host.",
    "LIB_RM_VERSION_MISMATCH": "The loaded module and the library have different versions: reload or reboot.",
    "DRIVER_NOT_LOADED": "Load the driver: modprobe nvidia",
}


Value = t.TypeVar("Value")


def text_of(value: Value) -> Value | str:
    """Decodes bytes, which older releases of pynvml return."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


Session = t.TypeVar("Session", bound="Nvml")


class Failure(t.Protocol):
    """The NVMLError of pynvml."""

    value: int


class Process(t.TypedDict):
    """A process on a GPU. instance, compute: ids of its GPU and compute instance, or None."""

    pid: int
    name: str
    instance: int | None
    compute: int | None


class Nvml:
    """A session; a context manager.

    available: whether NVML answers. error: why it does not answer (driver not loaded, versions differ), None if the
    host has no usable library. silent: C((number, name of the error)) of GPUs that do not answer; L(devices) sets it.
    """

    def __init__(self) -> None:
        self.available = False
        self.error: str | None = None
        self.silent: list[tuple[int, str]] = []
        self._lib: t.Any = None
        # By board and by whether MIG is on, because drivers before R550 tell nothing while it is off.
        self._profiles: dict[tuple[str, bool], t.List[Profile]] = {}
        self._ci_profiles: dict[tuple[str, int], t.List[tuple[int, int, int]]] = {}
        # C((start, id)) by handle. The placement of an instance never changes, so it is read once.
        self._places: dict[tuple[str, int], tuple[int, int | None]] = {}

    def __enter__(self: Session) -> Session:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """Starts the session, also after L(close); former handles are then invalid. Raises only MissingLibrary."""
        try:
            _libraries.load(LIBRARY)
        except OSError:
            return
        self._lib = _pynvml.load()
        try:
            self._lib.nvmlInit()
            self.available = True
        except self._lib.NVMLError as error:
            name = self._name(error)
            self.error = f"NVML cannot be used ({name}). {_HINTS.get(name, '')}".strip()

    def close(self) -> None:
        """Ends the session. A GPU cannot be reset while this process uses NVML."""
        if self.available:
            self._places = {}
            self._try(self._lib.nvmlShutdown)
            self.available = False

    # -- reading

    def devices(self) -> list[Device]:
        """The GPUs that answer, in the order of PCI addresses. Sets L(silent)."""
        found = list(self._find_devices())
        self.silent = [(device.number, problem) for device, problem in found if problem]
        return sorted((device for device, problem in found if not problem), key=lambda device: device.pci)

    def answering(self) -> list[tuple[str, Device]]:
        """The GPUs that answer, each with its UUID."""
        found = [(self._try(self._lib.nvmlDeviceGetUUID, device.handle), device)
                 for device, problem in self._find_devices() if not problem]
        return [(str(text_of(uuid)), device) for uuid, device in found if uuid]

    def uuid(self, device: Device) -> str:
        """The UUID of the GPU, which does not depend on its slot."""
        return str(text_of(self._call(device.pci, self._lib.nvmlDeviceGetUUID, device.handle)))

    def mode(self, device: Device) -> tuple[bool, bool] | None:
        """The current MIG mode, and that after the next reset; None if the GPU does not support MIG."""
        try:
            current, pending = self._call(device.pci, self._lib.nvmlDeviceGetMigMode, device.handle)
        except DeviceError as error:
            if error.details["name"] in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
                return None
            raise
        return bool(current), bool(pending)

    def profiles(self, device: Device, enabled: bool) -> list[Profile]:
        """The GPU instance profiles of the board with their placements. Needs root.

        enabled: whether MIG is on at present. While it is off, drivers before R550 do not tell the profiles, and the
        list is empty (source: NVIDIA/mig-parted, pkg/mig/discovery). Raises DeviceError.
        """
        key = (device.board, enabled)
        if key not in self._profiles:
            total = self._call(device.pci, self._lib.nvmlDeviceGetMemoryInfo, device.handle).total
            found = [profile for profile in (self._profile(device, enum, total) for enum in range(_GI_PROFILES))
                     if profile]
            self._profiles[key] = found
            if found:  # a driver that tells them while MIG is off tells the same ones while it is on
                self._profiles.setdefault((device.board, True), found)
        return self._profiles[key]

    def told_by_equal(self, device: Device) -> list[Profile]:
        """The profiles that a GPU of the same board has told while its MIG was on; empty if none has been asked."""
        return self._profiles.get((device.board, True), [])

    def instances(self, device: Device) -> list[Instance]:
        """The GPU instances in the order of placements, with compute instances. MIG must be enabled. Needs root."""
        lib, found, profiles = self._lib, [], self.profiles(device, True)
        slices_left = max((profile.slices for profile in profiles), default=0)
        for profile in profiles:
            if profile.slices > slices_left:
                continue
            for handle in self._list(device.pci, lib.nvmlDeviceGetGpuInstances, lib.c_nvmlGpuInstance_t,
                                     device.handle, profile.id):
                start, ident = self._place(device, handle)
                found.append(Instance(ident, profile, start, self._compute(device, profile, handle), handle))
                slices_left -= profile.slices
        return sorted(found, key=lambda instance: instance.start)

    def processes(self, device: Device) -> list[Process]:
        """The processes on a GPU."""
        lib = self._lib
        found: dict[tuple[int, int | None, int | None], Process] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for process in self._try(getattr(lib, f"nvmlDeviceGet{kind}RunningProcesses_v3"), device.handle) or []:
                gi, ci = (None if ident in (None, _NO_INSTANCE) else ident
                          for ident in (process.gpuInstanceId, process.computeInstanceId))
                name = text_of(self._try(lib.nvmlSystemGetProcessName, process.pid)) or ""
                found[(process.pid, gi, ci)] = {"pid": process.pid, "name": name, "instance": gi, "compute": ci}
        return [found[key] for key in sorted(found, key=str)]

    # -- writing

    def set_mode(self, device: Device, enabled: bool) -> Device:
        """Enables or disables MIG. The change may be pending until a reset, see L(mode). Needs root.

        Returns the device with its new handle. Raises DeviceError.
        """
        self._call(device.pci, self._lib.nvmlDeviceSetMigMode, device.handle, int(enabled))
        self._places = {key: place for key, place in self._places.items() if key[0] != device.pci}
        return self.reopen(device)

    def reopen(self, device: Device) -> Device:
        """The device with its current handle, which a reset or a change of the mode may have changed."""
        handle = self._call(device.pci, self._lib.nvmlDeviceGetHandleByPciBusId, device.pci.encode())
        return device._replace(handle=handle)

    def create(self, device: Device, profile: Profile, start: int) -> Handle:
        """Creates a GPU instance at a placement and returns its handle. Raises DeviceError."""
        place = self._lib.c_nvmlGpuInstancePlacement_t(start, profile.size)
        handle: Handle = self._call(device.pci, self._lib.nvmlDeviceCreateGpuInstanceWithPlacement, device.handle,
                                    profile.id, ctypes.byref(place))
        self._places[(device.pci, _address(handle))] = (start, None)
        return handle

    def create_compute(self, device: Device, profile: Profile, gpu_instance: Handle, slices: int, start: int) -> None:
        """Creates a compute instance. gpu_instance: handle of a GPU instance with this profile. Raises DeviceError."""
        lib = self._lib
        known = self._compute_profiles(device, profile, gpu_instance)
        ident = next((ident for ident, size, _enum in known if size == slices), None)
        if ident is None:
            raise DeviceError(f"A {profile.name} has no compute instance of {slices} slices.", gpu=device.pci)
        if slices == profile.slices:
            self._call(device.pci, lib.nvmlGpuInstanceCreateComputeInstance, gpu_instance, ident)
            return
        place = lib.c_nvmlComputeInstancePlacement_t(start, slices)
        self._call(device.pci, lib.nvmlGpuInstanceCreateComputeInstanceWithPlacement, gpu_instance, ident,
                   ctypes.byref(place))

    def destroy_compute(self, device: Device, compute: Compute) -> None:
        """Destroys a compute instance. Raises DeviceError, named IN_USE while a process uses it."""
        self._call(device.pci, self._lib.nvmlComputeInstanceDestroy, compute.handle)

    def destroy(self, device: Device, instance: Instance) -> None:
        """Destroys a GPU instance, whose compute instances must be destroyed before. Raises DeviceError."""
        self._places.pop((device.pci, _address(instance.handle)), None)
        self._call(device.pci, self._lib.nvmlGpuInstanceDestroy, instance.handle)

    # -- details

    def _find_devices(self) -> t.Iterator[tuple[Device, str]]:
        """Yields each GPU with an empty text, or, if it does not answer, incomplete with the name of the error."""
        lib = self._lib
        for index in range(self._try(lib.nvmlDeviceGetCount) or 0):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                info = lib.nvmlDeviceGetPciInfo(handle)
            except lib.NVMLError as error:
                yield Device(index, Handle(None), "", "", ""), self._name(error)
                continue
            sub = info.pciSubSystemId
            yield Device(index, handle, f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0",
                         f"{info.pciDeviceId >> 16:04x}", f"{sub & 0xFFFF:04x}:{sub >> 16:04x}"), ""

    def _profile(self, device: Device, enum: int, total: int) -> Profile | None:
        lib = self._lib
        try:
            info = self._call(device.pci, lib.nvmlDeviceGetGpuInstanceProfileInfo, device.handle, enum, 1)
            places = self._list(device.pci, lib.nvmlDeviceGetGpuInstancePossiblePlacements,
                                lib.c_nvmlGpuInstancePlacement_t, device.handle, info.id)
        except DeviceError as error:
            if error.details["name"] in _NO_PROFILE:
                return None
            raise
        return Profile(name=profile_name(enum, info.sliceCount, info.memorySizeMB, total), id=info.id, enum=enum,
                       slices=info.sliceCount, instances=info.instanceCount, size=places[0].size if places else 0,
                       starts=tuple(sorted(place.start for place in places)))

    def _place(self, device: Device, handle: Handle) -> tuple[int, int | None]:
        key = (device.pci, _address(handle))
        if key not in self._places:
            info = self._call(device.pci, self._lib.nvmlGpuInstanceGetInfo, handle)
            self._places[key] = (info.placement.start, info.id)
        return self._places[key]

    def _compute_profiles(self, device: Device, profile: Profile, handle: Handle) -> list[tuple[int, int, int]]:
        """C((id, slices, enum)) of the compute instance profiles for a GPU instance profile, largest first.

        If two have equal slices, the one with more SMs comes first, as in C(nvidia-smi mig -C).
        """
        key = (device.board, profile.id)
        if key not in self._ci_profiles:
            lib, rows = self._lib, []
            for enum, slices in COMPUTE_SLICES.items():
                if slices <= profile.slices:
                    info = self._try(lib.nvmlGpuInstanceGetComputeInstanceProfileInfo, handle, enum, 0, 1)
                    if info is not None:
                        rows.append((info.sliceCount, info.multiprocessorCount, info.id, enum))
            self._ci_profiles[key] = [(ident, slices, enum) for slices, _sms, ident, enum in sorted(rows, reverse=True)]
        return self._ci_profiles[key]

    def _compute(self, device: Device, profile: Profile, gpu_instance: Handle) -> tuple[Compute, ...]:
        lib, found, left = self._lib, [], profile.slices
        for ident, slices, enum in self._compute_profiles(device, profile, gpu_instance):
            if slices > left:
                continue
            for handle in self._list(device.pci, lib.nvmlGpuInstanceGetComputeInstances, lib.c_nvmlComputeInstance_t,
                                     gpu_instance, ident):
                start, number = 0, 0
                if slices != profile.slices:  # a compute instance with all slices is the only one
                    info = self._call(device.pci, lib.nvmlComputeInstanceGetInfo, handle)
                    start, number = info.placement.start, info.id
                found.append(Compute(slices, start, number, enum, handle))
                left -= slices
        return tuple(sorted(found, key=lambda compute: compute.start))

    def _list(self, pci: str, function: t.Callable[..., object], kind: t.Any, *args: object) -> list[t.Any]:
        """The elements that a function of NVML writes to an array of its caller."""
        array, count = (kind * _ROOM)(), ctypes.c_uint(_ROOM)
        self._call(pci, function, *args, array, ctypes.byref(count))
        return [array[index] for index in range(count.value)]

    def _try(self, function: t.Callable[..., Value], *args: object) -> Value | None:
        """The result of a function, None if it fails."""
        try:
            return function(*args)
        except self._lib.NVMLError:
            return None

    def _call(self, pci: str, function: t.Callable[..., Value], *args: object) -> Value:
        try:
            return function(*args)
        except self._lib.NVMLError as error:
            name, call = self._name(error), getattr(function, "__name__", "")
            raise DeviceError(f"GPU {pci}: {call} failed with {name}.", _HINTS.get(name, ""), call=call,
                              code=error.value, name=name, gpu=pci) from error

    def _name(self, error: Failure) -> str:
        names = (name[len(_ERROR):] for name, value in vars(self._lib).items()
                 if name.startswith(_ERROR) and value == error.value)
        return next(names, str(error.value))


def _address(handle: Handle) -> int:
    """The value of a pointer, by which NVML identifies an instance."""
    return ctypes.cast(t.cast(ctypes.c_void_p, handle), ctypes.c_void_p).value or 0
