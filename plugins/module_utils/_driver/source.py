# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of the sources of driver packages."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Repository


def vendor_repository(spec: Spec, name: str, url: str, key: str, fingerprint: str, held: bool = False) -> Repository:
    """NVIDIA's repository, with the values of the option C(repository). Raises InputError.

    url: the default URL. key, fingerprint: the default values; empty if no second source confirms them, so that the
    user must set them. held: see L(base.Repository).
    """
    given = {option: value for option, value in (spec.repository or {}).items() if value}
    if "key" in given and "fingerprint" not in given:
        raise InputError("repository.key needs its fingerprint.",
                         "Set repository.fingerprint to the 40 hexadecimal digits.", path="repository.fingerprint")
    values = {"key": key, "fingerprint": fingerprint, "url": url, **given}
    for option, value in values.items():
        if not value:
            raise InputError(f"the {option} of the repository {url} is not known.",
                             f"Set repository.{option}, after a comparison with the key that NVIDIA publishes"
                             f"{f' ({url}{key})' if key else ''}.", path=f"repository.{option}")
    return Repository(name, values["url"], values["key"], values["fingerprint"], held=held)


# The values of the option C(installation). Source: NVIDIA Driver Installation Guide, "Compute-only and Desktop
# Installation". An installation without compute libraries lacks nvidia-smi and libcuda, without which a driver cannot
# be verified here.
FULL, COMPUTE = "full", "compute-only"


class Source:
    """The names and versions of driver packages in one repository, for one distribution.

    name: a value of the option C(source). dkms: whether DKMS builds the modules on the host; otherwise packages contain
    built and signed modules. version: a vendor version such as C(595.91.07). flavour: C(open) or C(proprietary).
    """

    name = ""
    dkms = True
    # The values of the option C(installation) besides C(auto). The first one is installed if the option is C(auto).
    installations: t.Tuple[str, ...] = (COMPUTE, FULL)
    # The names of packages that only the full driver contains: those by which it is recognised, and all that it is
    # installed by.
    _meta = _desktop = re.compile(r"(?!)")

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """The vendor version of the driver from this source, None if not installed. packages: C({name: version})."""
        raise NotImplementedError

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """The vendor versions in a repository, newest first. candidates: C({name: [version]})."""
        raise NotImplementedError

    def repository(self, spec: Spec) -> Repository:
        """The repository, with the values of the option C(repository)."""
        raise NotImplementedError

    def packages(self, version: str, flavour: str, persistenced: bool, installation: str = "auto"
                 ) -> dict[str, str | None]:
        """The packages to install, as C({name: vendor version}), with None for any version. installation: one of
        L(installations), or C(auto) for the first one."""
        raise NotImplementedError

    def installation(self, known: t.Collection[str]) -> str:
        """Which of L(installations) is installed; the first one without a driver, C(auto) for a mixture. known: the
        names of installed packages."""
        if any(self._meta.match(name) for name in known):
            return FULL
        return "auto" if self.installations[0] == COMPUTE and self.surplus(known) else self.installations[0]

    def surplus(self, known: t.Iterable[str]) -> list[str]:
        """The installed packages that make a driver more than compute-only. known: as in L(installation)."""
        return sorted(name for name in known if self._desktop.match(name))

    def modules(self, version: str, flavour: str, kernels: t.Sequence[str]) -> dict[str, str | None]:
        """The packages with prebuilt modules for these kernel releases, as in L(packages).

        Empty if DKMS builds the modules.
        """
        return {}

    def followers(self, version: str, flavour: str, known: t.Iterable[str]) -> list[str]:
        """Optional metapackages that install prebuilt modules for future kernels.

        known: the names of installed packages, including the metapackages of kernels.
        """
        return []

    def companions(self, version: str, wanted: t.Collection[str]) -> dict[str, str | None]:
        """The packages of companions of the driver, as C({name: vendor version}), with None for any version.

        Companions that the source does not provide are omitted.

        wanted: kinds, of C(fabric_manager), C(nscq), C(nvlsm), C(nvsdm), C(imex), C(gds), C(gdrcopy).
        """
        return {}

    def conflicting(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """The installed packages that the transaction must remove. known: the names of installed packages."""
        return []

    def pins(self, version: str) -> list[str]:
        """The names of pinning packages that fix this version, the best first. The first one in the repository is
        installed."""
        return []

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """The files that fix this version and module type without a pinning package, as C({path: content})."""
        return {}

    def successor(self, candidates: t.Mapping[str, t.Sequence[str]], branch: int) -> int | None:
        """The branch that replaces a branch that has reached its end, otherwise None. candidates: see L(offered)."""
        return None
