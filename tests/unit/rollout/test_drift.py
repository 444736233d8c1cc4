# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""verify, status and preflight report what site.yml would repair: objects and labels, from the plan of site.yml."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action import gpu_verify
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import PendingStep, Step
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import label_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import checks, drift
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Request, status

POLICY = {"nfd": {"enabled": False}, "driver": {"enabled": False}, "toolkit": {"enabled": False},
          "migManager": {"enabled": False}, "gfd": {"enabled": False}, "nodeStatusExporter": {"enabled": False}}
PCI = {"feature.node.kubernetes.io/pci-10de.present": "true"}
SPACE = "/apis/apps/v1/namespaces/gpu-operator/daemonsets"
EXPORTER = f"{SPACE}/nvidia-dcgm-exporter"


def planned(api: ApiServer, **more: Any) -> dict[str, Any]:
    """The plan of a cluster with two GPU Nodes."""
    cluster = clusters.facts(clusters.node(**PCI), clusters.node(**PCI))
    return {**clusters.plan(POLICY, cluster, **more), "kubeconfig": str(api.kubeconfig)}


@pytest.fixture
def world(api: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A cluster that is as planned, with all workloads ready."""
    monkeypatch.setattr(gpu_verify, "display", SimpleNamespace(display=lambda line: None))
    plan = planned(api)
    for name in plan["nodes"]["gpu"]:
        api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {**PCI}},
                 "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    deliver.present(client, *deliver.of_plan(plan, None), check=False)
    label(api, plan)
    for path, item in api.objects.items():
        if path.startswith(SPACE):
            item["status"] = {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2}
    assert drift.differences(client, plan, None) == []
    api.requests.clear()
    return plan


def label(api: ApiServer, plan: dict[str, Any]) -> None:
    label_nodes.label_nodes({"state": "present", "deploy": plan["deploy"], "adopt": [], "nodes": None,
                             "wait_for_nfd": 0, "gone_after": 600, "kubeconfig": plan["kubeconfig"],
                             "context": None}, False)


def verified(plan: dict[str, Any], check: bool = False, **options: Any) -> dict[str, Any]:
    return act(gpu_verify.ActionModule, {"cluster": plan, "timeout": 0, **options}, task_vars(localhost={}), check)


def states(result: dict[str, Any]) -> dict[str, str]:
    return {one["component"]: one["state"] for one in result["checks"] if one["state"] != "ok"}


def test_a_cluster_as_planned_has_no_differences(world: dict[str, Any], api: ApiServer) -> None:
    found = verified(world)
    assert states(found) == {} and not found.get("failed") and found["verified"] == ["n1", "n2"]
    assert api.sent() == []


def by_another(api: ApiServer, path: str, **fields: Any) -> None:
    """A server-side apply by another manager."""
    live = api.objects[path]
    body = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": {"name": live["metadata"]["name"]}}
    api._apply(path, live, {**body, **fields}, {"fieldManager": "kubectl", "force": "true"})


def other_image(api: ApiServer, plan: dict[str, Any]) -> None:
    containers = copy.deepcopy(api.objects[EXPORTER]["spec"]["template"]["spec"]["containers"])
    containers[0]["image"] = "evil:1"
    by_another(api, EXPORTER, spec={"template": {"spec": {"containers": containers}}})


def emptied_role(api: ApiServer, plan: dict[str, Any]) -> None:
    by_another(api, next(path for path in api.objects if "/clusterroles/" in path), rules=[])


def config_map_deleted(api: ApiServer, plan: dict[str, Any]) -> None:
    del api.objects[next(path for path in api.objects if "/configmaps/" in path)]


def deploy_labels_gone(api: ApiServer, plan: dict[str, Any]) -> None:
    api.objects["/api/v1/nodes/n2"]["metadata"].update(labels={**PCI}, annotations={})


def new_node(api: ApiServer, plan: dict[str, Any]) -> None:
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3", "labels": {**PCI}}})


def other_release(api: ApiServer, plan: dict[str, Any]) -> None:
    plan.update({**planned(api, release="25.10.1"), "kubeconfig": plan["kubeconfig"]})


def no_longer_planned(api: ApiServer, plan: dict[str, Any]) -> None:
    plan["components"]["dcgm_exporter"] = {"state": "absent", "because": ["not wanted"]}


@pytest.mark.parametrize(("change", "what"), [
    (other_image, "DaemonSet gpu-operator/nvidia-dcgm-exporter differs in "), (emptied_role, "ClusterRole"),
    (config_map_deleted, "ConfigMap gpu-operator/"),
    (deploy_labels_gone, "n2: labels differ from the plan (nvidia.com/"),
    (new_node, "n3: labels differ from the plan (nvidia.com/"), (other_release, "differs in "),
    (no_longer_planned, "is no longer planned"),
])
def test_what_site_would_repair_fails_the_comparison(world: dict[str, Any], api: ApiServer, what: str,
                                                     change: Callable[[ApiServer, dict[str, Any]], None]) -> None:
    change(api, world)
    found = verified(world)
    assert found["failed"] and set(states(found).values()) == {"failed"}
    assert any(what in problem and problem.endswith("Run site.yml: it repairs this.")
               for problem in found["problems"])
    assert api.sent() == []
    read = Cluster.of({"plan": world, "checks": found["checks"]})
    assert {one.kind for one_check in read.checks or () for one in one_check.nodes} <= {"difference"}
    report = "\n".join(report_cluster.render_result(read, Style(200)))
    assert what in report
    # A report is no failure, and what the run has just delivered is not compared again.
    assert not verified(world, enforce=False).get("failed")
    assert states(verified(world, compare=False)) == {}


def test_check_mode_has_nothing_failed_yet(world: dict[str, Any], api: ApiServer) -> None:
    other_image(api, world)
    found = verified(world, True)
    assert states(found) == {"dcgm_exporter": "pending"} and not found.get("failed")


def test_a_node_whose_labels_differ_is_not_verified(world: dict[str, Any], api: ApiServer) -> None:
    deploy_labels_gone(api, world)
    found = verified(world)
    assert found["verified"] == ["n1"]
    nodes, = (one for one in found["checks"] if one["component"] == "nodes")
    assert [one["node"] for one in nodes["nodes"]] == ["n2"] and nodes["causes"][0]["nodes"] == ["n2"]
    # Tags choose components; labels are for all of them together.
    assert states(verified(world, components=["dcgm_exporter"])) == {}


@pytest.mark.parametrize("check", [False, True])
def test_a_startup_taint_that_site_would_take_is_pending(world: dict[str, Any], api: ApiServer, check: bool) -> None:
    """Only on a verified Node that offers GPUs. Nothing is written, and the Node stays verified."""
    key, gpus = "startup/gpu", {"allocatable": {"nvidia.com/gpu": "8"}}
    for name, more in (("n1", gpus), ("n2", {})):
        node = api.objects[f"/api/v1/nodes/{name}"]
        node["spec"] = {"taints": [{"key": key, "effect": "NoSchedule"}]}
        node["status"].update(more)
    found = verified(world, check, startup_taint=key)
    nodes, = (one for one in found["checks"] if not one["ok"])
    assert (nodes["component"], nodes["state"], nodes["causes"][0]["nodes"]) == ("nodes", "pending", ["n1"])
    assert nodes["detail"] == f"n1: the startup taint {key} is still set" and "Run site.yml" in nodes["hint"]
    assert found["verified"] == ["n1", "n2"] and not found.get("failed") and api.sent() == []
    assert states(verified(world, startup_taint="other")) == states(verified(world)) == {}
    wrong = verified(world, startup_taint=f"{key}=true:NoSchedule")
    assert wrong["failed"] and "is no key of a taint" in wrong["msg"]
    deploy_labels_gone(api, world)
    del api.objects["/api/v1/nodes/n1"]["spec"]
    assert states(verified(world, startup_taint=key)) == {"nodes": "failed"}


def test_labels_that_only_hosts_tell_of(world: dict[str, Any], api: ApiServer) -> None:
    """Without NFD, the host reports that its Node has GPUs; the feature labels that it reports are not compared
    here."""
    world["nodes"]["by_host"], world["deploy"]["hosts"] = {"n2": "host-2"}, ["host-2"]
    features = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-L40S"}
    metadata = api.objects["/api/v1/nodes/n2"]["metadata"]
    for key in PCI:
        del metadata["labels"][key]
    metadata["labels"].update(features)
    metadata["annotations"]["gpuops.nvidia/labels"] += "," + ",".join(features)
    known = task_vars(**{"localhost": {}, "host-2": {"preflight_found": {"facts": {"gpus": [{}] * 8}}}})

    def told() -> list[str]:
        found = act(gpu_verify.ActionModule, {"cluster": world, "timeout": 0, "components": None}, known)
        return [one["detail"] for one in found["checks"] if one["component"] == "nodes"]

    assert told() == []
    for key in [key for key in metadata["labels"] if ".deploy." in key]:
        del metadata["labels"][key]
    assert len(told()) == 1 and told()[0].startswith("n2: labels differ from the plan (nvidia.com/gpu.deploy.")
    metadata["labels"], metadata["annotations"] = {}, {}
    assert len(told()) == 1
    known["hostvars"]["host-2"]["preflight_found"]["facts"]["gpus"] = []
    assert told() == []


def test_what_gpu_disruption_holds_back_is_pending(world: dict[str, Any], api: ApiServer, client: Client,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def held(changes: list[Any], level: str, nodes: Any, there: Any) -> tuple[list[Any], list[PendingStep]]:
        mine = [one for one in changes if one.writes]
        return [one for one in changes if not one.writes], [
            Step(one.action, one.label, needs="drain").pending(f"gpu_disruption is '{level}'") for one in mine]

    other_image(api, world)
    monkeypatch.setattr(drift.pending_changes, "hold", held)
    found = verified(world)
    check, = (one for one in found["checks"] if not one["ok"])
    assert (check["component"], check["state"]) == ("dcgm_exporter", "pending") and not found.get("failed")
    assert check["hint"] == ("Set gpu_disruption: drain in a maintenance window, or drain and switch the Nodes one by "
                             "one.")
    assert "repair: DaemonSet gpu-operator/nvidia-dcgm-exporter: gpu_disruption is 'never'" in check["detail"]


def test_many_objects_are_named_by_the_first_and_their_number(world: dict[str, Any], api: ApiServer,
                                                              client: Client) -> None:
    for path in [path for path in api.objects if "device-plugin" in path]:
        del api.objects[path]
    found = next(one for one in drift.differences(client, world, None) if one.component == "device_plugin")
    assert found.cause.count(" is missing") == 3 and re.search(r"; \d+ more objects$", found.cause), found


def test_what_cannot_be_read_is_not_called_as_planned(world: dict[str, Any], api: ApiServer) -> None:
    def forbidden(request: Request) -> Any:
        return status(403, "no") if request.verb == "list" and "clusterroles" in request.path else None

    api.before = forbidden
    found = verified(world)
    assert states(found) == {"cluster": "failed"}
    assert "cluster: the cluster cannot be compared with the plan" in found["problems"][0]


def test_a_component_that_does_not_come_up_keeps_its_words() -> None:
    slow = Check("dcgm", False, "failed", "1/2 ready at the timeout", "Raise the timeout.", 2, 1)
    other = drift.Difference("dcgm", "DaemonSet a/b differs in spec", "Run site.yml.")
    check, = checks.compared([slow], [other])
    assert check.detail == "1/2 ready at the timeout; DaemonSet a/b differs in spec"
    assert [cause.text for cause in check.causes] == ["1/2 ready at the timeout", other.cause]
    gone = replace(slow, state="absent", detail="the cluster has no objects of this component")
    assert checks.compared([gone], [other]) == [gone]
    pending = checks.compared([replace(slow, state="pending")], [other])[0]
    assert pending.state == "failed" and pending.hint == "Run site.yml."
