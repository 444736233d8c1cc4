# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of any host in the complete structure of gpu_info, for tests of code that uses facts."""

from __future__ import annotations

import copy
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import flavour_of, headers_package
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import packages

Facts = t.Dict[str, t.Any]  # read by Python 3.8, too

_FAMILIES = {"ubuntu": "debian", "debian": "debian", "rhel": "redhat", "rocky": "redhat", "almalinux": "redhat",
             "centos": "redhat", "fedora": "redhat", "amzn": "redhat", "ol": "redhat", "azurelinux": "redhat",
             "rhcos": "redhat", "sles": "suse", "sl-micro": "suse"}
_CODENAMES = {"ubuntu20.04": "focal", "ubuntu22.04": "jammy", "ubuntu24.04": "noble", "ubuntu26.04": "resolute",
              "debian12": "bookworm", "debian13": "trixie"}
# NVSwitch bridges that a whole board of these has: PCI device id and count (A100 and H100 boards of eight).
_SWITCHES = {"20b0": ("1af1", 6), "20b2": ("1af1", 6), "2330": ("22a3", 4), "2335": ("22a3", 4)}
MODULES = ("nouveau", "nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs", "gdrdrv",
           "nvidia_vgpu_vfio", "vfio_pci", "ib_umad", "mlx5_core")


def facts(gpus: t.Sequence[str | Facts] = ("20b2",) * 8, os: str = "ubuntu24.04", kernel: str = "6.8.0-45-generic",
          arch: str = "x86_64", secure_boot: bool | None = False, **overrides: t.Any) -> Facts:
    """A bare host with containerd, kernel headers, no driver, and these GPUs.

    gpus: device ids (C(20b2), or with its board C(20b2 10de:1463)) or whole GPU facts. os: id and version as os-release
    has them. Eight A100 or H100 SXM bring their NVSwitches. overrides: what is laid over it, mappings key by key:
    ``facts(host={"kernel": {"headers": False}}, driver={"loaded": "580.126.20"})``. A key that facts do not have is
    a KeyError, so that a test cannot rest on a misspelt one.
    """
    system = re.fullmatch(r"([a-z-]+)([\d.]*)", os)
    if system is None:
        raise ValueError(f"{os!r} is not an id and a version such as ubuntu24.04")
    os_id, version = system[1], system[2] or None
    family = _FAMILIES.get(os_id, "other")
    boards = [_gpu(index, one) if isinstance(one, str) else copy.deepcopy(one) for index, one in enumerate(gpus)]
    made: Facts = {
        "schema": 3,
        "host": {
            "hostname": "gpu-1", "arch": arch, "machine": "PowerEdge XE9680", "vendor": "Dell Inc.", "virtual": None,
            "cloud": None, "secure_boot": secure_boot, "lockdown": "integrity" if secure_boot else "none",
            "mok": {"tool": family != "other", "enrolled": False if secure_boot else None},
            "os": {"id": os_id, "version_id": version, "codename": _CODENAMES.get(os), "family": family,
                   "pretty_name": os},
            "kernel": {"release": kernel, "headers": True, "flavour": flavour_of(kernel, family),
                       "headers_package": headers_package(kernel, family, os_id), "headers_available": None,
                       "newest_installed": kernel},
            "markers": {"dgx": None, "kubernetes": None, "immutable": False},
        },
        "gpus": boards,
        "nvswitches": _switches(boards),
        "xids": [],
        "mellanox": False,
        "nvlink": {"switches": len(_switches(boards)), "fabric": _fabric(boards)},
        "vgpu": None,
        "driver": {"loaded": None, "flavour": None, "library": None, "packages": {}, "source": None, "dkms": [],
                   "reboot_pending": False, "missing_files": [], "nodes": None, "services": None,
                   "nvml": {"available": False, "error": None, "cuda": None}},
        "modules": {**dict.fromkeys(MODULES, False), "nouveau_denied": False},
        "runtimes": {"containerd": {"version": "1.7.28", "running": True, "boot": "yes", "stale": False,
                                    "cri": True, "nvidia": False, "classes": []},
                     "docker": None, "crio": None, "podman": None},
        "rootless": {},
        "toolkit": {"version": None, "packages": {}, "missing_files": [], "cdi_specs": [], "cdi": None},
        "software": {"cuda": {}, "dcgm": None, "dcgm_exporter": None, "node_status_exporter": None},
        "journals": {"brought": [], "faults": [], "former_driver": None},
        "mig_boot": {"enabled": False, "masked": False, "gpus": None, "vendor": None},
        "clients": [],
    }
    _lay_over(made, overrides, "facts")
    return made


def driven(base: Facts, version: str, flavour: str = "open", source: str = "cuda_repository") -> Facts:
    """A copy of the facts with this driver installed, loaded, and visible in NVML."""
    made = copy.deepcopy(base)
    made["driver"].update(loaded=version, library=version, flavour=flavour, source=source,
                          packages=_packages(made, version, flavour, source),
                          nvml={"available": True, "error": None, "cuda": None})
    made["modules"].update(nvidia=True, nvidia_uvm=True, nvidia_modeset=True)
    for index, gpu in enumerate(made["gpus"]):
        gpu.update(kernel_driver="nvidia", index=index, minor=index, uuid=f"GPU-00000000-0000-4000-8000-{index:012d}",
                   mig={"enabled": False, "pending": False, "instances": []} if gpu["mig_capable"] else None)
    return made


def _packages(made: Facts, version: str, flavour: str, source: str) -> dict[str, str]:
    """The packages of the vendor's repository; none if the driver is from another source."""
    system = made["host"]["os"]
    if source != "cuda_repository" or not system["id"]:
        return {}
    names = packages.packages_to_install(
        (system["id"], system["version_id"] or ""), made["host"]["arch"], source, version, flavour, Spec(),
        made["nvlink"]["fabric"], (made["host"]["kernel"]["release"],))
    return dict.fromkeys(names, f"{version}-1")


def _gpu(index: int, text: str) -> Facts:
    device, _separator, board = text.partition(" ")
    model = model_of(device, board or None)
    return {
        "pci": f"0000:{7 + 8 * index:02x}:00.0", "device_id": device, "subsystem": board or None, "class": "0302",
        "model": model.name if model else None, "architecture": model.architecture if model else None,
        "mig_capable": model.mig_capable if model else False, "kernel_driver": None, "index": None, "uuid": None,
        "minor": None, "serial": None, "memory_mib": None,
        "compute_capability": "{}.{}".format(*model.compute_capability) if model else None,
        "mig": None, "fabric": None, "health": None, "error": None,
    }


def _switches(gpus: t.Sequence[Facts]) -> list[Facts]:
    device, count = _SWITCHES.get(gpus[0]["device_id"], ("", 0)) if len(gpus) >= 8 else ("", 0)
    return [{"pci": f"0000:c{number}:00.0", "device_id": device} for number in range(count)]


def _fabric(gpus: t.Sequence[Facts]) -> str:
    kinds = {gpu["device_id"] for gpu in gpus}
    if kinds & {"2901", "3182"}:
        return "nvlink5"
    return "nvlink5_rack" if kinds & {"2941", "31c2"} else "nvswitch" if _switches(gpus) else "none"


def _lay_over(base: Facts, over: t.Mapping[str, t.Any], where: str) -> None:
    for key, value in over.items():
        if key not in base and not where.endswith(".packages"):
            raise KeyError(f"{where} have no {key!r}")
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _lay_over(base[key], value, f"{where}.{key}")
        else:
            base[key] = copy.deepcopy(value)
