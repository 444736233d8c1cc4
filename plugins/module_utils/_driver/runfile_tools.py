# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a .run installer needs on the host, and what must not be there when it comes.

Source: NVIDIA/nvidia-installer, misc.c (programs it looks for, the file by which packages forbid it to install).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.kernels import lost_headers, missing_headers
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import Record
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.signing import CERTIFICATE, FRAMEWORK, KEY
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

ALTERNATE = "/usr/lib/nvidia/alternate-install-present"
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
# A program that the installer or DKMS runs, and the package of it everywhere.
_PROGRAMS = {"cc": "gcc", "make": "make", "ld": "binutils", "tar": "tar", "dkms": "dkms"}
_HEADER = "/usr/include/stdio.h"
# The package of that file, by family.
_LIBC = {"debian": "libc6-dev", "redhat": "glibc-devel", "suse": "glibc-devel"}
# Which package has a file, by family.
_OWNER: t.Dict[str, t.Tuple[str, ...]] = {
    "debian": ("dpkg-query", "-S"), "redhat": ("rpm", "-qf", "--qf", "%{NAME}:\\n"),
    "suse": ("rpm", "-qf", "--qf", "%{NAME}:\\n")}
# The keys that DKMS signs with by itself: Ubuntu's, all others'.
_KEYS = (("/var/lib/shim-signed/mok/MOK.priv", "/var/lib/shim-signed/mok/MOK.der"),
         ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub"))


def missing_packages(host: Host, now: Situation, version: str) -> list[str]:
    """Packages of the host's own sources that the installer cannot work without; costs no command."""
    found = [package for program, package in _PROGRAMS.items()
             if not any(host.root.exists(f"{folder}/{program}") for folder in _FOLDERS)]
    if not host.root.exists(_HEADER):
        found.append(_LIBC.get(now.family, "glibc-devel"))
    return found + missing_headers(host.root, now, version, host.spec.next_kernel)


def plan_tools(host: Host, now: Situation, version: str, work: PackageWork | None) -> list[Step]:
    """The step that installs them. Raises HostError where the host has no package manager that we know."""
    names = missing_packages(host, now, version)
    if names and work is None:
        raise HostError(f"The .run installer needs {', '.join(names)} on this host.", "Install them, then run again.",
                        packages=names)
    with lost_headers():
        return work.plan_own(names, "the driver's installer needs them") if names and work is not None else []


def refuse_packages(host: Host, now: Situation, record: Record | None) -> None:
    """Raises HostError where packages that are not ours to remove have brought a driver."""
    for path in (ALTERNATE, *(f"{folder}/libnvidia-ml.so.1" for folder in _LIBRARIES)):
        if not host.root.exists(path) or record and path in record.paths:
            continue
        package = _owner(host, now, path)
        entry = host.journal.get("package", package)
        ours = entry is not None and entry["before"]["state"] != "installed"
        # A library that no package has is moved away by the installer, and comes back with its removal.
        if not ours and (package or path == ALTERNATE):
            raise HostError(f"A driver from packages is installed ({package or 'no package'} has {path}), and not by "
                            "this collection.", "Remove these packages, or use a source of packages; with state "
                            "adopted, the driver is verified and left alone.", package=package, path=path)


def _owner(host: Host, now: Situation, path: str) -> str:
    """The package that has a file, empty where none has."""
    done = host.run([*_OWNER.get(now.family, _OWNER["redhat"]), path], check=False)
    return done.stdout.split(":", 1)[0].strip() if done.rc == 0 else ""


def check_key(host: Host, now: Situation) -> None:
    """Raises HostError where modules have to be signed and no key is there: DKMS makes one when it builds itself."""
    if now.secure_boot and not (host.spec.module_signing or {}).get("key") and signing_key(host, now) is None:
        raise HostError("Secure Boot is on, and there is no key that the .run installer could sign modules with.",
                        "Give module_signing a key, or use a source of packages.", path="module_signing")


def signing_key(host: Host, now: Situation) -> tuple[str, str] | None:
    """The key and certificate that DKMS signs with: a given one, or its own under Secure Boot."""
    if host.root.exists(FRAMEWORK):
        return KEY, CERTIFICATE
    there = (pair for pair in _KEYS if all(host.root.exists(path) for path in pair))
    return next(there, None) if now.secure_boot else None
