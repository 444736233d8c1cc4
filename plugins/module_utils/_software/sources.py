# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the software beside the driver comes from: for the module, and for the plan that leaves it out. Pure.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_repository import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import CudaRpm
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source


def source_for(os_id: str, os_version: str, arch: str) -> Source | None:
    """NVIDIA's repository for a system (ID and VERSION_ID of os-release), None where nothing is installed from it.

    SUSE's is read for drivers alone.
    """
    made = (kind.for_distribution(os_id, os_version, arch) for kind in (CudaRepository, CudaRpm))
    return next((source for source in made if source is not None), None)
