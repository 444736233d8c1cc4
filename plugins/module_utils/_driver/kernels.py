# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel that boots next: its headers, and modules built for it beforehand.

A package's scripts build for the running kernel, and at a kernel's installation for that one if its headers are there
already; both hide a failure. So a host would come back from its next boot without a driver.
"""

from __future__ import annotations

import contextlib
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import build_log, dkms_install
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation, modinfo, read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.kernel import headers_package, newest_kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import has_headers
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

_LOST = re.compile(r"(?:Unable to locate package|No match for argument:) (linux-headers-\S+|kernel\S*-devel\S*)")
BUILD_NEXT = "build modules for the next kernel"


def next_kernel(root: Root, now: Situation) -> str | None:
    """The newest installed kernel, where the running one is another."""
    newest = newest_kernel(root, now.kernel, now.family)
    return newest if newest != now.kernel else None


def missing_headers(root: Root, now: Situation, version: str, wanted: bool) -> list[str]:
    """The packages of headers without which a version cannot be built for the running kernel and, if wanted, the next.

    None where it is built already; costs no command. Raises HostError where the system has no package of them.
    """
    following = next_kernel(root, now) if wanted else None
    kernels = [kernel for kernel in (now.kernel, following) if kernel and not has_headers(root, kernel)
               and version not in read_dkms(root, kernel, now.arch)[0]]
    found = []
    for kernel in kernels:
        package = headers_package(kernel, now.family, now.os_id)
        if package is None:
            raise HostError(f"The headers of kernel {kernel} are missing, and {now.os_id} has no package of them.",
                            f"Put them to /lib/modules/{kernel}/build, or use a source with built modules.",
                            kernel=kernel)
        found.append(package)
    return found


@contextlib.contextmanager
def lost_headers() -> t.Iterator[None]:
    """Says what to do about an error of a package manager, where repositories have dropped the headers of a kernel."""
    try:
        yield
    except HostError as error:
        found = _LOST.search(error.message)
        if found:
            error.hint = (f"The host's repositories have no {found.group(1)} any more: upgrade the kernel, boot it, "
                          "then run again. Where it is that of the next kernel, set next_kernel to false.")
        raise


class NextKernel(Part):
    """The modules for the kernel that boots next, built and seen; the running one is not touched."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        kernel = self._kernel(now, aim)
        if kernel is None or not aim.delivered and aim.version in read_dkms(self.host.root, kernel, now.arch)[0]:
            return []
        return [("build", Step(BUILD_NEXT, f"{aim.version} for kernel {kernel}", "it boots next",
                               data={"version": aim.version, "kernel": kernel, "arch": now.arch}))]

    def _kernel(self, now: Situation, aim: Aim) -> str | None:
        return next_kernel(self.host.root, now) if self.host.spec.next_kernel and aim.dkms else None

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
                                "The running driver works. Correct what the log says before the next boot, or set "
                                "next_kernel to false.", kernel=kernel, rc=done.rc)
        told = modinfo(self.host.run, "version", kernel)
        if told != version:
            raise HostError(f"Kernel {kernel} would load nvidia {told or 'from nowhere'}, not {version}.",
                            f"Look for other files: modinfo -k {kernel} -n nvidia.", kernel=kernel)
        return True

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        kernel = self._kernel(now, aim)
        if kernel is None or aim.version in read_dkms(self.host.root, kernel, now.arch)[0]:
            return []
        return [f"DKMS has not built {aim.version} for kernel {kernel}, which boots next"]
