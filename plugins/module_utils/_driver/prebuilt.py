# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks built and signed kernel modules from packages.

These packages have the version of the kernel, so only the module file contains the version of the driver.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation, modinfo
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.kernel import newest_kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

CHECK = "check modules"


def kernels(root: Root, now: Situation) -> list[str]:
    """The running kernel and, if it is another one, the newest installed kernel."""
    return list(dict.fromkeys([now.kernel, newest_kernel(root, now.kernel, now.family) or now.kernel]))


class Prebuilt(Part):
    """Checks the modules for the running kernel and for the newest one."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part). Runs modinfo for each kernel if packages contain the modules."""
        if aim.dkms:
            return []
        return [("build", Step(CHECK, f"{aim.version} for kernel {kernel}", "their packages have another version",
                               data={"version": aim.version, "kernel": kernel}))
                for kernel in kernels(self.host.root, now) if aim.delivered or self._version(kernel) != aim.version]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != CHECK:
            return False
        wanted, kernel = step.data["version"], step.data["kernel"]
        found = self._version(kernel)
        if found != wanted:
            raise HostError(f"Kernel {kernel} would load nvidia {found or '(no module)'} instead of {wanted}.",
                            f"Check modinfo -k {kernel} nvidia. If the archive has modules and libraries in different "
                            "versions, set version to that of the modules, or use source distribution.",
                            kernel=kernel, found=found)
        return True

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        return [] if aim.dkms else [f"kernel {kernel} would not load nvidia {aim.version}"
                                    for kernel in kernels(self.host.root, now) if self._version(kernel) != aim.version]

    def _version(self, kernel: str) -> str:
        return modinfo(self.host.run, "version", kernel)
