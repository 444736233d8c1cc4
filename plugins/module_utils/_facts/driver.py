# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of the driver without NVML. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.device_nodes import node_faults
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.dkms import read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.installed_packages import Package
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import driver_packages
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.versions import (
    library_version,
    loaded_version,
    reboot_pending,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import (
    FABRIC_MANAGER,
    GRIDD,
    IMEX,
    PERSISTENCED,
    parse_units,
    show_units,
)

_MODULE_PACKAGES = ("kmod-nvidia", "linux-modules-nvidia", "nvidia-open", "cuda-drivers")
# The modules of NVIDIA, those that may take its devices (nouveau, vfio_pci), and those of GPUDirect.
MODULES = ("nouveau", "nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs", "gdrdrv",
           "nvidia_vgpu_vfio", "vfio_pci", "ib_umad", "mlx5_core")
SERVICES = (PERSISTENCED, FABRIC_MANAGER, IMEX, GRIDD)
# Settings that keep nouveau from being loaded (modprobe.d(5), kernel-command-line(7)).
_DENIED = re.compile(r"^\s*(blacklist\s+nouveau\b|install\s+nouveau\s+/(usr/)?bin/(true|false)\b)", re.M)
_DENIED_AT_BOOT = re.compile(r"\b(modprobe\.blacklist|rd\.driver\.blacklist|module_blacklist)=(\S*,)?nouveau(,|\s|$)"
                             r"|\bnouveau\.modeset=0\b")
_MODPROBE_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
# NVIDIA's driver container mounts its root here.
_CONTAINER_ROOT = "/run/nvidia/driver"


def read_modules(root: Root) -> dict[str, bool]:
    """The fact C(modules): which of MODULES are loaded, and C(nouveau_denied)."""
    loaded = set(root.names("/sys/module"))
    return {**{name: name in loaded for name in MODULES}, "nouveau_denied": nouveau_denied(root)}


def nouveau_denied(root: Root) -> bool:
    """Whether modprobe's configuration or the kernel's command line prevents the loading of nouveau."""
    if _DENIED_AT_BOOT.search(root.text("/proc/cmdline") or ""):
        return True
    return any(_DENIED.search(root.text(f"{folder}/{name}") or "")
               for folder in _MODPROBE_FOLDERS for name in root.names(folder) if name.endswith(".conf"))


def read_driver(root: Root, run: Runner, packages: t.Mapping[str, Package], arch: str) -> Fact:
    """The fact C(driver) of gpu_info without C(nvml) and C(missing_files)."""
    loaded = loaded_version(root)
    library = library_version(root)
    own = driver_packages(packages)
    return {
        "loaded": loaded,
        "flavour": flavour(root, loaded, own),
        "library": library,
        "packages": {name: package.version for name, package in own.items()},
        "source": source(root, own, loaded or library),
        "dkms": read_dkms(root, arch),
        "reboot_pending": reboot_pending(root, loaded, library),
        # The device nodes of a driver container may exist only in the container.
        "nodes": node_faults(root) if loaded and not root.exists(f"{_CONTAINER_ROOT}/usr/bin/nvidia-smi") else None,
        "services": read_services(root, run) if loaded or library or own else None,
    }


def read_services(root: Root, run: Runner) -> dict[str, dict[str, str]] | None:
    """Maps the units of SERVICES to C({state, enabled}), see L(_units.Service); None if systemd does not answer."""
    if not root.exists("/run/systemd/system"):
        return None
    try:
        text = show_units(run, SERVICES)
    except CommandError:
        return None
    return {unit: dict(vars(service)) for unit, service in parse_units(text, SERVICES).items()} if text else None


def flavour(root: Root, loaded: str | None, packages: t.Mapping[str, Package]) -> str | None:
    """C(open) or C(proprietary): that of the loaded module, otherwise of the installed packages; None if unknown."""
    if loaded:
        text = root.text("/proc/driver/nvidia/version") or ""
        if text:
            return "open" if "Open Kernel Module" in text else "proprietary"
    modules = [name for name in packages if "dkms" in name or name.startswith(_MODULE_PACKAGES)]
    if not modules:
        return None
    return "open" if any("open" in name for name in modules) else "proprietary"


def source(root: Root, packages: t.Mapping[str, Package], version: str | None) -> str | None:
    """How the driver was installed, None without a driver.

    C(container): the root of a driver container is mounted. C(cuda_repository), C(distribution): NVIDIA or the
    distribution has built the packages. C(runfile): the log or the uninstaller of the .run installer exists.
    C(preinstalled): none of these, so the driver is part of the system's image.
    """
    if root.exists(f"{_CONTAINER_ROOT}/usr/bin/nvidia-smi"):
        return "container"
    if packages:
        modules = [package for name, package in packages.items() if name.startswith(("nvidia", "libnvidia", "kmod-"))]
        return "distribution" if any(package.from_distribution for package in modules) else "cuda_repository"
    if root.exists("/var/lib/nvidia/log") or (version and root.exists("/usr/bin/nvidia-uninstall")):
        return "runfile"
    return "preinstalled" if version else None
