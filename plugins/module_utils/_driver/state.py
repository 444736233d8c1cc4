# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of the driver on a host: modules, DKMS, libraries, services, GPU clients."""

from __future__ import annotations

import os
import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import Model, fabric_of, model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import owner_of, read_clients
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.device_nodes import node_faults
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import has_headers, read_os, secure_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.versions import library_version, loaded_version
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import (
    FABRIC_MANAGER,
    GRIDD,
    IMEX,
    PERSISTENCED,
    Service,
    read_units,
)

# Services that use GPUs or NVSwitches, in the order of stopping (NVIDIA/gpu-driver-container). NVLSM has no unit of its
# own; the unit of the fabric manager starts it.
SERVICES = ("nvidia-dcgm-exporter.service", "nvidia-dcgm.service", "nvidia-topologyd.service", GRIDD, IMEX,
            FABRIC_MANAGER, PERSISTENCED)
# In the order of unloading (NVIDIA/nvidia-installer, conflicting-kernel-modules.c).
UNLOAD_ORDER = ("nv_peer_mem", "nvidia_peermem", "nvidia_vgpu_vfio", "nvidia_fs", "gdrdrv", "nvidia_uvm", "nvidia_drm",
                "nvidia_modeset", "nvidia")
# Modules to which a console or display holds a reference.
_DISPLAYS = dict.fromkeys(("nvidia_drm", "nvidia_modeset"), " (a console or display)")
# The modules for compute work, in the order of loading (NVIDIA/gpu-driver-container).
LOAD_ORDER = ("nvidia", "nvidia_uvm", "nvidia_modeset")


@dataclass(frozen=True)
class DriverState:
    """The state of the driver on a host, read without NVML.

    family: the family of the distribution, such as C(debian). headers: whether the headers of the running kernel are
    installed. gpus: C((PCI address, model)) of each GPU. loaded, flavour: the version and type of the loaded module.
    library: the version of libnvidia-ml. modules: loaded modules of the driver. built: driver versions that DKMS has
    installed for the running kernel. registered: C({driver version: name in DKMS}). nouveau: None, C(installed),
    C(loaded) or C(used). secure_boot: None if unknown. services: the state of L(SERVICES). fabric: C(none),
    C(nvswitch), C(nvlink5) or C(nvlink5_rack), see L(_devices.Model.fabric). nodes: device nodes with faults, see
    L(device_nodes.node_faults).
    """

    os_id: str
    os_version: str
    family: str
    arch: str
    kernel: str
    headers: bool
    secure_boot: bool | None
    gpus: t.Tuple[tuple[str, Model | None], ...]
    loaded: str | None
    flavour: str | None
    library: str | None
    modules: t.Tuple[str, ...]
    built: t.Tuple[str, ...]
    registered: t.Mapping[str, str]
    nouveau: str | None
    services: t.Mapping[str, Service]
    fabric: str = "none"
    nodes: t.Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The state in the form that the module returns."""
        return {"loaded": self.loaded, "flavour": self.flavour, "library": self.library, "built": list(self.built),
                "modules": list(self.modules), "persistenced": self.services[PERSISTENCED].state}


def read_driver_state(root: Root, run: Runner) -> DriverState:
    """Reads the state from files and from one systemctl command."""
    release = read_os(root)
    kernel = root.text("/proc/sys/kernel/osrelease") or ""
    arch = os.uname().machine
    loaded_modules = set(root.names("/sys/module"))
    loaded = loaded_version(root)
    built, registered = read_dkms(root, kernel, arch)
    bus = read_bus(root)
    gpus = tuple((gpu.address, model_of(gpu.device, gpu.subsystem)) for gpu in bus.gpus)
    return DriverState(
        os_id=release["id"] or "", os_version=release["version_id"] or "", family=release["family"] or "", arch=arch,
        kernel=kernel, headers=has_headers(root, kernel), secure_boot=secure_boot(root),
        gpus=gpus,
        loaded=loaded, flavour=_flavour(root) if loaded else None, library=library_version(root),
        modules=tuple(name for name in UNLOAD_ORDER if name in loaded_modules), built=built, registered=registered,
        nouveau=_nouveau(root, kernel, any(gpu.driver == "nouveau" for gpu in bus.gpus)),
        services=read_services(run),
        fabric=fabric_of((model for _address, model in gpus), len(bus.switches)),
        nodes=(node_faults(root) or {}) if loaded else {})


def read_dkms(root: Root, kernel: str, arch: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The driver in DKMS: C((versions installed for the kernel, {registered version: name in DKMS}))."""
    # The name is nvidia-srv in Ubuntu's archive, and nvidia-current or nvidia-current-open in Debian's.
    entries = [entry for entry in dkms.read_dkms(root, arch)
               if re.match(r"nvidia(-srv|-current)?(-open)?\Z", entry["name"])]
    built = (entry["version"] for entry in entries if (entry["kernel"], entry["state"]) == (kernel, "installed"))
    return tuple(built), {entry["version"]: entry["name"] for entry in entries}


def modinfo(run: Runner, field: str, kernel: str) -> str:
    """A field of the module file that a kernel would load as nvidia, empty if there is no such file.

    The file names in Debian's archive differ, but the loaded module is always called nvidia.
    """
    for name in ("nvidia", "nvidia-current", "nvidia-current-open"):
        value = run(["modinfo", "-k", kernel, "-F", field, name], check=False).stdout.strip()
        if value:
            return value
    return ""


def wrong_module(kernel: str, found: str, version: str) -> str:
    """The message if a kernel would not load this driver version. found: the version that it would load, or empty."""
    other = f"nvidia {found}" if found else "no module"
    return f"Kernel {kernel} would load {other} instead of nvidia {version}."


def module_flavour(run: Runner, kernel: str) -> str | None:
    """The type of the module file for a kernel, C(open) or C(proprietary); None if there is no module file."""
    text = modinfo(run, "license", kernel)
    return ("open" if "MIT" in text else "proprietary") if text else None


def read_services(run: Runner, units: t.Sequence[str] = SERVICES) -> dict[str, Service]:
    """The state of each unit, read with one systemctl command."""
    return read_units(run, units)


# Each open character device refers to its module twice: by its operations and by its number (kernel: fs/char_dev.c,
# chrdev_open).
_PER_FILE = 2
# The modules of those device files that do not belong to the module nvidia.
_NODES = {"/dev/nvidia-uvm": "nvidia_uvm", "/dev/nvidia-uvm-tools": "nvidia_uvm",
          "/dev/nvidia-modeset": "nvidia_modeset"}


def read_holders(root: Root) -> list[dict[str, t.Any]]:
    """The holders that prevent the unload of the modules: C([{pid, name, gpu, instance, unit, container}]).

    These are the processes that have a GPU open, except those of L(SERVICES), which steps of the plan stop. Other
    modules that use modules of the driver are entries without pid. If there are neither processes nor such modules, but
    a module is in use (by a display, an invisible process, a kernel client), one entry without pid contains this
    module.

    This function is slow, because it reads the open files of all processes: call it only if modules must be unloaded.
    """
    gpus = {}
    for address in root.names("/proc/driver/nvidia/gpus"):
        text = root.text(f"/proc/driver/nvidia/gpus/{address}/information") or ""
        found = re.search(r"^Device Minor:\s*(\d{1,9})\b", text, re.M)
        if found:
            gpus[int(found.group(1))] = address
    clients = read_clients(root, gpus)
    owners = {pid: owner_of(root, pid) for pid in {client["pid"] for client in clients}}
    named = [{**client, **owners[client["pid"]]} for client in clients
             if owners[client["pid"]]["unit"] not in SERVICES]
    named += [_without_process(f"the kernel module {name}, which uses {module}") for module in UNLOAD_ORDER
              for name in root.names(f"/sys/module/{module}/holders") if name not in UNLOAD_ORDER]
    if named:
        return named
    service_pids = [pid for pid in owners if owners[pid]["unit"] in SERVICES]
    return [_without_process(f"something that refers to {module}{_DISPLAYS.get(module, '')}") for module in UNLOAD_ORDER
            if _references(root, module) > _PER_FILE * _open_devices(root, service_pids, module)]


def name_holders(holders: t.Iterable[t.Mapping[str, t.Any]]) -> str:
    """The GPU clients as text, such as C(python (pid 4711, train.service) on 0000:07:00.0 instance 3)."""
    return ", ".join(map(_name, holders))


def _name(holder: t.Mapping[str, t.Any]) -> str:
    identifiers = [f"pid {holder['pid']}" if holder["pid"] else "", holder["unit"] or "",
                   f"container {holder['container']}" if holder["container"] else ""]
    about = ", ".join(filter(None, identifiers))
    instance = "" if holder["instance"] is None else f" instance {holder['instance']}"
    where = f" on {holder['gpu']}{instance}" if holder["gpu"] else ""
    return f"{holder['name']}{f' ({about})' if about else ''}{where}"


def _without_process(name: str) -> dict[str, t.Any]:
    return {"pid": None, "name": name, "gpu": None, "instance": None, "unit": None, "container": None}


def _references(root: Root, module: str) -> int:
    """The number of references to a module, except those from other modules (kernel: module_refcount)."""
    return _refcount(root, module) - len(root.names(f"/sys/module/{module}/holders"))


def _refcount(root: Root, module: str) -> int:
    """The reference count of a module: 0 if the kernel exposes none, 1 (in use) if it is not a number."""
    text = root.text(f"/sys/module/{module}/refcnt") or "0"
    return int(text) if re.match(r"-?[0-9]{1,10}\Z", text) else 1


def _open_devices(root: Root, pids: t.Iterable[int], module: str) -> int:
    """The number of open device files of a module."""
    links = [root.link(f"/proc/{pid}/fd/{number}") or "" for pid in pids for number in root.names(f"/proc/{pid}/fd")]
    return sum(link.startswith("/dev/nvidia") and _NODES.get(link, "nvidia") == module for link in links)


def _flavour(root: Root) -> str:
    text = root.text("/proc/driver/nvidia/version") or ""
    return "open" if "Open Kernel Module" in text else "proprietary"


def _nouveau(root: Root, kernel: str, bound: bool) -> str | None:
    """The state of nouveau, as in L(DriverState). C(used) means that a console or a display holds a reference to it."""
    if "nouveau" in root.names("/sys/module"):
        return "used" if _refcount(root, "nouveau") > 0 else "loaded"
    if bound:
        return "loaded"
    index = root.text(f"/lib/modules/{kernel}/modules.dep") or ""
    return "installed" if "/nouveau.ko" in index else None
