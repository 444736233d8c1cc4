# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Three hosts as Nodes of a cluster with 24 more: preview, converge, converged, a stuck Node, toggles, removal.

Two of the hosts were converged by site.yml without a cluster, as in the demo; one is fresh.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab.stages import ROOT
from tests.integration import user
from tests.integration.conftest import LabHosts
from tests.integration.converged import HOSTS, converge
from tests.waiting import until

FRESH = "gpu-l1"
OURS = "app.kubernetes.io/managed-by=gpuops.nvidia"
ON_HOST = {"nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.deploy.container-toolkit",
           "nvidia.com/gpu.deploy.mig-manager"}
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass
class Cluster:
    """A cluster of the lab, with the permissions of its administrator."""

    name: str

    def lab(self, *words: str) -> str:
        """Runs C(python3 -m lab cluster WORDS); returns the last line of its output."""
        done = subprocess.run([sys.executable, "-m", "lab", "cluster", words[0], "--name", self.name, *words[1:]],
                              cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
        if done.returncode:
            raise AssertionError(f"lab cluster {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""

    @cached_property
    def kubeconfig(self) -> str:
        """The path of the kubeconfig of the cluster; it does not change while the cluster exists."""
        return self.lab("kubeconfig")

    @cached_property
    def audit(self) -> Path:
        """The audit log of the API server."""
        return Path(self.lab("audit"))

    @property
    def client(self) -> Client:
        """A client of the cluster."""
        return Client(self.kubeconfig)

    def objects(self, selector: str | None = None) -> dict[tuple[str, str, str], dict[str, Any]]:
        """All objects of the kinds that the collection delivers, by kind, namespace and name."""
        found = {}
        for kind in kinds.KINDS.values():
            if kind.kind in ("Pod", "Event", "Node", "ControllerRevision", "ReplicaSet"):
                continue
            for one in self.client.list(kind.api_version, kind.kind, label_selector=selector):
                found[kind.kind, one["metadata"].get("namespace", ""), one["metadata"]["name"]] = one
        return found

    def settle(self) -> None:
        """Waits until the controller of DaemonSets has nothing more to write: every pod exists and counts as
        available."""
        until(lambda: all(counted(one) for one in self.client.list("apps/v1", "DaemonSet")),
              "every DaemonSet counts all of its pods as available", limit=240, pause=0.5)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Maps names to the metadata of the Nodes."""
        return {one["metadata"]["name"]: one["metadata"] for one in self.client.list("v1", "Node")}

    def requests(self) -> list[dict[str, Any]]:
        """The requests of the collection to the API server so far, from its audit log."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line for line in lines
                if line.get("userAgent") == "gpuops.nvidia" and line.get("stage") == "ResponseComplete"]


def counted(found: dict[str, Any]) -> bool:
    """Whether the status of a DaemonSet covers all of its pods, and they are available."""
    status = found["status"]
    wanted = status.get("desiredNumberScheduled")
    return status.get("observedGeneration") == found["metadata"]["generation"] and all(
        status.get(key, 0) == wanted for key in ("currentNumberScheduled", "numberReady", "numberAvailable"))


@pytest.fixture(scope="module")
def cluster(lab: LabHosts) -> Iterator[Cluster]:
    """A cluster whose Nodes are the lab hosts, 20 more with GPUs and 4 without."""
    disks = converge(lab).disks
    made = Cluster("hybrid")
    made.lab("down")
    made.lab("up", "--nodes", "hybrid", "--gfd", "--lab", lab.name)
    for host in HOSTS:
        lab.reset(host, "" if host == FRESH else disks[host])
    yield made
    made.lab("down")


def site(lab: LabHosts, cluster: Cluster, *arguments: str, playbook: str = "site", **variables: Any) -> user.Run:
    """Runs a playbook as the demo does."""
    return user.playbook(playbook, [*lab.wishes, ROOT / "lab" / "demo" / "cluster.yml"], *arguments,
                         gpu_kubeconfig=cluster.kubeconfig, **variables)


def steps(run: user.Run) -> list[str]:
    """The steps of operands, in their order."""
    plans = [line["result"]["plan"] for line in run.results if line["action"] == "gpuops.nvidia.operands"
             and "plan" in line["result"]]
    assert plans, run.output
    return [step["id"] for step in plans[0]]


@dataclass
class Delivered:
    """The result of a first run. asked: the requests of its preview; left: the objects of ours after the preview."""

    foreign: dict[tuple[str, str, str], dict[str, Any]]
    nodes: dict[str, dict[str, Any]]
    preview: user.Run
    asked: list[dict[str, Any]]
    left: dict[tuple[str, str, str], dict[str, Any]]
    first: user.Run
    made: dict[tuple[str, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def delivered(lab: LabHosts, cluster: Cluster) -> Delivered:
    """Runs C(--check) and a run on an empty API server."""
    foreign, nodes = cluster.objects(), cluster.nodes()
    preview = site(lab, cluster, "--check", "--diff")
    asked, left = cluster.requests(), cluster.objects(OURS)
    first = site(lab, cluster, "--diff")
    assert first.rc == 0, first.output
    return Delivered(foreign, nodes, preview, asked, left, first, cluster.objects(OURS))


@pytest.fixture
def settled(cluster: Cluster, delivered: Delivered) -> Cluster:
    """The cluster when nothing changes in it any more."""
    cluster.settle()
    return cluster


@pytest.fixture(scope="module")
def removed(lab: LabHosts, cluster: Cluster, delivered: Delivered) -> user.Run:
    """The run that removes everything, after the tests that need it."""
    run = site(lab, cluster, playbook="remove", gpu_disruption="drain")  # below it the driver's pods stay
    assert run.rc == 0, run.output
    return run


def test_check_on_an_empty_api_server_shows_every_object(delivered: Delivered) -> None:
    assert delivered.preview.rc == 0, delivered.preview.output
    assert delivered.left == {}
    # To ask what one may do is a "create" that leaves nothing behind.
    assert not WRITES & {line["verb"] for line in delivered.asked
                         if "dryRun=All" not in line["requestURI"] and "accessreviews" not in line["requestURI"]}


def test_the_run_makes_what_check_showed(delivered: Delivered) -> None:
    preview = steps(delivered.preview)
    assert steps(delivered.first) == preview
    assert {step.split(":", 1)[0] for step in preview} == {"create"}
    assert len(delivered.made) == len(preview)
    assert {name for kind, _space, name in delivered.made if kind == "DaemonSet"} >= {
        "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-operator-validator",
        "nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-mig-manager"}


def test_hosts_get_what_they_lack(delivered: Delivered) -> None:
    assert {"nvidia_driver", "container_toolkit"} <= set(delivered.first.steps(FRESH))
    for host in HOSTS:
        assert host == FRESH or not {"nvidia_driver", "mig_config"} & set(delivered.first.steps(host)), host


def test_a_concern_has_one_writer_on_a_node(settled: Cluster) -> None:
    for name, metadata in settled.nodes().items():
        labels = {key for key, value in metadata["labels"].items()
                  if key.startswith("nvidia.com/gpu.deploy.") and value == "true"}
        if name in HOSTS:
            assert labels and not labels & ON_HOST, name
        elif metadata["labels"].get("nvidia.com/gpu.present"):
            assert labels & ON_HOST, name
        else:
            assert not labels, name
    pods = Counter(pod["spec"]["nodeName"] for pod in settled.client.list("v1", "Pod", "gpu-operator")
                   if pod["metadata"]["name"].startswith(("nvidia-driver-", "nvidia-container-toolkit-")))
    assert not set(HOSTS) & set(pods)
    assert set(pods.values()) == {2}


def test_the_second_run_writes_nothing(lab: LabHosts, settled: Cluster) -> None:
    def marks() -> dict[Any, Any]:
        found = {key: one["metadata"]["resourceVersion"] for key, one in settled.objects(OURS).items()}
        return {**found, **{name: metadata["labels"] for name, metadata in settled.nodes().items()}}

    before, asked = marks(), len(settled.requests())
    again = site(lab, settled)
    assert again.rc == 0, again.output
    assert [line["task"] for line in again.results if line["result"].get("changed")] == []
    lines = settled.requests()[asked:]
    assert marks() == before
    assert not WRITES & {line["verb"] for line in lines}
    # Nodes whose MIG layout has failed or is under way are a short list of their own.
    lists = Counter((line["objectRef"]["resource"], line["objectRef"].get("namespace"),
                     "mig.config.state" in line["requestURI"]) for line in lines if line["verb"] == "list")
    # The Nodes once more at the end: whether they offer their GPUs now.
    assert lists.pop(("nodes", None, False)) == 2 and set(lists.values()) == {1}, lists
    gets = Counter((line["objectRef"]["resource"], line["objectRef"].get("name")) for line in lines
                   if line["verb"] == "get" and line.get("objectRef", {}).get("name"))
    assert not gets or set(gets.values()) == {1}, gets


def test_a_stuck_validator_is_named(lab: LabHosts, settled: Cluster) -> None:
    victim = sorted(set(settled.nodes()) - set(HOSTS) - {name for name in settled.nodes() if name.startswith("cpu")})[0]
    settled.lab("stage", "validator", "on", "--node", victim, "--running")
    try:
        run = site(lab, settled, preflight_timeout=5)
        assert run.rc != 0, run.output
        message = "\n".join(run.errors())
        assert victim in message and "toolkit-validation" in message, run.output
        assert "runtime" in message, message
        checked = next(line["result"] for line in reversed(run.results)
                       if line["action"] == "gpuops.nvidia.gpu_verify" and "nodes" in str(line["result"]))
        states = {check["component"]: check["state"] for check in checked["checks"]}
        assert states["validator"] == "failed"
        assert states["device_plugin"] == states["dcgm_exporter"] == "ok"
    finally:
        settled.lab("stage", "validator", "off", "--node", victim)


def test_a_component_that_is_switched_off_is_pruned_and_only_it(lab: LabHosts, settled: Cluster) -> None:
    before = set(settled.objects(OURS))
    policy = {"dcgmExporter": {"enabled": False}}
    run = site(lab, settled, gpu_policy=policy)
    assert run.rc == 0, run.output
    gone = before - set(settled.objects(OURS))
    assert gone and all("dcgm-exporter" in name for _kind, _space, name in gone), gone
    assert {step.split(":", 1)[0] for step in steps(run)} == {"delete"}
    back = site(lab, settled, "--tags", "dcgm_exporter")
    assert back.rc == 0 and set(settled.objects(OURS)) == before, back.output


def test_manifests_can_be_written_instead(lab: LabHosts, settled: Cluster, tmp_path: Path) -> None:
    before = {key: one["metadata"]["resourceVersion"] for key, one in settled.objects(OURS).items()}
    run = site(lab, settled, gpu_render_to=str(tmp_path / "manifests"))
    assert run.rc == 0, run.output
    assert list((tmp_path / "manifests").rglob("*nvidia-device-plugin-daemonset*"))
    assert {key: one["metadata"]["resourceVersion"] for key, one in settled.objects(OURS).items()} == before


def test_status_shows_hosts_and_cluster(lab: LabHosts, settled: Cluster) -> None:
    shown = site(lab, settled, playbook="status")
    assert shown.rc == 0, shown.output
    assert "gpu-a1" in shown.output and "device plugin" in shown.output
    assert not [line for line in shown.results if line["result"].get("changed")]


TRAINER = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "trainer", "namespace": "default"},
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "trainer"}}, "template": {
        "metadata": {"labels": {"app": "trainer"}},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": FRESH}, "containers": [{
            "name": "x", "image": "example.org/x:1", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]}}}}


BUDGET: dict[str, Any] = {
    "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "trainer", "namespace": "default"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "trainer"}}}}


@dataclass
class Watcher:
    """Observes the fresh host and its Node from now on."""

    lab: LabHosts
    cluster: Cluster

    def __post_init__(self) -> None:
        self.asked, self.state = len(self.cluster.requests()), self._state()

    def _state(self) -> tuple[str, str]:
        """The boot time of the host, and the loaded module of the driver."""
        boot, module = self.lab.sh(FRESH, "stat -c %Y /proc/1; cat /sys/module/nvidia/version").split()
        return boot, module

    def writes(self) -> list[str]:
        """The writes of the collection in their order: C(evict), or the name of the object."""
        lines = [line for line in self.cluster.requests()[self.asked:] if line["verb"] in WRITES
                 and "accessreviews" not in line["requestURI"] and "dryRun" not in line["requestURI"]
                 and line["responseStatus"]["code"] not in (409, 429)]  # made again after a lost race; refused
        return ["evict" if "/eviction" in line["requestURI"] else line["objectRef"]["name"] for line in lines]

    def acts(self) -> set[str]:
        """The disruptive acts in their order: C(hold) (the Node was written), C(evict), C(reload), C(reboot)."""
        writes, (boot, module) = self.writes(), self._state()
        return {act for act, done in (("hold", FRESH in writes), ("evict", "evict" in writes),
                                      ("reload", module != self.state[1]), ("reboot", boot != self.state[0])) if done}


def test_a_driver_changes_through_its_node_as_its_level_allows(lab: LabHosts, settled: Cluster) -> None:
    """A pod uses the GPUs of the Node, with a disruption budget and without one: see docs/maintenance.md, step by
    step."""
    def trainers() -> list[str]:
        return [pod["metadata"]["uid"] for pod in settled.client.list("v1", "Pod", "default", "app=trainer")
                if pod["spec"].get("nodeName") == FRESH and pod["status"]["phase"] == "Running"]

    def run(level: str, **variables: Any) -> tuple[user.Run, Watcher]:
        watcher = Watcher(lab, settled)
        return site(lab, settled, "--limit", f"{FRESH},cluster", gpu_disruption=level, **variables), watcher

    before, other = settled.nodes()[FRESH], {"driver_branch": "580"}
    settled.client.apply(TRAINER)
    try:
        pod = until(trainers, "the trainer runs")
        never, watcher = run("never", **other)
        # The level is also one for operands: at never, the DaemonSet of the MIG manager restarts no pod.
        operands = ["Deliver the operands"]
        assert never.rc == 0 and never.changed(FRESH) == operands and watcher.acts() == set(), never.output
        idle, watcher = run("idle", **other)
        obstacle, = next(line["result"]["pending"] for line in idle.of(FRESH)
                         if line["action"].endswith(".node_maintenance"))
        assert idle.rc == 0 and idle.changed(FRESH) == operands and watcher.acts() == set(), idle.output
        assert "gpu_disruption is 'idle'" in obstacle["pending_reason"] and obstacle["needs"] == "drain"
        settled.client.apply(BUDGET)
        blocked, watcher = run("drain", maintenance_drain_timeout=3, **other)
        assert blocked.rc != 0 and "disruption budget" in str(blocked.errors()), blocked.output
        # Held, and given back as it was.
        assert watcher.acts() == {"hold"} and trainers() == pod
        after = settled.nodes()[FRESH]
        assert after["labels"] == before["labels"] and after.get("annotations") == before.get("annotations")
        settled.client.delete("policy/v1", "PodDisruptionBudget", "trainer", "default")
        for level, variables in (("drain", other), ("reboot", {})):
            pod = until(trainers, "the trainer runs")
            done, watcher = run(level, **variables)
            assert done.rc == 0 and "install packages" in str(done.steps(FRESH)["nvidia_driver"]), done.output
            assert done.result(FRESH, "nvidia_driver")["driver"]["after"]["loaded"].startswith(
                variables.get("driver_branch", ""))
            # No reboot, as a reload was enough.
            assert watcher.acts() == {"hold", "evict", "reload"} and not set(pod) & set(trainers())
            # Held; cordoned; evicted; paused; back as it was. The level is also one for operands, which follow.
            writes = watcher.writes()
            assert writes[:5] == [FRESH, FRESH, "evict", FRESH, FRESH] and FRESH not in writes[5:], writes
        after = settled.nodes()[FRESH]
        assert after["labels"] == before["labels"] and after.get("annotations") == before.get("annotations")
    finally:
        settled.client.delete("policy/v1", "PodDisruptionBudget", "trainer", "default")
        settled.client.delete("apps/v1", "Deployment", "trainer", "default")


def test_a_gpu_is_reset_through_its_node_or_the_node_stays_out_of_service(lab: LabHosts, settled: Cluster) -> None:
    """At idle a pod keeps its GPU. If the reset fails, the Node stays cordoned until its GPUs are healthy."""
    def remediate(level: str, **more: str) -> tuple[user.Run, set[str]]:
        watcher = Watcher(lab, settled)
        done = site(lab, settled, "--limit", f"{FRESH},cluster", playbook="remediate", gpu_disruption=level, **more)
        return done, watcher.acts()

    def runs() -> bool:
        return any(pod["spec"].get("nodeName") == FRESH and pod["status"]["phase"] == "Running"
                   for pod in settled.client.list("v1", "Pod", "default", "app=trainer"))

    before = settled.nodes()[FRESH]
    settled.client.apply(TRAINER)
    try:
        until(runs, "the trainer runs")
        lab.sh(FRESH, "gpusim fault set recovery 1 1")
        idle, acts = remediate("idle")
        assert idle.rc == 0 and acts == set() and not idle.changed(FRESH), idle.output
        done, acts = remediate("drain")
        assert done.rc == 0 and acts == {"hold", "evict"}, done.output
        after = settled.nodes()[FRESH]
        assert after["labels"] == before["labels"] and after.get("annotations") == before.get("annotations")
        lab.sh(FRESH, "gpusim fault set recovery 1 1; gpusim fault set reset-fails 1")
        failed, acts = remediate("drain", gpu_remediate_again="true")
        assert failed.rc != 0 and "could not be reset" in str(failed.errors()), failed.output
        left = settled.client.get("v1", "Node", FRESH)
        assert left is not None and left["spec"]["unschedulable"]
        assert "could not be reset" in left["metadata"]["annotations"]["gpuops.nvidia/maintenance-failed"]
        again, acts = remediate("drain")
        assert again.rc != 0 and acts == set() and "a person has to look at it" in str(again.errors()), again.output
        lab.sh(FRESH, "gpusim fault clear")
        healed, acts = remediate("drain")
        after = settled.nodes()[FRESH]
        assert healed.rc == 0 and after.get("annotations") == before.get("annotations"), healed.output
        assert after["labels"] == before["labels"] and not settled.client.get("v1", "Node", FRESH)["spec"].get(
            "unschedulable")  # type: ignore[index]
    finally:
        lab.sh(FRESH, "gpusim fault clear; rm -f /var/lib/gpuops/remedies.json")
        settled.client.delete("apps/v1", "Deployment", "trainer", "default")


def test_a_reboot_waits_until_all_pods_of_the_node_have_gone(lab: LabHosts, settled: Cluster) -> None:
    """A process of the host uses the module of the former driver; a pod without a GPU has a disruption budget."""
    pod = {**TRAINER["spec"]["template"], "spec": {"nodeSelector": {"kubernetes.io/hostname": FRESH},
                                                   "containers": [{"name": "x", "image": "example.org/x:1"}]}}
    web = {**TRAINER, "spec": {**TRAINER["spec"], "template": pod}}

    def run(timeout: int) -> tuple[user.Run, set[str]]:
        watcher = Watcher(lab, settled)
        done = site(lab, settled, "--limit", f"{FRESH},cluster", gpu_disruption="reboot", driver_branch="580",
                    maintenance_drain_timeout=timeout)
        return done, watcher.acts()

    before = settled.nodes()[FRESH]
    settled.client.apply(web)
    settled.client.apply(BUDGET)
    try:
        until(lambda: settled.client.list("v1", "Pod", "default", "app=trainer")[0]["status"]["phase"] == "Running",
              "the pod runs")
        lab.sh(FRESH, "setsid sh -c 'exec 3</dev/nvidia0; exec sleep 1000' >/dev/null 2>&1 </dev/null &")
        blocked, acts = run(5)
        assert blocked.rc != 0 and "disruption budget trainer" in str(blocked.errors()), blocked.output
        assert acts == {"hold"}, "no pod is evicted as long as one of the Node must not be"
        left = settled.client.get("v1", "Node", FRESH)
        assert left is not None and left["spec"]["unschedulable"], "the driver waits for the reboot"
        assert "disruption budget trainer" in left["metadata"]["annotations"]["gpuops.nvidia/maintenance-failed"]
        settled.client.delete("policy/v1", "PodDisruptionBudget", "trainer", "default")
        done, acts = run(120)
        assert done.rc == 0 and acts == {"hold", "evict", "reload", "reboot"}, done.output
        after = settled.nodes()[FRESH]
        assert after["labels"] == before["labels"] and after.get("annotations") == before.get("annotations")
    finally:
        settled.client.delete("policy/v1", "PodDisruptionBudget", "trainer", "default")
        settled.client.delete("apps/v1", "Deployment", "trainer", "default")


def test_remove_leaves_nothing_of_ours_and_all_else(cluster: Cluster, delivered: Delivered, removed: user.Run) -> None:
    assert cluster.objects(OURS) == {}
    assert set(cluster.objects()) == set(delivered.foreign)
    for name, metadata in cluster.nodes().items():
        assert metadata["labels"] == delivered.nodes[name]["labels"], name
        assert not [key for key in metadata.get("annotations", {}) if "gpuops" in key], name


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {"group": "nvidia.com", "scope": "Cluster",
             "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
             "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                 "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]},
}


def test_a_cluster_that_a_gpu_operator_owns_is_refused(lab: LabHosts, cluster: Cluster, removed: user.Run) -> None:
    pod = {"metadata": {"labels": {"app": "gpu-operator"}}, "spec": {"containers": [{"name": "gpu-operator",
                                                                                     "image": "gpu-operator"}]}}
    operator = {"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "gpu-operator", "namespace": "default", "labels": {"app": "gpu-operator"}},
                "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "gpu-operator"}}, "template": pod}}
    cluster.client.apply(CRD)
    cluster.client.apply(operator)
    until(lambda: cluster.client.knows("nvidia.com/v1", "ClusterPolicy"), "the API server serves ClusterPolicy")
    cluster.client.apply({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy",
                          "metadata": {"name": "cluster-policy"}})
    run = site(lab, cluster)
    assert run.rc != 0
    assert len(set(run.errors())) == 1 and "GPU Operator" in run.errors()[0], run.output
    assert cluster.objects(OURS) == {}
