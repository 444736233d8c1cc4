# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver from the vendor's .run file.

Implements C(delivery.Delivery). The journal's entry C(runfile, driver) says what we have installed:
C({version, flavour, whole, sources}); whole is false while the installer runs, sources are the folders of module
sources that it made. A driver that a .run file brought without us is kept where it will do, and never changed.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import runfile_fetch as fetching
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import runfile_tools as tools
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import (
    Archive,
    Record,
    archive_of,
    install_options,
    module_options,
    skips_load,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_record import (
    missing_files,
    read_record,
    sources_of,
    take_away,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import UNLOAD_ORDER, Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Manager
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import PERSISTENCED

FETCH = "fetch driver archive"
INSTALL = "run driver installer"
ADD_MODULES = "add kernel modules"
UNINSTALL = "run driver uninstaller"
DISCARD = "remove driver archive"
WRITE_UNIT = "install unit"
DROP_UNIT = "remove unit"
UNIT_FILE = f"/etc/systemd/system/{PERSISTENCED}"
# The installer brings the program, and units only as samples. The daemon writes its own PID file.
UNIT_TEXT = b"""\
# Written by gpuops.nvidia: the driver's .run file brings no unit for its persistence daemon.
[Unit]
Description=NVIDIA Persistence Daemon

[Service]
Type=forking
PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
ExecStart=/usr/bin/nvidia-persistenced --verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""
INSTALL_LOG = "/var/log/nvidia-installer.log"
_ENTRY = ("runfile", "driver")
_ARCHIVE = ("runfile", "archive")
# Seconds: building all modules on a slow machine.
_LIMIT = 3600
_ERRORS = 6
_FOREIGN_HINT = ("Keep it with state adopted, or with a version that it is; or remove it by nvidia-uninstall, then run "
                 "again.")


class RunfileDelivery:
    """One .run driver on a host. manager: for what the installer builds with."""

    name = "runfile"
    dkms = True

    def __init__(self, host: Host, now: Situation, manager: Manager | None) -> None:
        self.host = host
        self.now = now
        self.work = PackageWork(manager, host.journal, None) if manager is not None else None
        self.before = self._ours()

    # -- what is there

    def _ours(self) -> dict[str, t.Any] | None:
        entry = self.host.journal.get(*_ENTRY)
        return dict(entry["after"] or {}) if entry else None

    def _record(self) -> Record | None:
        return read_record(self.host.root)

    def installed(self) -> str | None:
        """See C(Delivery); None for one that was cut off or has lost files."""
        record, ours = self._record(), self._ours()
        if record is None or not record.complete or missing_files(self.host.root, record):
            return None
        return record.version if ours is None or ours.get("whole") and ours["version"] == record.version else None

    # -- present

    def plan(self, now: Situation, flavour: str) -> tuple[str, list[Step]]:
        """See C(Delivery)."""
        spec, ours = self.host.spec, self.before
        mine = ours["version"] if ours and spec.accepts(ours["version"]) else None
        archive = archive_of(spec.runfile, spec.version, now.arch) or archive_of(spec.runfile, mine, now.arch)
        installed = self.installed()
        wanted = archive.version if archive else installed
        if installed is not None and installed == wanted and spec.accepts(installed):
            unlike = self._unlike(installed, flavour)
            if not unlike:
                return installed, self._unit()
            if ours is not None and archive is not None and ours["flavour"] == flavour and skips_load(installed):
                # DKMS has lost them: files, and what is loaded, stay.
                return installed, [*self._prepare(archive, flavour), self._step(ADD_MODULES, archive, flavour, unlike),
                                   *self._unit()]
        if self._record() is not None and ours is None:
            self._refuse_foreign()
        if archive is None:
            raise InputError("The .run file to install is not known.", "Give version, or runfile.src with the name "
                             "that the vendor gave the file.", path="runfile.src")
        if not spec.accepts(archive.version):
            raise InputError(f"{archive.src} is {archive.version}, {spec.wanted()} is wanted.", "Let both agree.",
                             path="runfile.src", value=archive.src, allowed=spec.wanted())
        return archive.version, self._install(now, archive, flavour)

    def _unlike(self, installed: str, flavour: str) -> str:
        """Why an installed driver will not do, empty where it will. Of another's, what is loaded tells the flavour."""
        ours = self.before
        there = ours["flavour"] if ours else self.now.flavour
        if there not in (flavour, None):
            return f"its modules are {there}"
        if installed not in self.now.registered:
            return "DKMS does not know its modules"
        return ""

    def _refuse_foreign(self) -> None:
        record = self._record()
        version = record.version if record else "unknown"
        raise HostError(f"The driver {version} of this host was installed by a .run file, and not by this collection.",
                        _FOREIGN_HINT, version=version)

    def _install(self, now: Situation, archive: Archive, flavour: str) -> list[Step]:
        if not skips_load(archive.version) and now.nouveau in ("loaded", "used"):
            raise HostError(f"nouveau drives the GPUs, and the installer of {archive.version} has to load its modules.",
                            "Deny nouveau (blacklist nouveau in /etc/modprobe.d), reboot, then run again.")
        tools.refuse_packages(self.host, now, self._record())
        steps = self._prepare(archive, flavour)
        half = self.before is not None and not self.before.get("whole")
        if half:
            steps.append(self._uninstall("an installation was cut off"))
        steps.append(self._step(INSTALL, archive, flavour, self._why(archive, flavour)))
        return steps + self._unit()

    def _why(self, archive: Archive, flavour: str) -> str:
        ours = self.before
        if ours is None or not ours.get("whole"):
            return f"from {archive.src}"
        if ours["version"] != archive.version or ours["flavour"] != flavour:
            return f"{ours['version']} ({ours['flavour']}) is installed"
        return "files of it are missing, or DKMS has lost it"

    def _prepare(self, archive: Archive, flavour: str) -> list[Step]:
        """Everything that can fail without a change of the driver: tools, room, digest, the file itself."""
        install_options(archive.version, flavour)  # refuses what the branch does not have
        tools.check_key(self.host, self.now)
        steps = tools.plan_tools(self.host, self.now, archive.version, self.work)
        digest = fetching.wanted_digest(archive)
        if not fetching.is_here(archive, digest):
            fetching.check_room(fetching.size_of(archive))
            steps.append(Step(FETCH, archive.src, f"sha256:{digest}", data={"archive": archive, "digest": digest}))
        return [Step(step.action, step.target, step.reason, data={**step.data, "phase": "prepare"}) for step in steps]

    def _step(self, action: str, archive: Archive, flavour: str, why: str) -> Step:
        kernel = f" for kernel {self.now.kernel}" if action == ADD_MODULES else ""
        needs_unload = "" if action == ADD_MODULES else "its files are replaced"
        return Step(action, f"{archive.version} {flavour}{kernel}", why, data={
            "archive": archive, "flavour": flavour, "modules": True, "unload": needs_unload})

    def _unit(self) -> list[Step]:
        """Part E's services start it; the step that makes it one is ours."""
        if not self.host.spec.persistenced or self._has_unit():
            return []
        return [Step(WRITE_UNIT, UNIT_FILE, "the .run file brings none")]

    def _has_unit(self) -> bool:
        if self.host.root.exists(UNIT_FILE) or self.host.journal.get("file", UNIT_FILE) is not None:
            return self.host.stands(UNIT_FILE)
        # That of packages goes with them.
        return self.now.services[PERSISTENCED].state != "absent" and not self.host.journal.of_kind("package")

    # -- absent

    def displaced(self) -> list[Step]:
        """See C(Delivery). Raises HostError where the driver is another's."""
        if self.before is None:
            if self._record() is not None:
                self._refuse_foreign()
            return []
        steps = [self._uninstall("another source is to bring the driver")]
        if self.host.journal.get("file", UNIT_FILE) is not None:
            # It would hide the unit of a package.
            steps.append(Step(DROP_UNIT, UNIT_FILE, "a package brings its own"))
        return steps

    def absent(self) -> list[Step]:
        """See C(Delivery)."""
        steps = [self._uninstall("this collection installed it")] if self.before is not None else []
        if self.host.journal.get(*_ARCHIVE) is not None:
            steps.append(Step(DISCARD, fetching.FOLDER, "this collection fetched it"))
        return steps

    def _uninstall(self, why: str) -> Step:
        record, ours = self._record(), self.before or {}
        version = record.version if record else ours.get("version", "")
        return Step(UNINSTALL, version, why, data={"modules": True, "unload": "its files go"})

    def settle(self) -> None:
        """See C(Delivery): each step forgets its own."""

    def left(self) -> list[str]:
        """See C(Delivery)."""
        record = self._record()
        if record is None or self.before is not None:
            return []
        return [f"the driver {record.version} was installed by a .run file before and stays"]

    # -- execution

    def execute(self, step: Step) -> bool:
        """See C(Delivery)."""
        act = {FETCH: self._run_fetch, INSTALL: self._run_install, ADD_MODULES: self._run_modules,
               UNINSTALL: self._run_uninstall, DISCARD: self._run_discard, WRITE_UNIT: self._run_write,
               DROP_UNIT: self._run_drop}.get(step.action)
        if act is None:
            return self.work is not None and self.work.execute(step)
        act(step)
        return True

    def _run_fetch(self, step: Step) -> None:
        self.host.journal.keep(*_ARCHIVE, None)
        fetching.fetch(step.data["archive"], step.data["digest"])

    def _run_install(self, step: Step) -> None:
        archive, flavour = step.data["archive"], step.data["flavour"]
        self._note(archive.version, flavour, whole=False)
        # Modules that are loaded now stay until a reboot: the plan unloads them where they may go.
        beside = self.host.root.exists("/sys/module/nvidia")
        done = self._call(archive, install_options(archive.version, flavour, tools.signing_key(self.host, self.now),
                                                   beside))
        record = self._record()
        if done or record is None or record.version != archive.version:
            self._keep_former(record)
            raise HostError(f"The installer of {archive.version} failed: {done or 'it left no record'}.",
                            f"Correct what {INSTALL_LOG} says, then run again.", log=INSTALL_LOG)
        checked = self.host.run(["nvidia-installer", "--sanity", "--silent"], timeout=_LIMIT, check=False)
        if checked.rc != 0:
            raise HostError(f"The installed driver {archive.version} is not whole: {_tail(checked.stderr)}.",
                            "Run again.", log=INSTALL_LOG)
        self._remove_former_sources(archive.version)
        self._note(archive.version, flavour, whole=True)
        self._run_discard(step)
        if not beside:
            self._unload_tested(archive.version)

    def _note(self, version: str, flavour: str, whole: bool) -> None:
        """Before the installer runs: what a killed run then has to take away."""
        kept = list((self._ours() or {}).get("sources", []))
        path = sources_of(version)
        if path not in kept and not self.host.root.exists(path):
            kept.append(path)
        self.host.journal.keep(*_ENTRY, None)
        self.host.journal.note(*_ENTRY, {"version": version, "flavour": flavour, "whole": whole, "sources": kept})

    def _keep_former(self, record: Record | None) -> None:
        """A failed installer mostly has left the former driver alone: then it is whole as before, or there is none."""
        if record is None and self.before is None:
            self.host.journal.forget(*_ENTRY)
        elif record is not None and self.before and self.before["version"] == record.version:
            self.host.journal.note(*_ENTRY, self.before)

    def _remove_former_sources(self, version: str) -> None:
        """DKMS forgets the former driver and leaves its sources."""
        ours = self._ours() or {}
        for path in [path for path in ours.get("sources", []) if path != sources_of(version)]:
            shutil.rmtree(self.host.root.at(path), ignore_errors=True)
            ours["sources"].remove(path)
            self.host.journal.note(*_ENTRY, dict(ours))

    def _unload_tested(self, version: str) -> None:
        """Modules that an older installer left loaded by its test, without the host's parameters."""
        if not skips_load(version):
            for module in UNLOAD_ORDER:
                if self.host.root.exists(f"/sys/module/{module}"):
                    self.host.run(["rmmod", module], check=False)

    def _run_modules(self, step: Step) -> None:
        archive, flavour = step.data["archive"], step.data["flavour"]
        done = self._call(archive, module_options(archive.version, flavour, self.now.kernel,
                                                  tools.signing_key(self.host, self.now)))
        if done:
            raise HostError(f"The modules of {archive.version} were not added: {done}.",
                            f"Correct what {INSTALL_LOG} says, then run again.", log=INSTALL_LOG)
        self._run_discard(step)

    def _call(self, archive: Archive, options: t.Sequence[str]) -> str:
        """Runs the archive, which unpacks itself beside itself; what went wrong, or nothing."""
        path = fetching.path_of(archive)
        os.chmod(path, 0o700)
        done = self.host.run(["sh", path, *options], timeout=_LIMIT, check=False, env={"TMPDIR": fetching.FOLDER})
        return "" if done.rc == 0 else _tail(done.stderr) or f"exit code {done.rc}"

    def _run_uninstall(self, step: Step) -> None:
        ours = self._ours() or {}
        versions = {step.target, str(ours.get("version", step.target))}
        take_away(self.host.run, self.host.root, sorted(versions), ours.get("sources", []), self.now.kernel,
                  self.now.arch)
        self.host.journal.forget(*_ENTRY)

    def _run_discard(self, _step: Step) -> None:
        shutil.rmtree(fetching.FOLDER, ignore_errors=True)
        self.host.journal.forget(*_ARCHIVE)

    def _run_write(self, step: Step) -> None:
        self.host.journal.write_file(step.target, UNIT_TEXT)
        self.host.run(["systemctl", "daemon-reload"])

    def _run_drop(self, step: Step) -> None:
        self.host.run(["systemctl", "disable", "--now", PERSISTENCED], timeout=120, check=False)
        self.host.journal.restore_file(step.target)
        self.host.run(["systemctl", "daemon-reload"])


def _tail(text: str) -> str:
    """The errors of the installer in one line; it wraps them at the width of a terminal."""
    errors = [" ".join(part.split("WARNING:")[0].split()) for part in text.split("ERROR:")[1:]]
    return " / ".join(errors[-_ERRORS:] or text.split("\n")[-2:]).strip(" ./")
