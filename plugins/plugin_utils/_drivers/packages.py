# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages and repositories of drivers for each system. Pure. PRIVATE.

The names of packages are defined in C(module_utils/_driver), which installs them. This file contains the branches and
flavours of each repository, so that no repository has to be read. Sources: NVIDIA Driver Installation Guide 580 to 620;
Ubuntu Server documentation, "NVIDIA drivers installation"; package lists of Debian 12 and 13.
"""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_deb import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import (
    OPEN_ONLY,
    SUSE,
    SUSE_FROM,
    SUSE_OPEN_FROM,
    CudaRpm,
    folder_of,
    machine_of,
    stream_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gpudirect import wanted_extras, wanted_tools
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import COMPUTE, FULL, Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import headers_package
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Kernel

System = t.Tuple[str, str]

# The only branch in the archive of each release of Debian.
_DEBIAN = {"12": 535, "13": 550}
# The oldest branch with packages for each release of Ubuntu; packages of older branches are transitional packages.
_UBUNTU = {"22.04": 535, "24.04": 535, "26.04": 580}
# Kernel flavours for which Canonical builds and signs modules (linux-modules-nvidia-*).
_CANONICAL = ("generic", "lowlatency", "aws", "azure", "azure-fde", "gcp", "gke", "ibm", "nvidia", "oem", "oracle")
# The kinds of packages that each fabric needs.
FABRIC = {"nvswitch": ("fabric_manager",), "nvlink5": ("fabric_manager", "nvlsm")}


def folder(system: System) -> str | None:
    """The folder of NVIDIA's network repository for a system (ID, VERSION_ID of os-release), None if there is none."""
    ours = CudaRepository.for_distribution(*system, "x86_64")
    return ours.folder if ours else folder_of(*system)


def publishes(system: System, source: str, flavour: str, branch: int) -> bool:
    """Whether a source publishes modules of a flavour and branch that are built on the host."""
    place = folder(system)
    if source == "distribution":
        return system[0] == "ubuntu" and system[1] in _UBUNTU or (
            system[0] == "debian" and _DEBIAN.get(system[1].split(".")[0]) == branch)
    if place is None or place in SUSE and source == "cuda_repository" and branch < SUSE_FROM:
        return False
    if flavour == "open" or place not in (*OPEN_ONLY, *SUSE):
        return True
    return place in SUSE and (branch < SUSE_OPEN_FROM or source == "runfile")


def signed(system: System, kernel_flavour: str | None, branch: int) -> bool:
    """Whether the distribution publishes signed modules of a branch for its kernels. kernel_flavour: None for any
    kernel.

    Canonical's archive contains production and long-term branches.
    """
    first = _UBUNTU.get(system[1]) if system[0] == "ubuntu" else None
    known = releases.branch(branch)
    kept = first is not None and branch >= first and known is not None and known.kind in ("long_term", "production")
    return kept and (kernel_flavour is None or kernel_flavour in _CANONICAL)


def limits(system: System) -> str:
    """The drivers for which L(publishes) is true on a system, as the end of the sentence "it has ..."."""
    place = folder(system)
    if place in OPEN_ONLY:
        return "open kernel modules only"
    if place in SUSE:
        return (f"drivers from the vendor only, packages for DKMS from branch {SUSE_FROM} on, and open kernel modules "
                f"only from branch {SUSE_OPEN_FROM} on")
    if system[0] == "debian":
        return f"driver branch {_DEBIAN.get(system[1].split('.')[0])} only in its archive"
    return "drivers from the vendor only"


def has_container(system: System, arch: str) -> bool:
    """Whether the vendor publishes driver containers of a system for a machine architecture.

    Source: GPU Operator 26.7, platform support (the containers for RHEL 9 are for x86_64 only).
    """
    return arch == "x86_64" or not (system[0] == "rhel" and system[1].split(".")[0] == "9")


def provides_all(system: System | None, arch: str, source: str, version: str, kinds: t.Collection[str]) -> bool:
    """Whether the source of the driver provides all kinds of L(companions). A .run file contains only the driver."""
    return source != "runfile" and (system is None or all(
        companions(system, arch, source, version, (kind,)) for kind in kinds))


@functools.lru_cache(maxsize=4096)
def companions(system: System, arch: str, source: str, version: str,
               kinds: t.Tuple[str, ...]) -> dict[str, str | None]:
    """The vendor versions of the additional packages of a driver by package name, None for any version. version: a
    version or a branch."""
    origin = _source(system, arch, source)
    return {} if origin is None else origin.companions(version, kinds)


@functools.lru_cache(maxsize=4096)
def packages_to_install(system: System, arch: str, source: str, version: str, flavour: str, spec: Spec, fabric: str,
                        kernels: t.Tuple[str, ...]) -> tuple[str, ...]:
    """The packages to install, without their dependencies.

    version: a version or a branch; spec: the additional services and modules; fabric: as in C(_driver.parts.Aim);
    kernels: the kernel releases for which precompiled modules may exist.
    """
    if source == "runfile":
        return ()
    beside = (*companions(system, arch, source, version, tuple(wanted_extras(spec, fabric))),
              *wanted_tools(spec, fabric))
    found = source_of(source, *system, arch)
    if found is None:
        return ("nvidia-open" if flavour == "open" else "cuda-drivers", *beside)
    return (*found.packages(version, flavour, spec.persistenced, spec.installation),
            *found.modules(version, flavour, kernels), *beside)


class Repository(t.TypedDict):
    """A folder of NVIDIA's network repository. arch: the architecture in its path; stream: the stream of the dnf
    module, None if there is none."""

    name: str
    arch: str
    stream: t.Optional[str]


def repository(system: System, arch: str, source: str, branch: int, flavour: str) -> Repository | None:
    """The repository of a driver, None for sources without one."""
    place = folder(system)
    if source != "cuda_repository" or place is None:
        return None
    return {"name": place, "arch": machine_of(place, arch), "stream": stream_of(place, branch, flavour)}


def kernel_packages(kernel: Kernel, family: str, system: System, following: bool) -> list[str]:
    """The packages that are needed to build modules. following: whether to include those for the kernel of the next
    boot."""
    release, newest = kernel["release"], kernel["newest_installed"]
    name = kernel["headers_package"] or (headers_package(release, family, system[0]) if release else None)
    coming = headers_package(newest, family, system[0]) if following and newest and newest != release else None
    return [str(one) for one in (name, coming) if one]


def installations(system: System, arch: str, source: str) -> tuple[str, ...]:
    """The values of driver_installation besides auto that a source has on a system."""
    found = source_of(source, *system, arch)
    return found.installations if found else (FULL, COMPUTE)


def installed_set(system: System, arch: str, source: str, installed: t.Collection[str]) -> str:
    """The value of driver_installation for the installed packages, C(auto) if it is unknown."""
    found = source_of(source, *system, arch)
    return found.installation(installed) if found else "auto"


def can_install(system: System, arch: str, source: str) -> bool:
    """Whether the module nvidia_driver can install a driver from a source on a system."""
    return source == "runfile" or source_of(source, *system, arch) is not None


def _source(system: System, arch: str, name: str) -> Source | None:
    """The source, None if it has no packages for the system. The vendor's source is also returned for systems that
    nvidia_driver does not support, because its packages have the same names there."""
    found = source_of(name, *system, arch)
    place = folder_of(*system)
    return CudaRpm(place, arch) if found is None and place and name == "cuda_repository" else found
