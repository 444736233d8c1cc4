# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of invented hosts in the structure of gpu_info, written by hand, for tests that need facts.

Each function returns a fresh copy. The tests in this folder prove that gpu_info returns exactly these facts for such
hosts.
"""

from __future__ import annotations

import typing as t

Facts = t.Dict[str, t.Any]  # read by Python 3.8, too

# PCI addresses of the GPUs of an eight-GPU board.
ADDRESSES = ("0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0", "0000:87:00.0", "0000:90:00.0",
             "0000:b7:00.0", "0000:bd:00.0")
DRIVER = "595.91.07"
DRIVER_PACKAGES = {"libnvidia-compute": f"{DRIVER}-1", "nvidia-dkms-open": f"{DRIVER}-1", "nvidia-open": f"{DRIVER}-1",
                   "nvidia-persistenced": f"{DRIVER}-1"}
TOOLKIT_PACKAGES = dict.fromkeys(("libnvidia-container-tools", "libnvidia-container1", "nvidia-container-toolkit",
                                  "nvidia-container-toolkit-base"), "1.20.0-1")
MODULES = ("nouveau", "nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs", "gdrdrv",
           "nvidia_vgpu_vfio", "vfio_pci", "ib_umad", "mlx5_core")


def gpu(pci: str, device_id: str, subsystem: str, model: str | None, architecture: str, capability: str, mig: bool,
        driver: str | None = None) -> Facts:
    """A GPU as far as its PCI ids describe it."""
    return {"pci": pci, "device_id": device_id, "subsystem": subsystem, "class": "0302", "model": model,
            "architecture": architecture, "mig_capable": mig, "kernel_driver": driver, "index": None, "uuid": None,
            "minor": None, "serial": None, "memory_mib": None, "compute_capability": capability, "mig": None,
            "error": None, "fabric": None, "health": None}


def host(hostname: str, gpus: list[Facts], machine: str | None) -> Facts:
    """A host without a driver on which containerd runs."""
    return {
        "schema": 3,
        "host": {"hostname": hostname, "arch": "x86_64", "machine": machine, "secure_boot": False, "vendor": None,
                 "virtual": None, "cloud": None, "lockdown": None, "mok": {"tool": False, "enrolled": None},
                 "markers": {"dgx": None, "kubernetes": None, "immutable": False},
                 "os": {"id": "debian", "version_id": "12", "codename": "bookworm", "family": "debian",
                        "pretty_name": "Debian GNU/Linux 12 (bookworm)"},
                 "kernel": {"release": "6.1.0-28-amd64", "headers": True, "flavour": "amd64",
                            "headers_package": "linux-headers-6.1.0-28-amd64", "headers_available": None,
                            "newest_installed": None}},
        "gpus": gpus,
        "nvswitches": [],
        "nvlink": {"switches": 0, "fabric": "none"},
        "xids": [],
        "mellanox": False,
        "vgpu": None,
        "driver": {"loaded": None, "flavour": None, "library": None, "packages": {}, "source": None,
                   "dkms": [], "reboot_pending": False, "missing_files": [], "nodes": None, "services": None,
                   "nvml": {"available": False, "error": None, "cuda": None}},
        "modules": {**dict.fromkeys(MODULES, False), "nouveau_denied": False},
        "runtimes": {"containerd": {"version": "1.6.20", "running": True, "boot": "yes", "stale": None,
                                    "cri": True, "nvidia": False, "classes": []}, "docker": None,
                     "crio": None, "podman": None},
        "rootless": {},
        "toolkit": {"version": None, "packages": {}, "missing_files": [], "cdi_specs": [], "cdi": None},
        "software": {"cuda": {}, "dcgm": None, "dcgm_exporter": None, "node_status_exporter": None},
        "journals": {"brought": [], "faults": [], "former_driver": None},
        "mig_boot": {"enabled": False, "masked": False, "gpus": None, "vendor": None},
        "clients": [],
    }


def a100_before() -> Facts:
    """Eight A100 80 GB, nothing installed, nouveau uses the GPUs."""
    facts = host("a100-1", [gpu(pci, "20b2", "10de:1463", "NVIDIA A100-SXM4-80GB", "ampere", "8.0", True, "nouveau")
                            for pci in ADDRESSES], "DGXA100 920-23687-2530-000")
    facts["modules"]["nouveau"] = True
    return facts


def a100_converged() -> Facts:
    """The same with driver 595.91.07 and the container toolkit; the last GPU has seven 1g.10gb instances."""
    facts = host("a100-1", [], "DGXA100 920-23687-2530-000")
    for index, pci in enumerate(ADDRESSES):
        board = gpu(pci, "20b2", "10de:1463", "NVIDIA A100-SXM4-80GB", "ampere", "8.0", True, "nvidia")
        board.update(index=index, uuid=f"GPU-4d6f636b-0000-4000-8000-{index:012d}", minor=index,
                     serial=str(1650000000000 + index), memory_mib=81920,
                     mig={"enabled": False, "pending": False, "instances": []})
        facts["gpus"].append(board)
    facts["gpus"][7]["mig"] = {"enabled": True, "pending": True, "instances": [
        {"gi": 7 + start, "profile": "1g.10gb", "profile_id": 19, "start": start, "size": 1,
         "uuids": [f"MIG-4d6f636b-0000-5000-8000-{start:012d}"],
         "devices": [{"ci": 0, "uuid": f"MIG-4d6f636b-0000-5000-8000-{start:012d}", "profile": "1g.10gb",
                      "gi_slices": 1, "ci_slices": 1, "memory_mib": 9728, "multiprocessors": 14, "copy": 1,
                      "decoder": 0, "encoder": 0, "jpeg": 0, "ofa": 0}]} for start in range(7)]}
    facts["driver"].update(loaded=DRIVER, flavour="open", library=DRIVER, packages=dict(DRIVER_PACKAGES),
                           source="cuda_repository", nvml={"available": True, "error": None, "cuda": "13.2"})
    facts["gpus"][0]["health"] = {
        "ecc": {"volatile": 0, "aggregate": 2}, "retired_pages_pending": None,
        "remapped_rows": {"correctable": 0, "uncorrectable": 1, "pending": False, "failed": False},
        "nvlink": {"links": 12, "down": []}, "idle": True, "slowdown": [], "fabric": None, "recovery": "none",
        "pcie": {"width": 16, "width_max": 16, "generation": 1, "generation_max": 4}}
    facts["xids"] = [{"pci": ADDRESSES[0], "xid": 63, "count": 2, "first": "2023-11-14T22:13:20Z",
                      "last": "2023-11-14T22:15:00Z"}]
    facts["modules"].update(nvidia=True, nvidia_uvm=True, nvidia_modeset=True)
    facts["runtimes"]["containerd"].update(nvidia=True, classes=["nvidia"])
    facts["toolkit"] = {"version": "1.20.0", "packages": dict(TOOLKIT_PACKAGES), "missing_files": [],
                        "cdi_specs": ["/var/run/cdi/nvidia.yaml"], "cdi": {"devices": [], "driver": None}}
    facts["clients"] = [{"pid": 812, "name": "nvidia-persiste", "gpu": pci, "instance": None,
                         "unit": "nvidia-persistenced.service", "container": None} for pci in ADDRESSES]
    return facts


def l40s_before() -> Facts:
    """Four L40S, nothing installed."""
    return host("l40s-1", [gpu(pci, "26b9", "10de:1851", "NVIDIA L40S", "ada-lovelace", "8.9", False)
                           for pci in ADDRESSES[:4]], "PowerEdge R760xa")


def v100_before() -> Facts:
    """Four V100: branch 580 is the last one that supports them, without open modules."""
    return host("v100-1", [gpu(pci, "1db5", "10de:1249", "Tesla V100-SXM2-32GB", "volta", "7.0", False)
                           for pci in ADDRESSES[:4]], "PowerEdge C4140")


def mixed_before() -> Facts:
    """A V100 and a B200 in one host; no driver supports both."""
    facts = host("mixed-1", [gpu(ADDRESSES[0], "1db5", "10de:1249", "Tesla V100-SXM2-32GB", "volta", "7.0", False),
                             gpu(ADDRESSES[1], "2901", "10de:1999", "NVIDIA B200", "blackwell", "10.0", True)],
                 "PowerEdge XE9680")
    facts["nvlink"]["fabric"] = "nvlink5"
    return facts


def h100_before() -> Facts:
    """Eight H100 on an NVSwitch board, with Mellanox adapters: a fabric manager is needed."""
    facts = host("h100-1", [gpu(pci, "2330", "10de:16c1", "NVIDIA H100 80GB HBM3", "hopper", "9.0", True)
                            for pci in ADDRESSES], "DGXH100")
    facts["nvswitches"] = [{"pci": f"0000:0{number}:00.0", "device_id": "22a3"} for number in (1, 2, 3, 4)]
    facts["nvlink"] = {"switches": 4, "fabric": "nvswitch"}
    facts["mellanox"] = True
    return facts


def no_gpu() -> Facts:
    """A host without any GPU."""
    return host("plain-1", [], "PowerEdge R660")


ALL: dict[str, t.Callable[[], Facts]] = {function.__name__: function for function in (
    a100_before, a100_converged, l40s_before, v100_before, mixed_before, h100_before, no_gpu)}
