# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module: reads the state of the components, plans and executes steps, and reads it again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import read_os
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.versions import library_version, loaded_version
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import JOURNAL_ROOT, Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._libraries import load
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    Manager,
    PackageState,
    Repository,
    upstream,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.managers import MANAGERS
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import ADD, INSTALL
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
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import (
    Component,
    Desired,
    Host,
    Options,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.cuda import Cuda
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.dcgm import Dcgm
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.dcgm_exporter import DcgmExporter
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.node_status import NodeStatusExporter
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.sources import source_for
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.work import ABSENT, RESTART, START, WRITE, Work
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import Service, read_units

# In the order of installation; a removal has the reverse order. A new component needs a file and an entry here.
COMPONENTS: t.Tuple[Component, ...] = (Cuda(), Dcgm(), DcgmExporter(), NodeStatusExporter())
_STARTS = (START, RESTART)
NAMES: t.Tuple[str, ...] = tuple(component.name for component in COMPONENTS)


def driver_level() -> str | None:
    """The CUDA level of the installed driver (C(13.2)) according to its library, None without a driver."""
    try:
        library = load("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0 or not number.value:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


@dataclass
class Part:
    """The steps of one component."""

    steps: t.List[Step]
    pending: t.List[PendingStep] = field(default_factory=list)
    reasons: t.List[str] = field(default_factory=list)
    diff: t.List[t.Dict[str, str]] = field(default_factory=list)

    def hold_services(self, why: str) -> None:
        """Makes the steps that start services pending. why: the reason."""
        self.pending = [step.pending(why) for step in self.steps if step.action in _STARTS]
        self.steps = [step for step in self.steps if step.action not in _STARTS]


class Software:
    """One run of the module. wanted: component to its options. check: only plan.

    driver_cuda: the CUDA level of a driver that is not installed yet. repository: the option of this name. repaired:
    names of repositories that earlier tasks repair. packages_before: see L(_packages.work.PackageWork). files_before:
    paths that earlier tasks write, in check mode.
    """

    def __init__(self, wanted: t.Mapping[str, Options], repository: t.Mapping[str, str] | None,
                 driver_cuda: str | None, check: bool, command: Runner = run, root: Root | None = None,
                 journal_root: str = JOURNAL_ROOT, repaired: t.Collection[str] = (),
                 packages_before: bool = False, files_before: t.Collection[str] = ()) -> None:
        self.wanted = wanted
        self.given = repository
        self.driver_cuda = driver_cuda
        self.check = check
        self.run = command
        self.root = root or Root()
        self.journal_root = journal_root
        self.repaired = set(repaired)
        self.packages_before = packages_before
        self.files_before = files_before
        self.system = read_os(self.root)

    def present(self) -> Result:
        """Installs the components. The documentation of the module describes the result."""
        if not self.wanted:
            raise InputError("no component is set.", f"Set one of {', '.join(NAMES)}; an empty mapping is sufficient.",
                             path=NAMES[0], allowed=list(NAMES))
        chosen = [component for component in COMPONENTS if component.name in self.wanted]
        manager = self._manager()
        state = manager.read() if manager else PackageState({})
        desired = self._desired(chosen, state)
        repository = self._repository() if any(one.packages for one in desired.values()) else None
        if repository is not None and manager is None:
            raise self._unsupported()
        with contextlib.ExitStack() as stack:
            works = {component.name: self._work(stack, component, desired[component.name], manager, repository)
                     for component in chosen}
            services = self._services(chosen)
            parts = {}
            for component in chosen:
                with _named(component.name):
                    parts[component.name] = Part(self._plan(works[component.name], state, services[component.name]),
                                                 reasons=list(desired[component.name].reasons))
            broken = self._driver_problem()
            installed = False
            for component in chosen:
                name, part = component.name, parts[component.name]
                with _named(name):
                    if installed and _installs(part.steps) and manager is not None:
                        # Plan again: earlier components may have installed some of its dependencies.
                        part.steps = self._plan(works[name], manager.read(), services[name])
                    if broken and desired[name].needs_driver:
                        part.hold_services(broken)
                    self._apply(part, works[name])
                    installed = installed or _installs(part.steps) and not self.check
            if not self.check and any(part.steps for part in parts.values()):
                state, services = manager.read() if manager else state, self._services(chosen)
        return self._result(parts, desired, state, services)

    def absent(self) -> Result:
        """Removes the components, or all if none is set."""
        chosen = [component for component in reversed(COMPONENTS) if not self.wanted or component.name in self.wanted]
        with contextlib.ExitStack() as stack:
            manager = self._manager()
            works = {component.name: self._work(stack, component, None, manager, None) for component in chosen}
            if any(work.journal.of_kind("package") for work in works.values()) and manager is None:
                raise self._unsupported()
            used = [component for component in chosen if works[component.name].journal.entries]
            services = self._services(used)
            state = manager.read() if manager and used else PackageState({})
            going: set[str] = set()
            parts = {component.name: Part([]) for component in chosen}
            for component in used:
                name, work = component.name, works[component.name]
                with _named(name):
                    parts[name] = Part(work.plan_absent(state, services[name], going),
                                       reasons=work.not_restored(state))
                going |= set(work.journal.of_kind("package"))
            for component in used:
                with _named(component.name):
                    self._apply(parts[component.name], works[component.name])
                    if not self.check:
                        works[component.name].forget_restored()
            if used and not self.check:
                state, services = manager.read() if manager else state, self._services(used)
        return self._result(parts, {}, state, services)

    def _desired(self, chosen: t.Sequence[Component], state: PackageState) -> dict[str, Desired]:
        """The desired state of each component. Raises InputError, HostError."""
        host = Host(self.root, driver_level() or self.driver_cuda,
                    [model_of(gpu.device, gpu.subsystem) for gpu in read_bus(self.root).gpus], state.installed,
                    tuple(self.wanted), sys.executable)
        desired = {}
        for component in chosen:
            with _named(component.name):
                desired[component.name] = component.desired(self.wanted[component.name], host)
        return desired

    def _manager(self) -> Manager | None:
        make = MANAGERS.get(self.system["family"] or "")
        return make(self.run) if make else None

    def _unsupported(self) -> HostError:
        return HostError(f"Packages of {self.system['id']} {self.system['version_id']} are not supported yet.",
                         "Omit this component; node_status_exporter needs no packages.")

    def _repository(self) -> Repository:
        system = (self.system["id"] or "", self.system["version_id"] or "")
        source = source_for(*system, os.uname().machine)
        if source is None:
            raise InputError(f"Installing from NVIDIA's repository for {' '.join(system)} is not supported.",
                             "Omit these components.", path="repository", value=" ".join(system))
        # The repository of the driver may show only one version of the driver.
        return replace(source.repository(Spec(repository=self.given)), name="cuda", held=False)

    def _work(self, stack: contextlib.ExitStack, component: Component, desired: Desired | None, manager: Manager | None,
              repository: Repository | None) -> Work:
        journal = stack.enter_context(Journal(component.name, self.journal_root, readonly=self.check))
        return Work(component.unit, desired, journal, self.run, self.root, manager,
                    repository if desired and desired.packages else None)

    def _plan(self, work: Work, state: PackageState, service: Service) -> list[Step]:
        """The steps of a component. The first component repairs a repository that several use."""
        packages = work.packages
        if packages is not None and packages.repository is not None:
            packages.repaired = packages.repository.name in self.repaired
            packages.packages_before = self.packages_before
        work.files_before = self.files_before
        steps = work.plan(state, service)
        self.repaired.update(step.target for step in steps if step.action == ADD)
        return steps

    def _driver_problem(self) -> str:
        """Why services that need the driver would not start, empty without a known reason."""
        loaded, library = loaded_version(self.root), library_version(self.root)
        if loaded is None:
            # Check mode: an earlier task installs the driver.
            return "" if self.check and self.driver_cuda else "the driver is not loaded"
        if library is not None and library != loaded:
            return f"the loaded driver is {loaded}, its libraries are {library}"
        return ""

    def _services(self, components: t.Sequence[Component]) -> dict[str, Service]:
        """Component to the state of its unit."""
        units = [component.unit for component in components if component.unit]
        found = read_units(self.run, units) if units else {}
        return {component.name: found.get(component.unit, ABSENT) for component in components}

    def _apply(self, part: Part, work: Work) -> None:
        part.diff = _diff(work.journal.concern, part.steps)
        if not self.check:
            apply(part.steps, work.execute, work.journal)

    @staticmethod
    def _result(parts: t.Mapping[str, Part], desired: t.Mapping[str, Desired], state: PackageState,
                services: t.Mapping[str, Service]) -> Result:
        components = {}
        for name, part in parts.items():
            packages = desired[name].packages if name in desired else ()
            version = next((upstream(state.installed[package]) for package in packages if package in state.installed),
                           None)
            service = services.get(name, ABSENT)
            components[name] = {"plan": [step.as_dict() for step in part.steps],
                                "pending": [step.as_dict() for step in part.pending],
                                "reasons": part.reasons, "version": version, "service": service.state}
        return outcome([step for part in parts.values() for step in part.steps],
                       [step for part in parts.values() for step in part.pending],
                       [entry for part in parts.values() for entry in part.diff], components=components)


@contextlib.contextmanager
def _named(component: str) -> t.Iterator[None]:
    """Adds the component to the details of an error."""
    try:
        yield
    except GpuopsError as error:
        error.details.setdefault("component", component)
        raise


def _installs(steps: t.Sequence[Step]) -> bool:
    return any(step.action == INSTALL for step in steps)


def _diff(name: str, steps: t.Sequence[Step]) -> list[dict[str, str]]:
    """The diff: the steps, and each file that changes."""
    found = plan_diff(name, steps)
    for step in steps:
        content = step.data.get("content", b"")
        if step.action == WRITE and step.target.startswith("/etc/"):
            try:
                with open(step.target, encoding="utf-8") as handle:
                    former = handle.read()
            except OSError:
                former = ""
            found.append(diff_entry(step.target, former, content.decode("utf-8")))
    return found
