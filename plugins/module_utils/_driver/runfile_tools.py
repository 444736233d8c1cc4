# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the requirements of a .run installer: build tools, a signing key, and no installed driver packages.

Source: NVIDIA/nvidia-installer, misc.c (the programs that it needs, and the file with which packages block it).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.missing_headers import (
    explain_missing_headers,
    missing_headers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import Record
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.signing import CERTIFICATE, FRAMEWORK, KEY
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

ALTERNATE = "/usr/lib/nvidia/alternate-install-present"
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
# Programs that the installer or DKMS runs, with the packages that contain them on all distributions.
_PROGRAMS = {"cc": "gcc", "make": "make", "ld": "binutils", "tar": "tar", "dkms": "dkms"}
_HEADER = "/usr/include/stdio.h"
# The package that contains this file, by family of distributions.
_LIBC = {"debian": "libc6-dev", "redhat": "glibc-devel", "suse": "glibc-devel"}
# The command that prints the package to which a file belongs, by family of distributions.
_OWNER: t.Dict[str, t.Tuple[str, ...]] = {
    "debian": ("dpkg-query", "-S"), "redhat": ("rpm", "-qf", "--qf", "%{NAME}:\\n"),
    "suse": ("rpm", "-qf", "--qf", "%{NAME}:\\n")}
# The default keys of DKMS: on Ubuntu, and on other distributions.
_KEYS = (("/var/lib/shim-signed/mok/MOK.priv", "/var/lib/shim-signed/mok/MOK.der"),
         ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub"))


def missing_packages(host: Host, now: DriverState, version: str) -> list[str]:
    """The missing packages of the distribution that the installer needs. Runs no command."""
    found = [package for program, package in _PROGRAMS.items()
             if not any(host.root.exists(f"{folder}/{program}") for folder in _FOLDERS)]
    if not host.root.exists(_HEADER):
        found.append(_LIBC.get(now.family, "glibc-devel"))
    return found + missing_headers(host.root, now, version, host.spec.next_kernel)


def plan_tools(host: Host, now: DriverState, version: str, work: PackageWork | None) -> list[Step]:
    """The step that installs missing packages. Raises HostError if the package manager is not supported."""
    names = missing_packages(host, now, version)
    if names and work is None:
        raise HostError(f"The .run installer needs {', '.join(names)} on this host.", "Install them, then run again.",
                        packages=names)
    with explain_missing_headers():
        return work.plan_own(names, "the installer of the driver needs them") if names and work is not None else []


def refuse_packages(host: Host, now: DriverState, record: Record | None) -> None:
    """Raises HostError if a driver is installed from packages that this collection has not installed."""
    for path in (ALTERNATE, *(f"{folder}/libnvidia-ml.so.1" for folder in _LIBRARIES)):
        if not host.root.exists(path) or record and path in record.paths:
            continue
        package = _owner(host, now, path)
        entry = host.journal.get("package", package)
        owned = entry is not None and entry["before"]["state"] != "installed"
        # A library that belongs to no package is allowed, because the installer moves it and the uninstaller restores
        # it.
        if not owned and (package or path == ALTERNATE):
            raise HostError(f"Foreign packages of a driver are installed ({package or 'no package'} has {path}).",
                            "Remove these packages, use a source that installs packages, or use state adopted, which "
                            "only verifies a driver.", package=package, path=path)


def _owner(host: Host, now: DriverState, path: str) -> str:
    """The package to which a file belongs, empty if there is none."""
    done = host.run([*_OWNER.get(now.family, _OWNER["redhat"]), path], check=False)
    return done.stdout.split(":", 1)[0].strip() if done.rc == 0 else ""


def check_key(host: Host, now: DriverState) -> None:
    """Raises HostError if modules must be signed but there is no key. DKMS creates one only when it builds modules."""
    if now.secure_boot and not (host.spec.module_signing or {}).get("key") and signing_key(host, now) is None:
        raise HostError("Secure Boot is on, and there is no key to sign the modules of the .run file.",
                        "Set module_signing.key, or use a source that installs packages.", path="module_signing")


def signing_key(host: Host, now: DriverState) -> tuple[str, str] | None:
    """The paths of the key and certificate with which DKMS signs modules: those in module_signing or, under Secure
    Boot, the ones that DKMS creates.

    None if DKMS does not have to sign modules, or has not created a key yet.
    """
    if host.root.exists(FRAMEWORK):
        return KEY, CERTIFICATE
    existing = (pair for pair in _KEYS if all(host.root.exists(path) for path in pair))
    return next(existing, None) if now.secure_boot else None
