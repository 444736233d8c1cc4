# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The release data: every file is complete, and agrees with what the vendor publishes (transcribed here a second
time)."""

from __future__ import annotations

import datetime
import pathlib
import re
import shutil
import typing as t

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = ROOT / "plugins" / "plugin_utils" / "_data"
PARTS = ("version", "date", "components", "defaults", "drivers", "systems", "openshift", "containerd", "precompiled")


def transcribed() -> dict[str, dict[str, str]]:
    """Maps releases to components (and date), from releases.txt."""
    lines = (ROOT / "tests/unit/data/releases.txt").read_text(encoding="utf-8").splitlines()
    names = re.findall(r"[a-z_]+", " ".join(line for line in lines if re.match(r"# *(release \||  )", line)))
    known: dict[str, dict[str, str]] = {}
    above: list[str] = []
    for line in lines:
        if not line.startswith("#"):
            cells = [cell.strip() for cell in line.split("|")]
            above = [old if cell == "=" else cell for cell, old in zip(cells, above or cells)]
            known[above[0]] = {name: cell for name, cell in zip(names, above, strict=True) if cell != "-"}
    return known


TRANSCRIBED = transcribed()


# -- what is delivered

def test_every_release_is_transcribed() -> None:
    assert releases.available() == tuple(TRANSCRIBED), "a line in releases.txt for each file, sorted as versions"
    assert len(TRANSCRIBED) == 18 and releases.available()[0] == "24.6.0" and releases.available()[-1] == "26.7.0"
    assert releases.release() is releases.release("26.7.0") is releases.release("v26.7.0")


@pytest.mark.parametrize("version", TRANSCRIBED)
def test_components(version: str) -> None:
    wanted = dict(TRANSCRIBED[version])
    found = releases.release(version)
    assert (found.version, found.date) == (wanted.pop("release"), wanted.pop("date"))
    assert found.components == {**wanted, "validator": f"v{version}"}
    assert found.defaults == {"cdi": releases.version_key(version) >= (25, 10)}, "CDI is the default since 25.10"


@pytest.mark.parametrize("version", TRANSCRIBED)
def test_a_file_is_whole(version: str) -> None:
    data = yaml.safe_load((DATA / "gpu_operator" / f"{version}.yml").read_text(encoding="utf-8"))
    assert set(data) == set(PARTS)
    found = releases.release(version)
    assert found.drivers == tuple(sorted(found.drivers, key=releases.version_key, reverse=True)), "newest first"
    assert all(re.fullmatch(r"\d{3}\.\d+\.\d\d", driver) for driver in found.drivers)
    assert {releases.branch_of(driver) for driver in found.drivers} <= set(releases.branches())
    assert found.systems and found.precompiled and found.openshift and found.containerd
    for row in found.systems:
        assert set(row) <= {"kubernetes", "ubuntu", "rhel", "rocky"} and len(row["kubernetes"]) == 2
        assert all(isinstance(text, str) for texts in row.values() for text in texts), "versions are texts: 24.10"
    for row in found.precompiled:
        assert set(row) == {"ubuntu", "kernels", "flavours", "branches"}
        assert set(row["branches"]) <= set(releases.branches())


# The default first. Sources: component matrix and release notes of each release.
@pytest.mark.parametrize(("version", "drivers"), [
    ("24.6.0", "550.90.07 535.183.06"),
    ("24.6.2", "550.90.07 560.35.03 550.90.12 535.183.06"),
    ("24.9.2", "550.144.03 565.57.01 560.35.03 535.230.02"),
    ("25.3.0", "570.124.06 570.133.20 550.163.01 535.247.01"),
    ("25.3.1", "570.148.08 575.57.08 570.158.01 550.163.01"),
    ("25.3.2", "570.148.08 580.65.06 570.172.08 535.261.03"),
    ("25.3.3", "580.82.07 575.57.08 570.172.08 550.163.01 535.247.01"),
    ("25.10.0", "580.95.05 570.195.03 535.274.02"),
    ("25.10.1", "580.105.08 590.48.01 580.126.16 570.211.01 535.288.01"),
    ("26.3.3", "580.126.20 610.57.04 595.91.07 580.178.04 535.309.01"),
    ("26.7.0", "595.91.07 610.57.04 580.173.02 535.309.01"),
])
def test_supported_drivers(version: str, drivers: str) -> None:
    found = releases.release(version)
    assert found.components["driver"] == drivers.split()[0]
    assert set(drivers.split()) <= set(found.drivers)


def test_drivers_that_a_release_no_longer_names() -> None:
    assert "570.133.20" not in releases.release("25.3.1").drivers
    assert {releases.branch_of(driver) for driver in releases.release("26.7.0").drivers} == {535, 580, 595, 610}


# -- life cycle: "previous major version enters deprecated support, all prior ones end of support"

@pytest.mark.parametrize(("version", "life"), [
    ("26.7.0", "supported"), ("26.3.0", "deprecated"), ("26.3.3", "deprecated"), ("25.10.1", "ended"),
    ("24.6.0", "ended")])
def test_life(version: str, life: str) -> None:
    assert releases.release(version).life == life


# -- what it was validated on (platform support page)

@pytest.mark.parametrize(("version", "system", "supported"), [
    ("26.7.0", "ubuntu 26.04", True), ("26.7.0", "ubuntu 20.04", False), ("26.7.0", "rhel 9.2", True),
    ("26.7.0", "rhel 9.3", False), ("26.7.0", "rhel 9.8", True), ("26.7.0", "rhel 10.2", True),
    ("26.7.0", "rocky 8.10", True), ("26.7.0", "rocky 9.6", False), ("26.7.0", "debian 12", False),
    ("26.7.0", "rhcos 4.22", True), ("26.7.0", "rhcos 4.17", False),
    ("26.3.0", "ubuntu 20.04", True), ("26.3.1", "ubuntu 20.04", False), ("26.3.0", "rocky 10.1", False),
    ("26.3.1", "rhel 9.8", False), ("26.3.2", "rhel 9.8", True),
    ("25.10.0", "rhcos 4.21", False), ("25.10.1", "rhcos 4.21", True), ("25.10.1", "rhel 9.5", False),
    ("25.3.4", "rhel 9.5", True), ("25.3.0", "rhel 9.4", False), ("25.3.0", "ubuntu 24.04", True),
    ("24.9.2", "ubuntu 24.04", False), ("24.9.0", "rhel 8.10", True), ("24.6.0", "rhcos 4.12", True),
])
def test_systems(version: str, system: str, supported: bool) -> None:
    assert releases.os_supported(releases.release(version), *system.split()) is supported


@pytest.mark.parametrize(("version", "kubernetes", "system", "supported"), [
    ("26.7.0", "v1.36.1", "", True), ("26.7.0", "1.37", "", False), ("26.7.0", "v1.34.2+k3s1", "", True),
    ("26.7.0", "v1.32.9", "ubuntu 24.04", True), ("26.7.0", "v1.32.9", "ubuntu 22.04", False),
    ("26.7.0", "v1.32.9", "", True), ("26.7.0", "v1.32.9", "debian 12", True),
    ("26.7.0", "v1.31.2", "rhcos 4.18", None),
    ("26.3.1", "1.36", "", False), ("26.3.2", "1.36", "", True),
    ("25.10.0", "1.35", "", False), ("25.10.1", "1.35", "", True), ("25.3.0", "1.33", "", False),
    ("25.3.1", "1.33", "rhel 9.6", True), ("24.9.0", "1.31", "", True), ("24.6.0", "1.31", "", False),
    ("24.6.0", "1.22", "", False),
])
def test_kubernetes(version: str, kubernetes: str, system: str, supported: bool | None) -> None:
    assert releases.kubernetes_supported(releases.release(version), kubernetes, *system.split()) is supported


@pytest.mark.parametrize(("version", "containerd", "supported"), [
    ("26.7.0", "2.3.4", True), ("26.7.0", "1.6.20", False), ("26.7.0", "2.4.0", False), ("26.3.2", "2.3.0", False),
    ("26.3.3", "2.3.0", True), ("25.3.1", "2.1.0", False), ("25.3.2", "2.1.0", True), ("24.9.2", "2.0.0", False),
    ("24.6.0", "1.4.0", True),
])
def test_containerd(version: str, containerd: str, supported: bool) -> None:
    assert releases.containerd_supported(releases.release(version), containerd) is supported


@pytest.mark.parametrize(("version", "branch", "system", "flavour", "kernel", "published"), [
    ("26.7.0", 595, "ubuntu 26.04", "generic", "7.0.0-18-generic", True),
    ("26.7.0", 580, "ubuntu 26.04", "generic", None, False),
    ("26.7.0", 580, "ubuntu 22.04", "aws", "6.8.0-1021-aws", True),
    ("26.7.0", 580, "ubuntu 22.04", "azure-fde", None, False),
    ("26.7.0", 580, "ubuntu 24.04", "azure-fde", None, True),
    ("26.7.0", 580, "ubuntu 24.04", "generic", "6.14.0-33-generic", False),
    ("26.7.0", 610, "ubuntu 24.04", "generic", None, False), ("26.7.0", 580, "rhel 9.6", "generic", None, False),
    ("26.7.0", 580, "ubuntu 24.04", "gke", None, False), ("26.7.0", 580, "ubuntu 24.04", None, None, False),
    ("26.3.3", 535, "ubuntu 22.04", "oracle", "5.15.0-1060-oracle", True),
    ("26.3.3", 595, "ubuntu 24.04", "generic", None, False),
    ("25.3.0", 550, "ubuntu 24.04", "nvidia", "6.8.0-1013-nvidia", True),
    ("25.3.0", 570, "ubuntu 22.04", "generic", "6.8.0-60-generic", False),
    ("24.9.0", 550, "ubuntu 22.04", "generic", "5.15.0-122-generic", True),
    ("24.9.0", 550, "ubuntu 24.04", "generic", None, False), ("24.6.0", 550, "ubuntu 22.04", "generic", None, False),
])
def test_precompiled(version: str, branch: int, system: str, flavour: str | None, kernel: str | None,
                     published: bool) -> None:
    found = releases.release(version)
    assert releases.precompiled(found, branch, *system.split(), flavour, kernel) is published


# -- driver branches ("Supported Drivers and CUDA Toolkit Versions", driver installation guides)

@pytest.mark.parametrize(("number", "kind", "cuda", "flavours", "last", "first_ended"), [
    (470, "long_term", "11.4", "proprietary", None, "2024-08-01"),
    (535, "long_term", "12.2", "open proprietary", "2026-06-30", "2026-07-01"),
    (550, "production", "12.4", "open proprietary", None, "2025-12-01"),
    (570, "production", "12.8", "open proprietary", "2026-02-28", "2026-03-01"),
    (580, "long_term", "13.0", "open proprietary", "2028-06-30", "2028-07-01"),
    (590, "new_feature", "13.1", "open proprietary", None, "2026-11-21"),
    (595, "production", "13.2", "open proprietary", "2027-03-31", "2027-04-01"),
    (610, "new_feature", "13.3", "open proprietary", "2026-08-31", "2026-09-01"),
    (615, None, "13.4", "open proprietary", "2099-01-01", None),
    (620, None, None, "open", "2099-01-01", None),
])
def test_branches(number: int, kind: str | None, cuda: str | None, flavours: str, last: str | None,
                  first_ended: str | None) -> None:
    branch = releases.branch(number)
    assert branch is not None
    assert (branch.number, branch.kind, branch.cuda, " ".join(branch.flavours)) == (number, kind, cuda, flavours)
    for day, ended in ((last, False), (first_ended, True)):
        assert day is None or branch.ended(datetime.date.fromisoformat(day)) is ended


def test_which_branches_there_are() -> None:
    assert releases.branches() == (470, 510, 515, 520, 525, 530, 535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595,
                                   610, 615, 620)
    known = [branch for branch in map(releases.branch, releases.branches()) if branch is not None]
    assert [branch.number for branch in known if "open" not in branch.flavours] == [470, 510], "open from 515"
    assert [branch.number for branch in known if "proprietary" not in branch.flavours] == [620]
    cudas = [releases.version_key(branch.cuda) for branch in known if branch.cuda]
    assert cudas == sorted(cudas)
    assert releases.branch(999) is None


@pytest.mark.parametrize(("name", "modules", "first", "last", "cuda"), [
    ("kepler", "no", None, 470, "6.0 11"), ("maxwell", "no", None, 580, "6.5 12"),
    ("pascal", "no", None, 580, "8.0 12"), ("volta", "no", None, 580, "9.0 12"),
    ("turing", "optional", None, None, "10.0"),
    ("ampere", "optional", None, None, "11.0"), ("ada-lovelace", "optional", 520, None, "11.8"),
    ("hopper", "optional", 525, None, "11.8"), ("blackwell", "required", 570, None, "12.8")])
def test_architectures(name: str, modules: str, first: int | None, last: int | None, cuda: str) -> None:
    known = releases.architecture(name)
    assert known is not None and (known.open_modules, known.first_branch, known.last_branch) == (modules, first, last)
    assert known.cuda == tuple(cuda.split())
    assert releases.architecture("nowhere") is None and releases.architecture(None) is None


@pytest.mark.parametrize(("level", "first"), [
    ("11.8", "450.80.02"), ("12", "525.60.13"), ("12.8", "525.60.13"), ("13.2", "580.65.06"), ("14.0", None),
    ("latest", None)])
def test_first_driver_of_a_cuda_major(level: str, first: str | None) -> None:
    assert releases.cuda_needs(level) == first


def test_floors() -> None:
    assert releases.floor("coherent_memory") == "580.65.06"
    assert [releases.gds_needs_open(version) for version in ("2.17.3", "2.17.5", "v2.26.6", "sha256:ab")] == [
        False, True, True, True]
    assert all(releases.gds_needs_open(releases.release(version).components["gds"]) for version in releases.available())


# -- faults (component matrix of 25.3 to 26.3: four versions of 570; the default drivers of 25.3.0 to 25.3.2 are such)

def test_faults_of_drivers() -> None:
    faulty = [version for version in ("570.86.15", "570.124.06", "570.133.20", "570.148.08", "570.158.01", "570.172.08",
                                      "580.65.06") if releases.known_faults(version)]
    assert faulty == ["570.124.06", "570.133.20", "570.148.08", "570.158.01"]
    assert "MIG" in releases.known_faults("570.133.20")[0] and "570.172.08" in releases.known_faults("570.133.20")[0]
    assert [version for version in releases.available()
            if releases.known_faults(releases.release(version).components["driver"])] == ["25.3.0", "25.3.1", "25.3.2"]


def test_faults_of_the_toolkit() -> None:
    def found(version: str) -> list[str]:
        return re.findall(r"CVE-[\d-]+", " ".join(releases.known_faults(version, "container_toolkit")))

    assert found("1.16.1") == ["CVE-2024-0132", "CVE-2025-23359", "CVE-2025-23266"]
    assert found("1.17.3") == ["CVE-2025-23359", "CVE-2025-23266"]
    assert found("1.17.4") == found("1.17.7") == ["CVE-2025-23266"]
    assert all(releases.known_faults(version, "container_toolkit") == () for version in ("1.17.8", "1.19.1", "1.20.0"))
    assert "cdi-refresh" in releases.known_faults("1.19.0", "container_toolkit")[0]


# -- adding a release, as docs/releases.md has it

@pytest.fixture(name="folder")
def fixture_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[pathlib.Path]:
    """A copy of the data that is used instead of the original."""
    shutil.copytree(DATA / "gpu_operator", tmp_path / "gpu_operator")
    shutil.copy(DATA / "drivers.yml", tmp_path)
    monkeypatch.setattr(releases, "_FOLDER", str(tmp_path))
    releases._release.cache_clear()
    yield tmp_path
    releases._release.cache_clear()


def add(folder: pathlib.Path, **changes: t.Any) -> None:
    """Writes gpu_operator/26.9.0.yml: the newest file with changes; None removes a key, and a dot selects a key below
    components."""
    data = yaml.safe_load((folder / "gpu_operator" / "26.7.0.yml").read_text(encoding="utf-8")) | {"version": "26.9.0"}
    for key, value in changes.items():
        place, last = (data["components"], key.split(".")[1]) if "." in key else (data, key)
        place[last] = value
        if value is None:
            del place[last]
    (folder / "gpu_operator" / "26.9.0.yml").write_text(yaml.safe_dump(data), encoding="utf-8")


def test_an_added_release_is_picked_up(folder: pathlib.Path) -> None:
    add(folder, drivers=["620.11.01", "595.91.07"], systems=None, openshift=None, containerd=None, precompiled=None)
    assert releases.available()[-1] == "26.9.0" and releases.release().drivers == ("620.11.01", "595.91.07")
    assert [releases.release(version).life for version in ("26.9.0", "26.7.0", "26.3.3")] == [
        "supported", "deprecated", "ended"]
    added = releases.release("v26.9.0")
    assert releases.os_supported(added, "ubuntu", "24.04") is releases.os_supported(added, "rhcos", "4.20") is None
    assert releases.kubernetes_supported(added, "1.36") is releases.containerd_supported(added, "2.3.0") is None
    assert not releases.precompiled(added, 595, "ubuntu", "24.04", "generic")


@pytest.mark.parametrize("key", [
    "version", "date", "components", "defaults", "drivers", "components.driver", "components.node_feature_discovery",
    "components.dcgm_exporter", "components.vfio_manager"])
def test_a_missing_key_is_named(folder: pathlib.Path, key: str) -> None:
    add(folder, **{key: None})
    with pytest.raises(InputError) as caught:
        releases.release("26.9.0")
    assert f"26.9.0.yml: {key} missing" in str(caught.value) and "docs/releases.md" in str(caught.value)


@pytest.mark.parametrize(("changes", "message"), [
    ({"version": "26.8.0"}, "version is '26.8.0'; it must be '26.9.0'"),
    ({"drivers": ["580.173.02"]}, "drivers is ['580.173.02']; it must contain '595.91.07'"),
    ({"components": {}, "drivers": []}, "components, drivers missing")])
def test_a_wrong_value_is_named(folder: pathlib.Path, changes: dict[str, t.Any], message: str) -> None:
    add(folder, **changes)
    with pytest.raises(InputError, match=re.escape(message)):
        releases.release()


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(InputError, match="26.3.2, 26.3.1"):
        releases.release("26.4.0")


def test_the_document_names_every_key() -> None:
    text = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    parts = {name for version in releases.available() for name in releases.release(version).components}
    branches = {key for row in yaml.safe_load((DATA / "drivers.yml").read_text(encoding="utf-8"))["branches"].values()
                for key in row}
    assert sorted(rows) == sorted([*PARTS, *parts, *branches])
