# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a preflight in a cluster. Pure. PRIVATE."""

from __future__ import annotations

import posixpath
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.container_toolkit import ToolkitPart
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts, HostFacts, Node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import PCI
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untolerated_taints import untolerated
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import node_facts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight_release, profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, Result
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.plans import ClusterPlan, FleetPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_openshift

# The results of a check for all Nodes: (Node, severity, text, fix).
NodeResults = t.Iterator[t.Tuple[str, str, str, str]]
CLUSTER = "cluster"
# The label of Nodes on which Google's own device plugin does not run (GKE, "Use the NVIDIA GPU Operator").
_NO_GKE_PLUGIN = "gke-no-default-nvidia-gpu-device-plugin"
_GKE_GPU = "cloud.google.com/gke-accelerator"
# The first version of containerd that supports the NRI plugin, by major version (GPU Operator 26.3 release notes).
_NRI_FROM = {1: (1, 7, 30), 2: (2, 1)}


@dataclass(frozen=True)
class Cluster:
    """A cluster and the data for its checks. plan: None if there is none; hosts: facts by host, None if unknown."""

    facts: ClusterFacts
    plan: ClusterPlan | None
    release: Release | None
    hosts: t.Mapping[str, HostFacts | None]

    @property
    def gpu_nodes(self) -> dict[str, Node]:
        """The Nodes with the label for a GPU."""
        return {name: node for name, node in self.facts["nodes"].items() if node["gpu"]}

    @property
    def toolkit(self) -> ToolkitPart | None:
        """The plan of the container toolkit, None if it is not delivered in the cluster."""
        return t.cast("ToolkitPart", self.plan["components"]["container_toolkit"]) if self.plan and self.delivers(
            "container_toolkit") else None

    @property
    def by_host(self) -> t.Mapping[str, str]:
        """The hosts in the inventory, by their Nodes."""
        return self.plan["nodes"]["by_host"] if self.plan else {}

    def delivers(self, component: str) -> bool:
        """Whether the plan delivers a component in the cluster."""
        parts = self.plan["components"] if self.plan else {}
        return component in parts and parts[component]["state"] == "present"

    def brings(self, component: str, node: str) -> bool:
        """Whether a component is delivered to a Node by the cluster, and not on the Node's host."""
        on_host = self.plan["deploy"]["on_host"] if self.plan else {}
        return self.delivers(component) and component not in on_host.get(node, ())


def of_cluster(facts: ClusterFacts, plan: FleetPlan | None, release: Release | None,
               hosts: t.Mapping[str, HostFacts | None]) -> t.Iterator[Finding]:
    """All findings of a cluster. hosts: the facts by host."""
    cluster = Cluster(facts, plan.get("cluster") if plan else None, release, hosts)
    for check, of_whole in CLUSTER_CHECKS.items():
        for severity, text, fix in of_whole(cluster):
            yield Finding(CLUSTER, check, severity, text, fix)
    for check, of_nodes in NODE_CHECKS.items():
        for node, severity, text, fix in of_nodes(cluster):
            yield Finding(node, check, severity, text, fix)


def _kubernetes(cluster: Cluster) -> t.Iterator[Result]:
    """A finding if the release is not validated with the cluster's Kubernetes version on each system of the Nodes with
    a GPU. Versions of OpenShift are in a separate table, which L(_systems) reads."""
    release, version = cluster.release, cluster.facts["version"]
    if release is None or cluster_openshift.reported(cluster.facts):
        return
    found = {(system["id"], system["version"]) for system in (node["os"] for node in cluster.gpu_nodes.values())
             if system}
    unsupported = [f"{os_id} {os_version}".strip() for os_id, os_version in sorted(found or {("", "")})
                   if releases.kubernetes_supported(release, version, os_id, os_version) is False]
    if unsupported:
        on_systems = f" on {' and '.join(unsupported)}" if found else ""
        yield ("warning", f"Kubernetes {version}{on_systems} is not in the support table of release {release.version}",
               "Choose a release that supports it (gpu_release)")


def _nfd(cluster: Cluster) -> t.Iterator[Result]:
    label = PCI[0]
    if cluster.gpu_nodes:
        return
    if cluster.facts["nfd"] == "none" and not cluster.delivers("nfd"):
        yield ("error", f"NFD is not installed, and no Node has the label {label}: the GPU nodes are not known",
               "Set nfd.enabled: true in the policy, or install NFD")
    elif cluster.facts["nfd"] == "none":
        yield "info", f"no Node has the label {label} yet: this run installs NFD, which sets it", ""
    else:
        yield ("warning", f"NFD is installed, but no Node has the label {label}: NFD finds no GPU",
               "Make sure that the NFD worker runs on the GPU nodes (taints), and that its PCI labels have only the "
               "vendor, or class and vendor (sources.pci.deviceLabelFields)")


def _runtimes(cluster: Cluster) -> t.Iterator[Result]:
    runtimes = sorted({node["runtime"] for node in cluster.gpu_nodes.values()})
    if len(runtimes) > 1 and cluster.plan and cluster.toolkit:
        yield ("warning", f"GPU nodes have different container runtimes ({', '.join(runtimes)}); the toolkit "
               f"configures only {cluster.plan['common']['runtime']}", "Use one container runtime on all GPU nodes")


def _undetected(cluster: Cluster) -> NodeResults:
    """Findings about Nodes without the label for a GPU whose hosts in the inventory have GPUs."""
    if cluster.facts["nfd"] == "none":
        return
    label, nodes = PCI[0], cluster.facts["nodes"]
    for name, host in cluster.by_host.items():
        facts = cluster.hosts.get(host)
        if facts and facts["gpus"] and name in nodes and not nodes[name]["gpu"]:
            yield (name, "error", f"the host has GPUs, but its Node does not have the label {label}: NFD does not "
                   "detect them", "Make sure that the NFD worker runs on this Node, and read its log")


def _ready(cluster: Cluster) -> NodeResults:
    for name, node in cluster.gpu_nodes.items():
        if not node["ready"]:
            yield name, "warning", "the Node is NotReady, so no pods start on it", "Read the log of its kubelet"


def _taints(cluster: Cluster) -> NodeResults:
    if cluster.plan is None:
        return
    for name, node in cluster.gpu_nodes.items():
        for taint in untolerated(node.get("taints") or (), cluster.plan["common"]["tolerations"]):
            text = f"{taint['key']}={taint['value']}" if taint.get("value") else taint["key"]
            yield (name, "warning", f"the pods of the components do not tolerate the taint {text}:{taint['effect']} of "
                   "this Node", "Add a toleration to daemonsets.tolerations (and to the tolerations of the NFD worker)")


def _systems(cluster: Cluster) -> NodeResults:
    release = cluster.release
    for name, node in cluster.gpu_nodes.items():
        system = node["os"]
        if release and system and cluster.brings("driver", name):
            yield from ((name, *one) for one in preflight_release.system(release, system["id"], system["version"]))


def _containerd(cluster: Cluster) -> NodeResults:
    release = cluster.release
    for name, node in cluster.gpu_nodes.items():
        version = node["runtime_version"]
        if release and node["runtime"] == "containerd" and version and cluster.brings(
                "container_toolkit", name) and releases.containerd_supported(release, version) is False:
            yield (name, "warning", f"containerd {version} is not in the support table of release {release.version}",
                   "Upgrade containerd, or choose a release that supports it (gpu_release)")


def _toolkit(cluster: Cluster) -> t.Iterator[Result]:
    """Known faults of the toolkit's image that its vendor has published."""
    if cluster.toolkit:
        version = cluster.toolkit["images"]["container_toolkit"].rpartition(":")[2].lstrip("v").split("-")[0]
        yield from preflight_release.toolkit(version)


def _nri(cluster: Cluster) -> NodeResults:
    if not cluster.plan or not cluster.plan["common"]["nri"]:
        return
    for name, node in cluster.gpu_nodes.items():
        version = version_key(node["runtime_version"])
        if node["runtime"] == "containerd" and version and version < _NRI_FROM.get(version[0], (0,)):
            yield (name, "error", f"containerd {node['runtime_version']} is too old for the NRI plugin, which needs "
                   "1.7.30 or 2.1", "Set cdi.nriPluginEnabled: false in the policy, or upgrade containerd")


def _gke(cluster: Cluster) -> NodeResults:
    if not cluster.delivers("device_plugin"):
        return
    for name, node in cluster.gpu_nodes.items():
        if _GKE_GPU in node["labels"] and node["labels"].get(_NO_GKE_PLUGIN) != "true":
            yield (name, "warning", "the device plugin of GKE runs here, too, and conflicts with the planned one",
                   f"Create the node pool with the label {_NO_GKE_PLUGIN}=true, or set devicePlugin.enabled: false")


def _profiles(cluster: Cluster) -> NodeResults:
    """Findings about the profiles of Nodes. The summary is omitted for hosts in the inventory, because their own
    findings contain it."""
    for name, node in cluster.gpu_nodes.items():
        profile = profiles.detect(node_facts.facts_of_node(name, node), cluster=True)
        if profile is None:
            continue
        if name not in cluster.by_host:
            yield name, "info", f"{profile.summary}; {profile.because}", ""
        yield from ((name, *one) for one in (*_conflicts(cluster, name, profile), *_settings(cluster, name, profile)))


def _conflicts(cluster: Cluster, name: str, profile: profiles.Profile) -> t.Iterator[Result]:
    """Findings about components that the plan delivers to a Node although its profile includes them."""
    for component in profile.components:
        if not cluster.brings(component, name):
            continue
        yield ("warning" if profile.replaceable(component) else "error",
               f"the plan delivers the {by_name(component).title} to this Node, which already has one: "
               f"{profile.reason(component)}",
               f"Set {by_name(component).section}.enabled: false in the policy, or label the Nodes that already have "
               f"one with {LABELS[component]}=false" if component in LABELS else
               f"Set {by_name(component).section}.enabled: false in the policy")


def _settings(cluster: Cluster, name: str, profile: profiles.Profile) -> t.Iterator[Result]:
    """Findings about plan values that differ from the settings of a profile, such as the socket of k3s's containerd."""
    if not cluster.toolkit or not cluster.brings("container_toolkit", name):
        return
    sockets = [folder["path"] for folder in cluster.toolkit["folders"] if folder["name"] == "containerd-socket"]
    for path, value in profile.settings.items():
        variable = path.rpartition(".")[2]
        if path == "toolkit.env.CONTAINERD_SOCKET" and sockets and sockets != [posixpath.dirname(value)]:
            yield ("error", f"the toolkit does not use the socket of {profile.title}'s containerd",
                   f"Set {variable} in toolkit.env of the policy to {value}")


CLUSTER_CHECKS: t.Dict[str, t.Callable[[Cluster], t.Iterator[Result]]] = {
    "kubernetes": _kubernetes, "nfd": _nfd, "runtime": _runtimes, "toolkit": _toolkit,
}
NODE_CHECKS: t.Dict[str, t.Callable[[Cluster], NodeResults]] = {
    "nfd": _undetected, "ready": _ready, "taints": _taints, "system": _systems, "containerd": _containerd, "nri": _nri,
    "device_plugin": _gke, "profile": _profiles,
}
