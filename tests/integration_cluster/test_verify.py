# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_verify on a real API server: what comes up, what does not and why, and what users see meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.rollout import Rollout

from lab.controlplane import cluster as clusters
from lab.stages import ROOT

INITS = {
    "driver": ["k8s-driver-manager"],
    "validator": ["driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation"],
    "device_plugin": ["toolkit-validation"],
}
Object = dict[str, Any]


class Site:
    """A namespace of its own with operands on two simulated nodes; faults concern it alone."""

    def __init__(self, made: clusters.Cluster, client: Client, namespace: str) -> None:
        self.made, self.client, self.namespace = made, client, namespace
        self.label = f"{namespace}.example/gpu"
        self.nodes = sorted(item["metadata"]["name"] for item in client.list("v1", "Node", metadata_only=True)
                            if item["metadata"]["name"].startswith("sim-"))[:2]
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
        """What gpu_policy would say."""
        return {"namespace": self.namespace, "server": self.client.server,
                "components": {name: {"state": "present"} for name in INITS},
                "nodes": {"gpu": self.nodes, "cpu": 0, "by_host": {}}, "deploy": {"components": {}, "on_host": {}}}

    def follow(self, *components: str, timeout: float = 120) -> dict[str, Object]:
        """The checks by component."""
        checks = Rollout(self.client, self.plan, components).follow(timeout)
        return {check["component"]: check for check in checks}

    def fault(self, kind: str, component: str, *words: str, node: str) -> None:
        """Sets a fault of the lab, once the pods are Ready: those that come at that moment may miss it."""
        self.until(lambda: self.ready(component) == len(self.nodes))
        where = ("--node", node) if kind == "node-lost" else ("--app", self.app(component), "--node", node)
        self.lab(kind, "on", *where, *words)
        self.faults.append((kind, *where))

    def heal(self) -> None:
        """Takes all faults back."""
        while self.faults:
            kind, *where = self.faults.pop()
            self.lab(kind, "off", *where)

    def lab(self, *words: str) -> None:
        """C(python3 -m lab cluster stage WORDS)."""
        subprocess.run([sys.executable, "-m", "lab", "cluster", "stage", "--name", self.made.name, *words], cwd=ROOT,
                       check=True, timeout=120)

    def until(self, done: Callable[[], bool]) -> None:
        """Waits at most 180 s."""
        end = time.monotonic() + 180
        while not done():
            assert time.monotonic() < end, "it did not come so far"
            time.sleep(0.3)

    def ready(self, component: str) -> int:
        """How many pods the DaemonSet's controller counts as ready."""
        found = self.client.get("apps/v1", "DaemonSet", self.app(component), self.namespace)
        assert found is not None
        return int(found["status"]["numberReady"])

    def close(self) -> None:
        """Leaves the cluster as it was."""
        self.heal()
        self.client.delete("v1", "Namespace", self.namespace)
        for node in self.nodes:
            self.client.merge_patch("v1", "Node", node, None, {"metadata": {"labels": {self.label: None}}})


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
    checks = site.follow(*INITS, timeout=3)
    assert [checks[name]["state"] for name in INITS] == ["ok", "failed", "ok"]
    detail = checks["validator"]["detail"]
    assert detail.startswith(f"1/2 ready; {site.nodes[1]}: toolkit-validation Init:1/4")
    assert "likely cause: the nvidia runtime is not injected" in detail and checks["validator"]["hint"]
    site.heal()
    assert site.follow(*INITS)["validator"]["ok"]


def test_the_first_component_that_fails_on_a_node_is_the_cause(site: Site) -> None:
    site.deliver(*INITS)
    site.follow(*INITS)
    site.fault("crash", "driver", "--container", "k8s-driver-manager", node=site.nodes[0])
    site.fault("crash", "validator", "--container", "driver-validation", "--running", node=site.nodes[0])
    site.fault("crash", "device_plugin", "--container", "toolkit-validation", "--running", node=site.nodes[0])
    site.until(lambda: [site.ready(name) for name in INITS] == [1, 1, 1])
    checks = site.follow(*INITS, timeout=2)
    assert [check["state"] for check in checks.values()] == ["failed", "pending", "pending"]
    assert "k8s-driver-manager Init:0/1, CrashLoopBackOff" in checks["driver"]["detail"]
    assert checks["validator"]["detail"] == f"1/2 ready; waits for driver on {site.nodes[0]}"
    assert checks["device_plugin"]["nodes"][0]["waits_for"] == "driver"


def test_an_image_that_cannot_be_pulled_is_named(site: Site) -> None:
    site.deliver("driver", image="registry.example:5000/driver:595-ubuntu24.04")
    site.fault("pull", "driver", node=site.nodes[0])
    site.until(lambda: site.ready("driver") == 1)
    check = site.follow("driver", timeout=2)["driver"]
    assert check["state"] == "failed" and "registry.example:5000" in check["detail"]
    assert [one["node"] for one in check["nodes"]] == [site.nodes[0]]


def test_pods_of_a_former_revision_wait_for_their_restart(site: Site) -> None:
    site.deliver("driver", update="OnDelete")
    assert site.follow("driver")["driver"]["ok"]
    site.deliver("driver", image="example.org/x:2", update="OnDelete")
    begin = time.monotonic()
    check = site.follow("driver", timeout=300)["driver"]
    assert time.monotonic() - begin < 60, "there is nothing to wait for"
    assert (check["state"], check["ready"]) == ("pending", 2) and "former revision" in check["detail"]
    assert "wanted is 2)" in check["detail"] and f"drain {site.nodes[0]}" in check["nodes"][0]["do"][0]
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
    begin = time.monotonic()
    check = site.follow("driver", timeout=300)["driver"]
    assert time.monotonic() - begin < 90
    assert check["state"] == "pending" and f"{site.nodes[1]}:" in check["detail"] and "NotReady" in check["detail"]


def test_pods_that_admission_refuses_are_told_by_the_controllers_event(site: Site) -> None:
    site.namespace_with(enforce="baseline")
    site.until(lambda: refused(site))
    site.deliver("driver")
    check = site.follow("driver", timeout=10)["driver"]
    assert check["state"] == "failed" and "pod security level" in check["detail"]
    assert "psa.enabled" in check["hint"] and check["ready"] == 0


def refused(site: Site) -> bool:
    """Whether the server's admission has taken notice of the Namespace's label."""
    try:
        site.client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "probe", "namespace": site.namespace}, "spec": {"containers": [{
                "name": "x", "image": "example.org/x:1", "securityContext": {"privileged": True}}]}}, dry_run=True)
    except ClusterError as error:
        return "PodSecurity" in error.message
    return False


def play(site: Site, folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A playbook of one task, as a user runs it, with a cluster in the environment that must not be used."""
    task = {"name": "Verify", "gpuops.nvidia.gpu_verify": {"cluster": site.plan, **options}}
    path = folder / "play.yml"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    return subprocess.run(["ansible-playbook", str(path), *words], capture_output=True, text=True, check=False,
                          env={**os.environ, "KUBECONFIG": "/nonexistent", "COLUMNS": "100"}, timeout=120)


def test_a_user_sees_progress_and_the_reason(site: Site, kubeconfig: str, tmp_path: Path) -> None:
    site.deliver("driver", "validator")
    site.fault("validator", "validator", "--running", node=site.nodes[0])
    site.until(lambda: site.ready("validator") == 1)
    run = play(site, tmp_path, kubeconfig=kubeconfig, timeout=3, components=["driver", "validator"])
    assert run.returncode == 2, run.stdout
    lines = [line for line in run.stdout.splitlines() if line.startswith(" 0:0")]
    assert lines and "validator " in lines[0] and f"1/2, waiting: {site.nodes[0]} (toolkit-validation)" in lines[0]
    assert f"{site.nodes[0]}: toolkit-validation Init:1/4" in run.stdout + run.stderr
    site.heal()
    run = play(site, tmp_path, kubeconfig=kubeconfig, timeout=60, components=["driver", "validator"])
    assert run.returncode == 0, run.stdout


def test_check_mode_waits_for_nothing(site: Site, kubeconfig: str, tmp_path: Path) -> None:
    run = play(site, tmp_path, "--check", "-v", kubeconfig=kubeconfig, timeout=600)  # play() gives it less
    assert run.returncode == 0 and "check mode: nothing of it is in the cluster" in run.stdout


def test_no_cluster_is_taken_from_the_environment(site: Site, kubeconfig: str, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(Path(kubeconfig).read_text())
    run = play(site, tmp_path)
    assert run.returncode == 2 and "never taken from the environment" in run.stdout + run.stderr
