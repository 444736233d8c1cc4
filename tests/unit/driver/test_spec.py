# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options are checked against the GPUs; the vendor's repository depends on the distribution."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_deb import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import sources_for
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec, check_version, kernel_module_type
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, InputError

V100, T4, A100, GH200, B200, UNKNOWN = "1db5", "1eb8", "20b2", "2342", "2901", "ffff"


def gpus(*ids: str) -> list[tuple[str, t.Any]]:
    return [(f"0000:0{number}:00.0", model_of(device)) for number, device in enumerate(ids)]


@pytest.mark.parametrize(("wanted", "ids", "expected"), [
    ("auto", [A100, A100], "open"),
    ("auto", [T4, B200], "open"),
    ("auto", [V100], "proprietary"),
    ("auto", [V100, A100], "proprietary"),
    ("auto", [UNKNOWN], "open"),
    ("proprietary", [A100], "proprietary"),
    ("open", [GH200], "open"),
])
def test_kernel_module_type(wanted: str, ids: list[str], expected: str) -> None:
    assert kernel_module_type(Spec(kernel_module_type=wanted), gpus(*ids)) == expected


def test_old_branches_have_proprietary_modules_only() -> None:
    assert kernel_module_type(Spec(branch="510"), gpus(A100)) == "proprietary"


@pytest.mark.parametrize(("spec", "device", "expected"), [
    (Spec(version="550.163.01"), A100, "proprietary"),
    (Spec(branch="555"), UNKNOWN, "proprietary"),
    (Spec(branch="560"), A100, "open"),
    (Spec(branch="550"), GH200, "open"),
    (Spec(branch="550", gds=True), A100, "open"),
])
def test_auto_is_open_from_branch_560_on_or_if_it_is_needed(spec: Spec, device: str, expected: str) -> None:
    assert kernel_module_type(spec, gpus(device)) == expected


@pytest.mark.parametrize(("wanted", "ids", "error", "words"), [
    ("open", [V100, A100], InputError, "Tesla V100"),
    ("proprietary", [A100, B200], InputError, "NVIDIA B200"),
    ("proprietary", [GH200], InputError, "GH200"),
    ("auto", [V100, B200], HostError, "No kernel module type supports all GPUs"),
])
def test_impossible_kernel_module_type(wanted: str, ids: list[str], error: type[GpuopsError], words: str) -> None:
    with pytest.raises(error, match=words):
        kernel_module_type(Spec(kernel_module_type=wanted), gpus(*ids))


@pytest.mark.parametrize(("version", "flavour", "ids", "words"), [
    ("595.91.07", "proprietary", [V100], "Set branch to 580, the last one that supports it"),
    ("590", "proprietary", [A100, V100], "Branch 590 does not support Tesla V100"),
    ("620.10.01", "proprietary", [A100], "no proprietary kernel modules"),
    ("510.108.03", "open", [A100], "no open kernel modules"),
    ("565.57.01", "open", [A100, B200], "Set version to 570.133.20 or newer"),
])
def test_branch_that_cannot_drive(version: str, flavour: str, ids: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_version(version, flavour, gpus(*ids))


def test_branch_that_drives() -> None:
    check_version("580.95.05", "proprietary", gpus(V100))
    check_version("620.10.01", "open", gpus(A100, UNKNOWN))


@pytest.mark.parametrize(("options", "path"), [
    ({"version": "595"}, "version"), ({"version": "latest"}, "version"), ({"branch": "595.91"}, "branch"),
    ({"version": "595.91.07", "branch": "580"}, "branch"),
])
def test_bad_options(options: dict[str, str], path: str) -> None:
    with pytest.raises(InputError) as caught:
        Spec(**options)  # type: ignore[arg-type]
    assert caught.value.details["path"] == path


@pytest.mark.parametrize(("spec", "version", "expected"), [
    (Spec(), "580.95.05", True), (Spec(), None, False),
    (Spec(branch="580"), "580.95.05", True), (Spec(branch="580"), "595.91.07", False),
    (Spec(branch="580"), "9" * 5000, False), (Spec(branch="580"), "", False), (Spec(branch="580"), "x580.1", False),
    (Spec(version="580.95.05"), "580.95.05", True), (Spec(version="580.95.05"), "580.95.0", False),
])
def test_accepts(spec: Spec, version: str | None, expected: bool) -> None:
    assert spec.accepts(version) is expected


@pytest.mark.parametrize(("os_id", "os_version", "arch", "url"), [
    ("debian", "12", "x86_64", "repos/debian12/x86_64/"),
    ("ubuntu", "24.04", "aarch64", "repos/ubuntu2404/sbsa/"),
    ("ubuntu", "22.04", "x86_64", "repos/ubuntu2204/x86_64/"),
])
def test_vendor_repository(os_id: str, os_version: str, arch: str, url: str) -> None:
    repository = sources_for("auto", os_id, os_version, arch)[0].repository(Spec())
    assert repository.url.endswith(url)
    assert repository.key_uri == f"{repository.url}3bf863cc.pub"
    assert repository.fingerprint == "EB693B3035CD5710E231E123A4B469963BF863CC"


def test_debian_13_wants_a_fingerprint() -> None:
    source = sources_for("auto", "debian", "13", "x86_64")[0]
    with pytest.raises(InputError, match="repository.fingerprint"):
        source.repository(Spec())
    assert source.repository(Spec(repository={"fingerprint": "B" * 40})).key_uri.endswith("8793F200.pub")


def test_mirror() -> None:
    source = sources_for("cuda_repository", "debian", "12", "x86_64")[0]
    mirror = source.repository(Spec(repository={"url": "http://mirror.example.com/cuda/", "key": ""}))
    assert mirror.key_uri == "http://mirror.example.com/cuda/3bf863cc.pub"
    with pytest.raises(InputError, match="needs its fingerprint"):
        source.repository(Spec(repository={"key": "own.pub"}))


@pytest.mark.parametrize(("wanted", "os_id", "os_version", "arch", "supported"), [
    ("distribution", "ubuntu", "25.10", "x86_64", []),
    ("precompiled", "debian", "12", "x86_64", ["cuda_repository", "distribution"]),
    ("auto", "alpine", "3.20", "x86_64", []),
    ("cuda_repository", "debian", "12", "ppc64le", []),
])
def test_sources_that_are_not_there_are_refused(wanted: str, os_id: str, os_version: str, arch: str,
                                                supported: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        sources_for(wanted, os_id, os_version, arch)
    assert caught.value.details["allowed"] == supported


@pytest.mark.parametrize(("folder", "version", "flavour", "persistenced", "names"), [
    ("debian12", "595.91.07", "open", True, ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced"]),
    ("debian12", "580.95.05", "proprietary", False, ["nvidia-driver-cuda", "nvidia-kernel-dkms"]),
    ("ubuntu2404", "580.95.05", "open", True, ["nvidia-open-580"]),
    ("ubuntu2404", "580.95.05", "proprietary", True, ["cuda-drivers-580"]),
    ("ubuntu2404", "595.91.07", "open", True, ["nvidia-open"]),
    ("ubuntu2604", "610.43.02", "proprietary", True, ["cuda-drivers"]),
])
def test_packages(folder: str, version: str, flavour: str, persistenced: bool, names: list[str]) -> None:
    packages = CudaRepository(folder, "x86_64").packages(version, flavour, persistenced)
    assert list(packages) == names
    assert set(packages.values()) == {version}


def test_installed_and_offered() -> None:
    debian, ubuntu = CudaRepository("debian12", "x86_64"), CudaRepository("ubuntu2404", "x86_64")
    assert debian.installed({"nvidia-driver-cuda": "595.91.07-1", "nvidia-smi": "595.45.04-1"}) == "595.91.07"
    assert debian.installed({"nvidia-smi": "595.45.04-1"}) is None
    assert ubuntu.installed({"libnvidia-compute-580": "580.95.05-1ubuntu1"}) == "580.95.05"
    assert ubuntu.offered({"libnvidia-compute-580": ["580.95.05-1ubuntu1"], "libnvidia-compute": ["610.43.02-1ubuntu1"],
                           "nvidia-open": ["999.1-1"]}) == ["610.43.02", "580.95.05"]


def test_a_lock_is_not_waited_for_less_than_no_time() -> None:
    with pytest.raises(InputError, match="lock_timeout: -5 is not a number of seconds"):
        Spec(lock_timeout=-5)
    assert Spec(lock_timeout=0).lock_timeout == 0
