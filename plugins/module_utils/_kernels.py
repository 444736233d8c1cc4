# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flavour of a kernel, the name of the package with its headers, and the kernel of a host that boots next."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

# 6.8.0-1018-aws, 6.1.0-28-cloud-amd64, 6.12.43+deb13-amd64, 6.4.0-150600.23-default, 6.6.30-flatcar.
_DASHED = re.compile(r"\d[^-]*-(?:\d[^-]*-)*([a-z].*)\Z")
# 5.14.0-427.el9.aarch64+64k. Before RHEL 9.3, real-time kernels have no such suffix: 4.18.0-477.rt7.261.el8.x86_64.
_PLUS = re.compile(r"\+([a-z0-9]+)\Z")
_INSIDE = re.compile(r"\.(rt)\d|el\d+(uek)\b")


def flavour_of(release: str, family: str | None) -> str | None:
    """The flavour in a kernel's release, such as C(generic), C(aws), C(cloud-amd64) or C(64k); None if it has none."""
    if family == "redhat":
        found = _PLUS.search(release)
        inside = _INSIDE.search(release)
        return found.group(1) if found else (inside.group(1) or inside.group(2)) if inside else None
    dashed = _DASHED.match(release)
    return dashed.group(1) if dashed else None


def headers_package(release: str, family: str | None, os_id: str | None) -> str | None:
    """The name of the package with the headers of this kernel, None if the distribution has no such package.

    Source: driver installation guide 580, "kernel headers": C(linux-headers-RELEASE), C(kernel-devel-RELEASE) and
    C(kernel-FLAVOUR-devel=VERSION).
    """
    flavour = flavour_of(release, family)
    if family == "debian":
        return f"linux-headers-{release}"
    if family == "suse" and flavour:
        return f"kernel-{flavour}-devel={release[:-len(flavour) - 1]}"
    if family == "redhat":
        # Amazon Linux 2023 names its newer kernels by their version: kernel6.12.
        version = re.match(r"(\d+\.\d+)\.", release)
        base = f"kernel{version.group(1)}" if os_id == "amzn" and version and ".amzn2023." in release and \
            version.group(1) != "6.1" else "kernel"
        middle = f"-{flavour}" if flavour else ""
        return f"{base}{middle}-devel-{_PLUS.sub('', release)}"
    return None


def newest_kernel(root: Root, release: str, family: str | None) -> str | None:
    """The newest kernel in /boot, which boots next; None if /boot has no kernel, as in containers.

    GRUB sorts the kernels of all flavours by version (grub-mkconfig). In the Red Hat family, only kernels of the same
    flavour as the running one count (C(DEFAULTKERNEL) in /etc/sysconfig/kernel). Rescue images do not count.
    """
    kernels = installed_kernels(root)
    if family == "redhat":
        kernels = [name for name in kernels if flavour_of(name, family) == flavour_of(release, family)]
    return newest(kernels) if kernels else None


def installed_kernels(root: Root) -> list[str]:
    """The releases of the kernels in /boot, without rescue images."""
    names = [name[len("vmlinuz-"):] for name in root.names("/boot") if name.startswith("vmlinuz-")]
    return [name for name in names if name[:1].isdigit() and not name.startswith("0-rescue")]


def newest(releases: t.Iterable[str]) -> str:
    """The kernel with the highest version."""
    return max(releases, key=_order)


def next_kernel(root: Root, release: str, family: str | None) -> str | None:
    """The kernel that boots next, None if it is the running one or unknown."""
    newest = newest_kernel(root, release, family)
    return newest if newest != release else None


def _order(release: str) -> t.Tuple[t.Tuple[int, int, str], ...]:
    """The sort key of a version. Numbers are compared by value, and sort after words."""
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[a-z]+", release))
