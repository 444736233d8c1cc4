# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package repository of the software components."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_deb import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import CudaRpm
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source


def source_for(os_id: str, os_version: str, arch: str) -> Source | None:
    """NVIDIA's repository for a distribution, None if the collection does not support the repository for it (SUSE).

    os_id, os_version: ID and VERSION_ID of os-release.
    """
    sources = (kind.for_distribution(os_id, os_version, arch) for kind in (CudaRepository, CudaRpm))
    return next((source for source in sources if source is not None), None)
