# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of the container toolkit: one set, held at one version. PRIVATE to the collection.

Sources: NVIDIA/nvidia-container-toolkit (folder packaging) for names and relations; NVIDIA's installation guide and
nvidia-container-toolkit.repo for the repositories and their key. The RPM packages themselves are not signed.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import TOOLKIT_SETTINGS as SETTINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import toolkit_packages
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import read_os
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    PackageState,
    Repository,
    matches,
    upstream,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import hold_path
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.managers import MANAGERS
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import INSTALL, RELEASE, PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, which

# A request to the host: the options of the module and the additions of the controller.
Json = t.Mapping[str, t.Any]
# All are named, because apt does not resolve an older set by dependencies (NVIDIA/nvidia-container-toolkit issue 1091).
NAMES = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools",
         "libnvidia-container1")
# Contains the programs of the modes cdi and legacy.
EXTENSIONS = "nvidia-container-toolkit-operator-extensions"
# The program of a runtime class, by mode.
BINARIES = {
    "auto": "/usr/bin/nvidia-container-runtime",
    "cdi": "/usr/bin/nvidia-container-runtime.cdi",
    "legacy": "/usr/bin/nvidia-container-runtime.legacy",
}
NAME = "container-toolkit"
WRITE_SETTINGS = "write default settings"
_STABLE = "https://nvidia.github.io/libnvidia-container/stable"
# NVIDIA's repository by family of distribution, with the variables of NVIDIA's own source files. Its key and the
# fingerprint are defaults of the module's options.
_URLS = {"debian": f"{_STABLE}/deb/$(ARCH)/", "redhat": f"{_STABLE}/rpm/$basearch/",
         "suse": f"{_STABLE}/rpm/$basearch/"}
_ARCHITECTURES = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}
_PREFERENCES = "/etc/apt/preferences.d/gpuops-container-toolkit.pref"
_CHECK = "/etc/zypp/systemCheck.d/gpuops-container-toolkit.check"
_HOLD_REASON = "upgrades must keep all toolkit packages at the same version"


def _apt_hold(version: str) -> dict[str, bytes]:
    """A pin. From priority 1000 on, apt also downgrades to the version (apt_preferences(5))."""
    return {_PREFERENCES: ("# Written by gpuops.nvidia: an upgrade must not split the container toolkit.\n"
                           f"Package: {' '.join((*NAMES, EXTENSIONS))}\nPin: version {version}-*\n"
                           "Pin-Priority: 1000\n").encode()}


def _zypp_hold(version: str) -> dict[str, bytes]:
    """Conflicts with newer versions. The suffix sorts after every release of the version."""
    lines = [f"conflicts:{name} > {version}_z" for name in (*NAMES, EXTENSIONS)]
    return {_CHECK: "\n".join(["# Written by gpuops.nvidia: an update must not split the container toolkit.", *lines,
                               ""]).encode()}


# Path to content of the files that hold a version, by family of distribution.
_HOLDS: t.Dict[str, t.Callable[[str], t.Dict[str, bytes]]] = {
    "debian": _apt_hold,
    "redhat": lambda version: {hold_path(NAME): f"*-{version}-*\n".encode()},
    "suse": _zypp_hold,
}


class PackagesPlan(t.NamedTuple):
    """installed: name to version; version: of the set, or of a toolkit without packages; steps: to execute."""

    installed: t.Dict[str, str]
    version: str | None
    steps: t.List[Step]


class Packages:
    """Plans and executes the steps for the packages."""

    def __init__(self, request: Json, journal: Journal, run: Runner) -> None:
        self.request = request
        self.journal = journal
        self.run = run
        self.family = str(read_os(Root())["family"])
        manager_class = MANAGERS.get(self.family)
        self.absent = request["state"] == "absent"
        self.repository = None if self.absent or manager_class is None else self._repository()
        self.work = PackageWork(manager_class(run), journal, self.repository) if manager_class else None
        if self.work:
            self.work.packages_before = INSTALL in (request.get("driver") or ())

    def _repository(self) -> Repository:
        raw = self.request["repository"]
        architecture = os.uname().machine
        deb, rpm = _ARCHITECTURES.get(architecture, (architecture, architecture))
        url = (raw["url"] or _URLS[self.family]).replace("$(ARCH)", deb).replace("$basearch", rpm)
        return Repository(NAME, url, raw["key"], raw["fingerprint"], held=self.family == "redhat", signed=False)

    def read(self) -> PackagesPlan:
        """All installed packages of the toolkit, without steps."""
        installed = toolkit_packages(self.work.manager.read().installed) if self.work else {}
        version = next((upstream(installed[name]) for name in NAMES if name in installed), None)
        return PackagesPlan(installed, version or self._version_of_program() or None, [])

    def plan(self) -> PackagesPlan:
        """The plan. All packages get one version: the requested, else the installed, else the newest version."""
        work = self.work
        if work is None:
            return self._without_packages()
        state = work.manager.read()
        names = NAMES if self.request["mode"] == "auto" else (*NAMES, EXTENSIONS)
        installed = {name: state.installed[name] for name in names if name in state.installed}
        version = installed.get(names[0])
        if self.absent:
            # The holds are released last, because the repository needs one of these files.
            steps = work.plan_absent(state) + [
                Step(RELEASE, path, "the packages are removed") for path in _HOLDS[self.family]("0")
                if self.journal.get("file", path) is not None]
        else:
            steps = self._present(work, state, names, installed)
        return PackagesPlan(installed, upstream(version) if version else None, steps)

    def _without_packages(self) -> PackagesPlan:
        """The plan for a distribution whose packages are not managed: the installed toolkit is used unchanged."""
        if self.absent and not self.journal.of_kind("package"):
            return PackagesPlan({}, None, [])
        version, desired = self._version_of_program(), self.request["version"]
        if self.absent or version is None or desired and version != upstream(desired):
            current = f"It has the toolkit {version}, not {desired}" if version is not None else "It has no toolkit"
            raise HostError(f"Packages of this distribution are not supported. {current}.",
                            "Install the toolkit by hand and run again, or leave this host out.",
                            allowed=list(MANAGERS))
        program = BINARIES[self.request["mode"]]
        if not os.access(program, os.X_OK):
            raise HostError(f"The toolkit {version} of this host does not have {program}, which the mode needs.",
                            "Install this program, choose another mode, or leave this host out.", path=program)
        return PackagesPlan({}, version or None, [])

    def _version_of_program(self) -> str | None:
        """The version that nvidia-ctk prints, empty if it prints none; None if it is not installed."""
        if not which("nvidia-ctk"):
            return None
        match = re.search(r"version v?(\d+\.\d+\.\d+\S*)", self.run(["nvidia-ctk", "--version"], check=False).stdout)
        return match.group(1) if match else ""

    def _present(self, work: PackageWork, state: PackageState, names: t.Sequence[str], installed: t.Mapping[str, str]
                 ) -> list[Step]:
        from_journal = {name: entry["after"]["version"] for name, entry in self.journal.of_kind("package").items()
                        if entry["after"]}
        version = (self.request["version"] or from_journal.get(names[0]) or installed.get(names[0])
                   or next(iter(installed.values()), None))
        desired: dict[str, str | None] = dict.fromkeys(names, version)
        unchanged = not from_journal and not work.plan_repair(state, desired) and all(
            matches(installed.get(name), version) for name in names)
        if unchanged or version and work.is_present(state, desired) and work.holds(self._holds(version)):
            return work.plan_lost(state, toolkit_packages(state.installed)) or self._settings_steps()
        repository = self.repository
        if repository is None:
            raise InputError("there is no repository to install from.", "Set repository.url.", path="repository.url")
        steps = work.plan_repair(state, desired)
        with work.manager.probe(repository) as probe:
            version = version or probe.resolve(names[0], None)
            desired = {name: probe.resolve(name, version) for name in names}
            holds = self._holds(version)
            steps += work.plan_repository(probe) + work.plan_holds(holds, _HOLD_REASON)
            steps += work.plan_install(probe, state, desired, files=holds)
        return steps + work.plan_lost(state, toolkit_packages(state.installed), steps)

    @staticmethod
    def _settings_steps() -> list[Step]:
        """The step that writes a missing settings file. If packages are installed, their scripts write it instead."""
        if os.path.lexists(SETTINGS):
            return []
        check_writable(SETTINGS)
        return [Step(WRITE_SETTINGS, SETTINGS, "it is missing")]

    def _holds(self, version: str) -> dict[str, bytes | None]:
        return {**_HOLDS[self.family](upstream(version))}

    def execute(self, step: Step) -> bool:
        """Executes a step. Returns False if it is not a step of packages."""
        if step.action == WRITE_SETTINGS:  # as the script of the packages does
            self.run(["nvidia-ctk", "--quiet", "config", f"--config-file={step.target}", "--in-place"])
            return True
        return self.work is not None and self.work.execute(step)

    def forget_restored(self) -> None:
        """After a removal: deletes journal entries that are no longer needed."""
        if self.work is not None:
            self.work.forget_restored(self.work.manager.read())
