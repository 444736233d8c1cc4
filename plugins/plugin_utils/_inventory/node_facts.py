# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes facts in the structure of gpu_info from a Node object. Pure. PRIVATE.

Sources: labels of node feature discovery 0.17 and GPU feature discovery 0.20; nodeInfo and providerID; the versions of
kubelets of k3s, RKE2, k0s, EKS and GKE; the labels of clouds and OpenShift.
"""

from __future__ import annotations

import functools
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import MODELS, Model
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.collect import SCHEMA
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.driver import MODULES
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.machine import IMMUTABLE
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import MELLANOX
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import family_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import flavour_of, headers_package
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.cluster_nodes import GPU_PRODUCT, Node

# The facts of gpu_info, or a part of them, in JSON. L(answer_shapes.FACTS) defines their structure.
Facts = t.Dict[str, t.Any]

_NFD = "feature.node.kubernetes.io"
_GPU = "nvidia.com/gpu"
# The highest number of GPUs, and the highest memory of a GPU in MiB, that a label may contain.
_MOST_GPUS, _MOST_MEMORY = 256, 16 * 2**20
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
# (prefix of nodeInfo.osImage, ID in os-release) of systems for which there is no driver image.
_IMAGES = (("Bottlerocket OS", "bottlerocket"), ("Flatcar Container Linux", "flatcar"), ("Talos", "talos"),
           ("Container-Optimized OS", "cos"), ("Amazon Linux", "amzn"), ("Microsoft Azure Linux", "azurelinux"),
           ("CBL-Mariner", "mariner"))
# (part of the kubelet's version, distribution of Kubernetes), (prefix of a label, distribution of Kubernetes).
_KUBELETS = (("+rke2", "rke2"), ("+k3s", "k3s"), ("+k0s", "k0s"), ("-eks-", "eks"), ("-gke.", "gke"))
_LABELS = (("node.openshift.io/", "openshift"), ("eks.amazonaws.com/", "eks"), ("cloud.google.com/gke-", "gke"),
           ("kubernetes.azure.com/", "aks"), ("microk8s.io/", "microk8s"))


def facts_of_node(name: str, node: Node) -> HostFacts:
    """The facts that a Node object contains. Unknown values are None, unknown lists are empty.

    If feature discovery has not labelled the GPUs yet, the facts contain one GPU with unknown values.
    """
    labels = node["labels"]
    system, gpus, version = _system(node), _gpus(node), _driver_version(labels)
    facts = {
        "schema": SCHEMA,
        "host": _host(name, node, system),
        "gpus": gpus,
        "nvswitches": [],
        "nvlink": {"switches": None, "fabric": _fabric(labels)},
        "xids": None,
        "mellanox": _mellanox(labels),
        "vgpu": _vgpu(labels),
        "driver": {"loaded": version, "flavour": None, "library": version, "packages": {},
                   "source": "preinstalled" if labels.get(f"{_GPU}.deploy.driver") == "pre-installed" else None,
                   "dkms": [], "reboot_pending": None, "missing_files": None, "nodes": None, "services": None,
                   "nvml": {"available": None if version is None else True, "error": None,
                            "cuda": labels.get("nvidia.com/cuda.runtime-version.full")}},
        "modules": dict.fromkeys((*MODULES, "nouveau_denied")),
        "runtimes": {runtime: {"version": node["runtime_version"], "running": True, "boot": None, "stale": None,
                               "cri": None, "nvidia": None, "classes": []}
                     if runtime == node["runtime"] else None for runtime in ("containerd", "docker", "crio", "podman")},
        "rootless": {},
        "toolkit": {"version": None, "packages": {}, "missing_files": None, "cdi_specs": [], "cdi": None},
        "software": {"cuda": {}, "dcgm": None, "dcgm_exporter": None, "node_status_exporter": None},
        "journals": {"brought": [], "faults": [], "former_driver": None},
        "mig_boot": {"enabled": None, "masked": None, "gpus": None, "vendor": None},
        "clients": [],
    }
    return t.cast("HostFacts", facts)


def _host(name: str, node: Node, system: Facts) -> Facts:
    labels, kernel, family = node["labels"], node["kernel"], system["family"]
    hypervisor = labels.get(f"{_NFD}/cpu-cpuid.HYPERVISOR") == "true"
    return {
        "hostname": labels.get("kubernetes.io/hostname") or name, "os": system,
        "kernel": {"release": kernel or None, "flavour": flavour_of(kernel, family) if kernel else None,
                   "headers_package": headers_package(kernel, family, system["id"]) if kernel else None,
                   "headers": None, "headers_available": None, "newest_installed": None},
        "arch": _ARCHITECTURES.get(node["arch"], node["arch"]) or None,
        "machine": labels.get(f"{_GPU}.machine"), "vendor": None, "virtual": "vm" if hypervisor else None,
        "cloud": node.get("provider"), "secure_boot": None, "mok": {"tool": None, "enrolled": None}, "lockdown": None,
        "markers": {"dgx": None, "kubernetes": _kubernetes(node, system["id"]),
                    "immutable": system["id"] in IMMUTABLE if system["id"] else None},
    }


def _system(node: Node) -> Facts:
    image = node["os_image"]
    system = node["os"]
    if system is None:
        found = next((os_id for start, os_id in _IMAGES if image.startswith(start)), None)
        version = re.search(r"\d+(?:\.\d+)*", image) if found else None
        system = {"id": found, "version": version.group(0) if version else None}
    return {"id": system["id"], "version_id": system["version"], "codename": None, "pretty_name": image or None,
            "family": family_of([system["id"] or ""])}


def _kubernetes(node: Node, os_id: str | None) -> str | None:
    if os_id == "rhcos":
        return "openshift"
    built = [name for part, name in _KUBELETS if part in (node.get("kubelet") or "")]
    labelled = [name for start, name in _LABELS if any(key.startswith(start) for key in node["labels"])]
    return next(iter(built + labelled), None)


def _gpus(node: Node) -> list[Facts]:
    labels = node["labels"]
    if not node["gpu"]:
        return []
    product = labels.get(GPU_PRODUCT, "")
    model = _models().get(_physical_product(product))
    # With the MIG strategy single, the label contains the number of MIG devices.
    count = _number(labels.get(f"{_GPU}.count", ""), _MOST_GPUS) if "-MIG-" not in product else None
    major, minor = (labels.get(f"{_GPU}.compute.{part}") for part in ("major", "minor"))
    memory = labels.get(f"{_GPU}.memory", "")
    gpu = {
        "pci": None, "device_id": model.device_id if model else None, "subsystem": None, "class": None,
        "model": model.name if model else product or None,
        "architecture": model.architecture if model else labels.get(f"{_GPU}.family"),
        "mig_capable": model.mig_capable if model else labels.get("nvidia.com/mig.capable") == "true",
        "kernel_driver": None, "index": None, "uuid": None, "minor": None, "serial": None,
        "memory_mib": _number(memory, _MOST_MEMORY) if "-MIG-" not in product else None,
        "compute_capability": f"{major}.{minor}" if major and minor else None, "mig": None, "fabric": None,
        "health": None, "error": None,
    }
    return [dict(gpu) for _each in range(count or 1)]


def _number(text: str, most: int) -> int | None:
    """The number in a label; None if the label does not contain a number from 1 to most."""
    found = re.fullmatch("[0-9]{1,12}", text)
    return int(text) if found and 0 < int(text) <= most else None


@functools.lru_cache(maxsize=1)
def _models() -> dict[str, Model]:
    """The models by the value of the product label. If several devices have one name, it is the first in the table."""
    return {"-".join(model.name.split()): model for model in reversed(list(MODELS.values())) if model.name}


def _physical_product(product: str) -> str:
    """The product without the suffixes that MIG and sharing add."""
    return product.partition("-MIG-")[0].replace("-SHARED", "")


def _fabric(labels: t.Mapping[str, str]) -> str | None:
    """The NVLink fabric of the model, None if unknown. It is unknown with NVSwitches, because no label shows them."""
    model = _models().get(_physical_product(labels.get(GPU_PRODUCT, "")))
    return None if model is None or model.fabric == "nvswitch" else model.fabric


def _mellanox(labels: t.Mapping[str, str]) -> bool | None:
    """Whether NFD has detected a network adapter of Mellanox; None without labels of NFD."""
    if not any(key.startswith(f"{_NFD}/pci-") for key in labels):
        return None
    return any(re.fullmatch(rf"{_NFD}/pci-(\d{{4}}_)?{MELLANOX}\.present", key) for key in labels)


def _vgpu(labels: t.Mapping[str, str]) -> Facts | None:
    if labels.get("nvidia.com/vgpu.present") != "true":
        return None
    return {"version": labels.get("nvidia.com/vgpu.host-driver-version"),
            "branch": labels.get("nvidia.com/vgpu.host-driver-branch")}


def _driver_version(labels: t.Mapping[str, str]) -> str | None:
    full = labels.get("nvidia.com/cuda.driver-version.full")
    parts = [labels.get(f"nvidia.com/cuda.driver.{part}") for part in ("major", "minor", "rev")]
    version = full or ".".join(part for part in parts if part)
    return version if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,5}){0,3}", version) else None
