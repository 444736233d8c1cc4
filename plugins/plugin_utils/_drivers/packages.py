# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages bring a driver on which system, from which repository: for plans and people. Pure. PRIVATE.

Names are those of what installs them (C(module_utils/_driver)). Here stands what is known before anybody asks a
repository: which branches and flavours it has. Sources: NVIDIA Driver Installation Guide 580 to 620; Ubuntu Server
documentation, "NVIDIA drivers installation"; package lists of Debian 12 and 13.
"""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_repository import CudaRepository
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
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.extras import wanted_extras, wanted_tools
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.kernel import headers_package
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases

System = t.Tuple[str, str]

# Debian's archive has one branch a release.
_DEBIAN = {"12": 535, "13": 550}
# Ubuntu releases, and the first branch of which Canonical's archive has more than names that lead to a newer one.
_UBUNTU = {"22.04": 535, "24.04": 535, "26.04": 580}
# Kernels for which Canonical builds and signs modules (linux-modules-nvidia-*).
_CANONICAL = ("generic", "lowlatency", "aws", "azure", "azure-fde", "gcp", "gke", "ibm", "nvidia", "oem", "oracle")
# What a fabric manager runs with, by fabric.
_FABRIC = {"nvswitch": ("fabric_manager",), "nvlink5": ("fabric_manager", "nvlsm")}


def folder(system: System) -> str | None:
    """The folder of NVIDIA's network repository for a system (os-release's ID and VERSION_ID), None without one."""
    ours = CudaRepository.for_distribution(*system, "x86_64")
    return ours.folder if ours else folder_of(*system)


def publishes(system: System, source: str, flavour: str, branch: int) -> bool:
    """Whether a source has modules of this flavour and branch that are built on the host."""
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
    """Whether the distribution has signed modules for its kernels of a flavour; None: for any of its kernels.

    Canonical's archive keeps production and long-term branches.
    """
    first = _UBUNTU.get(system[1]) if system[0] == "ubuntu" else None
    known = releases.branch(branch)
    kept = first is not None and branch >= first and known is not None and known.kind in ("long_term", "production")
    return kept and (kernel_flavour is None or kernel_flavour in _CANONICAL)


def limits(system: System) -> str:
    """What L(publishes) knows of a system that has drivers, in words: it has ..."""
    place = folder(system)
    if place in OPEN_ONLY:
        return "open kernel modules only"
    if place in SUSE:
        return (f"open kernel modules only from branch {SUSE_OPEN_FROM} on, all of them from the vendor, and packages "
                f"that build them by DKMS from {SUSE_FROM} on")
    if system[0] == "debian":
        return f"driver branch {_DEBIAN.get(system[1].split('.')[0])} only in its archive"
    return "drivers from the vendor only"


def has_container(system: System, arch: str) -> bool:
    """Whether the vendor has driver containers of a system for a machine.

    Source: GPU Operator 26.7, platform support (those of RHEL 9 are for x86_64 only).
    """
    return arch == "x86_64" or not (system[0] == "rhel" and system[1].split(".")[0] == "9")


def brings(system: System | None, arch: str, source: str, version: str, kinds: t.Collection[str]) -> bool:
    """Whether all kinds of L(companions) come from where the driver comes from. A .run file brings the driver alone."""
    return source != "runfile" and (system is None or all(
        companions(system, arch, source, version, (kind,)) for kind in kinds))


def has_fabric_manager(system: System | None, arch: str, source: str, version: str, fabric: str) -> bool:
    """Whether a fabric manager of exactly the driver's version, and what it runs, come from there."""
    return brings(system, arch, source, version, _FABRIC[fabric])


@functools.lru_cache(maxsize=4096)
def companions(system: System, arch: str, source: str, version: str,
               kinds: t.Tuple[str, ...]) -> dict[str, str | None]:
    """What stands beside a driver: package to the vendor's version, None for any. version: or a branch."""
    found = _source(system, arch, source)
    return {} if found is None else found.companions(version, kinds)


@functools.lru_cache(maxsize=4096)
def wanted(system: System, arch: str, source: str, version: str, flavour: str, spec: Spec, fabric: str,
           kernels: t.Tuple[str, ...]) -> tuple[str, ...]:
    """The packages to ask for, without those that they bring.

    version: or a branch. spec: what shall stand beside the driver. fabric: as in C(_driver.parts.Aim). kernels: the
    releases for which modules may come built.
    """
    if source == "runfile":
        return ()
    beside = (*companions(system, arch, source, version, tuple(wanted_extras(spec, fabric))),
              *wanted_tools(spec, fabric))
    found = source_of(source, *system, arch)
    if found is None:
        return ("nvidia-open" if flavour == "open" else "cuda-drivers", *beside)
    return (*found.packages(version, flavour, spec.persistenced), *found.modules(version, flavour, kernels), *beside)


def repository(system: System, arch: str, source: str, branch: int, flavour: str) -> dict[str, t.Any] | None:
    """C({name, arch, stream}): the folder, how it calls the machine, the dnf module's stream or None."""
    place = folder(system)
    if source != "cuda_repository" or place is None:
        return None
    return {"name": place, "arch": machine_of(place, arch), "stream": stream_of(place, branch, flavour)}


def kernel_packages(kernel: t.Mapping[str, t.Any], family: str | None, system: System, following: bool) -> list[str]:
    """What modules are built with. kernel: as in the facts; following: whether for the kernel that boots next too."""
    release = str(kernel.get("release") or "")
    name = kernel.get("headers_package") or (headers_package(release, family, system[0]) if release else None)
    newest = kernel.get("newest_installed")
    coming = headers_package(newest, family, system[0]) if following and newest and newest != release else None
    return [str(one) for one in (name, coming) if one]


def installs(system: System, arch: str, source: str) -> bool:
    """Whether the module nvidia_driver can install from this source on this system."""
    return source == "runfile" or source_of(source, *system, arch) is not None


def _source(system: System, arch: str, name: str) -> Source | None:
    """The source; that of the vendor also on a system whose package manager nothing here drives: names are the same."""
    found = source_of(name, *system, arch)
    place = folder_of(*system)
    return CudaRpm(place, arch) if found is None and place and name == "cuda_repository" else found
