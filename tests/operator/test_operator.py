# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vendor's GPU Operator begins an upgrade of drivers and we finish it, and the other way round.

The operator is the vendor's program (L(lab.tools.gpu_operator)), with a policy that we have exported; in the cluster, a
Deployment that does nothing stands for it. Nodes and pods are simulated, so no driver manager pauses operands. The Node
gpu-4 was cordoned by its administrator, and stays so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.operator import owns
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import PAUSED, left_behind
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD

from lab.controlplane import cluster as clusters
from lab.controlplane import faults, nodes, operator
from tests.integration import user
from tests.integration_cluster import plays
from tests.integration_cluster.conftest import Audit, Kubectl, occupied
from tests.waiting import until

Object = dict[str, Any]
SPACE, DRIVER = operator.NAMESPACE, "nvidia-driver-daemonset"
# The version before, that of the release, and one that is set while we own the cluster.
OLD, NEW, NEWEST = "570.172.08", "580.82.07", "580.95.05"
CORDONED = "gpu-4"
NAMES = ["gpu-1", "gpu-2", "gpu-3", CORDONED]
COMPONENTS = ("driver", "container_toolkit", "validator", "device_plugin", "feature_discovery", "dcgm", "dcgm_exporter",
              "mig_manager", "node_status_exporter")
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment",
              "metadata": {"name": "gpu-operator", "namespace": SPACE, "labels": {"app": "gpu-operator"}},
              "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "gpu-operator"}}, "template": {
                  "metadata": {"labels": {"app": "gpu-operator"}},
                  "spec": {"containers": [{"name": "gpu-operator", "image": "none"}]}}}}
# The annotations of an upgrade. At its end, none is left.
MARKS = {upgrades.REQUESTED, upgrades.CORDONED_BEFORE, upgrades.SAFE_LOAD, upgrades.WAITING_SINCE,
         upgrades.VALIDATING_SINCE}
# Labels of components that the operator sets although the policy switches them off.
OFF = ("nvidia.com/gpu.deploy.dcgm", "nvidia.com/gpu.deploy.node-status-exporter")


class Land:
    """A cluster with the operands of the operator, and drivers of the old version."""

    def __init__(self, made: clusters.Cluster, folder: Path) -> None:
        self.made, self.folder, self.log = made, folder, folder / "operator.log"
        self.kubectl, self.client = Kubectl(str(made.kubeconfig)), Client(str(made.kubeconfig))
        self.audit = Audit(made.audit_log)
        self.inventory: Object = {"gpu_control": {"hosts": {"cluster": plays.LOCAL}}, "all": {"vars": {
            "gpu_kubeconfig": str(made.kubeconfig), "gpu_policy": "live", "gpu_release": operator.RELEASE,
            "gpu_disruption": "drain", "gpu_placement": {"nfd": "none", **dict.fromkeys(COMPONENTS, "cluster")}}}}

    def prepare(self) -> None:
        """Installs what the chart installs. The upgrade policy is that of the chart, one Node at a time, but any number
        of Nodes may be unavailable."""
        for path in operator.definitions():
            self.kubectl("create", "--filename", "-", stdin=yaml.safe_load(path.read_text()))
        driver = {"version": OLD, "startupProbe": {"initialDelaySeconds": 0, "periodSeconds": 1},
                  "upgradePolicy": {"maxUnavailable": "100%"}}
        policy = plays.module(self.folder, "gpu_policy", policy={"driver": driver}, release=operator.RELEASE,
                              resolve=False, export="cluster_policy")["exported"]
        assert policy["spec"]["driver"]["upgradePolicy"]["autoUpgrade"]
        self.kubectl("create", "namespace", SPACE)
        for item in (DEPLOYMENT, policy):
            self.kubectl("create", "--filename", "-", stdin=item)

    @contextmanager
    def operator(self) -> Iterator[subprocess.Popen[bytes]]:
        """Runs the operator until it is killed."""
        with operator.running(self.made, self.log) as process:
            yield process

    def patch(self, kind: str, name: str, change: Object, *words: str) -> None:
        self.kubectl("patch", kind, name, *words, "--type", "merge", "--patch", json.dumps(change))

    def set_version(self, version: str) -> None:
        self.patch("clusterpolicy", "cluster-policy", {"spec": {"driver": {"version": version}}})

    def play(self, name: str, *words: str) -> user.Run:
        """A run of a playbook; C(audit) then has its requests."""
        self.audit.start()
        return plays.run(self.folder, name, self.inventory, *words)

    def nodes(self) -> dict[str, Object]:
        return {str(one["metadata"]["name"]): one for one in self.client.list("v1", "Node")}

    def states(self) -> dict[str, str]:
        return {name: str(one["metadata"]["labels"].get(upgrades.STATE, "")) for name, one in self.nodes().items()}

    def deploy_labels(self) -> dict[str, dict[str, str]]:
        return {name: {key: value for key, value in one["metadata"]["labels"].items()
                       if key.startswith("nvidia.com/gpu.deploy.")} for name, one in self.nodes().items()}

    def drivers(self) -> dict[str, Object]:
        """The driver pods that are not being deleted, by their Nodes."""
        return {str(pod["spec"]["nodeName"]): pod for pod in self.client.list("v1", "Pod", SPACE, f"app={DRIVER}")
                if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]}

    def versions(self) -> dict[str, str]:
        """The versions of the drivers that are Ready, by their Nodes."""
        return {name: str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2].partition("-")[0]
                for name, pod in self.drivers().items() if is_ready(pod)}

    def images(self) -> dict[str, set[str]]:
        """The images of each DaemonSet."""
        return {str(one["metadata"]["name"]): {str(item["image"]) for kind in ("initContainers", "containers")
                                               for item in one["spec"]["template"]["spec"].get(kind) or ()}
                for one in self.client.list("apps/v1", "DaemonSet", SPACE)}

    def is_upgraded(self, version: str) -> bool:
        return set(self.states().values()) == {upgrades.DONE} and self.versions() == dict.fromkeys(NAMES, version)

    def assert_in_service(self) -> None:
        """All Nodes are as they were before the upgrade."""
        live = self.nodes()
        assert [name for name, one in live.items() if one["spec"].get("unschedulable")] == [CORDONED]
        assert not [name for name, one in live.items() if PAUSED in one["metadata"]["labels"].values()]
        marks = {name: {*(one["metadata"].get("annotations") or {})} for name, one in live.items()}
        assert not [name for name, keys in marks.items() if keys & MARKS or left_behind(dict.fromkeys(keys, ""))]

    def await_operator(self, process: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
        """Waits for work of the operator."""
        def met() -> bool:
            assert process.poll() is None, self.log.read_text()[-3000:]
            self.describe()
            return condition()

        until(met, what)

    def describe(self) -> None:
        """Does the work of GFD: labels Nodes with the version of their driver. The operator looks at driver pods when
        labels of Nodes change, otherwise every two minutes."""
        key, live = "nvidia.com/cuda.driver-version.full", self.nodes()
        for name, version in self.versions().items():
            if live[name]["metadata"]["labels"].get(key) != version:
                self.kubectl("label", "--overwrite", "node", name, f"{key}={version}")

    def kill_upgrade(self, plan: Object, name: str) -> None:
        """Upgrades a Node, and kills the run when it has deleted the driver pod."""
        path = self.folder / "plan.json"
        path.write_text(json.dumps(plan))
        command = [sys.executable, "-m", "tests.integration_cluster.upgrader", str(self.made.kubeconfig), str(path),
                   "drain", name]
        self.audit.start()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
            try:
                until(lambda: [one for one in self.audit.writes if one["agent"].startswith("gpuops.nvidia")
                               and (one["verb"], one["resource"]) == ("delete", "pods")], "the run deletes the pod")
            finally:
                run.kill()


@pytest.fixture(scope="module")
def land(empty: clusters.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Land]:
    with occupied(empty, *nodes.plain(len(NAMES), 0, "a100-80", "ubuntu22.04")) as made:
        land = Land(made, tmp_path_factory.mktemp("land"))
        try:
            land.prepare()
            yield land
        finally:
            faults.off(made, "slow", "", "")


def test_we_finish_what_the_operator_has_begun(land: Land) -> None:
    """The operator is killed while it waits for new drivers. It must be stopped before we adopt."""
    with land.operator() as process:
        land.await_operator(process, lambda: land.is_upgraded(OLD), "the operator installs its operands")
        land.kubectl("cordon", CORDONED)
        faults.on(land.made, faults.Fault("slow", DRIVER, seconds=3600))
        land.set_version(NEW)
        # A Node that is cordoned already does not count for the limit of one Node.
        land.await_operator(process, lambda: [*land.states().values()].count(upgrades.POD_RESTART) == 2
                            and land.states()[CORDONED] == upgrades.POD_RESTART and len(land.versions()) == 2,
                            "the operator replaces two drivers")
        process.kill()
    begun = {name for name, state in land.states().items() if state == upgrades.POD_RESTART}
    assert {name for name, one in land.nodes().items() if one["spec"].get("unschedulable")} == begun
    assert upgrades.CORDONED_BEFORE in land.nodes()[CORDONED]["metadata"]["annotations"]
    assert sorted(state for name, state in land.states().items() if name not in begun) == [upgrades.REQUIRED] * 2
    faults.off(land.made, "slow", "", "")
    done = land.play("adopt")
    assert done.rc and not land.audit.writes
    refused = " ".join(done.errors())
    assert all(name in refused for name in begun)
    assert f"kubectl scale deployment gpu-operator --namespace {SPACE} --replicas 0" in refused
    land.patch("deployment", "gpu-operator", {"spec": {"replicas": 0}}, "--namespace", SPACE)
    rendered, drivers, labels = land.images(), land.drivers(), land.deploy_labels()
    done = land.play("adopt")
    assert not done.rc, done.output
    # What we render has the images and labels that the operator has chosen, and no driver was restarted.
    assert land.images() == rendered
    assert land.deploy_labels() == {name: {"nvidia.com/gpu.deploy.client": "true", **{
        key: value for key, value in keys.items() if key not in OFF}} for name, keys in labels.items()}
    assert {name: pod["metadata"]["uid"] for name, pod in land.drivers().items()} == {
        name: pod["metadata"]["uid"] for name, pod in drivers.items()}
    done = land.play("upgrade")
    assert not done.rc, done.output
    assert land.is_upgraded(NEW)
    land.assert_in_service()
    done = land.play("site")
    assert not done.rc and not land.audit.writes, done.output


def test_the_operator_finishes_what_we_have_begun(land: Land) -> None:
    """Two runs of ours are killed, each while it waits for a new driver."""
    land.set_version(NEWEST)
    done = land.play("site", "--skip-tags", "verify")
    assert not done.rc, done.output
    plan = done.result("cluster", "gpu_policy")["cluster"]
    faults.on(land.made, faults.Fault("slow", DRIVER, seconds=3600))
    for name in ("gpu-1", CORDONED):
        land.kill_upgrade(plan, name)
        live = land.nodes()[name]
        assert live["spec"]["unschedulable"] and HELD in live["metadata"]["annotations"]
        assert PAUSED in live["metadata"]["labels"].values()
    faults.off(land.made, "slow", "", "")
    done = land.play("hand_back")
    assert not done.rc, done.output
    deployment = land.kubectl.get("--namespace", SPACE, "deployment", "gpu-operator")
    daemon = land.kubectl.get("--namespace", SPACE, "daemonset", DRIVER)
    assert deployment["spec"]["replicas"] == 1 and owns(daemon)
    assert {name for name, state in land.states().items() if state in upgrades.IN_PROGRESS} == {"gpu-1", CORDONED}
    with land.operator() as process:
        land.await_operator(process, lambda: land.is_upgraded(NEWEST), "the operator finishes")
        land.assert_in_service()
