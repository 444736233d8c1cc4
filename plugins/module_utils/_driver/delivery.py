# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two ways to install the files of the driver on a host: from packages, or from a .run file."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import build_log
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gpudirect import NEEDED, wanted_extras, wanted_tools
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.kernel_hold import finding_headers
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.missing_headers import (
    explain_missing_headers,
    missing_headers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import kernels
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile import RunfileDelivery
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import COMPUTE, FULL, Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import all_sources, sources_for
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import check_version
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
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
    """Installs the files of the driver on a host.

    name: a value of the option C(source). dkms: whether DKMS builds the modules. installation: the set of packages that
    L(plan) has planned, C(full) or C(compute-only). warnings: sentences for the user about the plan.
    """

    name: str
    dkms: bool
    installation: str
    warnings: t.List[str]

    def installed(self) -> str | None:
        """The vendor version of the driver that this delivery has installed, None if it has installed none."""

    def plan(self, now: DriverState, flavour: str) -> tuple[str, list[Step]]:
        """C((version, steps)) of the installation. If a suitable driver is installed, plans no steps and uses no
        network."""

    def displaced(self) -> list[Step]:
        """The steps that remove the driver of this delivery, so that another delivery can install a driver."""

    def absent(self) -> list[Step]:
        """The steps that remove everything that this delivery has installed."""

    def execute(self, step: Step) -> bool:
        """Runs a step of this delivery. Returns False for other steps."""

    def forget_restored(self) -> None:
        """Deletes the journal entries of restored packages. It is called after the steps of C(absent)."""

    def remaining(self) -> list[str]:
        """One sentence for each package or driver that the steps of C(absent) do not remove."""


class PackageDelivery:
    """Installs packages of one source. Without a source, only a removal can be planned.

    state: the content of the package database, if it was read immediately before.
    """

    def __init__(self, host: Host, manager: Manager, source: Source | None, state: PackageState | None = None) -> None:
        self.host = host
        self.state = state
        self.source = source
        self.name = source.name if source else "packages"
        self.dkms = source.dkms if source else True
        self.installation = host.spec.installation
        self.warnings: t.List[str] = []
        self.repository = source.repository(host.spec) if source else None
        self.work = PackageWork(manager, host.journal, self.repository)

    def installed(self) -> str | None:
        """See L(Delivery)."""
        return self._source.installed(self.work.manager.read().installed)

    @property
    def _source(self) -> Source:
        if self.source is None:
            raise HostError("An installation was planned without a package source.",
                            "This is a bug of the collection: report it.")
        return self.source

    def plan(self, now: DriverState, flavour: str) -> tuple[str, list[Step]]:
        """See L(Delivery)."""
        spec, source, work = self.host.spec, self._source, self.work
        state = self.state or work.manager.read()
        self.installation = self._choose_installation(now, state)
        installed = source.installed(state.installed)
        releases = kernels(self.host.root, now)
        if installed is not None and spec.accepts(installed):
            wanted = self._wanted(now, installed, flavour)
            wanted.update(source.modules(installed, flavour, releases))
            pin = next((name for name in source.pins(installed) if name in state.installed), None)
            if (work.is_present(state, {**wanted, **({pin: None} if pin else {})})
                    and not self._prerequisites(now, state, installed)
                    and work.holds(self._pin_files(source, installed, flavour, pin))
                    and not source.conflicting(state.installed, installed, flavour) and not work.former()
                    and not self._surplus(state)):
                return installed, work.plan_lost(state, driver_packages(state.installed))
        with work.manager.probe(source.repository(spec)) as probe:
            version = self._choose(now, probe, flavour, installed)
            wanted = self._wanted(now, version, flavour)
            wanted.update(self._modules(probe, version, flavour, releases, state))
            pin = next((name for name in source.pins(version) if name in probe.candidates), None)
            pins: dict[str, str | None] = {pin: None} if pin else {}
            files = self._pin_files(source, version, flavour, pin)
            steps = work.plan_repair(state, [*wanted, *pins]) + work.plan_repository(probe) + work.plan_holds(files)
            # An archive deletes a version when it receives a newer one.
            known = installed if installed in source.offered(probe.candidates) else version
            gone = self._not_needed(state, known, flavour) if self._surplus(state) else []
            steps += work.plan_surplus(state, gone, f"they are not part of the installation {self.installation}")
            with explain_missing_headers():
                steps += work.plan_install(probe, state, wanted, pins, self._prerequisites(now, state, version),
                                           source.conflicting(state.installed, version, flavour), files, gone)
        steps += work.plan_lost(state, driver_packages(state.installed), steps)
        return version, steps + work.plan_former()

    def _wanted(self, now: DriverState, version: str, flavour: str) -> dict[str, str | None]:
        """The packages of a version, as C({name: vendor version}), with None for any version."""
        spec, source = self.host.spec, self._source
        extras = wanted_extras(spec, now.fabric)
        for kind, option in NEEDED.items():
            if kind in extras and not source.companions(version, [kind]):
                raise InputError(f"{source.name} has no {kind.replace('_', ' ')} for driver {version}, which this host "
                                 "or an option needs.", f"Use another source, or set {option}.", path="source",
                                 value=source.name)
        return {**source.packages(version, flavour, spec.persistenced, self.installation),
                **source.companions(version, extras)}

    def _choose_installation(self, now: DriverState, state: PackageState) -> str:
        """The installation in the options, else the installed one, else the first of the source. Raises InputError."""
        given, source = self.host.spec.installation, self._source
        if given not in ("auto", *source.installations):
            allowed = ["auto", *source.installations]
            raise InputError(f"Source {source.name} has no {given} packages for {now.os_id} {now.os_version}.",
                             f"Set one of {', '.join(allowed)}.", path="installation", value=given, allowed=allowed)
        kept = source.installation(state.installed) if given == "auto" else given
        return source.installations[0] if kept == "auto" else kept

    def _surplus(self, state: PackageState) -> list[str]:
        """The installed packages that the option C(installation) excludes."""
        return self._source.surplus(state.installed) if self.host.spec.installation == COMPUTE else []

    def _not_needed(self, state: PackageState, version: str, flavour: str) -> list[str]:
        """The packages of the full driver that are installed, and that the compute-only driver does not need.

        The package manager determines them: what it would install for each of the two on a host without a driver.
        If packages of others prevent this, adds a warning and returns only those of the option. Raises RepositoryError
        if the repository lacks the version, and HostError if other packages need these packages.
        """
        gone = self._surplus(state)
        # A simulation leaves its pins in the probe, so this one is not used for others.
        with self.work.manager.probe(self._source.repository(self.host.spec)) as probe:
            own = [name for name in driver_packages(state.installed) if name in probe.candidates]
            try:
                full, needed = (self._closure(probe, own, version, flavour, name) for name in (FULL, COMPUTE))
                gone = sorted({*gone, *full - needed} & {*own, *gone})
            except RepositoryError as error:
                raise RepositoryError(f"The packages that compute-only excludes cannot be determined: {error.message}",
                                      "Set a version that the repository has, or set installation to full.",
                                      **error.details) from error
            except CommandError:
                raise
            except HostError as error:
                self.warnings.append("Libraries that compute-only excludes may remain, because they cannot be "
                                     f"determined: {error.message}")
        others = sorted({change.name for change in self.work.manager.simulate_removal(gone)} - {*gone})
        if others:
            raise HostError(f"Other packages need those that compute-only excludes: {', '.join(others)}.",
                            "Remove them first, or set installation to full.", packages=others)
        return gone

    def _closure(self, probe: Probe, own: t.Sequence[str], version: str, flavour: str, installation: str) -> set[str]:
        """The packages that an installation needs. own: the packages of the driver that are installed."""
        source = self._source
        wanted = source.packages(version, flavour, self.host.spec.persistenced, installation)
        pin = next((name for name in source.pins(version) if name in probe.candidates), None)
        pins = {pin: probe.resolve(pin, None)} if pin else {}
        files = {path: content or b"" for path, content in self._pin_files(source, version, flavour, pin).items()}
        exact = {name: probe.resolve(name, wanted[name]) for name in wanted}
        return {change.name for change in probe.simulate(exact, pins, own, (), files) if change.after}

    @staticmethod
    def _pin_files(source: Source, version: str, flavour: str, pin: str | None) -> dict[str, bytes | None]:
        """The content of each file that fixes the version, by path; None if a pinning package fixes the version
        instead."""
        return {path: None if pin else content for path, content in source.pin_files(version, flavour).items()}

    def _modules(self, probe: Probe, version: str, flavour: str, releases: t.Sequence[str],
                 state: PackageState) -> dict[str, str | None]:
        """The packages with prebuilt modules for the kernels, and the metapackages of these. Raises RepositoryError."""
        modules = self._source.modules(version, flavour, releases)
        missing = [name for name in modules if name not in probe.candidates]
        if missing:
            stem = missing[0][:-len(releases[list(modules).index(missing[0])])]
            available = sorted(name[len(stem):] for name in probe.candidates if name.startswith(stem)
                               and name[len(stem):][:1].isdigit())
            raise RepositoryError(f"The repository of source {self.name} has no package {', '.join(missing)}.",
                                  f"It has built modules for the kernels {', '.join(available) or '(none)'}: boot one "
                                  "of them, or use source distribution, which builds modules.", missing=missing,
                                  available=available)
        held = self.host.spec.hold_kernel  # the metapackages would bring the next kernel
        followers = [] if held else self._source.followers(version, flavour, state.installed)
        return {**modules, **{name: None for name in followers if name in probe.candidates}}

    def _prerequisites(self, now: DriverState, state: PackageState, version: str) -> list[str]:
        """Missing packages of the distribution: kernel headers, and tools that NVLSM runs."""
        spec = self.host.spec
        headers = missing_headers(self.host.root, now, version, spec.next_kernel) if self._source.dkms else []
        broken = [name for name in headers if name in state.installed]
        if broken:
            raise HostError(f"The package {broken[0]} is installed, but its kernel headers are missing.",
                            f"Reinstall it, for example: apt-get install --reinstall {broken[0]}",
                            package=broken[0])
        return headers + [name for name in wanted_tools(spec, now.fabric) if name not in state.installed]

    def _choose(self, now: DriverState, probe: Probe, flavour: str, installed: str | None) -> str:
        """The version to install: the version in the options, else a suitable installed version, else the newest
        suitable one.

        Raises InputError, RepositoryError.
        """
        spec, offered = self.host.spec, self._source.offered(probe.candidates)
        if spec.version:
            if spec.version not in offered and spec.version != installed:
                raise RepositoryError(f"The repository of source {self.name} has no driver {spec.version}.",
                                      f"It has {', '.join(offered[:12]) or 'no driver'}.", wanted=spec.version,
                                      available=offered)
            return spec.version
        # An archive deletes a version when it receives a newer one; a repair then installs the newer version.
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
        successor = self._source.successor(probe.candidates, int(spec.branch)) if spec.branch else None
        if successor is not None:
            raise InputError(f"Branch {spec.branch} has ended: its packages install branch {successor}.",
                             f"Set branch to {successor}, or use source cuda_repository.", path="branch",
                             value=spec.branch, allowed=offered)
        raise problem or RepositoryError(f"The repository of source {self.name} has no driver of {spec.wanted()}.",
                                         f"It has {', '.join(offered[:12]) or 'no driver'}.", wanted=spec.wanted(),
                                         available=offered)

    def displaced(self) -> list[Step]:
        """See L(Delivery). Only called before a .run file is installed, because packages replace packages in one
        transaction."""
        if not self.host.journal.of_kind("package"):
            return []
        steps = self.work.plan_displaced(self.work.manager.read())
        return [replace(step, data={**step.data, "unload": "its files are removed"}) for step in steps]

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
            if log and "dkms" in error.output:
                raise HostError(f"DKMS did not build the kernel modules: {log}", "Correct the error, then run again.",
                                **error.details) from error
            raise

    def forget_restored(self) -> None:
        """See L(Delivery)."""
        if self.host.journal.of_kind("package"):
            self.work.forget_restored(self.work.manager.read())

    def remaining(self) -> list[str]:
        """See L(Delivery)."""
        state = self.work.manager.read() if self.host.journal.entries else PackageState({})
        return [f"the package {name} was installed before and is kept"
                for name, entry in self.host.journal.of_kind("package").items()
                if entry["before"]["state"] == "installed" and name in state.installed]


def manager_for(now: DriverState, host: Host) -> Manager:
    """The package manager of the host. Raises InputError."""
    make = MANAGERS.get(now.family)
    if make is None:
        raise InputError(f"Packages of {now.os_id} {now.os_version} are not supported yet.",
                         "Use state adopted, which only verifies an installed driver.", path="state",
                         value=now.family, allowed=list(MANAGERS))
    run = finding_headers(host.run, host.root) if now.family == "redhat" else host.run
    return make(run, lock_timeout=host.spec.lock_timeout)


def choose(host: Host, now: DriverState) -> tuple[Delivery, list[Delivery]]:
    """C((delivery, others)): the delivery for the option C(source), and those that may have installed another driver.

    For C(auto), the delivery is that of a suitable installed driver, otherwise that of the distribution's first source.
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


def installed(host: Host, now: DriverState) -> tuple[str, str, str] | None:
    """C((source, version, installation)) of the installed driver, None if no driver is installed. Does not read any
    repository. installation: C(auto) if it is unknown."""
    runfile = _runfile(replace(host, spec=replace(host.spec, installation="auto")), now)
    found = [(RunfileDelivery.name, runfile.installed(), runfile.installation)]
    if now.family in MANAGERS:
        packages = manager_for(now, host).read().installed
        found[:0] = [(source.name, source.installed(packages), source.installation(packages))
                     for source in all_sources(now.os_id, now.os_version, now.arch)]
    return next(((name, version, kept) for name, version, kept in found if version is not None), None)


def removable(host: Host, now: DriverState) -> list[Delivery]:
    """All deliveries that may have entries in the journal. The .run file comes first, because its removal needs
    packages."""
    return [_runfile(host, now), *_packages(host, now)]


def _runfile(host: Host, now: DriverState) -> RunfileDelivery:
    return RunfileDelivery(host, now, manager_for(now, host) if now.family in MANAGERS else None)


def _packages(host: Host, now: DriverState) -> list[Delivery]:
    """The delivery of packages; empty if the distribution is not supported."""
    return [PackageDelivery(host, manager_for(now, host), None)] if now.family in MANAGERS else []
