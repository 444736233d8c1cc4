# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merges the GPUs of the PCI bus and of NVML into one fact. Either source may be missing. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import architecture_of, generation_of, model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import Bus, Function
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root

_FROM_NVML = ("index", "uuid", "minor", "serial", "memory_mib", "compute_capability", "mig", "fabric", "health",
              "error")


class Snapshot(t.TypedDict):
    """The facts of NVML.

    available: whether NVML works; error: why it does not work; driver, library: versions; cuda: the CUDA version of the
    driver; gpus: C({pci, device_id, subsystem, model}) and the keys in _FROM_NVML, sorted by pci, which is None if the
    GPU does not answer; clients: the processes on GPUs, as L(clients.Client).
    """

    available: bool
    error: str | None
    driver: str | None
    library: str | None
    cuda: str | None
    gpus: t.List[Fact]
    clients: t.List[Fact]


def merge_gpus(bus: Bus, snapshot: Snapshot) -> list[Fact]:
    """The fact C(gpus) of gpu_info, sorted by PCI address.

    If NVML does not list a GPU that uses the driver, it has only the facts of its PCI id, and C(error) is the reason.
    """
    answered = {gpu["pci"]: gpu for gpu in snapshot["gpus"] if gpu["pci"]}
    silent = [gpu for gpu in snapshot["gpus"] if not gpu["pci"]]
    gpus = []
    for function in bus.gpus:
        read = answered.pop(function.address, None)
        if read is None and snapshot["available"] and function.driver == "nvidia":
            # NVML has only the index of a lost GPU. Its address is one of those that NVML does not list.
            lost = silent.pop(0) if silent else {"error": "NVML does not list it"}
            read = {"index": lost.get("index"), "error": f"The GPU does not answer: {lost['error']}."}
        gpus.append(_gpu(function, read or {}))
    # If the PCI bus is hidden (WSL, some containers), only NVML has the GPUs.
    gpus += [_gpu(None, read) for read in answered.values()]
    return sorted(gpus, key=lambda gpu: gpu["pci"])


def _gpu(function: Function | None, read: Fact) -> Fact:
    """The facts of one GPU. function: None if the PCI bus is hidden. read: its facts from NVML, empty without any."""
    device_id = function.device if function else read["device_id"]
    subsystem = function.subsystem if function else read["subsystem"]
    known = model_of(device_id, subsystem)
    facts: Fact = {
        "pci": function.address if function else read["pci"], "device_id": device_id, "subsystem": subsystem,
        "class": function.pci_class if function else None,
        "model": read.get("model") or (known.name if known else None),
        "architecture": generation_of(device_id),
        "mig_capable": known.mig_capable if known else False,
        "kernel_driver": function.driver if function else None,
        **{key: read.get(key) for key in _FROM_NVML},
    }
    if facts["compute_capability"]:
        major, minor = facts["compute_capability"].split(".")
        facts["architecture"] = architecture_of(int(major), int(minor))
    elif known:
        facts["compute_capability"] = "{}.{}".format(*known.compute_capability)
    if read.get("uuid") and not read.get("error"):
        facts["mig_capable"] = facts["mig"] is not None
    return facts


def minors(root: Root, gpus: t.Sequence[Fact]) -> dict[int, str]:
    """Maps device minors (N of C(/dev/nvidiaN)) to PCI addresses, from the facts of NVML, otherwise from /proc."""
    found = {gpu["minor"]: gpu["pci"] for gpu in gpus if gpu["minor"] is not None}
    for gpu in gpus:
        if gpu["minor"] is None:
            for line in (root.text(f"/proc/driver/nvidia/gpus/{gpu['pci']}/information") or "").splitlines():
                key, _separator, value = line.partition(":")
                if key.strip() == "Device Minor" and value.strip().isdecimal() and len(value) < 20:
                    found.setdefault(int(value), gpu["pci"])
    return found
