# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What brings the driver's files to a host: packages now, others by the same protocol."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import build_log
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.extras import NEEDED, wanted_extras, wanted_tools
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.kernels import lost_headers, missing_headers
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import kernels
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile import RunfileDelivery
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import all_sources, sources_for
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import check_version
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    CommandError,
    HostError,
    InputError,
    RepositoryError,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import driver_packages
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Manager, PackageState, Probe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.managers import MANAGERS
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import AGAIN, INSTALL, PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step


class Delivery(t.Protocol):
    """One way to bring the driver's files, on one host. name: of the source, as the option has it."""

    name: str
    dkms: bool

    def installed(self) -> str | None:
        """The vendor's version that this way has brought or found; costs no more than one query of the database."""

    def plan(self, now: Situation, flavour: str) -> tuple[str, list[Step]]:
        """C((version, steps)): no steps and no network when what is installed will do."""

    def displaced(self) -> list[Step]:
        """The steps that take its driver away because another way is to bring it."""

    def absent(self) -> list[Step]:
        """The steps that take away all that it brought, for good."""

    def execute(self, step: Step) -> bool:
        """Runs a step of its own; False when it is another's."""

    def settle(self) -> None:
        """After C(absent): forgets what is as it was before us."""

    def left(self) -> list[str]:
        """After C(absent): sentences on what stays and why."""


class PackageDelivery:
    """Packages of one source; without a source only what the journal holds can be taken away.

    state: the package database where it was read just now, so that a plan need not.
    """

    def __init__(self, host: Host, manager: Manager, source: Source | None, state: PackageState | None = None) -> None:
        self.host = host
        self.state = state
        self.source = source
        self.name = source.name if source else "packages"
        self.dkms = source.dkms if source else True
        self.repository = source.repository(host.spec) if source else None
        self.work = PackageWork(manager, host.journal, self.repository)
        self.found = PackageState({})  # what L(plan) found

    def installed(self) -> str | None:
        """See L(Delivery)."""
        return self._source.installed(self.work.manager.read().installed)

    @property
    def _source(self) -> Source:
        if self.source is None:
            raise HostError("No source of packages was chosen.", "This is a bug: report it.")
        return self.source

    def plan(self, now: Situation, flavour: str) -> tuple[str, list[Step]]:
        """See L(Delivery)."""
        spec, source, work = self.host.spec, self._source, self.work
        state = self.found = self.state or work.manager.read()
        installed = source.installed(state.installed)
        needing = kernels(self.host.root, now)
        if installed is not None and spec.accepts(installed):
            wanted = self._wanted(now, installed, flavour)
            wanted.update(source.modules(installed, flavour, needing))
            pin = next((name for name in source.pins(installed) if name in state.installed), None)
            if (work.is_present(state, {**wanted, **({pin: None} if pin else {})})
                    and not self._also(now, state, installed)
                    and work.holds(self._held(source, installed, flavour, pin))
                    and not source.rivals(state.installed, installed, flavour) and not work.former()):
                return installed, work.plan_lost(state, driver_packages(state.installed))
        with work.manager.probe(source.repository(spec)) as probe:
            version = self._choose(now, probe, flavour, installed)
            wanted = self._wanted(now, version, flavour)
            wanted.update(self._modules(probe, version, flavour, needing, state))
            pin = next((name for name in source.pins(version) if name in probe.candidates), None)
            pins: dict[str, str | None] = {pin: None} if pin else {}
            files = self._held(source, version, flavour, pin)
            steps = work.plan_repair(state, [*wanted, *pins]) + work.plan_repository(probe) + work.plan_holds(files)
            with lost_headers():
                steps += work.plan_install(probe, state, wanted, pins, self._also(now, state, version),
                                           source.rivals(state.installed, version, flavour), files)
        steps += work.plan_lost(state, driver_packages(state.installed), steps)
        return version, steps + work.plan_former()

    def _wanted(self, now: Situation, version: str, flavour: str) -> dict[str, str | None]:
        """The packages of a version: name to the vendor's version, None for any."""
        spec, source = self.host.spec, self._source
        extras = wanted_extras(spec, now.fabric)
        for kind, option in NEEDED.items():
            if kind in extras and not source.companions(version, [kind]):
                raise InputError(f"source {source.name} has no {kind.replace('_', ' ')} of {version}, which this host "
                                 "needs or you asked for.", f"Use another source, or set {option}.", path="source",
                                 value=source.name)
        return {**source.packages(version, flavour, spec.persistenced), **source.companions(version, extras)}

    @staticmethod
    def _held(source: Source, version: str, flavour: str, pin: str | None) -> dict[str, bytes | None]:
        """The files that hold the version; none of ours where a pinning package does."""
        return {path: None if pin else content for path, content in source.pin_files(version, flavour).items()}

    def _modules(self, probe: Probe, version: str, flavour: str, needing: t.Sequence[str],
                 state: PackageState) -> dict[str, str | None]:
        """Ready-made modules of the kernels and what follows them. Raises RepositoryError where a kernel has none."""
        modules = self._source.modules(version, flavour, needing)
        missing = [name for name in modules if name not in probe.candidates]
        if missing:
            stem = missing[0][:-len(needing[list(modules).index(missing[0])])]
            there = sorted(name[len(stem):] for name in probe.candidates if name.startswith(stem)
                           and name[len(stem):][:1].isdigit())
            raise RepositoryError(f"The repository has no ready-made modules {', '.join(missing)}.",
                                  f"It has them for the kernels {', '.join(there) or '(none)'}: boot one of these, or "
                                  "use source distribution, which builds modules.", missing=missing, available=there)
        followers = self._source.followers(version, flavour, state.installed)
        return {**modules, **{name: None for name in followers if name in probe.candidates}}

    def _also(self, now: Situation, state: PackageState, version: str) -> list[str]:
        """Missing packages of the host's own sources: headers that modules are built with, and what NVLSM runs."""
        spec = self.host.spec
        headers = missing_headers(self.host.root, now, version, spec.next_kernel) if self._source.dkms else []
        broken = [name for name in headers if name in state.installed]
        if broken:
            raise HostError(f"The headers of a kernel are missing although {broken[0]} is installed.",
                            f"Install it again: apt-get install --reinstall {broken[0]}.", package=broken[0])
        return headers + [name for name in wanted_tools(spec, now.fabric) if name not in state.installed]

    def _choose(self, now: Situation, probe: Probe, flavour: str, installed: str | None) -> str:
        """The version to install: the one named, the one that is there if it will do, or the newest that will do."""
        spec, offered = self.host.spec, self._source.offered(probe.candidates)
        if spec.version:
            if spec.version not in offered and spec.version != installed:
                raise RepositoryError(f"The repository has no driver {spec.version}.",
                                      f"It has {', '.join(offered[:12])}.", wanted=spec.version, available=offered)
            return spec.version
        # An archive drops what it has a newer version of: then that is what can be repaired with.
        if installed is not None and spec.accepts(installed) and (installed in offered or not offered):
            return installed
        problem: InputError | None = None
        for version in offered:
            if spec.accepts(version):
                try:
                    check_version(version, flavour, now.gpus)
                    return version
                except InputError as error:
                    problem = error
        led = self._source.ended(probe.candidates, int(spec.branch)) if spec.branch else None
        if led is not None:
            raise InputError(f"Branch {spec.branch} has ended: its packages now bring branch {led}.",
                             f"Set branch to {led}, or use source cuda_repository.", path="branch", value=spec.branch,
                             allowed=offered)
        raise problem or RepositoryError(f"The repository has no driver of {spec.wanted()}.",
                                         f"It has {', '.join(offered[:12])}.", wanted=spec.wanted(), available=offered)

    def exactly(self, former: PackageState) -> list[Step]:
        """The steps that bring packages which we have changed to their former versions, as far as they are offered.

        Some are of no certain version beside a driver, so that L(plan) leaves them.
        """
        state, known = self.work.manager.read(), self.host.journal.of_kind("package")
        wanted = {name: version for name, version in former.installed.items()
                  if name in known and state.installed.get(name) != version}
        if not wanted:
            return []
        with self.work.manager.probe(self._source.repository(self.host.spec)) as probe:
            there = {name: version for name, version in wanted.items() if version in probe.candidates.get(name, ())}
            return self.work.plan_install(probe, state, there) if there else []

    def displaced(self) -> list[Step]:
        """Packages that give way to a .run file; sources of packages displace each other within one transaction."""
        if not self.host.journal.of_kind("package"):
            return []
        steps = self.work.plan_displaced(self.work.manager.read())
        return [replace(step, data={**step.data, "unload": "its files go"}) for step in steps]

    def absent(self) -> list[Step]:
        """See L(Delivery)."""
        journal = self.host.journal
        return self.work.plan_absent(self.work.manager.read() if journal.entries else PackageState({}))

    def execute(self, step: Step) -> bool:
        """See L(Delivery)."""
        try:
            return self.work.execute(step)
        except CommandError as error:
            log = build_log() if step.action in (INSTALL, AGAIN) else ""
            if log and "dkms" in str(error.details["stderr"]) + str(error.details["stdout"]):
                raise HostError(f"The kernel module was not built: {log}", "Correct what the log says, then run again.",
                                **error.details) from error
            raise

    def settle(self) -> None:
        """See L(Delivery)."""
        if self.host.journal.of_kind("package"):
            self.work.settle(self.work.manager.read())

    def left(self) -> list[str]:
        """See L(Delivery)."""
        state = self.work.manager.read() if self.host.journal.entries else PackageState({})
        return [f"{name} was there before and stays" for name, entry in self.host.journal.of_kind("package").items()
                if entry["before"]["state"] == "installed" and name in state.installed]


def manager_for(now: Situation, host: Host) -> Manager:
    """The host's package manager. Raises InputError."""
    make = MANAGERS.get(now.family)
    if make is None:
        raise InputError(f"Packages of {now.os_id} {now.os_version} are not supported yet.",
                         "With state adopted, an installed driver is verified and left alone.", path="state",
                         value=now.family, allowed=list(MANAGERS))
    return make(host.run, lock_timeout=host.spec.lock_timeout)


def choose(host: Host, now: Situation) -> tuple[Delivery, list[Delivery]]:
    """C((the one that brings the driver, the others that have brought one)).

    With source C(auto) the first that has a driver that will do, otherwise the first that serves this distribution.
    """
    if host.spec.source == RunfileDelivery.name:
        return _runfile(host, now), _packages(host, now)
    manager = manager_for(now, host)
    runfile = _runfile(host, now)
    sources = sources_for(host.spec.source, now.os_id, now.os_version, now.arch)
    chosen, state = sources[0], None
    if host.spec.source == "auto":
        state = manager.read()
        accepted = [source for source in sources if host.spec.accepts(source.installed(state.installed))]
        if not accepted and host.spec.accepts(runfile.installed()):
            return runfile, _packages(host, now)
        chosen = next(iter(accepted), chosen)
    return PackageDelivery(host, manager, chosen, state), [runfile]


def installed(host: Host, now: Situation) -> tuple[str, str] | None:
    """C((source, version)) of the driver that the host has, whatever brought it; needs no repository."""
    found = [(RunfileDelivery.name, _runfile(host, now).installed())]
    if now.family in MANAGERS:
        packages = manager_for(now, host).read().installed
        found[:0] = [(source.name, source.installed(packages))
                     for source in all_sources(now.os_id, now.os_version, now.arch)]
    return next(((name, version) for name, version in found if version is not None), None)


def removable(host: Host, now: Situation) -> list[Delivery]:
    """Every way that may have left something in the journal. The .run's uninstaller needs packages: so it is first."""
    return [_runfile(host, now), *_packages(host, now)]


def _runfile(host: Host, now: Situation) -> RunfileDelivery:
    make = MANAGERS.get(now.family)
    return RunfileDelivery(host, now, make(host.run, lock_timeout=host.spec.lock_timeout) if make else None)


def _packages(host: Host, now: Situation) -> list[Delivery]:
    """What packages have left; on a distribution whose packages we do not know none has."""
    return [PackageDelivery(host, manager_for(now, host), None)] if now.family in MANAGERS else []
