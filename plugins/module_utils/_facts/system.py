# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host says of itself in files: os-release, kernel headers, Secure Boot, DMI. PRIVATE."""

from __future__ import annotations

import os
import shlex
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

# UEFI Specification: the GUID of the global variables.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# shim with its validation switched off (mokutil --disable-validation): then the kernel takes Secure Boot for off, too
# (kernel: drivers/firmware/efi/libstub/secureboot.c).
_UNVALIDATED = ("/sys/firmware/efi/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23",
                "/sys/firmware/efi/mok-variables/MokSBStateRT")
# shim's list of enrolled keys: as a variable, and where it is larger than one may be.
_ENROLLED = ("/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23",
             "/sys/firmware/efi/mok-variables/MokListRT")
_FAMILIES = {
    "debian": ("debian", "ubuntu"),
    "redhat": ("rhel", "fedora", "centos", "amzn", "azurelinux", "mariner", "ol", "rocky", "almalinux", "kylin",
               "rhcos"),
    "suse": ("suse", "sles", "opensuse", "opensuse-leap", "opensuse-tumbleweed", "sl-micro"),
}


def read_os(root: Root) -> dict[str, str | None]:
    """C({id, version_id, codename, family, pretty_name}) from os-release(5)."""
    return system_of(os_release(root))


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


def system_of(release: t.Mapping[str, str]) -> dict[str, str | None]:
    """Shape: the fact C(host.os) of gpu_info. release: of L(os_release)."""
    family = family_of([release.get("ID", ""), *release.get("ID_LIKE", "").split()])
    return {"id": release.get("ID"), "version_id": release.get("VERSION_ID"),
            "codename": release.get("VERSION_CODENAME"), "family": family, "pretty_name": release.get("PRETTY_NAME")}


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value[:1000]))  # it takes the square of a length
    except ValueError:
        return value.strip()


def has_headers(root: Root, release: str) -> bool:
    """Whether modules can be built for this kernel: its build folder is there and has a Makefile."""
    for folder in (f"/lib/modules/{release}/build", f"/usr/lib/modules/{release}/build"):
        target = root.link(folder)
        build = os.path.normpath(os.path.join(os.path.dirname(folder), target)) if target else folder
        if root.exists(f"{build}/Makefile"):
            return True
    return False


def secure_boot(root: Root) -> bool | None:
    """Whether Secure Boot is in force; False without UEFI, None where the variable cannot be read.

    efivarfs puts four bytes of attributes before the value; its last byte is 1 for "on".
    """
    if not root.exists("/sys/firmware/efi"):
        return False
    for path in (f"/sys/firmware/efi/efivars/{_SECURE_BOOT}", f"/sys/firmware/efi/vars/{_SECURE_BOOT}/data"):
        value = root.data(path)
        if value:
            return bool(value[-1] & 1) and not any((root.data(name) or b"\0")[-1] == 1 for name in _UNVALIDATED)
    return None


def enrolled_keys(root: Root) -> bytes | None:
    """The certificates that shim trusts, whole, one after the other; None where the firmware shows none."""
    return next((data for data in map(root.data, _ENROLLED) if data is not None), None)


def dmi(root: Root, key: str) -> str:
    """A DMI string; empty where the firmware has none."""
    return root.text(f"/sys/class/dmi/id/{key}") or ""


def read_machine(root: Root) -> str | None:
    """The DMI product name."""
    return dmi(root, "product_name") or None
