# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads through NVML whether GPUs are healthy: memory, links, clocks. PRIVATE to the collection.

What a GPU or its driver does not know is None. Sources: NVML API reference; NVIDIA GPU Memory Error Management.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.gpus import Snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.snapshot import Snapshots
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device

# nvml.h: NVML_NVLINK_MAX_LINKS.
MOST_LINKS = 36
# nvml.h: nvmlMemoryErrorType_t, nvmlEccCounterType_t.
_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1
# nvml.h: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
_RECOVERY_ACTION = 230
# nvml.h: nvmlDeviceGpuRecoveryAction_t.
RECOVERY = ("none", "reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
            "system_reboot")
# nvml.h: states of an NVLink without traffic: inactive, and active with disabled traffic.
_LINK_DOWN = (0, 3)
# nvml.h: nvmlClocksEventReasons. hw is also set for a moment when the clocks change.
_IDLE = 0x1
SLOWDOWNS = {"hw": 0x8, "sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80}
# nvml.h: NVML_GPU_FABRIC_STATE. A GPU without a fabric has no state.
FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}


class HealthSnapshots(Snapshots):
    """An NVML session that reads facts with the health of each GPU."""

    def _facts(self, device: Device) -> Fact:
        facts = super()._facts(device)
        facts["health"] = None if facts["error"] else self._health(device)
        return facts

    def _health(self, device: Device) -> Fact:
        """The fact C(gpus[].health) of gpu_info."""
        lib, handle = self._lib, device.handle
        remapped = self._try(lib.nvmlDeviceGetRemappedRows, handle)
        pending = self._try(lib.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        reasons = self._try(lib.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        fabric = self._fabric_info(device)
        return {
            "ecc": {name: self._try(lib.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, counter)
                    for name, counter in (("volatile", _VOLATILE), ("aggregate", _AGGREGATE))},
            "retired_pages_pending": None if pending is None else bool(pending),
            "remapped_rows": remapped and {"correctable": remapped[0], "uncorrectable": remapped[1],
                                           "pending": bool(remapped[2]), "failed": bool(remapped[3])},
            "nvlink": self._links(device),
            "pcie": {"width": self._try(lib.nvmlDeviceGetCurrPcieLinkWidth, handle),
                     "width_max": self._try(lib.nvmlDeviceGetMaxPcieLinkWidth, handle),
                     "generation": self._try(lib.nvmlDeviceGetCurrPcieLinkGeneration, handle),
                     "generation_max": self._try(lib.nvmlDeviceGetMaxPcieLinkGeneration, handle)},
            "idle": None if reasons is None else bool(reasons & _IDLE),
            "slowdown": None if reasons is None else [name for name, bit in SLOWDOWNS.items() if reasons & bit],
            "fabric": {"state": FABRIC_STATES[fabric.state], "status": fabric.status}
            if fabric is not None and fabric.state in FABRIC_STATES else None,
            "recovery": self._recovery(device),
        }

    def _links(self, device: Device) -> Fact | None:
        """C({links, down}): how many NVLinks the GPU has, and the numbers of those that are inactive."""
        states: t.List[int] = []
        while len(states) < MOST_LINKS:
            state = self._try(self._lib.nvmlDeviceGetNvLinkState, device.handle, len(states))
            if state is None:
                break
            states.append(state)
        return {"links": len(states), "down": [link for link, state in enumerate(states) if state in _LINK_DOWN]} \
            if states else None

    def _recovery(self, device: Device) -> str | None:
        """The action that the driver recommends, one of RECOVERY."""
        for value in self._try(self._lib.nvmlDeviceGetFieldValues, device.handle, [_RECOVERY_ACTION]) or ():
            if value.nvmlReturn == self._lib.NVML_SUCCESS and value.value.uiVal < len(RECOVERY):
                return RECOVERY[value.value.uiVal]
        return None


def health_snapshot() -> Snapshot:
    """The facts of a new NVML session, with the health of the GPUs. Raises only MissingLibrary."""
    with HealthSnapshots() as nvml:
        return nvml.snapshot()
