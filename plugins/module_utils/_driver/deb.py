# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions for all sources of Debian packages: names with a branch, versions, and the file that fixes versions."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import debian_key

# Companions of the driver. In some repositories, their names contain the branch; packages with and without the branch
# in their names conflict.
_COMPANIONS = re.compile(r"(?:nvidia-fabricmanager|libnvidia-nscq|nvidia-imex|libnvsdm)(-\d{3})?\Z")
# Packages of one branch; those with C(-server) are from Ubuntu's archive.
BRANCHED = re.compile(r"(?:lib)?nvidia-[a-z][a-z0-9]*(?:-[a-z][a-z0-9]*)*-(\d{3})(-server)?(-open)?(?:-|\Z)")
HOLD_FILE = "/etc/apt/preferences.d/gpuops-driver.pref"


def other_companions(known: t.Iterable[str], suffix: str) -> list[str]:
    """The installed companions of the driver whose names do not end with the suffix (such as C(-580), or empty)."""
    return [name for name, found in ((name, _COMPANIONS.match(name)) for name in known)
            if found and (found.group(1) or "") != suffix]


def newest_first(packages: t.Iterable[tuple[str, t.Sequence[str]]]) -> list[str]:
    """The vendor versions of packages, newest first and without duplicates. packages: (name, package versions)."""
    found = {version for _name, versions in packages for version in versions}
    return list(dict.fromkeys(upstream(version) for version in sorted(found, key=debian_key, reverse=True)))


def hold(version: str, names: t.Sequence[str]) -> bytes:
    """The content of a file of preferences that pins packages to a vendor version, in any revision
    (apt_preferences(5)).

    The priority is 1000, as in NVIDIA's pinning packages. With a priority of 1000 or more, apt also downgrades
    packages, which is necessary for the dependencies of an older version.
    """
    return (f"# Written by gpuops.nvidia: upgrades must not change the version of the driver.\n"
            f"Package: {' '.join(names)}\nPin: version {version}-*\nPin-Priority: 1000\n").encode()
