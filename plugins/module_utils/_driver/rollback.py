# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restores the former driver if an installation fails.

The former driver is recorded in the journal before the first file of a driver changes, and remains there until a run
succeeds. Therefore, a run that continues after a kill or a reboot can still restore it. A run that succeeds records it
as the driver to which C(state: rolled_back) returns (L(_former_driver)).
"""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.attempt import Attempt
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import Build
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import installed
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric_settings import (
    FORMER_SETTINGS,
    FabricSettings,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.image import read_state
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD, UNLOAD, Modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import gate_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import Prebuilt
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile import RunfileDelivery, origin
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import version_in
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import (
    forget_restart,
    interrupts,
    request_restart,
    restart_running,
    resume,
    running,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    UNLOAD_ORDER,
    DriverState,
    module_flavour,
    read_driver_state,
    read_services,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.verify import ask_smi
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._former_driver import (
    FORMER,
    KEY,
    PREVIOUS,
    Archive,
    FormerDriver,
    former_driver,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER

_PARTS = (Build, Prebuilt, Modules)


@dataclass(frozen=True)
class Former:
    """The former driver of a host, see L(_former_driver.FormerDriver). version: None if there was no driver."""

    version: str | None
    flavour: str | None = None
    source: str = ""
    loaded: bool = False
    archive: Archive | None = None
    returns: bool = False
    installation: str = "auto"

    def is_like(self, desired: DesiredDriver) -> bool:
        """Whether a desired driver is this one."""
        same = (desired.version, desired.flavour, desired.source)
        return (self.version, self.flavour, self.source) == same and self.installation in ("auto", desired.installation)

    def spec(self, spec: Spec) -> Spec:
        """The options with which this driver is installed. spec: the other options."""
        given = spec.runfile or {}
        # The file that the options name is newer than the record, and its URL can have a query.
        same = version_in(str(given.get("src") or "")) == self.version
        runfile = given if same else t.cast("t.Mapping[str, str] | None", self.archive)
        return replace(spec, version=self.version, branch=None, kernel_module_type=self.flavour or "auto",
                       source=self.source, installation=self.installation, runfile=runfile)


def recall(journal: Journal) -> Former | None:
    """The former driver in the journal, None if no run is changing the driver."""
    entry = journal.get(FORMER, KEY)
    return Former(**entry["before"]) if entry else None


def remember(host: Host, now: DriverState, returns: bool = False) -> None:
    """Records the driver of the host as the former driver, unless the journal already contains one. returns: whether
    the change is a return to the driver before the last change."""
    if recall(host.journal) is None:
        host.journal.keep(FORMER, KEY, asdict(replace(_read(host, now), returns=returns)))


def in_progress(journal: Journal) -> bool:
    """Whether a run has begun a change that is not complete."""
    return bool(journal.of_kind(FORMER))


def forget(journal: Journal) -> None:
    """Deletes the former driver and the former settings from the journal, because the change is complete or undone."""
    for key in journal.of_kind(FORMER):
        journal.forget(FORMER, key)


def complete(journal: Journal, desired: DesiredDriver, returned: Former | None) -> None:
    """Records the driver to which C(state: rolled_back) returns, if the run has changed the driver, and deletes the
    former driver from the journal. returned: the driver to which this run has returned, None for another run."""
    former = recall(journal)
    if returned is not None:
        kept: Former | None = returned  # it remains the driver to return to, so that a second return changes nothing
    else:
        known = former and replace(former, flavour=former.flavour or desired.flavour)
        kept = former if known is not None and not known.is_like(desired) else None
    if kept is not None and kept.version is not None:
        journal.keep(PREVIOUS, KEY, None)
        journal.note(PREVIOUS, KEY, asdict(replace(kept, returns=False)))
    forget(journal)


def destination(journal: Journal) -> Former:
    """The driver to which C(state: rolled_back) returns. Raises HostError if none is recorded."""
    found = former_driver(journal)
    if found is None:
        raise HostError("No former driver of this host is recorded, so there is nothing to return to.",
                        "Set state present and the version that you want. A run that replaces a driver records the "
                        "replaced one.")
    return Former(**t.cast("t.Dict[str, t.Any]", found))


def as_result(found: FormerDriver | None) -> dict[str, str | None] | None:
    """The former driver in the form that the module returns."""
    if found is None:
        return None
    return {"version": found["version"], "kernel_module_type": found["flavour"], "source": found["source"],
            "installation": found.get("installation", "auto")}


def _read(host: Host, now: DriverState) -> Former:
    found = installed(host, now)
    if found is None:
        return Former(None)
    source, version, installation = found
    loaded = now.loaded == version
    return Former(version, now.flavour if loaded else module_flavour(host.run, now.kernel), source, loaded,
                  origin(host.journal, version) if source == RunfileDelivery.name else None,
                  installation=installation)


class Rollback:
    """Restores the driver and the files as they were before an attempt. Create the object before the first step of the
    attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.journal = attempt.host.journal
        self.files = {path: read_bytes(path) for path in self.journal.of_kind("file")}
        self.in_progress = recall(self.journal) is not None
        self.settings_in_progress = self.journal.get(FORMER, FORMER_SETTINGS) is not None

    def former(self) -> Former | None:
        """The driver to restore, None if no rollback is required. It can have the same version, but with former
        parameters."""
        former, desired = recall(self.journal), self.attempt.desired
        if former is None or not former.is_like(desired):
            return former
        unloaded = any(step.action == UNLOAD for step in self.attempt.executor.started)
        return former if former.loaded and unloaded and self._changed() else None

    def run(self, former: Former) -> None:
        """Restores a driver. Raises GpuopsError if this fails."""
        self._restore_files()
        host, before = self.attempt.host, self.attempt.now
        spec = former.spec(host.spec)
        if former.version == self.attempt.desired.version and host.spec.runfile:
            spec = replace(spec, runfile=host.spec.runfile)  # its name need not contain the version
        restoration = Attempt(replace(host, spec=spec), read_state(spec, host.root, host.run), "idle", _PARTS,
                              None if self.in_progress else former.version)
        # The services of the fabric are not stopped or restarted.
        steps = [step for step in restoration.steps if not interrupts(step)]
        # Modules that the attempt has loaded are unloaded at any level; other services are stopped only from level
        # drain on.
        pending = gate_driver(steps, "drain" if allows(self.attempt.level, "drain") else "idle")[1]
        if pending:
            raise HostError(f"The modules cannot be unloaded: {pending[0].pending_reason}.")
        restoration.apply([step for step in steps if former.loaded or step.action != LOAD])
        if self.journal.get(FORMER, FORMER_SETTINGS) is not None:
            self._restore_settings()
            forget_restart(self.journal, FABRIC_MANAGER)  # it was stopped with the modules, or still runs as before
        if former.loaded:
            self._start(restoration, before)
        resume(host.run, self.journal, check=False)

    def restore_settings(self) -> str:
        """Restores the settings of the fabric manager before the change, and lets it run with them. Returns a sentence,
        empty if the change has set none. Raises GpuopsError if this fails."""
        attempt = self.attempt
        changed = self._restore_settings()
        if not changed:
            return ""
        text = ", ".join(f"{name}={value}" if value is not None else f"no {name}" for name, value in changed.items())
        host, unit = attempt.host, FABRIC_MANAGER
        if host.spec.image:
            forget_restart(self.journal, unit)
            self.journal.forget(FORMER, FORMER_SETTINGS)
            return f"The fabric manager had new settings ({text}). The former ones are in its file again"
        now = read_driver_state(host.root, host.run)
        if now.services[unit].state not in ("active", "activating"):
            host.run(["systemctl", "reset-failed", unit], check=False)
            host.run(["systemctl", "start", unit], timeout=120, hint=f"For the cause: journalctl -u {unit}")
        elif self.settings_in_progress or any(step.target == unit for step in attempt.executor.started):
            request_restart(self.journal, unit)
            allowed, pending = gate_driver([step for _phase, step in restart_running(host, now, unit, True)],
                                           attempt.level)
            attempt.apply(allowed)
            if pending:
                self.journal.forget(FORMER, FORMER_SETTINGS)
                return (f"The fabric manager had new settings ({text}). The former ones are in its file again, but its "
                        f"restart waits: {pending[0].pending_reason}")
        forget_restart(self.journal, unit)
        self.journal.forget(FORMER, FORMER_SETTINGS)
        return f"The fabric manager had new settings ({text}). It runs with the former ones again"

    def _restore_settings(self) -> dict[str, str | None]:
        """Writes the settings before the change. Returns the other values that the file had, by name."""
        entry = self.journal.get(FORMER, FORMER_SETTINGS)
        if entry is None:
            return {}
        host = self.attempt.host
        part = FabricSettings(replace(host, spec=replace(host.spec, fabric_manager_settings=entry["before"])))
        changed = part.differing()
        part.put_back()
        return changed

    def _start(self, restoration: Attempt, before: DriverState) -> None:
        """Loads the other modules that were loaded before, starts the services that ran before, and checks the driver.
        Raises HostError."""
        host = restoration.host
        after = read_driver_state(host.root, host.run)
        missing = [name for name in reversed(UNLOAD_ORDER) if name in before.modules and name not in after.modules]
        restoration.apply([Step(LOAD, name.replace("_", "-"), "it was loaded before") for name in missing])
        ran = list(reversed(running(before.services)))
        for unit in ran:
            host.run(["systemctl", "start", unit], timeout=120, check=False)
        reasons = restoration.reasons(read_driver_state(host.root, host.run), restoration.delivery.installed())
        reasons += ask_smi(host.run, restoration.version).faults
        services = read_services(host.run)
        reasons += [f"{unit} is {services[unit].state}" for unit in ran if services[unit].state != "active"]
        if reasons:
            raise HostError(f"The restored driver does not work: {'; '.join(reasons)}.", reasons=reasons)

    def _changed(self) -> list[str]:
        return [path for path in self.journal.of_kind("file")
                if not PackageWork.is_of_repository(path) and read_bytes(path) != self.files.get(path)]

    def _restore_files(self) -> None:
        """Restores the files of this collection as they were before the attempt, except those of repositories."""
        for path in self._changed():
            former = self.files.get(path)
            if path.startswith("/etc/modprobe.d/"):
                request_rebuild(self.journal)
            if former is None:
                self.journal.restore_file(path)
            else:
                self.journal.write_file(path, former)
