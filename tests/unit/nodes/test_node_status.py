# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the states of Nodes depend on, read from Nodes and the pods of the validator."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.node_status import NodeStatus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import node_status
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder

ME = Holder("here", 1, 1, 1795331447.0)
EARLY, LATE = "2026-11-22T07:10:47Z", "2026-11-23T07:10:47Z"
PCI = {"feature.node.kubernetes.io/pci-10de.present": "true"}
ALL = dict.fromkeys(LABELS.values(), "true")


def node(name: str = "gpu-1", labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None,
         ready: str = "True", gpus: tuple[str, str] = ("8", "8"), **spec: Any) -> dict[str, Any]:
    """A Node with all deploy labels."""
    return {"metadata": {"name": name, "labels": {**ALL, **PCI, **(labels or {})}, "annotations": annotations or {}},
            "spec": spec, "status": {
                "capacity": {"nvidia.com/gpu": gpus[0], "cpu": "64"}, "allocatable": {"nvidia.com/gpu": gpus[1]},
                "conditions": [{"type": "MemoryPressure", "status": "False", "lastTransitionTime": LATE},
                               {"type": "Ready", "status": ready, "lastTransitionTime": EARLY}]}}


def pod(name: str, ready: str = "True", since: object = LATE) -> dict[str, Any]:
    return {"metadata": {"name": f"validator-{name}"}, "spec": {"nodeName": name}, "status": {
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}}


class Server:
    """A client that answers lists. error: the status of the error for lists of pods, 0 for none."""

    def __init__(self, nodes: list[dict[str, Any]], pods: list[dict[str, Any]], error: int = 0) -> None:
        self.nodes, self.pods, self.error, self.asked = nodes, pods, error, list[str]()

    def list(self, api_version: str, kind: str, namespace: str | None = None,
             label_selector: str | None = None) -> list[dict[str, Any]]:
        self.asked.append(f"{kind} {namespace} {label_selector}")
        if kind == "Pod" and self.error:
            raise ClusterError("No.", "Ask.", status=self.error)
        return self.nodes if kind == "Node" else self.pods


def read(server: Server, *names: str) -> dict[str, NodeStatus]:
    return node_status.read(cast(Client, server), "space", names, ME)


def test_two_lists_whatever_the_number_of_nodes() -> None:
    names = [f"gpu-{number}" for number in range(50)]
    server = Server([node(name) for name in [*names, "other"]], [*map(pod, names[1:]), pod("gpu-0", "False")])
    found = read(server, *names, "gone")
    assert server.asked == ["Node None None", "Pod space app=nvidia-operator-validator"]
    assert [*found] == names and found["gpu-1"] == NodeStatus(
        ready_since=EARLY, capacity=8, offered=8, valid_since=LATE)
    assert found["gpu-0"].valid_since == ""
    assert found["gpu-1"].as_dict() == {"ready_since": EARLY, "capacity": 8, "offered": 8, "valid_since": LATE}


def test_without_nodes_no_pods_are_read() -> None:
    server = Server([], [])
    assert read(server, "gpu-1") == {} and len(server.asked) == 1


def test_who_may_not_list_pods_does_not_know_since_when_they_are_ready() -> None:
    assert read(Server([node()], [], 403), "gpu-1")["gpu-1"].valid_since == ""
    with pytest.raises(ClusterError):
        read(Server([node()], [], 500), "gpu-1")


@pytest.mark.parametrize(("made", "expected"), [
    ({"ready": "Unknown"}, {"ready": False}),
    ({"unschedulable": True}, {"cordoned": True}),
    ({"gpus": ("8", "6")}, {"offered": 6}), ({"gpus": ("x", "-1")}, {"capacity": 0, "offered": 0}),
    ({"labels": {"nvidia.com/gpu.deploy.operands": "false"}}, {"operands": False}),
    ({"labels": {"nvidia.com/gpu.deploy.operands": "true"}}, {}),
    ({"labels": {"nvidia.com/gpu.workload.config": "vm-passthrough"}}, {"workload": "vm-passthrough"}),
    ({"labels": {"nvidia.com/gpu.workload.config": "container"}}, {}),
    ({"labels": {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig"}}, {"labels": {"dcgm": "paused-for-mig"}}),
    ({"labels": {"nvidia.com/mig.config.state": "failed"}}, {"mig": "failed"}),
    ({"labels": {"nvidia.com/cuda.driver-version.full": "595.91.07", "nvidia.com/cuda.driver.major": "1"}},
     {"driver": "595.91.07"}),
    ({"labels": {"nvidia.com/cuda.driver.major": "580", "nvidia.com/cuda.driver.minor": "126",
                 "nvidia.com/cuda.driver.rev": ""}}, {"driver": "580.126"}),
    ({"labels": {next(iter(PCI)): "false"}, "annotations": {"gpuops.nvidia/gpu-gone-since": EARLY}},
     {"gone_since": EARLY}),
    ({"annotations": {"gpuops.nvidia/gpu-gone-since": EARLY}}, {}),
    ({"labels": {next(iter(PCI)): "false"}, "annotations": {"gpuops.nvidia/gpu-gone-since": "long ago\n"}}, {}),
])
def test_fields(made: dict[str, Any], expected: dict[str, Any]) -> None:
    usual = NodeStatus(ready_since=EARLY, capacity=8, offered=8)
    assert node_status.of_node(node(**made)) == NodeStatus(**{**vars(usual), **expected})


STATE = "nvidia.com/gpu-driver-upgrade-state"
WAIT, CORDONED = "wait-for-jobs-required", "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
TAINTS = [{"key": "a", "timeAdded": EARLY}, {"key": "node.kubernetes.io/unschedulable", "timeAdded": LATE}]
WAITS = "nvidia.com/gpu-driver-upgrade-wait-for-pod-completion-start-time"


@pytest.mark.parametrize(("state", "annotations", "since"), [
    (WAIT, {WAITS: "1795331447"}, EARLY), (WAIT, {WAITS: "yesterday"}, LATE), (WAIT, {WAITS: "9" * 30}, LATE),
    (WAIT, {CORDONED: "true"}, ""), ("drain-required", {WAITS: "1795331447"}, LATE), ("cordon-required", {}, ""),
    ("validation-required", {"nvidia.com/gpu-driver-upgrade-validation-start-time": "1795331447"}, EARLY),
    ("upgrade-done", {}, ""), ("", {"": "1795331447"}, ""),
])
def test_since_when_a_node_is_upgraded(state: str, annotations: dict[str, str], since: str) -> None:
    one = node_status.of_node(node(labels={STATE: state}, annotations=annotations, taints=TAINTS, unschedulable=True))
    assert (one.upgrade, one.upgrade_since) == (state, since)


def test_a_run_that_may_be_active_holds_its_nodes() -> None:
    now = Holder("elsewhere", 7, 7, ME.since).text
    found = read(Server([node(annotations={"gpuops.nvidia/held-by": now})], []), "gpu-1")["gpu-1"]
    assert (found.held, found.held_since, found.left) == ("elsewhere", EARLY, "")
    assert read(Server([node(annotations={"gpuops.nvidia/held-by": "x"})], []), "gpu-1")["gpu-1"].held == ""


def test_a_run_that_is_gone_has_left_its_nodes() -> None:
    long_ago = Holder("elsewhere", 7, 7, time.time() - 10**8).text
    found = read(Server([node(annotations={"gpuops.nvidia/held-by": long_ago})], []), "gpu-1")["gpu-1"]
    assert found.held == "" and found.left == "An earlier run was killed while it worked on Node gpu-1."
