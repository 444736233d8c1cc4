# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts facts of gpu_info to the data from which labels are computed. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Facts, Gpu, MigDevice, Node

# Suffix of the label to key of a MIG device in the facts.
_ATTRIBUTES = {"memory": "memory_mib", "multiprocessors": "multiprocessors", "slices.gi": "gi_slices",
               "slices.ci": "ci_slices", "engines.copy": "copy", "engines.decoder": "decoder",
               "engines.encoder": "encoder", "engines.jpeg": "jpeg", "engines.ofa": "ofa"}


def node_from_facts(facts: Facts) -> tuple[Node, list[dict[str, str]]]:
    """(node, unread). facts: `{host: {machine}, gpus, vgpu, driver: {loaded, nvml}}`; other keys are not used.

    With NVML, only GPUs of the driver are included, not those of virtual machines or nouveau. Missing values of a GPU
    are those of another GPU with the same PCI id. unread: `[{gpu, error}]`, the GPUs whose labels may be wrong; all
    GPUs if NVML exists but does not answer.
    """
    nvml = facts["driver"]["nvml"]
    entries = facts["gpus"]
    if nvml["available"]:
        entries = [gpu for gpu in entries if gpu["index"] is not None or gpu["error"]]
    read = [_gpu(entry) for entry in entries]
    unread = [{"gpu": entry["pci"], "error": entry["error"] or "NVML did not report all values."}
              for entry, gpu in zip(entries, read)
              if nvml["available"] and (entry["error"] or not _whole(gpu) or _without_memory(entry))]
    if nvml["error"]:
        unread = [{"gpu": entry["pci"], "error": nvml["error"]} for entry in entries
                  if entry["kernel_driver"] in (None, "nvidia")]
    missing = {entry["gpu"] for entry in unread} if nvml["available"] else set()
    gpus = tuple(_like_siblings(gpu, entry, entries, read) if entry["pci"] in missing else gpu
                 for entry, gpu in zip(entries, read))
    vgpu = facts["vgpu"]
    cuda = _version(nvml["cuda"])
    return Node(gpus=gpus, driver=facts["driver"]["loaded"] if nvml["available"] else None, cuda=cuda,
                machine=facts["host"]["machine"], vgpu=(vgpu["version"], vgpu["branch"]) if vgpu else None), unread


def _version(text: str | None) -> tuple[int, int] | None:
    if not text:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)


def _gpu(entry: Facts) -> Gpu:
    mig, fabric = entry["mig"], entry["fabric"]
    return Gpu(
        name=entry["model"], memory_mib=entry["memory_mib"], capability=_version(entry["compute_capability"]),
        mig_capable=entry["mig_capable"], mig_enabled=bool(mig and mig["enabled"]),
        mig_devices=_mig_devices(mig["instances"]) if mig else (), pci_class=entry["class"] or "",
        fabric=(fabric["cluster"], fabric["clique"]) if fabric else None,
    )


def _mig_devices(instances: t.Iterable[Facts]) -> t.Tuple[MigDevice, ...] | None:
    """None if one of them could not be read."""
    devices = [device for instance in instances for device in instance["devices"]]
    if any("profile" not in device for device in devices):
        return None
    return tuple(MigDevice(device["profile"], {suffix: device[key] for suffix, key in _ATTRIBUTES.items()})
                 for device in devices)


def _whole(gpu: Gpu) -> bool:
    return gpu.name is not None and gpu.capability is not None and gpu.mig_devices is not None


def _without_memory(entry: Facts) -> bool:
    """Whether NVML should report the memory of this model, but has not. For some models (GB10) it never does."""
    known = model_of(entry["device_id"], entry["subsystem"])
    return entry["memory_mib"] is None and known is not None and known.memory_mib is not None


def _like_siblings(gpu: Gpu, entry: Facts, entries: t.Sequence[Facts],
                   read: t.Sequence[Gpu]) -> Gpu:
    """A GPU that was not read completely, with missing values of a completely read one with the same PCI id.

    If its MIG mode is unknown, its MIG devices stay unknown, unless the other GPU is not in MIG mode.
    """
    kind = (entry["device_id"], entry["subsystem"])
    alike = (other for facts, other in zip(entries, read)
             if (facts["device_id"], facts["subsystem"]) == kind and facts["error"] is None and _whole(other))
    sibling = next(alike, gpu)
    known = entry["mig"] is not None or sibling is gpu
    enabled = gpu.mig_enabled if known else sibling.mig_enabled
    return gpu._replace(
        name=gpu.name or sibling.name, memory_mib=gpu.memory_mib or sibling.memory_mib,
        capability=gpu.capability or sibling.capability, mig_capable=gpu.mig_capable or sibling.mig_capable,
        mig_enabled=enabled, mig_devices=None if enabled and not known else gpu.mig_devices)
