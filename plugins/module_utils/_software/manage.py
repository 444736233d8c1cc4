# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module: reads the state of the components, plans and executes steps, and reads the state again."""

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
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.component_installer import (
    ABSENT,
    RESTART,
    START,
    WRITE,
    Installer,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.cuda import Cuda
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.dcgm import Dcgm
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.dcgm_exporter import DcgmExporter
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.node_status import NodeStatusExporter
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.sources import source_for
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import Service, read_units

# In the order of installation. A removal has the reverse order.
COMPONENTS: t.Tuple[Component, ...] = (Cuda(), Dcgm(), DcgmExporter(), NodeStatusExporter())
_STARTS = (START, RESTART)
NAMES: t.Tuple[str, ...] = tuple(component.name for component in COMPONENTS)


def driver_level() -> str | None:
    """The CUDA version that the library of the installed driver reports (C(13.2)), None without a driver."""
    try:
        library = load("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0 or not number.value:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


@dataclass
class ComponentPlan:
    """The steps of one component. notes: sentences for the user."""

    steps: t.List[Step]
    pending: t.List[PendingStep] = field(default_factory=list)
    notes: t.List[str] = field(default_factory=list)
    diff: t.List[t.Dict[str, str]] = field(default_factory=list)

    def defer_service_starts(self, reason: str) -> None:
        """Makes the steps that start services pending, for this reason."""
        self.pending = [step.pending(reason) for step in self.steps if step.action in _STARTS]
        self.steps = [step for step in self.steps if step.action not in _STARTS]


class Software:
    """One run of the module. selected: the options of each component, by component. check_mode: whether steps are only
    planned.

    driver_cuda: the CUDA version that a driver which is not installed yet will support. repository: the option of this
    name. For check mode: repaired: the names of repositories that earlier tasks repair; packages_before: see
    L(_packages.work.PackageWork); files_before: the paths of files that earlier tasks write.
    """

    def __init__(self, selected: t.Mapping[str, Options], repository: t.Mapping[str, str] | None,
                 driver_cuda: str | None, check_mode: bool, command: Runner = run, root: Root | None = None,
                 journal_root: str = JOURNAL_ROOT, repaired: t.Collection[str] = (),
                 packages_before: bool = False, files_before: t.Collection[str] = ()) -> None:
        self.selected = selected
        self.repository_option = repository
        self.driver_cuda = driver_cuda
        self.check_mode = check_mode
        self.run = command
        self.root = root or Root()
        self.journal_root = journal_root
        self.repaired = set(repaired)
        self.packages_before = packages_before
        self.files_before = files_before
        self.system = read_os(self.root)

    def present(self) -> Result:
        """Installs the components. Returns the result of the module."""
        if not self.selected:
            raise InputError("no component is set.", f"Set one of {', '.join(NAMES)}; an empty mapping is sufficient.",
                             path=NAMES[0], allowed=list(NAMES))
        components = [component for component in COMPONENTS if component.name in self.selected]
        manager = self._manager()
        state = manager.read() if manager else PackageState({})
        desired = self._desired(components, state)
        repository = self._repository() if any(target.packages for target in desired.values()) else None
        if repository is not None and manager is None:
            raise self._unsupported()
        with contextlib.ExitStack() as stack:
            installers = {component.name: self._installer(
                stack, component, desired[component.name], manager, repository) for component in components}
            services = self._services(components)
            plans = {}
            for component in components:
                with _name_component_in_errors(component.name):
                    steps = self._plan(installers[component.name], state, services[component.name])
                    plans[component.name] = ComponentPlan(steps, notes=list(desired[component.name].notes))
            restarts_exporter = _restart_exporter(plans, services)
            driver_problem = self._driver_problem()
            installed = False
            for component in components:
                name, plan = component.name, plans[component.name]
                with _name_component_in_errors(name):
                    if installed and _installs_packages(plan.steps) and manager is not None:
                        # The plan is made again, because earlier components may have installed some of the packages.
                        plan.steps = self._plan(installers[name], manager.read(), services[name])
                    if driver_problem and desired[name].needs_driver:
                        plan.defer_service_starts(driver_problem)
                    if name == Dcgm.name and restarts_exporter and not self.check_mode:
                        installers[DcgmExporter.name].request_restart()
                    self._apply(plan, installers[name])
                    installed = installed or _installs_packages(plan.steps) and not self.check_mode
            if not self.check_mode and any(plan.steps for plan in plans.values()):
                state, services = manager.read() if manager else state, self._services(components)
        return self._result(plans, desired, state, services)

    def absent(self) -> Result:
        """Removes the components, or all components if none is selected. Returns the result of the module."""
        components = [component for component in reversed(COMPONENTS)
                      if not self.selected or component.name in self.selected]
        with contextlib.ExitStack() as stack:
            manager = self._manager()
            installers = {component.name: self._installer(stack, component, None, manager, None)
                          for component in components}
            if any(installer.journal.of_kind("package") for installer in installers.values()) and manager is None:
                raise self._unsupported()
            used = [component for component in components if installers[component.name].journal.entries]
            services = self._services(used)
            state = manager.read() if manager and used else PackageState({})
            removed_packages: set[str] = set()
            plans = {component.name: ComponentPlan([]) for component in components}
            for component in used:
                name, installer = component.name, installers[component.name]
                with _name_component_in_errors(name):
                    plans[name] = ComponentPlan(installer.plan_absent(state, services[name], removed_packages),
                                                notes=installer.not_restored(state))
                removed_packages |= set(installer.journal.of_kind("package"))
            for component in used:
                with _name_component_in_errors(component.name):
                    self._apply(plans[component.name], installers[component.name])
                    if not self.check_mode:
                        installers[component.name].forget_restored()
            if used and not self.check_mode:
                state, services = manager.read() if manager else state, self._services(used)
        return self._result(plans, {}, state, services)

    def _desired(self, components: t.Sequence[Component], state: PackageState) -> dict[str, Desired]:
        """The desired state of each component. Raises InputError and HostError."""
        host = Host(self.root, driver_level() or self.driver_cuda,
                    [model_of(gpu.device, gpu.subsystem) for gpu in read_bus(self.root).gpus], state.installed,
                    tuple(self.selected), sys.executable)
        desired = {}
        for component in components:
            with _name_component_in_errors(component.name):
                desired[component.name] = component.desired(self.selected[component.name], host)
        return desired

    def _manager(self) -> Manager | None:
        manager_class = MANAGERS.get(self.system["family"] or "")
        return manager_class(self.run) if manager_class else None

    def _unsupported(self) -> HostError:
        return HostError(f"Packages of {self.system['id']} {self.system['version_id']} are not supported.",
                         "Omit this component. Only node_status_exporter works without packages.")

    def _repository(self) -> Repository:
        system = (self.system["id"] or "", self.system["version_id"] or "")
        source = source_for(*system, os.uname().machine)
        if source is None:
            raise InputError(f"Installing from NVIDIA's repository for {' '.join(system)} is not supported.",
                             "Omit these components.", path="repository", value=" ".join(system))
        # The driver may limit this repository to one version of the driver.
        return replace(source.repository(Spec(repository=self.repository_option)), name="cuda", held=False)

    def _installer(self, stack: contextlib.ExitStack, component: Component, desired: Desired | None,
                   manager: Manager | None, repository: Repository | None) -> Installer:
        journal = stack.enter_context(Journal(component.name, self.journal_root, readonly=self.check_mode))
        return Installer(component.unit, desired, journal, self.run, self.root, manager,
                         repository if desired and desired.packages else None)

    def _plan(self, installer: Installer, state: PackageState, service: Service) -> list[Step]:
        """The steps of a component. If several components use a repository, the first one repairs it."""
        packages = installer.packages
        if packages is not None and packages.repository is not None:
            packages.repaired = packages.repository.name in self.repaired
            packages.packages_before = self.packages_before
        installer.files_before = self.files_before
        steps = installer.plan(state, service)
        self.repaired.update(step.target for step in steps if step.action == ADD)
        return steps

    def _driver_problem(self) -> str:
        """The reason why services that need the driver would not start; empty if they would."""
        loaded, library = loaded_version(self.root), library_version(self.root)
        if loaded is None:
            # In check mode, an earlier task installs the driver.
            return "" if self.check_mode and self.driver_cuda else "the driver is not loaded"
        if library is not None and library != loaded:
            return f"the loaded driver has version {loaded}, but its libraries have version {library}"
        return ""

    def _services(self, components: t.Sequence[Component]) -> dict[str, Service]:
        """The state of the unit of each component, by component."""
        units = [component.unit for component in components if component.unit]
        states = read_units(self.run, units) if units else {}
        return {component.name: states.get(component.unit, ABSENT) for component in components}

    def _apply(self, plan: ComponentPlan, installer: Installer) -> None:
        plan.diff = _diff(installer.journal.concern, plan.steps)
        if not self.check_mode:
            apply(plan.steps, installer.execute, installer.journal)

    @staticmethod
    def _result(plans: t.Mapping[str, ComponentPlan], desired: t.Mapping[str, Desired], state: PackageState,
                services: t.Mapping[str, Service]) -> Result:
        results = {}
        for name, plan in plans.items():
            packages = desired[name].packages if name in desired else ()
            version = next((upstream(state.installed[package]) for package in packages if package in state.installed),
                           None)
            service = services.get(name, ABSENT)
            results[name] = {"plan": [step.as_dict() for step in plan.steps],
                             "pending": [step.as_dict() for step in plan.pending], "reasons": plan.notes,
                             "version": version, "service": service.state}
        return outcome([step for plan in plans.values() for step in plan.steps],
                       [step for plan in plans.values() for step in plan.pending],
                       [entry for plan in plans.values() for entry in plan.diff], components=results)


@contextlib.contextmanager
def _name_component_in_errors(component: str) -> t.Iterator[None]:
    """Adds the name of the component to the details of an error."""
    try:
        yield
    except GpuopsError as error:
        error.details.setdefault("component", component)
        raise


def _installs_packages(steps: t.Sequence[Step]) -> bool:
    return any(step.action == INSTALL for step in steps)


def _restart_exporter(plans: t.Mapping[str, ComponentPlan], services: t.Mapping[str, Service]) -> bool:
    """Adds the restart of a running exporter if DCGM is restarted: the exporter ends at its next request otherwise.
    Returns whether DCGM's restart requires one."""
    engine, exporter = plans.get(Dcgm.name), plans.get(DcgmExporter.name)
    if not engine or not exporter or services[DcgmExporter.name].state != "active" or not any(
            step.action == RESTART for step in engine.steps):
        return False
    if not any(step.action in _STARTS for step in exporter.steps):
        exporter.steps.append(Step(RESTART, DcgmExporter.unit, "DCGM is restarted"))
    return True


def _diff(name: str, steps: t.Sequence[Step]) -> list[dict[str, str]]:
    """The diffs of the steps and of all files that change."""
    entries = plan_diff(name, steps)
    for step in steps:
        content = step.data.get("content", b"")
        if step.action == WRITE and step.target.startswith("/etc/"):
            try:
                with open(step.target, encoding="utf-8") as handle:
                    former = handle.read()
            except OSError:
                former = ""
            entries.append(diff_entry(step.target, former, content.decode("utf-8")))
    return entries
