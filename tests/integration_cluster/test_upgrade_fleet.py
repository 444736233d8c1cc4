# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver upgrade of a fleet with five bad Nodes, on a real API server, killed again and again.

With the variable FLEET=100 of the environment, the fleet has 100 Nodes and the run is killed 20 times.
The others are upgraded, each bad one is named, none of them keeps the others waiting, and no GPU client is disturbed
below the level drain.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import PAUSED, REASON
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD

from lab.controlplane import cluster as clusters
from lab.controlplane import faults, nodes
from tests.integration_cluster import plays
from tests.integration_cluster.conftest import Audit, Kubectl, occupied
from tests.waiting import until

Object = dict[str, Any]
SPACE, SET = "gpu-operator", "nvidia-driver-daemonset"
OLD, NEW = "580.173.02", "595.91.07"
STATE = "nvidia.com/gpu-driver-upgrade-state"
NODES = int(os.environ.get("FLEET", "20"))
# Each run after a kill waits again for the bad Nodes.
PARALLEL, JOBS, KILLS = NODES // 10 + 2, NODES // 5, 20 if NODES >= 100 else 2
CRASHES, NO_IMAGE, NEVER_READY, GUARDED, LOST = "gpu-3", "gpu-7", "gpu-11", "gpu-15", "gpu-18"
BROKEN = {CRASHES, NO_IMAGE, NEVER_READY}
SECONDS = 20  # for a driver pod to start and for pods to be evicted


def policy(version: str) -> Object:
    """A policy with this driver version, and few other components."""
    return {"driver": {
        "version": version, "startupProbe": {"initialDelaySeconds": 0, "periodSeconds": 1, "failureThreshold": SECONDS},
        "upgradePolicy": {"autoUpgrade": True, "maxParallelUpgrades": PARALLEL, "maxUnavailable": "25%",
                          "podDeletion": {"timeoutSeconds": SECONDS}}},
        **{name: {"enabled": False} for name in ("toolkit", "dcgm", "dcgmExporter", "gfd", "migManager", "nfd")}}


def job(name: str, replicas: int, node: str = "") -> Object:
    """A Deployment whose pods use a GPU each, on different Nodes."""
    spread = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchExpressions": [
            {"key": "job", "operator": "Exists"}]}}]}}
    chosen = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "jobs"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"job": name}}, "template": {
            "metadata": {"labels": {"job": name}}, "spec": {
                "affinity": spread, **chosen, "terminationGracePeriodSeconds": 0, "containers": [{
                    "name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}}


class Fleet:
    """The cluster, and processes that upgrade it."""

    def __init__(self, made: clusters.Cluster, folder: Path) -> None:
        self.made, self.kubectl, self.folder = made, Kubectl(str(made.kubeconfig)), folder
        self.client, self.audit = Client(str(made.kubeconfig)), Audit(made.audit_log)
        self.most = 0
        self.runs: list[subprocess.Popen[str]] = []

    def prepare(self) -> None:
        """Drivers of the former version run, jobs use GPUs, and the new version is delivered."""
        gpus = {"nvidia.com/gpu": "8"}
        with self.made.api() as server:
            for name in sorted(self.names):
                server.request("PATCH", f"{nodes.NODES}/{name}/status", {"status": {
                    "allocatable": gpus, "capacity": gpus}}, faults.STRATEGIC)
        self.site(OLD)
        self.kubectl("create", "namespace", "jobs")
        self.kubectl("create", "--filename", "-", stdin={"apiVersion": "v1", "kind": "List", "items": [
            job("job", JOBS), job("guarded", 1, GUARDED),
            {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {
                "name": "guarded", "namespace": "jobs"},
             "spec": {"minAvailable": 1, "selector": {"matchLabels": {"job": "guarded"}}}}]})
        until(lambda: len(self.ready(SPACE, "app=nvidia-operator-validator")) == NODES, "the validators are Ready")
        until(lambda: len(self.ready("jobs")) == JOBS + 1, "the jobs run")
        for one in (faults.Fault("crash", SET, CRASHES), faults.Fault("pull", SET, NO_IMAGE),
                    faults.Fault("slow", SET, NEVER_READY, seconds=3600), faults.Fault("node-lost", node=LOST)):
            faults.on(self.made, one)
        self.plan = self.folder / "plan.json"
        self.plan.write_text(json.dumps(self.site(NEW)))

    def site(self, version: str) -> Object:
        """Runs site.yml, which replaces no driver; returns the plan of the cluster."""
        done = plays.run(self.folder, "site", {"gpu_control": {"hosts": {"cluster": plays.LOCAL}, "vars": {
            "gpu_placement": "cluster", "gpu_kubeconfig": str(self.made.kubeconfig), "gpu_policy": policy(version)}}},
            "--skip-tags", "verify")
        assert done.rc == 0, done.output
        return dict(done.result("cluster", "gpu_policy")["cluster"])

    names = frozenset(f"gpu-{number}" for number in range(1, NODES + 1))

    def ready(self, namespace: str, selector: str | None = None) -> list[str]:
        """The pods that are Ready."""
        return [str(pod["metadata"]["name"]) for pod in self.client.list("v1", "Pod", namespace, selector)
                if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]

    def start(self, level: str, number: int, names: Iterable[str] = ()) -> subprocess.Popen[str]:
        """A run in a folder of its own: it finds nothing that former runs have stored. names: as in L(upgrader)."""
        home = self.folder / f"{level}-{number}"
        home.mkdir()
        self.runs.append(subprocess.Popen([sys.executable, "-m", "tests.integration_cluster.upgrader",
                                           str(self.made.kubeconfig), str(self.plan), level, *names], cwd=home,
                                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return self.runs[-1]

    def upgrade(self, level: str, names: Iterable[str] = ()) -> Object:
        """The result of a run that is not killed."""
        said, _none = self.start(level, KILLS, names).communicate(timeout=900)
        return dict(json.loads(said.splitlines()[-1]))

    def killed(self, number: int, writes: int) -> bool:
        """Whether a run was killed after it had sent so many changes; otherwise it has ended before."""
        self.audit.start()
        with self.start("drain", number) as run:
            until(lambda: run.poll() is not None or len(self.writes()) >= writes, f"run {number} writes")
            run.kill()
            run.communicate()
        self.look()
        return run.returncode != 0

    def writes(self) -> list[Object]:
        """The changes of runs since the audit started."""
        return [one for one in self.audit.writes if one["agent"].startswith("gpuops.nvidia")]

    def nodes(self) -> dict[str, Object]:
        return {str(one["metadata"]["name"]): one for one in self.client.list("v1", "Node")}

    def look(self) -> None:
        """Counts the Nodes that are out of service for an upgrade that has not failed."""
        out = [name for name, one in self.nodes().items() if one["spec"].get("unschedulable")
               and REASON not in (one["metadata"].get("annotations") or {})]
        self.most = max(self.most, len(out))


@pytest.fixture(scope="module")
def site(empty: clusters.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with occupied(empty, *nodes.plain(NODES, 0, "a100-80", "ubuntu22.04")) as made:
        site = Fleet(made, tmp_path_factory.mktemp("fleet"))
        try:
            site.prepare()
            yield site
        finally:
            for run in site.runs:  # after a failed test, one may still write Nodes
                run.kill()
                run.wait()
            for kind in ("crash", "pull", "slow", "node-lost"):
                faults.off(made, kind, "", "")


@pytest.mark.parametrize("level", ["never", "idle"])
def test_no_gpu_client_is_disturbed_below_drain(site: Fleet, level: str) -> None:
    """Only the Nodes with jobs are upgraded here, as the others are needed for the next test."""
    jobs = site.ready("jobs")
    names = {str(pod["spec"]["nodeName"]) for pod in site.client.list("v1", "Pod", "jobs")} - {LOST}
    site.audit.start()
    result = site.upgrade(level, names)
    assert {row["node"]: row["state"] for row in result["nodes"]} == dict.fromkeys(names, "pending")
    assert site.ready("jobs") == jobs
    assert not [one for one in site.writes() if one["resource"] == "pods" or level == "never"]


@pytest.mark.timeout(1200)
def test_a_killed_run_is_finished_by_the_next(site: Fleet) -> None:
    """After each kill, a run that knows nothing of the former ones goes on. The numbers of writes are random."""
    chance = random.Random(22)
    kills = sum(site.killed(number, chance.randrange(1, 40)) for number in range(KILLS))
    result = site.upgrade("drain")
    live = site.nodes()
    states = {name: str(one["metadata"]["labels"].get(STATE, "")) for name, one in live.items()}
    assert {name for name in site.names if states[name] != "upgrade-done"} == {*BROKEN, GUARDED, LOST}
    assert {name for name, one in live.items() if one["spec"].get("unschedulable")} == BROKEN
    assert {name for name, one in live.items() if REASON in (one["metadata"].get("annotations") or {})} == BROKEN
    assert not [name for name, one in live.items() if HELD in (one["metadata"].get("annotations") or {})]
    assert not [name for name, one in live.items() if PAUSED in one["metadata"]["labels"].values()]
    rows = {row["node"]: row for row in result["nodes"]}
    assert {name for name, row in rows.items() if row["state"] == "failed"} == BROKEN
    assert {name for name, row in rows.items() if row["state"] == "skipped"} == {GUARDED, LOST}
    assert all(name in result["msg"] and rows[name]["reason"] for name in (*BROKEN, GUARDED, LOST))
    assert site.most <= PARALLEL and kills > KILLS // 2
    until(lambda: len(site.ready("jobs")) == JOBS + 1, "the jobs run again on other Nodes")
