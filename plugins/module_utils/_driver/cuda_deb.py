# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's network repository for Debian and Ubuntu. Pure.

Sources of layout and names: NVIDIA Driver Installation Guide 620 (sections Debian, Ubuntu, "Compute-only") and
NVIDIA/gpu-driver-container (ubuntu26.04/install.sh). Source of the keys: the files C(*.pub) of the repository.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import deb
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import (
    COMPUTE,
    FULL,
    Source,
    vendor_repository,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec, branch_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Repository

_BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}
_KEY_2022 = ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
# The key and fingerprint for each folder of a distribution. A fingerprint is empty if no second source confirms it; the
# user must then set it.
_KEYS = {
    "debian12": _KEY_2022,
    "debian13": ("8793F200.pub", ""),
    "ubuntu2204": _KEY_2022,
    "ubuntu2404": _KEY_2022,
    "ubuntu2604": _KEY_2022,
}
_HEADLESS = re.compile(r"nvidia-headless-no-dkms(-\d{3})?(-open)?\Z")
# From this branch on, the names of packages for Ubuntu do not contain the branch.
_UNSUFFIXED = 590
# Companions of the driver: (name, first branch that has it, whether its version is the version of the driver).
_COMPANIONS: t.Dict[str, t.Tuple[t.Tuple[str, int, bool], ...]] = {
    "fabric_manager": (("nvidia-fabricmanager", 0, True),),
    "nscq": (("libnvidia-nscq", 0, True),),
    "imex": (("nvidia-imex", 550, True),),
    "nvsdm": (("libnvsdm", 560, True),),
    "nvlsm": (("nvlsm", 570, False),),
    "gds": (("nvidia-gds", 0, False),),
    "gdrcopy": (("gdrdrv-dkms", 0, False), ("libgdrapi", 0, False)),
}
# From this branch on, the names of companions that have the version of the driver do not contain the branch.
_COMPANIONS_UNSUFFIXED = 580


class CudaRepository(Source):
    """Implements L(source.Source) for apt."""

    name = "cuda_repository"
    _meta = re.compile(r"(nvidia-open|cuda-drivers)(-\d{3})?\Z")
    _desktop = re.compile(r"(nvidia-open|cuda-drivers|nvidia-driver)(-\d{3})?(-open)?\Z")

    def __init__(self, folder: str, arch: str) -> None:
        self.folder = folder
        self.arch = arch
        self.is_ubuntu = folder.startswith("ubuntu")
        self.installations = (FULL, COMPUTE) if self.is_ubuntu else (COMPUTE, FULL)
        self._leader = re.compile(r"libnvidia-compute(-\d{3})?\Z" if self.is_ubuntu else r"nvidia-driver-cuda\Z")

    @classmethod
    def for_distribution(cls, os_id: str, os_version: str, arch: str) -> CudaRepository | None:
        """The source, or None if the repository or this collection does not support the distribution."""
        folder = f"{os_id}{os_version.replace('.', '') if os_id == 'ubuntu' else os_version.split('.')[0]}"
        return cls(folder, _ARCHITECTURES[arch]) if folder in _KEYS and arch in _ARCHITECTURES else None

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """See L(Source). The version of the driver is the version of its package with libcuda."""
        return next(iter(self.offered({name: [version] for name, version in packages.items()})), None)

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """See L(Source)."""
        return deb.newest_first((name, versions) for name, versions in candidates.items() if self._leader.match(name))

    def repository(self, spec: Spec) -> Repository:
        """See L(Source)."""
        return vendor_repository(spec, "cuda", f"{_BASE}/{self.folder}/{self.arch}/", *_KEYS[self.folder])

    def packages(self, version: str, flavour: str, persistenced: bool, installation: str = "auto"
                 ) -> dict[str, str | None]:
        """See L(Source). On Debian, the full driver consists of the compute-only packages and a metapackage."""
        meta = "nvidia-open" if flavour == "open" else "cuda-drivers"
        if self.is_ubuntu:
            suffix = f"-{branch_of(version)}" if branch_of(version) < _UNSUFFIXED else ""
            if installation != COMPUTE:
                return {f"{meta}{suffix}": version}
            opened = "-open" if flavour == "open" else ""
            # Its dependencies include the compute libraries and the persistence daemon.
            return {f"nvidia-headless-no-dkms{suffix}{opened}": version, f"nvidia-dkms{suffix}{opened}": version,
                    f"nvidia-utils{suffix}": version, "nvidia-modprobe": version}
        kernel = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
        wanted: dict[str, str | None] = {"nvidia-driver-cuda": version, kernel: version}
        if persistenced:
            wanted["nvidia-persistenced"] = version
        if installation == FULL:
            wanted[meta] = version
        return wanted

    def installation(self, known: t.Collection[str]) -> str:
        """See L(Source). On Ubuntu, a driver without its metapackage is still a full one. Drivers for servers are those
        of Ubuntu's archive."""
        headless = self.is_ubuntu and any(map(_HEADLESS.match, known))
        return COMPUTE if headless and not self.surplus(known) else super().installation(known)

    def pins(self, version: str) -> list[str]:
        """See L(Source). One pinning package fixes the version or the branch of all packages."""
        return [f"nvidia-driver-pinning-{version}", f"nvidia-driver-pinning-{branch_of(version)}"]

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """See L(Source). The file is needed for mirrors and older repositories, which have no pinning packages."""
        return {deb.HOLD_FILE: deb.hold(version, ["*nvidia*", "cuda-drivers*", "libcuda*", "libnv*", "libxnv*"])}

    def companions(self, version: str, wanted: t.Collection[str]) -> dict[str, str | None]:
        """See L(Source)."""
        found: dict[str, str | None] = {}
        for kind in wanted:
            for stem, first, same in _COMPANIONS.get(kind, ()):
                if branch_of(version) >= first and (kind, self.arch) != ("nvsdm", "sbsa"):
                    suffix = f"-{branch_of(version)}" if same and branch_of(version) < _COMPANIONS_UNSUFFIXED else ""
                    found[f"{stem}{suffix}"] = version if same else None
        return found

    def conflicting(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """See L(Source). Returns packages from the archives of Ubuntu and Debian, because depmod could choose their
        modules."""
        suffix = f"-{branch_of(version)}" if branch_of(version) < _COMPANIONS_UNSUFFIXED else ""
        return sorted([*deb.other_companions(known, suffix), *(
            name for name, found in ((name, deb.BRANCHED.match(name)) for name in known)
            if name.startswith(("linux-modules-nvidia-", "linux-objects-nvidia-", "nvidia-open-kernel-"))
            or found and found.group(2))])
