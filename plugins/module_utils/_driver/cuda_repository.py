# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's network repository for Debian and Ubuntu. Pure.

Sources: layout and names, NVIDIA Driver Installation Guide 620 (sections Debian, Ubuntu, "Compute-only") and
NVIDIA/gpu-driver-container (ubuntu26.04/install.sh); keys, the repository's own C(*.pub).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import deb
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source, vendor_repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec, branch_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Repository

_BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}
_KEY_2022 = ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
# Distribution folder: key and fingerprint. Debian 13's key has no fingerprint from a second source: the user gives it.
_KEYS = {
    "debian12": _KEY_2022,
    "debian13": ("8793F200.pub", ""),
    "ubuntu2204": _KEY_2022,
    "ubuntu2404": _KEY_2022,
    "ubuntu2604": _KEY_2022,
}
# From this branch on, Ubuntu's package names have no branch in them.
_UNSUFFIXED = 590
# What stands beside the driver: name, first branch that has it, whether of the driver's version.
_COMPANIONS: t.Dict[str, t.Tuple[t.Tuple[str, int, bool], ...]] = {
    "fabric_manager": (("nvidia-fabricmanager", 0, True),),
    "nscq": (("libnvidia-nscq", 0, True),),
    "imex": (("nvidia-imex", 550, True),),
    "nvsdm": (("libnvsdm", 560, True),),
    "nvlsm": (("nvlsm", 570, False),),
    "gds": (("nvidia-gds", 0, False),),
    "gdrcopy": (("gdrdrv-dkms", 0, False), ("libgdrapi", 0, False)),
}
# From this branch on, the names of those of the driver's version have no branch in them.
_COMPANIONS_UNSUFFIXED = 580


class CudaRepository(Source):
    """Implements L(source.Source)."""

    name = "cuda_repository"

    def __init__(self, folder: str, arch: str) -> None:
        self.folder = folder
        self.arch = arch
        self.is_ubuntu = folder.startswith("ubuntu")
        self._leader = re.compile(r"libnvidia-compute(-\d{3})?\Z" if self.is_ubuntu else r"nvidia-driver-cuda\Z")

    @classmethod
    def for_distribution(cls, os_id: str, os_version: str, arch: str) -> CudaRepository | None:
        """The source for a distribution, None where the repository has none or it is not supported."""
        folder = f"{os_id}{os_version.replace('.', '') if os_id == 'ubuntu' else os_version.split('.')[0]}"
        return cls(folder, _ARCHITECTURES[arch]) if folder in _KEYS and arch in _ARCHITECTURES else None

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """The vendor's version of the installed driver: that of the library every CUDA program needs."""
        return next(iter(self.offered({name: [version] for name, version in packages.items()})), None)

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """The vendor's versions of a repository, newest first."""
        return deb.newest_first((name, versions) for name, versions in candidates.items() if self._leader.match(name))

    def repository(self, spec: Spec) -> Repository:
        """The vendor's, or a mirror with the values that the user gave."""
        return vendor_repository(spec, "cuda", f"{_BASE}/{self.folder}/{self.arch}/", *_KEYS[self.folder])

    def packages(self, version: str, flavour: str, persistenced: bool) -> dict[str, str | None]:
        """Debian: compute use only, without the desktop's libraries. Ubuntu: the vendor's meta packages."""
        if self.is_ubuntu:
            meta = "nvidia-open" if flavour == "open" else "cuda-drivers"
            suffix = f"-{branch_of(version)}" if branch_of(version) < _UNSUFFIXED else ""
            return {f"{meta}{suffix}": version}
        kernel = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
        wanted: dict[str, str | None] = {"nvidia-driver-cuda": version, kernel: version}
        if persistenced:
            wanted["nvidia-persistenced"] = version
        return wanted

    def pins(self, version: str) -> list[str]:
        """They exclude each other, so one holds all of the vendor's packages at one version or branch."""
        return [f"nvidia-driver-pinning-{version}", f"nvidia-driver-pinning-{branch_of(version)}"]

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """For mirrors and older repositories that have no pinning packages."""
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

    def rivals(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """What is of Ubuntu's or Debian's archive alone, and may stand beside the vendor's: depmod would choose."""
        suffix = f"-{branch_of(version)}" if branch_of(version) < _COMPANIONS_UNSUFFIXED else ""
        return sorted([*deb.other_companions(known, suffix), *(
            name for name, found in ((name, deb.BRANCHED.match(name)) for name in known)
            if name.startswith(("linux-modules-nvidia-", "linux-objects-nvidia-", "nvidia-open-kernel-"))
            or found and found.group(2))])
