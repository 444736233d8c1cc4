# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of a Node whose host was not read."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.node_facts import facts_of_node
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample

NFD = "feature.node.kubernetes.io"
# What GPU feature discovery writes for eight A100, and NFD beside it.
A100 = {
    f"{NFD}/pci-10de.present": "true", f"{NFD}/pci-15b3.present": "true", f"{NFD}/cpu-cpuid.HYPERVISOR": "true",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.family": "ampere", "nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.machine": "p4de.24xlarge", "nvidia.com/mig.capable": "true", "nvidia.com/vgpu.present": "false",
    "nvidia.com/cuda.driver-version.full": "580.126.20", "nvidia.com/cuda.runtime-version.full": "13.0",
}


def node(labels: dict[str, str] | None = None, **more: t.Any) -> dict[str, t.Any]:
    """A Node as read_cluster returns it."""
    return {"labels": labels or {}, "annotations": {}, "os": {"id": "ubuntu", "version": "24.04"},
            "os_image": "Ubuntu 24.04.3 LTS", "kernel": "6.8.0-1018-aws", "arch": "amd64", "runtime": "containerd",
            "runtime_version": "1.7.28", "kubelet": "v1.33.5", "provider": None, "taints": [], "ready": True,
            "gpu": True, **more}


def shape(value: t.Any, levels: int = 3) -> t.Any:
    """The keys, and the keys of nested mappings."""
    return {key: shape(part, levels - 1) for key, part in value.items()} if isinstance(value, dict) and levels else None


@pytest.mark.parametrize("labels", [{}, A100])
def test_same_shape(labels: dict[str, str]) -> None:
    """The keys are those of gpu_info, whatever is known."""
    found, whole = facts_of_node("n1", node(labels)), facts_sample.facts()
    assert shape(found, 2) == shape(whole, 2)
    assert [set(gpu) for gpu in found["gpus"]] == [set(whole["gpus"][0])] * len(found["gpus"])
    assert set(found["runtimes"]["containerd"]) == set(whole["runtimes"]["containerd"])


def test_described_node() -> None:
    """The GPUs, the driver and the machine come from labels."""
    found = facts_of_node("n1", node(A100, provider="aws"))
    assert len(found["gpus"]) == 8
    gpu = found["gpus"][7]
    assert (gpu["device_id"], gpu["model"], gpu["architecture"], gpu["mig_capable"], gpu["memory_mib"],
            gpu["compute_capability"]) == ("20b2", "NVIDIA A100-SXM4-80GB", "ampere", True, 81920, "8.0")
    assert (found["driver"]["loaded"], found["driver"]["nvml"]) == (
        "580.126.20", {"available": True, "error": None, "cuda": "13.0"})
    host = found["host"]
    assert (host["arch"], host["cloud"], host["virtual"], host["machine"], found["mellanox"], found["vgpu"]) == (
        "x86_64", "aws", "vm", "p4de.24xlarge", True, None)
    assert (host["kernel"]["flavour"], host["kernel"]["headers_package"], host["kernel"]["headers"]) == (
        "aws", "linux-headers-6.8.0-1018-aws", None)
    assert found["nvlink"] == {"switches": None, "fabric": None}


def test_undescribed_node() -> None:
    """Before feature discovery runs, there is a GPU without known properties, and nothing is invented."""
    found = facts_of_node("n1", node({"nvidia.com/gpu.present": "true"}, provider=None))
    gpu, = found["gpus"]
    assert {value for value in gpu.values() if value} == set()
    assert (found["driver"]["loaded"], found["driver"]["nvml"]["available"], found["mellanox"]) == (None, None, None)
    assert facts_of_node("n1", node(gpu=False))["gpus"] == []


@pytest.mark.parametrize(("labels", "device", "count", "memory", "fabric"), [
    ({"product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "count": "56", "memory": "9728"}, "20b2", 1, None, None),
    ({"product": "NVIDIA-L40S-SHARED", "count": "4", "memory": "46068"}, "26b9", 4, 46068, "none"),
    ({"product": "NVIDIA-B200", "count": "8"}, "2901", 8, None, "nvlink5"),
    ({"product": "NVIDIA-GB200", "count": "4"}, "2941", 4, None, "nvlink5_rack"),
    ({"product": "NVIDIA-GB300", "count": "4"}, "31c2", 4, None, "nvlink5_rack"),
    ({"product": "NVIDIA-R100", "count": "2", "family": "rubin"}, None, 2, None, None),
])
def test_products(labels: dict[str, str], device: str | None, count: int, memory: int | None,
                  fabric: str | None) -> None:
    """Products that are partitioned, shared, of another generation, or unknown."""
    found = facts_of_node("n1", node({f"nvidia.com/gpu.{key}": value for key, value in labels.items()}))
    assert [(gpu["device_id"], gpu["memory_mib"]) for gpu in found["gpus"]] == [(device, memory)] * count
    assert found["nvlink"]["fabric"] == fabric
    if device is None:
        assert (found["gpus"][0]["model"], found["gpus"][0]["architecture"]) == ("NVIDIA-R100", "rubin")


@pytest.mark.parametrize(("image", "os_id", "version", "immutable", "family"), [
    ("Bottlerocket OS 1.20.3 (aws-k8s-1.30-nvidia)", "bottlerocket", "1.20.3", True, "other"),
    ("Flatcar Container Linux by Kinvolk 3975.2.0 (Oklo)", "flatcar", "3975.2.0", True, "other"),
    ("Talos (v1.9.2)", "talos", "1.9.2", True, "other"),
    ("Container-Optimized OS from Google", "cos", None, True, "other"),
    ("Amazon Linux 2023.6.20241010", "amzn", "2023.6.20241010", False, "redhat"),
    ("Something Else 1", None, None, None, "other"),
])
def test_prepared_systems(image: str, os_id: str | None, version: str | None, immutable: bool | None,
                          family: str) -> None:
    """Systems without driver images are recognized only by what the kubelet reports."""
    host = facts_of_node("n1", node(os=None, os_image=image))["host"]
    assert (host["os"]["id"], host["os"]["version_id"], host["markers"]["immutable"], host["os"]["family"]) == (
        os_id, version, immutable, family)


@pytest.mark.parametrize(("kubelet", "labels", "system", "kubernetes"), [
    ("v1.33.5+rke2r1", {}, "ubuntu", "rke2"), ("v1.33.5+k3s1", {}, "ubuntu", "k3s"),
    ("v1.33.5+k0s", {}, "ubuntu", "k0s"), ("v1.33.5-eks-113cf36", {}, "amzn", "eks"),
    ("v1.33.5-gke.1080000", {}, "cos", "gke"), ("v1.33.5", {"kubernetes.azure.com/cluster": "mc"}, "ubuntu", "aks"),
    ("v1.33.5", {"node.openshift.io/os_id": "rhel"}, "rhel", "openshift"), ("v1.33.5", {}, "rhcos", "openshift"),
    ("v1.33.5", {"microk8s.io/cluster": "true"}, "ubuntu", "microk8s"), ("v1.33.5", {}, "ubuntu", None),
])
def test_whose_kubernetes(kubelet: str, labels: dict[str, str], system: str, kubernetes: str | None) -> None:
    """The distribution of Kubernetes follows from the version of the kubelet, labels, or the system."""
    found = facts_of_node("n1", node(labels, kubelet=kubelet, os={"id": system, "version": "1"}))
    assert found["host"]["markers"]["kubernetes"] == kubernetes


def test_driver_and_vgpu_labels() -> None:
    """A driver that the operator found on the Node; a vGPU guest; the older labels for the version of the driver."""
    found = facts_of_node("n1", node({
        "nvidia.com/gpu.deploy.driver": "pre-installed", "nvidia.com/vgpu.present": "true",
        "nvidia.com/vgpu.host-driver-version": "580.65.05", "nvidia.com/vgpu.host-driver-branch": "r580_00",
        "nvidia.com/cuda.driver.major": "580", "nvidia.com/cuda.driver.minor": "65",
        "nvidia.com/cuda.driver.rev": "06"}))
    assert (found["driver"]["source"], found["driver"]["loaded"]) == ("preinstalled", "580.65.06")
    assert found["vgpu"] == {"version": "580.65.05", "branch": "r580_00"}


@pytest.mark.parametrize("label", ["cuda.driver-version.full", "cuda.driver.major"])
@pytest.mark.parametrize("version", ["unknown", "", "9" * 63, "\u0668.1", "580.x"])
def test_a_label_that_is_no_version_tells_none(label: str, version: str) -> None:
    assert facts_of_node("n1", node({f"nvidia.com/{label}": version}))["driver"]["loaded"] is None


@pytest.mark.parametrize(("count", "gpus"), [("8", 8), ("257", 1), ("9" * 63, 1), ("\u0668", 1), ("0", 1), ("x", 1)])
def test_a_label_that_no_machine_can_have_takes_no_memory(count: str, gpus: int) -> None:
    labels = {**A100, "nvidia.com/gpu.count": count, "nvidia.com/gpu.memory": "9" * 63}
    found = facts_of_node("n1", node(labels))["gpus"]
    assert len(found) == gpus and found[0]["memory_mib"] is None
