# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of gpu_reset: read, plan, gate, apply, read again. PRIVATE to the collection.

A file records which GPUs and hosts got a remedy, so that none gets it a second time without a person.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    CommandError,
    DeviceError,
    HostError,
    InputError,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import make_folders, read_bytes, write_atomic
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import STATE_ROOT, Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.clients import Clients, forget_locks, set_again
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import Pauses
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.planning import EVICT, Holder, pods_of, words
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device, Handle
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    follow,
    gate,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, run

RECORD = f"{STATE_ROOT}/remedies.json"
STOP, RESET, REBOOT, START = "stop GPU clients", "reset GPU", "reboot", "start service"
HOST = "this host"
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_TIME = "%Y-%m-%dT%H:%M:%SZ"
# What nvidia-smi says if a process uses the GPU. It has then not tried the reset.
_IN_USE = re.compile(r"in use by|being used by", re.IGNORECASE)


class Request(t.NamedTuple):
    """The options of the module. gpus: maps the PCI address of each GPU to reset to the reason; reboot: why the host
    has to be rebooted, empty if it has not; again: whether a person allows a second remedy."""

    gpus: t.Mapping[str, str]
    reboot: str
    level: str
    check: bool
    again: bool = False


def stopped_by(steps: t.Iterable[Step]) -> list[str]:
    """The services that steps stop, in this order."""
    return [unit for step in steps if step.action == STOP for unit in step.data["units"]]


class ResetRun:
    """A run of gpu_reset. now: the seconds since 1970."""

    def __init__(self, request: Request, nvml: Nvml, root: Root, command: Runner | None = None, record: str = RECORD,
                 now: t.Callable[[], float] = time.time) -> None:
        self._request, self._nvml, self._root = request, nvml, root
        self._command: Runner = command or run
        self._path, self._now = record, now
        self._devices: dict[str, Device] = {}
        self._silent: set[str] = set()  # the GPUs that do not answer before the first reset
        self._tried: list[str] = []
        self._holders: list[Holder] = []
        self._refused: list[str] = []
        self._unanswered: list[str] = []
        self.warnings: list[str] = []

    def run(self) -> Result:
        """The result of the module. Raises GpuopsError."""
        for pci in self._request.gpus:
            if not _PCI.fullmatch(pci):
                raise InputError(f"{pci!r} is no PCI address.", "Write it as gpu_info returns it.", path="gpus.pci",
                                 value=pci, allowed="such as 0000:47:00.0")
        asks = self._request.gpus or self._request.reboot
        former = self._read_record() if asks else {}
        with Journal("mig", readonly=self._request.check) as journal:
            pauses = Pauses(self._command, journal)
            clients = Clients(self._nvml, pauses, self._root)
            steps, pending = self._plan(clients, former)
            # Including units that a killed run has stopped; the last stopped unit is started first.
            steps += [Step(START, unit, "it is stopped for a reset")
                      for unit in reversed(list(dict.fromkeys([*pauses.units, *stopped_by(steps)])))]
            done = self._apply(steps, former, clients, pauses) if not self._request.check else steps
        boots = any(step.action == REBOOT for step in steps)
        return outcome(done, pending, plan_diff("gpu_reset", done), reboot_required=boots,
                       holders=[one._asdict() for one in self._holders],
                       refused=self._refused, unanswered=self._unanswered,
                       reset=[step.target for step in done if step.action == RESET])

    # -- plan

    def _plan(self, clients: Clients, former: t.Mapping[str, str]) -> tuple[list[Step], list[PendingStep]]:
        """(the steps, the pending steps). A reboot resets all GPUs, so it is the only step."""
        if self._request.reboot:
            return self._gated([Step(REBOOT, HOST, self._request.reboot, "reboot")], former.get(HOST))
        if not self._request.gpus:
            return [], []
        if not self._nvml.available:
            raise HostError(f"No GPU can be reset: {self._nvml.error or 'the NVIDIA driver is not installed.'}",
                            "Load the driver, or reboot the host.")
        self._devices = {device.pci: device for device in self._nvml.devices()}
        self._silent = set(self._request.gpus) - set(self._devices)
        steps: list[Step] = []
        pending: list[PendingStep] = []
        for pci, reason in sorted(self._request.gpus.items()):
            # Services may use several of the GPUs: each is stopped and started once.
            now, later = self._of_gpu(pci, reason, clients, former, stopped_by(steps))
            steps += now
            pending += later
        return steps, pending

    def _of_gpu(self, pci: str, reason: str, clients: Clients, former: t.Mapping[str, str],
                stopped: t.Collection[str]) -> tuple[list[Step], list[PendingStep]]:
        """stopped: the services that earlier steps stop."""
        holders = clients.of(self._device(pci))
        self._holders += holders
        steps = [Step(RESET, pci, reason, "drain" if holders else "idle")]
        others = [holder for holder in holders if holder.unit not in stopped]
        if others:
            units = stoppable(self._root, [holder.as_client() for holder in others])
            steps.insert(0, Step(STOP, f"{pci} {words(others)}", reason, "drain", data={
                "pci": pci, "units": units, "pids": [holder.pid for holder in others]}))
        allowed, pending = self._gated(steps, former.get(pci))
        if allowed and pods_of(holders):
            return [], follow(steps, f"in use by {', '.join(pods_of(holders))}; {EVICT}")
        return allowed, pending

    def _gated(self, steps: list[Step], before: str | None) -> tuple[list[Step], list[PendingStep]]:
        """The steps that may be done now. before: when a run has done the same last, None if none has."""
        if before and not self._request.again:
            self._refused.append(steps[-1].target)
            return [], follow(steps, f"a run has done the same at {before}, so a person has to look at it")
        return gate(steps, self._request.level)

    # -- apply

    def _apply(self, steps: list[Step], former: dict[str, str], clients: Clients, pauses: Pauses) -> list[Step]:
        """Executes the steps. Services start after the settings are applied again. Returns the steps."""
        try:
            try:
                for step in steps:
                    if step.action == STOP:
                        data = step.data
                        clients.stop(self._device(data["pci"]), data["units"], data["pids"])
                    elif step.action == RESET:
                        self._reset(step.target, former, clients)
                    elif step.action == REBOOT:
                        self._remember(former, HOST)
            finally:
                if self._tried:
                    self.warnings += set_again(self._command)
            for step in steps:
                if step.action == START:
                    pauses.start(step.target)
        finally:
            pauses.start_all()
        return steps

    def _device(self, pci: str) -> Device:
        """The GPU; if it has not answered from the first, without a handle. Raises HostError."""
        if pci in self._devices:
            return self._devices[pci]
        if pci not in self._silent:
            raise HostError(f"GPU {pci} does not answer after the reset of GPU {', '.join(self._tried)}.",
                            "Reboot the host.", gpu=pci)
        return Device(0, Handle(None), pci, "", "")

    def _reset(self, pci: str, former: dict[str, str], clients: Clients) -> None:
        """Resets a GPU. The record is written before, so that a killed run counts, too."""
        device, before, uuid = self._device(pci), former.get(pci), ""
        if pci in self._devices:
            with contextlib.suppress(DeviceError):
                uuid = self._nvml.uuid(device).lower()
        forget_locks(uuid)
        self._remember(former, pci)
        self._tried.append(pci)
        try:
            clients.reset(pci)
        except CommandError as error:
            hint = "Read what nvidia-smi says. If GPUs cannot be reset one by one on this host, reboot it."
            if _IN_USE.search(error.output):
                self._write({**former, pci: before} if before else
                            {key: when for key, when in former.items() if key != pci})
                hint = "Stop what uses it, which fuser -v /dev/nvidia* may name, then run again; or reboot the host."
            raise HostError(f"GPU {pci} could not be reset: {error.message}", hint, gpu=pci) from error
        self._devices = {device.pci: device for device in self._nvml.devices()}
        if pci not in self._devices:
            self._unanswered.append(pci)
            self.warnings.append(f"GPU {pci} does not answer after its reset. Only a reboot of the host may help.")

    # -- record

    def _read_record(self) -> dict[str, str]:
        """Maps a PCI address, or HOST, to the time of its last remedy."""
        try:
            found = json.loads(read_bytes(self._path) or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
            raise HostError(f"{self._path} is damaged, so it is not known which GPUs have been reset.",
                            "Look at the GPUs of the host, then delete the file.")
        return found

    def _remember(self, former: dict[str, str], key: str) -> None:
        """Records a remedy as done now."""
        former[key] = time.strftime(_TIME, time.gmtime(self._now()))
        self._write(former)

    def _write(self, former: t.Mapping[str, str]) -> None:
        make_folders(os.path.dirname(self._path))
        write_atomic(self._path, json.dumps(former, sort_keys=True, indent=1).encode() + b"\n", mode=0o644)
