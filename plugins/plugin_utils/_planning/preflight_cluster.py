# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight looks at in a cluster. Pure. PRIVATE."""

from __future__ import annotations

import posixpath
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import PCI
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.tolerations import untolerated
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import node_facts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight_release, profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, Said

Facts = t.Mapping[str, t.Any]
Node = t.Mapping[str, t.Any]
# Checks of Nodes: by Node what is said of it.
Told = t.Iterator[t.Tuple[str, str, str, str]]
CLUSTER = "cluster"
# A label by which Google's own device plugin leaves a node pool alone (GKE, "Use the NVIDIA GPU Operator").
_NO_GKE_PLUGIN = "gke-no-default-nvidia-gpu-device-plugin"
_GKE_GPU = "cloud.google.com/gke-accelerator"
# The first containerd of each series whose NRI serves the toolkit (GPU Operator 26.3 release notes).
_NRI_FROM = {1: (1, 7, 30), 2: (2, 1)}


@dataclass(frozen=True)
class Cluster:
    """seen: what read_cluster returned; part: the plan of the cluster, empty without one; hosts: facts by host."""

    seen: Facts
    part: Facts
    release: Release | None
    hosts: t.Mapping[str, Facts | None]

    @property
    def nodes(self) -> t.Mapping[str, Node]:
        """All Nodes by name."""
        return t.cast("t.Mapping[str, Node]", self.seen["nodes"])

    @property
    def gpu_nodes(self) -> dict[str, Node]:
        """The Nodes that are labelled as having a GPU."""
        return {name: node for name, node in self.nodes.items() if node["gpu"]}

    def delivers(self, component: str) -> bool:
        """Whether the plan puts a component into the cluster."""
        parts = self.part.get("components") or {}
        return component in parts and parts[component]["state"] == "present"

    def brings(self, component: str, node: str) -> bool:
        """Whether a component comes to a Node from the cluster, and not by way of its host."""
        on_host = (self.part.get("deploy") or {}).get("on_host") or {}
        return self.delivers(component) and component not in on_host.get(node, ())


def of_cluster(seen: Facts, plan: Facts | None, release: Release | None,
               hosts: t.Mapping[str, Facts | None]) -> t.Iterator[Finding]:
    """All findings of a cluster."""
    cluster = Cluster(seen, (plan or {}).get("cluster") or {}, release, hosts)
    for check, look in CLUSTER_CHECKS.items():
        for severity, text, fix in look(cluster):
            yield Finding(CLUSTER, check, severity, text, fix)
    for check, tell in NODE_CHECKS.items():
        for node, severity, text, fix in tell(cluster):
            yield Finding(node, check, severity, text, fix)


def _kubernetes(cluster: Cluster) -> t.Iterator[Said]:
    version = str(cluster.seen["version"])
    if cluster.release and releases.kubernetes_supported(cluster.release, version) is False:
        yield ("warning", f"Kubernetes {version} is not in the support table of release {cluster.release.version}",
               "Choose a release that has it (gpu_release), or expect to be on your own")


def _nfd(cluster: Cluster) -> t.Iterator[Said]:
    label = PCI[0]
    if cluster.gpu_nodes:
        return
    if cluster.seen["nfd"] == "none" and not cluster.delivers("nfd"):
        yield ("error", f"there is no NFD, and no Node carries {label}: nothing tells where GPUs are",
               "Set nfd.enabled to true, or install NFD")
    elif cluster.seen["nfd"] == "none":
        yield "info", "no Node is labelled as having a GPU yet: NFD comes with this run", ""
    else:
        yield ("warning", f"NFD is there and no Node carries {label}: it finds no GPU",
               "See that its worker runs on the GPU nodes (taints) and that its PCI labels are made of the vendor, or "
               "of class and vendor, alone (sources.pci.deviceLabelFields)")


def _runtimes(cluster: Cluster) -> t.Iterator[Said]:
    met = sorted({node["runtime"] for node in cluster.gpu_nodes.values()})
    if len(met) > 1 and cluster.delivers("container_toolkit"):
        yield ("warning", f"GPU nodes have different container runtimes ({', '.join(met)}); the toolkit configures "
               f"{cluster.part['common']['runtime']} alone", "Give the GPU nodes one runtime")


def _undetected(cluster: Cluster) -> Told:
    """Nodes that are hosts of the inventory with GPUs, and are not labelled though NFD is at work."""
    if cluster.seen["nfd"] == "none":
        return
    label = PCI[0]
    for name, host in ((cluster.part.get("nodes") or {}).get("by_host") or {}).items():
        facts = cluster.hosts.get(host)
        if facts and facts["gpus"] and name in cluster.nodes and not cluster.nodes[name]["gpu"]:
            yield (name, "error", f"the host has GPUs and its Node does not carry {label}: NFD does not detect them",
                   "See that the NFD worker runs on this Node and look at its log")


def _ready(cluster: Cluster) -> Told:
    for name, node in cluster.gpu_nodes.items():
        if not node["ready"]:
            yield name, "warning", "the Node is not ready: what is delivered to it waits", "Look at its kubelet"


def _taints(cluster: Cluster) -> Told:
    tolerations = (cluster.part.get("common") or {}).get("tolerations")
    if tolerations is None:
        return
    for name, node in cluster.gpu_nodes.items():
        for taint in untolerated(node.get("taints") or (), tolerations):
            words = f"{taint['key']}={taint['value']}" if taint.get("value") else taint["key"]
            yield (name, "warning", f"no pod of the components comes here: taint {words}:{taint['effect']} is not "
                   "tolerated", "Add it to daemonsets.tolerations (and to the tolerations of the NFD worker)")


def _systems(cluster: Cluster) -> Told:
    release = cluster.release
    for name, node in cluster.gpu_nodes.items():
        system = node.get("os")
        if release and system and cluster.brings("driver", name):
            yield from ((name, *said) for said in preflight_release.system(release, system["id"], system["version"]))


def _containerd(cluster: Cluster) -> Told:
    release = cluster.release
    for name, node in cluster.gpu_nodes.items():
        version = node["runtime_version"]
        if release and node["runtime"] == "containerd" and version and cluster.brings(
                "container_toolkit", name) and releases.containerd_supported(release, version) is False:
            yield (name, "warning", f"containerd {version} is not in the support table of release {release.version}",
                   "Upgrade containerd, or choose a release that has it (gpu_release)")


def _toolkit(cluster: Cluster) -> t.Iterator[Said]:
    """Published faults of the toolkit's image."""
    if cluster.delivers("container_toolkit"):
        images = cluster.part["components"]["container_toolkit"].get("images") or {}
        version = str(images.get("container_toolkit") or "").rpartition(":")[2].lstrip("v").split("-")[0]
        yield from preflight_release.toolkit(version)


def _nri(cluster: Cluster) -> Told:
    if not (cluster.part.get("common") or {}).get("nri"):
        return
    for name, node in cluster.gpu_nodes.items():
        version = version_key(node["runtime_version"])
        if node["runtime"] == "containerd" and version and version < _NRI_FROM.get(version[0], (0,)):
            yield (name, "error", f"containerd {node['runtime_version']} is too old for the NRI plugin, which needs "
                   "1.7.30 or 2.1", "Set cdi.nriPluginEnabled to false, or upgrade containerd")


def _gke(cluster: Cluster) -> Told:
    if not cluster.delivers("device_plugin"):
        return
    for name, node in cluster.gpu_nodes.items():
        if _GKE_GPU in node["labels"] and node["labels"].get(_NO_GKE_PLUGIN) != "true":
            yield (name, "warning", "GKE's own device plugin serves this Node too, and two of them contend",
                   f"Make the node pool with the label {_NO_GKE_PLUGIN}=true, or set devicePlugin.enabled to false")


def _profiles(cluster: Cluster) -> Told:
    """What the profile of a Node says; a host of the inventory tells more of itself."""
    by_host = (cluster.part.get("nodes") or {}).get("by_host") or {}
    for name, node in cluster.gpu_nodes.items():
        profile = profiles.detect(node_facts.facts_of_node(name, node), cluster=True)
        if profile is None:
            continue
        if name not in by_host:
            yield name, "info", f"{profile.summary}; {profile.because}", ""
        yield from ((name, *said) for said in (*_contended(cluster, name, profile), *_settings(cluster, name, profile)))


def _contended(cluster: Cluster, name: str, profile: profiles.Profile) -> t.Iterator[Said]:
    """What the plan delivers to a Node although somebody else does so already."""
    for component in profile.components:
        if not cluster.brings(component, name):
            continue
        yield ("warning" if profile.replaceable(component) else "error",
               f"the {by_name(component).title} is delivered to this Node, which has one: {profile.reason(component)}",
               f"Set {by_name(component).section}.enabled to false, or label the Nodes that have it with "
               f"{LABELS[component]}=false" if component in LABELS else
               f"Set {by_name(component).section}.enabled to false")


def _settings(cluster: Cluster, name: str, profile: profiles.Profile) -> t.Iterator[Said]:
    """Where the plan does not have what a profile needs, such as the socket of k3s's containerd."""
    if not cluster.brings("container_toolkit", name):
        return
    folders = cluster.part["components"]["container_toolkit"].get("folders") or ()
    sockets = [folder["path"] for folder in folders if folder["name"] == "containerd-socket"]
    for path, value in profile.settings.items():
        variable = path.rpartition(".")[2]
        if path == "toolkit.env.CONTAINERD_SOCKET" and sockets and sockets != [posixpath.dirname(value)]:
            yield ("error", f"the toolkit looks for containerd elsewhere than {profile.title} has it",
                   f"Add {variable}={value} to toolkit.env of the policy")


CLUSTER_CHECKS: t.Dict[str, t.Callable[[Cluster], t.Iterator[Said]]] = {
    "kubernetes": _kubernetes, "nfd": _nfd, "runtime": _runtimes, "toolkit": _toolkit,
}
NODE_CHECKS: t.Dict[str, t.Callable[[Cluster], Told]] = {
    "nfd": _undetected, "ready": _ready, "taints": _taints, "system": _systems, "containerd": _containerd, "nri": _nri,
    "device_plugin": _gke, "profile": _profiles,
}
