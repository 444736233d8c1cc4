# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Live objects, and the facts that are derived from them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import label_keys
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.read_cluster import (
    read_cluster,
    read_drivers,
    read_kernels,
    read_named,
    read_nvidia_drivers,
    read_runtime,
)

PCI = "feature.node.kubernetes.io/pci-"
NFD = {"app.kubernetes.io/name": "node-feature-discovery"}
MANAGED = {"app.kubernetes.io/managed-by": "gpuops.nvidia"}
OURS = {**NFD, **MANAGED}
NFD_KIND, MONITORS = "nodefeatures.nfd.k8s-sigs.io", "servicemonitors.monitoring.coreos.com"


class Fake:
    """Answers the requests of read_cluster from memory, and counts them."""

    server = "https://10.0.0.1:6443"

    def __init__(self, definitions: dict[str, dict[str, str]] | None = None, **objects: list[dict[str, Any]]) -> None:
        self.objects = objects
        self.definitions = definitions or {}
        self.asked: list[str] = []

    def version(self) -> str:
        self.asked.append("version")
        return "v1.36.3"

    def list(self, api_version: str, kind: str, *, metadata_only: bool = False) -> list[dict[str, Any]]:
        self.asked.append(kind)
        assert metadata_only == (kind != "Node")
        return self.objects.get(kind, [])

    def get(self, api_version: str, kind: str, name: str) -> dict[str, Any] | None:
        self.asked.append(name)
        assert (api_version, kind) == ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
        return named(name, **self.definitions[name]) if name in self.definitions else None


def node(name: str = "n1", runtime: str = "containerd://1.7.28", image: str = "Ubuntu 22.04.5 LTS", ready: str = "True",
         **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": ready}],
                       "nodeInfo": {"containerRuntimeVersion": runtime, "osImage": image, "kernelVersion": "6.8.0",
                                    "architecture": "amd64"}}}


def named(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def test_a_node() -> None:
    client = Fake(Node=[node(**{f"{PCI}10de.present": "true"})], definitions={MONITORS: {}})
    assert read_cluster(client) == {
        "server": client.server, "version": "v1.36.3", "nfd": "none", "service_monitors": True,
        "prometheus_rules": False, "openshift": False,
        "nodes": {"n1": {"labels": {f"{PCI}10de.present": "true"}, "annotations": {},
                         "os": {"id": "ubuntu", "version": "22.04"}, "os_image": "Ubuntu 22.04.5 LTS",
                         "kernel": "6.8.0", "arch": "amd64", "runtime": "containerd", "runtime_version": "1.7.28",
                         "kubelet": "", "provider": None, "taints": [], "ready": True, "gpu": True}}}
    assert client.asked == ["version", "Node", NFD_KIND, MONITORS, "prometheusrules.monitoring.coreos.com"]


def test_nodes() -> None:
    nodes = read_cluster(Fake(Node=[
        node("crio", "cri-o://1.34.1", ready="Unknown"), node("docker", "docker://28.0", "Talos (v1.9)"),
        {"metadata": {"name": "new"}}]))["nodes"]
    assert [(one["runtime"], one["ready"]) for one in nodes.values()] == [
        ("crio", False), ("docker", True), ("", False)]
    assert [one["os"] for one in nodes.values()] == [{"id": "ubuntu", "version": "22.04"}, None, None]


VERSIONS = "clusterversions.config.openshift.io"
CLAIM = {"node.openshift.io/os_id": "rhel"}


@pytest.mark.parametrize(("nodes", "definitions", "expected"), [
    ([node()], {VERSIONS: {}}, False), ([node(), node("n2", **CLAIM)], {}, False),
    ([node(image="Red Hat Enterprise Linux CoreOS 9.6")], {VERSIONS: {}}, True),
    ([node(**CLAIM), node("n2", **CLAIM)], {VERSIONS: {}}, True),
])
def test_the_server_says_whether_it_is_openshift(nodes: list[Any], definitions: dict[str, Any], expected: bool) -> None:
    """One request, and only if a Node indicates it."""
    client = Fake(definitions, Node=nodes)
    assert read_cluster(client)["openshift"] is expected
    assert client.asked.count(VERSIONS) == (nodes != [node()])


def test_who_may_not_ask_whether_it_is_openshift_does_not_know() -> None:
    class Closed(Fake):
        def get(self, api_version: str, kind: str, name: str) -> dict[str, Any] | None:
            if name == VERSIONS:
                raise ClusterError("Forbidden.", status=403)
            return super().get(api_version, kind, name)

    assert read_cluster(Closed(Node=[node(**CLAIM)]))["openshift"] is None


@pytest.mark.parametrize(("provider_id", "provider"), [
    ("aws:///us-east-1a/i-0123456789abcdef0", "aws"), ("gce://project/us-central1-a/gke-1", "gcp"),
    ("azure:///subscriptions/1/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/s", "azure"),
    ("oci://ocid1.instance.oc1", "oracle"), ("k3s://n1", None), ("ocid1.instance.oc1", None),
])
def test_where_a_node_comes_from(provider_id: str, provider: str | None) -> None:
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    found = node()
    found["spec"] = {"providerID": provider_id, "taints": [taint]}
    found["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.5+k3s1"
    read = read_cluster(Fake(Node=[found]))["nodes"]["n1"]
    assert (read["provider"], read["kubelet"], read["taints"]) == (provider, "v1.33.5+k3s1", [taint])


@pytest.mark.parametrize(("label", "value", "gpu"), [
    (f"{PCI}10de.present", "true", True), (f"{PCI}0302_10de.present", "true", True),
    (f"{PCI}0300_10de.present", "true", True), ("nvidia.com/gpu.present", "true", True),
    (f"{PCI}10de.present", "false", False), (f"{PCI}15b3.present", "true", False),
])
def test_gpu_nodes(label: str, value: str, gpu: bool) -> None:
    assert read_cluster(Fake(Node=[node(**{label: value})]))["nodes"]["n1"]["gpu"] is gpu


@pytest.mark.parametrize(("definition", "deployments", "daemon_sets", "expected"), [
    (None, [], [], "none"), (None, [named("nfd-master")], [], "none"), (MANAGED, [], [], "ours"),
    ({}, [named("nfd-master")], [], "foreign"), ({}, [named("op-nfd-master")], [], "foreign"),
    ({}, [], [named("worker", **NFD)], "foreign"), ({}, [named("x", **OURS)], [named("y", **NFD)], "foreign"),
    # kinds that a removed NFD has left
    ({}, [named("my-nfd-master-tests")], [named("other")], "none"), ({}, [named("x", **OURS)], [], "none"),
])
def test_whose_nfd(definition: dict[str, str] | None, deployments: list[Any], daemon_sets: list[Any],
                   expected: str) -> None:
    client = Fake({} if definition is None else {NFD_KIND: definition}, Deployment=deployments, DaemonSet=daemon_sets)
    assert read_cluster(client)["nfd"] == expected


class Objects:
    """The objects of one namespace; some must not be read."""

    def __init__(self, forbidden: str = "", **objects: Any) -> None:
        self.objects = objects
        self.forbidden = forbidden
        self.asked: list[tuple[str, str, str | None, bool]] = []

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None,
            metadata_only: bool = False) -> dict[str, Any] | None:
        self.asked.append((kind, name, namespace, metadata_only))
        if name == self.forbidden:
            raise ClusterError("Forbidden.", status=403)
        found: dict[str, Any] | None = self.objects.get(name)
        return found


def test_what_a_policy_names() -> None:
    """For a Secret, only its existence is read."""
    client = Objects("hidden", repos={"data": {"b": "", "a": ""}}, empty={}, pro={"data": {"TOKEN": "eA=="}})
    assert read_named(client, "ns", {"ConfigMap": ["repos", "empty", "gone"], "Secret": ["pro", "lost", "hidden"]}) == {
        "config_maps": {"repos": {"b": "", "a": ""}, "empty": {}, "gone": None},
        "secrets": {"pro": True, "lost": False}}
    assert client.asked == [*(("ConfigMap", name, "ns", False) for name in ("repos", "empty", "gone")),
                            *(("Secret", name, "ns", True) for name in ("pro", "lost", "hidden"))]
    assert read_named(client, "ns", {"ConfigMap": [], "Secret": []}) == {"config_maps": {}, "secrets": {}}


def test_a_server_that_does_not_answer_is_no_missing_object() -> None:
    class Broken(Objects):
        def get(self, *_args: Any, **_more: Any) -> dict[str, Any] | None:
            raise ClusterError("Busy.", status=503)

    with pytest.raises(ClusterError, match="Busy"):
        read_named(Broken(), "ns", {"ConfigMap": ["a"], "Secret": []})


def test_our_driver_daemon_sets() -> None:
    marked = named("nvidia-driver-daemonset")
    marked["metadata"]["annotations"] = {"gpuops.nvidia/system": "ubuntu22.04"}
    marked["spec"] = {"template": {"spec": {"containers": [
        {"name": "side"}, {"name": "nvidia-driver-ctr", "image": "mirror.example:5000/x/driver:580.1.2-ubuntu22.04",
                           "env": [{"name": "KERNEL_MODULE_TYPE", "value": "open"}, {"name": "X", "valueFrom": {}}]}]}}}
    client = Objects(**{"nvidia-driver-daemonset": marked, "theirs": named("theirs")})
    assert read_drivers(client, "ns", ["nvidia-driver-daemonset", "theirs", "gone"]) == {
        "driver_daemon_sets": {"nvidia-driver-daemonset": "ubuntu22.04"},
        "driver_images": {"nvidia-driver-daemonset": {"tag": "580.1.2-ubuntu22.04", "kernel_module_type": "open"},
                          "theirs": {"tag": "", "kernel_module_type": ""}}}
    assert client.asked == [("DaemonSet", name, "ns", False) for name in ("nvidia-driver-daemonset", "theirs", "gone")]


def test_the_runtime_that_the_toolkit_configures() -> None:
    toolkit = named("nvidia-container-toolkit-daemonset")
    toolkit["spec"] = {"template": {"spec": {"containers": [
        {"name": "nvidia-container-toolkit-ctr", "env": [{"name": "RUNTIME", "value": "crio"}]}]}}}
    assert read_runtime(Objects(**{toolkit["metadata"]["name"]: toolkit}), "ns") == {"toolkit_runtime": "crio"}
    assert read_runtime(Objects(), "ns") == {"toolkit_runtime": ""}


def test_daemon_sets_of_kernels() -> None:
    def made(name: str, **selector: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"template": {"spec": {"nodeSelector": selector} if selector else {
        }}}}

    class Client(Fake):
        def list(self, api_version: str, kind: str, namespace: str | None = None,  # type: ignore[override]
                 *, metadata_only: bool = False) -> list[dict[str, Any]]:
            assert (api_version, kind, namespace, metadata_only) == ("apps/v1", "DaemonSet", "ns", False)
            return self.objects["DaemonSet"]

    kernel = "feature.node.kubernetes.io/kernel-version.full"
    client = Client(DaemonSet=[made("one", **{kernel: "5.15.0-84-generic"}), made("two", zone="a"), made("three")])
    assert read_kernels(client, "ns") == {"driver_kernels": {"one": "5.15.0-84-generic"}}


def test_daemon_sets_of_nvidia_drivers() -> None:
    """Those of the operator by their owner, ours by our annotation, which takes precedence; objects that are being
    removed or belong to others do not count."""
    def made(name: str, owner: str = "", mine: str = "", **more: Any) -> dict[str, Any]:
        return {"metadata": {
            "name": name, "labels": {"nvidia.com/node.os-version": "ubuntu22.04", **more.pop("labels", {})},
            "annotations": {"gpuops.nvidia/driver": mine} if mine else {},
            "ownerReferences": [{"kind": "NVIDIADriver", "name": owner}] if owner else [], **more}}

    class Client(Fake):
        def list(self, api_version: str, kind: str, namespace: str | None = None,  # type: ignore[override]
                 label_selector: str | None = None, *, metadata_only: bool = False) -> list[dict[str, Any]]:
            assert (namespace, label_selector) == (
                ("ns", "app.kubernetes.io/component=nvidia-driver") if kind == "DaemonSet" else (None, None))
            return super().list(api_version, kind, metadata_only=metadata_only)

    kernel = {"nvidia.com/precompiled.kernel-version": "5.15.0-84-generic"}
    drivers = [{"metadata": {"name": name, "uid": uid}} for name, uid in (("most", "1"), ("new", "2"))]
    client = Client(NVIDIADriver=drivers,
                    DaemonSet=[made("ours", mine="most"), made("theirs", "most"), made("built", "most", labels=kernel),
                               made("left", mine="gone"), made("going", "new", deletionTimestamp="now"),
                               made("nvidia-driver-daemonset")])
    assert read_nvidia_drivers(client, "ns") == {"nvidia_drivers": {
        "most": {"uid": "1", "there": {"ubuntu22.04": "ours", "ubuntu22.04-5.15.0-84-generic": "built"}},
        "new": {"uid": "2", "there": {}}, "gone": {"uid": "", "there": {"ubuntu22.04": "left"}}}}


def test_labels_that_we_have_written_are_read_if_the_list_is_lost() -> None:
    """The plan then has the same owned labels as the task that writes labels."""
    driver, foreign = label_keys.DEPLOY + "driver", label_keys.DEPLOY + "dcgm"
    one = node(**{f"{PCI}10de.present": "true", driver: "true", foreign: "true"})
    one["metadata"]["managedFields"] = [
        {"manager": "gpuops.nvidia", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, f"f:{driver}": {}}}}},
        {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{foreign}": {}}}}}]
    deploy = deploy_labels.parse_deploy({"components": {"driver": False}})

    def planned() -> tuple[bool, dict[str, list[str]]]:
        nodes = [deploy_labels.Node.of_facts(name, facts)
                 for name, facts in read_cluster(Fake(Node=[one]))["nodes"].items()]
        return deploy_labels.differs(nodes, deploy, 0), deploy_labels.leaving(nodes, deploy, deploy_labels.Terms(0))

    assert planned() == (True, {"driver": ["n1"]})
    one["metadata"]["annotations"] = {deploy_labels.ANNOTATION: driver}
    assert planned() == (True, {"driver": ["n1"]})
    assert "written" not in read_cluster(Fake(Node=[one]))["nodes"]["n1"]
