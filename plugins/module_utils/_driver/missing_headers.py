# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the kernels without headers, and the packages with these, which are installed together with the driver."""

from __future__ import annotations

import contextlib
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState, read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import has_headers
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import headers_package, next_kernel

_LOST = re.compile(r"(?:Unable to locate package|No match for argument:) (linux-headers-\S+|kernel\S*-devel\S*)")


def missing_headers(root: Root, now: DriverState, version: str, wanted: bool) -> list[str]:
    """The missing header packages for the running kernel, and for the next kernel if wanted is true.

    Kernels for which DKMS has already built this version need no headers. Runs no command. Raises HostError if the
    distribution provides no package with the headers.
    """
    following = next_kernel(root, now.kernel, now.family) if wanted else None
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
