# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that applies the settings of GPUs at boot, and the file with them. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._boot_unit import BootUnit, Place, Words, joined
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import FOLDER, pynvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYNVML
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import declared
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.device import SettingsNvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.planning import Gpu
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.work import Request, SettingsRun

REMEMBER = "remember GPU settings for boot"
UNIT = "gpuops-settings.service"
_UNITS = "/etc/systemd/system"
UNIT_FILE = f"{_UNITS}/{UNIT}"
ENABLED = f"{_UNITS}/multi-user.target.wants/{UNIT}"
STATE = "/etc/gpuops/settings.json"
PROGRAM = f"{FOLDER}/settings-boot.pyz"
VERSION = 1
_START = f"{__package__}.at_boot"
_SYSTEMD = "/run/systemd/system"
# After what changes the persistence mode or resets GPUs, before everything that uses them.
_UNIT = """\
# Written by gpuops.nvidia.
[Unit]
Description=Apply the settings of the NVIDIA GPUs
After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service
After=gpuops-mig.service nvidia-mig-manager.service
Before=nvidia-dcgm.service nvidia-dcgm-exporter.service
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

    def __init__(self, journal: Journal, run: SettingsRun) -> None:
        place = Place(UNIT, UNIT_FILE, ENABLED, STATE, PROGRAM, PYNVML, _START, _UNIT)
        words = Words("gpu_settings", REMEMBER, "the driver forgets settings at every boot", "it has other settings",
                      "the driver forgets settings at every boot")
        super().__init__(place, words, journal, run.command, run.request.check, run.request.files_before)

    def _install(self) -> None:
        # Imported here, so that the module contains it, but a run that changes nothing does not compile it.
        from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import at_boot

        self.place = self.place._replace(start=at_boot.__name__)
        super()._install()


class PersistentSettingsRun(SettingsRun):
    """A run of gpu_settings that also makes the settings survive a reboot, if `boot` is set."""

    def __init__(self, request: Request, nvml: SettingsNvml, boot: bool) -> None:
        super().__init__(request, nvml)
        self.boot = boot

    def reach(self, entries: t.Sequence[declared.Entry], gpus: list[Gpu], journal: Journal) -> Result:
        """See SettingsRun."""
        boot = Boot(journal, self)
        if not entries:
            first = boot.execute(boot.absent("no setting is declared"))
            return joined(first, super().reach(entries, gpus, journal))
        lasting = self.boot and self._can_last()
        if lasting:
            boot.check_files()
            if self.nvml.available:
                pynvml(Root())  # raises if it is missing, before anything is changed
        result = super().reach(entries, gpus, journal)
        if not lasting:
            steps = [] if self.boot else boot.absent("boot is false")
        elif self.nvml.available:
            remembered = self._remembered()
            steps = boot.present(_document(remembered)) if remembered else boot.absent("no setting is declared")
        else:
            # The UUIDs of the GPUs are not known yet.
            steps = boot.present(b"", os.path.exists(STATE), assumed=True)
            if not self.request.check:
                later = [step.pending(self.no_driver()).as_dict() for step in steps]
                return {**result, "pending": [*result["pending"], *later]}
        last = boot.execute(steps)
        if (result["changed"] or last["changed"]) and not self.request.check:
            boot.reset_failed()
        return joined(result, last)

    def _can_last(self) -> bool:
        if not os.path.isdir(_SYSTEMD):
            self.warnings.append("systemd does not run, so the next reboot loses the settings of GPUs.")
        elif Root().link(UNIT_FILE) == os.devnull:
            self.warnings.append(f"{UNIT} is masked, so the next reboot loses the settings of GPUs. To keep them, run "
                                 f"systemctl unmask {UNIT}; otherwise set boot to false.")
        else:
            return True
        return False

    def _remembered(self) -> list[dict[str, t.Any]]:
        """The entries for the next boot, one for each GPU, by UUID. Those of a GPU that does not answer are kept."""
        found = [{"gpus": [plan.gpu.target.uuid], **{name: one.value for name, one in plan.wanted.items()}}
                 for plan in self.plans if plan.wanted]
        known = {plan.gpu.target.uuid for plan in self.plans}
        kept = (read_state() or []) if self.unread else []
        return [*found, *({"gpus": list(entry.gpus), **entry.settings} for entry in kept
                          if not known.intersection(entry.gpus))]


def _document(entries: t.Sequence[t.Mapping[str, t.Any]]) -> bytes:
    return json.dumps({"version": VERSION, "entries": entries}, indent=1).encode() + b"\n"


def read_state() -> list[declared.Entry] | None:
    """The entries in the file; None if it is missing or damaged."""
    try:
        document = json.loads(read_bytes(STATE) or b"")
        return declared.parse(document["entries"]) if document["version"] == VERSION else None
    except (ValueError, KeyError, TypeError, RecursionError, InputError):
        return None
