# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds modules for the kernel that boots next, and checks them.

Scripts of packages build modules for the running kernel, and for a new kernel if its headers are installed before the
kernel. They do not report failures, so the host might have no driver after its next boot.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import build_log, dkms_install
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    DriverState,
    modinfo,
    read_dkms,
    wrong_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import next_kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

BUILD_NEXT = "build modules for the next kernel"


class NextKernel(Part):
    """Builds and checks the modules for the kernel of the next boot."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        kernel = self._kernel(now, desired)
        if kernel is None:
            return []
        if not desired.delivered and desired.version in read_dkms(self.host.root, kernel, now.arch)[0]:
            return []
        return [("build", Step(BUILD_NEXT, f"{desired.version} for kernel {kernel}", "it boots next",
                               data={"version": desired.version, "kernel": kernel, "arch": now.arch}))]

    def _kernel(self, now: DriverState, desired: DesiredDriver) -> str | None:
        wanted = self.host.spec.next_kernel and desired.dkms
        return next_kernel(self.host.root, now.kernel, now.family) if wanted else None

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != BUILD_NEXT:
            return False
        version, kernel, arch = (step.data[key] for key in ("version", "kernel", "arch"))
        built, registered = read_dkms(self.host.root, kernel, arch)
        if version not in built:
            name = registered.get(version, "nvidia")
            done = dkms_install(self.host.run, name, version, kernel, arch)
            if version not in read_dkms(self.host.root, kernel, arch)[0]:
                raise HostError(f"DKMS did not build {version} for the next kernel {kernel} (exit code {done.rc}): "
                                f"{build_log() or (done.stdout + done.stderr).strip()[-400:]}",
                                "The running driver works. Correct the error in the log before the next boot, or set "
                                "next_kernel to false.", kernel=kernel, rc=done.rc)
        found = modinfo(self.host.run, "version", kernel)
        if found != version:
            raise HostError(wrong_module(kernel, found, version),
                            f"Remove the other module; modinfo -k {kernel} -n nvidia prints its path.", kernel=kernel)
        return True

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        kernel = self._kernel(now, desired)
        if kernel is None or desired.version in read_dkms(self.host.root, kernel, now.arch)[0]:
            return []
        return [f"DKMS has not built {desired.version} for kernel {kernel}, which boots next"]
