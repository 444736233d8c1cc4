# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host in memory, with only the rules of MIG; replaces NVML."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import (
    MISCOUNTED,
    Compute,
    Device,
    Instance,
    Profile,
)

_ENUM = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}


class Model:
    """GPUs as (PCI address, device id). writes: the calls that changed something. fail: the number of the failing one.

    clients_of: PCI address -> C([(pid, GPU instance id or None)]), with a compute instance id as a third where it
    matters. silent: (number, why) of GPUs that do not answer; ill: addresses of those that answer no
    question but with error_name. hides: as a driver before R550, a GPU tells its profiles only while MIG is on.
    reboot_only: the addresses of the GPUs whose mode only a reboot applies.
    told: PCI device id -> profiles, for those that are not as in the table.
    """

    def __init__(self, *gpus: tuple[str, str]) -> None:
        self.available = True
        self.error: str | None = None
        self.gpus = [Device(number, None, pci, device_id, "10de:0000") for number, (pci, device_id) in enumerate(gpus)]
        self.modes = {pci: [False, False] for pci, _device_id in gpus}
        self.placed: dict[str, dict[int, tuple[Profile, set[tuple[int, int]]]]] = {pci: {} for pci, _device_id in gpus}
        self.clients_of: dict[str, list[tuple[t.Any, ...]]] = {}
        self.writes: list[tuple[t.Any, ...]] = []
        self.fail: int | None = None
        self.silent: list[tuple[int, str]] = []
        self.ill: set[str] = set()
        self.error_name = "RESET_REQUIRED"
        self.hides = False
        self.reboot_only: set[str] = set()
        self.told: dict[str, list[Profile]] = {}

    def _write(self, *what: t.Any) -> None:
        self.writes.append(what)
        if self.fail is not None and len(self.writes) == self.fail:
            raise DeviceError(f"{what} fails as asked.", gpu=what[1])

    # -- reading

    def devices(self) -> list[Device]:
        quiet = {number for number, _why in self.silent}
        return [device for device in self.gpus if device.number not in quiet]

    def heal(self, pci: str) -> None:
        """What a reset does to a GPU that does not answer."""
        number = next(device.number for device in self.gpus if device.pci == pci)
        self.silent = [one for one in self.silent if one[0] != number]
        self.ill.discard(pci)

    def reopen(self, device: Device) -> Device:
        return device

    def uuid(self, device: Device) -> str:
        return f"GPU-of-{device.pci.replace(':', '-')}"

    def mode(self, device: Device) -> tuple[bool, bool] | None:
        if device.pci in self.ill:
            raise DeviceError(f"GPU {device.pci}: nvmlDeviceGetMigMode failed with {self.error_name}.", gpu=device.pci,
                              name=self.error_name)
        current, pending = self.modes[device.pci]
        return (current, pending) if self._all(device) else None

    def _all(self, device: Device) -> list[Profile]:
        return self.told.get(device.device_id) or boards.profiles_of(device.device_id) or []

    def profiles(self, device: Device, enabled: bool) -> list[Profile]:
        assert enabled == self.modes[device.pci][0], "the MIG mode is another one"
        return self._all(device) if enabled or not self.hides else []

    def told_by_equal(self, device: Device) -> list[Profile]:
        equal = [one for one in self.devices() if one.board == device.board and self.modes[one.pci][0]]
        return self._all(device) if equal else []

    def instances(self, device: Device) -> list[Instance]:
        found = []
        for start, (profile, parts) in sorted(self.placed[device.pci].items()):
            compute = tuple(Compute(slices, first, first, _ENUM[slices], (start, slices, first))
                            for slices, first in sorted(parts, key=lambda part: part[1]))
            found.append(Instance(start, profile, start, compute, start))
        return found

    def processes(self, device: Device) -> list[dict[str, t.Any]]:
        return [{"pid": one[0], "name": "job", "instance": one[1], "compute": one[2] if len(one) > 2 else None}
                for one in self.clients_of.get(device.pci, [])]

    # -- writing

    def set_mode(self, device: Device, enabled: bool) -> Device:
        self._write("mode", device.pci, enabled)
        assert not self.placed[device.pci], "MIG cannot be switched while instances are there"
        self.modes[device.pci][1] = enabled
        if device.pci not in self.reboot_only:
            self.modes[device.pci][0] = enabled
        return device

    def create(self, device: Device, profile: Profile, start: int) -> int:
        self._write("create", device.pci, profile.name, start)
        placed = self.placed[device.pci]
        assert self.modes[device.pci][0] and start in profile.starts
        for other, (there, _parts) in placed.items():
            assert other >= start + profile.size or start >= other + there.size, "GPU instances overlap"
        placed[start] = (profile, set())
        most = next(one.instances for one in boards.profiles_of(device.device_id) or [] if one.name == profile.name) \
            if device.device_id in MISCOUNTED else profile.instances
        assert sum(there.name == profile.name for there, _parts in placed.values()) <= most
        return start

    def create_compute(self, device: Device, profile: Profile, gpu_instance: int, slices: int, start: int) -> None:
        self._write("create_compute", device.pci, gpu_instance, slices, start)
        parts = self.placed[device.pci][gpu_instance][1]
        assert start + slices <= profile.slices
        assert all(first >= start + slices or start >= first + size for size, first in parts), "they overlap"
        parts.add((slices, start))

    def destroy_compute(self, device: Device, compute: Compute) -> None:
        start, slices, first = compute.handle
        self._write("destroy_compute", device.pci, start, slices, first)
        busy = {one[1:] for one in self.clients_of.get(device.pci, [])}
        assert (start,) not in busy and (start, first) not in busy, "a busy instance was destroyed"
        self.placed[device.pci][start][1].remove((slices, first))

    def destroy(self, device: Device, instance: Instance) -> None:
        self._write("destroy", device.pci, instance.profile.name, instance.start)
        assert not self.placed[device.pci][instance.start][1], "compute instances are left"
        del self.placed[device.pci][instance.start]

    # -- for tests

    def open(self) -> None:
        """Starts the session again after a reset."""

    def close(self) -> None:
        """Ends the session for a reset."""

    def reboot(self) -> None:
        """What a reboot does to Ampere GPUs."""
        for pci, modes in self.modes.items():
            modes[0] = modes[1]
            self.placed[pci].clear()

    def counts(self) -> dict[str, t.Any]:
        """Per GPU: None with MIG off, otherwise devices by name as mig-parted counts them."""
        result: dict[str, t.Any] = {}
        for device in self.gpus:
            names: dict[str, int] = {}
            for profile, parts in self.placed[device.pci].values():
                for slices, _first in parts:
                    name = profile.name if slices == profile.slices else f"{slices}c.{profile.name}"
                    names[name] = names.get(name, 0) + 1
            result[device.pci] = names if self.modes[device.pci][0] else None
        return result
