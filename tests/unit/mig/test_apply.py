# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A reset that a change of the MIG mode needs: services that watch the GPUs step aside for it."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig._apply import Executor
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig._holders import Pauses
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

GPU = Device(0, None, "0000:07:00.0", "20b2", "10de:1463")


class Machine:
    """A GPU whose mode changes with a reset, and DCGM without its exporter."""

    def __init__(self, resets: bool) -> None:
        self.resets = resets
        self.enabled = self.pending = False
        self.calls: list[str] = []

    def __call__(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = list(argv)
        if words[1] == "show":
            told = ("LoadState=not-found\nActiveState=inactive\nUnitFileState=\n",
                    "LoadState=loaded\nActiveState=failed\nUnitFileState=enabled\n",
                    "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n")
            return Completed(tuple(words), 0, "\n".join(told), "")
        self.calls.append(" ".join(words[:3]))
        if words[0] == "nvidia-smi":
            if not self.resets:
                raise CommandError(words, 1, "", "in use", options.get("hint", ""))
            self.enabled = self.pending
        return Completed(tuple(words), 0, "", "")

    def set_mode(self, device: Device, enabled: bool) -> Device:
        self.pending = enabled
        return device

    def mode(self, _device: Device) -> tuple[bool, bool]:
        return self.enabled, self.pending

    def processes(self, _device: Device) -> list[dict[str, t.Any]]:
        return []

    def reopen(self, device: Device) -> Device:
        return device

    def open(self) -> None:
        pass

    close = open


STEP = Step("enable MIG mode", GPU.pci, data={"pci": GPU.pci, "enabled": True})


def switch(machine: Machine, folder: Path) -> None:
    with Journal("mig", str(folder / "journal")) as journal:
        executor = Executor(t.cast(t.Any, machine), Pauses(machine, journal), Root(str(folder)),
                            {GPU.pci: (GPU, False, ())})
        try:
            executor(STEP)
        finally:
            assert not journal.entries


def test_services_step_aside_for_a_reset(tmp_path: Path) -> None:
    machine = Machine(True)
    switch(machine, tmp_path)
    assert machine.enabled
    assert machine.calls == ["systemctl stop nvidia-dcgm.service", "nvidia-smi --gpu-reset -i",
                             "systemctl start nvidia-dcgm.service"]


def test_they_go_on_where_the_reset_fails(tmp_path: Path) -> None:
    machine = Machine(False)
    with pytest.raises(HostError, match="enable MIG mode.*refused.*No process is listed"):
        switch(machine, tmp_path)
    assert machine.pending is False
    assert machine.calls[-1] == "systemctl start nvidia-dcgm.service"
