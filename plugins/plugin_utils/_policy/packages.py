# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages bring a driver on which system, from which repository: for plans and people. Pure. PRIVATE.

What installs them decides for itself (C(module_utils/_driver)), whose names are used where it has them. Sources: NVIDIA
Driver Installation Guide 580 to 620; NVIDIA/gpu-driver-container, install scripts of August 2026; Ubuntu Server
documentation, "NVIDIA drivers installation"; package lists of Debian 12 and 13.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._cuda_repository import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._kernel import headers_package
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import matrix

System = t.Tuple[str, str]

_LIKE_RHEL = ("rhel", "rocky", "almalinux", "ol", "centos")
# Folders of NVIDIA's network repository by id and major version, apart from Debian and Ubuntu.
_FOLDERS: dict[tuple[str, str], str] = {
    **{(name, major): f"rhel{major}" for name in _LIKE_RHEL for major in ("8", "9", "10")},
    **{("fedora", major): f"fedora{major}" for major in ("42", "43", "44")},
    ("sles", "15"): "sles15", ("sles", "16"): "suse16", ("opensuse-leap", "15"): "opensuse15",
    ("amzn", "2023"): "amzn2023", ("azurelinux", "3"): "azl3", ("mariner", "2"): "cm2", ("kylin", "10"): "kylin10",
}
# Where modules of dnf choose branch and flavour: NNN-open and NNN-dkms.
_MODULAR = ("rhel8", "rhel9", "amzn2023", "kylin10")
# The vendor supports open modules only.
_OPEN_ONLY = ("azl3",)
# SUSE's packages of this branch and newer ones (G07) have open modules only.
_SUSE, _SUSE_OPEN_FROM = ("sles15", "suse16", "opensuse15"), 595
# Debian's archive has one branch a release.
_DEBIAN = {"12": 535, "13": 550}
# Ubuntu releases, and the first branch of which Canonical's archive has more than names that lead to a newer one.
_UBUNTU = {"22.04": 535, "24.04": 535, "26.04": 580}
# Kernels for which Canonical builds and signs modules (linux-modules-nvidia-*).
_CANONICAL = ("generic", "lowlatency", "aws", "azure", "azure-fde", "gcp", "gke", "ibm", "nvidia", "oem", "oracle")


def folder(system: System) -> str | None:
    """The folder of NVIDIA's network repository for a system (os-release's ID and VERSION_ID), None without one."""
    ours = CudaRepository.for_distribution(*system, "x86_64")
    return ours.folder if ours else _FOLDERS.get((system[0], system[1].split(".")[0]))


def publishes(system: System, source: str, flavour: str, branch: int) -> bool:
    """Whether a source has modules of this flavour and branch that are built on the host."""
    place = folder(system)
    if source == "distribution":
        return system[0] == "ubuntu" and system[1] in _UBUNTU or (
            system[0] == "debian" and _DEBIAN.get(system[1].split(".")[0]) == branch)
    if place is None:
        return False
    if flavour == "open" or place not in (*_OPEN_ONLY, *_SUSE):
        return True
    return place in _SUSE and (branch < _SUSE_OPEN_FROM or source == "runfile")


def signed(system: System, kernel_flavour: str | None, branch: int) -> bool:
    """Whether the distribution has signed modules for its kernels of a flavour; None: for any of its kernels.

    Canonical's archive keeps production and long-term branches.
    """
    first = _UBUNTU.get(system[1]) if system[0] == "ubuntu" else None
    known = matrix.branch(branch)
    kept = first is not None and branch >= first and known is not None and known.kind in ("long_term", "production")
    return kept and (kernel_flavour is None or kernel_flavour in _CANONICAL)


def limits(system: System) -> str:
    """What L(publishes) knows of a system that has drivers, in words: it has ..."""
    place = folder(system)
    if place in _OPEN_ONLY:
        return "open kernel modules only"
    if place in _SUSE:
        return f"open kernel modules only from branch {_SUSE_OPEN_FROM} on, all of them from the vendor"
    if system[0] == "debian":
        return f"driver branch {_DEBIAN.get(system[1].split('.')[0])} only in its archive"
    return "drivers from the vendor only"


def has_container(system: System, arch: str) -> bool:
    """Whether the vendor has driver containers of a system for a machine.

    Source: GPU Operator 26.7, platform support (those of RHEL 9 are for x86_64 only).
    """
    return arch == "x86_64" or not (system[0] == "rhel" and system[1].split(".")[0] == "9")


def has_fabric_manager(source: str, system: System | None, fabric: str) -> bool:
    """Whether a fabric manager of exactly the driver's version comes from where the driver comes from."""
    if source == "distribution":
        # Canonical's archive has no subnet manager (nvlsm), Debian's has no fabric manager at all.
        return fabric == "nvswitch" and system is not None and system[0] == "ubuntu"
    return source != "runfile"


def repository(system: System, arch: str, source: str, branch: int, flavour: str) -> dict[str, t.Any] | None:
    """C({name, arch, stream}): the folder, how it calls the machine, the dnf module's stream or None."""
    place = folder(system)
    if source != "cuda_repository" or place is None:
        return None
    # Amazon Linux alone calls the machine as the kernel does.
    machine = "sbsa" if arch == "aarch64" and place != "amzn2023" else arch
    stream = f"{branch}-{'open' if flavour == 'open' else 'dkms'}" if place in _MODULAR else None
    return {"name": place, "arch": machine, "stream": stream}


def names(system: System, arch: str, source: str, signed: bool, branch: int, flavour: str,
          kernel_flavour: str | None) -> list[str]:
    """The packages to ask for, without those that they bring."""
    opened = "-open" if flavour == "open" else ""
    if source == "runfile":
        return []
    if source == "distribution":
        if system[0] == "debian":
            return [f"nvidia{opened}-kernel-dkms", "nvidia-smi", "libcuda1"]
        if signed:
            return [f"linux-modules-nvidia-{branch}-server{opened}-{kernel_flavour}",
                    f"nvidia-headless-no-dkms-{branch}-server{opened}", f"nvidia-utils-{branch}-server"]
        return [f"nvidia-headless-{branch}-server{opened}", f"nvidia-utils-{branch}-server"]
    ours = CudaRepository.for_distribution(*system, arch)
    if ours is not None:
        return list(ours.packages(str(branch), flavour, True))
    return ["nvidia-open" if flavour == "open" else "cuda-drivers"]


def fabric_names(system: System, arch: str, source: str, version: str, fabric: str | None) -> dict[str, str]:
    """By kind (C(fabric_manager), C(nvlsm), C(imex) ...) the package that goes with a driver on this fabric."""
    if fabric is None or source == "runfile":
        return {}
    branch = matrix.branch_of(version)
    if source == "distribution":
        # Canonical's archive keeps the branch in the names.
        return {"fabric_manager": f"nvidia-fabricmanager-{branch}", "nscq": f"libnvidia-nscq-{branch}"}
    kind = "nvl72" if fabric == "nvlink5_rack" else fabric
    every = matrix.companions(version, arch, "deb" if system[0] in ("debian", "ubuntu") else "rpm")
    return {name: one.package for name, one in every.items() if kind in one.fabric}


def kernel_packages(kernel: t.Mapping[str, t.Any], family: str | None, system: System) -> list[str]:
    """What modules are built with. kernel: as in the facts."""
    release = str(kernel.get("release") or "")
    name = kernel.get("headers_package") or (headers_package(release, family, system[0]) if release else None)
    return [str(name)] if name else []


def installs(system: System, arch: str, source: str) -> bool:
    """Whether the module nvidia_driver can install from this source on this system so far."""
    return source_of(source, *system, arch) is not None
