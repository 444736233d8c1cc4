# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of hosts in the shape of gpu_info, as short to write as possible."""

from __future__ import annotations

import copy
from typing import Any

# model: (device id, subsystem, name, architecture, MIG)
MODELS: dict[str, tuple[str, str | None, str, str, bool]] = {
    "K80": ("102d", None, "Tesla K80", "kepler", False),
    "P40": ("1b38", None, "Tesla P40", "pascal", False),
    "V100": ("1db5", None, "Tesla V100-SXM2-32GB", "volta", False),
    "T4": ("1eb8", "10de:12a2", "Tesla T4", "turing", False),
    "A30": ("20b7", "10de:1532", "NVIDIA A30", "ampere", True),
    "A100": ("20b2", "10de:1463", "NVIDIA A100-SXM4-80GB", "ampere", True),
    "L40S": ("26b9", "10de:1851", "NVIDIA L40S", "ada-lovelace", False),
    "H100": ("2330", "10de:16c1", "NVIDIA H100 80GB HBM3", "hopper", True),
    "GH200": ("2342", "10de:1809", "NVIDIA GH200 480GB", "hopper", True),
    "B200": ("2901", "10de:1999", "NVIDIA B200", "blackwell", True),
    "NEW": ("3fff", None, "", "undefined", False),
}


def facts(*models: str, driver: str | None = None, flavour: str | None = "open", toolkit: str | None = None,
          containerd: bool | None = False, mig: dict[str, int] | None = None, secure_boot: bool = False,
          cdi: bool = True) -> dict[str, Any]:
    """A host with these GPUs. driver: loaded and installed; containerd: None where missing, else whether configured."""
    gpus = []
    for index, name in enumerate(models):
        device_id, subsystem, model, architecture, capable = MODELS[name]
        instances = [] if not mig else [{"gi": 7 + number, "profile": profile, "profile_id": 19, "start": number,
                                         "size": 1, "uuids": [f"MIG-{index}-{number}"]}
                                        for profile, count in mig.items() for number in range(count)]
        gpus.append({
            "pci": f"0000:{7 + index:02x}:00.0", "device_id": device_id, "subsystem": subsystem, "class": "0302",
            "model": model or None, "architecture": architecture, "mig_capable": capable,
            "kernel_driver": "nvidia" if driver else None, "index": index if driver else None,
            "uuid": f"GPU-0000000{index}" if driver else None, "minor": index if driver else None, "serial": None,
            "memory_mib": None, "error": None,
            "mig": {"enabled": mig is not None, "pending": mig is not None, "instances": instances}
            if driver and capable else None,
        })
    return {
        "schema": 1,
        "host": {"hostname": "host", "os": {"id": "debian", "version_id": "12", "codename": "bookworm",
                                            "family": "debian", "pretty_name": "Debian GNU/Linux 12"},
                 "kernel": {"release": "6.1.0-28-amd64", "headers": True}, "arch": "x86_64", "machine": None,
                 "secure_boot": secure_boot},
        "gpus": gpus, "nvswitches": [], "mellanox": False,
        "driver": {"loaded": driver, "flavour": flavour if driver else None, "library": driver,
                   "packages": {"nvidia-open": f"{driver}-1"} if driver else {},
                   "source": "cuda_repository" if driver else None, "reboot_pending": False,
                   "nvml": {"available": driver is not None, "error": None, "cuda": "13.2" if driver else None}},
        "modules": {"nouveau": False, "nvidia": driver is not None, "nvidia_uvm": driver is not None},
        "runtimes": {"containerd": None if containerd is None else
                     {"version": "1.6.20", "running": True, "nvidia": containerd},
                     "docker": None, "crio": None, "podman": None},
        "toolkit": {"version": toolkit, "packages": {},
                    "cdi_specs": ["/var/run/cdi/nvidia.yaml"] if toolkit and cdi else []},
        "clients": [],
    }


def changed(base: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    """A copy with keys of its sections replaced: C(changed(facts("T4"), driver={"library": None}))."""
    result = copy.deepcopy(base)
    for section, values in parts.items():
        result[section].update(values)
    return result


MIG_CONFIG: dict[str, Any] = {"version": "v1", "mig-configs": {
    "all-disabled": [{"devices": "all", "mig-enabled": False}],
    "all-1g.10gb": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}],
    "half": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
             {"devices": [1], "mig-enabled": False}],
    "a100-only": [{"device-filter": "0x20B210DE", "devices": "all", "mig-enabled": True,
                   "mig-devices": {"2g.20gb": 3}}],
}}
