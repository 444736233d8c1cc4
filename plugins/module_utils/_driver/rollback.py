# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restores the former driver if an installation fails.

The former driver is recorded in the journal before the first file of a driver changes, and remains there until a run
succeeds. Therefore, a run that continues after a kill or a reboot can still restore it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.attempt import Attempt
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import Build
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import PackageDelivery, installed
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD, UNLOAD, Modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import changes_driver, gate_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import Prebuilt
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import interrupts, resume, running
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
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows

FORMER = "former"
_KEY = "driver"
# The parts that a rollback plans. The files of the other parts are restored from copies in memory.
_PARTS = (Build, Prebuilt, Modules)


@dataclass(frozen=True)
class Former:
    """The former driver of a host. version: None if there was no driver. loaded: whether the driver was loaded."""

    version: str | None
    flavour: str | None = None
    source: str = ""
    loaded: bool = False


def recall(journal: Journal) -> Former | None:
    """The former driver in the journal, None if no run is changing the driver."""
    entry = journal.get(FORMER, _KEY)
    return Former(**entry["before"]) if entry else None


def remember(host: Host, now: DriverState) -> None:
    """Records the driver of the host as the former driver, unless the journal already contains one."""
    if recall(host.journal) is None:
        host.journal.keep(FORMER, _KEY, asdict(_read(host, now)))


def forget(journal: Journal) -> None:
    """Deletes the former driver from the journal, because the change is complete."""
    journal.forget(FORMER, _KEY)


def _read(host: Host, now: DriverState) -> Former:
    found = installed(host, now)
    if found is None:
        return Former(None)
    source, version = found
    loaded = now.loaded == version
    return Former(version, now.flavour if loaded else module_flavour(host.run, now.kernel), source, loaded)


class Rollback:
    """Restores the driver and the files as they were before an attempt. Create the object before the first step of the
    attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.journal = attempt.host.journal
        self.files = {path: read_bytes(path) for path in self.journal.of_kind("file")}
        self.in_progress = recall(self.journal) is not None

    def former(self) -> Former | None:
        """The driver to restore, None if no rollback is required. It can have the same version, but with former
        parameters."""
        former, desired = recall(self.journal), self.attempt.desired
        same = (desired.version, desired.flavour, desired.source)
        if former is None or (former.version, former.flavour, former.source) != same:
            return former
        unloaded = any(step.action == UNLOAD for step in self.attempt.executor.started)
        return former if former.loaded and unloaded and self._changed() else None

    def run(self, former: Former) -> None:
        """Restores a driver. Raises GpuopsError if this fails."""
        self._restore_files()
        host, before, desired = self.attempt.host, self.attempt.now, self.attempt.desired
        spec = replace(host.spec, version=former.version, branch=None, kernel_module_type=former.flavour or "auto",
                       source=former.source, runfile=host.spec.runfile if former.version == desired.version else None)
        files_changed = self.in_progress or changes_driver(self.attempt.executor.started)
        restoration = Attempt(replace(host, spec=spec), read_driver_state(host.root, host.run), "idle", _PARTS,
                              None if files_changed else former.version)
        # The services of the fabric are not stopped or restarted.
        steps = [step for step in restoration.steps if not interrupts(step)]
        # Modules that the attempt has loaded are unloaded at any level; other services are stopped only from level
        # drain on.
        pending = gate_driver(steps, "drain" if allows(self.attempt.level, "drain") else "idle")[1]
        if pending:
            raise HostError(f"The modules cannot be unloaded: {pending[0].pending_reason}.")
        restoration.apply([step for step in steps if former.loaded or step.action != LOAD])
        if files_changed and not self.in_progress:
            restoration.apply(self._restore_versions(restoration))
        if former.loaded:
            self._start(restoration, before)
        resume(host.run, self.journal, check=False)

    def _restore_versions(self, restoration: Attempt) -> list[Step]:
        failed, delivery = self.attempt.delivery, restoration.delivery
        if isinstance(failed, PackageDelivery) and isinstance(delivery, PackageDelivery):
            return delivery.restore_versions(failed.before)
        return []

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
