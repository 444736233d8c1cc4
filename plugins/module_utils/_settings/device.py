# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The calls of NVML for the settings of GPUs. PRIVATE to the collection.

Source: nvml.h, "Device Queries" and "Device Commands". NVML cannot read locked clocks.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import generation_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml, text_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.declared import (
    APPLICATIONS,
    COMPUTE_MODE,
    ECC,
    GRAPHICS_LOCK,
    MEMORY_LOCK,
    PERSISTENCE,
    POWER_LIMIT,
    Value,
    milliwatts,
    watts,
)

# NVML's compute modes. 1 is a mode that drivers no longer have.
_MODES = {0: "default", 3: "exclusive_process", 2: "prohibited"}
_GRAPHICS, _MEMORY = 0, 2
# The errors for a setting that a GPU or its driver does not have.
_MISSING = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "DEPRECATED")
_NO_LOCK = "the driver locks these clocks only on {0} and later"
_BEFORE = {GRAPHICS_LOCK: ("Volta", ("kepler", "maxwell", "pascal")),
           MEMORY_LOCK: ("Ampere", ("kepler", "maxwell", "pascal", "volta", "turing"))}


@dataclass
class Reading:
    """The settings of a GPU. values: those that it has, by name; ecc and its value are the mode after the next reset.
    ecc_current: the mode of ECC now, None without ECC; missing: why it does not have a setting."""

    values: t.Dict[str, Value] = field(default_factory=dict)
    ecc_current: t.Optional[bool] = None
    missing: t.Dict[str, str] = field(default_factory=dict)


class SettingsNvml(Nvml):
    """A session of NVML that also reads and writes settings. Writes need root and raise DeviceError."""

    def read(self, device: Device) -> Reading:
        """The settings of a GPU, without locked clocks. Raises DeviceError."""
        lib, reading = self._lib, Reading()
        persistence = self._maybe(device, lib.nvmlDeviceGetPersistenceMode)
        if persistence is not None:
            reading.values[PERSISTENCE] = bool(persistence)
        ecc = self._maybe(device, lib.nvmlDeviceGetEccMode)
        if ecc is not None:
            reading.ecc_current, reading.values[ECC] = bool(ecc[0]), bool(ecc[1])
        mode = self._maybe(device, lib.nvmlDeviceGetComputeMode)
        mig = self.mode(device)
        if mig is not None and mig[0]:
            reading.missing[COMPUTE_MODE] = "its MIG mode is on, and then each MIG device has its own compute mode"
        elif mode in _MODES:
            reading.values[COMPUTE_MODE] = _MODES[mode]
        limit = self._maybe(device, lib.nvmlDeviceGetPowerManagementLimit)
        if limit is not None:
            reading.values[POWER_LIMIT] = watts(limit)
        memory = self._maybe(device, lib.nvmlDeviceGetApplicationsClock, _MEMORY)
        graphics = self._maybe(device, lib.nvmlDeviceGetApplicationsClock, _GRAPHICS)
        if memory and graphics:
            reading.values[APPLICATIONS] = {"memory": memory, "graphics": graphics}
        for lock, (first, older) in _BEFORE.items():
            if generation_of(device.device_id) in older:
                reading.missing[lock] = _NO_LOCK.format(first)
            else:
                reading.values[lock] = None
        for name in (PERSISTENCE, ECC, COMPUTE_MODE, POWER_LIMIT, APPLICATIONS):
            if name not in reading.values:
                reading.missing.setdefault(name, "NVML reports that it is not supported")
        return reading

    def power_range(self, device: Device) -> tuple[int, int] | None:
        """The lowest and highest limit of power in milliwatts, None if they are unknown."""
        found = self._maybe(device, self._lib.nvmlDeviceGetPowerManagementLimitConstraints)
        return None if found is None else (found[0], found[1])

    def memory_clocks(self, device: Device) -> list[int]:
        """The supported memory clocks in MHz, the highest first; empty if they are unknown."""
        return sorted(self._maybe(device, self._lib.nvmlDeviceGetSupportedMemoryClocks) or [], reverse=True)

    def graphics_clocks(self, device: Device, memory: int) -> list[int]:
        """The supported graphics clocks with this memory clock, the highest first; empty if they are unknown."""
        return sorted(self._maybe(device, self._lib.nvmlDeviceGetSupportedGraphicsClocks, memory) or [], reverse=True)

    def compute_processes(self, device: Device) -> list[str]:
        """The processes with a context of their own for compute, such as C(python3 (1234)). Clients of MPS share that
        of its server."""
        shared = {process.pid for process in self._maybe(device, self._lib.nvmlDeviceGetMPSComputeRunningProcesses_v3)
                  or []}
        own = {process.pid for process in self._maybe(device, self._lib.nvmlDeviceGetComputeRunningProcesses_v3) or []}
        return [f"{text_of(self._try(self._lib.nvmlSystemGetProcessName, pid)) or 'a process'} ({pid})"
                for pid in sorted(own - shared)]

    def write(self, device: Device, name: str, value: Value) -> None:
        """Sets a setting. None unlocks clocks. A change of ECC is pending until a reset. Raises DeviceError."""
        lib = self._lib

        def call(function: t.Callable[..., object], *args: object) -> None:
            self._call(device.pci, function, device.handle, *args)

        if name == PERSISTENCE:
            call(lib.nvmlDeviceSetPersistenceMode, int(bool(value)))
        elif name == ECC:
            call(lib.nvmlDeviceSetEccMode, int(bool(value)))
        elif name == COMPUTE_MODE:
            call(lib.nvmlDeviceSetComputeMode, next(code for code, word in _MODES.items() if word == value))
        elif name == POWER_LIMIT:
            call(lib.nvmlDeviceSetPowerManagementLimit, milliwatts(value))
        elif isinstance(value, dict) and name == APPLICATIONS:
            call(lib.nvmlDeviceSetApplicationsClocks, value["memory"], value["graphics"])
        elif isinstance(value, dict):
            lock = {GRAPHICS_LOCK: "Gpu", MEMORY_LOCK: "Memory"}[name]
            call(getattr(lib, f"nvmlDeviceSet{lock}LockedClocks"), value["min"], value["max"])
        else:
            lock = {GRAPHICS_LOCK: "Gpu", MEMORY_LOCK: "Memory"}[name]
            call(getattr(lib, f"nvmlDeviceReset{lock}LockedClocks"))

    def _maybe(self, device: Device, function: t.Callable[..., t.Any], *args: object) -> t.Any:
        """The result of a call, None if the GPU or its driver does not have it. Raises DeviceError."""
        try:
            return self._call(device.pci, function, device.handle, *args)
        except DeviceError as error:
            if error.details["name"] in _MISSING:
                return None
            raise
