# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkit, from NVIDIA's repository.

Source: CUDA Installation Guide for Linux 13 (packages by CUDA version, the link /usr/local/cuda kept by
update-alternatives); CUDA Compatibility (minor version compatibility).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import Desired, Host, Options

PROFILE = "/etc/profile.d/gpuops-cuda.sh"
_LEVEL = re.compile(r"(\d{1,9})(?:\.(\d{1,9})(\.\d+\S*)?)?\Z")
_PROFILE_TEXT = b"""\
# Written by gpuops.nvidia: adds the programs of the CUDA toolkit to PATH.
PATH="${PATH:+$PATH:}/usr/local/cuda/bin"
export PATH
"""


class Cuda:
    """Implements C(base.Component)."""

    name = "cuda"
    unit = ""

    @staticmethod
    def desired(options: Options, host: Host) -> Desired:
        """See L(base.Component). version: a CUDA version (C(13.0)), a release (C(13.0.2)), or a major version (C(13)).

        A major version selects its newest minor version. The default is the major CUDA version that the driver
        supports.
        """
        version = str(options.get("version") or host.cuda_major or "")
        if not version:
            raise HostError("The CUDA level is unknown, because no driver is installed.",
                            "Set cuda.version, or install the driver first.")
        match = _LEVEL.match(version)
        if match is None:
            raise InputError(f"'{version}' is not a CUDA level.", "Set one such as 13.0, or a release such as 13.0.2.",
                             path="cuda.version", value=version)
        level = [int(part) for part in match.group(1, 2) if part]
        return Desired(packages={"-".join(["cuda-toolkit", *map(str, level)]): version if match.group(3) else None},
                       files={PROFILE: _PROFILE_TEXT} if options.get("profile") else {},
                       notes=_compatibility_notes(level, host))


def _compatibility_notes(level: t.List[int], host: Host) -> list[str]:
    """Notes about the compatibility with the driver. Raises InputError if the driver only supports a lower major
    version."""
    if host.cuda is None:
        return ["no driver is installed, so its CUDA level was not compared"]
    driver_level = [int(part) for part in host.cuda.split(".")[:2]]
    name = ".".join(map(str, level))
    if level[0] > driver_level[0]:
        raise InputError(f"CUDA {name} does not run on the driver of this host, whose CUDA level is {host.cuda}.",
                         f"Install a newer driver first, or a toolkit up to {driver_level[0]}.x.", path="cuda.version",
                         value=name, allowed=f"up to {driver_level[0]}.x")
    if level > driver_level:
        return [f"CUDA {name} runs on this driver ({host.cuda}) with minor version compatibility: programs that "
                "need a newer driver fail"]
    return []
