# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs headers and builds modules for the kernel of the next boot.

Scripts of packages build modules for the running kernel, and for a new kernel if its headers are installed before the
kernel. They do not report failures, so the host might have no driver after its next boot.
"""

from __future__ import annotations

import contextlib
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import build_log, dkms_install
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    DriverState,
    modinfo,
    read_dkms,
    wrong_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.kernel import headers_package, newest_kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import has_headers
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

_LOST = re.compile(r"(?:Unable to locate package|No match for argument:) (linux-headers-\S+|kernel\S*-devel\S*)")
BUILD_NEXT = "build modules for the next kernel"


def next_kernel(root: Root, now: DriverState) -> str | None:
    """The newest installed kernel, None if it is the running kernel."""
    newest = newest_kernel(root, now.kernel, now.family)
    return newest if newest != now.kernel else None


def missing_headers(root: Root, now: DriverState, version: str, wanted: bool) -> list[str]:
    """The missing header packages for the running kernel, and for the next kernel if wanted is true.

    Kernels for which DKMS has already built this version need no headers. Runs no command. Raises HostError if the
    distribution provides no package with the headers.
    """
    following = next_kernel(root, now) if wanted else None
    kernels = [kernel for kernel in (now.kernel, following) if kernel and not has_headers(root, kernel)
               and version not in read_dkms(root, kernel, now.arch)[0]]
    found = []
    for kernel in kernels:
        package = headers_package(kernel, now.family, now.os_id)
        if package is None:
            raise HostError(f"The headers of kernel {kernel} are missing, and {now.os_id} has no package with them.",
                            f"Install them in /lib/modules/{kernel}/build, or use a source with built modules.",
                            kernel=kernel)
        found.append(package)
    return found


@contextlib.contextmanager
def explain_missing_headers() -> t.Iterator[None]:
    """Replaces the hint in a package manager's error if the repositories no longer contain the headers for a kernel."""
    try:
        yield
    except HostError as error:
        found = _LOST.search(error.message)
        if found:
            error.hint = (f"The package sources of the host no longer have {found.group(1)}: upgrade the kernel, boot "
                          "it, then run again. For the next kernel, you can also set next_kernel to false.")
        raise


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
        return next_kernel(self.host.root, now) if self.host.spec.next_kernel and desired.dkms else None

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
