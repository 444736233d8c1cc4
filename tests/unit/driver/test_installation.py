# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The set of packages: full or compute-only, and the change from one to the other."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import delivery as module
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import PackageDelivery
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.rollback import Former, complete
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import install_options
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, PackageState, matches
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

OLD, NEW = "580.126.20", "595.91.07"
DEBIAN = "nvidia-driver-cuda nvidia-kernel-open-dkms nvidia-persistenced"
RHEL = "nvidia-driver-cuda kmod-nvidia-open-dkms nvidia-modprobe nvidia-persistenced"
SERVER = "nvidia-headless-no-dkms-595-server-open nvidia-utils-595-server"
ARCHIVE = "nvidia-open-kernel-dkms nvidia-smi libcuda1 libnvidia-ml1 nvidia-persistenced"


def source(name: str, system: str) -> Source:
    found = source_of(name, *system.split(), "x86_64")
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "system", "first", "compute", "full"), [
    ("cuda_repository", "debian 12", "compute-only", DEBIAN, f"{DEBIAN} nvidia-open"),
    ("cuda_repository", "ubuntu 24.04", "full",
     "nvidia-headless-no-dkms-open nvidia-dkms-open nvidia-utils nvidia-modprobe", "nvidia-open"),
    ("cuda_repository", "rocky 9", "compute-only", RHEL, f"{RHEL} nvidia-open"),
    ("cuda_repository", "sles 15", "compute-only",
     "nvidia-open-driver-G07 nvidia-compute-utils-G07 nvidia-persistenced",
     "nvidia-open-driver-G07 nvidia-compute-utils-G07 nvidia-persistenced nvidia-gl-G07 nvidia-video-G07"),
    ("distribution", "ubuntu 24.04", "compute-only", f"{SERVER} nvidia-dkms-595-server-open",
     f"{SERVER} nvidia-dkms-595-server-open nvidia-driver-595-server-open"),
    ("precompiled", "ubuntu 24.04", "compute-only", SERVER, f"{SERVER} nvidia-driver-595-server-open"),
    ("distribution", "debian 12", "compute-only", ARCHIVE, f"{ARCHIVE} nvidia-driver"),
])
def test_packages_of_each_source(name: str, system: str, first: str, compute: str, full: str) -> None:
    found = source(name, system)
    assert " ".join(found.packages(NEW, "open", True, "compute-only")) == compute
    assert " ".join(found.packages(NEW, "open", True, "full")) == full
    assert found.installations[0] == first
    assert found.packages(NEW, "open", True) == found.packages(NEW, "open", True, first)
    for installation, names in (("compute-only", compute), ("full", full)):
        assert found.installation(names.split()) == installation
    assert found.installation([]) == first
    assert set(found.surplus(full.split())) & set(compute.split()) == set()


def test_names_with_a_branch() -> None:
    assert list(source("cuda_repository", "ubuntu 24.04").packages(OLD, "proprietary", True, "compute-only")) == [
        "nvidia-headless-no-dkms-580", "nvidia-dkms-580", "nvidia-utils-580", "nvidia-modprobe"]


@pytest.mark.parametrize(("system", "names", "installation"), [
    ("debian 12", "nvidia-driver-cuda nvidia-driver", "auto"),  # neither of the two
    ("rocky 9", "nvidia-driver-cuda nvidia-driver", "auto"),
    ("ubuntu 24.04", "libnvidia-compute nvidia-driver-open", "full"),  # its metapackage is gone
    ("ubuntu 24.04", "nvidia-headless-no-dkms-open nvidia-driver-open", "full"),
    ("ubuntu 24.04", "nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server", "full"),  # of another source
    ("azurelinux 3.0", "nvidia-driver-cuda", "full"),
])
def test_mixtures(system: str, names: str, installation: str) -> None:
    assert source("cuda_repository", system).installation(names.split()) == installation


# What each package of the repository needs.
NEEDS = {
    "nvidia-open": ["nvidia-driver", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"],
    "nvidia-driver": ["nvidia-driver-libs"],
    "nvidia-driver-libs": ["libnvidia-gl", "libnvidia-ml1"],
    "libnvidia-gl": [],
    "nvidia-driver-cuda": ["libcuda1", "libnvidia-ml1", "nvidia-persistenced"],
    "libcuda1": [], "libnvidia-ml1": [], "nvidia-persistenced": [], "nvidia-kernel-open-dkms": [],
    "nvidia-settings": ["libnvidia-gl"],
}
EXTRA = ["libnvidia-gl", "nvidia-driver", "nvidia-driver-libs", "nvidia-open"]


def closure(names: t.Iterable[str]) -> set[str]:
    found = set(names)
    while more := {need for name in found for need in NEEDS.get(name, ())} - found:
        found |= more
    return found


@dataclass
class Host12:
    """A Debian host with a repository that has two versions of each package, as its package manager and its probe.
    needs: other packages that need some of these, by name."""

    installed: dict[str, str] = field(default_factory=dict)
    needs: dict[str, str] = field(default_factory=dict)
    key: bytes = b""
    candidates: t.Mapping[str, t.Sequence[str]] = field(default_factory=lambda: dict.fromkeys(
        NEEDS, [f"{NEW}-1", f"{OLD}-1"]))

    def __enter__(self) -> Host12:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing to clean up."""

    def read(self) -> PackageState:
        return PackageState(dict(self.installed))

    def probe(self, _repository: object) -> Host12:
        return self

    def resolve(self, name: str, version: str | None) -> str:
        for found in self.candidates[name]:
            if matches(found, version):
                return found
        raise RepositoryError(f"The repository has no {name} {version}.")

    def simulate(self, install: t.Mapping[str, str], _pins: object, without: t.Sequence[str] = (),
                 _gone: object = (), _files: object = None) -> list[Change]:
        there = {name: version for name, version in self.installed.items() if name not in without}
        version = next(iter(install.values()))
        return [Change(name, there.get(name), version) for name in sorted(closure(install))
                if there.get(name) != version]

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        also = [name for name, need in self.needs.items() if need in names]
        return [Change(name, "1", None) for name in [*names, *also]]

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        for name in names:
            del self.installed[name]

    def install(self, packages: t.Mapping[str, str], auto: object = (), gone: object = ()) -> None:
        self.installed.update(dict.fromkeys(closure(packages), next(iter(packages.values()))))

    def refresh(self, _repository: object) -> None:
        """Nothing to read."""

    def trusts(self, _fingerprint: str) -> bool:
        return True

    def lost_files(self, _names: object) -> dict[str, list[str]]:
        return {}


@pytest.fixture
def repository(made: t.Any, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., list[Step]]:
    """A function that plans and, if asked, executes an installation on a host; returns its steps."""
    monkeypatch.setattr(PackageWork, "_has_repository", lambda _self: True)
    monkeypatch.setattr(PackageWork, "holds", lambda *_words: True)
    monkeypatch.setattr(PackageWork, "plan_holds", lambda *_words: [])
    monkeypatch.setattr(PackageWork, "to_reinstall", lambda *_words: [])
    monkeypatch.setattr(module, "missing_headers", lambda *_words: [])

    def run(host: Host12, execute: bool = False, **options: t.Any) -> list[Step]:
        spec = Spec(**{"version": NEW, **options})
        work = PackageDelivery(Host(spec, made.run, Root(str(made.folder)), made.journal), t.cast("t.Any", host),
                               source("cuda_repository", "debian 12"))
        steps = work.plan(made.now, "open")[1]
        for step in steps if execute else ():
            work.execute(step)
        return steps

    return run


def changed(steps: list[Step]) -> list[str]:
    return [step.id for step in steps if not step.action.startswith("refresh")]


def test_exactly_the_packages_that_differ_change(repository: t.Callable[..., list[Step]]) -> None:
    host = Host12()
    repository(host, True, installation="compute-only")
    compute = dict(host.installed)
    assert changed(repository(host)) == changed(repository(host, installation="compute-only")) == []
    assert changed(repository(host, True, installation="full")) == [f"install packages: nvidia-open={NEW}-1"]
    assert set(host.installed) - set(compute) == set(EXTRA)
    assert changed(repository(host, installation="full")) == changed(repository(host, installation="auto")) == []
    steps = repository(host, True, installation="compute-only")
    assert changed(steps) == [f"purge packages: {' '.join(EXTRA)}"] and host.installed == compute
    assert steps[0].reason == "they are not part of the installation compute-only"
    assert changed(repository(host, installation="compute-only")) == changed(repository(host)) == []


def test_the_set_and_the_version_change_together(repository: t.Callable[..., list[Step]]) -> None:
    host = Host12()
    repository(host, True, version=OLD, installation="full")
    assert changed(repository(host, version=NEW))[0].startswith("install packages: nvidia-driver-cuda=595.91.07-1")
    assert "nvidia-open=595.91.07-1" in changed(repository(host, version=NEW))[0]  # auto keeps the set
    steps = changed(repository(host, True, version=NEW, installation="compute-only"))
    assert steps[0] == f"purge packages: {' '.join(EXTRA)}" and "nvidia-open" not in steps[1]
    assert set(host.installed.values()) == {f"{NEW}-1"} and not set(host.installed) & set(EXTRA)


def test_packages_that_were_installed_before_keep_their_configuration(repository: t.Callable[..., list[Step]]) -> None:
    host = Host12(dict.fromkeys(closure(["nvidia-open"]), f"{NEW}-1"))
    assert changed(repository(host, True, installation="compute-only")) == [
        f"remove packages, keep their former configuration: {' '.join(EXTRA)}"]


def test_a_package_of_somebody_else_is_not_taken_along(repository: t.Callable[..., list[Step]]) -> None:
    host = Host12(dict.fromkeys(closure(["nvidia-open"]), f"{NEW}-1"), {"game": "libnvidia-gl"})
    with pytest.raises(HostError, match="Other packages need those that compute-only excludes: game. Remove them "
                                        "first, or set installation to full"):
        repository(host, installation="compute-only")


def test_a_version_that_the_repository_has_no_more_is_refused(repository: t.Callable[..., list[Step]]) -> None:
    """Otherwise only the metapackages would go, and the next run would find nothing to do."""
    host = Host12()
    repository(host, True, installation="full")
    host.candidates = dict.fromkeys(NEEDS, [f"{OLD}-1"])
    with pytest.raises(RepositoryError, match="that compute-only excludes cannot be determined: .* has no nvidia-"):
        repository(host, installation="compute-only")
    steps = changed(repository(host, True, version=OLD, installation="compute-only"))
    assert steps[0] == f"purge packages: {' '.join(EXTRA)}" and not set(host.installed) & set(EXTRA)


def test_packages_of_others_that_prevent_the_simulation_are_told(made: t.Any, monkeypatch: pytest.MonkeyPatch,
                                                                 repository: t.Callable[..., list[Step]]) -> None:
    host = Host12()
    repository(host, True, installation="full")
    real, began = Host12.simulate, []

    def simulate(self: Host12, *words: t.Any) -> list[Change]:
        began.append(words)
        if len(words) == 5 and words[2]:  # on a host without a driver
            raise HostError("apt cannot install x: game Conflicts: libcuda1.")
        return real(self, *words)

    monkeypatch.setattr(Host12, "simulate", simulate)
    work = PackageDelivery(Host(Spec(version=NEW, installation="compute-only"), made.run, Root(str(made.folder)),
                                made.journal), t.cast("t.Any", host), source("cuda_repository", "debian 12"))
    steps = work.plan(made.now, "open")[1]
    assert changed(steps) == ["purge packages: nvidia-driver nvidia-open"] and began
    assert work.warnings == ["Libraries that compute-only excludes may remain, because they cannot be determined: "
                             "apt cannot install x: game Conflicts: libcuda1."]


def test_a_killed_removal_brings_nothing_back(repository: t.Callable[..., list[Step]], made: t.Any,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host12()
    repository(host, True, installation="full")

    def killed(_self: object, _step: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PackageWork, "_forget", killed)
        with pytest.raises(KeyboardInterrupt):
            repository(host, True, installation="compute-only")
    assert made.journal.get("package", "nvidia-open") is not None and "nvidia-open" not in host.installed
    assert changed(repository(host, installation="compute-only")) == []


def test_a_set_that_a_source_does_not_have_is_refused(made: t.Any) -> None:
    host = Host(Spec(installation="compute-only", repository={"fingerprint": "0" * 40, "key": "key.pub"}), made.run,
                Root(str(made.folder)), made.journal)
    manager: t.Any = Host12()
    with pytest.raises(InputError) as caught:
        PackageDelivery(host, manager, source("cuda_repository", "azurelinux 3.0")).plan(made.now, "open")
    assert (caught.value.details["path"], caught.value.details["allowed"]) == ("installation", ["auto", "full"])


def test_the_set_is_a_part_of_the_former_driver(made: t.Any) -> None:
    desired = DesiredDriver(NEW, "open", source="cuda_repository", installation="compute-only")
    for before, recorded in (("auto", False), ("compute-only", False), ("full", True)):
        made.journal.keep("former", "driver", vars(Former(NEW, "open", "cuda_repository", True, installation=before)))
        complete(made.journal, desired, None)
        assert (made.journal.get("previous", "driver") is not None) == recorded
    assert Former(NEW, "open", "cuda_repository", installation="full").spec(Spec()).installation == "full"


@pytest.mark.parametrize("version", ["470.256.02", "535.309.01", "595.91.07"])
def test_the_installer_of_the_vendor_leaves_opengl_out(version: str) -> None:
    assert "--no-opengl-files" in install_options(version, "proprietary", compute_only=True)
    assert "--no-opengl-files" not in install_options(version, "proprietary")
