# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where drivers come from: the registry of package sources.

A new source is one file with a class of L(source.Source) and one line in L(SOURCES).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.archive import (
    DebianArchive,
    UbuntuArchive,
    UbuntuSigned,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_repository import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import CudaRpm
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_suse import CudaSuse
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

Make = t.Callable[[str, str, str], t.Optional[Source]]
# By the name of the option; of several under one name the first that serves a distribution.
SOURCES: t.Dict[str, t.Tuple[Make, ...]] = {
    "cuda_repository": (CudaRepository.for_distribution, CudaRpm.for_distribution,
                        CudaSuse.for_distribution),
    "distribution": (UbuntuArchive.for_distribution, DebianArchive.for_distribution),
    "precompiled": (UbuntuSigned.for_distribution,),
}


def source_of(name: str, os_id: str, os_version: str, arch: str) -> Source | None:
    """The source of a name on a distribution (ID and VERSION_ID of os-release) and machine (C(x86_64), C(aarch64))."""
    made = (make(os_id, os_version, arch) for make in SOURCES.get(name, ()))
    return next((source for source in made if source is not None), None)


def all_sources(os_id: str, os_version: str, arch: str) -> list[Source]:
    """The sources that serve a distribution, the best first."""
    return [source for source in (source_of(name, os_id, os_version, arch) for name in SOURCES) if source is not None]


def sources_for(wanted: str, os_id: str, os_version: str, arch: str) -> list[Source]:
    """The sources that may be used there, the best first, at least one.

    wanted: an option value; C(auto) is all that serve this distribution. Raises InputError.
    """
    every = all_sources(os_id, os_version, arch)
    chosen = [source for source in every if wanted in ("auto", source.name)]
    if not chosen:
        known = [source.name for source in every]
        raise InputError(f"Drivers cannot be installed from source '{wanted}' on {os_id} {os_version} ({arch}) yet.",
                         f"Supported there: {', '.join(known) or 'none'}. With state adopted, an installed driver is "
                         "verified and left alone.", path="source", value=wanted, allowed=known)
    return chosen
