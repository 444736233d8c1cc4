# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The repository of NVIDIA for distributions with dnf: folders, names, held versions."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import CudaRpm, stream_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

KEY = {"key": "https://mirror.example.com/key", "fingerprint": "A" * 40}


def source(os_id: str = "rocky", os_version: str = "9.6", arch: str = "x86_64") -> CudaRpm:
    found = CudaRpm.for_distribution(os_id, os_version, arch)
    assert found is not None
    return found


@pytest.mark.parametrize(("system", "path"), [
    (("rhel", "8.10", "x86_64"), "rhel8/x86_64/"), (("rocky", "9.6", "aarch64"), "rhel9/sbsa/"),
    (("almalinux", "10.1", "x86_64"), "rhel10/x86_64/"), (("amzn", "2023", "aarch64"), "amzn2023/aarch64/"),
    (("azurelinux", "3.0", "aarch64"), "azl3/sbsa/"), (("kylin", "10", "x86_64"), "kylin10/x86_64/"),
    (("fedora", "44", "x86_64"), "fedora44/x86_64/"),
])
def test_folder(system: tuple[str, str, str], path: str) -> None:
    repository = source(*system).repository(Spec(repository=KEY))
    assert repository.url == f"https://developer.download.nvidia.com/compute/cuda/repos/{path}"
    assert repository.held


@pytest.mark.parametrize("system", [("fedora", "41", "x86_64"), ("sles", "15.7", "x86_64"), ("rocky", "7", "x86_64"),
                                    ("debian", "12", "x86_64"), ("rocky", "9.6", "ppc64le")])
def test_none_where_dnf_4_is_not(system: tuple[str, str, str]) -> None:
    assert CudaRpm.for_distribution(*system) is None


def test_the_vendors_key_is_known_for_el_8_and_9() -> None:
    repository = source().repository(Spec())
    assert (repository.key, repository.wanted_fingerprint[-8:]) == ("D42D0685.pub", "D42D0685")


@pytest.mark.parametrize(("system", "given", "path"), [
    (("rocky", "10.0"), {}, "repository.fingerprint"), (("amzn", "2023"), {}, "repository.key"),
    (("rocky", "9.6"), {"key": "x"}, "repository.fingerprint"),
])
def test_what_has_no_second_source_must_be_given(system: tuple[str, str], given: dict[str, str], path: str) -> None:
    with pytest.raises(InputError) as raised:
        source(*system).repository(Spec(repository=given))
    assert raised.value.details["path"] == path


def test_names() -> None:
    assert source().packages("595.91.07", "open", True) == dict.fromkeys(
        ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-modprobe", "nvidia-persistenced"), "595.91.07")
    assert set(source().packages("580.126.20", "proprietary", False)) == {
        "nvidia-driver-cuda", "kmod-nvidia-latest-dkms", "nvidia-modprobe"}
    assert source("azurelinux", "3.0").packages("595.91.07", "open", True) == {"nvidia-open": "595.91.07"}
    with pytest.raises(InputError, match="no proprietary kernel modules"):
        source("azurelinux", "3.0").packages("580.126.20", "proprietary", True)


@pytest.mark.parametrize(("version", "names"), [
    ("595.91.07", {"nvidia-fabricmanager": "595.91.07", "libnvidia-nscq": "595.91.07", "nvidia-imex": "595.91.07",
                   "nvlsm": None}),
    ("570.211.01", {"nvidia-fabric-manager": "570.211.01", "libnvidia-nscq-570": "570.211.01",
                    "nvidia-imex-570": "570.211.01", "nvlsm": None}),
    ("535.309.01", {"nvidia-fabric-manager": "535.309.01", "libnvidia-nscq-535": "535.309.01"}),
])
def test_companions(version: str, names: dict[str, str | None]) -> None:
    assert source().companions(version, ["fabric_manager", "nscq", "imex", "nvlsm"]) == names


def test_both_packages_of_gdrcopy() -> None:
    assert source().companions("595.91.07", ["gdrcopy"]) == {"gdrcopy": None, "gdrcopy-kmod": None}


def test_versions() -> None:
    offered = {"nvidia-driver-cuda": ["3:580.126.20-1.el9", "3:595.91.07-1.el9", "3:580.95.05-1.el9"], "cuda": ["1-1"]}
    assert source().offered(offered) == ["595.91.07", "580.126.20", "580.95.05"]
    assert source().installed({"nvidia-driver-cuda": "3:580.126.20-1.el9"}) == "580.126.20"
    assert source().installed({"libnvidia-ml": "3:580.126.20-1.el9"}) is None


def test_held_by_what_dnf_sees_and_by_the_stream() -> None:
    files = source().pin_files("580.126.20", "open")
    assert files["/etc/dnf/vars/gpuops_driver"].startswith(b"*-580.126.20-*,")
    assert b"\nstream=580-open\n" in files["/etc/dnf/modules.d/nvidia-driver.module"]
    assert list(source("rocky", "10.0").pin_files("580.126.20", "open")) == ["/etc/dnf/vars/gpuops_driver"]


@pytest.mark.parametrize(("folder", "flavour", "stream"), [
    ("rhel8", "open", "595-open"), ("amzn2023", "proprietary", "595-dkms"), ("rhel10", "open", None),
])
def test_stream(folder: str, flavour: str, stream: str | None) -> None:
    assert stream_of(folder, 595, flavour) == stream
