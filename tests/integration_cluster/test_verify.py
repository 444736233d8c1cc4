# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_verify on a real API server: which components become ready, which do not and why, and what users see
meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.rollout import Rollout

from lab import cli
from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes
from tests.integration import user
from tests.integration_cluster.plays import play
from tests.integration_cluster.world import retire
from tests.unit.simulated.fakes import Clock
from tests.waiting import until

INITS = {
    "driver": ["k8s-driver-manager"],
    "validator": ["driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation"],
    "device_plugin": ["toolkit-validation"],
}
Object = dict[str, Any]


class Site:
    """Two simulated Nodes and a namespace with operands on them; faults affect only these."""

    def __init__(self, made: clusters.Cluster, client: Client, namespace: str) -> None:
        self.made, self.client, self.namespace = made, client, namespace
        self.label = f"{namespace}.example/gpu"
        place = namespace.rpartition("-")[2]
        self.nodes = [f"node-{place}-{number}" for number in (1, 2)]
        lab_nodes.create(made, [lab_nodes.Node(node, model="a100-80", gpus=8) for node in self.nodes],
                         lab_nodes.Labels())
        self.faults: list[tuple[str, ...]] = []
        for node in self.nodes:
            client.merge_patch("v1", "Node", node, None, {"metadata": {"labels": {self.label: "true"}}})
        self.namespace_with()

    def namespace_with(self, **labels: str) -> None:
        """The Namespace, with labels for Pod Security Admission."""
        self.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": self.namespace,
            "labels": {f"pod-security.kubernetes.io/{key}": value for key, value in labels.items()}}})

    def app(self, component: str) -> str:
        """The DaemonSet of a component."""
        return f"{self.namespace}-{component}".replace("_", "-")

    def deliver(self, *components: str, image: str = "example.org/x:1", update: str = "RollingUpdate") -> None:
        """DaemonSets of these components, by server-side apply as operands does."""
        for name in components:
            app = self.app(name)
            pod = {"nodeSelector": {self.label: "true"},
                   "initContainers": [{"name": init, "image": image} for init in INITS[name]],
                   "containers": [{"name": f"{name.replace('_', '-')}-ctr", "image": image,
                                   "securityContext": {"privileged": True}}]}
            self.client.apply({
                "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
                    "name": app, "namespace": self.namespace, "labels": {
                        "app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": name}},
                "spec": {"selector": {"matchLabels": {"app": app}}, "updateStrategy": {"type": update},
                         "template": {"metadata": {"labels": {"app": app}}, "spec": pod}}})

    @property
    def plan(self) -> Object:
        """The plan as gpu_policy would return it."""
        return {"namespace": self.namespace, "server": self.client.server,
                "components": {name: {"state": "present"} for name in INITS},
                "nodes": {"gpu": self.nodes, "cpu": 0, "by_host": {}}, "deploy": {"components": {}, "on_host": {}}}

    def follow(self, *components: str, timeout: float = 180) -> dict[str, Object]:
        """The checks by component when all are ready."""
        checks = Rollout(self.client, self.plan, components).follow(timeout)
        return {check.component: check.as_dict() for check in checks}

    def conclude(self, *components: str, timeout: float) -> tuple[dict[str, Object], float]:
        """The checks of a cluster without changes, and how many seconds gpu_verify waited; the clock is simulated."""
        clock = Clock()
        checks = Rollout(self.client, self.plan, components, clock=clock, sleep=clock.sleep).follow(timeout)
        return {check.component: check.as_dict() for check in checks}, clock.now - Clock().now

    def fault(self, kind: str, component: str, *words: str, node: str) -> None:
        """Sets a fault of the lab when the pods are Ready: pods that start at that moment could miss it."""
        self.until(lambda: self.ready(component) == len(self.nodes))
        where = ("--node", node) if kind == "node-lost" else ("--app", self.app(component), "--node", node)
        self.lab(kind, "on", *where, *words)
        self.faults.append((kind, *where))

    def heal(self) -> None:
        """Removes all faults."""
        while self.faults:
            kind, *where = self.faults.pop()
            self.lab(kind, "off", *where)

    def lab(self, *words: str) -> None:
        """Runs C(python3 -m lab cluster stage WORDS)."""
        assert cli.main(["cluster", "stage", "--name", self.made.name, *words]) == 0

    def until(self, done: Callable[[], bool]) -> None:
        until(done, "the cluster comes so far")

    def ready(self, component: str) -> int:
        """How many pods the DaemonSet's controller counts as ready."""
        found = self.client.get("apps/v1", "DaemonSet", self.app(component), self.namespace)
        assert found is not None
        return int(found["status"]["numberReady"])

    def observed(self) -> bool:
        """Whether the controller has observed the current specification of the driver DaemonSet."""
        found = self.client.get("apps/v1", "DaemonSet", self.app("driver"), self.namespace)
        return bool(found and found["status"].get("observedGeneration") == found["metadata"]["generation"])

    def close(self) -> None:
        """Restores the cluster."""
        self.heal()
        self.client.delete("v1", "Namespace", self.namespace)
        retire(self.made, *self.nodes)


@pytest.fixture
def site(cluster: clusters.Cluster, client: Client, fresh: Callable[[], str]) -> Iterator[Site]:
    """An empty site."""
    made = Site(cluster, client, fresh())
    yield made
    made.close()


def test_what_comes_up_is_seen_and_costs_four_lists(site: Site, audit: Any) -> None:
    site.deliver(*INITS)
    checks = site.follow(*INITS)
    assert [check["detail"] for check in checks.values()] == ["2/2 ready"] * 3
    audit.start()
    site.follow(*INITS)
    seen = [(one["verb"], one["resource"]) for one in audit.requests if one["agent"].startswith("gpuops.nvidia")]
    assert sorted(seen) == [("list", "daemonsets"), ("list", "deployments"), ("list", "nodes"),
                            ("list", "pods")]


def test_a_held_validator_is_named_with_node_container_and_cause(site: Site) -> None:
    site.deliver(*INITS)
    assert site.follow(*INITS)["validator"]["ok"]
    site.fault("validator", "validator", "--running", node=site.nodes[1])
    site.until(lambda: site.ready("validator") == 1)
    checks, _waited = site.conclude(*INITS, timeout=3)
    assert [checks[name]["state"] for name in INITS] == ["ok", "failed", "ok"]
    detail = checks["validator"]["detail"]
    assert detail.startswith(f"1/2 ready; {site.nodes[1]}: toolkit-validation Init:1/4")
    assert "likely cause: the driver is not injected" in detail and checks["validator"]["hint"]
    site.heal()
    assert site.follow(*INITS)["validator"]["ok"]


def test_the_first_component_that_fails_on_a_node_is_the_cause(site: Site) -> None:
    site.deliver(*INITS)
    site.follow(*INITS)
    site.fault("crash", "driver", "--container", "k8s-driver-manager", node=site.nodes[0])
    site.fault("crash", "validator", "--container", "driver-validation", "--running", node=site.nodes[0])
    site.fault("crash", "device_plugin", "--container", "toolkit-validation", "--running", node=site.nodes[0])
    site.until(lambda: [site.ready(name) for name in INITS] == [1, 1, 1])
    checks, _waited = site.conclude(*INITS, timeout=2)
    assert [check["state"] for check in checks.values()] == ["failed", "pending", "pending"]
    assert "k8s-driver-manager Init:0/1, CrashLoopBackOff" in checks["driver"]["detail"]
    assert checks["validator"]["detail"] == f"1/2 ready; waits for driver on {site.nodes[0]}"
    assert checks["device_plugin"]["nodes"][0]["waits_for"] == "driver"


def test_an_image_that_cannot_be_pulled_is_named(site: Site) -> None:
    site.deliver("driver", image="registry.example:5000/driver:595-ubuntu24.04")
    site.fault("pull", "driver", node=site.nodes[0])
    site.until(lambda: site.ready("driver") == 1)
    check = site.conclude("driver", timeout=2)[0]["driver"]
    assert check["state"] == "failed" and "registry.example:5000" in check["detail"]
    assert [one["node"] for one in check["nodes"]] == [site.nodes[0]]


def test_pods_of_a_former_revision_wait_for_their_restart(site: Site) -> None:
    site.deliver("driver", update="OnDelete")
    assert site.follow("driver")["driver"]["ok"]
    site.deliver("driver", image="example.org/x:2", update="OnDelete")
    site.until(site.observed)
    checks, waited = site.conclude("driver", timeout=300)
    check = checks["driver"]
    assert waited <= 30, "there is nothing to wait for"
    assert (check["state"], check["ready"]) == ("pending", 2) and "the pod is outdated" in check["detail"]
    assert "desired: 2)" in check["detail"] and f"drain {site.nodes[0]}" in check["nodes"][0]["do"][0]
    assert sorted(one["node"] for one in check["nodes"]) == site.nodes
    first = next(pod for pod in site.client.list("v1", "Pod", namespace=site.namespace)
                 if pod["spec"]["nodeName"] == site.nodes[0])
    site.client.delete("v1", "Pod", first["metadata"]["name"], site.namespace)

    def restarted() -> bool:
        found = site.client.get("apps/v1", "DaemonSet", site.app("driver"), site.namespace)
        return bool(found and found["status"].get("updatedNumberScheduled") == 1 and
                    found["status"]["numberReady"] == 2)

    site.until(restarted)
    assert [one["node"] for one in site.follow("driver")["driver"]["nodes"]] == [site.nodes[1]]


def test_a_lost_node_is_named_as_such(site: Site) -> None:
    site.deliver("driver")
    site.follow("driver")
    site.fault("node-lost", "driver", node=site.nodes[1])
    site.until(lambda: site.ready("driver") == 1)
    checks, waited = site.conclude("driver", timeout=300)
    check = checks["driver"]
    assert waited <= 60
    assert check["state"] == "pending" and f"{site.nodes[1]}:" in check["detail"] and "NotReady" in check["detail"]


def test_pods_that_admission_refuses_are_told_by_the_controllers_event(site: Site) -> None:
    site.namespace_with(enforce="baseline")
    site.until(lambda: refused(site))
    site.deliver("driver")
    # The controller of DaemonSets tells it by an event.
    site.until(lambda: site.client.list("v1", "Event", namespace=site.namespace, field_selector="type=Warning"))
    check = site.conclude("driver", timeout=10)[0]["driver"]
    assert check["state"] == "failed" and "pod security level" in check["detail"]
    assert "psa.enabled" in check["hint"] and check["ready"] == 0


def refused(site: Site) -> bool:
    """Whether the admission of the server has observed the label of the Namespace."""
    try:
        site.client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "probe", "namespace": site.namespace}, "spec": {"containers": [{
                "name": "x", "image": "example.org/x:1", "securityContext": {"privileged": True}}]}}, dry_run=True)
    except ClusterError as error:
        return "PodSecurity" in error.message
    return False


def verify(site: Site, folder: Path, *words: str, **options: Any) -> user.Run:
    """A playbook with one task, as a user runs it, and a cluster in the environment that must not be used. The plan has
    no objects to compare with."""
    return play(folder, [{"name": "Verify", "gpuops.nvidia.gpu_verify": {
        "cluster": site.plan, "compare": False, **options}}], *words)


def test_a_user_sees_progress_and_the_reason(site: Site, kubeconfig: str, tmp_path: Path) -> None:
    site.deliver("driver", "validator")
    site.fault("validator", "validator", "--running", node=site.nodes[0])
    site.until(lambda: site.ready("validator") == 1)
    run = verify(site, tmp_path, kubeconfig=kubeconfig, timeout=3, components=["driver", "validator"])
    assert run.rc == 2, run.output
    lines = [line for line in run.output.splitlines() if line.startswith(" 0:0")]
    assert lines and "validator " in lines[0] and f"1/2, waiting: {site.nodes[0]} (toolkit-validation)" in lines[0]
    assert f"{site.nodes[0]}: toolkit-validation Init:1/4" in run.output
    site.heal()
    run = verify(site, tmp_path, kubeconfig=kubeconfig, timeout=180, components=["driver", "validator"])
    assert run.rc == 0, run.output


def test_check_mode_waits_for_nothing(site: Site, kubeconfig: str, tmp_path: Path) -> None:
    run = verify(site, tmp_path, "--check", "-v", kubeconfig=kubeconfig, timeout=3600)  # a run here gets less
    assert run.rc == 0 and "check mode: the cluster has no objects of this component" in run.output


def test_no_cluster_is_taken_from_the_environment(site: Site, kubeconfig: str, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(Path(kubeconfig).read_text())
    run = verify(site, tmp_path)
    assert run.rc == 2 and "never taken from the environment" in run.output
