# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver DaemonSets of a fleet with several operating systems, on a real API server whose scheduler assigns the
pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import driver_containers
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import read_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.cluster import resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import driver_references, formats

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.world import release, retire
from tests.waiting import until

DRIVER = "nvidia-driver-daemonset"
DEPLOY = "nvidia.com/gpu.deploy.driver"


class Fleet:
    """Two Nodes with Ubuntu 22.04; one with 24.04 can join. Other Nodes of the cluster do not count."""

    def __init__(self, made: clusters.Cluster, client: Client, name: str) -> None:
        self.made, self.client, self.name = made, client, name
        self.a, self.b, self.later = (f"{name}-{letter}" for letter in "abc")
        self.names: list[str] = []
        self.join([self.a, self.b], "ubuntu22.04")

    def join(self, names: list[str], system: str) -> None:
        lab_nodes.create(self.made, [lab_nodes.Node(name, system, "h100-80", 8) for name in names], lab_nodes.Labels())
        for name in names:
            self.label(name, **{DEPLOY: "true"})
        self.names += names

    def leave(self, name: str) -> None:
        retire(self.made, name)
        self.names.remove(name)

    def label(self, name: str, **labels: str) -> None:
        self.client.merge_patch("v1", "Node", name, None, {"metadata": {"labels": labels}})

    def deliver(self, policy: Any, rejected: list[str] | None = None) -> dict[str, Any]:
        """Delivers a policy. rejected: the Nodes without a plan."""
        release = releases.release("26.7.0")
        given = formats.read(policy, release)
        seen = {**read_cluster.read_cluster(self.client),
                **read_cluster.read_named(self.client, self.name, driver_references.named(given))}
        seen["nodes"] = {name: node for name, node in seen["nodes"].items() if name in self.names}
        systems = {(node["os"]["id"], node["os"]["version"]) for node in seen["nodes"].values()}
        lasting = driver_containers.existing_names(given, systems, release)
        seen.update(read_cluster.read_drivers(self.client, self.name, lasting))
        if driver_containers.has_nvidia_drivers(given):
            seen.update(read_cluster.read_nvidia_drivers(self.client, self.name))
        plan = resolve_cluster(given, release, seen, components.placements("cluster"), {},
                               {"namespace": self.name, "strict": rejected is None}, "never")
        assert list(plan["rejected"]) == (rejected or [])
        namespace = objects.namespace_manifest(self.name, False)
        result: dict[str, Any] = deliver.present(self.client, objects.wanted({
            objects.SHARED: [namespace], "driver": render("driver", plan)}), ["driver"], False,
            kept=deliver.kept_daemon_sets(plan))
        return result

    def served(self) -> dict[str, list[tuple[str, str]]]:
        """By Node the DaemonSet and the image's tag of each driver pod. A pod whose DaemonSet is being replaced has
        no DaemonSet until the new one has adopted it."""
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in self.names}
        for pod in self.client.list("v1", "Pod", self.name):
            owner, = pod["metadata"].get("ownerReferences") or [{"name": ""}]
            tag = pod["spec"]["containers"][0]["image"].rpartition(":")[2]
            if "deletionTimestamp" not in pod["metadata"] and made_for(pod) in found:
                found[made_for(pod)].append((owner["name"], tag))
        return found

    def comes_to(self, expected: dict[str, tuple[str, str]]) -> None:
        """Waits until exactly these pods exist."""
        until(lambda: self.served() == {name: [one] for name, one in expected.items()}, f"driver pods are {expected}")

    def pods(self) -> dict[str, str]:
        """Maps Nodes to the uid of their pod."""
        return {made_for(pod): pod["metadata"]["uid"]
                for pod in self.client.list("v1", "Pod", self.name)
                if "deletionTimestamp" not in pod["metadata"] and made_for(pod) in self.names}


@pytest.fixture
def fleet(cluster: clusters.Cluster, client: Client, fresh: Callable[[], str]) -> Iterator[Fleet]:
    """Fresh Nodes and a namespace; the delivered objects are removed at the end."""
    made = Fleet(cluster, client, fresh())
    yield made
    deliver.absent(client, ["driver"], 180, False)
    release(client, made.name)
    for name in [*made.names]:
        made.leave(name)


def made_for(pod: dict[str, Any]) -> str:
    """The Node for which the controller has created a pod, also before the scheduler has bound it."""
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def nvidia_driver(name: str, version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}, "spec": {
        "driverType": "gpu", "image": "driver", "default": "nodeSelector" not in spec, "version": version, **spec}}


def test_a_second_system_restarts_nobody(fleet: Fleet, audit: Audit) -> None:
    fleet.deliver(None)
    first = (DRIVER, "595.91.07-ubuntu22.04")
    fleet.comes_to({fleet.a: first, fleet.b: first})
    before = fleet.pods()
    fleet.join([fleet.later], "ubuntu24.04")
    fleet.deliver(None)
    fleet.comes_to({fleet.a: first, fleet.b: first,
                    fleet.later: (f"{DRIVER}-ubuntu24.04", "595.91.07-ubuntu24.04")})
    assert before.items() <= fleet.pods().items()
    audit.start()
    assert fleet.deliver(None)["changed"] is False
    assert not [one for one in audit.writes if one["agent"] == "gpuops.nvidia"]


def test_a_pool_that_vanishes_is_pruned(fleet: Fleet) -> None:
    fleet.join([fleet.later], "ubuntu24.04")
    fleet.deliver(None)
    assert {one["name"] for one in daemon_sets(fleet)} == {f"{DRIVER}-ubuntu22.04", f"{DRIVER}-ubuntu24.04"}
    fleet.leave(fleet.later)
    fleet.deliver(None)
    assert {one["name"] for one in daemon_sets(fleet)} == {f"{DRIVER}-ubuntu22.04"}


def test_nvidia_drivers(fleet: Fleet) -> None:
    """The canary Node gets its driver and the others get the default one; a Node that is labelled later changes its
    driver."""
    fleet.join([fleet.later], "ubuntu24.04")
    fleet.label(fleet.a, canary="yes")
    policy = [nvidia_driver("canary", "610.57.04", nodeSelector={"canary": "yes"}), nvidia_driver("most", "595.91.07")]
    fleet.deliver(policy)
    canary = ("nvidia-gpu-driver-canary-ubuntu22.04", "610.57.04-ubuntu22.04")
    later = ("nvidia-gpu-driver-most-ubuntu24.04", "595.91.07-ubuntu24.04")
    fleet.comes_to({fleet.a: canary, fleet.b: ("nvidia-gpu-driver-most-ubuntu22.04", "595.91.07-ubuntu22.04"),
                    fleet.later: later})
    fleet.label(fleet.b, canary="yes")
    fleet.deliver(policy)
    fleet.comes_to({fleet.a: canary, fleet.b: canary, fleet.later: later})


def test_nvidia_drivers_with_an_affinity(fleet: Fleet) -> None:
    """The controller of DaemonSets gives each Node the driver that the plan gives it: by a label, by a number, or by
    the name of the Node."""
    fleet.join([fleet.later], "ubuntu22.04")
    fleet.label(fleet.a, canary="yes", slots="9")
    canary = ("nvidia-gpu-driver-canary-ubuntu22.04", "610.57.04-ubuntu22.04")
    most = ("nvidia-gpu-driver-most-ubuntu22.04", "595.91.07-ubuntu22.04")
    labelled = {"matchExpressions": [{"key": "canary", "operator": "Exists"},
                                     {"key": "slots", "operator": "Gt", "values": ["8"]}]}
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [fleet.b]}]}
    for terms, chosen in (([labelled], {fleet.a}), ([labelled, named], {fleet.a, fleet.b}), ([named], {fleet.b})):
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        fleet.deliver([nvidia_driver("canary", "610.57.04", default=False, nodeAffinity=affinity),
                       nvidia_driver("most", "595.91.07")])
        fleet.comes_to({name: canary if name in chosen else most for name in fleet.names})


def test_a_bad_nvidia_driver_keeps_no_other_from_its_nodes(fleet: Fleet) -> None:
    """The Node of this NVIDIADriver keeps its current pod."""
    fleet.label(fleet.a, zone="a")
    fleet.label(fleet.b, zone="b")

    def policy(version: str, **bad: Any) -> list[dict[str, Any]]:
        return [nvidia_driver("one", version, nodeSelector={"zone": "a"}),
                nvidia_driver("two", version, nodeSelector={"zone": "b"}, **bad)]

    fleet.deliver(policy("595.91.07"))
    former = ("nvidia-gpu-driver-two-ubuntu22.04", "595.91.07-ubuntu22.04")
    fleet.comes_to({fleet.a: ("nvidia-gpu-driver-one-ubuntu22.04", "595.91.07-ubuntu22.04"), fleet.b: former})
    pods = fleet.pods()
    bad = policy("610.57.04", secretEnv="missing")
    assert fleet.deliver(bad, rejected=[fleet.b])["changed"]
    found = fleet.client.list("apps/v1", "DaemonSet", fleet.name)
    assert {one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2]
            for one in found} == {"nvidia-gpu-driver-one-ubuntu22.04": "610.57.04-ubuntu22.04", former[0]: former[1]}
    assert fleet.pods()[fleet.b] == pods[fleet.b]
    assert not fleet.deliver(bad, rejected=[fleet.b])["changed"]


def test_kernels(fleet: Fleet) -> None:
    fleet.join([fleet.later], "ubuntu24.04")
    fleet.deliver({"driver": {"usePrecompiled": True, "version": "580"}})
    kernels = {name: lab_nodes.SYSTEMS[name].kernel for name in ("ubuntu22.04", "ubuntu24.04")}
    old, new = ((f"{DRIVER}-{kernel}-{name}", f"580-{kernel}-{name}") for name, kernel in kernels.items())
    fleet.comes_to({fleet.a: old, fleet.b: old, fleet.later: new})


def test_files_of_the_user(fleet: Fleet, kubectl: Kubectl) -> None:
    """A missing file is an error before anything is written; an existing file reaches the pods."""
    policy = {"driver": {"repoConfig": {"configMapName": "repos"}, "secretEnv": "pro"}}
    with pytest.raises(PolicyError) as caught:
        fleet.deliver(policy)
    assert [one["reason"].partition(" is ")[0] for one in caught.value.details["refusals"]] == [
        "driver.repoConfig.configMapName: ConfigMap 'repos'", "driver.secretEnv: Secret 'pro'"]
    assert fleet.client.get("v1", "Namespace", fleet.name) is None
    kubectl("create", "namespace", fleet.name)
    kubectl("-n", fleet.name, "create", "configmap", "repos", "--from-literal=my.list=deb x")
    kubectl("-n", fleet.name, "create", "secret", "generic", "pro", "--from-literal=TOKEN=x")
    fleet.deliver(policy)
    pod = fleet.client.get("apps/v1", "DaemonSet", DRIVER, fleet.name)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert "/etc/apt/sources.list.d/my.list" in [one["mountPath"] for one in container["volumeMounts"]]
    assert container["envFrom"] == [{"secretRef": {"name": "pro"}}]


def daemon_sets(fleet: Fleet) -> list[dict[str, Any]]:
    """The DaemonSets that are not being removed."""
    found = [one["metadata"] for one in fleet.client.list("apps/v1", "DaemonSet", fleet.name)]
    return [one for one in found if "deletionTimestamp" not in one]
