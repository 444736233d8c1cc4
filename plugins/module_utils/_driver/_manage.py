# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver on a host from reading to re-reading. PRIVATE to the collection."""

from __future__ import annotations

import importlib.util
import os
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._apply import (
    SECURE_BOOT_HINT,
    Executor,
    enrolled,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._plan import (
    SHIP,
    UNLOAD_NOUVEAU,
    gate_driver,
    must_reload,
    packages_change,
    plan_absent,
    plan_present,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._sources import Source, source_for
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._spec import (
    Spec,
    check_version,
    kernel_module_type,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import (
    DENY_FILE,
    PERSISTENCED,
    PYNVML,
    Situation,
    read_holders,
    read_situation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._verify import ask_smi, disagreements
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    HostError,
    InputError,
    MissingLibrary,
    RepositoryError,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._apt import Apt
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import Manager, PackageState, Probe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply, outcome, plan_diff
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, run, which

CONCERN = "driver"
# Package managers by family of distribution: another one is one line.
MANAGERS: t.Dict[str, t.Callable[[Runner], Manager]] = {"debian": Apt}
# What DKMS signs with: Debian and others; Ubuntu.
_SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")


class Driver:
    """One run of the module. check: plan only. level: gpu_disruption."""

    def __init__(self, spec: Spec, level: str, check: bool, command: Runner = run, root: Root | None = None) -> None:
        self.spec = spec
        self.level = level
        self.check = check
        self.run = command
        self.root = root or Root()

    # -- states

    def present(self) -> dict[str, t.Any]:
        """Installs, switches or repairs; see the module's documentation for the result."""
        situation = self._read()
        if not situation.gpus:
            raise HostError("This host has no NVIDIA GPU on its PCI bus.",
                            "Take it out of the group, or look at lspci -d 10de: and at passed-through devices.")
        flavour = kernel_module_type(self.spec, situation.gpus)
        if self.spec.version or self.spec.branch:
            check_version(self.spec.version or str(self.spec.branch), flavour, situation.gpus)
        source = source_for(self.spec.source, situation.os_id, situation.os_version, situation.arch)
        repository = source.repository(self.spec)
        with Journal(CONCERN, readonly=self.check) as journal:
            situation = self._without_edited(situation, journal)
            work = PackageWork(self._manager(situation), journal, repository)
            version, package_steps = self._plan_packages(situation, work, source, flavour)
            holders = []
            if must_reload(situation, version, flavour) or situation.library not in (None, situation.loaded):
                holders = read_holders(self.root)
            steps = plan_present(situation, version, flavour, package_steps, self.spec.persistenced, holders,
                                 journal.get("initramfs", "rebuild") is not None, self._has_initramfs(situation))
            if packages_change(package_steps):
                self._check_secure_boot(situation)
            allowed, pending = gate_driver(steps, self.level)
            if self.check:
                return self._result(situation, situation, allowed, pending, holders, version)
            executor = Executor(self.run, self.root, journal, work, situation, self._pynvml(allowed))
            apply(allowed, executor, journal)
            after = self._read() if allowed else situation
            reasons = disagreements(after, version, flavour, source.installed(work.manager.read().installed)
                                    if allowed else version)
        if allowed and not pending:
            reasons += ask_smi(self.run, version)
            if reasons:
                raise HostError(f"All steps have run, but the driver does not work: {'; '.join(reasons)}.",
                                "Look at journalctl -k | grep -i nvrm.", reasons=reasons,
                                plan=[step.as_dict() for step in allowed])
        return self._result(situation, after, allowed, pending, holders, version, reasons)

    def absent(self) -> dict[str, t.Any]:
        """Takes away exactly what this collection brought; another's driver stays."""
        situation = self._read()
        with Journal(CONCERN, readonly=self.check) as journal:
            work = PackageWork(self._manager(situation), journal, None)
            state = work.manager.read() if journal.entries else PackageState({})
            package_steps = work.plan_absent(state)
            own = {path for step in package_steps for path in step.data.get("files", ())}
            files = [path for path in journal.of_kind("file") if path not in own]
            service = (journal.get("service", PERSISTENCED) or {"before": {}})["before"]
            holders = read_holders(self.root) if package_steps and situation.modules else []
            steps = plan_absent(situation, package_steps, files, service, holders,
                                journal.get("initramfs", "rebuild") is not None, self._has_initramfs(situation))
            allowed, pending = gate_driver(steps, self.level)
            reasons = [f"{name} was there before and stays" for name, entry in journal.of_kind("package").items()
                       if entry["before"]["state"] == "installed" and name in state.installed]
            if self.check:
                return self._result(situation, situation, allowed, pending, holders, None, reasons)
            apply(allowed, Executor(self.run, self.root, journal, work, situation, None), journal)
            if not pending and journal.entries:
                work.settle(work.manager.read())
                for kind in ("service", "initramfs"):
                    for key in journal.of_kind(kind):
                        journal.forget(kind, key)
            if not pending:
                journal.unfinished = None  # a step that a killed run left, and that has no trace any more
        return self._result(situation, self._read() if allowed else situation, allowed, pending, holders, None, reasons)

    def adopted(self) -> dict[str, t.Any]:
        """Changes nothing; fails where no driver works."""
        situation = self._read()
        reasons = disagreements(situation, self.spec.version, None, None)
        if situation.loaded and not self.spec.accepts(situation.loaded):
            reasons.append(f"{situation.loaded} is loaded, {self.spec.wanted()} is wanted")
        reasons = list(dict.fromkeys(reasons)) + ask_smi(self.run, situation.loaded)
        if reasons:
            raise HostError(f"The driver of this host does not work as wanted: {'; '.join(reasons)}.",
                            "Repair it with the tools that installed it, or use state present.", reasons=reasons)
        return self._result(situation, situation, [], [], [], situation.loaded)

    # -- parts

    def _read(self) -> Situation:
        return read_situation(self.root, self.run)

    @staticmethod
    def _without_edited(situation: Situation, journal: Journal) -> Situation:
        """Files of ours that somebody edited or removed count as missing, so that they are written again."""
        def lost(path: str) -> bool:
            return journal.get("file", path) is not None and journal.file_is(path) != "ours"

        return replace(situation, pynvml=situation.pynvml and not lost(PYNVML),
                       nouveau_denied=situation.nouveau_denied and not lost(DENY_FILE))

    def _manager(self, situation: Situation) -> Manager:
        make = MANAGERS.get(situation.family)
        if make is None:
            raise InputError(f"Packages of {situation.os_id} {situation.os_version} are not supported yet.",
                             "With state adopted, an installed driver is verified and left alone.", path="state",
                             value=situation.family, allowed=list(MANAGERS))
        return make(self.run)

    def _plan_packages(self, situation: Situation, work: PackageWork, source: Source,
                       flavour: str) -> tuple[str, list[Step]]:
        """C((version, steps)): no steps and no network when the installed packages are right."""
        state = work.manager.read()
        installed = source.installed(state.installed)
        if installed is not None and self.spec.accepts(installed):
            wanted: dict[str, str | None] = dict(source.packages(installed, flavour, self.spec.persistenced))
            pin = next((name for name in source.pins(installed) if name in state.installed), None)
            if pin is not None and work.is_present(state, {**wanted, pin: None}):
                return installed, []
        with work.manager.probe(source.repository(self.spec)) as probe:
            version = self._choose(situation, source, probe, flavour, installed)
            wanted = dict(source.packages(version, flavour, self.spec.persistenced))
            pin = next((name for name in source.pins(version) if name in probe.candidates), source.pins(version)[0])
            headers = self._headers(situation, state)
            steps = work.plan_repair(state, [*wanted, pin]) + work.plan_repository(probe)
            steps += work.plan_install(probe, state, wanted, {pin: None}, headers)
        return version, steps

    @staticmethod
    def _headers(situation: Situation, state: PackageState) -> list[str]:
        """The package that modules for the running kernel cannot be built without, where its files are missing."""
        name = f"linux-headers-{situation.kernel}"
        if not situation.headers and name in state.installed:
            raise HostError(f"/lib/modules/{situation.kernel}/build is missing although {name} is installed.",
                            f"Install it again: apt-get install --reinstall {name}.", package=name)
        return [] if situation.headers else [name]

    def _choose(self, situation: Situation, source: Source, probe: Probe, flavour: str, installed: str | None) -> str:
        """The version to install: the one named, the one that is there if it will do, or the newest that will do."""
        if self.spec.version:
            offered = source.offered(probe.candidates)
            if self.spec.version not in offered and self.spec.version != installed:
                raise RepositoryError(f"The repository has no driver {self.spec.version}.",
                                      f"It has {', '.join(offered[:12])}.", wanted=self.spec.version, available=offered)
            return self.spec.version
        if installed is not None and self.spec.accepts(installed):
            return installed
        problem: InputError | None = None
        for version in source.offered(probe.candidates):
            if self.spec.accepts(version):
                try:
                    check_version(version, flavour, situation.gpus)
                    return version
                except InputError as error:
                    problem = error
        available = source.offered(probe.candidates)
        raise problem or RepositoryError(f"The repository has no driver of {self.spec.wanted()}.",
                                         f"It has {', '.join(available[:12])}.", wanted=self.spec.wanted(),
                                         available=available)

    def _check_secure_boot(self, situation: Situation) -> None:
        if situation.secure_boot and not enrolled(self.run, _SIGNING_KEYS):
            raise HostError("Secure Boot is on and no key that DKMS signs with is enrolled: the module would not load.",
                            SECURE_BOOT_HINT, keys=list(_SIGNING_KEYS))

    def _has_initramfs(self, situation: Situation) -> bool:
        return which("update-initramfs") is not None and self.root.exists(f"/boot/initrd.img-{situation.kernel}")

    @staticmethod
    def _pynvml(steps: t.Sequence[Step]) -> str | None:
        """The pynvml file to install for good. Raises MissingLibrary before anything is changed."""
        if not any(step.action == SHIP for step in steps):
            return None
        shipped = os.path.join(os.environ.get("GPUOPS_PYTHON_PATH", "/nonexistent"), "pynvml.py")
        if os.path.isfile(shipped):
            return shipped
        found = importlib.util.find_spec("pynvml")
        if found is None or not found.origin or os.path.basename(found.origin) != "pynvml.py":
            raise MissingLibrary("pynvml")
        return found.origin

    def _result(self, before: Situation, after: Situation, steps: t.Sequence[Step],
                pending: t.Sequence[t.Mapping[str, t.Any]], holders: t.Sequence[t.Mapping[str, t.Any]],
                version: str | None, reasons: t.Sequence[str] = ()) -> dict[str, t.Any]:
        # One sentence for the step that holds up the others.
        waiting = [f"{step['id']} waits: {step['pending_reason']}" for step in pending[:1]]
        mismatch = bool(after.loaded and after.library and after.loaded != after.library)
        rival = after.nouveau == "used" and any(step["action"] == UNLOAD_NOUVEAU for step in pending)
        return outcome(steps, pending, plan_diff("nvidia_driver", steps), version=version,
                       driver={"before": before.as_dict(), "after": after.as_dict()}, holders=list(holders),
                       reboot_required=bool(pending) and (mismatch or rival), reasons=[*reasons, *waiting])
