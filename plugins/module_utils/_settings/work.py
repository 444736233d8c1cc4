# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of gpu_settings: read, plan, gate, apply, read again. PRIVATE to the collection.

The journal has an entry of the kind C(setting) for each setting of a GPU that a run has changed. NVML cannot read
locked clocks. A lock counts as set as long as the driver that was loaded when it was set is loaded (kind C(locked)).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import Target
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    apply,
    diff_entry,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, run
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import declared, planning
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.declared import (
    APPLICATIONS,
    COMPUTE_MODE,
    LOCKS,
    PERSISTENCE,
    POWER_LIMIT,
    Value,
    Wanted,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.device import SettingsNvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.planning import Change, Gpu

CONCERN = "gpu_settings"
# The pending step for a GPU that cannot be read, whose steps are unknown.
CONFIGURE = "set GPU settings"
# The pending step for former settings while no GPU can be read, so that its steps are unknown.
RESTORE = "restore GPU settings"
# Kinds of entries of the journal, both by C(UUID/setting).
_SETTING, _LOCKED = "setting", "locked"
_BOOT_ID, _MODULE = "/proc/sys/kernel/random/boot_id", "/sys/module/nvidia"
_UNREAD = ("Check dmesg | grep -i nvrm. Reset the GPU while nothing uses it (nvidia-smi -r -i INDEX), or reboot the "
           "host.")


class Request(t.NamedTuple):
    """The options of the module. entries: the declaration, which is not checked yet. Only in check mode: files_before,
    paths of files that an earlier task of the play installs."""

    state: str
    entries: object
    level: str
    check: bool
    files_before: t.Sequence[str] = ()


class GpuPlan(t.NamedTuple):
    """The plan of a GPU. wanted: its declared settings; steps, pending: for its changes; changes: those of steps."""

    gpu: Gpu
    wanted: t.Mapping[str, Wanted]
    changes: t.Sequence[Change]
    steps: t.Sequence[Step]
    pending: t.Sequence[PendingStep]


class SettingsRun:
    """A run of gpu_settings, also one that only reads."""

    def __init__(self, request: Request, nvml: SettingsNvml) -> None:
        self.request = request
        self.nvml = nvml
        self.root = Root()
        self.command: Runner = run
        self.warnings: list[str] = []
        self.plans: list[GpuPlan] = []
        self.waiting: list[PendingStep] = []
        self.unread = False
        self._devices: dict[str, Device] = {}

    def run(self) -> Result:
        """The result of the module. Raises GpuopsError."""
        entries = declared.parse(self.request.entries) if self.request.state == "present" else []
        with Journal(CONCERN, readonly=self.request.check or self.request.state == "gathered") as journal:
            if self.request.state == "gathered":
                return self._gathered(journal)
            if not entries and not journal.entries:
                return self._result()
            if not entries and not self.nvml.available:
                return self._restore_later(journal)
            return self.reach(entries, self.read(journal), journal)

    def _restore_later(self, journal: Journal) -> Result:
        if self.request.state == "absent":
            raise HostError("The former settings cannot be restored: "
                            f"{self.nvml.error or 'the NVIDIA driver is not installed.'}",
                            f"Load the driver, or delete {journal.path} to keep the current settings.")
        self.waiting.append(Step(RESTORE, "this host", "no setting is declared").pending(self.no_driver()))
        return self._result()

    def no_driver(self) -> str:
        """Why settings have to wait if NVML does not answer. In site, the driver may wait for a reboot."""
        error = self.nvml.error or ""
        if "DRIVER_NOT_LOADED" in error:
            return "the driver is not loaded yet"
        return f"the driver does not answer: {error.rstrip('.')}" if error else "the NVIDIA driver is not installed"

    # -- reading

    def read(self, journal: Journal) -> list[Gpu]:
        """The GPUs of the host by PCI address. Without a driver, from the PCI bus, with assumed."""
        if not self.nvml.available:
            from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import read_bus

            functions = [one for one in read_bus(self.root).gpus if one.driver != "vfio-pci"]
            return [Gpu(_target(number, one.address, one.device, one.subsystem or ""), assumed=True)
                    for number, one in enumerate(functions)]
        gpus = []
        for device in self.nvml.devices():
            try:
                gpus.append(self.read_gpu(device, journal))
            except DeviceError as error:
                if error.details.get("name") == "NO_PERMISSION":
                    raise
                self._leave_out(device.pci, str(error))
        for number, name in self.nvml.silent:
            self._leave_out(f"GPU {number}", name)
        if self.unread and (not gpus or self.request.state == "gathered"):
            raise DeviceError(self.waiting[0].pending_reason, _UNREAD)
        return gpus

    def _leave_out(self, target: str, why: str) -> None:
        self.unread = True
        self.warnings.append(f"{target} does not answer, so nothing is planned for it: {why}")
        self.waiting.append(Step(CONFIGURE, target).pending(f"it does not answer: {why}"))

    def read_gpu(self, device: Device, journal: Journal) -> Gpu:
        """A GPU with its settings. Raises DeviceError."""
        uuid = self.nvml.uuid(device)
        reading = self.nvml.read(device)
        self._devices[device.pci] = device
        for lock in LOCKS:
            entry = journal.get(_SETTING, _key(uuid, lock))
            mark = journal.get(_LOCKED, _key(uuid, lock))
            if entry is not None and mark is not None and mark["before"] == self._loaded() and lock in reading.values:
                reading.values[lock] = entry["after"]
        return Gpu(_target(device.number, device.pci, device.device_id, device.subsystem, uuid), reading.values,
                   reading.missing, reading.ecc_current)

    def _loaded(self) -> str:
        """What identifies the load of the driver: the boot, and the inode that sysfs has given to the module."""
        status = self.root.stat(_MODULE)
        return f"{self.root.text(_BOOT_ID)} {status.st_ino if status else 0}"

    def _read_limits(self, gpu: Gpu, wanted: t.Mapping[str, Wanted]) -> None:
        device = self._devices[gpu.pci]
        if POWER_LIMIT in wanted:
            gpu.limits.power = self.nvml.power_range(device)
        if APPLICATIONS in wanted or any(lock in wanted for lock in LOCKS):
            gpu.limits.graphics = {clock: self.nvml.graphics_clocks(device, clock)
                                   for clock in self.nvml.memory_clocks(device)}

    # -- planning

    def reach(self, entries: t.Sequence[declared.Entry], gpus: list[Gpu], journal: Journal) -> Result:
        """Makes the GPUs as declared; restores what is not declared any more. Without a driver, all steps of a run are
        pending. Raises GpuopsError."""
        self._plan(entries, gpus, journal)
        if not self.nvml.available and not self.request.check:
            why = self.no_driver()
            self.plans = [plan._replace(changes=[], steps=[],
                                        pending=[step.pending(why) for step in (*plan.steps, *plan.pending)])
                          for plan in self.plans]
            self.warnings.append(f"No setting is applied, because {why}. Install and load the driver (module "
                                 "nvidia_driver), or reboot if it waits for a reboot, then run again.")
        elif not self.request.check:
            self._change(journal)
        return self._result()

    def _plan(self, entries: t.Sequence[declared.Entry], gpus: list[Gpu], journal: Journal) -> None:
        """Sets L(plans). Checks all values on all GPUs, before anything is changed."""
        if not gpus:
            raise HostError("This host has no NVIDIA GPU.", "Remove the host from the group, or check lspci -d 10de:.")
        wanted = self._resolve(entries, gpus)
        notes = declared.near_misses(entries, [gpu.target for gpu in gpus])
        self.warnings += notes
        if entries and not wanted and not notes:
            self.warnings.append("No entry selects a GPU of this host "
                                 f"({', '.join(sorted({gpu.target.model for gpu in gpus}))}).")
        for gpu in gpus:
            kept, notes = planning.supported(gpu, wanted.get(gpu.pci, {}))
            wanted[gpu.pci] = kept
            self.warnings += notes
            if not gpu.assumed:
                self._read_limits(gpu, kept)
                planning.check(gpu, kept)
        for gpu in gpus:
            former = self._former(gpu, wanted[gpu.pci], journal)
            found = planning.changes(gpu, wanted[gpu.pci], former)
            if not gpu.assumed and any(one.setting == COMPUTE_MODE and one.after != "default" for one in found):
                gpu.processes = self.nvml.compute_processes(self._devices[gpu.pci])
            steps, pending = planning.gate(found, gpu, self.request.level)
            self.plans.append(GpuPlan(gpu, wanted[gpu.pci], [step.data["change"] for step in steps], steps, pending))
            warning = planning.forgets(gpu, wanted[gpu.pci])
            self.warnings += [warning] if warning else []

    def _resolve(self, entries: t.Sequence[declared.Entry], gpus: t.Sequence[Gpu]) -> dict[str, dict[str, Wanted]]:
        return declared.resolve(entries, [gpu.target for gpu in gpus])

    def _former(self, gpu: Gpu, wanted: t.Mapping[str, Wanted], journal: Journal) -> dict[str, Value]:
        """The values from before the first change, of settings that are not declared any more."""
        return {name: entry["before"] for name in declared.SETTINGS if name not in wanted
                for entry in [journal.get(_SETTING, _key(gpu.target.uuid, name))] if entry is not None}

    # -- execution

    def _change(self, journal: Journal) -> None:
        apply([step for plan in self.plans for step in plan.steps], lambda step: self._execute(step, journal), journal)
        for plan in self.plans:
            if plan.changes:
                self._check_result(plan, journal)
        self._forget(journal)

    def _execute(self, step: Step, journal: Journal) -> None:
        change: Change = step.data["change"]
        key = _key(change.uuid, change.setting)
        journal.keep(_SETTING, key, change.before)
        journal.note(_SETTING, key, change.after)
        journal.forget(_LOCKED, key)
        device = self._devices[change.pci]
        try:
            self.nvml.write(device, change.setting, change.after)
        except DeviceError as error:
            error.message = f"{step.id}: {error.message}"
            error.hint = f"{error.hint} The steps before it are done. Run again after the cause is gone.".strip()
            raise
        if change.setting in LOCKS and change.after is not None:
            journal.keep(_LOCKED, key, self._loaded())
        if change.setting == PERSISTENCE:  # on GPUs with memory of their own NUMA node, this ends the handle
            self._devices[change.pci] = self.nvml.reopen(device)

    def _check_result(self, plan: GpuPlan, journal: Journal) -> None:
        """Reads a changed GPU again. Raises HostError if it is not as planned."""
        gpu = self.read_gpu(self._devices[plan.gpu.pci], journal)
        for change in plan.changes:
            value = gpu.values.get(change.setting)
            if value != change.after:
                raise HostError(f"{gpu.name}: {change.setting} is {declared.text(change.setting, value)} after it was "
                                f"set to {declared.text(change.setting, change.after)}.",
                                "Check whether another program changes it (nvidia-smi -q), then run again.",
                                gpu=gpu.pci)

    def _forget(self, journal: Journal) -> None:
        """Deletes the entries of settings that are as they were before, and of GPUs that the host no longer has."""
        present = {plan.gpu.target.uuid.lower(): plan for plan in self.plans}
        for kind in (_LOCKED, _SETTING):
            for key in journal.of_kind(kind):
                uuid, _slash, name = key.partition("/")
                plan = present.get(uuid)
                if plan is None and not self.unread or plan is not None and name not in plan.wanted and not any(
                        step.data["change"].setting == name for step in plan.pending):
                    journal.forget(kind, key)
        if not any(plan.wanted for plan in self.plans):
            journal.unfinished = None  # this run has repeated the last step of a killed run

    # -- results

    def _gathered(self, journal: Journal) -> Result:
        if not self.nvml.available:
            raise HostError(f"Settings cannot be read: {self.nvml.error or 'the NVIDIA driver is not installed.'}",
                            "Install and load the driver first.")
        gpus = self.read(journal)
        limits = {}
        for gpu in gpus:
            device = self._devices[gpu.pci]
            power, memory = self.nvml.power_range(device), self.nvml.memory_clocks(device)
            graphics = sorted({clock for one in memory for clock in self.nvml.graphics_clocks(device, one)})
            limits[gpu.pci] = {
                "power_limit": power and [declared.watts(one) for one in power], "memory_clocks": memory,
                "graphics_clocks": [graphics[0], graphics[-1]] if graphics else None}
        current = {gpu.pci: planning.shown(gpu.values) for gpu in gpus}
        return outcome([], before=current, after=current, changes=[], limits=limits,
                       entries=[_entry(gpu) for gpu in gpus], reset_required=_waiting_for_reset(gpus))

    def _result(self) -> Result:
        changed = [plan for plan in self.plans if plan.changes]
        before = "".join(planning.lines(plan.gpu, plan.changes, False) for plan in changed)
        after = "".join(planning.lines(plan.gpu, plan.changes, True) for plan in changed)
        steps = [step for plan in self.plans for step in plan.steps]
        planned = {plan.gpu.pci: {**plan.gpu.values, **{one.setting: one.after for one in plan.changes}}
                   for plan in self.plans}
        return outcome(
            steps, [*(step for plan in self.plans for step in plan.pending), *self.waiting],
            [*([diff_entry("settings of GPUs", before, after)] if changed else []), *plan_diff("gpu_settings", steps)],
            before={plan.gpu.pci: planning.shown(plan.gpu.values) for plan in self.plans},
            after={pci: planning.shown(values) for pci, values in planned.items()},
            changes=[change.as_dict() for plan in self.plans for change in plan.changes],
            reset_required=[plan.gpu.pci for plan in self.plans if not plan.gpu.assumed
                            and planned[plan.gpu.pci].get(declared.ECC) != plan.gpu.ecc_current])


def _key(uuid: str, name: str) -> str:
    return f"{uuid.lower()}/{name}"


def _target(number: int, pci: str, device_id: str, subsystem: str, uuid: str = "") -> Target:
    model = model_of(device_id, subsystem)
    return Target(pci, number, device_id, subsystem, (model and model.name) or device_id, (), uuid)


def _entry(gpu: Gpu) -> dict[str, t.Any]:
    """The settings of a GPU as an entry that declares them."""
    values = planning.shown(gpu.values)
    if any(lock in values for lock in LOCKS):
        values.pop(APPLICATIONS, None)  # locked clocks replace them
    return {"gpus": [gpu.target.uuid], **values}


def _waiting_for_reset(gpus: t.Iterable[Gpu]) -> list[str]:
    """The PCI addresses of the GPUs whose ECC mode changes with the next reset."""
    return [gpu.pci for gpu in gpus if gpu.values.get(declared.ECC) != gpu.ecc_current]
