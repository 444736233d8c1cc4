# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states of mig_config that only read: gathered and rendered. PRIVATE to the collection."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import read_mig_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, checkpoint_file, config_file, planning
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.work import MigRun
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import outcome


class ReadOnlyRun(MigRun):
    """A run of mig_config with the state gathered or rendered, which changes nothing."""

    def run(self) -> planning.Result:
        """The result of the module. Raises GpuopsError."""
        if self.request.state == "gathered":
            return self._gathered()
        self._read_config()
        return self._rendered()

    def _gathered(self) -> planning.Result:
        if not self.nvml.available:
            raise HostError(f"MIG cannot be read: {self.nvml.error or 'the NVIDIA driver is not installed.'}",
                            "Install and load the driver first.")
        capable = [gpu for gpu in self._read() if gpu.target.profiles or planning.hidden(gpu)]
        gpus = [gpu for gpu in capable if gpu.pci in self._chosen(capable)]
        current = {gpu.pci: gpu.as_dict() for gpu in gpus}
        config = config_file.export([
            (gpu.target.number, gpu.mode[0], gpu.board.devices(gpu.layout) if gpu.board else {}) for gpu in gpus])
        checkpoint = checkpoint_file.write(
            (self._uuid(gpu.pci), gpu.mode[0], self.nvml.instances(self._devices[gpu.pci]) if gpu.mode[0] else [])
            for gpu in gpus)
        return outcome([], before=current, after=current, config=config, checkpoint=checkpoint, holders=[],
                       kept=[], created=[], destroyed=[], touched=[], boot=read_mig_boot(self.root),
                       reset_required=[gpu.pci for gpu in gpus if gpu.mode[0] != gpu.mode[1]])

    def _rendered(self) -> planning.Result:
        """The plan for GPU models without MIG mode, from the device tables. The host need not have these GPUs."""
        gpus = []
        for number, word in enumerate(self.request.devices or ()):
            ident, others = boards.find(word)
            if ident is None:
                raise InputError(f"{word!r} is not a known GPU.", "Set a PCI device id such as 20b2, or one of the "
                                 f"models {', '.join(others)}.", path="devices", value=word, allowed=others)
            if others:
                self.warnings.append(f"{word} is planned as PCI device {ident}. Models with similar names have other "
                                     f"profiles: {', '.join(others)}.")
            gpus.append(self._assume(number, f"gpu{number}", ident, ""))
        if not gpus:
            raise InputError("state rendered needs the GPUs to plan for.", "List PCI device ids or models.",
                             path="devices")
        plans = [planning.plan(gpu, goal, "reboot") for gpu, goal in self._goals(gpus)]
        return {**self._result(plans, [step for plan in plans for step in plan.steps]), "changed": False}
