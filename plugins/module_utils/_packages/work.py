# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package part of a module: plans it as steps and executes these steps, journalled. PRIVATE to the collection.

The journal's entries of kind C(package) are what our installations brought or changed: before C({state: absent}),
C({state: residual}) or C({state: installed, version}); after C({version, ours}), where ours says that the package is
one of the repository's, so that it is repaired when somebody removes or changes it.
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
# The files of a repository, whatever it is named.
_OURS = re.compile(r"/gpuops-([a-z0-9-]+)\.(?:sources|gpg|repo|asc)\Z")

# In the names of the packages that hold versions.
_PINNING = "-driver-pinning-"

# Path to content of files that hold versions; None for one of ours that is to go.
Holds = t.Mapping[str, t.Optional[bytes]]


class PackageWork:
    """Plans and executes what one module does with packages.

    repository: None where only an absent state is planned and no repository is known. repaired: whether what runs
    before this puts its files right. packages_before: whether tasks before this one install packages, which they have
    not done in check mode.
    """

    def __init__(self, manager: Manager, journal: Journal, repository: Repository | None) -> None:
        self.manager = manager
        self.journal = journal
        self.repository = repository
        self._torn: list[str] | None = None
        self.repaired = False
        self.packages_before = False

    # -- present

    def drifted(self, state: PackageState, wanted: t.Mapping[str, str | None]) -> dict[str, str]:
        """Journalled packages of the repository, apart from wanted, that are not as we left them: name to version.

        None where somebody has brought a wanted package to another version: its dependencies then went with it.
        """
        ours = {name: entry["after"]["version"] for name, entry in self.journal.of_kind("package").items()
                if entry["after"] and entry["after"]["ours"] and entry["after"]["version"]}
        if any(name in ours and state.installed.get(name, ours[name]) != ours[name] for name in wanted):
            return {}
        return {name: version for name, version in ours.items()
                if name not in wanted and state.installed.get(name) != version}

    def is_present(self, state: PackageState, wanted: t.Mapping[str, str | None]) -> bool:
        """Whether nothing is to be done. Costs no command; wanted: name to version, vendor's version, or None (any)."""
        return (not self.plan_repair(state, wanted) and self.repository is not None
                and all(matches(state.installed.get(name), wanted[name]) for name in wanted)
                and not self.drifted(state, wanted) and self._has_repository())

    def _has_repository(self) -> bool:
        """Whether the repository's files stand and our journal has them: another component may have brought them."""
        if self.repository is None or not (self.repaired or self.manager.is_configured(self.repository)):
            return False
        if isinstance(self.repository, Archive):
            return True
        return any(found.group(1) == self.repository.name for found in map(_OURS.search, self.journal.of_kind("file"))
                   if found)

    @staticmethod
    def is_of_repository(path: str) -> bool:
        """Whether a file is one of a repository that we have added."""
        return _OURS.search(path) is not None

    def holds(self, files: Holds) -> bool:
        """Whether the files that hold versions stand as wanted. Costs no command."""
        return not self._unlike(files)

    def _unlike(self, files: Holds) -> dict[str, bytes | None]:
        return {path: content for path, content in files.items()
                if (self.journal.get("file", path) is not None if content is None else read_bytes(path) != content)}

    def plan_holds(self, files: Holds, why: str = "no upgrade may split module and libraries") -> list[Step]:
        """The files that hold versions, before the packages that they are in force for."""
        return [Step(RELEASE, path, "something else holds the versions") if content is None else
                Step(HOLD, path, why, data={"content": content})
                for path, content in self._unlike(files).items()]

    def former(self) -> list[str]:
        """The files of repositories that we added and that are not this one's: the source was switched."""
        return [path for path, found in ((path, _OURS.search(path)) for path in self.journal.of_kind("file"))
                if found and self.repository is not None and found.group(1) != self.repository.name]

    def plan_former(self) -> list[Step]:
        """Takes repositories away that packages no longer come from."""
        files = self.former()
        return [self._drop_step(files, "packages come from elsewhere now")] if files else []

    @staticmethod
    def _drop_step(files: t.Sequence[str], reason: str) -> Step:
        names = sorted({found.group(1) for found in map(_OURS.search, files) if found})
        return Step(DROP, " ".join(names), reason, data={"files": files})

    def plan_repository(self, probe: Probe) -> list[Step]:
        """The repository's files, where they do not stand as they should, or stand for another component alone."""
        if self.repository is None or self._has_repository():
            return []
        return [Step(ADD, self.repository.name, f"{self.repository.url}, key {self.repository.wanted_fingerprint}",
                     data={"key": probe.key})]

    def plan_repair(self, state: PackageState, wanted: t.Iterable[str] = ()) -> list[Step]:
        """Putting the package database in order after a transaction that was cut off, before anything else."""
        torn = self.torn(state)
        broken = sorted(set(state.broken) & {*wanted, *self.journal.of_kind("package")})
        if not (state.interrupted or broken or torn):
            return []
        reason = f"not whole: {', '.join(broken)}" if broken else "a transaction was cut off"
        return [Step(REPAIR, " ".join(self.manager.repair_command), reason, data={"torn": torn})]

    def torn(self, state: PackageState) -> list[str]:
        """The packages that go and come anew after a transaction of ours was cut off; none otherwise.

        dpkg then holds two versions mixed, in any state that a package can have, and apt cannot find its way from there
        to exact versions. So what we brought is taken out whole. What was there before us goes only where it is broken.
        """
        if self._torn is None:
            entries = self.journal.of_kind("package")
            broken = [name for name in entries if name in state.broken]
            last = (self.journal.unfinished or {}).get("action")
            cut = bool(broken) or last in (INSTALL, PURGE, REMOVE) and not self.manager.is_consistent()
            self._torn = [name for name, entry in entries.items() if cut and (
                name in state.broken or name in state.installed
                and entry["before"]["state"] != "installed" and (entry["after"] or {}).get("ours"))]
        return self._torn

    def plan_install(self, probe: Probe, state: PackageState, wanted: t.Mapping[str, str | None],
                     pins: t.Mapping[str, str | None] | None = None, also: t.Sequence[str] = (),
                     gone: t.Sequence[str] = (), files: Holds | None = None) -> list[Step]:
        """Steps that end in wanted being installed, nothing when it is.

        pins: pinning packages, installed in a step of their own before the others. also: packages from the host's own
        sources, any version. gone: packages that must not stay beside wanted. files: those of L(plan_holds), in force
        by then. Raises RepositoryError, HostError.
        """
        torn = self.torn(state)
        if torn:
            state = PackageState({name: state.installed[name] for name in state.installed if name not in torn})
        exact_pins = {name: probe.resolve(name, version) for name, version in (pins or {}).items()}
        missing = {name: probe.resolve(name, version) for name, version in wanted.items()
                   if not _is_from(probe, name, state.installed.get(name), version)}
        rivals = [name for name in gone if name in state.installed]
        drifted = {} if torn else self.drifted(state, {**wanted, **exact_pins})
        switching = any(name in state.installed for name in missing)
        request = dict(missing) if switching else {**drifted, **missing}
        new_pins = {name: version for name, version in exact_pins.items() if state.installed.get(name) != version}
        request.update((name, "") for name in also if name not in state.installed)
        if not request and not new_pins and not rivals:
            return []
        steps = [] if self.repository is None else [Step(REFRESH, self.repository.name, "packages are to be installed")]
        loose = [name for name in rivals if _PINNING in name]
        if loose:
            # As long as it is there, its preferences are in force.
            steps.append(self._install({}, [Change(name, state.installed[name], None) for name in loose], probe,
                                       "it holds versions that are not wanted any more", gone=loose))
        rivals = [name for name in rivals if name not in loose]
        if new_pins:
            changes = probe.simulate(new_pins, {}, torn)
            steps.append(self._install(new_pins, changes, probe, "it keeps the versions together"))
        if request or rivals:
            held = {path: content or b"" for path, content in self._unlike(files or {}).items()}
            changes = probe.simulate(request, new_pins, [*torn, *loose], rivals, held)
            others = [change.name for change in changes if change.name not in request and change.after]
            steps.append(self._install(request, changes, probe, f"with {len(others)} others" if others else "",
                                       [name for name in drifted if name in request], rivals))
        return steps

    def plan_lost(self, state: PackageState, names: t.Iterable[str], steps: t.Sequence[Step] = ()) -> list[Step]:
        """Steps that bring packages anew whose programs or libraries are missing or damaged.

        names: of packages, those that are not installed do not count. steps: what is done before, which brings some.
        Raises GpuopsError where that is known to fail; after other steps this is not known.
        """
        coming = {name for step in steps for name in (*step.data.get("packages", ()),
                                                      *(change[0] for change in step.data.get("changes", ())))}
        # A name with a colon is of a foreign architecture.
        there = {name for name in names if name in state.installed and ":" not in name}
        lost = self.manager.lost_files(sorted(there - coming))
        if not lost:
            return []
        paths = [path for found in lost.values() for path in found]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        packages = {name: state.installed[name] for name in lost if name in state.installed}
        if not steps and not self.packages_before:
            self.manager.reinstall(packages, check=True)
        again = [] if self.repository is None or not self._has_repository() or any(
            step.action == REFRESH for step in steps) else [
                Step(REFRESH, self.repository.name, "packages are to be installed")]
        return [*again, Step(AGAIN, " ".join(specifiers(packages)), f"{paths[0]}{more} missing or damaged",
                             data={"packages": packages})]

    def plan_own(self, names: t.Sequence[str], reason: str) -> list[Step]:
        """The step that installs packages of the host's own sources, any version; names: those that are missing."""
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
        """Steps that remove exactly what we brought: packages, then the repository.

        going: packages that are removed before these steps run. Raises HostError where somebody has since installed a
        package that needs one of ours.
        """
        purge, remove = [], []
        for name, entry in self.journal.of_kind("package").items():
            there = name in state.installed or name in state.broken or name in state.residual
            if entry["before"]["state"] == "absent" and there:
                purge.append(name)
            elif entry["before"]["state"] == "residual" and (name in state.installed or name in state.broken):
                remove.append(name)
        steps = self._plan_removal(state, purge, remove, going)
        files = [path for path in self.journal.of_kind("file") if _OURS.search(path)]
        if files:
            steps.append(self._drop_step(files, "this collection added it"))
        return steps

    def plan_displaced(self, state: PackageState) -> list[Step]:
        """Steps that remove the repository's packages that we brought, because a driver of another kind comes.

        What was installed to build with stays, for it as well.
        """
        names = {name: entry["before"]["state"] for name, entry in self.journal.of_kind("package").items()
                 if (entry["after"] or {}).get("ours")}
        return self._plan_removal(state, [name for name in names if names[name] == "absent"],
                                  [name for name in names if names[name] == "residual"])

    def _plan_removal(self, state: PackageState, purge: t.Sequence[str], remove: t.Sequence[str],
                      going: t.Collection[str] = ()) -> list[Step]:
        steps = self.plan_repair(state) if purge or remove else []
        ours = [name for name in [*purge, *remove] if name in state.installed]
        if ours and not steps:
            foreign = sorted({change.name for change in self.manager.simulate_removal(ours)}
                             - {*purge, *remove, *going})
            if foreign:
                raise HostError(f"Packages installed since need what this collection brought: {', '.join(foreign)}.",
                                "Remove them first, or keep the component.", packages=foreign)
        return steps + [Step(action, " ".join(sorted(names)), "this collection brought them",
                             data={"packages": names})
                        for action, names in ((PURGE, purge), (REMOVE, remove)) if names]

    # -- execution

    def execute(self, step: Step) -> bool:
        """Runs a step of ours; False when it is not ours."""
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
            # The lists of the host's own sources are a cache of its own: newer ones stay.
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
        # What the cut off transaction was to bring is no longer wanted: the following steps say anew what is.
        for name, entry in self.journal.of_kind("package").items() if step.data["torn"] else ():
            if entry["before"]["state"] != "installed" and (entry["after"] or {}).get("ours"):
                self.journal.note("package", name, {"version": None, "ours": True})
        self.manager.repair(step.data["torn"])

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
            raise HostError(f"{path} is missing or damaged also after its package was installed again.",
                            "Find what removes it, and see whether the disk is full; then run again.",
                            packages=sorted(lost))

    def _purge(self, step: Step) -> None:
        # What a killed run left half removed is removed by the first call, its configuration files by a second.
        rest = step.data["packages"]
        for _call in range(2):
            rest = self._still_there(rest)
            if rest:
                self.manager.remove(rest)
        rest = self._still_there(rest)
        if rest:
            raise HostError(f"Packages cannot be purged: {', '.join(rest)}.", "Look at dpkg -l and dpkg --audit.",
                            packages=rest)
        self._forget(step)

    def _still_there(self, names: t.Iterable[str]) -> list[str]:
        state = self.manager.read()
        return [name for name in names if name in {**state.installed, **state.broken} or name in state.residual]

    def _remove(self, step: Step) -> None:
        state = self.manager.read()
        there = [name for name in step.data["packages"] if name in {**state.installed, **state.broken}]
        if there:
            self.manager.remove(there, purge=False)
        self._forget(step)

    def _forget(self, step: Step) -> None:
        # At once: what somebody installs from now on is theirs.
        for name in step.data["packages"]:
            self.journal.forget("package", name)

    def _drop(self, step: Step) -> None:
        # The source first: one without its keyring would break every apt call.
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

    def settle(self, state: PackageState) -> None:
        """After an absent run: forgets the packages that are as before us, or that we changed but did not bring."""
        for name, entry in self.journal.of_kind("package").items():
            former = entry["before"]["state"]
            gone = name not in {**state.installed, **state.broken}
            if former == "installed" or gone and (former == "residual" or name not in state.residual):
                self.journal.forget("package", name)


def _is_from(probe: Probe, name: str, there: str | None, version: str | None) -> bool:
    """Whether the installed version is the wanted one, and of this repository where that offers it at all.

    Archives of distributions have packages of the same names and the same vendor's versions as the vendor's repository.
    """
    if not matches(there, version) or version is None:
        return matches(there, version)
    offered = [candidate for candidate in probe.candidates.get(name, ()) if matches(candidate, version)]
    return there in offered or not offered
