# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that applies the settings of GPUs at boot; `boot.py` installs it. PRIVATE to the collection.

A driver keeps only the mode of ECC over a reload or a reboot (nvml.h). systemd reads the level of a line of the output
from a number in front of it (sd-daemon(3)).
"""

from __future__ import annotations

import sys
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._boot_unit import open_nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import boot, declared
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.device import SettingsNvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.planning import Gpu
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.work import CONCERN, Request, SettingsRun

_WARNING, _ERROR = "<4>", "<3>"


class AtBoot(SettingsRun):
    """Applies the settings GPU by GPU. If one fails, the others are set nevertheless."""

    def __init__(self, nvml: SettingsNvml, say: t.Callable[[str], None]) -> None:
        super().__init__(Request("present", None, "idle", False), nvml)
        self.say = say

    def restore(self, entries: t.Sequence[declared.Entry], journal: Journal) -> list[str]:
        """Applies the entries, each with one GPU by UUID. Returns the errors, as sentences."""
        answering = {uuid.lower(): device for uuid, device in self.nvml.answering()}
        failed = []
        for entry in entries:
            device = answering.get(entry.gpus[0].lower())
            if device is None:
                self.say(f"{_WARNING}GPU {entry.gpus[0]} does not answer, or is not in this host any more.")
                continue
            try:
                failed += self._restore_one(device, entry, journal)
            except GpuopsError as error:
                failed.append(str(error))
        return failed

    def _restore_one(self, device: Device, entry: declared.Entry, journal: Journal) -> list[str]:
        self.plans, self.waiting, self.warnings = [], [], []
        gpu = self.read_gpu(self.nvml.reopen(device), journal)
        for lock in declared.LOCKS:  # nobody can read them, so a start of the unit always sets them
            gpu.values.update({lock: None} if lock in gpu.values else {})
        result = self.reach([entry], [gpu], journal)
        for warning in self.warnings:
            self.say(f"{_WARNING}{warning}")
        for step in result["plan"]:
            self.say(f"done: {step['id']}")
        if not result["plan"] and not result["pending"]:
            self.say(f"GPU {device.pci} has the declared settings.")
        return [f"{step['id']}: {step['pending_reason']}." for step in result["pending"]]

    def _former(self, gpu: Gpu, wanted: t.Mapping[str, declared.Wanted], journal: Journal
                ) -> dict[str, declared.Value]:
        """Nothing, because a boot restores no former values."""
        return {}

    def _forget(self, journal: Journal) -> None:
        """Forgets nothing, because the plan has only one GPU and no former values."""

    def _resolve(self, entries: t.Sequence[declared.Entry], gpus: t.Sequence[Gpu]
                 ) -> dict[str, dict[str, declared.Wanted]]:
        """As entries for all GPUs: a setting that a GPU has lost, such as by MIG, does not stop the others."""
        return {pci: {name: declared.Wanted(one.value, one.path, declared.ALL) for name, one in wanted.items()}
                for pci, wanted in super()._resolve(entries, gpus).items()}


def work(say: t.Callable[[str], None]) -> None:
    """Applies the settings to all GPUs of the host. Raises GpuopsError with all errors."""
    entries = boot.read_state()
    if entries is None:
        raise HostError(f"{boot.STATE} is missing or damaged, so the settings are unknown.",
                        "Run gpu_settings again, which writes the file.")
    nvml = SettingsNvml()
    open_nvml(nvml, "Settings cannot be applied", boot.UNIT)
    try:
        # A run of gpu_settings may hold the lock.
        with Journal(CONCERN, wait=240) as journal:
            failed = AtBoot(nvml, say).restore(entries, journal)
    finally:
        nvml.close()
    if failed:
        raise HostError(" ".join(failed), "Run gpu_settings again, with the gpu_disruption that its steps need.")


def main() -> None:
    """The entry point of settings-boot.pyz."""
    try:
        work(_say)
    except GpuopsError as error:
        raise SystemExit(f"{_ERROR}{error}") from None


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
