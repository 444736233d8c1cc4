# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one door to NVML: GPUs and MIG as plain data, and the few writes.

Reading survives what one GPU or one field cannot tell (null, or C(error) of that GPU); writing raises DeviceError.
What is equal for all boards of a model is asked once in a session. Facts about the calls: nvml.h (API version 13).
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
    Instance,
    Profile,
    profile_name,
)

LIBRARY = "libnvidia-ml.so.1"

_GI_PROFILES = 18
_ERROR = "NVML_ERROR_"
_ROOM = 32  # more than any GPU has of anything that NVML lists into a caller's array
_NO_INSTANCE = 0xFFFFFFFF

_HINTS = {
    "NO_PERMISSION": "This needs root: set become.",
    "IN_USE": "Something still uses the GPU: look at nvidia-smi and fuser -v /dev/nvidia*.",
    "INSUFFICIENT_RESOURCES": "The driver has no room for it now: a process may hold memory of the GPU.",
    "GPU_IS_LOST": "The GPU has fallen off the bus: reboot the host or power-cycle it.",
    "RESET_REQUIRED": "Reset the GPU or reboot the host.",
    "LIB_RM_VERSION_MISMATCH": "The loaded kernel module and the library are of different versions: reload or reboot.",
    "DRIVER_NOT_LOADED": "Load the driver: modprobe nvidia.",
}


def text_of(value: t.Any) -> t.Any:
    """Older releases of the library return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


Session = t.TypeVar("Session", bound="Nvml")


class Nvml:
    """A session, opened by C(with).

    available: whether NVML answers. error: None where the host has no library that can be loaded, else why it does not
    answer (driver not loaded, versions differ). silent: (number, name of the error) of GPUs that do not answer, once
    L(devices) has been called.
    """

    def __init__(self) -> None:
        self.available = False
        self.error: str | None = None
        self.silent: list[tuple[int, str]] = []
        self._lib: t.Any = None
        self._profiles: dict[str, t.List[Profile]] = {}
        self._ci_profiles: dict[tuple[str, int], t.List[tuple[int, int, int]]] = {}
        # (start, id) by handle: where an instance lies never changes, so it is asked once.
        self._places: dict[tuple[str, int], tuple[int, int | None]] = {}

    def __enter__(self: Session) -> Session:
        self.open()
        return self

    def __exit__(self, *exc: t.Any) -> None:
        self.close()

    def open(self) -> None:
        """Starts, also anew after L(close): handles from before are then void. Raises only MissingLibrary."""
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
        """Ends; a GPU cannot be reset while this process has NVML open."""
        if self.available:
            self._places = {}
            self._try(self._lib.nvmlShutdown)
            self.available = False

    # -- reading

    def devices(self) -> list[Device]:
        """The GPUs that answer, in order of PCI address; L(silent) are then those that do not."""
        found = list(self._find_devices())
        self.silent = [(device.number, problem) for device, problem in found if problem]
        return sorted((device for device, problem in found if not problem), key=lambda device: device.pci)

    def answering(self) -> list[tuple[str, Device]]:
        """The GPUs that answer, each with its UUID."""
        found = [(self._try(self._lib.nvmlDeviceGetUUID, device.handle), device)
                 for device, problem in self._find_devices() if not problem]
        return [(str(text_of(uuid)), device) for uuid, device in found if uuid]

    def uuid(self, device: Device) -> str:
        """The GPU's UUID, which stays with the board wherever it is plugged in."""
        return str(text_of(self._call(device.pci, self._lib.nvmlDeviceGetUUID, device.handle)))

    def mode(self, device: Device) -> tuple[bool, bool] | None:
        """Whether MIG is on, and whether it will be after the next reset; None: the GPU cannot do MIG."""
        try:
            current, pending = self._call(device.pci, self._lib.nvmlDeviceGetMigMode, device.handle)
        except DeviceError as error:
            if error.details["name"] in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
                return None
            raise
        return bool(current), bool(pending)

    def profiles(self, device: Device) -> list[Profile]:
        """The GPU instance profiles of the board with their placements, also while MIG is off. Needs root."""
        if device.board not in self._profiles:
            total = self._call(device.pci, self._lib.nvmlDeviceGetMemoryInfo, device.handle).total
            self._profiles[device.board] = [profile for profile in (self._profile(device, enum, total)
                                                                    for enum in range(_GI_PROFILES)) if profile]
        return self._profiles[device.board]

    def instances(self, device: Device) -> list[Instance]:
        """The GPU instances by placement, with their compute instances. MIG must be on. Needs root."""
        lib, found, profiles = self._lib, [], self.profiles(device)
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

    def processes(self, device: Device) -> list[dict[str, t.Any]]:
        """The processes on a GPU, C([{pid, name, instance, compute}]): ids of GPU and compute instance, or null."""
        lib, found = self._lib, {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for process in self._try(getattr(lib, f"nvmlDeviceGet{kind}RunningProcesses_v3"), device.handle) or []:
                gi, ci = (None if ident in (None, _NO_INSTANCE) else ident
                          for ident in (process.gpuInstanceId, process.computeInstanceId))
                name = text_of(self._try(lib.nvmlSystemGetProcessName, process.pid)) or ""
                found[(process.pid, gi, ci)] = {"pid": process.pid, "name": name, "instance": gi, "compute": ci}
        return [found[key] for key in sorted(found, key=str)]

    # -- writing

    def set_mode(self, device: Device, enabled: bool) -> Device:
        """Switches MIG on or off. The new mode may stay pending until a reset: see L(mode). Needs root.

        Returns the device anew: its handle may have changed. Raises DeviceError.
        """
        self._call(device.pci, self._lib.nvmlDeviceSetMigMode, device.handle, int(enabled))
        self._places = {key: place for key, place in self._places.items() if key[0] != device.pci}
        return self.reopen(device)

    def reopen(self, device: Device) -> Device:
        """The same GPU with the handle that it has now (a reset or a change of mode may give it another)."""
        handle = self._call(device.pci, self._lib.nvmlDeviceGetHandleByPciBusId, device.pci.encode())
        return device._replace(handle=handle)

    def create(self, device: Device, profile: Profile, start: int) -> t.Any:
        """Makes a GPU instance at a placement and returns its handle. Raises DeviceError."""
        place = self._lib.c_nvmlGpuInstancePlacement_t(start, profile.size)
        handle = self._call(device.pci, self._lib.nvmlDeviceCreateGpuInstanceWithPlacement, device.handle, profile.id,
                            ctypes.byref(place))
        self._places[(device.pci, _address(handle))] = (start, None)
        return handle

    def create_compute(self, device: Device, profile: Profile, gpu_instance: t.Any, slices: int, start: int) -> None:
        """Makes a compute instance in a GPU instance of this profile (handle). Raises DeviceError."""
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
        """Removes a compute instance. Raises DeviceError, IN_USE while a process runs on it."""
        self._call(device.pci, self._lib.nvmlComputeInstanceDestroy, compute.handle)

    def destroy(self, device: Device, instance: Instance) -> None:
        """Removes a GPU instance, which must have no compute instance any more. Raises DeviceError."""
        self._places.pop((device.pci, _address(instance.handle)), None)
        self._call(device.pci, self._lib.nvmlGpuInstanceDestroy, instance.handle)

    # -- details

    def _find_devices(self) -> t.Iterator[tuple[Device, str]]:
        """Each GPU with an empty text, or without pci and with the reason why it does not answer."""
        lib = self._lib
        for index in range(self._try(lib.nvmlDeviceGetCount) or 0):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                info = lib.nvmlDeviceGetPciInfo(handle)
            except lib.NVMLError as error:
                yield Device(index, None, "", "", ""), self._name(error)
                continue
            sub = info.pciSubSystemId
            yield Device(index, handle, f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0",
                         f"{info.pciDeviceId >> 16:04x}", f"{sub & 0xFFFF:04x}:{sub >> 16:04x}"), ""

    def _profile(self, device: Device, enum: int, total: int) -> Profile | None:
        lib = self._lib
        info = self._try(lib.nvmlDeviceGetGpuInstanceProfileInfo, device.handle, enum, 1)
        if info is None:
            return None
        places = self._list(device.pci, lib.nvmlDeviceGetGpuInstancePossiblePlacements,
                            lib.c_nvmlGpuInstancePlacement_t, device.handle, info.id)
        return Profile(name=profile_name(enum, info.sliceCount, info.memorySizeMB, total), id=info.id, enum=enum,
                       slices=info.sliceCount, instances=info.instanceCount, size=places[0].size if places else 0,
                       starts=tuple(sorted(place.start for place in places)))

    def _place(self, device: Device, handle: t.Any) -> tuple[int, int | None]:
        key = (device.pci, _address(handle))
        if key not in self._places:
            info = self._call(device.pci, self._lib.nvmlGpuInstanceGetInfo, handle)
            self._places[key] = (info.placement.start, info.id)
        return self._places[key]

    def _compute_profiles(self, device: Device, profile: Profile, handle: t.Any) -> list[tuple[int, int, int]]:
        """(id, slices, enum) of the compute instance profiles of a GPU instance profile, largest first.

        Of two that fill it the one with more SMs comes first: it is the one that C(nvidia-smi mig -C) takes.
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

    def _compute(self, device: Device, profile: Profile, gpu_instance: t.Any) -> tuple[Compute, ...]:
        lib, found, left = self._lib, [], profile.slices
        for ident, slices, enum in self._compute_profiles(device, profile, gpu_instance):
            if slices > left:
                continue
            for handle in self._list(device.pci, lib.nvmlGpuInstanceGetComputeInstances, lib.c_nvmlComputeInstance_t,
                                     gpu_instance, ident):
                start, number = 0, 0
                if slices != profile.slices:  # one that fills its GPU instance is alone in it
                    info = self._call(device.pci, lib.nvmlComputeInstanceGetInfo, handle)
                    start, number = info.placement.start, info.id
                found.append(Compute(slices, start, number, enum, handle))
                left -= slices
        return tuple(sorted(found, key=lambda compute: compute.start))

    def _list(self, pci: str, function: t.Callable[..., t.Any], kind: t.Any, *args: t.Any) -> list[t.Any]:
        """What NVML writes into a caller's array, in one call."""
        array, count = (kind * _ROOM)(), ctypes.c_uint(_ROOM)
        self._call(pci, function, *args, array, ctypes.byref(count))
        return [array[index] for index in range(count.value)]

    def _try(self, function: t.Callable[..., t.Any], *args: t.Any) -> t.Any:
        """The answer, or None where NVML has none."""
        try:
            return function(*args)
        except self._lib.NVMLError:
            return None

    def _call(self, pci: str, function: t.Callable[..., t.Any], *args: t.Any) -> t.Any:
        try:
            return function(*args)
        except self._lib.NVMLError as error:
            name, call = self._name(error), getattr(function, "__name__", "")
            raise DeviceError(f"GPU {pci}: {call} failed with {name}.", _HINTS.get(name, ""), call=call,
                              code=error.value, name=name, gpu=pci) from error

    def _name(self, error: t.Any) -> str:
        names = (name[len(_ERROR):] for name, value in vars(self._lib).items()
                 if name.startswith(_ERROR) and value == error.value)
        return next(names, str(error.value))


def _address(handle: t.Any) -> int:
    """The value of an opaque pointer, by which NVML names an instance."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
