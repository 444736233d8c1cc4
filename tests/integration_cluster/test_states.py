# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states that status gives to the Nodes of a real API server, and what it costs."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import cli
from lab.controlplane import cluster as clusters
from lab.controlplane import nodes
from tests.integration import user
from tests.integration_cluster.conftest import Audit, Kubectl, occupied
from tests.integration_cluster.plays import LOCAL, run
from tests.waiting import until

POLICY = {"toolkit": {"enabled": False}, "migManager": {"enabled": False}, "gfd": {"enabled": False},
          "nfd": {"enabled": False}}
PCI = "feature.node.kubernetes.io/pci-10de.present=true"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
LATER = ("gpu-later-1", "gpu-later-2", "gpu-later-3")
Record = dict[str, Any]


class Site:
    """A cluster with three GPU Nodes after a run of site.yml."""

    def __init__(self, made: clusters.Cluster, folder: Path) -> None:
        self.made, self.kubectl, self.folder = made, Kubectl(str(made.kubeconfig)), folder
        self.audit = Audit(made.audit_log)

    def play(self, name: str, **more: Any) -> user.Run:
        """Runs a playbook of the collection."""
        variables = {"gpu_placement": "cluster", "gpu_kubeconfig": self.kubectl.kubeconfig, "gpu_policy": POLICY,
                     **more}
        return run(self.folder, name, {"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": variables}})

    def states(self) -> tuple[dict[str, Record], str]:
        """The states, and the output of status, which writes nothing."""
        path = self.folder / "report.json"
        self.audit.start()
        done = self.play("status", gpu_report_json=str(path), gpu_status_metrics_file=str(self.folder / "gpuops.prom"))
        assert done.rc == 0, done.output
        assert not [one for one in self.audit.writes if one["agent"] == "gpuops.nvidia"]
        found: dict[str, Record] = json.loads(path.read_text())["states"]
        return found, done.output

    def state(self, name: str) -> tuple[str, str]:
        """State and reason of a Node."""
        found = self.states()[0][name]
        return found["state"], found["reason"]

    def requests(self) -> list[str]:
        """The requests of a run of status, sorted."""
        self.states()
        return sorted(f"{one['verb']} {one['uri'].partition('?')[0]}" for one in self.audit.requests
                      if one["agent"] == "gpuops.nvidia" and one["stage"] == "ResponseComplete")

    def offers(self, name: str, gpus: int, capacity: int = 8) -> None:
        """The kubelet of a Node offers GPUs."""
        sizes = {key: {"nvidia.com/gpu": str(count)} for key, count in (("capacity", capacity), ("allocatable", gpus))}
        self.kubectl("patch", "node", name, "--subresource", "status", "--type", "merge", "--patch",
                     json.dumps({"status": sizes}))


@pytest.fixture(scope="module")
def site(empty: clusters.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with occupied(empty, *nodes.plain(3, 0, "a100-80", "ubuntu22.04")) as made:
        found = Site(made, tmp_path_factory.mktemp("states"))
        found.kubectl("label", "nodes", "--all", PCI)
        done = found.play("site")
        assert done.rc == 0, done.output
        for name in ("gpu-1", "gpu-2", "gpu-3"):
            found.offers(name, 8)
        yield found


def test_nodes_that_are_as_planned(site: Site) -> None:
    """They are ready since their validator is, and the metrics say the same."""
    found, output = site.states()
    assert {(one["state"], one["reason"], one["drift"]) for one in found.values()} == {("Ready", "AsPlanned", False)}
    assert "States: 3 Ready" in output and "3: gpu-[1-3]" in output and set(found) == {"gpu-1", "gpu-2", "gpu-3"}
    pods = json.loads(site.kubectl("--namespace", "gpu-operator", "get", "pods", "--selector",
                                   "app=nvidia-operator-validator", "--output", "json"))["items"]
    ready = {pod["spec"]["nodeName"]: condition["lastTransitionTime"] for pod in pods
             for condition in pod["status"]["conditions"] if condition["type"] == "Ready"}
    for name, one in found.items():
        node = next(condition["lastTransitionTime"] for condition in site.kubectl.get("node", name)["status"][
            "conditions"] if condition["type"] == "Ready")
        assert one["since"] == max(ready[name], node) and one["driver"]["desired"]
    seconds = datetime.datetime.fromisoformat(found["gpu-1"]["since"]).timestamp()
    metrics = (site.folder / "gpuops.prom").read_text().splitlines()
    assert f'gpuops_node_state_since_seconds{{node="gpu-1"}} {seconds:.0f}' in metrics
    assert 'gpuops_node_state{node="gpu-1",state="Ready"} 1' in metrics


def test_labels_and_resources_of_nodes(site: Site) -> None:
    """What people and the operator write on Nodes, one thing after another."""
    node = ("label", "--overwrite", "node")
    site.kubectl(*node, "gpu-1", f"{UPGRADE}=drain-required")
    site.kubectl(*node, "gpu-2", f"{UPGRADE}=upgrade-required")
    site.kubectl(*node, "gpu-3", f"{UPGRADE}=upgrade-failed")
    site.kubectl("cordon", "gpu-1")
    try:
        found, output = site.states()
        assert {name: (one["state"], one["reason"]) for name, one in found.items()} == {
            "gpu-1": ("Upgrading", "DrainRequired"), "gpu-2": ("Upgrading", "UpgradeRequired"),
            "gpu-3": ("Degraded", "UpgradeFailed")}
        taint, = (one for one in site.kubectl.get("node", "gpu-1")["spec"]["taints"]
                  if one["key"] == "node.kubernetes.io/unschedulable")
        assert found["gpu-1"].get("since") == taint.get("timeAdded") and "States: 2 Upgrading, 1 Degraded" in output
        failed = site.play("status", gpu_status_fail_on=["Degraded"])
        assert failed.rc != 0 and "1 Degraded (gpu-3)." in failed.output, failed.output
        assert site.play("status", gpu_status_fail_on=["NotReady"]).rc == 0
        for name in ("gpu-1", "gpu-2", "gpu-3"):
            site.kubectl("label", "node", name, f"{UPGRADE}-")
        assert site.state("gpu-1") == ("Ready", "Cordoned")
        site.kubectl("label", "node", "gpu-2", "nvidia.com/gpu.deploy.dcgm-exporter-")
        site.offers("gpu-3", 6)
        found, _output = site.states()
        assert (found["gpu-2"]["reason"], found["gpu-2"]["drift"]) == ("DcgmExporterNotReady", True)
        assert (found["gpu-3"]["state"], found["gpu-3"]["reason"]) == ("Degraded", "GpusDiffer")
        site.offers("gpu-3", 0)
        assert site.state("gpu-3") == ("NotReady", "NoGpuVisible")
        site.kubectl("label", "node", "gpu-3", "nvidia.com/gpu.deploy.operands=false")
        assert site.state("gpu-3") == ("Disabled", "OperandsDisabled")
    finally:
        site.kubectl("uncordon", "gpu-1")
        site.kubectl("label", "node", "gpu-3", "nvidia.com/gpu.deploy.operands-")
        site.offers("gpu-3", 8)
        assert site.play("site").rc == 0


def fault(site: Site, kind: str, switch: str, *words: str) -> None:
    assert cli.main(["cluster", "stage", "--name", site.made.name, kind, switch, *words]) == 0


def test_pods_and_kubelets(site: Site) -> None:
    """The first component that fails, and since when; a Node that is lost."""
    where = ("--node", "gpu-1")
    fault(site, "validator", "on", *where)
    try:
        until(lambda: site.kubectl.get("daemonset", "nvidia-operator-validator", "--namespace", "gpu-operator")[
            "status"]["numberReady"] == 2, "one validator is not ready")
        found, output = site.states()
        assert (found["gpu-1"]["state"], found["gpu-1"]["reason"]) == ("NotReady", "ValidatorNotReady"), output
        assert found["gpu-1"]["since"] and "toolkit-validation" in found["gpu-1"]["message"]
        assert found["gpu-2"]["state"] == "Ready" and "States: 2 Ready, 1 NotReady" in output
    finally:
        fault(site, "validator", "off", *where)
    fault(site, "node-lost", "on", *where)
    try:
        def condition() -> Record:
            return next(one for one in site.kubectl.get("node", "gpu-1")["status"]["conditions"]
                        if one["type"] == "Ready")

        until(lambda: condition()["status"] != "True", "the Node is lost")
        found, output = site.states()
        assert (found["gpu-1"]["state"], found["gpu-1"]["reason"]) == ("NotReady", "NodeNotReady"), output
        assert found["gpu-1"]["since"] == condition()["lastTransitionTime"]
    finally:
        fault(site, "node-lost", "off", *where)
        until(lambda: condition()["status"] == "True", "the Node is back")


def test_more_nodes_cost_no_more_requests(site: Site) -> None:
    few = site.requests()
    nodes.create(site.made, [nodes.Node(name, "ubuntu22.04", "a100-80", 8) for name in LATER], nodes.Labels())
    for name in LATER:
        site.kubectl("label", "node", name, PCI)
    assert site.play("site").rc == 0
    found, _output = site.states()
    assert len(found) == 6
    assert site.requests() == few
