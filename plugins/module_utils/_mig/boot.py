# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that restores the MIG layout at boot, its program, and the file with the layout. PRIVATE."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._boot_unit import (
    INSTALL,
    REMOVE,
    BootUnit,
    Place,
    Words,
    joined,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import (
    ENABLED,
    STATE,
    UNIT,
    UNIT_FILE,
    VERSION,
    read_mig_boot,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import planning
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.work import MigRun, Request
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import FOLDER, pynvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYNVML
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

__all__ = ["INSTALL", "PROGRAM", "REMEMBER", "REMOVE", "Boot", "PersistentMigRun"]

REMEMBER = "remember MIG for boot"
PROGRAM = f"{FOLDER}/mig-boot.pyz"
_START = f"{__package__}.at_boot"
_SYSTEMD = "/run/systemd/system"
# Before everything that uses GPUs or reads MIG devices only once: container runtimes, node agents, DCGM, CDI.
_UNIT = """\
# Written by gpuops.nvidia.
[Unit]
Description=Restore the MIG layout of the NVIDIA GPUs
After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service nvidia-mig-manager.service
Before=gpuops-cdi-refresh.service nvidia-cdi-refresh.service nvidia-dcgm.service nvidia-dcgm-exporter.service
Before=containerd.service docker.service crio.service kubelet.service k3s.service k3s-agent.service
Before=rke2-server.service rke2-agent.service slurmd.service nvsm.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={interpreter} -I -B {program}
TimeoutStartSec=480

[Install]
WantedBy=multi-user.target
"""


class Boot(BootUnit):
    """Plans and executes the steps for the next boot."""

    def __init__(self, journal: Journal, command: Runner, request: Request) -> None:
        place = Place(UNIT, UNIT_FILE, ENABLED, STATE, PROGRAM, PYNVML, _START, _UNIT)
        words = Words("mig_config", REMEMBER, "GPUs lose their layout at boot", "it has another layout",
                      "GPUs lose their instances at boot")
        super().__init__(place, words, journal, command, request.check, request.files_before)

    def refuse(self) -> None:
        """Raises HostError if the unit cannot be installed. Called before anything is changed."""
        vendor = read_mig_boot(Root())["vendor"]
        if vendor:
            raise HostError(f"{vendor} is enabled, which applies its own MIG layout at boot.",
                            f"Run systemctl disable {vendor}, or set boot to false.", unit=vendor)
        self.check_files()

    def restoring(self, gpus: t.Mapping[str, planning.Result], assumed: bool = False) -> list[Step]:
        """The steps that make the next boot restore these layouts. gpus: see Restoration.restore; assumed: see Step."""
        if not gpus:
            return [] if assumed else self.absent("there is no layout to restore")
        return self.present(_document(gpus), self._remembers(gpus) if assumed else None, assumed)

    def _remembers(self, gpus: t.Mapping[str, planning.Result]) -> bool:
        """Whether the file already has these layouts. Compares by PCI address, because the UUIDs are unknown."""
        kept = {entry["pci"]: entry for entry in (read_mig_boot(Root())["gpus"] or {}).values()}
        return self._owns(STATE) and all(kept.get(entry["pci"]) == entry for entry in gpus.values())

    def _install(self) -> None:
        # Imported here, so that the module contains it, but a run that changes nothing does not compile it.
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import at_boot

        self.place = self.place._replace(start=at_boot.__name__)
        super()._install()


class PersistentMigRun(MigRun):
    """A run of mig_config that also makes the layout survive a reboot, if `boot` is set."""

    def __init__(self, request: Request, nvml: Nvml, boot: bool) -> None:
        super().__init__(request, nvml)
        self.boot = boot

    def _apply_goals(self, goals: list[tuple[planning.Gpu, planning.Goal]], journal: Journal) -> planning.Result:
        boot = Boot(journal, self.command, self.request)
        if self.request.state == "absent":
            first = boot.execute(boot.absent("the former layout is restored"))
            return joined(first, super()._apply_goals(goals, journal))
        lasting = self.boot and self._has_systemd()
        if lasting and read_mig_boot(Root())["masked"]:
            self.warnings.append(f"{UNIT} is masked, so the next reboot loses the MIG layout. To keep the layout, run "
                                 f"systemctl unmask {UNIT}; otherwise set boot to false.")
            return super()._apply_goals(goals, journal)
        if lasting:
            boot.refuse()
            if self.nvml.available:
                pynvml(Root())  # raises if it is missing, before anything is changed
        result = super()._apply_goals(goals, journal)
        if lasting:
            steps = boot.restoring(self._remembered(), assumed=not self.nvml.available)
        else:
            steps = boot.absent("boot is false")
        last = boot.execute(steps)
        if (result["changed"] or last["changed"]) and not self.request.check:
            boot.reset_failed()
        return joined(result, last)

    def _has_systemd(self) -> bool:
        if os.path.isdir(_SYSTEMD):
            return True
        self.warnings.append("systemd does not run, so the next reboot loses the MIG layout.")
        return False

    def _remembered(self) -> dict[str, planning.Result]:
        """Maps the UUIDs of GPUs to the layouts to restore: those of this task, and of earlier tasks if the host still
        has the GPU. Without a driver, maps the PCI addresses."""
        if not self.nvml.available:
            return {plan.gpu.pci: {"pci": plan.gpu.pci, **planning.layout_json(plan.goal.enabled, plan.goal.layout)}
                    for plan in self.plans}
        desired = {self._uuid(plan.gpu.pci).lower(): {
            "pci": plan.gpu.pci, **planning.layout_json(plan.goal.enabled, plan.goal.layout)} for plan in self.plans}
        kept = read_mig_boot(Root())["gpus"]
        if kept is None and os.path.exists(STATE):
            self.warnings.append(f"{STATE} was damaged: the next boot restores only the layouts of this task's GPUs.")
        former = {uuid: entry for uuid, entry in (kept or {}).items() if uuid not in desired}
        if former:
            existing = {self._uuid(pci).lower() for pci in self._devices}
            former = {uuid: entry for uuid, entry in former.items()
                      if uuid in existing or entry["pci"] in self.unread or self.nvml.silent}
        return {**former, **desired}


def _document(gpus: t.Mapping[str, planning.Result]) -> bytes:
    """The content of the file with the layouts, sorted by PCI address."""
    ordered = dict(sorted(gpus.items(), key=lambda item: (item[1]["pci"], item[0])))
    return json.dumps({"version": VERSION, "gpus": ordered}, indent=1).encode() + b"\n"
