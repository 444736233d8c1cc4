# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks prebuilt and signed kernel modules from packages.

The version of these packages is the kernel version; only the module file contains the driver version.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState, modinfo, wrong_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import newest_kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

CHECK = "check modules"


def kernels(root: Root, now: DriverState) -> list[str]:
    """The releases of the running kernel and of the newest installed kernel, without duplicates."""
    return list(dict.fromkeys([now.kernel, newest_kernel(root, now.kernel, now.family) or now.kernel]))


class Prebuilt(Part):
    """Checks the modules for the running kernel and for the newest kernel."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part). Runs modinfo for each kernel if packages contain the modules."""
        if desired.dkms:
            return []
        return [("build", Step(CHECK, f"{desired.version} for kernel {kernel}",
                               "the version of their package is that of the kernel",
                               data={"version": desired.version, "kernel": kernel}))
                for kernel in kernels(self.host.root, now)
                if desired.delivered or self._version(kernel) != desired.version]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != CHECK:
            return False
        wanted, kernel = step.data["version"], step.data["kernel"]
        found = self._version(kernel)
        if found != wanted:
            raise HostError(wrong_module(kernel, found, wanted),
                            f"Check modinfo -k {kernel} nvidia. If the archive has modules and libraries in different "
                            "versions, set version to that of the modules, or use source distribution.",
                            kernel=kernel, found=found)
        return True

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        wrong = [] if desired.dkms else [kernel for kernel in kernels(self.host.root, now)
                                         if self._version(kernel) != desired.version]
        return [f"kernel {kernel} would not load nvidia {desired.version}" for kernel in wrong]

    def _version(self, kernel: str) -> str:
        return modinfo(self.host.run, "version", kernel)
