# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's network repository for SUSE's distributions. Pure.

Sources: SUSE's notes on the installation of NVIDIA drivers (S. Dirsch, July 2025 for G06, February and April 2026 for
G07); openSUSE/nvidia-open-driver-G06. The packages have no epoch.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import (
    SUSE,
    SUSE_FROM,
    SUSE_OPEN_FROM,
    CudaRpm,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import FULL
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import branch_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_tools import CHECKS

HOLD_FILE = f"{CHECKS}/gpuops-driver.check"
# Packages of a generation: the libraries, and the modules that are built by DKMS, by a script, or by SUSE.
_GENERATION = re.compile(r"nvidia-.*-G(0\d)(?:-|\Z)")
_MODULES = re.compile(r"nvidia-(?:open-)?driver-G0\d(?:-|\Z)")
# Packages whose version is fixed. The other packages of a generation depend on their version.
_HELD = ("nvidia-open-driver-{0}", "nvidia-driver-{0}", "nvidia-compute-utils-{0}", "nvidia-compute-{0}",
         "nvidia-common-{0}", "nvidia-gl-{0}", "nvidia-video-{0}")
_HELD_BESIDE = ("nvidia-open", "cuda-drivers", "nvidia-persistenced", "nvidia-modprobe", "nvidia-fabricmanager",
                "libnvidia-nscq", "nvidia-imex", "libnvsdm")


def generation(branch: int) -> str:
    """The generation of SUSE's packages for a branch, C(G06) or C(G07)."""
    return "G07" if branch >= SUSE_OPEN_FROM else "G06"


class CudaSuse(CudaRpm):
    """Implements L(source.Source) for zypper."""

    _folders = SUSE
    _leader = re.compile(r"nvidia-compute-utils-G0\d\Z")
    _meta = re.compile(r"nvidia-video-G0\d\Z")
    _desktop = re.compile(r"nvidia-(video|gl|drivers)-G0\d\Z|(nvidia-open|cuda-drivers)(-\d{3})?\Z")

    def packages(self, version: str, flavour: str, persistenced: bool, installation: str = "auto"
                 ) -> dict[str, str | None]:
        """See L(Source). The metapackages need modules that SUSE has signed, so the full driver is installed without
        them. In G06, the package of programs contains the persistence daemon."""
        branch = branch_of(version)
        if branch < SUSE_FROM:
            raise InputError(f"NVIDIA's packages of branch {branch} for {self.folder} build modules without DKMS, "
                             "so the build cannot be checked.",
                             f"Set branch to {SUSE_FROM} or newer, or source to runfile.", path="branch",
                             value=branch)
        if flavour != "open" and branch >= SUSE_OPEN_FROM:
            raise InputError(f"NVIDIA has no proprietary kernel modules of branch {branch} for {self.folder}.",
                             f"Set kernel_module_type to open, or set branch below {SUSE_OPEN_FROM}.",
                             path="kernel_module_type", value=flavour, allowed=["open"])
        name = generation(branch)
        wanted: dict[str, str | None] = {_kernel(flavour, branch): version, f"nvidia-compute-utils-{name}": version}
        if persistenced and name != "G06":
            wanted["nvidia-persistenced"] = version
        if installation == FULL:
            wanted.update({f"nvidia-gl-{name}": version, f"nvidia-video-{name}": version})
        return wanted

    def conflicting(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """See L(Source). Returns packages of another generation or with other modules, such as modules that SUSE has
        signed."""
        branch = branch_of(version)
        kept, modules = generation(branch), _kernel(flavour, branch)
        return sorted(name for name, found in ((name, _GENERATION.match(name)) for name in known) if found and (
            f"G{found.group(1)}" != kept or _MODULES.match(name) and name != modules)
            or name == "nvidia-persistenced" and kept == "G06")

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """See L(Source). The file forbids newer versions. The added suffix sorts after all package revisions of the
        version."""
        name = generation(branch_of(version))
        lines = ["# Written by gpuops.nvidia: updates must not change the version of the driver.",
                 *(f"conflicts:{package} > {version}_z" for package in (*(held.format(name) for held in _HELD),
                                                                        *_HELD_BESIDE)), ""]
        return {HOLD_FILE: "\n".join(lines).encode()}


def _kernel(flavour: str, branch: int) -> str:
    return f"nvidia-{'open-' if flavour == 'open' else ''}driver-{generation(branch)}"
