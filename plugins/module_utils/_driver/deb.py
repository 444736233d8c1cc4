# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sources of Debian's packages share: names that exist once a branch, and what holds a version."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import debian_key

# Companions of the driver whose names have a branch in some repositories, and in others not; their files collide.
_COMPANIONS = re.compile(r"(?:nvidia-fabricmanager|libnvidia-nscq|nvidia-imex|libnvsdm)(-\d{3})?\Z")
# Packages of one branch; with C(-server) they are of Ubuntu's archive.
BRANCHED = re.compile(r"(?:lib)?nvidia-[a-z][a-z0-9]*(?:-[a-z][a-z0-9]*)*-(\d{3})(-server)?(-open)?(?:-|\Z)")
HOLD_FILE = "/etc/apt/preferences.d/gpuops-driver.pref"


def other_companions(known: t.Iterable[str], suffix: str) -> list[str]:
    """Companions of the driver whose names end otherwise than with the suffix (C(-580), or nothing)."""
    return [name for name, found in ((name, _COMPANIONS.match(name)) for name in known)
            if found and (found.group(1) or "") != suffix]


def newest_first(packages: t.Iterable[tuple[str, t.Sequence[str]]]) -> list[str]:
    """The vendor's versions of Debian packages' versions, newest first, each once."""
    found = {version for _name, versions in packages for version in versions}
    return list(dict.fromkeys(upstream(version) for version in sorted(found, key=debian_key, reverse=True)))


def hold(version: str, names: t.Sequence[str]) -> bytes:
    """Preferences that keep packages at a vendor's version, in all its revisions (apt_preferences(5)).

    Priority 1000, as in the vendor's pinning packages: from there on apt also goes back to it, which a switch to an
    older version needs of the libraries that come along.
    """
    return (f"# Written by gpuops.nvidia: an upgrade must not split modules and libraries.\n"
            f"Package: {' '.join(names)}\nPin: version {version}-*\nPin-Priority: 1000\n").encode()
