# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a source of driver packages answers on one distribution."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Repository


def vendor_repository(spec: Spec, name: str, place: str, key: str, fingerprint: str, held: bool = False) -> Repository:
    """The vendor's repository at a place, or a mirror with the values that the user gave. Raises InputError.

    key, fingerprint: empty where there is no second source for them, so that the user gives them.
    """
    given = {option: value for option, value in (spec.repository or {}).items() if value}
    if "key" in given and "fingerprint" not in given:
        raise InputError("A key of your own needs its fingerprint.", "Set repository.fingerprint to its 40 digits.",
                         path="repository.fingerprint")
    values = {"key": key, "fingerprint": fingerprint, "url": place, **given}
    for option, value in values.items():
        if not value:
            raise InputError(f"The {option} of the vendor's repository must be given.",
                             f"Compare {place}{key} with what the vendor publishes.", path=f"repository.{option}")
    return Repository(name, values["url"], values["key"], values["fingerprint"], held=held)


class Source:
    """The names of packages in one repository for one distribution. The base has what is true of most.

    name: as the option C(source) has it. dkms: whether modules are built on the host, or come built and signed.
    """

    name = ""
    dkms = True

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """The vendor's version of the installed driver, None where it is of another source."""
        raise NotImplementedError

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """The vendor's versions of a repository, newest first."""
        raise NotImplementedError

    def repository(self, spec: Spec) -> Repository:
        """The repository, with the user's values over the vendor's."""
        raise NotImplementedError

    def packages(self, version: str, flavour: str, persistenced: bool) -> dict[str, str | None]:
        """The packages to ask for: name to the vendor's version, None for any."""
        raise NotImplementedError

    def modules(self, version: str, flavour: str, kernels: t.Sequence[str]) -> dict[str, str | None]:
        """The packages with modules that come built for these kernels (releases); none where DKMS builds them."""
        return {}

    def followers(self, version: str, flavour: str, known: t.Iterable[str]) -> list[str]:
        """Packages that bring such modules for the next kernels, wanted where the repository has them.

        known: names of installed packages, which tell what the host's kernels follow.
        """
        return []

    def companions(self, version: str, wanted: t.Collection[str]) -> dict[str, str | None]:
        """The packages of what stands beside the driver, name to the vendor's version or None; kinds it lacks left out.

        wanted: of C(fabric_manager), C(nscq), C(nvlsm), C(nvsdm), C(imex), C(gds), C(gdrcopy).
        """
        return {}

    def rivals(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """Of installed packages those that must go in the same transaction and that nothing else would take away."""
        return []

    def pins(self, version: str) -> list[str]:
        """Pinning packages that hold this version, the best first; one is wanted where the repository has it."""
        return []

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """Path to content of files of ours that hold this version and flavour where no pinning package does."""
        return {}

    def ended(self, candidates: t.Mapping[str, t.Sequence[str]], branch: int) -> int | None:
        """The branch that a repository leads to in place of one that has ended, None where it has not."""
        return None
