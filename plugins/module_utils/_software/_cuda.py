# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkit of a level, from NVIDIA's repository. PRIVATE to the collection.

Source: CUDA Installation Guide for Linux 13 (packages by level, the link /usr/local/cuda kept by update-alternatives);
CUDA Compatibility (minor version compatibility).
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software._base import Host, Options, Wish

PROFILE = "/etc/profile.d/gpuops-cuda.sh"
_LEVEL = re.compile(r"(\d+)\.(\d+)(\.\d+\S*)?\Z")
_PROFILE_TEXT = b"""\
# Written by gpuops.nvidia: the CUDA toolkit's programs on the path.
PATH="${PATH:+$PATH:}/usr/local/cuda/bin"
export PATH
"""


class Cuda:
    """Implements C(_base.Component)."""

    name = "cuda"
    unit = ""

    @staticmethod
    def wish(options: Options, host: Host) -> Wish:
        """See L(_base.Component). version: a level (C(13.0)), or a release of one (C(13.0.2))."""
        version = str(options["version"])
        found = _LEVEL.match(version)
        if found is None:
            raise InputError(f"'{version}' is no CUDA level.", "Give one such as 13.0, or a release such as 13.0.2.",
                             path="cuda.version", value=version)
        major, minor = int(found.group(1)), int(found.group(2))
        return Wish(packages={f"cuda-toolkit-{major}-{minor}": version if found.group(3) else None},
                    files={PROFILE: _PROFILE_TEXT} if options.get("profile") else {},
                    reasons=_compatible(major, minor, host))


def _compatible(major: int, minor: int, host: Host) -> list[str]:
    """Programs run on a driver of the same major level, those built for a newer minor one with limits."""
    if host.cuda is None:
        return ["no driver is installed, so its CUDA level was not compared"]
    has = [int(part) for part in host.cuda.split(".")[:2]]
    if major > has[0]:
        raise InputError(f"CUDA {major}.{minor} does not run on this host's driver, whose level is {host.cuda}.",
                         f"Install a newer driver first, or a toolkit up to {has[0]}.x.", path="cuda.version",
                         value=f"{major}.{minor}", allowed=f"up to {has[0]}.x")
    if [major, minor] > has:
        return [f"CUDA {major}.{minor} runs on this driver ({host.cuda}) by minor version compatibility: what needs a "
                "newer driver fails"]
    return []
