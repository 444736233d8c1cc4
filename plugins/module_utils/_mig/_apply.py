# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Executing MIG steps through NVML. What fails half-way is put back as it was. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError, GpuopsError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig._layout import Layout, Piece, difference
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig._plan import CREATE, DESTROY, STOP
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Device, Instance, Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import read_units

# How long a client may take to end after SIGTERM, and a GPU to be reset, in seconds.
_STOP_LIMIT = 30
_RESET_LIMIT = 120
# Services that hold every GPU open to watch it, in the order in which they are stopped (MIG User Guide: a GPU is reset
# with DCGM and NVSM stopped).
_WATCHERS = ("nvsm.service", "nvidia-dcgm-exporter.service", "nvidia-dcgm.service")


def layout_of(instances: t.Sequence[Instance], busy: t.Container[int] = ()) -> Layout:
    """Instances as the planner sees them. busy: ids of GPU instances on which processes run."""
    return tuple(Piece(instance.profile.name, instance.start,
                       tuple((compute.slices, compute.start) for compute in instance.compute), instance.id in busy)
                 for instance in instances)


class Executor:
    """Executes the steps of a run. former: GPUs by PCI address with their mode and layout at its start."""

    def __init__(self, nvml: Nvml, run: Runner, former: t.Mapping[str, tuple[Device, bool, Layout]]) -> None:
        self.nvml = nvml
        self.run = run
        self.former = former
        self.devices = {pci: device for pci, (device, _enabled, _layout) in former.items()}

    def __call__(self, step: Step) -> None:
        """Raises HostError or DeviceError after the GPU has been put back to its former layout, if that could be."""
        pci = step.data["pci"]
        try:
            if step.action == STOP:
                self._stop(pci, step.data["pids"])
            elif step.action == DESTROY:
                self._destroy(pci, step.data["pieces"])
            elif step.action == CREATE:
                old = {(piece.profile, piece.start) for piece in self.former[pci][2]}
                again = any((piece.profile, piece.start) in old for piece in step.data["pieces"])
                self._create(pci, step.data["pieces"], self._present(pci) if again else {})
            else:
                self._switch(pci, step.data["enabled"])
        except (DeviceError, HostError) as error:
            error.message = f"{step.id}: {error.message}"
            try:
                self._restore(pci)
                error.hint += f" GPU {pci} has its former layout again."
            except GpuopsError as second:
                error.hint += f" Its former layout could not be put back: {second.message}"
            raise

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
        """NVML's pending mode decides whether a reset is needed: Ampere needs one where its own attempt failed."""
        device = self.devices[pci] = self.nvml.set_mode(self.devices[pci], enabled)
        if self.nvml.mode(device) == (enabled, enabled):
            return
        self.nvml.close()
        try:
            with self._without_services():
                self.run(["nvidia-smi", "--gpu-reset", "-i", pci], timeout=_RESET_LIMIT,
                         hint="The new MIG mode waits for a reset of the GPU: stop what uses it, or reboot the host.")
        finally:
            self.nvml.open()
            self.devices = {address: self.nvml.reopen(device) for address, device in self.devices.items()}
        if self.nvml.mode(self.devices[pci]) != (enabled, enabled):
            raise HostError(f"The MIG mode of GPU {pci} is still pending after a reset.",
                            "Reboot the host, then run again.", reset_required=[pci])

    @contextlib.contextmanager
    def _without_services(self) -> t.Iterator[None]:
        """While services that only watch the GPUs are stopped; those that ran go on afterwards."""
        units = [unit for unit, service in read_units(self.run, _WATCHERS).items() if service.state == "active"]
        try:
            for unit in units:
                self.run(["systemctl", "stop", unit], timeout=_RESET_LIMIT)
            yield
        finally:
            for unit in reversed(units):
                self.run(["systemctl", "start", unit], timeout=_RESET_LIMIT, check=False)

    def _destroy(self, pci: str, pieces: Layout) -> None:
        """Removes the parts of each piece, and the GPU instance where nothing is left in it that was not named."""
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
        """Makes the parts of each piece, in the GPU instance that is there or a new one."""
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

    def _stop(self, pci: str, pids: t.Sequence[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + _STOP_LIMIT
        while True:
            left = [client for client in self.nvml.clients(self.devices[pci]) if client["pid"] in pids]
            if not left:
                return
            if time.monotonic() > deadline:
                names = ", ".join(f"{client['name']} ({client['pid']})" for client in left)
                raise HostError(f"{names} did not end within {_STOP_LIMIT} s of SIGTERM.",
                                "Stop it by its own means, then run again.", holders=left)
            time.sleep(0.5)
