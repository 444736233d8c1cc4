# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's network repository for distributions with RPM. Pure.

Sources of packages: NVIDIA/yum-packaging-nvidia-driver and -dkms-nvidia, NVIDIA/gpu-driver-container
(rhel9/install.sh). Source of module streams: NVIDIA Driver Installation Guide 620. Source of folders and keys: the
repositories. Source of the fingerprint of D42D0685: NVIDIA's documentation of its repository signatures.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import (
    COMPUTE,
    FULL,
    Source,
    vendor_repository,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec, branch_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Repository, upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import hold_path
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import rpm_key

BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
# The id of the repository on the host. Only packages of one driver version are visible in it, so other components use
# another repository.
NAME = "driver"
_LIKE_RHEL = ("rhel", "rocky", "almalinux", "ol", "centos")
# The folders, by ID and the major version in VERSION_ID of os-release.
FOLDERS: t.Dict[t.Tuple[str, str], str] = {
    **{(name, major): f"rhel{major}" for name in _LIKE_RHEL for major in ("8", "9", "10")},
    **{("fedora", major): f"fedora{major}" for major in ("42", "43", "44")},
    ("sles", "15"): "sles15", ("sles", "16"): "suse16", ("opensuse-leap", "15"): "opensuse15",
    ("amzn", "2023"): "amzn2023", ("azurelinux", "3"): "azl3", ("mariner", "2"): "cm2", ("kylin", "10"): "kylin10",
}
# Distributions that have dnf 4. Some also have tdnf or DNF 5, which use the same files and variables.
_DNF = ("rhel8", "rhel9", "rhel10", "amzn2023", "azl3", "kylin10", "fedora42", "fedora43", "fedora44")
# Distributions whose module streams NNN-open and NNN-dkms determine the branch and the module type.
_MODULAR = ("rhel8", "rhel9", "amzn2023", "kylin10")
# Distributions for which NVIDIA publishes only open modules.
OPEN_ONLY = ("azl3",)
# SUSE: the first branch whose packages build modules with DKMS, and the first branch with only open modules (G07).
SUSE, SUSE_FROM, SUSE_OPEN_FROM = ("sles15", "suse16", "opensuse15"), 580, 595
_KEY_2022 = ("D42D0685.pub", "610C7B14E068A878070DA4E99CD0A493D42D0685")
# (key, fingerprint). A fingerprint is empty if no second source confirms it; the user must then set it.
_KEYS = {"rhel8": _KEY_2022, "rhel9": _KEY_2022, "rhel10": ("CDF6BA43.pub", ""), "sles15": _KEY_2022,
         "suse16": ("3A8B5622.pub", ""), "fedora42": _KEY_2022, "fedora43": ("1940C73E.pub", ""),
         "fedora44": ("73CD9B30.pub", "")}
# Packages that are installed with the driver: (first branch of the driver to which the entry applies, package name,
# whether the version of the package is the version of the driver). The entry with the newest suitable branch applies.
_COMPANIONS: t.Dict[str, t.Tuple[t.Tuple[int, str, bool], ...]] = {
    "fabric_manager": ((0, "nvidia-fabric-manager", True), (580, "nvidia-fabricmanager", True)),
    "nscq": ((0, "libnvidia-nscq-{branch}", True), (580, "libnvidia-nscq", True)),
    "imex": ((570, "nvidia-imex-{branch}", True), (580, "nvidia-imex", True)),
    "nvsdm": ((570, "libnvsdm-{branch}", True), (580, "libnvsdm", True)),
    "nvlsm": ((550, "nvlsm", False),),
    "gds": ((0, "nvidia-gds", False),),
    "gdrcopy": ((0, "gdrcopy", False), (0, "gdrcopy-kmod", False)),
}
# Packages for the driver whose versions differ from the version of the driver.
_BESIDE = ("nvlsm*", "nvidia-gds*", "nvidia-fs*", "gds-tools*", "gdrcopy*")

# The content that dnf writes for C(dnf module enable nvidia-driver:STREAM).
STREAM_FILE = "/etc/dnf/modules.d/nvidia-driver.module"
STREAM_TEXT = "[nvidia-driver]\nname=nvidia-driver\nstream={stream}\nprofiles=\nstate=enabled\n"


def folder_of(os_id: str, os_version: str) -> str | None:
    """The folder of a distribution in the repository, None if there is none."""
    return FOLDERS.get((os_id, os_version.split(".")[0]))


def machine_of(folder: str, arch: str) -> str:
    """The architecture as in the URL of the repository: C(x86_64), C(aarch64) or C(sbsa)."""
    return "sbsa" if arch == "aarch64" and folder != "amzn2023" else arch


def stream_of(folder: str, branch: int, flavour: str) -> str | None:
    """The stream of the dnf module nvidia-driver for a branch and module type, None if the folder has none."""
    return f"{branch}-{'open' if flavour == 'open' else 'dkms'}" if folder in _MODULAR else None


class CudaRpm(Source):
    """Implements L(source.Source) for dnf 4."""

    name = "cuda_repository"
    _folders: t.Tuple[str, ...] = _DNF
    # The package with the programs of the driver. The version of all other packages must be equal to its version.
    _leader = re.compile(r"nvidia-driver-cuda\Z")
    _meta = re.compile(r"(nvidia-open|cuda-drivers)(-\d{3})?\Z")
    _desktop = re.compile(r"(nvidia-open|cuda-drivers|nvidia-driver)(-\d{3})?\Z")

    def __init__(self, folder: str, arch: str) -> None:
        self.folder = folder
        self.installations = (FULL,) if folder in OPEN_ONLY else (COMPUTE, FULL)
        self.arch = arch

    @classmethod
    def for_distribution(cls, os_id: str, os_version: str, arch: str) -> CudaRpm | None:
        """The source, or None if the repository or this package manager does not support the distribution."""
        folder = folder_of(os_id, os_version)
        return cls(folder, arch) if folder in cls._folders and arch in ("x86_64", "aarch64") else None

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """See L(Source)."""
        return next((upstream(packages[name]) for name in packages if self._leader.match(name)), None)

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """See L(Source)."""
        versions = [version for name in candidates if self._leader.match(name) for version in candidates[name]]
        return list(dict.fromkeys(map(upstream, sorted(versions, key=rpm_key, reverse=True))))

    def repository(self, spec: Spec) -> Repository:
        """See L(Source)."""
        return vendor_repository(spec, NAME, f"{BASE}/{self.folder}/{machine_of(self.folder, self.arch)}/",
                                 *_KEYS.get(self.folder, ("", "")), held=True)

    def packages(self, version: str, flavour: str, persistenced: bool, installation: str = "auto"
                 ) -> dict[str, str | None]:
        """See L(Source). The full driver consists of the compute-only packages and a metapackage. Azure Linux has only
        the metapackage."""
        if flavour != "open" and self.folder in OPEN_ONLY:
            raise InputError(f"NVIDIA has no proprietary kernel modules for {self.folder}.",
                             "Set kernel_module_type to open.", path="kernel_module_type", value=flavour,
                             allowed=["open"])
        if self.folder in OPEN_ONLY:
            return {"nvidia-open": version}
        kernel = f"kmod-nvidia-{'open' if flavour == 'open' else 'latest'}-dkms"
        # No package depends on this version of nvidia-modprobe, so without this entry the former version would remain.
        wanted: dict[str, str | None] = {"nvidia-driver-cuda": version, kernel: version, "nvidia-modprobe": version}
        if persistenced:
            wanted["nvidia-persistenced"] = version
        if installation == FULL:
            wanted["nvidia-open" if flavour == "open" else "cuda-drivers"] = version
        return wanted

    def companions(self, version: str, wanted: t.Collection[str]) -> dict[str, str | None]:
        """See L(Source)."""
        found: dict[str, str | None] = {}
        for kind in wanted:
            if (kind, self.arch) == ("nvsdm", "aarch64"):
                continue
            known = [row for row in _COMPANIONS.get(kind, ()) if row[0] <= branch_of(version)]
            for first, name, same in known:
                if first == known[-1][0]:
                    found[name.format(branch=branch_of(version))] = version if same else None
        return found

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """See L(Source). One file lists the packages that are visible to dnf: those of the driver version, and those
        with other versions.

        Another file enables the module stream. Otherwise dnf would enable the default stream, which may have the other
        module type.
        """
        files = {hold_path(NAME): f"{','.join((f'*-{version}-*', *_BESIDE))}\n".encode()}
        stream = stream_of(self.folder, branch_of(version), flavour)
        if stream:
            files[STREAM_FILE] = STREAM_TEXT.format(stream=stream).encode()
        return files
