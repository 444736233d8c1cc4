# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the driver from NVIDIA's .run file; implements C(delivery.Delivery).

The journal has an entry C(runfile, driver) for an installed driver: C({version, flavour, installation, whole, sources,
archive}). whole is false while the installer runs. sources are the folders with module sources that the installer has
created. archive is the .run file, so that the driver can be installed again. A driver from a .run file that this
collection has not installed is never changed. If it is suitable, it is kept; otherwise the run fails.
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
    remove_driver,
    sources_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import COMPUTE, FULL
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import UNLOAD_ORDER, DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._former_driver import Archive as FormerArchive
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
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
# The installer contains only samples of units. The persistence daemon writes the PID file.
UNIT_TEXT = b"""\
# Written by gpuops.nvidia: the .run file contains no unit for the persistence daemon.
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
# Maximum seconds for a build of all modules on a slow machine.
_LIMIT = 3600
_ERRORS = 6
_FOREIGN_HINT = ("To keep this driver, use state adopted or set its version. To replace it, run nvidia-uninstall, "
                 "then run again.")


class Installed(t.TypedDict, total=False):
    """The journal entry of an installed driver, as the description of this file explains."""

    version: str
    flavour: str
    installation: str
    whole: bool
    sources: t.List[str]
    archive: FormerArchive


def origin(journal: Journal, version: str) -> FormerArchive | None:
    """The .run file from which this collection has installed a version, None if it has not."""
    entry = journal.get(*_ENTRY)
    owned = t.cast(Installed, (entry or {}).get("after") or {})
    return owned.get("archive") if owned.get("version") == version else None


def installation_of(journal: Journal) -> str:
    """The option installation of the driver that this collection has installed, C(auto) if there is none."""
    entry = journal.get(*_ENTRY)
    return str(((entry or {}).get("after") or {}).get("installation", FULL)) if entry else "auto"


class RunfileDelivery:
    """Installs a driver from a .run file. manager: the package manager with which build tools are installed; None if
    the package manager of the host is not supported."""

    name = "runfile"
    dkms = True

    def __init__(self, host: Host, now: DriverState, manager: Manager | None) -> None:
        self.host = host
        self.now = now
        wanted = (host.spec.installation, installation_of(host.journal), FULL)
        self.installation = next(name for name in wanted if name != "auto")
        self.warnings: t.List[str] = []
        self.work = PackageWork(manager, host.journal, None) if manager is not None else None
        self.before = self._owned()

    def _owned(self) -> Installed | None:
        entry = self.host.journal.get(*_ENTRY)
        return t.cast(Installed, dict(entry["after"] or {})) if entry else None

    def _record(self) -> Record | None:
        return read_record(self.host.root)

    def installed(self) -> str | None:
        """See C(Delivery). Returns None if the installation is incomplete or files are missing."""
        record, owned = self._record(), self._owned()
        if record is None or not record.complete or missing_files(self.host.root, record):
            return None
        return record.version if owned is None or owned.get("whole") and owned["version"] == record.version else None

    def plan(self, now: DriverState, flavour: str) -> tuple[str, list[Step]]:
        """See C(Delivery)."""
        spec, owned = self.host.spec, self.before
        former = owned["version"] if owned and spec.accepts(owned["version"]) else None
        archive = archive_of(spec.runfile, spec.version, now.arch) or archive_of(spec.runfile, former, now.arch)
        installed = self.installed()
        wanted = archive.version if archive else installed
        if installed is not None and installed == wanted and spec.accepts(installed):
            if owned is None and self.installation != FULL:
                raise InputError(f"Driver {installed} was installed with a .run file, but not by this collection, so "
                                 f"it is not known whether it is {self.installation}.", "To keep this driver, set "
                                 "installation to auto. To replace it, run nvidia-uninstall, then run again.",
                                 path="installation", value=self.installation, allowed=["auto", FULL])
            reason = self._difference(installed, flavour)
            if not reason:
                return installed, self._unit()
            same = owned is not None and (owned["flavour"], owned.get("installation", FULL)) == (
                flavour, self.installation)
            if same and archive is not None and skips_load(installed):
                # Only the registration with DKMS is missing, so the files and the loaded modules are not changed.
                return installed, [*self._prepare(archive, flavour), self._step(ADD_MODULES, archive, flavour, reason),
                                   *self._unit()]
        if self._record() is not None and owned is None:
            self._refuse_foreign()
        if archive is None:
            raise InputError("The .run file to install is not known.", "Set version, or runfile.src with the original "
                             "name of the file.", path="runfile.src")
        if not spec.accepts(archive.version):
            raise InputError(f"{archive.src} has driver {archive.version}, but {spec.wanted()} is desired.",
                             "Correct runfile.src, version or branch.", path="runfile.src", value=archive.src,
                             allowed=spec.wanted())
        return archive.version, self._install(now, archive, flavour)

    def _difference(self, installed: str, flavour: str) -> str:
        """The reason why an installed driver is not suitable, empty if it is suitable.

        For a driver that this collection has installed, the journal contains the module type. For another driver, it is
        the type of the loaded module.
        """
        owned = self.before
        installed_flavour = owned["flavour"] if owned else self.now.flavour
        if installed_flavour not in (flavour, None):
            return f"its modules are {installed_flavour}"
        if owned and owned.get("installation", FULL) != self.installation:
            return f"it is {owned.get('installation', FULL)}, not {self.installation}"
        if installed not in self.now.registered:
            return "its modules are not registered with DKMS"
        return ""

    def _refuse_foreign(self) -> None:
        record = self._record()
        version = record.version if record else "unknown"
        raise HostError(f"Driver {version} was installed with a .run file, but not by this collection.",
                        _FOREIGN_HINT, version=version)

    def _install(self, now: DriverState, archive: Archive, flavour: str) -> list[Step]:
        if not skips_load(archive.version) and now.nouveau in ("loaded", "used"):
            raise HostError(f"nouveau uses the GPUs, but the installer of {archive.version} loads NVIDIA's modules.",
                            "Deny nouveau (blacklist nouveau in /etc/modprobe.d), reboot, then run again.")
        if not skips_load(archive.version) and self.host.spec.image:
            raise HostError(f"The installer of {archive.version} loads the modules, which needs a GPU.",
                            "For an image, use a newer version or another source.", version=archive.version)
        tools.refuse_packages(self.host, now, self._record())
        steps = self._prepare(archive, flavour)
        if self.before is not None and not self.before.get("whole"):
            steps.append(self._uninstall("an installation was interrupted"))
        steps.append(self._step(INSTALL, archive, flavour, self._why(archive, flavour)))
        return steps + self._unit()

    def _why(self, archive: Archive, flavour: str) -> str:
        owned = self.before
        if owned is None or not owned.get("whole"):
            return f"from {archive.src}"
        if owned["version"] != archive.version or owned["flavour"] != flavour:
            return f"{owned['version']} ({owned['flavour']}) is installed"
        if owned.get("installation", FULL) != self.installation:
            return f"{self.installation} instead of {owned.get('installation', FULL)}"
        return "files are missing, or the driver is not registered with DKMS"

    def _prepare(self, archive: Archive, flavour: str) -> list[Step]:
        """The steps before the driver changes: build tools and the download. Checks the digest and the free space."""
        install_options(archive.version, flavour)  # raises an error if the branch does not have this module type
        tools.check_key(self.host, self.now)
        steps = tools.plan_tools(self.host, self.now, archive.version, self.work)
        digest = fetching.wanted_digest(archive)
        if not fetching.is_downloaded(archive, digest):
            fetching.check_free_space(fetching.size_of(archive))
            steps.append(Step(FETCH, archive.src, f"sha256:{digest}", data={"archive": archive, "digest": digest}))
        return [Step(step.action, step.target, step.reason, data={**step.data, "phase": "prepare"}) for step in steps]

    def _step(self, action: str, archive: Archive, flavour: str, why: str) -> Step:
        kernel = f" for kernel {self.now.kernel}" if action == ADD_MODULES else ""
        needs_unload = "" if action == ADD_MODULES else "its files are replaced"
        return Step(action, f"{archive.version} {flavour}{kernel}", why, data={
            "archive": archive, "flavour": flavour, "modules": True, "unload": needs_unload})

    def _unit(self) -> list[Step]:
        """The step that writes the unit of the persistence daemon. L(services.Services) starts the unit."""
        if not self.host.spec.persistenced or self._has_unit():
            return []
        return [Step(WRITE_UNIT, UNIT_FILE, "the .run file contains none")]

    def _has_unit(self) -> bool:
        if self.host.root.exists(UNIT_FILE) or self.host.journal.get("file", UNIT_FILE) is not None:
            return self.host.is_in_place(UNIT_FILE)
        # A unit from a package is removed with the package.
        return self.now.services[PERSISTENCED].state != "absent" and not self.host.journal.of_kind("package")

    def displaced(self) -> list[Step]:
        """See C(Delivery). Raises HostError if this collection has not installed the driver."""
        if self.before is None:
            if self._record() is not None:
                self._refuse_foreign()
            return []
        steps = [self._uninstall("the source has changed")]
        if self.host.journal.get("file", UNIT_FILE) is not None:
            # This unit would override the unit from a package.
            steps.append(Step(DROP_UNIT, UNIT_FILE, "the package contains one"))
        return steps

    def absent(self) -> list[Step]:
        """See C(Delivery)."""
        steps = [self._uninstall("this collection installed it")] if self.before is not None else []
        if self.host.journal.get(*_ARCHIVE) is not None:
            steps.append(Step(DISCARD, fetching.FOLDER, "this collection downloaded it"))
        return steps

    def _uninstall(self, why: str) -> Step:
        record, owned = self._record(), self.before or {}
        version = record.version if record else owned.get("version", "")
        return Step(UNINSTALL, version, why, data={"modules": True, "unload": "its files are removed"})

    def forget_restored(self) -> None:
        """See C(Delivery). Does nothing, because each step deletes its own journal entry."""

    def remaining(self) -> list[str]:
        """See C(Delivery)."""
        record = self._record()
        if record is None or self.before is not None:
            return []
        return [f"driver {record.version} was installed before with a .run file and is kept"]

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
        self._note(archive, flavour, whole=False)
        # An earlier step has unloaded the modules. If GPU clients use them, they stay loaded until a reboot instead.
        loaded = self.host.root.exists("/sys/module/nvidia")
        done = self._call(archive, install_options(archive.version, flavour, tools.signing_key(self.host, self.now),
                                                   loaded, self.installation == COMPUTE))
        record = self._record()
        if done or record is None or record.version != archive.version:
            self._keep_former(record)
            raise HostError(f"The installer of {archive.version} failed: {done or 'it left no record'}.",
                            f"Correct the error in {INSTALL_LOG}, then run again.", log=INSTALL_LOG)
        checked = self.host.run(["nvidia-installer", "--sanity", "--silent"], timeout=_LIMIT, check=False)
        if checked.rc != 0:
            raise HostError(f"The installed driver {archive.version} is incomplete: {_tail(checked.stderr)}.",
                            "Run again.", log=INSTALL_LOG)
        self._remove_former_sources(archive.version)
        self._note(archive, flavour, whole=True)
        self._run_discard(step)
        if not loaded:
            self._unload_tested(archive.version)

    def _note(self, archive: Archive, flavour: str, whole: bool) -> None:
        """Records the installation before it starts, so that the next run can remove it if this run is killed."""
        sources = list((self._owned() or {}).get("sources", []))
        path = sources_of(archive.version)
        if path not in sources and not self.host.root.exists(path):
            sources.append(path)
        self.host.journal.keep(*_ENTRY, None)
        checksum = f"sha256:{archive.sha256}" if archive.sha256 else ""
        self.host.journal.note(*_ENTRY, {
            "version": archive.version, "flavour": flavour, "installation": self.installation, "whole": whole,
            "sources": sources, "archive": {"src": archive.src, "checksum": checksum}})

    def _keep_former(self, record: Record | None) -> None:
        """Restores the journal entry if the failed installer has not changed the former driver, which is the usual
        case."""
        if record is None and self.before is None:
            self.host.journal.forget(*_ENTRY)
        elif record is not None and self.before and self.before["version"] == record.version:
            self.host.journal.note(*_ENTRY, self.before)

    def _remove_former_sources(self, version: str) -> None:
        """Removes the module sources of the former driver, which DKMS would otherwise keep."""
        owned = self._owned() or {}
        for path in [path for path in owned.get("sources", []) if path != sources_of(version)]:
            shutil.rmtree(self.host.root.at(path), ignore_errors=True)
            owned["sources"].remove(path)
            self.host.journal.note(*_ENTRY, dict(owned))

    def _unload_tested(self, version: str) -> None:
        """Unloads the modules that an older installer loaded for its test, because it loads them without the host's
        parameters."""
        if not skips_load(version):
            for module in UNLOAD_ORDER:
                if self.host.root.exists(f"/sys/module/{module}"):
                    self.host.run(["rmmod", module], check=False)

    def _run_modules(self, step: Step) -> None:
        archive, flavour = step.data["archive"], step.data["flavour"]
        done = self._call(archive, module_options(archive.version, flavour, self.now.kernel,
                                                  tools.signing_key(self.host, self.now)))
        if done:
            raise HostError(f"The kernel modules of {archive.version} were not added to DKMS: {done}.",
                            f"Correct the error in {INSTALL_LOG}, then run again.", log=INSTALL_LOG)
        self._run_discard(step)

    def _call(self, archive: Archive, options: t.Sequence[str]) -> str:
        """Runs the .run file, which unpacks itself into its folder. Returns the error message, or an empty text."""
        path = fetching.path_of(archive)
        os.chmod(path, 0o700)
        done = self.host.run(["sh", path, *options], timeout=_LIMIT, check=False, env={"TMPDIR": fetching.FOLDER})
        return "" if done.rc == 0 else _tail(done.stderr) or f"exit code {done.rc}"

    def _run_uninstall(self, step: Step) -> None:
        owned = self._owned() or {}
        versions = {step.target, str(owned.get("version", step.target))}
        remove_driver(self.host.run, self.host.root, sorted(versions), owned.get("sources", []), self.now.kernel,
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
    """The last errors in the output of the installer, joined to one line, because the installer wraps long lines."""
    errors = [" ".join(part.split("WARNING:")[0].split()) for part in text.split("ERROR:")[1:]]
    return " / ".join(errors[-_ERRORS:] or text.split("\n")[-2:]).strip(" ./")
