# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and journal of package work with a simulated package manager and a real journal."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    Archive,
    Change,
    PackageState,
    Repository,
    matches,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

REPOSITORY = Repository("cuda", "https://example.com/r/", "k.pub", "A" * 40)
# A library that the tool needs at its own version, and a compiler that comes from the distribution.
VERSIONS = ["2.0-1", "1.0-1"]


class FakeProbe:
    """A repository with tool, library and pin in two versions."""

    key = b"key"
    candidates: t.Mapping[str, t.Sequence[str]] = {"tool": VERSIONS, "library": VERSIONS, "pin-1.0": ["1-1"],
                                                   "pin-2.0": ["2-1"]}

    def __init__(self, state: PackageState) -> None:
        self.state = state
        self.pinned: list[dict[str, str]] = []
        self.held: dict[str, bytes] = {}

    def __enter__(self) -> FakeProbe:
        return self

    def __exit__(self, *exc: t.Any) -> None:
        pass

    def resolve(self, name: str, version: str | None) -> str:
        return next(found for found in self.candidates[name] if matches(found, version))

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        self.held = dict(files or {})
        self.pinned.append(dict(pins))
        self.state = PackageState({name: self.state.installed[name] for name in self.state.installed
                                   if name not in without})
        wanted = dict(install)
        if "tool" in wanted:
            wanted.setdefault("library", wanted["tool"])
            wanted.setdefault("compiler", self.state.installed.get("compiler", "12"))
        return [*(Change(name, self.state.installed.get(name), version) for name, version in sorted(wanted.items())
                  if self.state.installed.get(name) != version),
                *(Change(name, self.state.installed[name], None) for name in gone)]


class FakeManager:
    """A host whose installed packages change as requested."""

    repair_command = ("dpkg", "--configure", "-a")

    def __init__(self, folder: Path, **installed: str) -> None:
        self.folder = folder
        self.installed = dict(installed)
        self.residual: set[str] = set()
        self.broken: dict[str, str] = {}
        self.interrupted = False
        self.calls: list[tuple[str, t.Any]] = []
        self.foreign: list[str] = []
        self.auto: list[str] = []
        self.consistent = True
        self.trusted: set[str] = set()
        self.lost: dict[str, list[str]] = {}
        self.cursed = False  # whether files go again at once

    def read(self) -> PackageState:
        return PackageState(dict(self.installed), dict(self.broken), frozenset(self.residual), self.interrupted)

    def probe(self, repository: Repository) -> FakeProbe:
        return FakeProbe(self.read())

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        return {str(self.folder / "keys/gpuops-cuda.gpg"): key, str(self.folder / "gpuops-cuda.sources"): b"source"}

    def is_configured(self, repository: Repository) -> bool:
        return all(Path(path).exists() for path in self.files(repository, b""))

    def refresh(self, repository: Repository) -> None:
        self.calls.append(("refresh", repository.name))

    def forget_lists(self, url: str) -> None:
        self.calls.append(("forget_lists", url))

    def trusts(self, fingerprint: str) -> bool:
        return fingerprint in self.trusted

    def trust(self, repository: Repository) -> None:
        self.trusted.add(repository.wanted_fingerprint)

    def distrust(self, fingerprint: str) -> None:
        self.trusted.discard(fingerprint)

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        self.calls.append(("install", dict(packages)))
        self.auto = list(auto)
        for change in FakeProbe(self.read()).simulate(packages, {}, gone=gone):
            if change.after is None:
                del self.installed[change.name]
            else:
                self.installed[change.name] = change.after

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        return {name: self.lost[name] for name in names if name in self.lost}

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        self.calls.append(("simulate reinstall" if check else "reinstall", dict(packages)))
        if check:
            return
        self.lost = self.lost if self.cursed else {}

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        return [Change(name, "1", None) for name in [*names, *self.foreign]]

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        self.calls.append(("purge" if purge else "remove", sorted(names)))
        for name in names:
            self.installed.pop(name, None)
            self.residual.discard(name)

    def repair(self, names: t.Sequence[str]) -> None:
        self.calls.append(("repair", sorted(names)))
        self.interrupted = False
        for name in names:
            self.installed.pop(name, None)
            self.broken.pop(name, None)

    def is_consistent(self) -> bool:
        return self.consistent


WANTED: dict[str, str | None] = {"tool": "1.0"}
FIRST = ["add repository: cuda", "refresh package lists: cuda", "install packages: pin-1.0=1-1",
         "install packages: tool=1.0-1"]


@pytest.fixture
def manager(tmp_path: Path) -> FakeManager:
    return FakeManager(tmp_path, base="1")


@pytest.fixture
def journal(tmp_path: Path) -> t.Iterator[Journal]:
    with Journal("test", root=str(tmp_path / "state/journal")) as opened:
        yield opened


def plan(manager: FakeManager, journal: Journal, wanted: t.Mapping[str, str | None] | None = None, pin: str = "pin-1.0",
         also: t.Sequence[str] = ()) -> list[Step]:
    wanted = WANTED if wanted is None else wanted
    work = PackageWork(manager, journal, REPOSITORY)
    state = manager.read()
    if work.is_present(state, {**wanted, pin: None}):
        return []
    with manager.probe(REPOSITORY) as probe:
        return (work.plan_repair(state, wanted) + work.plan_repository(probe)
                + work.plan_install(probe, state, wanted, {pin: None}, also))


def execute(manager: FakeManager, journal: Journal, steps: t.Sequence[Step]) -> None:
    work = PackageWork(manager, journal, REPOSITORY)
    for step in steps:
        assert work.execute(step)


def ids(steps: t.Sequence[Step]) -> list[str]:
    return [step.id for step in steps]


def test_first_installation_and_none_after_it(manager: FakeManager, journal: Journal) -> None:
    steps = plan(manager, journal)
    assert ids(steps) == FIRST
    execute(manager, journal, steps)
    assert manager.installed == {"base": "1", "pin-1.0": "1-1", "tool": "1.0-1", "library": "1.0-1", "compiler": "12"}
    assert plan(manager, journal) == []


@pytest.mark.parametrize("done", range(len(FIRST)))
def test_killed_after_any_step_the_rest_is_planned(manager: FakeManager, journal: Journal, done: int) -> None:
    execute(manager, journal, plan(manager, journal)[:done])
    rest = FIRST[done:]
    if done > 1:  # the lists are refreshed before any installation
        rest = [FIRST[1], *rest]
    assert ids(plan(manager, journal)) == rest


def test_a_dependency_removed_by_hand_is_put_back_alone(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    del manager.installed["library"]
    steps = plan(manager, journal)
    assert ids(steps) == ["refresh package lists: cuda", "install packages: library=1.0-1"]
    execute(manager, journal, steps)
    assert manager.auto == ["library"]


def test_a_dependency_upgraded_by_hand_is_put_back(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    manager.installed["library"] = "2.0-1"
    assert ids(plan(manager, journal))[-1] == "install packages: library=1.0-1"


def test_dependencies_that_went_along_with_an_upgrade_by_hand_stay(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    manager.installed.update({"tool": "2.0-1", "library": "2.0-1", "pin-2.0": "2-1"})
    assert plan(manager, journal, {"tool": "2.0"}, "pin-2.0") == []
    assert plan(manager, journal, {"tool": None}) == []


def test_what_came_from_the_distribution_is_not_guarded(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    manager.installed["compiler"] = "13"
    assert plan(manager, journal) == []


def test_a_switch_takes_dependencies_along(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    steps = plan(manager, journal, {"tool": "2.0"}, "pin-2.0")
    assert ids(steps) == [FIRST[1], "install packages: pin-2.0=2-1", "install packages: tool=2.0-1"]
    execute(manager, journal, steps)
    assert manager.installed["library"] == "2.0-1"


def test_a_switch_does_not_ask_for_the_old_version_of_a_lost_dependency(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    del manager.installed["library"]
    assert ids(plan(manager, journal, {"tool": "2.0"}, "pin-2.0"))[-1] == "install packages: tool=2.0-1"


def test_also_is_installed_in_any_version(manager: FakeManager, journal: Journal) -> None:
    assert ids(plan(manager, journal, also=["headers"]))[-1] == "install packages: headers tool=1.0-1"
    manager.installed["headers"] = "6.1"
    assert ids(plan(manager, journal, also=["headers"]))[-1] == "install packages: tool=1.0-1"


def test_interrupted_is_repaired_first(manager: FakeManager, journal: Journal) -> None:
    manager.interrupted = True
    assert ids(plan(manager, journal))[0] == "repair package database: dpkg --configure -a"


def test_only_what_concerns_us_counts_as_broken(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    manager.broken["somebody"] = "iF"
    assert plan(manager, journal) == []
    manager.broken["library"] = "iF"
    assert ids(plan(manager, journal))[0] == REPAIR


REPAIR = "repair package database: dpkg --configure -a"


def test_what_was_cut_off_goes_and_comes_anew(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    del manager.installed["library"]
    manager.broken["library"] = "iUR"
    steps = plan(manager, journal)
    assert ids(steps) == [REPAIR, *FIRST[1:]]
    execute(manager, journal, steps)
    assert ("repair", ["library", "pin-1.0", "tool"]) in manager.calls
    assert manager.installed == {"base": "1", "pin-1.0": "1-1", "tool": "1.0-1", "library": "1.0-1", "compiler": "12"}
    assert manager.auto == []
    assert plan(manager, journal) == []


def test_back_to_the_former_version_after_a_switch_was_cut_off(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    execute(manager, journal, plan(manager, journal, {"tool": "2.0"}, "pin-2.0"))
    manager.broken["tool"] = "iU"
    del manager.installed["tool"]
    journal.keep("package", "other", {"state": "absent"})
    journal.note("package", "other", {"version": "2.0-1", "ours": True})  # had not come yet
    execute(manager, journal, plan(manager, journal))
    assert manager.installed["tool"] == "1.0-1"
    assert "pin-2.0" not in manager.installed
    assert plan(manager, journal) == []


def test_a_mixture_that_dpkg_calls_whole_is_seen_by_its_dependencies(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    journal.begin(Step("install packages", "tool=2.0-1"))
    switch = plan(manager, journal, {"tool": "2.0"}, "pin-2.0")
    assert ids(switch) == [FIRST[1], "install packages: pin-2.0=2-1", "install packages: tool=2.0-1"]
    manager.consistent = False
    assert ids(plan(manager, journal, {"tool": "2.0"}, "pin-2.0")) == [REPAIR, *ids(switch)]


def test_what_was_there_before_us_stays_in_a_repair(manager: FakeManager, journal: Journal) -> None:
    manager.installed.update({"library": "1.0-1", "compiler": "12"})
    execute(manager, journal, plan(manager, journal, {"tool": "2.0"}, "pin-2.0"))
    manager.broken["tool"] = "iF"
    del manager.installed["tool"]
    execute(manager, journal, plan(manager, journal, {"tool": "2.0"}, "pin-2.0")[:1])
    assert manager.calls[-1] == ("repair", ["pin-2.0", "tool"])


def test_absent_takes_exactly_what_came(manager: FakeManager, journal: Journal) -> None:
    manager.residual.add("library")
    before = dict(manager.installed)
    execute(manager, journal, plan(manager, journal))
    manager.residual.clear()
    work = PackageWork(manager, journal, None)
    steps = work.plan_absent(manager.read())
    assert ids(steps)[:2] == ["purge packages: compiler pin-1.0 tool",
                              "remove packages, keep their former configuration: library"]
    execute(manager, journal, steps)
    work.forget_restored(manager.read())
    assert manager.installed == before
    assert not journal.entries
    assert ("forget_lists", REPOSITORY.url) in manager.calls
    assert not (manager.folder / "keys").exists()
    assert not (manager.folder / "gpuops-cuda.sources").exists()


def test_what_somebody_installs_after_a_removal_that_was_cut_off_is_theirs(
        manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    work = PackageWork(manager, journal, REPOSITORY)
    purge = work.plan_absent(manager.read())[0]
    work.execute(purge)  # and then the run was killed
    manager.installed["tool"] = "9.0-1"
    assert [step.action for step in work.plan_absent(manager.read())] == ["remove repository"]


def test_absent_leaves_what_was_there_before_us(manager: FakeManager, journal: Journal) -> None:
    manager.installed.update({"tool": "1.0-1", "library": "1.0-1", "compiler": "12"})
    execute(manager, journal, plan(manager, journal, {"tool": "2.0"}, "pin-2.0"))
    steps = PackageWork(manager, journal, None).plan_absent(manager.read())
    assert ids(steps)[0] == "purge packages: pin-2.0"


def test_absent_is_refused_when_others_need_ours(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    manager.foreign = ["cuda-toolkit"]
    with pytest.raises(HostError, match="cuda-toolkit"):
        PackageWork(manager, journal, None).plan_absent(manager.read())


def test_new_pins_are_in_force_in_the_simulation(manager: FakeManager, journal: Journal) -> None:
    work = PackageWork(manager, journal, REPOSITORY)
    probe = manager.probe(REPOSITORY)
    work.plan_install(probe, manager.read(), WANTED, {"pin-1.0": None})
    assert probe.pinned == [{}, {"pin-1.0": "1-1"}]


def test_a_repository_of_two_components_goes_with_the_last(tmp_path: Path) -> None:
    manager = FakeManager(tmp_path / "host")
    for concern, name in (("driver", "tool"), ("dcgm", "pin-1.0")):
        with Journal(concern, root=str(tmp_path / "journal")) as journal:
            work = PackageWork(manager, journal, REPOSITORY)
            wanted: dict[str, str | None] = {name: None}
            steps = work.plan_repository(manager.probe(REPOSITORY))
            assert [step.id for step in steps] == FIRST[:1]
            steps += work.plan_install(manager.probe(REPOSITORY), manager.read(), wanted)
            for step in steps:
                work.execute(step)
            assert work.is_present(manager.read(), {}) and not work.plan_repository(manager.probe(REPOSITORY))
    for concern in ("driver", "dcgm"):
        assert manager.is_configured(REPOSITORY) and ("forget_lists", REPOSITORY.url) not in manager.calls
        with Journal(concern, root=str(tmp_path / "journal")) as journal:
            work = PackageWork(manager, journal, None)
            for step in work.plan_absent(manager.read()):
                work.execute(step)
            work.forget_restored(manager.read())
    assert not manager.is_configured(REPOSITORY) and ("forget_lists", REPOSITORY.url) in manager.calls
    assert not (tmp_path / "journal").exists()


def test_what_goes_before_does_not_hold_up_a_removal(tmp_path: Path) -> None:
    manager = FakeManager(tmp_path)
    with Journal("demo", root=str(tmp_path / "journal")) as journal:
        work = PackageWork(manager, journal, REPOSITORY)
        for step in work.plan_install(manager.probe(REPOSITORY), manager.read(), WANTED):
            work.execute(step)
        manager.foreign = ["exporter"]
        with pytest.raises(HostError, match="exporter"):
            work.plan_absent(manager.read())
        assert work.plan_absent(manager.read(), going=["exporter"])


def test_a_key_goes_with_us_unless_it_was_there_before(manager: FakeManager, journal: Journal) -> None:
    manager.trusted.add("another")
    execute(manager, journal, plan(manager, journal))
    assert manager.trusted == {REPOSITORY.fingerprint, "another"}
    execute(manager, journal, PackageWork(manager, journal, None).plan_absent(manager.read()))
    assert manager.trusted == {"another"}
    manager.trusted.add(REPOSITORY.fingerprint)
    execute(manager, journal, plan(manager, journal))
    execute(manager, journal, PackageWork(manager, journal, None).plan_absent(manager.read()))
    assert REPOSITORY.fingerprint in manager.trusted


def test_a_file_holds_versions_until_another_does(manager: FakeManager, journal: Journal, tmp_path: Path) -> None:
    work, path = PackageWork(manager, journal, REPOSITORY), str(tmp_path / "preferences.d/gpuops.pref")
    assert work.holds({path: None})
    steps = work.plan_holds({path: b"1.0"})
    assert [step.id for step in steps] == [f"hold versions: {path}"]
    assert work.execute(steps[0]) and work.holds({path: b"1.0"}) and not work.holds({path: b"2.0"})
    probe = manager.probe(REPOSITORY)
    work.plan_install(probe, manager.read(), WANTED, files={path: b"2.0"})
    assert probe.held == {path: b"2.0"}
    steps = work.plan_holds({path: None})
    assert [step.id for step in steps] == [f"release versions: {path}"]
    work.plan_install(probe, manager.read(), WANTED, files={path: None})
    assert probe.held == {path: b""}
    assert work.execute(steps[0]) and not Path(path).exists() and work.holds({path: None})


def test_what_must_not_stay_goes_in_the_same_transaction(manager: FakeManager, journal: Journal) -> None:
    manager.installed["rival"] = "3"
    work = PackageWork(manager, journal, REPOSITORY)
    steps = work.plan_install(manager.probe(REPOSITORY), manager.read(), WANTED, gone=["rival", "absent"])
    assert steps[-1].id == "install packages: tool=1.0-1 rival-"
    for step in steps:
        work.execute(step)
    assert "rival" not in manager.installed
    assert journal.get("package", "rival") == {"before": {"state": "installed", "version": "3"},
                                               "after": {"version": None, "ours": False}}


def test_the_same_version_of_another_origin_is_replaced(manager: FakeManager, journal: Journal) -> None:
    manager.installed.update(tool="1.0-1~deb12u1", library="1.0-1")
    steps = PackageWork(manager, journal, REPOSITORY).plan_install(manager.probe(REPOSITORY), manager.read(), WANTED)
    assert steps[-1].id == "install packages: tool=1.0-1"
    manager.installed["tool"] = "1.0-1"
    assert not PackageWork(manager, journal, REPOSITORY).plan_install(manager.probe(REPOSITORY), manager.read(), WANTED)


def test_a_repository_goes_when_packages_come_from_elsewhere(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    archive = PackageWork(manager, journal, Archive("archive", "Debian's archive", "", "", origin="Debian"))
    assert PackageWork(manager, journal, REPOSITORY).plan_former() == []
    steps = archive.plan_former()
    assert [step.id for step in steps] == ["remove repository: cuda"]
    assert archive.execute(steps[0]) and archive.former() == [] and not manager.is_configured(REPOSITORY)
    assert ("forget_lists", REPOSITORY.url) in manager.calls


def test_a_pinning_package_goes_before_what_it_would_hold_back(manager: FakeManager, journal: Journal) -> None:
    manager.installed.update({"x-driver-pinning-1": "1", "rival": "3"})
    steps = PackageWork(manager, journal, REPOSITORY).plan_install(
        manager.probe(REPOSITORY), manager.read(), WANTED, gone=["rival", "x-driver-pinning-1"])
    assert [step.target for step in steps[1:]] == ["x-driver-pinning-1-", "tool=1.0-1 rival-"]


def test_files_that_are_gone_come_again(manager: FakeManager, journal: Journal) -> None:
    execute(manager, journal, plan(manager, journal))
    work = PackageWork(manager, journal, REPOSITORY)
    names = ["tool", "library", "not-installed"]
    assert work.plan_lost(manager.read(), names) == []
    manager.lost = {"library": ["/usr/lib/a.so", "/usr/lib/b.so"], "compiler": ["/usr/bin/cc"], "not-installed": ["/x"]}
    steps = work.plan_lost(manager.read(), names)
    assert [(step.id, step.reason) for step in steps] == [
        ("refresh package lists: cuda", "packages are to be installed"),
        ("install packages again: library=1.0-1", "/usr/lib/a.so and 1 more missing or damaged")]
    assert manager.calls[-1] == ("simulate reinstall", {"library": "1.0-1"})
    manager.calls.clear()
    # What comes anyway is left out, and lists are refreshed once.
    coming = Step("x", "y", data={"changes": [("library", "1", "2", True)]})
    assert work.plan_lost(manager.read(), names, [coming]) == []
    assert len(work.plan_lost(manager.read(), names, steps[:1])) == 1
    assert manager.calls == []  # what those steps bring is not there yet
    execute(manager, journal, steps)
    assert manager.calls[-1] == ("reinstall", {"library": "1.0-1"})
    assert work.plan_lost(manager.read(), names) == []


def test_what_runs_before_may_have_to_install_first(manager: FakeManager, journal: Journal) -> None:
    manager.lost = {"base": ["/usr/lib/a.so"]}
    work = PackageWork(manager, journal, REPOSITORY)
    work.packages_before = True
    assert ids(work.plan_lost(manager.read(), ["base"])) == ["install packages again: base=1"]
    assert manager.calls == []


def test_files_that_do_not_stay_are_told(manager: FakeManager, journal: Journal) -> None:
    manager.lost, manager.cursed = {"base": ["/usr/lib/a.so"]}, True
    steps = PackageWork(manager, journal, REPOSITORY).plan_lost(manager.read(), ["base"])
    assert ids(steps) == ["install packages again: base=1"]  # of a repository that is not ours nothing is fetched
    with pytest.raises(HostError, match="/usr/lib/a.so is still missing or damaged after the reinstallation"):
        execute(manager, journal, steps)
