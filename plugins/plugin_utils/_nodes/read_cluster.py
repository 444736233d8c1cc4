# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the facts of a cluster on which the plan depends, in a few requests. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import (
    ClusterFacts,
    DriverImage,
    Node,
    Nodes,
    NvidiaDriver,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.cluster_nodes import (
    KERNEL,
    NVIDIA_DRIVER,
    SYSTEM,
    has_gpu,
    system_of,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import MANAGER, Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MANAGED_BY, MANAGER_NAME, Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import ANNOTATION
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_openshift import node_is_openshift

_NFD = {"app.kubernetes.io/name": "node-feature-discovery"}
# Maps the name of a cloud in spec.providerID (gce://project/zone/name) to its name in gpu_info.
_PROVIDERS = {"aws": "aws", "azure": "azure", "gce": "gcp", "oci": "oracle"}
# The label selector for driver DaemonSets, and the labels with the system and kernel of such a DaemonSet.
_DRIVERS = "app.kubernetes.io/component=nvidia-driver"
_PLACE = ("nvidia.com/node.os-version", "nvidia.com/precompiled.kernel-version")
# The names of the toolkit's DaemonSet, of its container and of the driver's container, as in the GPU Operator.
_TOOLKIT, _TOOLKIT_CONTAINER = "nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-ctr"
_DRIVER = "nvidia-driver-ctr"
_RUNTIMES = {"containerd": "containerd", "docker": "docker", "cri-o": "crio"}


class Reader(t.Protocol):
    """The methods of L(client) that are needed here."""

    server: str

    def version(self) -> str:
        """The version of the server, such as C(v1.36.3)."""

    def list(self, api_version: str, kind: str, namespace: str | None = None, label_selector: str | None = None, *,
             metadata_only: bool = False) -> t.Sequence[Live]:
        """Lists objects of a kind. namespace: None for all namespaces."""

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Live | None:
        """An object, None if it does not exist."""


def read_cluster(client: Reader) -> ClusterFacts:
    """Reads C({server, version, nodes: {NAME: {labels, annotations, os: {id, version} or None, os_image, kernel, arch,
    runtime, runtime_version, kubelet, provider, taints, ready, gpu}}, nfd: none|ours|foreign, service_monitors: bool,
    openshift: bool or None, prometheus_rules: bool}).

    os_image is what the kubelet reports (C(Ubuntu 22.04.5 LTS)); os comes from labels of NFD, else from os_image.
    kubelet is its version, provider the cloud (C(aws), C(azure), C(gcp), C(oracle)) or None, taints as in the Node.
    """
    with rights.named(t.cast(Client, client)):
        version = client.version()
        nodes = {node["metadata"]["name"]: _node(node) for node in client.list("v1", "Node")}
        found: ClusterFacts = {
            "server": client.server, "version": version, "nodes": nodes, "openshift": _is_openshift(client, nodes),
            "nfd": whose_nfd(client),
            "service_monitors": _definition(client, "servicemonitors.monitoring.coreos.com") is not None,
        }
    # The Prometheus operator installs both definitions. If the first is missing, the second is not requested.
    rules = found["service_monitors"] and _definition(client, "prometheusrules.monitoring.coreos.com") is not None
    return {**found, "prometheus_rules": rules}


class Named(t.TypedDict):
    """The objects that a policy names. config_maps: maps the name of a ConfigMap to its data, None if it does not
    exist; secrets: maps the name of a Secret to whether it exists."""

    config_maps: t.Dict[str, t.Optional[t.Dict[str, str]]]
    secrets: t.Dict[str, bool]


class Drivers(t.TypedDict):
    """The driver DaemonSets that exist. driver_daemon_sets: maps our DaemonSets to their operating systems."""

    driver_daemon_sets: t.Dict[str, str]
    driver_images: t.Dict[str, DriverImage]


class Finder(t.Protocol):
    """The methods of L(client) that are needed to read single objects."""

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None,
            metadata_only: bool = False) -> Live | None:
        """An object, None if it does not exist. namespace: None for a cluster-wide object."""


def read_named(client: Finder, namespace: str, named: t.Mapping[str, t.Sequence[str]]) -> Named:
    """Reads the ConfigMaps and Secrets that a policy names. The data of Secrets is not read. Objects that the user may
    not read are left out."""
    maps = _found(client, "ConfigMap", namespace, named["ConfigMap"])
    secrets = _found(client, "Secret", namespace, named["Secret"], metadata_only=True)
    return {"config_maps": {name: None if one is None else dict(one.get("data") or {}) for name, one in maps.items()},
            "secrets": {name: one is not None for name, one in secrets.items()}}


def read_drivers(client: Finder, namespace: str, names: t.Iterable[str]) -> Drivers:
    """Reads the driver DaemonSets with these names."""
    found = {name: client.get("apps/v1", "DaemonSet", name, namespace) for name in names}
    marks = {name: (one["metadata"].get("annotations") or {}).get(SYSTEM) for name, one in found.items() if one}
    containers = {name: _container(one, _DRIVER) for name, one in found.items() if one}
    return {"driver_daemon_sets": {name: mark for name, mark in marks.items() if mark},
            "driver_images": {name: {"tag": str(one.get("image") or "").rpartition(":")[2],
                                     "kernel_module_type": _variable(one, "KERNEL_MODULE_TYPE")}
                              for name, one in containers.items()}}


def read_runtime(client: Finder, namespace: str) -> dict[str, str]:
    """C({toolkit_runtime: NAME}): the container runtime that the cluster's toolkit configures, or an empty text."""
    found = client.get("apps/v1", "DaemonSet", _TOOLKIT, namespace)
    return {"toolkit_runtime": _variable(_container(found, _TOOLKIT_CONTAINER), "RUNTIME")}


def _container(daemon_set: Live | None, name: str) -> Live:
    """The container with this name of a DaemonSet, empty if there is none."""
    spec = (daemon_set or {}).get("spec") or {"template": {"spec": {"containers": []}}}
    return next((one for one in spec["template"]["spec"]["containers"] if one["name"] == name), {})


def _variable(container: Live, name: str) -> str:
    return next((str(one.get("value") or "") for one in container.get("env") or () if one["name"] == name), "")


def read_kernels(client: Reader, namespace: str) -> dict[str, dict[str, str]]:
    """C({driver_kernels: {NAME: KERNEL}}): the DaemonSets whose pods only run on Nodes with one kernel version."""
    found = {one["metadata"]["name"]: (one["spec"]["template"]["spec"].get("nodeSelector") or {}).get(KERNEL)
             for one in client.list("apps/v1", "DaemonSet", namespace)}
    return {"driver_kernels": {name: kernel for name, kernel in found.items() if kernel}}


def read_nvidia_drivers(client: Reader, namespace: str) -> dict[str, dict[str, NvidiaDriver]]:
    """C({nvidia_drivers: {NAME: {uid, there: {PLACE: DAEMON SET}}}}): the NVIDIADrivers that exist, and the DaemonSets
    that we or a GPU Operator created for them. uid: empty if only DaemonSets are left; PLACE: the operating system,
    with the kernel if modules are precompiled (C(ubuntu22.04-5.15.0-151-generic))."""
    found: dict[str, NvidiaDriver] = {
        one["metadata"]["name"]: {"uid": one["metadata"]["uid"], "there": {}}
        for one in client.list("nvidia.com/v1alpha1", "NVIDIADriver", metadata_only=True)}
    for one in client.list("apps/v1", "DaemonSet", namespace, label_selector=_DRIVERS, metadata_only=True):
        metadata = one["metadata"]
        labels = metadata.get("labels") or {}
        owners = [owner["name"] for owner in metadata.get("ownerReferences") or () if owner["kind"] == "NVIDIADriver"]
        mine = (metadata.get("annotations") or {}).get(NVIDIA_DRIVER)
        place = "-".join(labels[name] for name in _PLACE if name in labels)
        if not (mine or owners) or not place or "deletionTimestamp" in metadata:
            continue
        there = found.setdefault(mine or owners[0], {"uid": "", "there": {}})["there"]
        if mine or place not in there:
            there[place] = metadata["name"]
    return {"nvidia_drivers": found}


def _found(client: Finder, kind: str, namespace: str, names: t.Iterable[str],
           metadata_only: bool = False) -> dict[str, Live | None]:
    found = {}
    for name in names:
        try:
            found[name] = client.get("v1", kind, name, namespace, metadata_only=metadata_only)
        except ClusterError as error:
            if error.status != 403:
                raise
    return found


def _node(node: Live) -> Node:
    labels, annotations = dict(node["metadata"].get("labels") or {}), dict(node["metadata"].get("annotations") or {})
    status, spec = node.get("status") or {}, node.get("spec") or {}
    info = status.get("nodeInfo") or {}
    system = system_of(labels, info.get("osImage") or "")
    name, _separator, version = (info.get("containerRuntimeVersion") or "").partition("://")
    found: Node = {
        "labels": labels, "annotations": annotations,
        "os": {"id": system[0], "version": system[1]} if system else None, "os_image": info.get("osImage") or "",
        "kernel": info.get("kernelVersion") or "", "arch": info.get("architecture") or "",
        "runtime": _RUNTIMES.get(name, name), "runtime_version": version,
        "kubelet": info.get("kubeletVersion") or "", "taints": list(spec.get("taints") or ()),
        "provider": _PROVIDERS.get((spec.get("providerID") or "").partition("://")[0]), "ready": is_ready(node),
        "gpu": has_gpu(labels),
    }
    ours = () if ANNOTATION in annotations else written(node["metadata"])
    return {**found, "written": sorted(ours)} if ours else found


def written(metadata: Live) -> frozenset[str]:
    """The labels of a Node that this collection has written, according to managedFields."""
    fields = [(entry.get("fieldsV1") or {}).get("f:metadata") or {} for entry in metadata.get("managedFields") or []
              if entry.get("manager") == MANAGER]
    return frozenset(key[2:] for one in fields for key in one.get("f:labels") or {} if key.startswith("f:"))


def _is_openshift(client: Reader, nodes: Nodes) -> bool | None:
    """Whether the API server has the API of OpenShift, by which the GPU Operator also detects OpenShift. The server is
    queried only if a Node looks like a Node of OpenShift. None if the user may not read that."""
    if not any(node_is_openshift(node) for node in nodes.values()):
        return False
    try:
        return _definition(client, "clusterversions.config.openshift.io") is not None
    except ClusterError as error:
        if error.status != 403:
            raise
        return None


def whose_nfd(client: Reader) -> str:
    """Whose NFD the cluster has: C(ours), C(foreign) or C(none). Foreign definitions alone count as C(none)."""
    defined = _definition(client, "nodefeatures.nfd.k8s-sigs.io")
    if defined is None:
        return "none"
    if (defined["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER_NAME:
        return "ours"
    for kind in ("Deployment", "DaemonSet"):
        for item in client.list("apps/v1", kind, metadata_only=True):
            labels = item["metadata"].get("labels") or {}
            if labels.get(MANAGED_BY) != MANAGER_NAME and (
                    _NFD.items() <= labels.items() or item["metadata"]["name"].endswith("nfd-master")):
                return "foreign"
    return "none"


def _definition(client: Reader, name: str) -> Live | None:
    """A CustomResourceDefinition, read by its name: this costs less than a list of the objects of its kind."""
    return client.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", name)
