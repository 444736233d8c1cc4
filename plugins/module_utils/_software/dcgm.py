# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DCGM 4 and its service, which replace DCGM 3.

Sources: NVIDIA/DCGM (cmake/packaging.cmake: the split packages and their relations), DCGM User Guide 4, NVIDIA/DCGM
issue 254 (GPUs of Volta and before on branch 580).
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import (
    Desired,
    Host,
    Options,
    check_version,
)

UNIT = "nvidia-dcgm.service"
ADDRESS = ("127.0.0.1", 5555)
# The package of DCGM 3.
DCGM_3 = "datacenter-gpu-manager"
_LAST_OF_VOLTA = 580


class Dcgm:
    """Implements C(base.Component)."""

    name = "dcgm"
    unit = UNIT

    @staticmethod
    def desired(options: Options, host: Host) -> Desired:
        """See L(base.Component). profiling: whether to install the proprietary packages that profiling metrics need."""
        version = options.get("version") or None
        check_version("dcgm", version)
        if host.cuda_major is None:
            raise HostError("The CUDA level for DCGM is unknown, because no driver is installed.",
                            "Install the driver first. In check mode, set driver_cuda.")
        levels = [host.cuda_major]
        if host.cuda_major > 12 and any(model is not None and model.last_branch is not None
                                        and model.last_branch <= _LAST_OF_VOLTA for model in host.models):
            levels.append(12)
        suffixes = ["core", *(f"cuda{level}" for level in levels)]
        if options.get("profiling"):
            suffixes += ["proprietary", *(f"proprietary-cuda{level}" for level in levels)]
        return Desired(packages={f"{DCGM_3}-4-{suffix}": version for suffix in suffixes}, replaced=[DCGM_3], unit=UNIT,
                       address=ADDRESS, needs_driver=True)
