# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the labels of GPU feature discovery. PRIVATE to the collection.

Source: gpu-feature-discovery 0.20 (NVIDIA/k8s-device-plugin); tests compare with its output. Three differences are
intended. There is no `gfd.timestamp`, which would change in every run. If a host has several models, the labels of full
GPUs describe the model of the first GPU, not of a random one. A value that is too long for a label, such as a product
with suffixes, is shortened; with gpu-feature-discovery, the Node does not get this label.
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
# and Selectors"). After the model, the name of a label has at most 14 characters.
_LENGTH, _MODEL_LENGTH = 63, 48
_INVALID_ENDS = "-_."
_INVALID = re.compile(r"[^A-Za-z0-9\-_. ]")
_MODES = {"0300": "graphics", "0302": "compute"}


def compute_labels(node: Node, strategy: str = "none", sharing: Sharing | None = None) -> Labels:
    """All labels of a host. Without a driver, they depend only on PCI ids. strategy: one of STRATEGIES.

    Raises HostError for MPS with MIG.
    """
    shared = sharing or Sharing()
    labels: Labels = {}
    if node.gpus:
        labels["nvidia.com/gpu.machine"] = sanitise("unknown" if node.machine is None else node.machine)
        labels["nvidia.com/mig.capable"] = _bool(any(gpu.mig_capable for gpu in node.gpus))
        labels["nvidia.com/gpu.mode"] = _gpu_mode(node.gpus)
        if node.driver is None:
            labels.update(_labels_from_pci(node.gpus))
        else:
            labels.update(_version_labels(node))
            labels["nvidia.com/mps.capable"] = _bool(_mps_capable(node, shared))
            labels.update(_full_gpu_labels(node.gpus, shared))
            if strategy != "none":
                labels["nvidia.com/mig.strategy"] = strategy
                compute = _labels_single if strategy == "single" else _labels_mixed
                labels.update(compute(node.gpus, shared))
            labels.update(_clique_label(node.gpus))
        labels.update(_labels_per_model(node.gpus))
    labels["nvidia.com/vgpu.present"] = _bool(node.vgpu is not None)
    if node.vgpu is not None:
        version, branch = node.vgpu
        labels["nvidia.com/vgpu.host-driver-version"] = sanitise(version)
        labels["nvidia.com/vgpu.host-driver-branch"] = sanitise(branch)
    return labels


def sanitise(text: str) -> str:
    """A valid label value: blanks become dashes, other invalid characters are removed, and the text is shortened."""
    return _shorten("-".join(_INVALID.sub("", text).split()), _LENGTH)


def _shorten(text: str, length: int) -> str:
    return text.strip(_INVALID_ENDS)[:length].rstrip(_INVALID_ENDS)


def _product_value(model: str, *suffixes: str) -> str:
    """The value of a product label with suffixes such as `MIG`, `1g.10gb`, `SHARED`. Only the model is shortened."""
    ending = "".join(f"-{suffix}" for suffix in suffixes)
    return (_shorten(sanitise(model), _LENGTH - len(ending)) + ending).lstrip("-")


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _gpu_mode(gpus: t.Sequence[Gpu]) -> str:
    classes = {gpu.pci_class for gpu in gpus}
    return _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown"


def _version_labels(node: Node) -> Labels:
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
        raise HostError("Sharing by MPS is configured, but a GPU is in MIG mode. MPS does not work with MIG.",
                        "Disable MIG on this host, or share by time-slicing.")
    return True


# -- full GPUs


def _gpus_by_model(gpus: t.Iterable[Gpu]) -> dict[str, list[Gpu]]:
    models: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        if gpu.name is not None:
            models.setdefault(gpu.name, []).append(gpu)
    return models


def _full_gpu_labels(gpus: t.Sequence[Gpu], sharing: Sharing) -> Labels:
    """The labels of full GPUs. Models with a GPU that is not in MIG mode have precedence, then the first model."""
    full = [name for name, members in _gpus_by_model(gpus).items() if any(not gpu.mig_enabled for gpu in members)]
    in_mig_mode = [name for name in _gpus_by_model(gpus) if name not in full]
    labels: Labels = {}
    for name in [*reversed(in_mig_mode), *reversed(full)]:
        labels.update(_model_labels(name, _gpus_by_model(gpus)[name], sharing if name in full else None))
    return labels


def _model_labels(name: str, members: t.Sequence[Gpu], sharing: Sharing | None) -> Labels:
    """The labels of one model. sharing: None if all its GPUs are in MIG mode, so that no full GPU is allocated."""
    return {**_product_labels(GPU, name, (), len(members), sharing), **_hardware_labels(GPU, members)}


def _product_labels(resource: str, model: str, suffixes: t.Sequence[str], count: int, sharing: Sharing | None
                    ) -> Labels:
    replicas = sharing.of(resource) if sharing else 0
    if sharing and replicas > 1 and not sharing.renamed:
        suffixes = (*suffixes, "SHARED")
    return {f"{resource}.product": _product_value(model, *suffixes), f"{resource}.count": str(count),
            f"{resource}.replicas": str(replicas),
            f"{resource}.sharing-strategy": sharing.strategy if sharing and replicas > 1 else "none"}


def _hardware_labels(prefix: str, members: t.Sequence[Gpu]) -> Labels:
    """The labels of memory and architecture, from the first GPU of the model that reports them."""
    labels: Labels = {}
    memory = next((gpu.memory_mib for gpu in members if gpu.memory_mib), None)
    if memory:
        labels[f"{prefix}.memory"] = str(memory)
    capability = next((gpu.capability for gpu in members if gpu.capability), None)
    if capability:
        labels[f"{prefix}.family"] = architecture_of(*capability)
        labels[f"{prefix}.compute.major"], labels[f"{prefix}.compute.minor"] = (str(part) for part in capability)
    return labels


def _labels_from_pci(gpus: t.Sequence[Gpu]) -> Labels:
    """The labels of full GPUs without a driver. They omit the memory, whose value depends on ECC and the driver."""
    first = next((gpu for gpu in gpus if gpu.name is not None), gpus[0])
    members = [gpu for gpu in gpus if gpu.name == first.name]
    labels = {f"{GPU}.count": str(len(members))}
    if first.name is not None:
        labels[f"{GPU}.product"] = sanitise(first.name)
    labels.update({key: value for key, value in _hardware_labels(GPU, members).items() if not key.endswith(".memory")})
    return labels


def _labels_per_model(gpus: t.Sequence[Gpu]) -> Labels:
    """Labels with our own prefix for each model of a host with several models. Other labels describe only one model."""
    models = _gpus_by_model(gpus)
    if len(models) < 2:
        return {}
    labels: Labels = {}
    for name, members in models.items():
        product = sanitise(name)
        short = product[len("NVIDIA-"):] if product.startswith("NVIDIA-") else product
        prefix = f"{OUR_PREFIX}/{_shorten(short, _MODEL_LENGTH)}"
        labels[f"{prefix}.product"] = product
        labels[f"{prefix}.count"] = str(len(members))
        labels[f"{prefix}.mig.capable"] = _bool(any(gpu.mig_capable for gpu in members))
        labels.update(_hardware_labels(prefix, members))
    return labels


# -- MIG


def _mig_types(gpus: t.Sequence[Gpu]) -> dict[str, list[tuple[Gpu, MigDevice]]]:
    """Maps a MIG profile as in labels (`1g.10gb.me`) to the MIG devices of this profile, in the order of GPUs."""
    types: dict[str, list[tuple[Gpu, MigDevice]]] = {}
    for gpu in gpus:
        for device in gpu.mig_devices or ():
            types.setdefault(device.profile.replace("+", "."), []).append((gpu, device))
    return types


def _mig_labels(resource: str, kind: str, devices: t.Sequence[tuple[Gpu, MigDevice]], sharing: Sharing) -> Labels:
    gpu, device = devices[0]
    labels = _product_labels(resource, gpu.name or "", ("MIG", kind), len(devices), sharing)
    labels.update({f"{resource}.{suffix}": str(value) for suffix, value in device.attributes.items()})
    return labels


def _labels_mixed(gpus: t.Sequence[Gpu], sharing: Sharing) -> Labels:
    labels: Labels = {}
    for kind, devices in _mig_types(gpus).items():
        labels.update(_mig_labels(f"nvidia.com/mig-{kind}", kind, devices, sharing))
    return labels


def _labels_single(gpus: t.Sequence[Gpu], sharing: Sharing) -> Labels:
    enabled = [gpu for gpu in gpus if gpu.mig_enabled]
    if not enabled:
        return {}
    types = _mig_types(gpus)
    empty = any(gpu.mig_devices is not None and not gpu.mig_devices for gpu in enabled)
    if not types and not empty and len(enabled) == len(gpus):
        return {}  # the layout could not be read
    if empty or len(enabled) != len(gpus) or len(types) != 1:
        return {f"{GPU}.product": _product_value(enabled[0].name or "", "MIG", "INVALID"), f"{GPU}.count": "0",
                f"{GPU}.replicas": "0", f"{GPU}.sharing-strategy": "", f"{GPU}.memory": "0"}
    kind, devices = next(iter(types.items()))
    return _mig_labels(GPU, kind, devices, sharing)


def _clique_label(gpus: t.Sequence[Gpu]) -> Labels:
    """The clique label, if all GPUs with a fabric have the same cluster and clique; otherwise no label."""
    clusters = {gpu.fabric[0] for gpu in gpus if gpu.fabric}
    cliques = {gpu.fabric[1] for gpu in gpus if gpu.fabric}
    if len(clusters) != 1 or len(cliques) != 1:
        return {}
    return {"nvidia.com/gpu.clique": f"{clusters.pop()}.{cliques.pop()}"}
