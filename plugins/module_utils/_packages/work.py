# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and executes the installation and removal of packages, with entries in the journal.

The journal has an entry of kind C(package) for each package that this collection has installed or changed. C(before) in
the entry is C({state: absent}), C({state: residual}) or C({state: installed, version}); C(after) is C({version, ours}).
ours: whether the package is from the repository; only then is it repaired after drift.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    Archive,
    Change,
    Manager,
    PackageState,
    Probe,
    Repository,
    matches,
    specifiers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

ADD = "add repository"
REFRESH = "refresh package lists"
REPAIR = "repair package database"
HOLD = "hold versions"
RELEASE = "release versions"
INSTALL = "install packages"
AGAIN = "install packages again"
PURGE = "purge packages"
REMOVE = "remove packages, keep their former configuration"
DROP = "remove repository"
# The files of any repository of this collection.
_OURS = re.compile(r"/gpuops-([a-z0-9-]+)\.(?:sources|gpg|repo|asc)\Z")
# A part of the names of packages that fix versions.
_PINNING = "-driver-pinning-"
# The content of files that fix versions, by path; None for a file to restore.
Holds = t.Mapping[str, t.Optional[bytes]]


class PackageWork:
    """Plans and executes the package steps of one component.

    repository: None if only a removal is planned. repaired: whether an earlier step repairs the files of the
    repository. packages_before: whether earlier tasks would have installed packages (in check mode).
    """

    def __init__(self, manager: Manager, journal: Journal, repository: Repository | None) -> None:
        self.manager = manager
        self.journal = journal
        self.repository = repository
        self._reinstalled: list[str] | None = None
        self.repaired = False
        self.packages_before = False

    # -- present

    def drifted(self, state: PackageState, wanted: t.Mapping[str, str | None]) -> dict[str, str]:
        """The dependencies whose version differs from the version in the journal, as C({name: version in the journal}).

        These are packages from the repository that are not in wanted. Empty if the version of a wanted package also
        differs, because somebody has then changed its version together with its dependencies.
        """
        recorded = {name: entry["after"]["version"] for name, entry in self.journal.of_kind("package").items()
                    if entry["after"] and entry["after"]["ours"] and entry["after"]["version"]}
        if any(name in recorded and state.installed.get(name, recorded[name]) != recorded[name] for name in wanted):
            return {}
        return {name: version for name, version in recorded.items()
                if name not in wanted and state.installed.get(name) != version}

    def is_present(self, state: PackageState, wanted: t.Mapping[str, str | None]) -> bool:
        """Whether the repository and all wanted packages are present, without drift. Runs no command.

        wanted: C({name: version}), see L(base.matches).
        """
        return (not self.plan_repair(state, wanted) and self.repository is not None
                and all(matches(state.installed.get(name), wanted[name]) for name in wanted)
                and not self.drifted(state, wanted) and self._has_repository())

    def _has_repository(self) -> bool:
        """Whether the repository is configured, and the journal of this component contains its files."""
        if self.repository is None or not (self.repaired or self.manager.is_configured(self.repository)):
            return False
        if isinstance(self.repository, Archive):
            return True
        return any(found.group(1) == self.repository.name for found in map(_OURS.search, self.journal.of_kind("file"))
                   if found)

    @staticmethod
    def is_of_repository(path: str) -> bool:
        """Whether a path belongs to a repository file of this collection."""
        return _OURS.search(path) is not None

    def holds(self, files: Holds) -> bool:
        """Whether the files that fix versions have the desired content. Runs no command."""
        return not self._differing(files)

    def _differing(self, files: Holds) -> dict[str, bytes | None]:
        return {path: content for path, content in files.items()
                if (self.journal.get("file", path) is not None if content is None else read_bytes(path) != content)}

    def plan_holds(self, files: Holds, why: str = "upgrades must not change the version") -> list[Step]:
        """The steps that write the files that fix versions. They run before the installation."""
        return [Step(RELEASE, path, "a package pins the version") if content is None else
                Step(HOLD, path, why, data={"content": content})
                for path, content in self._differing(files).items()]

    def former(self) -> list[str]:
        """The files of former repositories of this collection, which remain after a change of the source."""
        return [path for path, found in ((path, _OURS.search(path)) for path in self.journal.of_kind("file"))
                if found and self.repository is not None and found.group(1) != self.repository.name]

    def plan_former(self) -> list[Step]:
        """The step that removes former repositories; none if there are none."""
        files = self.former()
        return [self._drop_step(files, "the packages are from another source now")] if files else []

    @staticmethod
    def _drop_step(files: t.Sequence[str], reason: str) -> Step:
        names = sorted({found.group(1) for found in map(_OURS.search, files) if found})
        return Step(DROP, " ".join(names), reason, data={"files": files})

    def plan_repository(self, probe: Probe) -> list[Step]:
        """The step that adds the repository, unless the repository is already configured for this component."""
        if self.repository is None or self._has_repository():
            return []
        return [Step(ADD, self.repository.name, f"{self.repository.url}, key {self.repository.wanted_fingerprint}",
                     data={"key": probe.key})]

    def plan_repair(self, state: PackageState, wanted: t.Iterable[str] = ()) -> list[Step]:
        """The step that repairs the package database after an interrupted transaction. It precedes all other steps."""
        reinstalled = self.to_reinstall(state)
        broken = sorted(set(state.broken) & {*wanted, *self.journal.of_kind("package")})
        if not (state.interrupted or broken or reinstalled):
            return []
        reason = f"broken: {', '.join(broken)}" if broken else "a transaction was interrupted"
        return [Step(REPAIR, " ".join(self.manager.repair_command), reason, data={"reinstalled": reinstalled})]

    def to_reinstall(self, state: PackageState) -> list[str]:
        """The packages to remove and install again, because a transaction of this collection was interrupted.

        dpkg then contains a mix of two versions in various states, and apt cannot install exact versions. Therefore,
        all packages in the journal that this collection has installed are removed, and broken packages that it has only
        changed.
        """
        if self._reinstalled is None:
            entries = self.journal.of_kind("package")
            broken = [name for name in entries if name in state.broken]
            last = (self.journal.unfinished or {}).get("action")
            interrupted = bool(broken) or last in (INSTALL, PURGE, REMOVE) and not self.manager.is_consistent()
            self._reinstalled = [name for name, entry in entries.items() if interrupted and (
                name in state.broken or name in state.installed
                and entry["before"]["state"] != "installed" and (entry["after"] or {}).get("ours"))]
        return self._reinstalled

    def plan_install(self, probe: Probe, state: PackageState, wanted: t.Mapping[str, str | None],
                     pins: t.Mapping[str, str | None] | None = None, also: t.Sequence[str] = (),
                     gone: t.Sequence[str] = (), files: Holds | None = None,
                     removed: t.Sequence[str] = ()) -> list[Step]:
        """The steps that install the wanted packages that are missing or have another version.

        wanted: C({name: version}), see L(base.matches). pins: pinning packages in the same format, which a separate
        step installs first. also: packages from the package sources of the host, in any version. gone: packages to
        remove in the same transaction. files: the files of L(plan_holds). removed: packages that an earlier step
        removes, see L(plan_surplus). Raises RepositoryError, HostError.
        """
        before, reinstalled = state, self.to_reinstall(state)
        without = [*reinstalled, *(name for name in removed if name not in reinstalled)]
        if without:
            state = PackageState({name: state.installed[name] for name in state.installed if name not in without})
        exact_pins = {name: probe.resolve(name, version) for name, version in (pins or {}).items()}
        missing = {name: probe.resolve(name, version) for name, version in wanted.items()
                   if not _is_from(probe, name, state.installed.get(name), version)}
        conflicting = [name for name in gone if name in state.installed]
        drifted = {} if reinstalled else self.drifted(before, {**wanted, **exact_pins})
        drifted = {name: version for name, version in drifted.items() if name not in removed}
        switching = any(name in state.installed for name in missing)
        request = dict(missing) if switching else {**drifted, **missing}
        new_pins = {name: version for name, version in exact_pins.items() if state.installed.get(name) != version}
        request.update((name, "") for name in also if name not in state.installed)
        if not request and not new_pins and not conflicting:
            return []
        steps = self._refresh_steps()
        old_pins = [name for name in conflicting if _PINNING in name]
        if old_pins:
            # This is a separate step, because the preferences of a pinning package apply as long as it is installed.
            steps.append(self._install({}, [Change(name, state.installed[name], None) for name in old_pins], probe,
                                       "it pins another version", gone=old_pins))
        conflicting = [name for name in conflicting if name not in old_pins]
        if new_pins:
            changes = probe.simulate(new_pins, {}, without)
            steps.append(self._install(new_pins, changes, probe, "it pins the version of all packages"))
        if request or conflicting:
            held = {path: content or b"" for path, content in self._differing(files or {}).items()}
            changes = probe.simulate(request, new_pins, [*without, *old_pins], conflicting, held)
            others = [change.name for change in changes if change.name not in request and change.after]
            steps.append(self._install(request, changes, probe, f"with {len(others)} others" if others else "",
                                       [name for name in drifted if name in request], conflicting))
        return steps

    def plan_surplus(self, state: PackageState, names: t.Sequence[str], reason: str) -> list[Step]:
        """The steps that remove installed packages that are no longer wanted. Those that were installed before this
        collection keep their configuration."""
        known = self.journal.of_kind("package")
        ours = [name for name in names if name in known and known[name]["before"]["state"] == "absent"]
        return [Step(action, " ".join(found), reason, data={"packages": found, "surplus": True})
                for action, found in ((PURGE, ours), (REMOVE, [name for name in names if name not in ours])) if found]

    def plan_lost(self, state: PackageState, names: t.Iterable[str], steps: t.Sequence[Step] = ()) -> list[Step]:
        """The steps that reinstall packages whose programs or libraries are missing or damaged.

        names: packages to check if they are installed. steps: earlier steps, which may install some of them. Raises
        GpuopsError if there are no earlier steps and a simulation of the reinstallation fails.
        """
        installed_before = {name for step in steps for name in (
            *step.data.get("packages", ()), *(change[0] for change in step.data.get("changes", ())))}
        # A name with a colon belongs to a package for another architecture.
        present = {name for name in names if name in state.installed and ":" not in name}
        lost = self.manager.lost_files(sorted(present - installed_before))
        if not lost:
            return []
        paths = [path for found in lost.values() for path in found]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        packages = {name: state.installed[name] for name in lost if name in state.installed}
        if not steps and not self.packages_before:
            self.manager.reinstall(packages, check=True)
        refresh = self._has_repository() and not any(step.action == REFRESH for step in steps)
        return [*(self._refresh_steps() if refresh else []),
                Step(AGAIN, " ".join(specifiers(packages)), f"{paths[0]}{more} missing or damaged",
                     data={"packages": packages})]

    def _refresh_steps(self) -> list[Step]:
        return [] if self.repository is None else [Step(REFRESH, self.repository.name, "packages are to be installed")]

    def plan_own(self, names: t.Sequence[str], reason: str) -> list[Step]:
        """The step that installs missing packages from the package sources of the host, in any version."""
        changes = self.manager.simulate_install(names) if names else []
        return [Step(INSTALL, " ".join(sorted(names)), reason, data={
            "packages": dict.fromkeys(names, ""), "auto": [], "gone": [],
            "changes": [(change.name, change.before, change.after, False) for change in changes]})] if names else []

    def _install(self, request: t.Mapping[str, str], changes: t.Sequence[Change], probe: Probe, reason: str,
                 dependencies: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> Step:
        target = " ".join([*specifiers(request), *(f"{name}-" for name in gone)])
        auto = [name for name in dependencies if self.journal.of_kind("package")[name]["before"]["state"] == "absent"]
        return Step(INSTALL, target, reason, data={
            "packages": dict(request), "auto": auto, "gone": list(gone),
            "changes": [(change.name, change.before, change.after, change.name in probe.candidates)
                        for change in changes]})

    # -- absent

    def plan_absent(self, state: PackageState, going: t.Collection[str] = ()) -> list[Step]:
        """The steps that remove what this collection has installed: first the packages, then the repository.

        going: packages that other components remove before. Raises HostError if a package that is not removed needs one
        of them.
        """
        purge, remove = [], []
        for name, entry in self.journal.of_kind("package").items():
            present = name in state.installed or name in state.broken or name in state.residual
            if entry["before"]["state"] == "absent" and present:
                purge.append(name)
            elif entry["before"]["state"] == "residual" and (name in state.installed or name in state.broken):
                remove.append(name)
        steps = self._plan_removal(state, purge, remove, going)
        files = [path for path in self.journal.of_kind("file") if _OURS.search(path)]
        if files:
            steps.append(self._drop_step(files, "this collection added it"))
        return steps

    def plan_displaced(self, state: PackageState) -> list[Step]:
        """The steps that remove the installed packages of the repository, because a .run file replaces them.

        Build tools are kept, because the installer of the .run file needs them as well.
        """
        names = {name: entry["before"]["state"] for name, entry in self.journal.of_kind("package").items()
                 if (entry["after"] or {}).get("ours")}
        return self._plan_removal(state, [name for name in names if names[name] == "absent"],
                                  [name for name in names if names[name] == "residual"])

    def _plan_removal(self, state: PackageState, purge: t.Sequence[str], remove: t.Sequence[str],
                      going: t.Collection[str] = ()) -> list[Step]:
        steps = self.plan_repair(state) if purge or remove else []
        installed = [name for name in [*purge, *remove] if name in state.installed]
        if installed and not steps:
            foreign = sorted({change.name for change in self.manager.simulate_removal(installed)}
                             - {*purge, *remove, *going})
            if foreign:
                raise HostError(f"Other packages depend on those that would be removed: {', '.join(foreign)}.",
                                "Remove the other packages first, or keep the component.", packages=foreign)
        return steps + [Step(action, " ".join(sorted(names)), "this collection installed them",
                             data={"packages": names})
                        for action, names in ((PURGE, purge), (REMOVE, remove)) if names]

    # -- execution

    def execute(self, step: Step) -> bool:
        """Executes a step of this class. Returns False for other steps."""
        act = {ADD: self._add, REFRESH: self._refresh, REPAIR: self._repair, INSTALL: self._run_install,
               AGAIN: self._run_again, HOLD: self._hold, RELEASE: self._release, PURGE: self._purge,
               REMOVE: self._remove, DROP: self._drop}.get(step.action)
        if act is None:
            return False
        act(step)
        return True

    def _add(self, step: Step) -> None:
        if self.repository is not None:
            for path, content in self.manager.files(self.repository, step.data["key"]).items():
                self.journal.write_file(path, content)

    def _hold(self, step: Step) -> None:
        self.journal.write_file(step.target, step.data["content"])

    def _release(self, step: Step) -> None:
        self.journal.restore_file(step.target)

    def _refresh(self, step: Step) -> None:
        if self.repository is not None:
            # The package lists of the host's own sources are not restored.
            if not isinstance(self.repository, Archive):
                self.journal.keep("lists", self.repository.url, None)
            self._trust(self.repository)
            self.manager.refresh(self.repository)

    def _trust(self, repository: Repository) -> None:
        fingerprint = repository.wanted_fingerprint
        trusted = self.manager.trusts(fingerprint)
        if not trusted or self.journal.shared("key", fingerprint) is not None:
            self.journal.keep("key", fingerprint, None)
        if not trusted:
            self.manager.trust(repository)

    def _repair(self, step: Step) -> None:
        # The following steps record again which packages are installed.
        for name, entry in self.journal.of_kind("package").items() if step.data["reinstalled"] else ():
            if entry["before"]["state"] != "installed" and (entry["after"] or {}).get("ours"):
                self.journal.note("package", name, {"version": None, "ours": True})
        self.manager.repair(step.data["reinstalled"])

    def _run_install(self, step: Step) -> None:
        residual = self.manager.read().residual
        for name, before, after, ours in step.data["changes"]:
            former = {"state": "installed", "version": before} if before else \
                {"state": "residual" if name in residual else "absent"}
            self.journal.keep("package", name, former)
            self.journal.note("package", name, {"version": after, "ours": ours})
        self.manager.install(step.data["packages"], step.data["auto"], step.data["gone"])

    def _run_again(self, step: Step) -> None:
        self.manager.reinstall(step.data["packages"])
        lost = self.manager.lost_files(list(step.data["packages"]))
        if lost:
            path = next(iter(lost.values()))[0]
            raise HostError(f"{path} is still missing or damaged after the reinstallation of its package.",
                            "Check whether a program deletes it, and whether the disk is full. Then run again.",
                            packages=sorted(lost))

    def _note_removal(self, step: Step) -> None:
        """Records that surplus packages will be removed, so that the run after a killed one does not repair them."""
        for name in step.data["packages"] if step.data.get("surplus") else ():
            entry = self.journal.get("package", name)
            if entry is not None:
                self.journal.note("package", name, {"version": None, "ours": bool((entry["after"] or {}).get("ours"))})

    def _purge(self, step: Step) -> None:
        self._note_removal(step)
        # After a killed run, the first call removes the packages, and the second call their configuration files.
        rest = step.data["packages"]
        for _call in range(2):
            rest = self._remaining(rest)
            if rest:
                self.manager.remove(rest)
        rest = self._remaining(rest)
        if rest:
            raise HostError(f"Packages cannot be purged: {', '.join(rest)}.", "Check dpkg -l and dpkg --audit.",
                            packages=rest)
        self._forget(step)

    def _remaining(self, names: t.Iterable[str]) -> list[str]:
        state = self.manager.read()
        return [name for name in names if name in {**state.installed, **state.broken} or name in state.residual]

    def _remove(self, step: Step) -> None:
        self._note_removal(step)
        state = self.manager.read()
        present = [name for name in step.data["packages"] if name in {**state.installed, **state.broken}]
        if present:
            self.manager.remove(present, purge=False)
        self._forget(step)

    def _forget(self, step: Step) -> None:
        # This is done immediately, because a package that is installed later does not belong to this collection.
        for name in step.data["packages"]:
            self.journal.forget("package", name)

    def _drop(self, step: Step) -> None:
        # The source is removed before its keyring, because every apt command would fail without the keyring.
        for path in sorted(step.data["files"], key=lambda path: path.endswith((".gpg", ".asc"))):
            self.journal.restore_file(path)
        for url in list(self.journal.of_kind("lists")):
            if self.journal.shared("lists", url) is None:
                self.manager.forget_lists(url)
            self.journal.forget("lists", url)
        for fingerprint in list(self.journal.of_kind("key")):
            if self.journal.shared("key", fingerprint) is None:
                self.manager.distrust(fingerprint)
            self.journal.forget("key", fingerprint)

    def forget_restored(self, state: PackageState) -> None:
        """Deletes the journal entries of packages that were installed before, or that are in their former state again.

        state: the package database after a removal.
        """
        for name, entry in self.journal.of_kind("package").items():
            former = entry["before"]["state"]
            gone = name not in {**state.installed, **state.broken}
            if former == "installed" or gone and (former == "residual" or name not in state.residual):
                self.journal.forget("package", name)


def _is_from(probe: Probe, name: str, installed: str | None, version: str | None) -> bool:
    """Whether the installed version is the desired one and, if this repository contains that, comes from this
    repository.

    The archives of distributions contain packages with the same names and vendor versions as the vendor's repository.
    """
    if not matches(installed, version) or version is None:
        return matches(installed, version)
    offered = [candidate for candidate in probe.candidates.get(name, ()) if matches(candidate, version)]
    return installed in offered or not offered
