# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The set of packages on a simulated host: when it does not change, which packages are installed together, what is
refused."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, PackageState, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import packages as packages_module

NEWEST = "1.20.1-1"


class Packager:
    """A package manager and its view of a repository. installed: name to version."""

    repair_command = ("repair",)
    key = b"key"

    def __init__(self, installed: dict[str, str]) -> None:
        self.installed = installed
        self.probed: list[Repository] = []
        self.lost: dict[str, list[str]] = {}
        names = (*packages_module.NAMES, packages_module.EXTENSIONS)
        self.candidates = dict.fromkeys(names, [NEWEST, "1.19.1-1"])

    def __call__(self, _run: t.Any) -> Packager:
        return self

    def __enter__(self) -> Packager:
        return self

    def __exit__(self, *exc: t.Any) -> None:
        pass

    def read(self) -> PackageState:
        return PackageState(self.installed)

    def is_consistent(self) -> bool:
        return True

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        return {name: self.lost[name] for name in names if name in self.lost}

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        assert check

    def is_configured(self, repository: Repository) -> bool:
        return False

    def probe(self, repository: Repository) -> Packager:
        self.probed.append(repository)
        return self

    def resolve(self, name: str, version: str | None) -> str:
        return next(one for one in self.candidates[name] if version in (None, one, one.partition("-")[0]))

    def simulate(self, install: dict[str, str], *_more: t.Any) -> list[Change]:
        return [Change(name, None, version) for name, version in install.items()]


def plan(root: pathlib.Path, patch: pytest.MonkeyPatch, packager: Packager | None, family: str = "debian",
         said: str | None = None, settings: pathlib.Path | None = None, **request: t.Any) -> dict[str, t.Any]:
    """The plan of a host. said: the output of nvidia-ctk, None if it is not installed. settings: the settings file."""
    patch.setattr(packages_module, "read_os", lambda _root: {"family": family})
    patch.setattr(packages_module, "which", lambda _name: "/usr/bin/nvidia-ctk" if said else None)
    patch.setattr(packages_module, "MANAGERS", {family: packager} if packager else {})
    patch.setattr(packages_module, "SETTINGS", str(settings or root))
    whole = {"state": "present", "mode": "auto", "version": None, "repository": {
        "url": None, "key": "k", "fingerprint": "A" * 40}, **request}
    with Journal("container_toolkit", root=str(root / "journal"), readonly=True) as journal:
        return packages_module.Packages(
            whole, journal, lambda argv, **_options: Completed(tuple(argv), 0, said or "", "")).plan()._asdict()


def steps(found: dict[str, t.Any]) -> list[str]:
    return [step.action for step in found["steps"]]


@pytest.mark.parametrize(("family", "url", "hold", "content"), [
    ("debian", "stable/deb/", "/etc/apt/preferences.d/gpuops-container-toolkit.pref", "Pin: version 1.19.1-*\n"),
    ("redhat", "stable/rpm/", "/etc/dnf/vars/gpuops_container_toolkit", "*-1.19.1-*\n"),
    ("suse", "stable/rpm/", "/etc/zypp/systemCheck.d/gpuops-container-toolkit.check",
     "conflicts:libnvidia-container1 > 1.19.1_z\n"),
])
def test_the_set_is_named_and_held_together(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, family: str,
                                            url: str, hold: str, content: str) -> None:
    packager = Packager({})
    found = plan(tmp_path, monkeypatch, packager, family, version="1.19.1")
    assert steps(found) == ["add repository", "hold versions", "refresh package lists", "install packages"]
    assert found["steps"][3].data["packages"] == dict.fromkeys(packages_module.NAMES, "1.19.1-1")
    assert found["steps"][1].target == hold and content in found["steps"][1].data["content"].decode()
    assert url in packager.probed[0].url and "$" not in packager.probed[0].url
    assert not packager.probed[0].signed


def test_newest_and_more_for_other_modes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(tmp_path, monkeypatch, Packager({}), mode="cdi")
    names = (*packages_module.NAMES, packages_module.EXTENSIONS)
    assert found["steps"][3].data["packages"] == dict.fromkeys(names, NEWEST)


@pytest.mark.parametrize(("version", "touched"), [(None, False), ("1.19.1", False), ("1.19.1-1", False),
                                                  ("1.20.1", True)])
def test_packages_of_somebody_else_at_the_version_are_left_alone(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, version: str | None, touched: bool) -> None:
    packager = Packager(dict.fromkeys(packages_module.NAMES, "1.19.1-1"))
    found = plan(tmp_path, monkeypatch, packager, version=version)
    assert bool(found["steps"]) == bool(packager.probed) == touched
    assert found["version"] == "1.19.1"


def test_a_part_of_the_set_is_made_whole_at_its_version(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
                                                        ) -> None:
    found = plan(tmp_path, monkeypatch, Packager({packages_module.NAMES[1]: "1.19.1-1"}))
    assert set(found["steps"][-1].data["packages"].values()) == {"1.19.1-1"}


def test_a_toolkit_without_packages(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "NVIDIA Container Toolkit CLI version 1.20.1\ncommit: x\n"
    programs = {mode: str(tmp_path / f"runtime.{mode}") for mode in packages_module.BINARIES}
    monkeypatch.setattr(packages_module, "BINARIES", programs)
    pathlib.Path(programs["auto"]).touch(mode=0o755)
    for version in (None, "1.20.1", "1.20.1-1"):
        found = plan(tmp_path, monkeypatch, None, "other", said, version=version)
        assert found == {"installed": {}, "version": "1.20.1", "steps": []}
    with pytest.raises(HostError, match=r"It has the toolkit 1.20.1, not 1.19.1"):
        plan(tmp_path, monkeypatch, None, "other", said, version="1.19.1")
    with pytest.raises(HostError, match=f"does not have {programs['cdi']}"):
        plan(tmp_path, monkeypatch, None, "other", said, mode="cdi")
    with pytest.raises(HostError, match="It has no toolkit"):
        plan(tmp_path, monkeypatch, None, "other")
    assert plan(tmp_path, monkeypatch, None, "other", state="absent")["steps"] == []


def test_files_that_are_gone_come_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packager = Packager(dict.fromkeys(packages_module.NAMES, "1.19.1-1"))
    assert plan(tmp_path, monkeypatch, packager)["steps"] == []
    packager.lost = {"nvidia-container-toolkit-base": ["/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"]}
    step, = plan(tmp_path, monkeypatch, packager, settings=tmp_path / "none")["steps"]
    assert step.id == "install packages again: nvidia-container-toolkit-base=1.19.1-1"
    assert step.reason == "/usr/bin/nvidia-cdi-hook and 1 more missing or damaged"
    # Those that come at another version need nothing else.
    assert steps(plan(tmp_path, monkeypatch, packager, version="1.20.1")) == [
        "add repository", "hold versions", "refresh package lists", "install packages"]


def test_what_the_driver_installs_first_may_let_them_come_again(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In check mode, the dependencies of the driver packages are still missing for apt, which then refuses
    everything."""
    def refuse(_packages: t.Mapping[str, str], check: bool = False) -> None:
        raise HostError("Unmet dependencies.", "")

    packager = Packager(dict.fromkeys(packages_module.NAMES, "1.19.1-1"))
    packager.lost = {"nvidia-container-toolkit-base": ["/usr/bin/nvidia-ctk"]}
    monkeypatch.setattr(packager, "reinstall", refuse)
    for driver in ([], ["load module"]):
        with pytest.raises(HostError, match="Unmet"):
            plan(tmp_path, monkeypatch, packager, settings=tmp_path / "none", driver=driver)
    found = plan(tmp_path, monkeypatch, packager, settings=tmp_path / "none", driver=["install packages"])
    assert steps(found) == ["install packages again"]


def test_a_settings_file_that_is_gone_is_written_as_the_packages_do(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packager = Packager(dict.fromkeys(packages_module.NAMES, "1.19.1-1"))
    step, = plan(tmp_path, monkeypatch, packager, settings=tmp_path / "none")["steps"]
    assert step.id == f"write default settings: {tmp_path}/none"
    asked: list[t.Sequence[str]] = []
    monkeypatch.setattr(packages_module, "MANAGERS", {})

    def run(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        asked.append(argv)
        return Completed(tuple(argv), 0, "", "")

    with Journal("container_toolkit", root=str(tmp_path / "journal"), readonly=True) as journal:
        made = packages_module.Packages({"state": "absent"}, journal, run)
        assert made.execute(step)
    assert asked == [["nvidia-ctk", "--quiet", "config", f"--config-file={tmp_path}/none", "--in-place"]]


@pytest.mark.parametrize(("installed", "said", "version"), [
    ({}, None, None),
    ({"nvidia-container-toolkit-base": "1.19.1-1", "libnvidia-container1": "1.19.1-1", "x": "1"}, None, "1.19.1"),
    ({}, "NVIDIA Container Toolkit CLI version 1.18.2\n", "1.18.2"), ({}, "no version", None)])
def test_the_installed_packages_are_read_without_a_plan(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], said: str | None,
        version: str | None) -> None:
    monkeypatch.setattr(packages_module.Packages, "plan", packages_module.Packages.read)
    packager = Packager(installed)
    found = plan(tmp_path, monkeypatch, packager, said=said, state="gathered")
    assert found == {"installed": {name: text for name, text in installed.items() if "nvidia" in name},
                     "version": version, "steps": []}
    assert packager.probed == []
