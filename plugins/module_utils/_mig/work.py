# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of mig_config: read, plan, gate, apply, read again. PRIVATE to the collection.

Code that is only needed for changes is imported where it is used, because a host compiles all that is imported.
"""

from __future__ import annotations

import collections
import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError, HostError, InputError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import planning, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board, layout_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    Pending,
    Step,
    apply,
    diff_entry,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, run

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import Function
    from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.config_file import Entry
    from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Profile

# The pending step for a GPU that cannot be read, whose steps are unknown.
CONFIGURE = "configure MIG"
# NVML's errors for a faulty GPU. Other errors have other reasons.
_FAULTY = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "TIMEOUT", "IRQ_ISSUE", "UNKNOWN")
UNREAD = "See dmesg | grep -i nvrm; reset the GPU while nothing uses it (nvidia-smi -r -i), else reboot the host."


class Request(t.NamedTuple):
    """The options of the module. config, checkpoint: mig-parted's documents or None, which are not checked yet;
    devices: names of GPUs, None for all; create: whether instances may be created.

    Only in check mode: after_reload, whether to plan for the state after a reload of the driver; files_before, paths of
    files that an earlier task of the play installs.
    """

    state: str
    config: object
    selected: str | None
    devices: t.Sequence[str] | None
    level: str
    check: bool
    checkpoint: object = None
    after_reload: bool = False
    files_before: t.Sequence[str] = ()
    create: bool = True


class Work:
    """A run on a host that changes it. Shown in `shown.py` only reads."""

    def __init__(self, request: Request, nvml: Nvml) -> None:
        self.request = request
        self.nvml = nvml
        self.warnings: list[str] = []
        self.root = Root()
        self._boards: dict[str, Board] = {}
        self._devices: dict[str, Device] = {}
        self.command: Runner = run
        self.plans: list[planning.GpuPlan] = []
        self._uuids: dict[str, str] = {}
        self.unread: set[str] = set()
        self._waiting: list[Pending] = []
        self._entries: t.Sequence[Entry] | None = None

    def run(self) -> planning.Result:
        """The result of the module. Raises GpuopsError."""
        self._read_config()
        if self.request.state == "absent" and self.request.devices is not None:
            raise InputError("it cannot be used with state absent, which restores all GPUs that were changed.",
                             "Omit it, or give these GPUs another layout.", path="devices",
                             value=list(self.request.devices))
        with Journal("mig", readonly=self.request.check) as journal:
            if self.request.state == "absent":
                return self._reach(self._former(journal), journal)
            return self._reach(self._goals(self._read()), journal)

    # -- reading

    def _read_config(self) -> None:
        if self.request.config is not None and self.request.state != "absent":
            from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import config_file

            self._entries = config_file.select(config_file.parse(self.request.config), self.request.selected)[1]

    def _read(self) -> list[planning.Gpu]:
        """The GPUs of the host by PCI address, from NVML, otherwise from sysfs and the device tables."""
        if self.nvml.available:
            return self._read_by_nvml()
        gpus = []
        for number, function in enumerate(one for one in self._bus() if one.driver != "vfio-pci"):
            what = number, function.address, function.device, function.subsystem or ""
            # There is a driver that does not answer: the GPU can differ from the device tables.
            asked_later = self.request.after_reload and self.request.check
            gpus.append(self._left_out(*what, self.nvml.error or "NVML is not installed.")
                        if function.driver == "nvidia" and not asked_later else self._assume(*what))
        return gpus

    def _bus(self) -> t.Sequence[Function]:
        from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import read_bus

        return read_bus(self.root).gpus

    def _read_by_nvml(self) -> list[planning.Gpu]:
        """All GPUs, also those that cannot be read. Raises DeviceError for these if the state is gathered."""
        gpus = [self._ask_or_leave(device) for device in self.nvml.devices()]
        whys = [f"GPU {number} does not answer: {why}." for number, why in self.nvml.silent]
        if whys:
            known = {gpu.pci for gpu in gpus}
            # NVML reports only the number of such a GPU. Its address is one that NVML does not report.
            lost = [one for one in self._bus() if one.driver == "nvidia" and one.address not in known]
            gpus += [self._left_out(number, one.address, one.device, one.subsystem or "", why)
                     for (number, _name), one, why in zip(self.nvml.silent, lost, whys)]
            for (number, _name), why in list(zip(self.nvml.silent, whys))[len(lost):]:  # the bus is hidden
                self.warnings.append(why)
                self._wait(f"GPU {number}", "", why)
        whys += [gpu.unread for gpu in gpus if gpu.unread]
        if whys and (self.request.state == "gathered" or not gpus):
            raise DeviceError(whys[0], UNREAD)
        return sorted(gpus, key=lambda gpu: gpu.pci)

    def _ask_or_leave(self, device: Device) -> planning.Gpu:
        try:
            return self._ask(device, device.number)
        except DeviceError as error:
            if error.details.get("name") not in _FAULTY:
                raise
            del self._devices[device.pci]
            return self._left_out(device.number, device.pci, device.device_id, device.subsystem, str(error))

    def _wait(self, target: str, reason: str, why: str) -> None:
        self._waiting.append({**Step(CONFIGURE, target, reason).as_dict(), "pending_reason": why})

    def _left_out(self, number: int, pci: str, device_id: str, subsystem: str, why: str) -> planning.Gpu:
        self.warnings.append(f"GPU {pci}: its MIG state is unknown, so nothing is planned for it. {why}")
        gpu = self._assume(number, pci, device_id, subsystem)
        gpu.unread = why
        self.unread.add(pci)
        return gpu

    def _ask(self, device: Device, number: int) -> planning.Gpu:
        self._devices[device.pci] = device
        mode = self.nvml.mode(device)
        profiles = self.nvml.profiles(device) if mode else []
        uuid = self._uuid(device.pci) if self._by_uuid() else ""
        gpu = planning.Gpu(self._target(number, device.pci, device.device_id, device.subsystem, profiles, uuid),
                           self._board(device.board, profiles), mode or (False, False))
        if self.request.after_reload and self.request.check:
            gpu.mode, gpu.assumed = (gpu.mode[1] and self._keeps_mode(gpu),) * 2, True
        elif gpu.mode[0]:
            gpu.layout = layout_of(self.nvml.instances(device))
        return gpu

    @staticmethod
    def _keeps_mode(gpu: planning.Gpu) -> bool:
        """Whether a GPU keeps MIG mode without a driver: only Ampere (MIG User Guide, "MIG Mode Persistence")."""
        model = model_of(gpu.target.device_id, gpu.target.subsystem)
        return model is not None and model.architecture == "ampere"

    def _assume(self, number: int, pci: str, device_id: str, subsystem: str) -> planning.Gpu:
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards

        model = model_of(device_id, subsystem)
        capable = model is None or model.mig_capable
        profiles = boards.profiles_of(device_id) if capable else []
        gpu = planning.Gpu(self._target(number, pci, device_id, subsystem, profiles),
                           self._board(device_id, profiles or []) if profiles is not None else None, (False, False),
                           assumed=True)
        if self.request.state != "rendered" and self._keeps_mode(gpu):
            gpu.mode = (self._was_enabled(pci),) * 2
        return gpu

    def _was_enabled(self, pci: str) -> bool:
        """Whether MIG was on after the last run, according to the file for the next boot."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import read_mig_boot

        kept = read_mig_boot(self.root)["gpus"] or {}
        return any(entry["pci"] == pci and entry["enabled"] for entry in kept.values())

    def _board(self, key: str, profiles: t.Sequence[Profile]) -> Board:
        return self._boards.setdefault(key, Board(profiles))

    @staticmethod
    def _target(number: int, pci: str, device_id: str, subsystem: str, profiles: t.Sequence[Profile] | None,
                uuid: str = "") -> profile_names.Target:
        model = model_of(device_id, subsystem)
        return profile_names.Target(
            pci, number, device_id, subsystem, (model and model.name) or device_id, profiles, uuid)

    def _by_uuid(self) -> bool:
        """Whether options name GPUs by UUID. Reading the UUIDs takes a call for each GPU."""
        words = [*(self.request.devices or ()), *(word for entry in self._entries or () for word in entry.words or ())]
        return any(profile_names.names_uuid(word) for word in words)

    def _uuid(self, pci: str) -> str:
        if pci not in self._uuids:
            self._uuids[pci] = self.nvml.uuid(self._devices[pci])
        return self._uuids[pci]

    # -- the desired state

    def _goals(self, gpus: list[planning.Gpu]) -> list[tuple[planning.Gpu, planning.Goal]]:
        """The configured GPUs with their goals. Raises InputError and HostError, before any change."""
        if not gpus:
            raise HostError("This host has no NVIDIA GPU.", "Remove it from the group, or check lspci -d 10de:.")
        asks = self.request.state == "present" and not self.request.check and not self.nvml.available
        if asks and not all(gpu.unread for gpu in gpus):
            raise HostError(f"MIG cannot be configured: {self.nvml.error or 'the NVIDIA driver is not installed.'}",
                            "Install and load the driver first (gpuops.nvidia.nvidia_driver).")
        chosen = self._chosen(gpus)
        if self.request.checkpoint is not None:
            return [pair for pair in self._checkpointed(gpus) if pair[0].pci in chosen]
        targets = [gpu.target for gpu in gpus]
        wishes = self._resolve(targets, chosen)
        if not wishes:
            models = ", ".join(sorted({target.model for target in targets if target.pci in chosen}))
            self.warnings.append(f"The configuration has no entry for the GPUs of this host ({models}) that can do MIG."
                                 if chosen else "The option devices selects no GPU of this host. UUIDs are known only "
                                 "once the driver runs.")
        goals = []
        for gpu in gpus:
            wish = wishes.get(gpu.pci)
            if wish is None:
                continue
            if gpu.unread:
                self._wait(gpu.pci, wish.path, gpu.unread)
                continue
            if wish.devices is None or gpu.board is None:
                self.warnings.append(f"GPU {gpu.pci} ({gpu.target.model}): its MIG profiles are known only once the "
                                     "driver runs, so its instances are not in the plan.")
            goals.append((gpu, planning.goal_of(gpu, wish)))
        return goals

    def _resolve(self, targets: list[profile_names.Target], chosen: set[str]) -> t.Mapping[str, profile_names.Wish]:
        if self._entries is None:
            return profile_names.generate(self.request.selected, [target for target in targets if target.pci in chosen])
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import config_file

        return config_file.resolve(self._entries, targets, chosen)

    def _checkpointed(self, gpus: list[planning.Gpu]) -> list[tuple[planning.Gpu, planning.Goal]]:
        """The GPUs in the checkpoint with their layouts there."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import checkpoint_file

        devices = checkpoint_file.read(self.request.checkpoint)
        if not self.nvml.available:
            self.warnings.append("UUIDs are known only once the driver runs, so the checkpoint is not in the plan.")
            return []
        by_uuid = {self._uuid(gpu.pci).lower(): gpu for gpu in gpus if not gpu.unread}
        for uuid, (path, _device) in devices.items():
            if uuid not in by_uuid:
                raise InputError(f"this host has no GPU {uuid}.", f"It has {', '.join(by_uuid)}.", path=f"{path}.UUID",
                                 value=uuid, allowed=list(by_uuid))
        return [(gpu, checkpoint_file.goal_of(gpu, *devices[uuid])) for uuid, gpu in by_uuid.items() if uuid in devices]

    def _chosen(self, gpus: list[planning.Gpu]) -> set[str]:
        """The PCI addresses of the GPUs in the option devices. With state rendered, it names models instead."""
        words = None if self.request.state == "rendered" else self.request.devices
        return profile_names.chosen(words, [gpu.target for gpu in gpus])

    def _former(self, journal: Journal) -> list[tuple[planning.Gpu, planning.Goal]]:
        entries = journal.of_kind("gpu")
        if not entries:
            return []
        if not self.nvml.available:
            raise HostError("The former MIG layout cannot be restored: "
                            f"{self.nvml.error or 'the NVIDIA driver is not installed.'}",
                            "Load the driver, or delete /var/lib/gpuops/journal/mig.json to keep the current layout.")
        goals = []
        gpus = self._read()
        by_uuid = {self._uuid(gpu.pci).lower(): gpu for gpu in gpus if not gpu.unread}
        silent = bool(self.nvml.silent) or any(gpu.unread for gpu in gpus)
        for uuid, entry in entries.items():
            gpu = by_uuid.get(uuid)
            if gpu is not None:
                goals.append((gpu, planning.unshape(gpu, entry["before"], journal.path)))
                continue
            if silent:
                self.warnings.append(f"GPU {uuid} does not answer: its former layout stays in the journal.")
                continue
            self.warnings.append(f"GPU {uuid} is not in this host any more: its former layout is forgotten.")
            if not self.request.check:
                journal.forget("gpu", uuid)
        return goals

    # -- execution

    def _reach(self, goals: list[tuple[planning.Gpu, planning.Goal]], journal: Journal) -> planning.Result:
        plans = self.plans = [self._steps(gpu, goal) for gpu, goal in goals]
        steps = [step for plan in plans for step in plan.steps]
        stopped = [unit for step in steps if step.action == planning.STOP for unit in step.data["units"]]
        # Including those that a killed run has stopped; the last one is started first.
        starts = [Step(planning.START, unit, "it was stopped while MIG changes")
                  for unit in reversed(list(dict.fromkeys([*journal.of_kind("paused"), *stopped])))]
        if not self.request.check and (steps or journal.entries):
            plans = self.plans = self._carry_out(plans, starts, journal)
            steps = [step for plan in plans for step in plan.steps]
        result = self._result(plans, [*steps, *starts])
        if self.request.state == "absent" and not self.request.check:
            journal.unfinished = None  # this run has repeated the last step of a killed run
            for plan in plans:
                if not plan.pending:
                    journal.forget("gpu", self._uuid(plan.gpu.pci).lower())
        return result

    def _carry_out(self, plans: list[planning.GpuPlan], starts: list[Step], journal: Journal
                   ) -> list[planning.GpuPlan]:
        """Changes the GPUs, checks them, refreshes CDI specifications, and then starts the stopped services.

        Returns the plans that were carried out: the steps of a GPU that a process has come to use are pending.
        """
        from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import UNIT
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.apply import Executor
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import Pauses

        former, new = {}, set()
        for plan in plans:
            gpu = plan.gpu
            if plan.steps:
                uuid = self._uuid(gpu.pci).lower()
                if journal.get("gpu", uuid) is None:
                    new.add(gpu.pci)
                journal.keep("gpu", uuid, gpu.as_dict())
                journal.note("gpu", uuid, planning.shape(plan.goal.enabled, plan.goal.layout))
                former[gpu.pci] = (self._devices[gpu.pci], gpu.mode[0], gpu.layout)
        pauses = Pauses(self.command, journal)
        executor = Executor(self.nvml, pauses, self.root, former)
        try:
            if former:
                journal.keep("cdi", UNIT, None)
                plans = [self._change(plan, executor, journal, plan.gpu.pci in new) for plan in plans]
                self._devices.update(executor.devices)
                self._prove([plan for plan in plans if plan.steps and not plan.pending])
            if journal.get("cdi", UNIT) is not None:
                self._refresh_cdi(journal)
            apply(starts, executor, journal)
        finally:
            pauses.start_all()
        return plans

    def _change(self, plan: planning.GpuPlan, executor: t.Callable[[Step], None], journal: Journal, new: bool
                ) -> planning.GpuPlan:
        """Changes one GPU. Returns its plan as it was carried out. new: whether the journal has it for this run."""
        try:
            apply(plan.steps, executor, journal)
        except InUse as error:
            journal.done(plan.steps[0])  # whichever it was, it was taken back
            if new:
                journal.forget("gpu", self._uuid(plan.gpu.pci).lower())
            plan.gpu.holders = error.details["holders"]
            return planning.held_up(plan, error.message)
        return plan

    def _refresh_cdi(self, journal: Journal) -> None:
        """Refreshes the CDI specifications, by which containers get MIG devices. Pending since the first change."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi

        if os.path.exists(_cdi.UNIT_FILE) and not _cdi.refresh(self.command):
            self.warnings.append(f"{_cdi.UNIT} has failed: containers may not get the current MIG devices. "
                                 f"See journalctl -u {_cdi.UNIT}.")
        journal.forget("cdi", _cdi.UNIT)

    def _steps(self, gpu: planning.Gpu, goal: planning.Goal) -> planning.GpuPlan:
        """The plan of a GPU. GPU clients are read only if it disturbs them; busy instances are kept if possible."""
        services: tuple[str, ...] = ()
        if not gpu.assumed and planning.disturbs(gpu, goal):
            from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
            from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import read_holders

            device = self._devices[gpu.pci]
            instances = self.nvml.instances(device) if gpu.mode[0] else []
            # A change of the mode can need a reset, which any process with the GPU open blocks.
            files = gpu.mode != (goal.enabled, goal.enabled)
            gpu.holders = read_holders(self.root, self.nvml, device, instances, files)
            if gpu.holders:
                gpu.layout = tuple(planning.busy(piece, gpu.holders) for piece in gpu.layout)
                services = stoppable(self.root, [holder.as_client() for holder in gpu.holders])
                goal = self._again(gpu, goal)
        return planning.plan(gpu, goal, self.request.level, services, self.request.create)

    @property
    def _fixed(self) -> bool:
        """Whether the goal has fixed placements, because a layout is restored."""
        return self.request.state == "absent" or self.request.checkpoint is not None

    def _again(self, gpu: planning.Gpu, goal: planning.Goal) -> planning.Goal:
        """The goal with placements that keep busy instances, unless its placements are fixed."""
        if self._fixed or not goal.enabled or gpu.board is None:
            return goal
        devices = collections.Counter((piece.profile, part[0]) for piece in goal.layout for part in piece.parts)
        layout = gpu.board.target(gpu.layout, devices)
        return goal if layout is None else goal._replace(layout=layout)

    def _prove(self, plans: list[planning.GpuPlan]) -> None:
        """Reads the changed GPUs again. Raises HostError if one does not have the planned layout."""
        for plan in plans:
            gpu = self._ask(self._devices[plan.gpu.pci], plan.gpu.target.number)
            if gpu.as_dict() != planning.shape(plan.goal.enabled, plan.goal.layout):
                raise HostError(f"GPU {gpu.pci} is not as planned: {planning.text(gpu).strip()}.",
                                "Somebody has changed it during the run: run again.")

    # -- results

    def _result(self, plans: list[planning.GpuPlan], steps: list[Step]) -> planning.Result:
        done = [plan for plan in plans if not plan.pending]
        moving = [plan for plan in done if plan.steps]
        diff = [diff_entry("MIG", "".join(planning.text(plan.gpu) for plan in moving),
                           "".join(planning.text(plan.gpu, plan.goal) for plan in moving))] if moving else []
        return outcome(
            steps, [*(step for plan in plans for step in plan.pending), *self._waiting],
            [*diff, *plan_diff("mig_config", steps)],
            before={plan.gpu.pci: plan.gpu.as_dict() for plan in plans},
            after={plan.gpu.pci: planning.shape(plan.goal.enabled, plan.goal.layout) if plan in done else
                   plan.gpu.as_dict() for plan in plans},
            kept=[item for plan in plans for item in planning.moved(plan.gpu, plan.change.kept)],
            created=[item for plan in done for item in planning.moved(plan.gpu, plan.change.created)],
            holders=[holder.as_client() for plan in plans for holder in plan.gpu.holders],
            destroyed=[item for plan in done for item in planning.moved(plan.gpu, plan.change.destroyed)],
            touched=[plan.gpu.pci for plan in plans if plan.steps or plan.pending],
            in_free_space=[plan.gpu.pci for plan in plans
                           if plan.change.created and not planning.disturbs(plan.gpu, plan.goal)],
            reset_required=[plan.gpu.pci for plan in plans if plan.pending and plan.gpu.mode[0] != plan.gpu.mode[1]])
