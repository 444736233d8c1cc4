# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends the processes that use a GPU, and resets it. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import JOURNAL_ROOT, Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import Pauses, read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.planning import EVICT, Holder, pods_of, words
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device, Instance
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

# Seconds for a client to end after SIGTERM, and for the reset of a GPU.
_STOP_LIMIT = 30
_RESET_LIMIT = 120
# The link that enables the unit of gpu_settings.
SETTINGS = "/etc/systemd/system/multi-user.target.wants/gpuops-settings.service"


class Clients:
    """The processes that use GPUs of a host."""

    def __init__(self, nvml: Nvml, pauses: Pauses, root: Root) -> None:
        self._nvml, self._pauses, self._root = nvml, pauses, root

    def of(self, device: Device) -> list[Holder]:
        """The processes that currently have the GPU open, also if the GPU does not answer."""
        instances: list[Instance] = []
        with contextlib.suppress(DeviceError):
            mode = device.device_id and self._nvml.mode(device)
            instances = self._nvml.instances(device) if mode and mode[0] else []
        return read_holders(self._root, self._nvml, device, instances, files=True)

    def stop(self, device: Device, units: t.Sequence[str], pids: t.Sequence[int]) -> None:
        """Stops services, and sends SIGTERM to other processes. Raises HostError if one is in a pod or does not end."""
        self._of_host(device, pids)
        self._pauses.stop(units)
        for holder in self._of_host(device, pids):
            if holder.unit not in units:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_LIMIT
        while True:
            running = self._of_host(device, pids)
            if not running:
                return
            if time.monotonic() > deadline:
                raise HostError(f"{words(running)} did not end within {_STOP_LIMIT} s after SIGTERM.",
                                f"Stop what uses GPU {device.pci}, then run again.", gpu=device.pci,
                                holders=[holder._asdict() for holder in running])
            time.sleep(0.5)

    def _of_host(self, device: Device, pids: t.Sequence[int]) -> list[Holder]:
        """The processes among pids that still use the GPU. Raises HostError if one of them is in a pod."""
        holders = [holder for holder in self.of(device) if holder.pid in pids]
        if pods_of(holders):
            raise HostError(f"GPU {device.pci} is in use by {words(holders)}; processes in pods are never signalled.",
                            f"{EVICT[0].upper()}{EVICT[1:]}; then run again.", gpu=device.pci,
                            holders=[holder._asdict() for holder in holders])
        return holders

    def reset(self, pci: str) -> None:
        """Resets this GPU. Meanwhile, services that monitor GPUs are stopped, and the session of NVML is closed.

        Devices must be opened again afterwards, also if it fails. Raises CommandError.
        """
        self._nvml.close()
        try:
            with self._without_watchers():
                self._pauses.run(["nvidia-smi", "--gpu-reset", "-i", pci], timeout=_RESET_LIMIT)
        finally:
            self._nvml.open()

    @contextlib.contextmanager
    def _without_watchers(self) -> t.Iterator[None]:
        """Stops the services that monitor GPUs, and starts them again at the end."""
        before = set(self._pauses.units)
        try:
            self._pauses.stop_watchers()
            yield
        finally:
            for unit in reversed(self._pauses.units):
                if unit not in before:
                    self._pauses.start(unit, check=False)


def forget_locks(uuid: str) -> None:
    """Before a reset: the clocks of a GPU, or of all if uuid is empty, no longer count as locked for gpu_settings."""
    if os.path.exists(f"{JOURNAL_ROOT}/gpu_settings.json"):
        with Journal("gpu_settings", JOURNAL_ROOT) as journal:
            for key in journal.of_kind("locked"):
                if key.startswith(uuid):
                    journal.forget("locked", key)


def set_again(run: Runner) -> list[str]:
    """Starts the unit of gpu_settings, which applies the settings that a reset has removed. Returns warnings."""
    unit = os.path.basename(SETTINGS)
    if not os.path.isfile(SETTINGS) or not run(["systemctl", "restart", unit], timeout=120, check=False).rc:
        return []
    return [f"{unit} has failed, so GPUs may have lost settings. For the cause: journalctl -u {unit}"]
