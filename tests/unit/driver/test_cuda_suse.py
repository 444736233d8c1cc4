# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The repository of NVIDIA for distributions of SUSE: generations, removed packages, held versions."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_suse import HOLD_FILE, CudaSuse, generation
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import rpm_key


def source(os_id: str = "sles", os_version: str = "15.7", arch: str = "x86_64") -> CudaSuse:
    found = CudaSuse.for_distribution(os_id, os_version, arch)
    assert found is not None
    return found


@pytest.mark.parametrize(("system", "path"), [
    (("sles", "15.7", "x86_64"), "sles15/x86_64/"), (("sles", "15.7", "aarch64"), "sles15/sbsa/"),
    (("sles", "16.0", "x86_64"), "suse16/x86_64/"), (("opensuse-leap", "15.6", "x86_64"), "opensuse15/x86_64/"),
])
def test_folder(system: tuple[str, str, str], path: str) -> None:
    given = {"key": "https://mirror.example.com/key", "fingerprint": "A" * 40}
    assert source(*system).repository(Spec(repository=given)).url.endswith(f"/compute/cuda/repos/{path}")


@pytest.mark.parametrize("system", [("sles", "12.5", "x86_64"), ("opensuse-tumbleweed", "20261101", "x86_64"),
                                    ("rocky", "9.6", "x86_64"), ("sles", "15.7", "s390x")])
def test_none_elsewhere(system: tuple[str, str, str]) -> None:
    assert CudaSuse.for_distribution(*system) is None


def test_the_vendors_key_is_known_for_sles_15_and_asked_for_elsewhere() -> None:
    assert source().repository(Spec()).wanted_fingerprint.endswith("D42D0685")
    for system, path in ((("sles", "16.0"), "repository.fingerprint"), (("opensuse-leap", "15.6"), "repository.key")):
        with pytest.raises(InputError) as raised:
            source(*system).repository(Spec())
        assert raised.value.details["path"] == path


def test_names_by_generation() -> None:
    assert [generation(branch) for branch in (580, 590, 595, 620)] == ["G06", "G06", "G07", "G07"]
    assert source().packages("580.126.20", "open", True) == dict.fromkeys(
        ("nvidia-open-driver-G06", "nvidia-compute-utils-G06"), "580.126.20")
    assert set(source().packages("580.126.20", "proprietary", True)) == {
        "nvidia-driver-G06", "nvidia-compute-utils-G06"}
    assert set(source().packages("595.91.07", "open", True)) == {
        "nvidia-open-driver-G07", "nvidia-compute-utils-G07", "nvidia-persistenced"}
    assert set(source().packages("595.91.07", "open", False)) == {
        "nvidia-open-driver-G07", "nvidia-compute-utils-G07"}


@pytest.mark.parametrize(("version", "flavour", "path"), [
    ("570.211.01", "open", "branch"), ("595.91.07", "proprietary", "kernel_module_type"),
])
def test_what_there_is_not_is_said(version: str, flavour: str, path: str) -> None:
    with pytest.raises(InputError) as raised:
        source().packages(version, flavour, True)
    assert raised.value.details["path"] == path


def test_versions_of_both_generations() -> None:
    offered = {"nvidia-compute-utils-G06": ["580.126.20-1", "580.95.05-1"], "nvidia-compute-utils-G07": ["595.91.07-1"],
               "nvidia-video-G07": ["610.57.04-1"]}
    assert source().offered(offered) == ["595.91.07", "580.126.20", "580.95.05"]
    assert source().installed({"nvidia-compute-utils-G06": "580.126.20-1", "bash": "5-1"}) == "580.126.20"
    assert source().installed({"nvidia-compute-G06": "580.126.20-1"}) is None


KNOWN = ("nvidia-open-driver-G06", "nvidia-compute-utils-G06", "nvidia-compute-G06", "nvidia-driver-G06",
         "nvidia-open-driver-G06-signed-cuda-kmp-default", "nvidia-compute-utils-G07", "nvidia-persistenced",
         "nvidia-container-toolkit", "libnvidia-container1", "nvidia-fabricmanager")


@pytest.mark.parametrize(("version", "flavour", "going"), [
    ("580.126.20", "open", {"nvidia-driver-G06", "nvidia-open-driver-G06-signed-cuda-kmp-default",
                            "nvidia-compute-utils-G07", "nvidia-persistenced"}),
    ("580.126.20", "proprietary", {"nvidia-open-driver-G06", "nvidia-open-driver-G06-signed-cuda-kmp-default",
                                   "nvidia-compute-utils-G07", "nvidia-persistenced"}),
    ("595.91.07", "open", set(KNOWN[:5])),
])
def test_what_goes(version: str, flavour: str, going: set[str]) -> None:
    assert set(source().conflicting(KNOWN, version, flavour)) == going


def test_held_are_all_that_the_driver_consists_of() -> None:
    text = source().pin_files("595.91.07", "open")[HOLD_FILE].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.startswith("conflicts:") and line.endswith(" > 595.91.07_z") for line in lines)
    names = {line[len("conflicts:"):].split()[0] for line in lines}
    assert set(source().packages("595.91.07", "open", True)) | {"nvidia-compute-G07"} <= names
    assert not any(":" in name for name in names), "zypp splits the line there, so an epoch could not be written"


def test_the_bound_lies_between_a_version_with_its_kernel_and_the_next_version() -> None:
    assert rpm_key("595.91.07-1") < rpm_key("595.91.07_k6.4.0_150700.51-1") < rpm_key("595.91.07_z") \
        < rpm_key("595.91.08-1") < rpm_key("610.57.04-1")
