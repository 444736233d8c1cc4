# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the labels of GPU feature discovery. PRIVATE to the collection.

Source: gpu-feature-discovery 0.20 (NVIDIA/k8s-device-plugin); tests compare with its output. Three differences are
intended: there is no `gfd.timestamp`, which would change in every run; if a host has several models, the labels of
full GPUs are those of the first GPU's model (there: of a random one); and a value that is invalid for a label, such as
a long product with suffixes, is shortened (there: no Node gets it).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import architecture_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Gpu, Labels, MigDevice, Node, Sharing

STRATEGIES = ("none", "single", "mixed")
GPU = "nvidia.com/gpu"
OUR_PREFIX = "gpuops.nvidia"
# A name or value of a label has at most 63 characters, and begins and ends with a letter or digit (Kubernetes, "Labels
# and Selectors"). The longest suffix of a name after the model has 14.
_LENGTH, _MODEL_LENGTH = 63, 48
_NO_END = "-_."
_FORBIDDEN = re.compile(r"[^A-Za-z0-9\-_. ]")
_MODES = {"0300": "graphics", "0302": "compute"}


def compute_labels(node: Node, strategy: str = "none", sharing: Sharing | None = None) -> Labels:
    """All labels of a host. strategy: one of STRATEGIES. Without a driver, they are based only on PCI ids.

    Raises HostError for MPS with MIG.
    """
    shared = sharing or Sharing()
    labels: Labels = {}
    if node.gpus:
        labels["nvidia.com/gpu.machine"] = sanitise("unknown" if node.machine is None else node.machine)
        labels["nvidia.com/mig.capable"] = _bool(any(gpu.mig_capable for gpu in node.gpus))
        labels["nvidia.com/gpu.mode"] = _mode(node.gpus)
        if node.driver is None:
            labels.update(_models_from_pci(node.gpus))
        else:
            labels.update(_versions(node))
            labels["nvidia.com/mps.capable"] = _bool(_mps_capable(node, shared))
            labels.update(_full_gpus(node.gpus, shared))
            if strategy != "none":
                labels["nvidia.com/mig.strategy"] = strategy
                labels.update(_single(node.gpus, shared) if strategy == "single" else _mixed(node.gpus, shared))
            labels.update(_clique(node.gpus))
        labels.update(_per_model(node.gpus))
    labels["nvidia.com/vgpu.present"] = _bool(node.vgpu is not None)
    if node.vgpu is not None:
        version, branch = node.vgpu
        labels["nvidia.com/vgpu.host-driver-version"] = sanitise(version)
        labels["nvidia.com/vgpu.host-driver-branch"] = sanitise(branch)
    return labels


def sanitise(text: str) -> str:
    """A value of a label: without invalid characters, with a dash for blanks, shortened."""
    return _cut("-".join(_FORBIDDEN.sub("", text).split()), _LENGTH)


def _cut(text: str, length: int) -> str:
    return text.strip(_NO_END)[:length].rstrip(_NO_END)


def _product(model: str, *marks: str) -> str:
    """The label of a product with suffixes such as `MIG`, `1g.10gb`, `SHARED`. The model is shortened, not these."""
    tail = "".join(f"-{mark}" for mark in marks)
    return (_cut(sanitise(model), _LENGTH - len(tail)) + tail).lstrip("-")


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _mode(gpus: t.Sequence[Gpu]) -> str:
    classes = {gpu.pci_class for gpu in gpus}
    return _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown"


def _versions(node: Node) -> Labels:
    full = node.driver or ""
    major, minor, revision = [*full.split("."), "", ""][:3]
    labels = {f"nvidia.com/cuda.driver-version.{key}": value
              for key, value in (("major", major), ("minor", minor), ("revision", revision), ("full", full))}
    # Deprecated names of the same values, which gpu-feature-discovery still writes.
    labels.update({"nvidia.com/cuda.driver.major": major, "nvidia.com/cuda.driver.minor": minor,
                   "nvidia.com/cuda.driver.rev": revision})
    if node.cuda is not None:
        for key in ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime"):
            labels[f"{key}.major"], labels[f"{key}.minor"] = (str(part) for part in node.cuda)
        labels["nvidia.com/cuda.runtime-version.full"] = f"{node.cuda[0]}.{node.cuda[1]}"
    return labels


def _mps_capable(node: Node, sharing: Sharing) -> bool:
    if sharing.strategy != "mps":
        return False
    if any(gpu.mig_enabled for gpu in node.gpus):
        raise HostError("MPS is configured, but a GPU has MIG enabled: they exclude each other.",
                        "Disable MIG on this host, or share by time-slicing.")
    return True


# -- full GPUs


def _by_name(gpus: t.Iterable[Gpu]) -> dict[str, list[Gpu]]:
    models: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        if gpu.name is not None:
            models.setdefault(gpu.name, []).append(gpu)
    return models


def _full_gpus(gpus: t.Sequence[Gpu], sharing: Sharing) -> Labels:
    """The labels of full GPUs. A model with a GPU without MIG has precedence, then the first one."""
    whole = [name for name, members in _by_name(gpus).items() if any(not gpu.mig_enabled for gpu in members)]
    sliced = [name for name in _by_name(gpus) if name not in whole]
    labels: Labels = {}
    for name in [*reversed(sliced), *reversed(whole)]:
        labels.update(_model(name, _by_name(gpus)[name], sharing if name in whole else None))
    return labels


def _model(name: str, members: t.Sequence[Gpu], sharing: Sharing | None) -> Labels:
    """sharing: None if all GPUs of the model are in MIG mode, so that none is allocated as a whole."""
    return {**_base(GPU, name, (), len(members), sharing), **_hardware(GPU, members)}


def _base(resource: str, model: str, marks: t.Sequence[str], count: int, sharing: Sharing | None) -> Labels:
    replicas = sharing.of(resource) if sharing else 0
    if sharing and replicas > 1 and not sharing.renamed:
        marks = (*marks, "SHARED")
    return {f"{resource}.product": _product(model, *marks), f"{resource}.count": str(count),
            f"{resource}.replicas": str(replicas),
            f"{resource}.sharing-strategy": sharing.strategy if sharing and replicas > 1 else "none"}


def _hardware(prefix: str, members: t.Sequence[Gpu]) -> Labels:
    """Memory and architecture, from the first GPU of the model that could be read."""
    labels: Labels = {}
    memory = next((gpu.memory_mib for gpu in members if gpu.memory_mib), None)
    if memory:
        labels[f"{prefix}.memory"] = str(memory)
    capability = next((gpu.capability for gpu in members if gpu.capability), None)
    if capability:
        labels[f"{prefix}.family"] = architecture_of(*capability)
        labels[f"{prefix}.compute.major"], labels[f"{prefix}.compute.minor"] = (str(part) for part in capability)
    return labels


def _models_from_pci(gpus: t.Sequence[Gpu]) -> Labels:
    """The labels without a driver. Memory is omitted, because NVML's value depends on ECC and the driver."""
    first = next((gpu for gpu in gpus if gpu.name is not None), gpus[0])
    members = [gpu for gpu in gpus if gpu.name == first.name]
    labels = {f"{GPU}.count": str(len(members))}
    if first.name is not None:
        labels[f"{GPU}.product"] = sanitise(first.name)
    labels.update({key: value for key, value in _hardware(GPU, members).items() if not key.endswith(".memory")})
    return labels


def _per_model(gpus: t.Sequence[Gpu]) -> Labels:
    """Labels of each model with our own prefix, if a host has several models: the other labels describe only one."""
    models = _by_name(gpus)
    if len(models) < 2:
        return {}
    labels: Labels = {}
    for name, members in models.items():
        product = sanitise(name)
        short = product[len("NVIDIA-"):] if product.startswith("NVIDIA-") else product
        prefix = f"{OUR_PREFIX}/{_cut(short, _MODEL_LENGTH)}"
        labels[f"{prefix}.product"] = product
        labels[f"{prefix}.count"] = str(len(members))
        labels[f"{prefix}.mig.capable"] = _bool(any(gpu.mig_capable for gpu in members))
        labels.update(_hardware(prefix, members))
    return labels


# -- MIG


def _mig_types(gpus: t.Sequence[Gpu]) -> dict[str, list[tuple[Gpu, MigDevice]]]:
    """Type as in labels (`1g.10gb.me`) to MIG devices, in order of GPUs."""
    types: dict[str, list[tuple[Gpu, MigDevice]]] = {}
    for gpu in gpus:
        for device in gpu.mig_devices or ():
            types.setdefault(device.profile.replace("+", "."), []).append((gpu, device))
    return types


def _mig_labels(resource: str, kind: str, devices: t.Sequence[tuple[Gpu, MigDevice]], sharing: Sharing) -> Labels:
    gpu, device = devices[0]
    labels = _base(resource, gpu.name or "", ("MIG", kind), len(devices), sharing)
    labels.update({f"{resource}.{suffix}": str(value) for suffix, value in device.attributes.items()})
    return labels


def _mixed(gpus: t.Sequence[Gpu], sharing: Sharing) -> Labels:
    labels: Labels = {}
    for kind, devices in _mig_types(gpus).items():
        labels.update(_mig_labels(f"nvidia.com/mig-{kind}", kind, devices, sharing))
    return labels


def _single(gpus: t.Sequence[Gpu], sharing: Sharing) -> Labels:
    enabled = [gpu for gpu in gpus if gpu.mig_enabled]
    if not enabled:
        return {}
    types = _mig_types(gpus)
    empty = any(gpu.mig_devices is not None and not gpu.mig_devices for gpu in enabled)
    if not types and not empty and len(enabled) == len(gpus):
        return {}  # the layout could not be read
    if empty or len(enabled) != len(gpus) or len(types) != 1:
        return {f"{GPU}.product": _product(enabled[0].name or "", "MIG", "INVALID"), f"{GPU}.count": "0",
                f"{GPU}.replicas": "0", f"{GPU}.sharing-strategy": "", f"{GPU}.memory": "0"}
    kind, devices = next(iter(types.items()))
    return _mig_labels(GPU, kind, devices, sharing)


def _clique(gpus: t.Sequence[Gpu]) -> Labels:
    """The label of the clique, if all GPUs with a fabric have the same cluster and clique."""
    clusters = {gpu.fabric[0] for gpu in gpus if gpu.fabric}
    cliques = {gpu.fabric[1] for gpu in gpus if gpu.fabric}
    if len(clusters) != 1 or len(cliques) != 1:
        return {}
    return {"nvidia.com/gpu.clique": f"{clusters.pop()}.{cliques.pop()}"}
