# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy labels on the Nodes of a real API server. Each test has Nodes of its own and names only these."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._deploy import ANNOTATION
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.deploy import label_nodes

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes

D = "nvidia.com/gpu.deploy."
NFD = "feature.node.kubernetes.io/"
COMPONENTS = dict.fromkeys(("nfd", "driver", "container_toolkit", "validator", "device_plugin", "feature_discovery",
                            "dcgm_exporter", "mig_manager"), True)
WORDS = ("client", "container-toolkit", "dcgm-exporter", "device-plugin", "driver", "gpu-feature-discovery",
         "mig-manager", "operator-validator")
WANTED = {**{D + word: "true" for word in WORDS}, "nvidia.com/gpu.present": "true",
          "nvidia.com/mig.config": "all-disabled"}
OTHER = "somebody-else"


class Fleet:
    """Nodes of one test: two with A100, one without GPUs."""

    def __init__(self, made: clusters.Cluster, client: Client, prefix: str) -> None:
        self.made, self.client = made, client
        wanted = [lab_nodes.Node(f"{prefix}-{name}", model=model, gpus=8 if model else 0)
                  for name, model in (("a", "a100-80"), ("b", "a100-80"), ("cpu", ""))]
        lab_nodes.create(made, wanted, lab_nodes.Labels(described=True))
        self.names = [node.name for node in wanted]
        self.a, self.b, self.cpu = self.names
        self.deploy = {"components": COMPONENTS, "on_host": {}, "mig_default": "all-disabled"}
        self.start = self.all_metadata()

    def run(self, state: str = "present", check: bool = False, **options: Any) -> dict[str, Any]:
        """The task on these Nodes."""
        given = {"state": state, "kubeconfig": str(self.made.kubeconfig), "context": None, "nodes": self.names,
                 "deploy": self.deploy, "wait_for_nfd": 0, **options}
        return label_nodes(given, check)

    def metadata(self, name: str) -> dict[str, Any]:
        """Labels and annotations."""
        found = self.client.get("v1", "Node", name)
        assert found is not None
        return {part: found["metadata"].get(part, {}) for part in ("labels", "annotations")}

    def all_metadata(self) -> dict[str, Any]:
        """Of all of them."""
        return {name: self.metadata(name) for name in self.names}

    def write(self, name: str, **patch: dict[str, str | None]) -> None:
        """What somebody else writes: labels=..., annotations=..."""
        self.client.merge_patch("v1", "Node", name, None, {"metadata": patch}, field_manager=OTHER)


@pytest.fixture
def fleet(cluster: clusters.Cluster, client: Client, fresh: Callable[[], str]) -> Fleet:
    """Fresh Nodes."""
    return Fleet(cluster, client, fresh())


def test_once_and_not_again(fleet: Fleet, audit: Any) -> None:
    """What check mode names is done by one PATCH a Node and a manager of ours; the second run only reads."""
    named = fleet.run(check=True)
    assert fleet.all_metadata() == fleet.start
    audit.start()
    assert fleet.run() == named and sorted(named["nodes"]) == [fleet.a, fleet.b]
    assert named["nodes"][fleet.a] == {"added": WANTED, "changed": {}, "removed": {}}
    assert sorted(one["name"] for one in audit.writes if one["agent"] == "gpuops.nvidia") == [fleet.a, fleet.b]
    found = fleet.client.get("v1", "Node", fleet.a)
    assert found is not None
    assert [one["operation"] for one in found["metadata"]["managedFields"]
            if one["manager"] == "gpuops.nvidia"] == ["Update"]
    now = fleet.all_metadata()
    assert now[fleet.a]["labels"] == {**fleet.start[fleet.a]["labels"], **WANTED}
    assert now[fleet.cpu] == fleet.start[fleet.cpu]
    audit.start()
    assert not fleet.run()["changed"]
    ours = [one for one in audit.requests if one["agent"] == "gpuops.nvidia"]
    assert {one["verb"] for one in ours} == {"list"} and not audit.writes
    assert len([one for one in ours if one["resource"] == "nodes"]) == 1  # one page: there are less than 500 Nodes


def test_removal_leaves_exactly_what_was_there(fleet: Fleet) -> None:
    """Though managers rewrote our values, and others have keys beside ours."""
    theirs = {f"{D}driver": "true", f"{D}nvsm": "true", "example.com/rack": "7"}
    fleet.write(fleet.b, labels=theirs, annotations={"example.com/note": "mine"})
    before = fleet.all_metadata()
    fleet.run()
    assert fleet.metadata(fleet.b)["annotations"][ANNOTATION] == ",".join(sorted(set(WANTED) - {f"{D}driver"}))
    fleet.write(fleet.a, labels={f"{D}driver": "pre-installed", f"{D}device-plugin": "paused-for-mig-change"})
    assert not fleet.run()["changed"]
    gone = fleet.run("absent", deploy=None)
    assert gone["nodes"][fleet.a]["removed"] == {**WANTED, f"{D}driver": "pre-installed",
                                                 f"{D}device-plugin": "paused-for-mig-change"}
    assert fleet.all_metadata() == before
    assert not fleet.run("absent", deploy=None)["changed"]


def test_what_users_say_wins(fleet: Fleet) -> None:
    """An operand off, all operands off, and a layout; each is still there after removal."""
    fleet.run()
    fleet.write(fleet.a, labels={f"{D}dcgm-exporter": "false", "nvidia.com/mig.config": "all-1g.10gb"})
    fleet.write(fleet.b, labels={f"{D}operands": "false"})
    fleet.run()
    assert not fleet.run()["changed"]
    labels = fleet.metadata(fleet.b)["labels"]
    assert {key for key in labels if key.startswith(D)} == {f"{D}operands"}
    fleet.run("absent", deploy=None)
    assert fleet.metadata(fleet.a)["labels"] == {**fleet.start[fleet.a]["labels"], f"{D}dcgm-exporter": "false",
                                                 "nvidia.com/mig.config": "all-1g.10gb"}
    assert fleet.metadata(fleet.b)["labels"] == {**fleet.start[fleet.b]["labels"], f"{D}operands": "false"}


def test_one_writer_on_a_node_that_is_a_host(fleet: Fleet) -> None:
    """What moves to the host loses its label, and what a former operator left there goes too."""
    fleet.run()
    fleet.write(fleet.b, labels={f"{D}driver": None}, annotations={ANNOTATION: None})
    fleet.write(fleet.b, labels={f"{D}driver": "true"})
    fleet.deploy["on_host"] = {fleet.a: ["driver", "container_toolkit", "mig_manager"], fleet.b: ["driver"]}
    result = fleet.run()
    assert sorted(result["nodes"][fleet.a]["removed"]) == [
        f"{D}container-toolkit", f"{D}driver", f"{D}mig-manager", "nvidia.com/mig.config"]
    assert sorted(result["nodes"][fleet.b]["removed"]) == [f"{D}driver"]
    assert not fleet.run()["changed"]


def test_a_gpu_that_vanishes_and_returns(fleet: Fleet) -> None:
    """The Node is Ready and NFD still describes it, so it is true."""
    fleet.run()
    full = fleet.metadata(fleet.a)
    fleet.write(fleet.a, labels={f"{NFD}pci-10de.present": None})
    fleet.run()
    assert {key: value for key, value in fleet.metadata(fleet.a)["labels"].items() if key in WANTED} == {
        "nvidia.com/gpu.present": "false"}
    fleet.write(fleet.a, labels={f"{NFD}pci-10de.present": "true"})
    fleet.run()
    assert fleet.metadata(fleet.a) == full


def test_another_writer_at_the_same_time_loses_nothing(fleet: Fleet) -> None:
    """A patch of single keys without a resourceVersion: both sides' keys are there in the end."""
    stop = threading.Event()
    failed: list[Exception] = []
    count = 0

    def hammer() -> None:
        nonlocal count
        other = Client(str(fleet.made.kubeconfig))
        while not stop.is_set():
            try:
                other.merge_patch("v1", "Node", fleet.a, None, {"metadata": {"labels": {"example.com/n": str(count)}}},
                                  field_manager=OTHER)
            except Exception as error:
                failed.append(error)
                return
            count += 1

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _number in range(10):
            assert fleet.run()["changed"] and fleet.run("absent", deploy=None)["changed"]
        fleet.run()
    finally:
        stop.set()
        thread.join()
    assert not failed and count > 20
    assert fleet.metadata(fleet.a)["labels"] == {
        **fleet.start[fleet.a]["labels"], **WANTED, "example.com/n": str(count - 1)}


def test_a_name_that_is_no_node_changes_nothing(fleet: Fleet) -> None:
    with pytest.raises(InputError, match="no-such-node"):
        fleet.run(nodes=[fleet.a, "no-such-node"])
    assert fleet.all_metadata() == fleet.start


def test_from_a_playbook_without_a_connection(fleet: Fleet, tmp_path: Path) -> None:
    """The play's host cannot be reached and is not asked; a kubeconfig of the environment is not used."""
    play = tmp_path / "play.yml"
    options = {"state": "present", "target": "node", "nodes": fleet.names, "deploy": fleet.deploy}
    task = {"name": "Label", "gpuops.nvidia.gpu_labels": options}
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))

    def ansible(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["ansible-playbook", "-i", "192.0.2.1,", str(play), *more], capture_output=True,
                              check=False, text=True, timeout=120,
                              env={**os.environ, "KUBECONFIG": str(fleet.made.kubeconfig)})

    refused = ansible()
    assert refused.returncode and "kubeconfig" in refused.stdout and fleet.all_metadata() == fleet.start
    options["kubeconfig"] = str(fleet.made.kubeconfig)
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    shown = ansible("--check", "--diff")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"+label {D}driver=true" in shown.stdout and "changed=1" in shown.stdout
    assert fleet.all_metadata() == fleet.start
    assert "changed=1" in ansible().stdout and "changed=0" in ansible().stdout
