# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where drivers come from: the registry of package sources. PRIVATE to the collection.

A new source is one file with a class as L(Source) and one line in L(SOURCES).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._cuda_repository import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import Repository


class Source(t.Protocol):
    """A package source on one distribution. dkms: whether modules are built on the host, or come built."""

    name: str
    dkms: bool

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """The vendor's version of the installed driver."""

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """The vendor's versions of a repository, newest first."""

    def repository(self, spec: Spec) -> Repository:
        """The repository, with the user's values over the vendor's."""

    def packages(self, version: str, flavour: str, persistenced: bool) -> dict[str, str]:
        """The packages to ask for: name to the vendor's version."""

    def pins(self, version: str) -> list[str]:
        """Pinning packages that hold this version, the best first; one is wanted."""


Make = t.Callable[[str, str, str], "Source | None"]
# By the name of the option; of several under one name the first that serves a distribution.
SOURCES: t.Dict[str, t.Tuple[Make, ...]] = {
    "cuda_repository": (CudaRepository.for_distribution,),
}


def source_of(name: str, os_id: str, os_version: str, arch: str) -> Source | None:
    """The source of a name on a distribution (ID and VERSION_ID of os-release) and machine (C(x86_64), C(aarch64))."""
    made = (make(os_id, os_version, arch) for make in SOURCES.get(name, ()))
    return next((source for source in made if source is not None), None)


def sources_for(wanted: str, os_id: str, os_version: str, arch: str) -> list[Source]:
    """The sources that may be used there, the best first, at least one.

    wanted: an option value; C(auto) is all that serve this distribution. Raises InputError.
    """
    every = [source for source in (source_of(name, os_id, os_version, arch) for name in SOURCES) if source is not None]
    chosen = [source for source in every if wanted in ("auto", source.name)]
    if not chosen:
        known = [source.name for source in every]
        raise InputError(f"Drivers cannot be installed from source '{wanted}' on {os_id} {os_version} ({arch}) yet.",
                         f"Supported there: {', '.join(known) or 'none'}. With state adopted, an installed driver is "
                         "verified and left alone.", path="source", value=wanted, allowed=known)
    return chosen
