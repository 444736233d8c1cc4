# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's network repository for SUSE's distributions. Pure.

Sources: SUSE's notes on the installation of NVIDIA drivers (S. Dirsch, July 2025 for G06, February and April 2026 for
G07); openSUSE/nvidia-open-driver-G06. Packages have no epoch.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import (
    SUSE,
    SUSE_FROM,
    SUSE_OPEN_FROM,
    CudaRpm,
    folder_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import branch_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import rpm_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_tools import CHECKS

HOLD_FILE = f"{CHECKS}/gpuops-driver.check"
_LEADER = re.compile(r"nvidia-compute-utils-G0\d\Z")
# Packages of a generation: modules built by DKMS, built by the package itself, or built and signed by SUSE; libraries.
_GENERATION = re.compile(r"nvidia-.*-G(0\d)(?:-|\Z)")
_MODULES = re.compile(r"nvidia-(?:open-)?driver-G0\d(?:-|\Z)")
# What is held beside the modules; all of a generation are tied to each other's version, or follow these.
_HELD = ("nvidia-open-driver-{0}", "nvidia-driver-{0}", "nvidia-compute-utils-{0}", "nvidia-compute-{0}",
         "nvidia-common-{0}", "nvidia-gl-{0}", "nvidia-video-{0}")
_HELD_BESIDE = ("nvidia-open", "cuda-drivers", "nvidia-persistenced", "nvidia-modprobe", "nvidia-fabricmanager",
                "libnvidia-nscq", "nvidia-imex", "libnvsdm")


def generation(branch: int) -> str:
    """Of SUSE's packages: C(G07) has open modules only."""
    return "G07" if branch >= SUSE_OPEN_FROM else "G06"


class CudaSuse(CudaRpm):
    """Implements L(source.Source) for zypper; folder, repository and companions are those of other RPMs."""

    @classmethod
    def for_distribution(cls, os_id: str, os_version: str, arch: str) -> CudaSuse | None:
        """The source for a distribution, None where it is another one."""
        folder = folder_of(os_id, os_version)
        return cls(folder, arch) if folder in SUSE and arch in ("x86_64", "aarch64") else None

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """The vendor's version of the programs that libraries must match."""
        return next((upstream(packages[name]) for name in packages if _LEADER.match(name)), None)

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """The vendor's versions of a repository, newest first."""
        every = [version for name in candidates if _LEADER.match(name) for version in candidates[name]]
        return list(dict.fromkeys(map(upstream, sorted(every, key=rpm_key, reverse=True))))

    def packages(self, version: str, flavour: str, persistenced: bool) -> dict[str, str | None]:
        """For compute use only, modules built by DKMS. G06 has the persistence daemon among its programs."""
        branch = branch_of(version)
        if branch < SUSE_FROM:
            raise InputError(f"The vendor's packages of branch {branch} for {self.folder} build modules without DKMS, "
                             "where nobody sees whether they are built.",
                             f"Set branch to {SUSE_FROM} or a newer one, or source to runfile.", path="branch",
                             value=branch)
        if flavour != "open" and branch >= SUSE_OPEN_FROM:
            raise InputError(f"The vendor has no proprietary kernel modules of branch {branch} for {self.folder}.",
                             f"Set kernel_module_type to open, or branch to one below {SUSE_OPEN_FROM}.",
                             path="kernel_module_type", value=flavour, allowed=["open"])
        name = generation(branch)
        wanted: dict[str, str | None] = {_kernel(flavour, branch): version, f"nvidia-compute-utils-{name}": version}
        if persistenced and name != "G06":
            wanted["nvidia-persistenced"] = version
        return wanted

    def rivals(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """What is of another generation or brings other modules; SUSE's own signed ones are of another version."""
        branch = branch_of(version)
        kept, modules = generation(branch), _kernel(flavour, branch)
        return sorted(name for name, found in ((name, _GENERATION.match(name)) for name in known) if found and (
            f"G{found.group(1)}" != kept or _MODULES.match(name) and name != modules)
            or name == "nvidia-persistenced" and kept == "G06")

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """What no update may bring: newer versions. The ending sorts after what a package adds to the vendor's."""
        name = generation(branch_of(version))
        lines = ["# Written by gpuops.nvidia: an update must not split modules and libraries.",
                 *(f"conflicts:{package} > {version}_z" for package in (*(held.format(name) for held in _HELD),
                                                                        *_HELD_BESIDE)), ""]
        return {HOLD_FILE: "\n".join(lines).encode()}


def _kernel(flavour: str, branch: int) -> str:
    return f"nvidia-{'open-' if flavour == 'open' else ''}driver-{generation(branch)}"
