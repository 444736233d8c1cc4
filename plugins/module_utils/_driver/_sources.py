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
    """A package source on one distribution."""

    name: str

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


SOURCES: t.Dict[str, t.Callable[[str, str, str], Source | None]] = {
    "cuda_repository": CudaRepository.for_distribution,
}


def source_for(wanted: str, os_id: str, os_version: str, arch: str) -> Source:
    """The source for a distribution (ID and VERSION_ID of os-release) and machine (C(x86_64), C(aarch64)).

    wanted: an option value; C(auto) takes the first that serves this distribution. Raises InputError.
    """
    found = {}
    for name, make in SOURCES.items():
        source = make(os_id, os_version, arch)
        if source is not None:
            found[name] = source
    chosen = next(iter(found.values()), None) if wanted == "auto" else found.get(wanted)
    if chosen is None:
        raise InputError(f"Drivers cannot be installed from source '{wanted}' on {os_id} {os_version} ({arch}) yet.",
                         f"Supported there: {', '.join(found) or 'none'}. With state adopted, an installed driver is "
                         "verified and left alone.", path="source", value=wanted, allowed=list(found))
    return chosen
