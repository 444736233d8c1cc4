# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts facts of gpu_info to the data from which labels are computed. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Facts, Gpu, MigDevice, Node

# Maps the suffix of a label to the key of a MIG device in the facts.
_ATTRIBUTES = {"memory": "memory_mib", "multiprocessors": "multiprocessors", "slices.gi": "gi_slices",
               "slices.ci": "ci_slices", "engines.copy": "copy", "engines.decoder": "decoder",
               "engines.encoder": "encoder", "engines.jpeg": "jpeg", "engines.ofa": "ofa"}


def node_from_facts(facts: Facts) -> tuple[Node, list[dict[str, str]]]:
    """(node, unread). unread: `[{gpu, error}]`, the GPUs whose labels may be wrong; all GPUs if NVML does not answer.

    facts: `{host: {machine}, gpus, vgpu, driver: {loaded, nvml}}`; other keys are not used. With NVML, only GPUs of the
    driver are included, not GPUs of virtual machines or nouveau. A missing value of a GPU is replaced by the value of
    another GPU with the same PCI id.
    """
    nvml = facts["driver"]["nvml"]
    entries = facts["gpus"]
    if nvml["available"]:
        entries = [gpu for gpu in entries if gpu["index"] is not None or gpu["error"]]
    gpus_read = [_gpu(entry) for entry in entries]
    unread = [{"gpu": entry["pci"], "error": entry["error"] or "NVML did not report all values."}
              for entry, gpu in zip(entries, gpus_read)
              if nvml["available"] and (entry["error"] or not _is_complete(gpu) or _is_memory_missing(entry))]
    if nvml["error"]:
        unread = [{"gpu": entry["pci"], "error": nvml["error"]} for entry in entries
                  if entry["kernel_driver"] in (None, "nvidia")]
    incomplete = {entry["gpu"] for entry in unread} if nvml["available"] else set()
    gpus = tuple(_fill_from_sibling(gpu, entry, entries, gpus_read) if entry["pci"] in incomplete else gpu
                 for entry, gpu in zip(entries, gpus_read))
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
    """The MIG devices of a GPU; None if one of them could not be read."""
    devices = [device for instance in instances for device in instance["devices"]]
    if any("profile" not in device for device in devices):
        return None
    return tuple(MigDevice(device["profile"], {suffix: device[key] for suffix, key in _ATTRIBUTES.items()})
                 for device in devices)


def _is_complete(gpu: Gpu) -> bool:
    return gpu.name is not None and gpu.capability is not None and gpu.mig_devices is not None


def _is_memory_missing(entry: Facts) -> bool:
    """Whether NVML has not reported the memory of a GPU. False for models (GB10) whose memory it never reports."""
    known = model_of(entry["device_id"], entry["subsystem"])
    return entry["memory_mib"] is None and known is not None and known.memory_mib is not None


def _fill_from_sibling(gpu: Gpu, entry: Facts, entries: t.Sequence[Facts], gpus_read: t.Sequence[Gpu]) -> Gpu:
    """A GPU that was not read completely, with the missing values of a completely read GPU with the same PCI id.

    If its MIG mode is unknown and the other GPU is in MIG mode, its MIG devices stay unknown.
    """
    pci_id = (entry["device_id"], entry["subsystem"])
    siblings = (other for facts, other in zip(entries, gpus_read) if _is_complete(other)
                and (facts["device_id"], facts["subsystem"]) == pci_id and facts["error"] is None)
    sibling = next(siblings, gpu)
    is_mode_known = entry["mig"] is not None or sibling is gpu
    enabled = gpu.mig_enabled if is_mode_known else sibling.mig_enabled
    return gpu._replace(
        name=gpu.name or sibling.name, memory_mib=gpu.memory_mib or sibling.memory_mib,
        capability=gpu.capability or sibling.capability, mig_capable=gpu.mig_capable or sibling.mig_capable,
        mig_enabled=enabled, mig_devices=None if enabled and not is_mode_known else gpu.mig_devices)
