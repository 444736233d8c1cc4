# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Executes MIG steps through NVML. If a step fails, the former layout is restored. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    CommandError,
    DeviceError,
    GpuopsError,
    HostError,
    InUse,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import Pauses, read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Layout, difference, layout_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.planning import (
    CREATE,
    DESTROY,
    EVICT,
    START,
    STOP,
    Holder,
    pods_of,
    words,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device, Instance
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

# Seconds for a client to end after SIGTERM, and for the reset of a GPU.
_STOP_LIMIT = 30
_RESET_LIMIT = 120


class Executor:
    """Executes the steps of a run. former: by PCI address the device, its mode and its layout before the run."""

    def __init__(self, nvml: Nvml, pauses: Pauses, root: Root,
                 former: t.Mapping[str, tuple[Device, bool, Layout]]) -> None:
        self.nvml = nvml
        self.pauses = pauses
        self.root = root
        self.former = former
        self.devices = {pci: device for pci, (device, _enabled, _layout) in former.items()}

    def __call__(self, step: Step) -> None:
        """Raises HostError or DeviceError, after an attempt to restore the former layout of the GPU.

        Raises InUse if the former layout is restored, and known processes use the GPU.
        """
        if step.action == START:
            self.pauses.start(step.target)
            return
        pci = step.data["pci"]
        try:
            self._execute(pci, step)
        except (DeviceError, HostError) as error:
            error.message = f"{step.id}: {error.message}"
            holders = self._name_holders(pci, error)
            try:
                self._restore(pci)
            except GpuopsError as second:
                error.hint += f" Its former layout could not be restored: {second.message}"
                raise error from second
            if holders:
                way = f"; {EVICT}" if pods_of(holders) else ""
                raise InUse(f"in use by {words(holders)} since the plan was made{way}", holders=holders) from error
            error.hint += f" The former layout of GPU {pci} is restored."
            raise

    def _execute(self, pci: str, step: Step) -> None:
        if step.action == STOP:
            self._stop(pci, step.data["units"], step.data["pids"])
        elif step.action == DESTROY:
            self._destroy(pci, step.data["pieces"])
        elif step.action == CREATE:
            old = {(piece.profile, piece.start) for piece in self.former[pci][2]}
            again = any((piece.profile, piece.start) in old for piece in step.data["pieces"])
            self._create(pci, step.data["pieces"], self._present(pci) if again else {})
        else:
            self._switch(pci, step.data["enabled"])

    def _holders(self, pci: str) -> list[Holder]:
        """The processes that have the GPU open now; none if the GPU does not answer."""
        try:
            mode = self.nvml.mode(self.devices[pci])
            instances = self.nvml.instances(self.devices[pci]) if mode and mode[0] else []
            return read_holders(self.root, self.nvml, self.devices[pci], instances, files=True)
        except DeviceError:
            return []

    def _name_holders(self, pci: str, error: GpuopsError) -> list[Holder]:
        """Adds the processes that use the GPU to an error that says that it is in use. Returns them."""
        if error.details.get("name") != "IN_USE" and "reset_required" not in error.details:
            return []
        holders = self._holders(pci)
        error.details["holders"] = [holder._asdict() for holder in holders]
        way = EVICT if pods_of(holders) else "stop it, or set disruption to drain"
        error.hint = (f"It is in use by {words(holders)}: {way}." if holders else
                      "No process is listed as using it: look for a display, a virtual machine or a kernel client "
                      "(lsof /dev/nvidia*, lsmod), or reboot the host.")
        return holders

    def _restore(self, pci: str) -> None:
        _device, enabled, layout = self.former[pci]
        mode = self.nvml.mode(self.devices[pci])
        if mode and mode[0]:
            change = difference(layout_of(self.nvml.instances(self.devices[pci])), layout)
            self._destroy(pci, change.destroyed)
            if enabled:
                self._create(pci, change.created, self._present(pci))
        if mode != (enabled, enabled):
            self._switch(pci, enabled)

    def _switch(self, pci: str, enabled: bool) -> None:
        """Sets the mode, and resets the GPU if the mode is still pending, as on Ampere if NVML's own reset failed."""
        device = self.devices[pci] = self.nvml.set_mode(self.devices[pci], enabled)
        if self.nvml.mode(device) != (enabled, enabled):
            self._reset(pci)
        if self.nvml.mode(self.devices[pci]) != (enabled, enabled):
            raise HostError(f"The MIG mode of GPU {pci} is still pending after a reset.",
                            "Reboot the host, then run again.", gpu=pci, reset_required=[pci])

    def _reset(self, pci: str) -> None:
        """Resets only this GPU, while its watchers are stopped and our own session is closed."""
        refused = None
        self.nvml.close()
        try:
            with self._without_watchers():
                self.pauses.run(["nvidia-smi", "--gpu-reset", "-i", pci], timeout=_RESET_LIMIT)
        except CommandError as error:
            refused = error
        finally:
            self.nvml.open()
            self.devices = {address: self.nvml.reopen(device) for address, device in self.devices.items()}
        if refused is not None:
            raise HostError(f"The new MIG mode of GPU {pci} needs a reset, which failed: {refused.message}",
                            gpu=pci, reset_required=[pci]) from refused

    @contextlib.contextmanager
    def _without_watchers(self) -> t.Iterator[None]:
        """Stops the services that monitor GPUs, and starts them again at the end."""
        before = set(self.pauses.units)
        try:
            self.pauses.stop_watchers()
            yield
        finally:
            for unit in reversed(self.pauses.units):
                if unit not in before:
                    self.pauses.start(unit, check=False)

    def _destroy(self, pci: str, pieces: Layout) -> None:
        """Destroys compute instances, and their GPU instance if it has no others."""
        if not pieces:
            return
        device = self.devices[pci]
        present = self._present(pci)
        for piece in pieces:
            instance = present.get((piece.profile, piece.start))
            if instance is None:
                continue
            gone = [part for part in instance.compute if (part.slices, part.start) in piece.parts]
            for part in gone:
                self.nvml.destroy_compute(device, part)
            if len(gone) == len(instance.compute):
                self.nvml.destroy(device, instance)

    def _create(self, pci: str, pieces: Layout, present: t.Mapping[tuple[str, int], Instance]) -> None:
        """Creates compute instances, in the present GPU instance or in a new one."""
        device = self.devices[pci]
        profiles = {profile.name: profile for profile in self.nvml.profiles(device)}
        for piece in pieces:
            profile = profiles[piece.profile]
            there = present.get((piece.profile, piece.start))
            handle = there.handle if there else self.nvml.create(device, profile, piece.start)
            for slices, start in piece.parts:
                self.nvml.create_compute(device, profile, handle, slices, start)

    def _present(self, pci: str) -> dict[tuple[str, int], Instance]:
        return {(instance.profile.name, instance.start): instance
                for instance in self.nvml.instances(self.devices[pci])}

    def _stop(self, pci: str, units: t.Sequence[str], pids: t.Sequence[int]) -> None:
        """Stops services, and sends SIGTERM to other processes. Raises HostError if one is in a pod or does not end."""
        self._clients(pci, pids)
        self.pauses.stop(units)
        for holder in self._clients(pci, pids):
            if holder.unit not in units:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_LIMIT
        while True:
            left = self._clients(pci, pids)
            if not left:
                return
            if time.monotonic() > deadline:
                raise HostError(f"{words(left)} did not end within {_STOP_LIMIT} s of SIGTERM.",
                                "Stop it, then run again.", gpu=pci,
                                holders=[holder._asdict() for holder in left])
            time.sleep(0.5)

    def _clients(self, pci: str, pids: t.Sequence[int]) -> list[Holder]:
        """Those of these processes that still use the GPU. Raises HostError if one is in a pod."""
        holders = [holder for holder in self._holders(pci) if holder.pid in pids]
        if pods_of(holders):
            raise HostError(f"{words(holders)} uses GPU {pci}; processes in pods are never signalled.",
                            f"{EVICT[0].upper()}{EVICT[1:]}; then run again.", gpu=pci,
                            holders=[holder._asdict() for holder in holders])
        return holders
