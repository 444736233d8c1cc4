# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host without its GPUs: name, distribution, kernel, machine, Secure Boot. PRIVATE to the collection."""

from __future__ import annotations

import os
import shlex
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._kernel import has_headers
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root

# UEFI Specification: the GUID of the global variables.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_FAMILIES = {
    "debian": ("debian", "ubuntu"),
    "redhat": ("rhel", "fedora", "centos", "amzn", "azurelinux", "mariner", "ol", "rocky", "almalinux", "kylin"),
    "suse": ("suse", "sles", "opensuse", "opensuse-leap", "opensuse-tumbleweed"),
}


def read_host(root: Root) -> dict[str, t.Any]:
    """Shape: C({hostname, os, kernel, arch, machine, secure_boot}), see the module gpu_info."""
    release = root.text("/proc/sys/kernel/osrelease") or os.uname().release
    return {
        "hostname": root.text("/proc/sys/kernel/hostname") or os.uname().nodename,
        "os": read_os(root),
        "kernel": {"release": release, "headers": has_headers(root, release)},
        "arch": os.uname().machine,
        "machine": read_machine(root),
        "secure_boot": secure_boot(root),
    }


def read_machine(root: Root) -> str | None:
    """The DMI product name."""
    return root.text("/sys/class/dmi/id/product_name")


def read_os(root: Root) -> dict[str, str | None]:
    """C({id, version_id, codename, family, pretty_name}) from os-release(5)."""
    text = root.text("/etc/os-release") or root.text("/usr/lib/os-release") or ""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.startswith("#"):
            values[key.strip()] = _unquoted(value)
    words = [values.get("ID", ""), *values.get("ID_LIKE", "").split()]
    family = next((name for word in words for name, ids in _FAMILIES.items() if word in ids), "other")
    return {"id": values.get("ID"), "version_id": values.get("VERSION_ID"), "codename": values.get("VERSION_CODENAME"),
            "family": family, "pretty_name": values.get("PRETTY_NAME")}


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip()


def secure_boot(root: Root) -> bool | None:
    """The firmware's Secure Boot state; False without UEFI, None where the variable cannot be read.

    efivarfs puts four bytes of attributes before the value; its last byte is 1 for "on".
    """
    if not root.exists("/sys/firmware/efi"):
        return False
    for path in (f"/sys/firmware/efi/efivars/{_SECURE_BOOT}", f"/sys/firmware/efi/vars/{_SECURE_BOOT}/data"):
        value = root.data(path)
        if value:
            return bool(value[-1] & 1)
    return None
