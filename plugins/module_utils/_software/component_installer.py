# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and executes the steps of one component.

Journal entries other than those of files and packages: C(service), the former state of a unit; C(restart), a unit that
must be restarted. A C(restart) entry is created before the first change, and is deleted after the restart.
"""

from __future__ import annotations

import os
import socket
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable, read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Manager, PackageState, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import (
    ADD,
    AGAIN,
    INSTALL,
    REFRESH,
    PackageWork,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import drop_compiled
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import Desired
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import AT_BOOT, Service, read_units

WRITE, RESTORE = "write file", "restore file"
START, RESTART, ENABLE = "enable and start service", "restart service", "enable service"
STOP = "disable and stop service"
_SYSTEMD = "/etc/systemd/system/"
# Maximum seconds to wait until a service accepts connections, and for systemctl.
_ANSWER_LIMIT = 30
_SERVICE_LIMIT = 120
ABSENT = Service("absent", "")


class Installer:
    """Plans and executes the steps of one component. desired: None for a removal. manager: None if there are no
    packages."""

    def __init__(self, unit: str, desired: Desired | None, journal: Journal, run: Runner, root: Root,
                 manager: Manager | None, repository: Repository | None) -> None:
        self.unit = unit
        self.desired = desired or Desired()
        self.journal = journal
        self.run = run
        self.root = root
        self.packages = PackageWork(manager, journal, repository) if manager else None
        self.before = ABSENT
        self.files_before: t.Collection[str] = ()  # see L(manage.Software)

    def plan(self, state: PackageState, service: Service) -> list[Step]:
        """The steps of an installation. Files are written first, because a package may start its service."""
        self.before = service
        steps = self._plan_files() + self._plan_packages(state)
        return steps + self._plan_service(service, any(step.action not in (ADD, REFRESH) for step in steps))

    def _plan_files(self) -> list[Step]:
        steps = []
        for path, content in self.desired.files.items():
            current, owned = read_bytes(self.root.at(path)), self.journal.get("file", path) is not None
            if not owned or current != content and path not in self.files_before:
                check_writable(self.root.at(path))
                reason = "" if current is None else "it differs" if current != content else "it becomes owned"
                steps.append(Step(WRITE, path, reason, data={"content": content}))
        return steps + [Step(RESTORE, path, "it is no longer in the plan") for path in self._owned_files()
                        if path not in self.desired.files and path not in self.desired.outputs]

    def _owned_files(self) -> list[str]:
        """The files in the journal, except the files of the repository."""
        work = self.packages
        return [path for path in self.journal.of_kind("file") if work is None or not work.is_of_repository(path)]

    def _plan_packages(self, state: PackageState) -> list[Step]:
        work, desired = self.packages, self.desired
        if work is None or work.repository is None or not desired.packages:
            return []
        gone = [name for name in desired.replaced if name in state.installed]
        owned = [name for name, entry in self.journal.of_kind("package").items() if (entry["after"] or {}).get("ours")]
        if not gone and work.is_present(state, desired.packages):
            return work.plan_lost(state, [*desired.packages, *owned])
        with work.manager.probe(work.repository) as probe:
            steps = work.plan_repair(state, desired.packages) + work.plan_repository(probe)
            steps += work.plan_install(probe, state, desired.packages, gone=gone)
        return steps + work.plan_lost(state, [*desired.packages, *owned], steps)

    def _plan_service(self, service: Service, changed: bool) -> list[Step]:
        if not self.unit:
            return []
        if service.enabled == "masked":
            raise HostError(f"{self.unit} is masked.", f"Run systemctl unmask {self.unit}, or omit the component.",
                            unit=self.unit)
        if service.state != "active":
            return [Step(START, self.unit, f"it is {service.state}")]
        if changed or self.journal.get("restart", self.unit) is not None:
            reason = "its files have changed" if changed else "an earlier run has not restarted it"
            return [Step(RESTART, self.unit, reason)]
        if service.enabled not in AT_BOOT:
            return [Step(ENABLE, self.unit, f"it is {service.enabled}")]
        return []

    def plan_absent(self, state: PackageState, service: Service, removed_before: t.Collection[str]) -> list[Step]:
        """The steps of a removal: service, packages, files. removed_before: packages that other components remove
        before."""
        self.before = service
        former = (self.journal.get("service", self.unit) or {"before": {}})["before"]
        steps = []
        if former and service != ABSENT and (service.state == "active" or service.enabled == "enabled") and \
                former["enabled"] != "enabled" and former["state"] != "active":
            steps.append(Step(STOP, self.unit, f"it was {former['state']} before"))
        if self.packages is not None and self.journal.entries:
            steps += self.packages.plan_absent(state, removed_before)
        steps += [Step(RESTORE, path, "this collection has written it") for path in self._owned_files()]
        # If packages are removed, their unit is removed with them.
        if former and former["state"] == "active" and steps and not any(step.data.get("packages") for step in steps):
            steps.append(Step(RESTART, self.unit, "its files have changed"))
        return steps

    def not_restored(self, state: PackageState) -> list[str]:
        """A note for each former package that the removal does not restore."""
        notes = []
        for name, entry in self.journal.of_kind("package").items():
            former = entry["before"]
            if former["state"] == "installed" and name not in state.installed:
                notes.append(f"{name} {former['version']} was installed before; the removal does not install it again")
        return notes

    def execute(self, step: Step) -> None:
        """Executes a step. It can be repeated after a killed run."""
        handler = {WRITE: self._write, RESTORE: self._restore, START: self._start, RESTART: self._start,
                   ENABLE: self._enable, STOP: self._stop}.get(step.action)
        if handler is not None:
            handler(step)
            return
        if self.packages is None:
            raise HostError(f"No handler for step '{step.id}'.", "This is a bug. Report it.")
        if step.action in (INSTALL, AGAIN):
            self.request_restart()
        self.packages.execute(step)

    def request_restart(self) -> None:
        """Records that the service, if it runs, must be restarted. The next run restarts it if this one is killed."""
        if self.before.state == "active":
            self.journal.keep("restart", self.unit, None)

    def _write(self, step: Step) -> None:
        self.request_restart()
        self.journal.write_file(step.target, step.data["content"])
        self._reload(step.target)

    def _restore(self, step: Step) -> None:
        self.request_restart()
        if step.target.endswith(".py"):
            drop_compiled(step.target)
        self.journal.restore_file(step.target)
        self._reload(step.target)

    def _reload(self, path: str) -> None:
        if path.startswith(_SYSTEMD):
            self.run(["systemctl", "daemon-reload"], timeout=_SERVICE_LIMIT)

    def _keep_service(self) -> None:
        self.journal.keep("service", self.unit, dict(vars(self.before)))

    def _start(self, step: Step) -> None:
        self._keep_service()
        for path in self.desired.outputs:
            self.journal.keep_file(path)
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        self.run(["systemctl", "reset-failed", step.target], check=False)
        try:
            if self.desired.unit:
                self.run(["systemctl", "enable", step.target], timeout=_SERVICE_LIMIT)
            self.run(["systemctl", "restart" if step.action == RESTART else "start", step.target],
                     timeout=_SERVICE_LIMIT)
            if self.desired.run_once:
                self.run(["systemctl", "start", self.desired.run_once], timeout=_SERVICE_LIMIT)
        except CommandError as error:
            raise self._start_error(error.message) from error
        self._wait_for_answer(step.target)
        self.journal.forget("restart", step.target)

    def _wait_for_answer(self, unit: str) -> None:
        """Waits until the service accepts connections. Raises HostError if it stops, or accepts none within the time
        limit."""
        if self.desired.address is None:
            return
        deadline = time.monotonic() + _ANSWER_LIMIT
        while True:
            if read_units(self.run, [unit])[unit].state != "active":
                raise self._start_error(f"{unit} stopped after its start.")
            try:
                socket.create_connection(self.desired.address, timeout=2).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    address = "{}:{}".format(*self.desired.address)
                    raise self._start_error(f"{unit} runs, but does not answer at {address}: {error}.") from error
            time.sleep(0.2)

    def _start_error(self, message: str) -> HostError:
        unit = self.desired.run_once or self.unit
        text = self.run(["journalctl", "-u", unit, "-n", "12", "--no-pager", "-o", "cat"], check=False).stdout
        log = " / ".join(line for line in text.splitlines() if line.strip())
        return HostError(f"{message} Its log: {log or 'empty'}", f"Correct the error (journalctl -u {unit}), then run "
                         "again.", unit=unit)

    def _enable(self, step: Step) -> None:
        self._keep_service()
        self.run(["systemctl", "enable", step.target], timeout=_SERVICE_LIMIT)

    def _stop(self, step: Step) -> None:
        self.run(["systemctl", "disable", "--now", step.target], timeout=_SERVICE_LIMIT)
        if step.target.endswith(".timer"):
            # The timer may have started the service, which would then write its output again.
            self.run(["systemctl", "stop", step.target.replace(".timer", ".service")], timeout=_SERVICE_LIMIT)

    def forget_restored(self) -> None:
        """Deletes journal entries that are no longer needed after a removal."""
        if self.packages is not None and self.journal.of_kind("package"):
            self.packages.forget_restored(self.packages.manager.read())
        for kind in ("service", "restart", "directory"):
            for key in self.journal.of_kind(kind):
                self.journal.forget(kind, key)
        self.journal.unfinished = None
