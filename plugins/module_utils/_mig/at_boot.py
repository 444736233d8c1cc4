# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that brings MIG back at boot; C(boot.py) puts it on hosts. PRIVATE to the collection.

No GPU keeps its instances over a boot, and from Hopper on none keeps its mode (NVIDIA MIG User Guide, "Deployment
Considerations"). What it prints is for the journal of systemd, which takes the level from a number in front
(sd-daemon(3)).
"""

from __future__ import annotations

import os
import sys
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import STATE, read_mig_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import planning
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.work import Request, Work
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, run

# How long the kernel module may take to come, in seconds.
_DRIVER_LIMIT = 60
_WARNING, _ERROR = "<4>", "<3>"


class Restoration(Work):
    """One GPU after the other is brought to what is remembered of it; what fails on one does not keep the others."""

    def __init__(self, nvml: Nvml, say: t.Callable[[str], None]) -> None:
        super().__init__(Request("present", None, None, None, "idle", False), nvml)
        self.command = _without_waiting
        self.say = say

    @property
    def _fixed(self) -> bool:
        """Placements are put back as they were."""
        return True

    def restore(self, gpus: t.Mapping[str, t.Mapping[str, t.Any]], journal: Journal) -> list[str]:
        """What could not be reached, a sentence each. gpus: by UUID what L(planning.shape) wrote, and C(pci)."""
        there = {uuid.lower(): device for uuid, device in self.nvml.answering()}
        failed = []
        for uuid, entry in gpus.items():
            device = there.get(uuid)
            if device is not None:
                failed += self._restore_one(self.nvml.reopen(device), entry, journal)
            elif _answers_not(entry["pci"], there.values()):
                failed.append(f"GPU {entry['pci']} does not answer.")
            else:
                self.say(f"{_WARNING}{uuid}, which was GPU {entry['pci']}, is not in this host any more.")
        return failed

    def _restore_one(self, device: Device, entry: t.Mapping[str, t.Any], journal: Journal) -> list[str]:
        try:
            gpu = self._ask(device, device.number)
            result = self._reach([(gpu, planning.unshape(gpu, entry, STATE))], journal)
        except GpuopsError as error:
            return [str(error)]
        for step in result["plan"]:
            self.say(f"done: {step['id']}")
        if not result["plan"] and not result["pending"]:
            self.say(f"GPU {device.pci} stands as wanted.")
        # The others follow the first.
        return [f"{step['id']}: {step['pending_reason']}." for step in result["pending"][:1]]


def _without_waiting(argv: t.Sequence[str], **options: t.Any) -> Completed:
    """A unit to be started may be ordered after ours: then each would wait for the other."""
    return run([*argv, "--no-block"] if list(argv[:2]) == ["systemctl", "start"] else argv, **options)


def _answers_not(pci: str, others: t.Iterable[Device]) -> bool:
    """Whether a GPU that does not answer is still in its place."""
    return os.path.exists(f"/sys/bus/pci/devices/{pci}") and all(device.pci != pci for device in others)


def _open(nvml: Nvml) -> None:
    """Opens NVML, as soon as the kernel module is there. Raises HostError, MissingLibrary."""
    deadline = time.monotonic() + _DRIVER_LIMIT
    nvml.open()
    while "DRIVER_NOT_LOADED" in (nvml.error or "") and not nvml.available and time.monotonic() < deadline:
        time.sleep(1)
        nvml.open()
    if not nvml.available:
        raise HostError(f"MIG cannot be configured: {nvml.error or 'the NVIDIA driver is not installed.'}")


def work(say: t.Callable[[str], None]) -> None:
    """Brings all GPUs of the host to what is remembered. Raises GpuopsError that names all that could not be."""
    gpus = read_mig_boot(Root())["gpus"]
    if gpus is None:
        raise HostError(f"{STATE} is missing or damaged, so nobody knows the MIG layout.", "Run mig_config again.")
    nvml = Nvml()
    _open(nvml)
    try:
        # A run of mig_config may still be under way.
        with Journal("mig", wait=240) as journal:
            failed = Restoration(nvml, say).restore(gpus, journal)
    finally:
        nvml.close()
    if failed:
        raise HostError(" ".join(failed), "Run mig_config again, with what it needs.")


def main() -> None:
    """C(mig-boot.pyz)."""
    try:
        work(_say)
    except GpuopsError as error:
        raise SystemExit(f"{_ERROR}{error}") from None


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
