# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sources of driver packages, by the values of the option C(source).

A new source requires a file with a subclass of L(source.Source) and an entry in L(SOURCES).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.archive import (
    DebianArchive,
    UbuntuArchive,
    UbuntuSigned,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_deb import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import CudaRpm
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_suse import CudaSuse
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

Constructor = t.Callable[[str, str, str], t.Optional[Source]]
# For each name, the first constructor that supports the distribution is used.
SOURCES: t.Dict[str, t.Tuple[Constructor, ...]] = {
    "cuda_repository": (CudaRepository.for_distribution, CudaRpm.for_distribution,
                        CudaSuse.for_distribution),
    "distribution": (UbuntuArchive.for_distribution, DebianArchive.for_distribution),
    "precompiled": (UbuntuSigned.for_distribution,),
}


def source_of(name: str, os_id: str, os_version: str, arch: str) -> Source | None:
    """The source with a name for a distribution (ID and VERSION_ID of os-release) and architecture (C(x86_64) or
    C(aarch64)), None if there is none."""
    sources = (make(os_id, os_version, arch) for make in SOURCES.get(name, ()))
    return next((source for source in sources if source is not None), None)


def all_sources(os_id: str, os_version: str, arch: str) -> list[Source]:
    """The sources for a distribution, the preferred one first."""
    return [source for source in (source_of(name, os_id, os_version, arch) for name in SOURCES) if source is not None]


def sources_for(wanted: str, os_id: str, os_version: str, arch: str) -> list[Source]:
    """The sources for a distribution that the option allows, the preferred one first.

    wanted: a value of the option C(source). Raises InputError if there is none.
    """
    every = all_sources(os_id, os_version, arch)
    chosen = [source for source in every if wanted in ("auto", source.name)]
    if not chosen:
        known = [source.name for source in every]
        raise InputError(f"Drivers cannot be installed from source '{wanted}' on {os_id} {os_version} ({arch}) yet.",
                         f"Supported there: {', '.join(known) or 'none'}. State adopted only verifies an installed "
                         "driver.", path="source", value=wanted, allowed=known)
    return chosen
