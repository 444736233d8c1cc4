# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes are drained and uncordoned on a real API server, which enforces disruption budgets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.drain import Drain, Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState

from lab.controlplane import cluster as clusters
from lab.controlplane import faults
from lab.controlplane import nodes as lab_nodes
from tests import processes
from tests.integration_cluster.conftest import Kubectl
from tests.integration_cluster.plays import module
from tests.integration_cluster.proxy import Flaky
from tests.integration_cluster.world import ROWS, retire
from tests.unit.simulated.fakes import Clock
from tests.waiting import until

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


class Yard:
    """Two Nodes with GPUs, and a namespace whose workloads run only on these Nodes."""

    def __init__(self, made: clusters.Cluster, tool: Kubectl, client: Client, name: str) -> None:
        self.made, self.tool, self.client, self.name = made, tool, client, name
        self.nodes = [f"{name}-a", f"{name}-b"]
        lab_nodes.create(made, [lab_nodes.Node(node, model="a100-80", gpus=8) for node in self.nodes],
                         lab_nodes.Labels())
        amount = {"status": {part: {GPU: "8"} for part in ("capacity", "allocatable")}}
        with made.api() as server:
            for node in self.nodes:
                server.request("PATCH", f"{lab_nodes.NODES}/{node}/status", amount, faults.MERGE)
            server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        # A controller makes it; before that, pods without a controller of their own are refused.
        self.until(lambda: client.get("v1", "ServiceAccount", "default", name) is not None)
        self.open(self.nodes[0])

    def open(self, node: str) -> None:
        """Allows the workloads to run on the Node from now on."""
        self.mark(node, yard=self.name)

    def mark(self, node: str, **labels: str) -> None:
        """Sets labels as another client would."""
        with self.made.api() as server:
            server.request("PATCH", f"{lab_nodes.NODES}/{node}", {"metadata": {"labels": labels}}, faults.MERGE)

    def deploy(self, app: str, replicas: int = 1, gpu: bool = True, budget: int | None = None) -> None:
        """A Deployment with Ready pods and a disruption budget."""
        if budget is not None:
            self.client.apply({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                               "metadata": {"name": app, "namespace": self.name},
                               "spec": {"minAvailable": budget, "selector": {"matchLabels": {"app": app}}}})
        container = {"name": "x", "image": "example.org/x:1", **({"resources": {"limits": {GPU: "1"}}} if gpu else {})}
        self.client.apply({"apiVersion": "apps/v1", "kind": "Deployment",
                           "metadata": {"name": app, "namespace": self.name},
                           "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": app}},
                                    "template": {"metadata": {"labels": {"app": app}}, "spec": {
                                        "nodeSelector": {"yard": self.name}, "containers": [container]}}}})
        self.until(lambda: self.ready(app) == replicas)
        if budget is not None:
            self.until(lambda: self.get("poddisruptionbudget", app)["status"].get("currentHealthy") == replicas)

    def get(self, kind: str, name: str) -> Object:
        """Returns an object. kind: in lower case."""
        row = ROWS[kind]
        found = self.client.get(row.api_version, row.kind, name, self.name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def ready(self, app: str) -> int:
        return int((self.get("deployment", app).get("status") or {}).get("readyReplicas", 0))

    def until(self, done: Callable[[], object]) -> None:
        until(done, "the cluster comes so far")

    def state(self, node: str = "") -> tuple[bool, bool | None]:
        """(whether the Node is cordoned, whether it was cordoned before, according to the annotation)."""
        found = self.client.get("v1", "Node", node or self.nodes[0])
        assert found is not None
        return NodeState.read(found).cordoned, cordon.before(NodeState.read(found))

    def pods(self, node: str = "") -> list[str]:
        """The applications of the pods that run on a Node."""
        found = self.client.list("v1", "Pod", namespace=self.name,
                                 field_selector=f"spec.nodeName={node or self.nodes[0]}")
        return sorted(pod["metadata"]["labels"]["app"] for pod in found)

    def drain(self, client: Client | None = None, clock: Callable[[], float] = time.monotonic,
              sleep: Callable[[float], None] = time.sleep, **more: Any) -> Drain:
        """Drains the first Node."""
        request = Request(**{"names": self.nodes[:1], "level": "drain", **more})
        return Drain(client or self.client, request, clock=clock, sleep=sleep)

    def close(self) -> None:
        """Ends the workloads. The Namespace stays, because its removal takes hundreds of requests."""
        with self.made.api() as server:
            for kind in ("deployments", "daemonsets"):
                server.request("DELETE", f"/apis/apps/v1/namespaces/{self.name}/{kind}")
        retire(self.made, *self.nodes)


@pytest.fixture
def yard(cluster: clusters.Cluster, kubectl: Kubectl, client: Client, fresh: Callable[[], str]) -> Iterator[Yard]:
    """A yard without workloads."""
    made = Yard(cluster, kubectl, client, fresh())
    yield made
    made.close()


def evictions(audit: Any) -> list[str]:
    """The evicted pods in their order."""
    return [one["name"] for one in audit.requests if one["uri"].partition("?")[0].endswith("/eviction")]


def test_pods_with_gpus_first_and_then_nothing_more_to_do(yard: Yard, audit: Any) -> None:
    yard.deploy("a-web", gpu=False)
    yard.deploy("trainer", replicas=2)
    options = EvictionOptions(only_gpu=False)
    audit.start()
    preview = yard.drain(evictions=options, check=True).drained().as_dict()
    assert not audit.writes and len(preview["plan"]) == 4
    result = yard.drain(evictions=options).drained().as_dict()
    assert result["plan"] == preview["plan"] and result["cordoned"] == yard.nodes[:1]
    assert [name.rsplit("-", 2)[0] for name in evictions(audit)] == ["trainer", "trainer", "a-web"]
    assert yard.pods() == [] and yard.state() == (True, False)
    audit.start()
    assert not yard.drain(evictions=options).drained().as_dict()["changed"] and not [
        one for one in audit.writes if one["agent"] == "gpuops.nvidia"]
    yard.drain().uncordoned().as_dict()
    assert yard.state() == (False, None)
    yard.until(lambda: yard.pods() == ["a-web", "trainer", "trainer"])


def test_only_gpus_leaves_the_rest(yard: Yard) -> None:
    yard.deploy("web", gpu=False)
    yard.deploy("trainer")
    evicted = yard.drain().drained().evicted
    assert [one["pod"].startswith(f"{yard.name}/trainer") for one in evicted] == [True]
    assert yard.pods() == ["web"]


def test_a_budget_blocks_until_it_is_free(yard: Yard) -> None:
    """One of two replicas must be available: the second eviction waits until the first replica is Ready elsewhere."""
    yard.deploy("server", replicas=2, budget=1)
    lines: list[str] = []

    def told(line: str) -> None:
        """No other Node accepts the pod before the run has reported that it waits for it."""
        if not lines:
            yard.open(yard.nodes[1])
        lines.append(line)

    result = Drain(yard.client, Request(yard.nodes[:1], level="drain", timeout=180), told).drained().as_dict()
    assert len(result["evicted"]) == 2 and not result["blocked"] and yard.pods() == []
    # What the server says hangs on whether the budget's status has followed the first eviction.
    assert "waits for" in lines[0] and "disruption budget server " in lines[0]
    yard.until(lambda: yard.pods(yard.nodes[1]) == ["server", "server"])


@pytest.mark.parametrize("before", [False, True])
def test_at_the_deadline_the_budget_is_named_and_all_is_as_before(yard: Yard, audit: Any, before: bool) -> None:
    """A dry run on the server shows it beforehand, so that no other pod ends without need."""
    yard.deploy("server", budget=1)
    yard.deploy("free")
    if before:
        yard.tool("cordon", yard.nodes[0])
    clock = Clock()
    audit.start()
    result = yard.drain(timeout=4, clock=clock, sleep=clock.sleep).drained().as_dict()
    assert clock.now == Clock().now + 4
    assert result["failed"] and [one["budget"] for one in result["blocked"]] == ["server", ""]
    assert "disruption budget server needs 1 healthy pods and has 1 currently" in result["msg"]
    assert yard.state() == (before, None) and yard.pods() == ["free", "server"] and not evictions(audit)


def test_two_budgets_for_a_pod_are_named(yard: Yard) -> None:
    """The server answers such an eviction with status 500."""
    yard.deploy("server", budget=0)
    yard.client.apply({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                       "metadata": {"name": "second", "namespace": yard.name},
                       "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "server"}}}})
    yard.until(lambda: (yard.get("poddisruptionbudget", "second").get("status") or {}).get("observedGeneration"))
    clock = Clock()
    result = yard.drain(timeout=2, clock=clock, sleep=clock.sleep).drained().as_dict()
    assert result["failed"] and "more than one PodDisruptionBudget" in result["blocked"][0]["reason"]
    assert yard.state() == (False, None)


def test_pods_that_nobody_brings_back_are_refused_before_anything(yard: Yard, audit: Any) -> None:
    containers = [{"name": "x", "image": "example.org/x:1", "resources": {"limits": {GPU: "1"}}}]
    yard.client.apply({"apiVersion": "v1", "kind": "Pod",
                       "metadata": {"name": "alone", "namespace": yard.name, "labels": {"app": "alone"}},
                       "spec": {"nodeName": yard.nodes[0], "containers": containers}})
    audit.start()
    with pytest.raises(ClusterError, match=f"{yard.name}/alone on .*no controller creates it again"):
        yard.drain().drained().as_dict()
    assert not [one for one in audit.writes if one["agent"] == "gpuops.nvidia"] and yard.state() == (False, None)
    assert len(yard.drain(evictions=EvictionOptions(force=True)).drained().as_dict()["evicted"]) == 1


def test_a_cordon_of_somebody_else_stays(yard: Yard) -> None:
    yard.tool("cordon", yard.nodes[0])
    yard.drain().drained().as_dict()
    assert yard.state() == (True, True)
    yard.drain(level="never").uncordoned().as_dict()
    assert yard.state() == (True, None)
    assert not yard.drain(level="never").uncordoned().as_dict()["changed"]


def test_a_killed_run_is_continued_and_given_back(yard: Yard) -> None:
    yard.deploy("server", budget=1)
    given = {"nodes": yard.nodes[:1], "kubeconfig": str(yard.made.kubeconfig), "disruption": "drain"}
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-m", "gpuops.nvidia.node_drain", "-a",
               json.dumps(given)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as run:
        try:
            yard.until(lambda: yard.state() == (True, False))
        finally:
            processes.kill(run.pid)
    assert yard.state() == (True, False)
    yard.tool("--namespace", yard.name, "delete", "poddisruptionbudget", "server")
    result = yard.drain().drained().as_dict()
    assert [step["action"] for step in result["plan"]] == ["evict"] and yard.pods() == []
    yard.drain().uncordoned().as_dict()
    assert yard.state() == (False, None)


def test_as_a_user_calls_it(yard: Yard, tmp_path: Path) -> None:
    def call(yard: Yard, *flags: str, **options: Any) -> Object:
        return module(tmp_path, "node_drain", *flags, **{
            "nodes": yard.nodes[:1], "kubeconfig": str(yard.made.kubeconfig), **options})

    yard.deploy("trainer")
    pending = call(yard)
    assert not pending["changed"] and [step["action"] for step in pending["pending"]] == ["cordon", "evict"]
    assert yard.state() == (False, None)
    preview = call(yard, "--check", "--diff", disruption="drain")
    done = call(yard, "--diff", disruption="drain")
    assert done["plan"] == preview["plan"] and done["shown"] == preview["shown"]
    assert f"+cordon: Node {yard.nodes[0]}" in done["shown"] and yard.pods() == []
    assert not call(yard, disruption="drain")["changed"]
    assert call(yard, state="uncordoned")["uncordoned"] == yard.nodes[:1]
    assert "has no Node nowhere" in call(yard, nodes=["nowhere"], disruption="drain")["msg"]


@pytest.mark.parametrize("fault", [429, 500, "drop", "lose"])
def test_a_busy_server_and_broken_connections_are_ridden_through(yard: Yard, tmp_path: Path, fault: int | str) -> None:
    yard.deploy("trainer", replicas=2)
    with Flaky(str(yard.made.kubeconfig), lambda number, method, path: fault if number % 3 == 2 else None) as server:
        client = Client(server.kubeconfig(tmp_path))
        result = yard.drain(client).drained().as_dict()
        assert len(result["evicted"]) == 2 and not result["blocked"] and yard.state() == (True, False)
        yard.drain(client).uncordoned().as_dict()
    assert yard.state() == (False, None) and any(fault == one[2] for one in server.seen)


def test_a_lost_race_for_the_node_is_read_anew(yard: Yard, tmp_path: Path) -> None:
    """Another client writes the Node twice between our read and our write."""
    raced: list[int] = []

    def race(number: int, method: str, path: str) -> None:
        if method == "PATCH" and len(raced) % 3 < 2:
            yard.client.merge_patch("v1", "Node", yard.nodes[0], None,
                                    {"metadata": {"annotations": {"example.com/count": str(number)}}})
        raced.extend([number] * (method == "PATCH"))

    with Flaky(str(yard.made.kubeconfig), race) as server:
        client = Client(server.kubeconfig(tmp_path))
        assert yard.drain(client).drained().as_dict()["cordoned"] == yard.nodes[:1]
        assert len(raced) == 3 and yard.state() == (True, False)
        yard.drain(client).uncordoned().as_dict()
    assert len(raced) == 6 and yard.state() == (False, None)
