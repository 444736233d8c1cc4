# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module: reads the state of the driver, plans and executes steps, and reads the state again."""

from __future__ import annotations

import time
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.attempt import Attempt, Executor
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import Build
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cdi_refresh import CdiRefresh
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.device_nodes import DeviceNodes
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.disk_space import check_free_space
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric import Fabric
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric_settings import KIND, SET, FabricSettings
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.failures import explain_error
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import Files
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gpudirect import GpuDirect
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.image import check_builder, read_state
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.kernel_hold import KernelHold
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.licence import Licence
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.module_parameters import ModuleParameters
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import Modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.next_kernel import NextKernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.nouveau import UNLOAD_NOUVEAU, Nouveau
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Holders, Host, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import changes_driver, gate_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import Prebuilt
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.removal import Removal
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.rollback import (
    Former,
    Rollback,
    as_result,
    complete,
    destination,
    forget,
    in_progress,
    recall,
    remember,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile import installation_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import RESUME_CLIENT, Services, paused
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.signing import ENROL, IMPORT, Signing, mok_state
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import INSTALLS_ONLY, Spec, is_set
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    DriverState,
    read_holders,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.verify import ask_smi, disagreements
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.versions import reboot_pending
from ansible_collections.gpuops.nvidia.plugins.module_utils._former_driver import (
    FORMER,
    KEY,
    FormerDriver,
    former_driver,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, run
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER

CONCERN = "driver"
# The parts of a driver. Within each phase of a run, steps have the order of this list.
PARTS: t.Tuple[t.Type[Part], ...] = (
    KernelHold, Signing, Nouveau, ModuleParameters, Build, Prebuilt, Modules, GpuDirect, NextKernel, Fabric,
    FabricSettings, DeviceNodes, Licence, Files, Services, CdiRefresh)


class NotWorking(HostError):
    """The error if all steps were executed, but the driver does not work as planned."""


class Driver:
    """One run of the module. level: a value of gpu_disruption. check: whether steps are only planned (check mode)."""

    def __init__(self, spec: Spec, level: str, check: bool, command: Runner = run, root: Root | None = None) -> None:
        self.spec = spec
        self.level = level
        self.check = check
        self.run = command
        self.root = root or Root()
        self.warnings: list[str] = []
        self.returning = False
        self.returns: Former | None = None
        self.former: FormerDriver | None = None

    def rolled_back(self) -> Result:
        """Returns to the driver before the last change, in the same way as L(present). Raises HostError if none is
        recorded."""
        self.returning = True
        return self.present()

    def present(self) -> Result:
        """Installs, switches or repairs the driver. The documentation of the module describes the result."""
        now = self._read()
        if not now.gpus and not self.spec.image:
            raise HostError("This host has no NVIDIA GPU on its PCI bus.",
                            "Remove it from the group, or check lspci -d 10de: and whether devices are passed through. "
                            "To build an image without a GPU, set image (role driver: driver_image) to true.")
        with Journal(CONCERN, readonly=self.check) as journal:
            if self.returning:
                self.returns = destination(journal)
                self.spec = self.returns.spec(self.spec)
            if self.spec.image:
                check_builder(self.spec, now, self.root)
            attempt = self._attempt(journal, now)
            self.warnings += attempt.delivery.warnings
            if attempt.installs:  # a rollback needs no more space than it frees
                check_free_space(self.root, now.kernel)
            allowed, pending = gate_driver(attempt.steps, self.level, paused(journal))
            after = now
            reasons: list[str] = []
            # After a reboot or a killed run, the driver must be checked, too.
            if (allowed or in_progress(journal)) and not self.check:
                after, reasons, allowed, pending = self._execute(attempt, allowed, pending)
            elif not self.check or self.spec.image and not allowed:
                reasons = attempt.reasons(now, attempt.version)
                if self.spec.image and reasons:  # no other task verifies an image
                    raise self._not_working(reasons)
            if not pending and not self.check:
                complete(journal, attempt.desired, self.returns)
                for part in attempt.parts:
                    part.tidy()
            self.former = former_driver(journal)
        return self._result(now, after, allowed, pending, attempt.holders, attempt.version, reasons,
                            attempt.desired.offline)

    def _attempt(self, journal: Journal, now: DriverState) -> Attempt:
        try:
            return Attempt(self._host(journal), now, self.level, PARTS)
        except GpuopsError as error:
            if self.returns is not None:
                error.message = (f"Driver {self.returns.version} ({self.returns.source}), to which this host would "
                                 f"return, cannot be installed: {error.message}")
            raise

    def _execute(self, attempt: Attempt, steps: list[Step], pending: list[PendingStep]
                 ) -> tuple[DriverState, list[str], list[Step], list[PendingStep]]:
        """Executes the steps. Returns C((state, reasons, executed steps, pending steps)) afterwards.

        pending: the steps that the level does not allow. If there are none, raises NotWorking for a driver that does
        not work. Raises GpuopsError if a step fails.
        """
        began, complete = time.time(), not pending
        began_before = recall(attempt.host.journal) is not None
        if changes_driver(steps):
            remember(attempt.host, attempt.now, self.returning)
        rollback = Rollback(attempt)
        if any(step.action == SET for step in steps) or changes_driver(steps) and attempt.host.journal.of_kind(KIND):
            FabricSettings(attempt.host).remember()
        try:
            # Other services start only after the driver has been checked.
            attempt.apply([step for step in steps if step.action != RESUME_CLIENT])
            after = self._read()
            reasons = attempt.reasons(after, attempt.delivery.installed())
            if complete and not self.spec.image:
                reasons += self._ask_smi(attempt.version)
            if complete and reasons:
                raise self._not_working(reasons)
        except InUse as error:  # the former driver still works
            if not began_before:
                attempt.host.journal.forget(FORMER, KEY)
            done, restarts, blocked = self._block(attempt.executor, attempt.host.journal, steps, error)
            attempt.apply(restarts)
            attempt.holders = read_holders(self.root)
            after = self._read()
            reasons = attempt.reasons(after, attempt.delivery.installed())
            return after, reasons, [*done, *restarts], [*blocked, *pending]
        except GpuopsError as error:
            error.details["plan"] = [step.as_dict() for step in steps]
            explain_error(error, self.run, began)
            self._roll_back(rollback, error)
            raise
        attempt.apply([step for step in steps if step.action == RESUME_CLIENT])
        return after, reasons, steps, pending

    def _block(self, executor: Executor, journal: Journal, steps: t.Sequence[Step], error: InUse
               ) -> tuple[list[Step], list[Step], list[PendingStep]]:
        """C((executed steps, steps that start services again, pending steps)) after an InUse error.

        If a GPU client started after the plan was made, the failed step and all later steps become pending, as they
        would if the client had been there when the plan was made.
        """
        *done, failed = executor.started
        journal.done(failed)  # the step was undone
        rest = [step for step in steps if not any(step is executed for executed in done)]
        rest[0] = replace(failed, data={**failed.data, "blocked": error.message, "held": ""})
        restarts, blocked = gate_driver(rest, self.level, paused(journal))
        return done, restarts, blocked

    def _roll_back(self, rollback: Rollback, error: GpuopsError) -> None:
        """Restores the former driver if required. Adds C(rolled_back) or C(rollback_error) to the error."""
        former = rollback.former()
        error.details["rolled_back"] = None
        if former is None:
            self._restore_settings(rollback, error)
            return
        started = rollback.attempt.executor.started
        new_settings = next((step.reason for step in started if step.action == SET), "")
        if new_settings and started[-1].target == FABRIC_MANAGER:
            error.message = f"{error.message.rstrip(' .')}. The fabric manager had new settings: {new_settings}."
        if former.version is None and isinstance(error, NotWorking) and not self.spec.image:
            forget(rollback.journal)  # the installation is complete, and there was no driver before
            return
        try:
            if former.version is None:
                self._remove(rollback.journal)
            else:
                rollback.run(former)
        except GpuopsError as failure:
            goal = f"driver {former.version}" if former.version else "a host without a driver"
            error.message = f"{error.message.rstrip(' .')}. The rollback to {goal} failed, too: {failure.message}"
            error.details["rollback_error"] = failure.message
            return
        forget(rollback.journal)
        error.details["rolled_back"] = former.version
        ending = f"The former driver {former.version} is restored." if former.version else \
            "Everything that this run installed is removed again."
        error.message = f"{error.message.rstrip(' .')}. {ending}"

    @staticmethod
    def _restore_settings(rollback: Rollback, error: GpuopsError) -> None:
        """Restores the settings of the fabric manager if it did not start with new ones, or does not work with them."""
        started = rollback.attempt.executor.started
        if not isinstance(error, NotWorking) and not (started and started[-1].target == FABRIC_MANAGER):
            return
        try:
            done = rollback.restore_settings()
        except GpuopsError as failure:
            done = f"The return to the former settings of the fabric manager failed, too: {failure.message.rstrip('.')}"
        if done:
            error.message = f"{error.message.rstrip(' .')}. {done}."

    def _remove(self, journal: Journal) -> None:
        removal = Removal(self._host(journal), self._read(), PARTS)
        allowed, pending = gate_driver(removal.steps, "idle")
        if pending:
            raise HostError(f"{pending[0].id} waits: {pending[0].pending_reason}.")
        removal.execute(allowed, True)

    def absent(self) -> Result:
        """Removes what this collection has installed. A driver that it has not installed is kept."""
        now = self._read()
        with Journal(CONCERN, readonly=self.check) as journal:
            removal = Removal(self._host(journal), now, PARTS)
            allowed, pending = gate_driver(removal.steps, self.level)
            reasons = removal.remaining()
            if not self.check:
                try:
                    removal.execute(allowed, not pending)
                except InUse as error:
                    done, restarts, blocked = self._block(removal.executor, journal, allowed, error)
                    removal.execute(restarts, False)
                    removal.holders = read_holders(self.root)
                    allowed, pending = [*done, *restarts], [*blocked, *pending]
            self.former = former_driver(journal)
        after = self._read() if allowed and not self.check else now
        return self._result(now, after, allowed, pending, removal.holders, None, reasons)

    def adopted(self) -> Result:
        """Verifies a driver that this collection has not installed, and changes nothing. Raises HostError if the driver
        does not work as desired."""
        ignored = [name for name in INSTALLS_ONLY if is_set(getattr(self.spec, name))]
        if ignored:
            self.warnings.append(f"{', '.join(ignored)}: no effect with state adopted, which only verifies the driver.")
        now = self._read()
        reasons = disagreements(now, self.spec.version, None, None)
        if now.loaded and not self.spec.accepts(now.loaded):
            reasons.append(f"driver {now.loaded} is loaded, but {self.spec.wanted()} is desired")
        reasons += [f"{path}: {fault}" for path, fault in now.nodes.items()]
        reasons = list(dict.fromkeys(reasons)) + self._ask_smi(now.loaded)
        if reasons:
            error = HostError(f"The driver does not work as desired: {'; '.join(reasons)}.",
                              "Repair it with the tools that have installed it. To let this collection install it, set "
                              "driver_state: present, and driver.enabled: true if the policy disables it.",
                              reasons=reasons)
            explain_error(error, self.run, 0)
            raise error
        return self._result(now, now, [], [], [], now.loaded)

    def gathered(self) -> Result:
        """The current state, and as options of the module. Changes nothing."""
        from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gathered import gather  # seldom needed

        now = self._read()
        with Journal(CONCERN, readonly=True) as journal:
            found = gather(self.root, self.run, now, journal.of_kind(KIND), installation_of(journal))
            self.former = former_driver(journal)
        installed = found.options["state"] == "present"
        result = self._result(now, now, [], [], [], found.options.get("version"),
                              disagreements(now, None, None, None) if installed else [])
        return {**result, "gathered": found.options, "packages": found.packages, "source": found.source,
                "services": {unit: dict(vars(service)) for unit, service in now.services.items()},
                "reboot_required": reboot_pending(self.root, now.loaded, now.library)}

    def _read(self) -> DriverState:
        return read_state(self.spec, self.root, self.run)

    def _not_working(self, reasons: list[str]) -> NotWorking:
        what, hint = "All steps have run, but the driver does not work", "Check journalctl -k | grep -i nvrm."
        if self.spec.image:
            what, hint = "The driver would not work after a boot of the image", "Check dkms status."
        return NotWorking(f"{what}: {'; '.join(reasons)}.", hint, reasons=reasons)

    def _ask_smi(self, version: str | None) -> list[str]:
        smi = ask_smi(self.run, version)
        self.warnings += [f"{text.rstrip('.')}. The driver works. Reset the GPU (nvidia-smi -r -i INDEX) or reboot "
                          "the host." for text in smi.lost]
        return smi.faults

    def _host(self, journal: Journal) -> Host:
        return Host(self.spec, self.run, self.root, journal, self.check)

    def _result(self, before: DriverState, after: DriverState, steps: t.Sequence[Step],
                pending: t.Sequence[PendingStep], holders: Holders,
                version: str | None, reasons: t.Sequence[str] = (), offline: bool = False) -> Result:
        # Only the first pending step is reported, because it blocks the others.
        waiting = [f"{step.id} waits: {step.pending_reason}" for step in pending[:1]]
        mismatch = bool(after.loaded and after.library and after.loaded != after.library)
        nouveau_used = after.nouveau == "used" and any(step.action == UNLOAD_NOUVEAU for step in pending)
        enrol = any(step.action == ENROL for step in pending)
        mok = mok_state(self.root, self.spec, after)
        # In check mode, the result contains what the planned step will request.
        mok["pending"] = mok["pending"] or any(step.action == IMPORT for step in steps)
        return outcome(steps, pending, plan_diff("nvidia_driver", steps), version=version,
                       driver={"before": before.as_dict(), "after": after.as_dict()}, holders=list(holders),
                       reboot_required=bool(pending) and (mismatch or nouveau_used or enrol or offline),
                       mok=mok, reasons=[*reasons, *waiting], former=as_result(self.former),
                       **({"warnings": self.warnings} if self.warnings else {}))
