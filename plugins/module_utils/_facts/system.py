# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads os-release, kernel headers, Secure Boot and DMI. PRIVATE."""

from __future__ import annotations

import os
import shlex
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

# The variable and its GUID (UEFI Specification, "Globally Defined Variables").
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Set if the validation of shim is off (mokutil --disable-validation). Then Secure Boot is off for the kernel, too
# (drivers/firmware/efi/libstub/secureboot.c).
_UNVALIDATED = ("/sys/firmware/efi/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23",
                "/sys/firmware/efi/mok-variables/MokSBStateRT")
# shim's list of enrolled keys: as a variable, and as a file if it is too large for a variable.
_ENROLLED = ("/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23",
             "/sys/firmware/efi/mok-variables/MokListRT")
_FAMILIES = {
    "debian": ("debian", "ubuntu"),
    "redhat": ("rhel", "fedora", "centos", "amzn", "azurelinux", "mariner", "ol", "rocky", "almalinux", "kylin",
               "rhcos"),
    "suse": ("suse", "sles", "opensuse", "opensuse-leap", "opensuse-tumbleweed", "sl-micro"),
}


def read_os(root: Root) -> dict[str, str | None]:
    """The fact C(host.os) of gpu_info: C({id, version_id, codename, family, pretty_name}), from os-release(5)."""
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
    """C(debian), C(redhat), C(suse) or C(other). ids: ID and ID_LIKE of os-release, the best first."""
    return next((name for word in ids for name, known in _FAMILIES.items() if word in known), "other")


def system_of(release: t.Mapping[str, str]) -> dict[str, str | None]:
    """The fact C(host.os) of gpu_info. release: from L(os_release)."""
    family = family_of([release.get("ID", ""), *release.get("ID_LIKE", "").split()])
    return {"id": release.get("ID"), "version_id": release.get("VERSION_ID"),
            "codename": release.get("VERSION_CODENAME"), "family": family, "pretty_name": release.get("PRETTY_NAME")}


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value[:1000]))  # the time of shlex grows with the square of the length
    except ValueError:
        return value.strip()


def has_headers(root: Root, release: str) -> bool:
    """Whether modules can be built for this kernel: its build folder has a Makefile."""
    for folder in (f"/lib/modules/{release}/build", f"/usr/lib/modules/{release}/build"):
        target = root.link(folder)
        build = os.path.normpath(os.path.join(os.path.dirname(folder), target)) if target else folder
        if root.exists(f"{build}/Makefile"):
            return True
    return False


def secure_boot(root: Root) -> bool | None:
    """Whether Secure Boot is on; False without UEFI, None if the variable cannot be read.

    In efivarfs the value follows four bytes of attributes; its last byte is 1 for "on".
    """
    if not root.exists("/sys/firmware/efi"):
        return False
    for path in (f"/sys/firmware/efi/efivars/{_SECURE_BOOT}", f"/sys/firmware/efi/vars/{_SECURE_BOOT}/data"):
        value = root.data(path)
        if value:
            return bool(value[-1] & 1) and not any((root.data(name) or b"\0")[-1] == 1 for name in _UNVALIDATED)
    return None


def enrolled_keys(root: Root) -> bytes | None:
    """The content of shim's list of enrolled certificates, None if there is no list."""
    return next((data for data in map(root.data, _ENROLLED) if data is not None), None)


def dmi(root: Root, key: str) -> str:
    """A DMI string, such as that of C(product_name); empty if the firmware has none."""
    return root.text(f"/sys/class/dmi/id/{key}") or ""


def read_machine(root: Root) -> str | None:
    """The DMI product name, None if the firmware has none."""
    return dmi(root, "product_name") or None
