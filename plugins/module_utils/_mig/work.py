# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of mig_config: read, plan, gate, apply, read again. PRIVATE to the collection.

Code that is only needed for changes is imported where it is used, because a host compiles all that is imported.
"""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    DeviceError,
    HostError,
    InputError,
    InUse,
    RebootNeeded,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import planning, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board, devices_of, layout_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import MISCOUNTED, Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Step,
    allows,
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

# The pending step for a GPU that cannot be read.
CONFIGURE = "configure MIG"
# Entries of the journal: a mode that a run has left pending for a reboot, by UUID, with the boot in which it did.
_REBOOT = "reboot"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# NVML's errors for a faulty GPU. For other errors, the run fails.
_FAULTY = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "TIMEOUT", "IRQ_ISSUE", "UNKNOWN")
UNREAD = ("Check dmesg | grep -i nvrm. Reset the GPU while nothing uses it (nvidia-smi -r -i INDEX), or reboot the "
          "host.")


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


class MigRun:
    """A run of mig_config with the state present or absent, which may change GPUs."""

    def __init__(self, request: Request, nvml: Nvml) -> None:
        self.request = request
        self.nvml = nvml
        self._asks = request.state == "present" and not request.check
        self.warnings: list[str] = []
        self.root = Root()
        self._boards: dict[tuple[Profile, ...], Board] = {}  # a Board caches layouts
        self._devices: dict[str, Device] = {}
        self.command: Runner = run
        self.plans: list[planning.GpuPlan] = []
        self._uuids: dict[str, str] = {}
        self.unread: set[str] = set()
        self._waiting: list[PendingStep] = []
        self._entries: t.Sequence[Entry] | None = None

    def run(self) -> planning.Result:
        """The result of the module."""
        self._read_config()
        if self.request.state == "absent" and self.request.devices is not None:
            raise InputError("the option cannot be used with state absent, which restores all changed GPUs.",
                             "Omit devices, or use state present with another layout for these GPUs.", path="devices",
                             value=list(self.request.devices))
        with Journal("mig", readonly=self.request.check) as journal:
            if self.request.state == "absent":
                return self._apply_goals(self._former(journal), journal)
            return self._apply_goals(self._goals(self._read()), journal)

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
        for number, function in enumerate(gpu for gpu in self._bus() if gpu.driver != "vfio-pci"):
            what = number, function.address, function.device, function.subsystem or ""
            # If a loaded driver does not answer, the state of the GPU can differ from that in the device tables.
            known = not self._asks and function.driver != "nvidia" or self.request.after_reload and self.request.check
            gpus.append(self._assume(*what) if known else self._unreadable_gpu(
                *what, self.nvml.error or "The NVIDIA driver is not installed."))
        return gpus

    def _bus(self) -> t.Sequence[Function]:
        from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import read_bus

        return read_bus(self.root).gpus

    def _read_by_nvml(self) -> list[planning.Gpu]:
        """All GPUs. Raises DeviceError if none can be read, or with gathered if one cannot be read."""
        gpus = [self._try_read_gpu(device) for device in self.nvml.devices()]
        for gpu in gpus:
            if not gpu.told:  # an equal GPU that was read later may have told its profiles
                self._infer_profiles(gpu)
        whys = [f"GPU {number} does not answer: {why}." for number, why in self.nvml.silent]
        if whys:
            known = {gpu.pci for gpu in gpus}
            # NVML reports only the number of such a GPU. Its address is one of those that NVML does not report.
            lost = [gpu for gpu in self._bus() if gpu.driver == "nvidia" and gpu.address not in known]
            gpus += [self._unreadable_gpu(number, gpu.address, gpu.device, gpu.subsystem or "", why)
                     for (number, _name), gpu, why in zip(self.nvml.silent, lost, whys)]
            for (number, _name), why in list(zip(self.nvml.silent, whys))[len(lost):]:  # the bus is hidden
                self.warnings.append(why)
                self._wait(f"GPU {number}", "", why)
        whys += [gpu.unread for gpu in gpus if gpu.unread]
        if whys and (self.request.state == "gathered" or not gpus):
            raise DeviceError(whys[0], UNREAD)
        return sorted(gpus, key=lambda gpu: gpu.pci)

    def _try_read_gpu(self, device: Device) -> planning.Gpu:
        try:
            return self._read_gpu(device, device.number)
        except DeviceError as error:
            if error.details.get("name") not in _FAULTY:
                raise
            del self._devices[device.pci]
            return self._unreadable_gpu(device.number, device.pci, device.device_id, device.subsystem, str(error))

    def _wait(self, target: str, reason: str, why: str) -> None:
        self._waiting.append(Step(CONFIGURE, target, reason).pending(why))

    def _wait_for(self, gpus: list[planning.Gpu], reason: str) -> list[t.Any]:
        """Makes the GPUs that cannot be read pending. Returns no goals."""
        for gpu in gpus:
            if gpu.unread and gpu.target.profiles != []:
                self._wait(gpu.pci, reason, gpu.unread)
        return []

    def _unreadable_gpu(self, number: int, pci: str, device_id: str, subsystem: str, why: str) -> planning.Gpu:
        self.warnings.append(f"The MIG state of GPU {pci} is unknown, so nothing is planned for this GPU. {why}")
        gpu = self._assume(number, pci, device_id, subsystem)
        gpu.unread = why
        self.unread.add(pci)
        return gpu

    def _read_gpu(self, device: Device, number: int) -> planning.Gpu:
        self._devices[device.pci] = device
        mode = self.nvml.mode(device)
        profiles = self._told(device, self.nvml.profiles(device, mode[0])) if mode else []
        uuid = self._uuid(device.pci) if self._by_uuid() else ""
        gpu = planning.Gpu(self._target(number, device.pci, device.device_id, device.subsystem, profiles, uuid),
                           self._board(profiles), mode or (False, False))
        if mode and not mode[0] and not profiles:
            self._infer_profiles(gpu)
        if self.request.after_reload and self.request.check:
            gpu.mode, gpu.assumed = (gpu.mode[1] and self._keeps_mode(gpu),) * 2, True
        elif gpu.mode[0]:
            gpu.layout = layout_of(self.nvml.instances(device))
        return gpu

    def _infer_profiles(self, gpu: planning.Gpu) -> None:
        """Sets the profiles of a GPU that does not tell them, because MIG is off and the driver is older than R550.

        They are those of an equal GPU with MIG on, otherwise those of the table of the model, None if it has no table.
        """
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards

        device = self._devices[gpu.pci]
        told = self._told(device, self.nvml.told_by_equal(device))
        profiles = told or boards.profiles_of(device.device_id)
        gpu.target = gpu.target._replace(profiles=profiles)
        gpu.board, gpu.told = self._board(profiles) if profiles else None, bool(told)

    @staticmethod
    def _told(device: Device, profiles: list[Profile]) -> list[Profile]:
        """The profiles that NVML reports for a GPU, with the right numbers of instances."""
        if device.device_id not in MISCOUNTED:
            return profiles
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards

        return boards.with_counts(device.device_id, profiles)

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
                           self._board(profiles) if profiles is not None else None, (False, False),
                           assumed=True)
        if self.request.state != "rendered" and self._keeps_mode(gpu):
            gpu.mode = (self._was_enabled(pci),) * 2
        return gpu

    def _was_enabled(self, pci: str) -> bool:
        """Whether MIG was enabled after the last run, according to the file for the next boot."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import read_mig_boot

        kept = read_mig_boot(self.root)["gpus"] or {}
        return any(entry["pci"] == pci and entry["enabled"] for entry in kept.values())

    def _board(self, profiles: t.Sequence[Profile]) -> Board:
        return self._boards.setdefault(tuple(profiles), Board(profiles))

    @staticmethod
    def _target(number: int, pci: str, device_id: str, subsystem: str, profiles: t.Sequence[Profile] | None,
                uuid: str = "") -> profile_names.Target:
        model = model_of(device_id, subsystem)
        return profile_names.Target(
            pci, number, device_id, subsystem, (model and model.name) or device_id, profiles, uuid)

    def _by_uuid(self) -> bool:
        """Whether options name GPUs by UUID. Otherwise the UUIDs are not read, which needs a call for each GPU."""
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
            raise HostError("This host has no NVIDIA GPU.", "Remove the host from the group, or check lspci -d 10de:.")
        chosen = self._chosen(gpus)
        if self.request.checkpoint is not None:
            return [pair for pair in self._checkpointed(gpus) if pair[0].pci in chosen]
        if self._entries is None and self.request.selected not in ("all-disabled", "all-enabled"):
            for gpu in gpus:
                if gpu.pci in chosen and planning.hidden(gpu):
                    raise planning.hidden_profiles(gpu, "selected")
        targets = [gpu.target for gpu in gpus]
        desired_devices = self._resolve(targets, chosen)
        if not desired_devices:
            models = ", ".join(sorted({target.model for target in targets if target.pci in chosen}))
            self.warnings.append(f"The configuration has no entry for a GPU of this host that supports MIG ({models})."
                                 if chosen else "The option devices selects no GPU of this host. UUIDs are unknown "
                                 "while the driver does not run.")
            if self._by_uuid():
                return self._wait_for(gpus, "devices")
        goals = []
        for gpu in gpus:
            desired = desired_devices.get(gpu.pci)
            if desired is None:
                continue
            if gpu.unread:
                self._wait(gpu.pci, desired.path, gpu.unread)
                continue
            if desired.devices is None and planning.hidden(gpu):
                raise planning.hidden_profiles(gpu, desired.path)
            if (desired.devices is None or gpu.board is None) and not planning.hidden(gpu):
                self.warnings.append(f"The MIG profiles of GPU {gpu.pci} ({gpu.target.model}) are unknown while the "
                                     "driver does not run, so its instances are not in the plan.")
            goals.append((gpu, planning.goal_of(gpu, desired)))
        return goals

    def _resolve(self, targets: list[profile_names.Target], chosen: set[str]
                 ) -> t.Mapping[str, profile_names.DesiredDevices]:
        if self._entries is None:
            return profile_names.generate(self.request.selected, [target for target in targets if target.pci in chosen])
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import config_file

        return config_file.resolve(self._entries, targets, chosen)

    def _checkpointed(self, gpus: list[planning.Gpu]) -> list[tuple[planning.Gpu, planning.Goal]]:
        """The GPUs of the checkpoint, each with the goal to have its layout there. Raises InputError."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import checkpoint_file

        devices = checkpoint_file.read(self.request.checkpoint)
        if not self.nvml.available:
            self.warnings.append("UUIDs are unknown while the driver does not run, so the checkpoint is not planned.")
            return self._wait_for(gpus, "checkpoint")
        by_uuid = {self._uuid(gpu.pci).lower(): gpu for gpu in gpus if not gpu.unread}
        for uuid, (path, _device) in devices.items():
            if uuid not in by_uuid:
                raise InputError(f"this host has no GPU {uuid}.", f"It has {', '.join(by_uuid)}.", path=f"{path}.UUID",
                                 value=uuid, allowed=list(by_uuid))
        return [(gpu, checkpoint_file.goal_of(gpu, *devices[uuid])) for uuid, gpu in by_uuid.items() if uuid in devices]

    def _chosen(self, gpus: list[planning.Gpu]) -> set[str]:
        """The PCI addresses of the GPUs in the option devices. All GPUs with state rendered, where it names models."""
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
                goals.append((gpu, planning.goal_from_json(gpu, entry["before"], journal.path)))
                continue
            if silent:
                self.warnings.append(f"GPU {uuid} does not answer, so its former layout is not restored. A later run "
                                     "can restore it.")
                continue
            self.warnings.append(f"GPU {uuid} is not in this host any more, so its former layout is deleted from the "
                                 "journal.")
            if not self.request.check:
                journal.forget("gpu", uuid)
        return goals

    # -- execution

    def _apply_goals(self, goals: list[tuple[planning.Gpu, planning.Goal]], journal: Journal) -> planning.Result:
        plans = self.plans = [self._steps(gpu, goal, journal) for gpu, goal in goals]
        steps = [step for plan in plans for step in plan.steps]
        stopped = [unit for step in steps if step.action == planning.STOP for unit in step.data["units"]]
        # Including units that a killed run has stopped; the last stopped unit is started first.
        starts = [Step(planning.START, unit, "it is stopped for the change")
                  for unit in reversed(list(dict.fromkeys([*journal.of_kind("paused"), *stopped])))]
        if not self.request.check and (steps or journal.entries):
            if journal.of_kind(_REBOOT):
                for plan in plans:  # a reset ends the handles by which UUIDs are read
                    self._uuid(plan.gpu.pci)
            plans = self.plans = self._change_gpus(plans, starts, journal)
            steps = [step for plan in plans for step in plan.steps]
            self._forget_reboots(plans, journal)
        result = self._result(plans, [*steps, *starts])
        if self.request.state == "absent" and not self.request.check:
            journal.unfinished = None  # this run has repeated the last step of a killed run
            for plan in plans:
                if not plan.pending:
                    journal.forget("gpu", self._uuid(plan.gpu.pci).lower())
        return result

    def _change_gpus(self, plans: list[planning.GpuPlan], starts: list[Step], journal: Journal
                     ) -> list[planning.GpuPlan]:
        """Changes and checks the GPUs, refreshes CDI specifications, then starts the stopped services. Returns the
        executed plans. The steps for a GPU that a process has opened meanwhile are pending."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import UNIT
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.apply import Executor
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.clients import forget_locks
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.holders import Pauses

        former, new, switched = {}, set(), False
        for plan in plans:
            gpu = plan.gpu
            if plan.steps:
                uuid = self._uuid(gpu.pci).lower()
                if journal.get("gpu", uuid) is None:
                    new.add(gpu.pci)
                journal.keep("gpu", uuid, gpu.as_dict())
                journal.note("gpu", uuid, planning.layout_json(plan.goal.enabled, plan.goal.layout))
                former[gpu.pci] = (self._devices[gpu.pci], gpu.mode[0], gpu.layout)
                if gpu.mode[0] != plan.goal.enabled:
                    switched = True
                    forget_locks(uuid)
        pauses = Pauses(self.command, journal)
        executor = Executor(self.nvml, pauses, self.root, former, allows(self.request.level, "reboot"))
        try:
            if former:
                journal.keep("cdi", UNIT, None)
                plans = [self._change(plan, executor, journal, plan.gpu.pci in new) for plan in plans]
                self._devices.update(executor.devices)
                self._check_result([plan for plan in plans if plan.steps and not plan.pending])
            if switched:
                self._set_again()
            if journal.get("cdi", UNIT) is not None:
                self._refresh_cdi(journal)
            apply(starts, executor, journal)
        finally:
            pauses.start_all()
        return plans

    def _change(self, plan: planning.GpuPlan, executor: t.Callable[[Step], None], journal: Journal, new: bool
                ) -> planning.GpuPlan:
        """Changes one GPU. Returns its plan as executed. new: whether this run added the GPU to the journal."""
        try:
            apply(plan.steps, executor, journal)
        except InUse as error:
            journal.done(plan.steps[0])  # the unfinished step was undone
            if new:
                journal.forget("gpu", self._uuid(plan.gpu.pci).lower())
            plan.gpu.holders = error.details["holders"]
            return planning.block(plan, error.message)
        except RebootNeeded:
            uuid = self._uuid(plan.gpu.pci).lower()
            journal.done(plan.steps[0])  # the unfinished step has set the mode
            journal.forget(_REBOOT, uuid)
            journal.keep(_REBOOT, uuid, self.root.text(_BOOT_ID))
            return planning.wait_for_reboot(plan)
        return plan

    def _waits_for_reboot(self, gpu: planning.Gpu, goal: planning.Goal, journal: Journal) -> bool:
        """Whether a run has left the mode of the goal pending since the last boot, so that only a reboot is missing."""
        if gpu.assumed or gpu.mode != (not goal.enabled, goal.enabled) or not journal.of_kind(_REBOOT):
            return False
        entry = journal.get(_REBOOT, self._uuid(gpu.pci).lower())
        return (entry is not None and entry["before"] == self.root.text(_BOOT_ID) and not gpu.layout
                and allows(self.request.level, "reboot") and self.request.create)

    def _forget_reboots(self, plans: list[planning.GpuPlan], journal: Journal) -> None:
        """Deletes the records of modes that wait for a reboot no longer. With absent also those of missing GPUs."""
        entries = journal.of_kind(_REBOOT)
        if entries:
            waiting = {self._uuids[plan.gpu.pci].lower(): plan.waits for plan in plans if plan.gpu.pci in self._uuids}
            for uuid in entries:
                if not waiting.get(uuid, self.request.state != "absent"):
                    journal.forget(_REBOOT, uuid)

    def _set_again(self) -> None:
        """Applies the settings of gpu_settings again, which GPUs forget in a reset."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import clients

        self.warnings += clients.set_again(self.command)

    def _refresh_cdi(self, journal: Journal) -> None:
        """Refreshes the CDI specifications, from which containers learn the MIG devices."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi

        if os.path.exists(_cdi.UNIT_FILE) and not _cdi.refresh(self.command):
            self.warnings.append(f"{_cdi.UNIT} has failed, so containers may not get the current MIG devices. "
                                 f"For the cause: journalctl -u {_cdi.UNIT}")
        journal.forget("cdi", _cdi.UNIT)

    def _steps(self, gpu: planning.Gpu, goal: planning.Goal, journal: Journal) -> planning.GpuPlan:
        """The plan of a GPU, which keeps busy instances if possible. Reads GPU clients only if the plan needs them."""
        if self._waits_for_reboot(gpu, goal, journal):
            return planning.wait_for_reboot(planning.plan(gpu, goal, self.request.level))
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
                gpu.layout = tuple(planning.busy(placement, gpu.holders) for placement in gpu.layout)
                services = stoppable(self.root, [holder.as_client() for holder in gpu.holders])
                goal = self._keep_busy(gpu, goal)
        return planning.plan(gpu, goal, self.request.level, services, self.request.create)

    @property
    def _has_fixed_placements(self) -> bool:
        """Whether the goal has fixed placements, because a layout is restored."""
        return self.request.state == "absent" or self.request.checkpoint is not None

    def _keep_busy(self, gpu: planning.Gpu, goal: planning.Goal) -> planning.Goal:
        """The goal with placements that keep busy instances, unless its placements are fixed."""
        if self._has_fixed_placements or not goal.enabled or gpu.board is None:
            return goal
        layout = gpu.board.target(gpu.layout, devices_of(goal.layout))
        return goal if layout is None else goal._replace(layout=layout)

    def _check_result(self, plans: list[planning.GpuPlan]) -> None:
        """Reads the changed GPUs again. Raises HostError if one of them does not have the planned layout."""
        for plan in plans:
            gpu = self._read_gpu(self._devices[plan.gpu.pci], plan.gpu.target.number)
            if gpu.as_dict() != planning.layout_json(plan.goal.enabled, plan.goal.layout):
                raise HostError(f"GPU {gpu.pci} does not have the planned layout, but {planning.text(gpu).strip()}.",
                                "Check whether another program changes MIG, then run again.")

    # -- results

    def _result(self, plans: list[planning.GpuPlan], steps: list[Step]) -> planning.Result:
        done = [plan for plan in plans if not plan.pending]
        moved = [plan for plan in plans if plan in done or plan.waits]
        moving = [plan for plan in moved if plan.steps]
        before = "".join(planning.text(plan.gpu) for plan in moving)
        after = "".join(planning.text_waiting(plan) if plan.waits else planning.text(plan.gpu, plan.goal)
                        for plan in moving)
        diff = [diff_entry("MIG", before, after)] if moving else []
        return outcome(
            steps, [*(step for plan in plans for step in plan.pending), *self._waiting],
            [*diff, *plan_diff("mig_config", steps)],
            before={plan.gpu.pci: plan.gpu.as_dict() for plan in plans},
            after={plan.gpu.pci: planning.layout_json(plan.gpu.mode[0], ()) if plan.waits else
                   planning.layout_json(plan.goal.enabled, plan.goal.layout) if plan in done else
                   plan.gpu.as_dict() for plan in plans},
            kept=[item for plan in plans for item in planning.devices_json(plan.gpu, plan.change.kept)],
            created=[item for plan in done for item in planning.devices_json(plan.gpu, plan.change.created)],
            holders=[holder.as_client() for plan in plans for holder in plan.gpu.holders],
            destroyed=[item for plan in moved for item in planning.devices_json(plan.gpu, plan.change.destroyed)],
            touched=[plan.gpu.pci for plan in plans if plan.steps or plan.pending],
            in_free_space=[plan.gpu.pci for plan in plans
                           if plan.change.created and not planning.disturbs(plan.gpu, plan.goal)],
            reset_required=[plan.gpu.pci for plan in plans
                            if plan.waits or plan.pending and plan.gpu.mode[0] != plan.gpu.mode[1]],
            reboot_required=any(plan.waits for plan in plans))
