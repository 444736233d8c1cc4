# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that restores MIG at boot; `boot.py` installs it. PRIVATE to the collection.

No GPU keeps its instances over a reboot, and from Hopper on none keeps its mode (NVIDIA MIG User Guide, "Deployment
Considerations"). systemd reads the level of a line of the output from a number in front of it (sd-daemon(3)).
"""

from __future__ import annotations

import os
import sys
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._boot_unit import open_nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import STATE, read_mig_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import planning
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.work import MigRun, Request
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, run

_WARNING, _ERROR = "<4>", "<3>"


class Restoration(MigRun):
    """Restores the GPUs one by one. If one fails, the others are restored nevertheless."""

    def __init__(self, nvml: Nvml, say: t.Callable[[str], None]) -> None:
        super().__init__(Request("present", None, None, None, "idle", False), nvml)
        self.command = _without_waiting
        self.say = say

    @property
    def _has_fixed_placements(self) -> bool:
        """True, because placements are restored, too."""
        return True

    def _set_again(self) -> None:
        """Does nothing, because the unit with the settings starts after this one."""

    def restore(self, gpus: t.Mapping[str, planning.Result], journal: Journal) -> list[str]:
        """Restores the layouts. Returns the errors, as sentences.

        gpus: maps a UUID to the JSON of planning.layout_json with `pci`.
        """
        answering = {uuid.lower(): device for uuid, device in self.nvml.answering()}
        failed = []
        for uuid, entry in gpus.items():
            device = answering.get(uuid)
            if device is not None:
                failed += self._restore_one(self.nvml.reopen(device), entry, journal)
            elif _is_silent(entry["pci"], answering.values()):
                failed.append(f"GPU {entry['pci']} does not answer.")
            else:
                self.say(f"{_WARNING}GPU {entry['pci']} ({uuid}) is not in this host any more.")
        return failed

    def _restore_one(self, device: Device, entry: planning.Result, journal: Journal) -> list[str]:
        try:
            gpu = self._read_gpu(device, device.number)
            if entry["enabled"] and (planning.hidden(gpu) or not gpu.told):
                # The GPU had this layout before. Only with MIG on it tells the profiles by which to restore it.
                waiting = self._reach(gpu, planning.Goal(True, (), "as it was before"), journal)["pending"]
                if waiting:
                    return _first(waiting)
                gpu = self._read_gpu(self._devices[device.pci], device.number)
            result = self._reach(gpu, planning.goal_from_json(gpu, entry, STATE), journal)
        except GpuopsError as error:
            return [str(error)]
        if not result["plan"] and not result["pending"]:
            self.say(f"GPU {device.pci} has the desired layout.")
        return _first(result["pending"])

    def _reach(self, gpu: planning.Gpu, goal: planning.Goal, journal: Journal) -> planning.Result:
        result = self._apply_goals([(gpu, goal)], journal)
        for step in result["plan"]:
            self.say(f"done: {step['id']}")
        return result


def _first(pending: t.Sequence[t.Mapping[str, str]]) -> list[str]:
    """The first pending step as a sentence, because it blocks the others."""
    return [f"{step['id']}: {step['pending_reason']}." for step in pending[:1]]


def _without_waiting(argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
                     env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
    """Runs a command, but does not wait until a unit has started: it may be ordered after this one and wait for it."""
    words = [*argv, "--no-block"] if list(argv[:2]) == ["systemctl", "start"] else argv
    return run(words, timeout=timeout, check=check, stdin=stdin, env=env, hint=hint)


def _is_silent(pci: str, others: t.Iterable[Device]) -> bool:
    """Whether the GPU is still on the PCI bus, but NVML does not report it."""
    return os.path.exists(f"/sys/bus/pci/devices/{pci}") and all(device.pci != pci for device in others)


def work(say: t.Callable[[str], None]) -> None:
    """Restores all GPUs of the host. Raises GpuopsError with all errors."""
    gpus = read_mig_boot(Root())["gpus"]
    if gpus is None:
        raise HostError(f"{STATE} is missing or damaged, so the MIG layout is unknown.",
                        "Run mig_config again, which writes the file.")
    nvml = Nvml()
    open_nvml(nvml, "MIG cannot be configured", "gpuops-mig.service")
    try:
        # A run of mig_config may hold the lock.
        with Journal("mig", wait=240) as journal:
            failed = Restoration(nvml, say).restore(gpus, journal)
    finally:
        nvml.close()
    if failed:
        raise HostError(" ".join(failed), "Run mig_config again, with the gpu_disruption that its steps need.")


def main() -> None:
    """The entry point of mig-boot.pyz."""
    try:
        work(_say)
    except GpuopsError as error:
        raise SystemExit(f"{_ERROR}{error}") from None


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
