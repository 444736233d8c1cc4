# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restores the former driver when an installation fails.

The journal records the former driver before the first file of a driver changes, until a run succeeds. So a run that
continues after a kill or a reboot can still restore it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.attempt import Attempt
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import Build
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import PackageDelivery, installed
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD, UNLOAD, Modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import gate_driver, takes_modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import Prebuilt
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import interrupts, resume, running
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    UNLOAD_ORDER,
    Situation,
    module_flavour,
    read_services,
    read_situation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.verify import ask_smi
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows

FORMER = "former"
_KEY = "driver"
# The parts of a rollback. The files of the other parts are restored.
_PARTS = (Build, Prebuilt, Modules)


@dataclass(frozen=True)
class Former:
    """The former driver of a host. version: None without a driver. loaded: whether it was loaded."""

    version: str | None
    flavour: str | None = None
    source: str = ""
    loaded: bool = False


def recall(journal: Journal) -> Former | None:
    """The former driver in the journal, None if no change is in progress."""
    entry = journal.get(FORMER, _KEY)
    return Former(**entry["before"]) if entry else None


def remember(host: Host, now: Situation) -> None:
    """Records the driver of the host, unless a change is in progress."""
    if recall(host.journal) is None:
        host.journal.keep(FORMER, _KEY, asdict(_read(host, now)))


def forget(journal: Journal) -> None:
    """Ends the change."""
    journal.forget(FORMER, _KEY)


def _read(host: Host, now: Situation) -> Former:
    found = installed(host, now)
    if found is None:
        return Former(None)
    source, version = found
    at_work = now.loaded == version
    return Former(version, now.flavour if at_work else module_flavour(host.run, now.kernel), source, at_work)


class Rollback:
    """Must be created before the first step of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.journal = attempt.host.journal
        self.files = {path: read_bytes(path) for path in self.journal.of_kind("file")}
        self.under_way = recall(self.journal) is not None

    def due(self) -> Former | None:
        """The driver to restore, None if none is necessary. It can be the same version with its former parameters."""
        former, aim = recall(self.journal), self.attempt.aim
        if former is None or (former.version, former.flavour, former.source) != (aim.version, aim.flavour, aim.source):
            return former
        unloaded = any(step.action == UNLOAD for step in self.attempt.executor.started)
        return former if former.loaded and unloaded and self._changed() else None

    def run(self, former: Former) -> None:
        """Restores a driver. Raises GpuopsError if this fails."""
        self._restore_files()
        host, before, aim = self.attempt.host, self.attempt.now, self.attempt.aim
        spec = replace(host.spec, version=former.version, branch=None, kernel_module_type=former.flavour or "auto",
                       source=former.source, runfile=host.spec.runfile if former.version == aim.version else None)
        there = self.under_way or takes_modules(self.attempt.executor.started)
        back = Attempt(replace(host, spec=spec), read_situation(host.root, host.run), "idle", _PARTS,
                       None if there else former.version)
        # Do not stop or restart the services of the fabric.
        steps = [step for step in back.steps if not interrupts(step)]
        # Modules that the attempt has loaded are unloaded at any level; foreign services are stopped from drain on.
        pending = gate_driver(steps, "drain" if allows(self.attempt.level, "drain") else "idle")[1]
        if pending:
            raise HostError(f"The modules cannot be unloaded: {pending[0]['pending_reason']}.")
        back.apply([step for step in steps if former.loaded or step.action != LOAD])
        if there and not self.under_way:
            back.apply(self._exactly(back))
        if former.loaded:
            self._serve(back, before)
        resume(host.run, self.journal, check=False)

    def _exactly(self, back: Attempt) -> list[Step]:
        failed, delivery = self.attempt.delivery, back.delivery
        if isinstance(failed, PackageDelivery) and isinstance(delivery, PackageDelivery):
            return delivery.exactly(failed.found)
        return []

    def _serve(self, back: Attempt, before: Situation) -> None:
        """Loads the other former modules, starts the former services, and checks the driver. Raises HostError."""
        host = back.host
        after = read_situation(host.root, host.run)
        gone = [name for name in reversed(UNLOAD_ORDER) if name in before.modules and name not in after.modules]
        back.apply([Step(LOAD, name.replace("_", "-"), "it was loaded before") for name in gone])
        ran = list(reversed(running(before.services)))
        for unit in ran:
            host.run(["systemctl", "start", unit], timeout=120, check=False)
        reasons = back.reasons(read_situation(host.root, host.run), back.delivery.installed())
        reasons += ask_smi(host.run, back.version).faults
        services = read_services(host.run)
        reasons += [f"{unit} does not start" for unit in ran if services[unit].state != "active"]
        if reasons:
            raise HostError(f"The restored driver does not work: {'; '.join(reasons)}.", reasons=reasons)

    def _changed(self) -> list[str]:
        return [path for path in self.journal.of_kind("file")
                if not PackageWork.is_of_repository(path) and read_bytes(path) != self.files.get(path)]

    def _restore_files(self) -> None:
        """Restores the owned files as they were before the attempt, except those of repositories."""
        for path in self._changed():
            former = self.files.get(path)
            if path.startswith("/etc/modprobe.d/"):
                request_rebuild(self.journal)
            if former is None:
                self.journal.restore_file(path)
            else:
                self.journal.write_file(path, former)
