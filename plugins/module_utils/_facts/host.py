# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the facts of a host without its GPUs: name, distribution, kernel and its headers, machine. PRIVATE."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.machine import (
    read_cloud,
    read_lockdown,
    read_markers,
    read_mok,
    read_virtual,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import (
    dmi,
    has_headers,
    os_release,
    read_machine,
    secure_boot,
    system_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import flavour_of, headers_package, newest_kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

# A source in apt-cache's version table: priority and place.
_FROM_INDEX = re.compile(r"^ {8,}-?\d+ (?!/var/lib/dpkg/status)\S+", re.M)


def read_host(root: Root) -> Fact:
    """The fact C(host) of gpu_info. C(kernel.headers_available) is None; L(collect.collect) sets it."""
    release = os_release(root)
    system = system_of(release)
    return {
        "hostname": root.text("/proc/sys/kernel/hostname") or os.uname().nodename,
        "os": system,
        "kernel": read_kernel(root, system),
        "arch": os.uname().machine,
        "machine": read_machine(root),
        "vendor": dmi(root, "sys_vendor") or None,
        "virtual": read_virtual(root),
        "cloud": read_cloud(root),
        "secure_boot": secure_boot(root),
        "mok": read_mok(root),
        "lockdown": read_lockdown(root),
        "markers": read_markers(root, release),
    }


def read_kernel(root: Root, system: t.Mapping[str, str | None]) -> Fact:
    """The fact C(host.kernel). system: from L(system_of)."""
    release = root.text("/proc/sys/kernel/osrelease") or os.uname().release
    family = system["family"]
    return {"release": release, "flavour": flavour_of(release, family), "headers": has_headers(root, release),
            "headers_package": headers_package(release, family, system["id"]), "headers_available": None,
            "newest_installed": newest_kernel(root, release, family)}


def knows_package(root: Root, run: Runner, family: str | None, package: str | None) -> bool | None:
    """Whether the downloaded index of the package manager has the package; None without an index, or if unknown.

    Takes tens of milliseconds with apt-cache, about a second with dnf.
    """
    if family == "debian":
        if not any("_Packages" in name for name in root.names("/var/lib/apt/lists")):
            return None
        argv = ["apt-cache", "policy", str(package)]
    elif family == "redhat":
        argv = ["dnf", "--quiet", "--cacheonly", "repoquery", str(package)]
    else:
        return None
    try:
        done = run(argv, check=False, timeout=20)
    except CommandError:
        return None
    if done.rc != 0:
        return None
    # If the only source of a version is dpkg, the version is installed, but in no repository.
    return bool(_FROM_INDEX.search(done.stdout) if family == "debian" else done.stdout.strip())
