# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Executes MIG steps through NVML. If a step fails, the former layout is restored. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    CommandError,
    DeviceError,
    GpuopsError,
    HostError,
    InUse,
    RebootNeeded,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.boards import with_counts
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.clients import Clients
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import Pauses
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
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import (
    MISCOUNTED,
    Device,
    Instance,
    Profile,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step


class Executor:
    """Executes the steps of a run. former: maps PCI addresses to (device, MIG mode, layout) before the run. reboots:
    whether the level allows a reboot; a mode that only a reboot applies is then left pending."""

    def __init__(self, nvml: Nvml, pauses: Pauses, root: Root,
                 former: t.Mapping[str, tuple[Device, bool, Layout]], reboots: bool = False) -> None:
        self.nvml = nvml
        self.pauses = pauses
        self.clients = Clients(nvml, pauses, root)
        self.former = former
        self.reboots = reboots
        self.devices = {pci: device for pci, (device, _enabled, _layout) in former.items()}

    def __call__(self, step: Step) -> None:
        """Executes a step. If it fails, restores the former layout of the GPU, then raises HostError or DeviceError.

        Raises InUse if known processes use the GPU and the former layout was restored. Raises RebootNeeded without
        restoring anything if only a reboot applies the new mode, and the level allows it.
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
            if self.reboots and not holders and self._is_pending(step, error):
                raise RebootNeeded(error.message, gpu=pci) from error
            try:
                self._restore(pci)
            except GpuopsError as failure:
                error.hint += f" The former layout of GPU {pci} could not be restored: {failure.message}"
                raise error from failure
            if holders:
                advice = f"; {EVICT}" if pods_of(holders) else ""
                raise InUse(f"in use by {words(holders)} since the plan was made{advice}", holders=holders) from error
            error.hint += f" The former layout of GPU {pci} is restored."
            raise

    def _execute(self, pci: str, step: Step) -> None:
        if step.action == STOP:
            self.clients.stop(self.devices[pci], step.data["units"], step.data["pids"])
        elif step.action == DESTROY:
            self._destroy(pci, step.data["placements"])
        elif step.action == CREATE:
            old = {(placement.profile, placement.start) for placement in self.former[pci][2]}
            again = any((placement.profile, placement.start) in old for placement in step.data["placements"])
            self._compare_profiles(pci, step.data["profiles"])
            self._create(pci, step.data["placements"], self._present(pci) if again else {})
        else:
            self._switch(pci, step.data["enabled"])

    def _is_pending(self, step: Step, error: GpuopsError) -> bool:
        """Whether the step has set its mode, which waits for a reset or a reboot."""
        if "reset_required" not in error.details:
            return False
        with contextlib.suppress(DeviceError):
            mode = self.nvml.mode(self.devices[step.data["pci"]])
            return mode is not None and mode[1] == step.data["enabled"]
        return False

    def _name_holders(self, pci: str, error: GpuopsError) -> list[Holder]:
        """The processes that use the GPU, if it is in use according to the error. Adds them to the error."""
        if error.details.get("name") != "IN_USE" and "reset_required" not in error.details:
            return []
        holders = self.clients.of(self.devices[pci])
        error.details["holders"] = [holder._asdict() for holder in holders]
        advice = EVICT if pods_of(holders) else "stop these processes, or set disruption to drain"
        rest = ("If there is none, as in a virtual machine, only a reboot applies the mode: set disruption to reboot, "
                "which leaves the mode pending for the reboot." if "reset_required" in error.details else
                "If there is none, reboot the host.")
        error.hint = (f"GPU {pci} is in use by {words(holders)}: {advice}." if holders else
                      f"No process is listed that uses GPU {pci}: look for a display, a virtual machine or a kernel "
                      f"client (lsof /dev/nvidia*, lsmod). {rest}")
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
        """Sets the mode, and resets the GPU if the mode is then pending, as on Ampere after a failed reset by NVML."""
        device = self.devices[pci] = self.nvml.set_mode(self.devices[pci], enabled)
        if self.nvml.mode(device) != (enabled, enabled):
            self._reset(pci)
        if self.nvml.mode(self.devices[pci]) != (enabled, enabled):
            raise HostError(f"The MIG mode of GPU {pci} is still pending after a reset.", gpu=pci, reset_required=[pci])

    def _reset(self, pci: str) -> None:
        """Resets this GPU."""
        failure = None
        try:
            self.clients.reset(pci)
        except CommandError as error:
            failure = error
        finally:
            self.devices = {address: self.nvml.reopen(device) for address, device in self.devices.items()}
        if failure is not None:
            raise HostError(f"The new MIG mode of GPU {pci} needs a reset, which failed: {failure.message}",
                            gpu=pci, reset_required=[pci]) from failure

    def _destroy(self, pci: str, placements: Layout) -> None:
        """Destroys compute instances, and each GPU instance that then has none."""
        if not placements:
            return
        device = self.devices[pci]
        present = self._present(pci)
        for placement in placements:
            instance = present.get((placement.profile, placement.start))
            if instance is None:
                continue
            gone = [compute for compute in instance.compute if (compute.slices, compute.start) in placement.compute]
            for compute in gone:
                self.nvml.destroy_compute(device, compute)
            if len(gone) == len(instance.compute):
                self.nvml.destroy(device, instance)

    def _create(self, pci: str, placements: Layout, present: t.Mapping[tuple[str, int], Instance]) -> None:
        """Creates compute instances, in existing GPU instances or in new ones. present: the existing GPU instances."""
        device = self.devices[pci]
        profiles = {profile.name: profile for profile in self.nvml.profiles(device, True)}
        for placement in placements:
            profile = profiles[placement.profile]
            existing = present.get((placement.profile, placement.start))
            handle = existing.handle if existing else self.nvml.create(device, profile, placement.start)
            for slices, start in placement.compute:
                self.nvml.create_compute(device, profile, handle, slices, start)

    def _compare_profiles(self, pci: str, planned: t.Sequence[Profile]) -> None:
        """Compares the profiles of the plan with those that NVML reports now, with MIG on. Raises HostError.

        They can differ if the plan had to use the table of the model: names depend on the memory that the driver
        reports. Instances are created by the profile ids that NVML reports, so these are not compared.
        """
        device = self.devices[pci]
        reported = {profile.name: profile for profile in self.nvml.profiles(device, True)}
        if device.device_id in MISCOUNTED:
            reported = {profile.name: profile for profile in with_counts(device.device_id, list(reported.values()))}
        wrong = [profile for profile in planned if profile.name not in reported
                 or reported[profile.name]._replace(id=profile.id) != profile]
        if wrong:
            raise HostError(f"The plan has {_words(wrong)} from an equal GPU or the table of the model, but GPU {pci} "
                            f"reports {_words(reported.values())}. No instance was created.",
                            f"Run mig_config with selected all-enabled and devices [{device.number}]. The next plan "
                            "then has the profiles that the GPU reports.", gpu=pci)

    def _present(self, pci: str) -> dict[tuple[str, int], Instance]:
        return {(instance.profile.name, instance.start): instance
                for instance in self.nvml.instances(self.devices[pci])}


def _words(profiles: t.Iterable[Profile]) -> str:
    """Profiles for a message: `3g.40gb (2 of size 4 at 0,4)`."""
    return ", ".join(f"{item.name} ({item.instances} of size {item.size} at {','.join(map(str, item.starts))})"
                     for item in profiles)
