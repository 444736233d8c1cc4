# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel modules that come built and signed: whether each kernel would load the right one.

Their packages follow the kernel's versions, not the driver's, so that names and versions of packages do not tell.
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
    """The running kernel and, where it is another one, the newest installed."""
    return list(dict.fromkeys([now.kernel, newest_kernel(root, now.kernel, now.family) or now.kernel]))


class Prebuilt(Part):
    """The modules for the running kernel and for the newest one."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part). One modinfo a kernel, where modules come built."""
        if aim.dkms:
            return []
        return [("build", Step(CHECK, f"{aim.version} for kernel {kernel}", "they come built, in versions of their own",
                               data={"version": aim.version, "kernel": kernel}))
                for kernel in kernels(self.host.root, now) if aim.delivered or self._version(kernel) != aim.version]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != CHECK:
            return False
        wanted, kernel = step.data["version"], step.data["kernel"]
        told = self._version(kernel)
        if told != wanted:
            raise HostError(f"Kernel {kernel} would load nvidia {told or 'from nowhere'}, not {wanted}.",
                            f"Look at modinfo -k {kernel} nvidia. Where the archive has modules of another version "
                            "than libraries, name that version, or use source distribution, which builds modules.",
                            kernel=kernel, found=told)
        return True

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        return [] if aim.dkms else [f"kernel {kernel} would not load nvidia {aim.version}"
                                    for kernel in kernels(self.host.root, now) if self._version(kernel) != aim.version]

    def _version(self, kernel: str) -> str:
        return modinfo(self.host.run, "version", kernel)
