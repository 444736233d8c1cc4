# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host without its GPUs: name, distribution, kernel, Secure Boot. PRIVATE to the collection."""

from __future__ import annotations

import os
import shlex
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._kernel import (
    flavour_of,
    has_headers,
    headers_package,
    newest_kernel,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._machine import (
    dmi,
    read_cloud,
    read_lockdown,
    read_markers,
    read_mok,
    read_virtual,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root

# UEFI Specification: the GUID of the global variables.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_FAMILIES = {
    "debian": ("debian", "ubuntu"),
    "redhat": ("rhel", "fedora", "centos", "amzn", "azurelinux", "mariner", "ol", "rocky", "almalinux", "kylin",
               "rhcos"),
    "suse": ("suse", "sles", "opensuse", "opensuse-leap", "opensuse-tumbleweed", "sl-micro"),
}


def read_host(root: Root) -> dict[str, t.Any]:
    """Shape: the fact C(host) of gpu_info; C(kernel.headers_available) is left None here, as it costs a command."""
    release = os_release(root)
    system = _system(release)
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


def read_kernel(root: Root, system: t.Mapping[str, str | None]) -> dict[str, t.Any]:
    """Shape: the fact C(host.kernel). system: of L(read_os)."""
    release = root.text("/proc/sys/kernel/osrelease") or os.uname().release
    family = system["family"]
    return {"release": release, "flavour": flavour_of(release, family), "headers": has_headers(root, release),
            "headers_package": headers_package(release, family, system["id"]), "headers_available": None,
            "newest_installed": newest_kernel(root, release, family)}


def read_machine(root: Root) -> str | None:
    """The DMI product name."""
    return dmi(root, "product_name") or None


def read_os(root: Root) -> dict[str, str | None]:
    """C({id, version_id, codename, family, pretty_name}) from os-release(5)."""
    return _system(os_release(root))


def os_release(root: Root) -> dict[str, str]:
    """The values of os-release(5)."""
    text = root.text("/etc/os-release") or root.text("/usr/lib/os-release") or ""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.startswith("#"):
            values[key.strip()] = _unquoted(value)
    return values


def family_of(ids: t.Iterable[str]) -> str:
    """C(debian), C(redhat), C(suse) or C(other) for an id and what it is like."""
    return next((name for word in ids for name, known in _FAMILIES.items() if word in known), "other")


def _system(release: t.Mapping[str, str]) -> dict[str, str | None]:
    family = family_of([release.get("ID", ""), *release.get("ID_LIKE", "").split()])
    return {"id": release.get("ID"), "version_id": release.get("VERSION_ID"),
            "codename": release.get("VERSION_CODENAME"), "family": family, "pretty_name": release.get("PRETTY_NAME")}


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
