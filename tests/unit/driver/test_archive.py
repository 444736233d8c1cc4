# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, relations and holds of packages in the archives of Ubuntu and Debian, and in the repository of NVIDIA."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_deb import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.deb import HOLD_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Archive

ARCHIVE = "580.173.02-0ubuntu0.24.04.1"
KERNEL = "6.8.0-88-generic"
# 590 has ended: its packages only lead to 595.
OFFERED = {"libnvidia-compute-580-server": [ARCHIVE], "libnvidia-compute-590-server": ["595.71.05-0ubuntu0.24.04.1"],
           "libnvidia-compute-595-server": ["595.71.05-0ubuntu0.24.04.1"], "nvidia-utils-580-server": [ARCHIVE],
           "nvidia-utils-590-server": ["595.71.05-0ubuntu0.24.04.1"], "libnvidia-compute-580": [ARCHIVE]}


def of(name: str, os_id: str = "ubuntu", os_version: str = "24.04", arch: str = "x86_64") -> Source:
    source = source_of(name, os_id, os_version, arch)
    assert source is not None
    return source


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("os_version", ["22.04", "24.04", "26.04"])
def test_ubuntu_dkms(os_version: str, arch: str) -> None:
    source = of("distribution", os_version=os_version, arch=arch)
    assert source.dkms and source.modules("580.173.02", "open", [KERNEL]) == {}
    assert source.packages("580.173.02", "open", True) == dict.fromkeys((
        "nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server", "nvidia-dkms-580-server-open"),
        "580.173.02")
    assert "nvidia-dkms-580-server" in source.packages("580.173.02", "proprietary", True)


def test_ubuntu_ready_made() -> None:
    source = of("precompiled")
    assert not source.dkms
    assert list(source.packages("580.173.02", "open", True)) == ["nvidia-headless-no-dkms-580-server-open",
                                                                 "nvidia-utils-580-server"]
    assert source.modules("580.173.02", "open", [KERNEL, "6.8.0-90-generic"]) == {
        f"linux-modules-nvidia-580-server-open-{KERNEL}": None,
        "linux-modules-nvidia-580-server-open-6.8.0-90-generic": None}
    assert list(source.modules("580.173.02", "proprietary", [KERNEL])) == [f"linux-modules-nvidia-580-server-{KERNEL}"]


@pytest.mark.parametrize(("known", "ends"), [
    (["linux-image-generic", f"linux-image-{KERNEL}"], ["generic"]),
    (["linux-image-generic-hwe-24.04"], ["generic-hwe-24.04"]),
    (["linux-image-virtual-hwe-24.04"], ["generic-hwe-24.04"]),
    (["linux-image-aws", "linux-image-6.8.0-1018-aws"], ["aws"]),
    ([f"linux-image-{KERNEL}"], []),
])
def test_modules_follow_the_kernel_package_of_the_host(known: list[str], ends: list[str]) -> None:
    found = of("precompiled").followers("580.173.02", "open", known)
    assert found == [f"linux-modules-nvidia-580-server-open-{end}" for end in ends]


def test_a_branch_that_has_ended_is_not_offered() -> None:
    source = of("distribution")
    assert source.offered(OFFERED) == ["595.71.05", "580.173.02"]
    assert source.offered({"libnvidia-compute-590-server": OFFERED["libnvidia-compute-590-server"]}) == []
    assert source.successor(OFFERED, 590) == 595
    assert source.successor(OFFERED, 580) is None and source.successor(OFFERED, 535) is None


@pytest.mark.parametrize(("packages", "cuda", "distribution", "precompiled"), [
    ({"libnvidia-compute-580-server": ARCHIVE}, None, "580.173.02", None),
    ({"libnvidia-compute-580-server": ARCHIVE, f"linux-modules-nvidia-580-server-open-{KERNEL}": "6.8.0-88.89"}, None,
     None, "580.173.02"),
    ({"libnvidia-compute-580": "580.159.04-1ubuntu1"}, "580.159.04", None, None),
    ({"libnvidia-compute": "610.43.02-1ubuntu1"}, "610.43.02", None, None),
    ({}, None, None, None),
])
def test_whose_driver_is_installed(packages: dict[str, str], cuda: str | None, distribution: str | None,
                                   precompiled: str | None) -> None:
    found = [of(name).installed(packages) for name in ("cuda_repository", "distribution", "precompiled")]
    assert found == [cuda, distribution, precompiled]


def test_debian_and_the_vendor_there() -> None:
    source, vendor = of("distribution", "debian", "12"), of("cuda_repository", "debian", "12")
    archive = {"libcuda1": "535.261.03-1~deb12u1", "nvidia-smi": "535.261.03-1~deb12u1"}
    assert (source.installed(archive), vendor.installed(archive)) == ("535.261.03", None)
    theirs = {"libcuda1": "535.261.03-1", "nvidia-driver-cuda": "535.261.03-1"}
    assert (source.installed(theirs), vendor.installed(theirs)) == (None, "535.261.03")
    assert "nvidia-open-kernel-dkms" in source.packages("535.261.03", "open", False)
    assert "nvidia-kernel-open-dkms" in vendor.packages("535.261.03", "open", False)
    assert source.packages("535.261.03", "proprietary", True)["nvidia-persistenced"] is None
    repository = source.repository(Spec())
    assert isinstance(repository, Archive) and "non-free" in repository.sections


def test_what_may_not_stand_beside_the_wanted() -> None:
    known = ["nvidia-dkms-580-server-open", "nvidia-dkms-580-server", f"linux-modules-nvidia-580-server-open-{KERNEL}",
             f"linux-modules-nvidia-580-server-{KERNEL}", f"linux-objects-nvidia-580-server-{KERNEL}",
             f"linux-modules-nvidia-570-server-open-{KERNEL}", "nvidia-headless-no-dkms-580-server-open",
             "nvidia-firmware-580-server-580.173.02", "nvidia-firmware-580-server-580.95.05", "linux-image-nvidia",
             "nvidia-utils-580-server", "nvidia-container-toolkit"]
    old = "nvidia-firmware-580-server-580.95.05"
    assert of("distribution").conflicting(known, "580.173.02", "open") == sorted([
        *(name for name in known if name.startswith(("linux-modules", "linux-objects"))), "nvidia-dkms-580-server",
        old])
    assert of("precompiled").conflicting(known, "580.173.02", "open") == sorted([
        "nvidia-dkms-580-server-open", "nvidia-dkms-580-server", old,
        f"linux-modules-nvidia-580-server-{KERNEL}", f"linux-objects-nvidia-580-server-{KERNEL}",
        f"linux-modules-nvidia-570-server-open-{KERNEL}"])
    assert of("precompiled").conflicting(known, "580.173.02", "proprietary") == sorted([
        "nvidia-dkms-580-server-open", "nvidia-dkms-580-server", old, "nvidia-headless-no-dkms-580-server-open",
        f"linux-modules-nvidia-580-server-open-{KERNEL}", f"linux-modules-nvidia-570-server-open-{KERNEL}"])
    assert of("cuda_repository").conflicting(known, "580.159.04", "open") == sorted(
        name for name in known if "-server" in name)
    vendor = ["nvidia-driver-pinning-580", "libnvidia-cfg1-580", "nvidia-open-580", "nvidia-firmware-580-580.159.04",
              "nvidia-modprobe", "nvidia-container-toolkit", "openssh-server"]
    assert of("distribution").conflicting(vendor, "580.173.02", "open") == sorted(vendor[:4])
    named = ["nvidia-dkms-open", "nvidia-headless-no-dkms-open", "nvidia-utils", "nvidia-modprobe", "nvidia-imex"]
    assert of("distribution").conflicting(named, "595.71.05", "open") == sorted({*named} - {"nvidia-modprobe"})


def test_what_debian_and_the_vendor_do_not_share() -> None:
    known = ["libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-kernel-support",
             "nvidia-open-kernel-dkms", "nvidia-open-kernel-support", "nvidia-driver-pinning-580", "nvidia-smi"]
    assert of("distribution", "debian", "12").conflicting(known, "535.309.01", "open") == [
        "nvidia-driver-cuda", "nvidia-driver-pinning-580", "nvidia-kernel-open-dkms", "nvidia-kernel-support"]
    assert of("distribution", "debian", "12").conflicting(known, "535.309.01", "proprietary") == [
        "nvidia-driver-cuda", "nvidia-driver-pinning-580", "nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms",
        "nvidia-open-kernel-support"]
    assert of("cuda_repository", "debian", "12").conflicting(known, "580.126.20", "open") == [
        "nvidia-open-kernel-dkms", "nvidia-open-kernel-support"]


def test_companions_of_other_names_collide() -> None:
    known = ["nvidia-fabricmanager-580", "nvidia-fabricmanager", "libnvidia-nscq-595", "nvidia-imex"]
    assert of("distribution").conflicting(known, "595.71.05", "open") == [
        "nvidia-fabricmanager", "nvidia-fabricmanager-580", "nvidia-imex"]
    assert of("cuda_repository").conflicting(known, "595.71.05", "open") == [
        "libnvidia-nscq-595", "nvidia-fabricmanager-580"]
    assert of("cuda_repository").conflicting(known, "570.211.01", "open") == sorted(known)


@pytest.mark.parametrize("name", ["distribution", "precompiled", "cuda_repository"])
def test_a_file_holds_the_version(name: str) -> None:
    files = of(name).pin_files("580.173.02", "open")
    assert list(files) == [HOLD_FILE]
    assert b"Pin: version 580.173.02-*\nPin-Priority: 1000\n" in files[HOLD_FILE]


@pytest.mark.parametrize(("version", "folder", "arch", "names"), [
    ("535.309.01", "ubuntu2204", "x86_64", ["nvidia-fabricmanager-535", "libnvidia-nscq-535"]),
    ("570.211.01", "ubuntu2404", "x86_64", ["nvidia-fabricmanager-570", "libnvidia-nscq-570", "nvidia-imex-570",
                                            "libnvsdm-570", "nvlsm"]),
    ("580.159.04", "debian12", "x86_64", ["nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex", "libnvsdm",
                                          "nvlsm"]),
    ("580.159.04", "ubuntu2404", "sbsa", ["nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex", "nvlsm"]),
])
def test_companions_of_the_vendor(version: str, folder: str, arch: str, names: list[str]) -> None:
    found = CudaRepository(folder, arch).companions(version, ["fabric_manager", "nscq", "imex", "nvsdm", "nvlsm"])
    assert list(found) == names
    assert {found[name] for name in names} == {version, None} if "nvlsm" in names else {version}


def test_companions_of_the_archives() -> None:
    wanted = ["fabric_manager", "nscq", "nvlsm", "imex"]
    assert of("distribution").companions("595.71.05", wanted) == {
        "nvidia-fabricmanager-595": "595.71.05", "libnvidia-nscq-595": "595.71.05"}
    assert of("distribution", "debian", "13").companions("550.163.01", wanted) == {}


def test_arm_servers_use_the_folder_sbsa() -> None:
    repository = of("cuda_repository", arch="aarch64").repository(Spec())
    assert repository.url.endswith("/ubuntu2404/sbsa/")
