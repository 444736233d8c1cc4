# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change of the MIG mode needs a reset: services that watch the GPUs are stopped for it."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, DeviceError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.apply import Executor
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import Pauses
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Placement
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

GPU = Device(0, None, "0000:07:00.0", "20b2", "10de:1463")


class Machine:
    """A GPU whose mode changes with a reset, and DCGM without its exporter. sticks: even a reset does not change the
    mode."""

    def __init__(self, resets: bool, sticks: bool = False, exporter: str = "failed") -> None:
        self.resets, self.sticks, self.exporter = resets, sticks, exporter
        self.refused: list[str] = []
        self.enabled = self.pending = False
        self.calls: list[str] = []
        self.session = 1  # a handle is of one session of NVML; None while there is none
        self.closed = False

    def _of_now(self, device: Device) -> None:
        assert not self.closed, "NVML is closed"
        assert device.handle == self.session, f"a handle of session {device.handle} in session {self.session}"

    def __call__(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = list(argv)
        if words[1] == "show":
            told = ("LoadState=not-found\nActiveState=inactive\nUnitFileState=\n",
                    f"LoadState=loaded\nActiveState={self.exporter}\nUnitFileState=enabled\n",
                    "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n")
            return Completed(tuple(words), 0, "\n".join(told), "")
        self.calls.append(" ".join(words))
        if words[-1] in self.refused and words[1] == "start" and options.get("check", True):
            raise CommandError(words, 1, "", "no", options.get("hint", ""))
        if words[0] == "nvidia-smi":
            if not self.resets:
                raise CommandError(words, 1, "", "in use", options.get("hint", ""))
            assert self.closed, "a GPU cannot be reset while NVML is open here"
            self.enabled = self.enabled if self.sticks else self.pending
        return Completed(tuple(words), 0, "", "")

    def set_mode(self, device: Device, enabled: bool) -> Device:
        self._of_now(device)
        self.pending = enabled
        return device

    def mode(self, device: Device) -> tuple[bool, bool]:
        self._of_now(device)
        return self.enabled, self.pending

    def processes(self, device: Device) -> list[dict[str, t.Any]]:
        self._of_now(device)
        return []

    def instances(self, device: Device) -> list[t.Any]:
        self._of_now(device)
        return []

    def reopen(self, device: Device) -> Device:
        return device._replace(handle=self.session)

    def open(self) -> None:
        self.session, self.closed = self.session + 1, False

    def close(self) -> None:
        self.closed = True


STEP = Step("enable MIG mode", GPU.pci, data={"pci": GPU.pci, "enabled": True})
OTHER = GPU._replace(number=1, pci="0000:0f:00.0", handle=1)


def switch(machine: Machine, folder: Path, paused: t.Sequence[str] = ()) -> dict[str, Device]:
    """Executes the step while other services are already stopped; returns the devices that are known afterwards."""
    with Journal("mig", str(folder / "journal")) as journal:
        pauses = Pauses(machine, journal)
        pauses.stop(paused)
        executor = Executor(t.cast(t.Any, machine), pauses, Root(str(folder)),
                            {GPU.pci: (GPU._replace(handle=1), False, ()), OTHER.pci: (OTHER, False, ())})
        try:
            executor(STEP)
        finally:
            assert list(journal.of_kind("paused")) == list(paused)
    return executor.devices


def test_services_step_aside_for_a_reset(tmp_path: Path) -> None:
    machine = Machine(True)
    switch(machine, tmp_path)
    assert machine.enabled
    assert machine.calls == ["systemctl stop nvidia-dcgm.service", f"nvidia-smi --gpu-reset -i {GPU.pci}",
                             "systemctl start nvidia-dcgm.service"]


def test_services_start_in_the_reverse_order_of_stopping(tmp_path: Path) -> None:
    """The exporter depends on the engine."""
    machine = Machine(True, exporter="active")
    switch(machine, tmp_path)
    assert machine.calls == [
        "systemctl stop nvidia-dcgm-exporter.service", "systemctl stop nvidia-dcgm.service",
        f"nvidia-smi --gpu-reset -i {GPU.pci}",
        "systemctl start nvidia-dcgm.service", "systemctl start nvidia-dcgm-exporter.service"]


def test_one_that_does_not_start_again_undoes_no_reset(tmp_path: Path) -> None:
    machine = Machine(True, exporter="active")
    machine.refused.append("nvidia-dcgm.service")
    switch(machine, tmp_path)
    assert machine.enabled
    assert machine.calls[-1] == "systemctl start nvidia-dcgm-exporter.service"


def test_an_instance_that_has_gone_meanwhile_needs_no_destroying(tmp_path: Path) -> None:
    machine = Machine(True)
    with Journal("mig", str(tmp_path / "journal")) as journal:
        executor = Executor(t.cast(t.Any, machine), Pauses(machine, journal), Root(str(tmp_path)),
                            {GPU.pci: (GPU._replace(handle=1), True, ())})
        executor(Step("destroy MIG instances", GPU.pci, data={
            "pci": GPU.pci, "placements": (Placement("1g.10gb", 0, ((1, 0),)),)}))
    assert machine.calls == []


def test_all_gpus_are_opened_anew_after_a_reset(tmp_path: Path) -> None:
    """A reset ends the NVML session, so the handles of all other GPUs are invalid, too."""
    assert {pci: device.handle for pci, device in switch(Machine(True), tmp_path).items()} == {GPU.pci: 2, OTHER.pci: 2}


def test_what_was_stopped_before_the_reset_stays_so_after_it(tmp_path: Path) -> None:
    """A service that uses the GPU starts at the end of the run, when its GPU is as planned."""
    machine = Machine(True)
    switch(machine, tmp_path, ["train.service"])
    assert "systemctl start train.service" not in machine.calls
    assert machine.calls[-1] == "systemctl start nvidia-dcgm.service"


def test_a_watcher_that_holds_the_gpu_was_stopped_before(tmp_path: Path) -> None:
    machine = Machine(True)
    switch(machine, tmp_path, ["nvidia-dcgm.service"])
    assert "systemctl start nvidia-dcgm.service" not in machine.calls


def test_they_go_on_where_the_reset_fails(tmp_path: Path) -> None:
    machine = Machine(False)
    with pytest.raises(HostError, match="enable MIG mode.*which failed.*No process is listed") as caught:
        switch(machine, tmp_path)
    assert caught.value.details["reset_required"] == [GPU.pci]
    assert machine.pending is False
    assert machine.calls[-1] == "systemctl start nvidia-dcgm.service"


def test_a_mode_that_stays_pending_after_a_reset_is_an_error(tmp_path: Path) -> None:
    machine = Machine(True, sticks=True)
    with pytest.raises(HostError, match="0000:07:00.0 is still pending after a reset.*layout .* is restored") as caught:
        switch(machine, tmp_path)
    assert caught.value.details["reset_required"] == [GPU.pci]
    assert (machine.enabled, machine.pending) == (False, False)


def test_a_former_layout_that_cannot_be_put_back_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(False)
    set_mode, tried = machine.set_mode, []

    def once(device: Device, enabled: bool) -> Device:
        tried.append(enabled)
        if len(tried) > 1:
            raise DeviceError("GPU is lost.", gpu=device.pci)
        return set_mode(device, enabled)

    monkeypatch.setattr(machine, "set_mode", once)
    with pytest.raises(HostError) as caught:
        switch(machine, tmp_path)
    assert "The former layout of GPU 0000:07:00.0 could not be restored: GPU is lost." in caught.value.hint
    assert tried == [True, False]
