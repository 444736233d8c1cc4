# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pod with one GPU runs to its end on some Nodes, and never stays."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action import gpu_verify
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import check_pods
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.check_pods import IN_USE, Ran
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request, status

GPU, MIG, SPACE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "gpu-operator"
PODS = f"/api/v1/namespaces/{SPACE}/pods"


def node(name: str, product: str = "L4", gpus: str = "2", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "spec": spec, "status": {
        "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {GPU: gpus}, "capacity": {GPU: gpus}},
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product,
                                              "nvidia.com/gpu.deploy.device-plugin": "true"}}}


def user(name: str, on: str, gpus: str = "1") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": on, "containers": [{"name": "x", "resources": {"limits": {GPU: gpus}}}]},
            "status": {"phase": "Running"}}


@pytest.fixture
def plan() -> dict[str, Any]:
    return clusters.plan({}, clusters.facts(n1=clusters.node(), n2=clusters.node(), n3=clusters.node()))


class Kubelet:
    """What happens to a pod of ours once it was asked for; log: what the kubelet answers for its log."""

    def __init__(self, api: ApiServer, log: Any = "CUDA error: no device\n") -> None:
        self.api, self.log = api, log
        self.ends: dict[str, dict[str, Any]] = {}
        api.before = self

    def __call__(self, request: Request) -> Reply | None:
        if request.path.endswith("/log"):
            return self.log if isinstance(self.log, Reply) else Reply(200, self.log)
        if request.verb == "list" and request.path == PODS:
            for pod in self.mine():
                pod["status"] = self.ends.get(placed(pod), {"phase": "Succeeded"})
        return None

    def mine(self) -> list[dict[str, Any]]:
        return [item for path, item in self.api.objects.items() if path.startswith(f"{PODS}/gpuops-check-")]


def placed(pod: dict[str, Any]) -> str:
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def run(client: Client, plan: dict[str, Any], amount: Any, check: bool = False) -> list[Ran]:
    clock = Clock()
    return check_pods.run(client, plan, ["n1", "n2", "n3"], amount, check, clock, clock.sleep)


def test_a_pod_runs_on_one_node_of_each_model_first(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    kubelet = Kubelet(api)
    api.put(node("n1"), node("n2"), node("n3", "H100"))
    assert run(client, plan, 2) == [Ran("n1", "ok"), Ran("n3", "ok")] and kubelet.mine() == []
    pods = [one.body for one in api.requests if one.verb == "apply"]
    assert len({pod["metadata"]["name"] for pod in pods}) == 2 and len(api.sent("delete")) == 2
    spec, container = pods[0]["spec"], pods[0]["spec"]["containers"][0]
    assert container["image"] == plan["components"]["validator"]["images"]["validator"]
    assert container["resources"] == {"limits": {GPU: "1"}} and "privileged" not in container["securityContext"]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"], spec["runtimeClassName"]) == ("Never", 120, "nvidia")
    api.requests.clear()
    assert run(client, plan, 0) == [] and api.requests == []


def test_a_gpu_in_use_is_not_taken(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    Kubelet(api)
    ended = user("ended", "n2", "2")
    ended["status"]["phase"] = "Succeeded"
    api.put(node("n1", gpus="1"), node("n2"), node("n3", unschedulable=True), user("a", "n1"), user("b", "n2"),
            ended)
    assert run(client, plan, ["n1", "n2", "n3"]) == [
        Ran("n1", "skipped", IN_USE), Ran("n2", "ok"),
        Ran("n3", "skipped", "skipped: the Node is cordoned, not Ready, or has another problem")]
    assert len(api.sent("apply")) == 1


@pytest.mark.parametrize(("offer", "pods", "found"), [
    ({GPU: "1", MIG: "7"}, [], GPU), ({GPU: "1", MIG: "7"}, [{GPU: "1"}], MIG), ({GPU: "0"}, [], ""),
    ({GPU: "2"}, [{GPU: "1"}, {GPU: "1"}], ""), ({GPU: "2"}, [{"cpu": "2", GPU: "x"}], GPU),
])
def test_a_free_gpu(offer: dict[str, str], pods: list[dict[str, str]], found: str) -> None:
    there = {**node("n1"), "status": {"allocatable": offer}}
    assert check_pods.free_gpu(there, [{"spec": {"containers": [{"resources": {"requests": wanted}}]}}
                                       for wanted in pods]) == found


def test_shared_gpus_are_free_only_if_no_pod_has_any() -> None:
    """A replica may be free although other programs use all of the memory."""
    shared = {**node("n1"), "status": {"allocatable": {GPU: "4"}}}
    shared["metadata"] = {**shared["metadata"], "labels": {"nvidia.com/gpu.replicas": "4"}}
    pod: dict[str, Any] = {"spec": {"containers": [{"resources": {"limits": {GPU: "1"}}}]}}
    assert check_pods.free_gpu(shared, []) == GPU and check_pods.free_gpu(shared, [pod]) == ""
    assert check_pods.free_gpu(shared, [{**pod, "status": {"phase": "Succeeded"}}]) == GPU


def test_an_init_container_uses_its_gpus_before_the_containers() -> None:
    spec = {"containers": [{"resources": {"limits": {GPU: "1"}}}, {}],
            "initContainers": [{"resources": {"limits": {GPU: "2"}}}]}
    assert check_pods.free_gpu(node("n1"), [{"spec": spec}]) == ""


def unschedulable(message: str) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


@pytest.mark.parametrize(("ends", "state", "reason"), [
    (unschedulable("0/3 nodes are available: 1 Insufficient nvidia.com/gpu."), "skipped", IN_USE),
    (unschedulable("0/3 nodes: 1 Insufficient cpu"), "skipped", "does not place it: 0/3 nodes: 1 Insufficient cpu"),
    ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "no"}, "skipped", IN_USE),
    ({"phase": "Failed"}, "failed", "failed (Failed); its log ends with: CUDA error: no device"),
    ({"phase": "Failed", "reason": "DeadlineExceeded"}, "failed", "failed (Failed DeadlineExceeded)"),
    ({"phase": "Pending"}, "failed", "has not ended after 120 s (Pending)"),
])
def test_what_becomes_of_a_pod(api: ApiServer, client: Client, plan: dict[str, Any], ends: dict[str, Any], state: str,
                               reason: str) -> None:
    kubelet = Kubelet(api)
    kubelet.ends["n1"] = ends
    api.put(node("n1"))
    found, = run(client, plan, 1)
    assert found.state == state and reason in found.reason and kubelet.mine() == []
    # What docs/cluster.md names for gpu_check_pods, and the documented role.
    assert {(one.verb, one.path.rpartition("/")[2] if one.verb in ("list", "get") else "pods")
            for one in api.requests} <= {("list", "nodes"), ("list", "pods"), ("get", "log"), ("apply", "pods"),
                                         ("delete", "pods")}
    difference, = check_pods.differences([found])
    assert difference.level == ("failed" if state == "failed" else "pending") and difference.nodes == ("n1",)


def test_a_log_that_cannot_be_read_is_no_error(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    Kubelet(api, status(403, "no")).ends["n1"] = {"phase": "Failed"}
    api.put(node("n1"))
    assert run(client, plan, 1)[0].reason == "failed (Failed)"


def test_a_pod_that_another_client_deletes(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    def before(request: Request) -> None:
        for path in [path for path in api.objects if path.startswith(PODS) and request.verb == "list"]:
            del api.objects[path]

    api.before = before
    api.put(node("n1"))
    assert "another client deleted" in run(client, plan, 1)[0].reason


def test_a_pod_that_is_refused_fails_and_is_deleted_if_it_exists_all_the_same(api: ApiServer, client: Client,
                                                                              plan: dict[str, Any]) -> None:
    Kubelet(api)
    api.admission = lambda item: "exceeded quota"
    api.put(node("n1"))
    found, = run(client, plan, 1)
    assert found.state == "failed" and found.reason.startswith("no pod could be created: Pod gpu-operator/gpuops-check")
    assert len(api.sent("delete")) == 1


def test_the_pods_are_deleted_if_the_run_is_interrupted(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    kubelet = Kubelet(api)
    kubelet.ends["n1"] = {"phase": "Pending"}
    api.put(node("n1"))

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_pods.run(client, plan, ["n1"], 1, False, Clock(), interrupted)
    assert kubelet.mine() == []


def test_the_pods_of_a_killed_run_are_deleted_by_the_next(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    Kubelet(api)
    api.put(node("n1"))
    for name, age in (("old", 700), ("young", 60)):
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))
        api.put({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}, "metadata": {
            "name": name, "namespace": SPACE, "labels": {check_pods.LABEL: "true"}, "creationTimestamp": created}})
    assert run(client, plan, 1, check=True) == [Ran("n1", "planned", f"a pod with 1 {GPU} would run")]
    assert api.sent() == []
    assert run(client, plan, 1) == [Ran("n1", "ok")]
    assert f"delete {PODS}/old" in api.sent() and f"delete {PODS}/young" not in api.sent()


@pytest.mark.parametrize("check", [False, True])
def test_gpu_verify_runs_them_on_nodes_without_a_problem(api: ApiServer, monkeypatch: pytest.MonkeyPatch, check: bool,
                                                         plan: dict[str, Any]) -> None:
    monkeypatch.setattr(gpu_verify, "display", SimpleNamespace(display=lambda line: None))
    kubelet = Kubelet(api)
    kubelet.ends["n2"] = {"phase": "Failed"}
    plan["kubeconfig"] = str(api.kubeconfig)
    plan["components"] = {name: plan["components"][name] for name in ("validator", "device_plugin")}
    for name in plan["components"]:
        api.put({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
            "name": name.replace("_", "-"), "namespace": SPACE, "labels": {
                "app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": name}},
            "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"spec": {}}, "updateStrategy": {}},
            "status": {"desiredNumberScheduled": 3, "numberReady": 3, "updatedNumberScheduled": 3}})
    api.put(node("n1"), node("n2"), node("n3"))
    options = {"cluster": plan, "timeout": 0, "compare": False}
    found = act(gpu_verify.ActionModule, {**options, "check_pods": 2}, task_vars(localhost={}), check)
    validator = next(one for one in found["checks"] if one["component"] == "validator")
    assert {one["node"]: one["state"] for one in found["pods"]} == (
        {"n1": "planned", "n2": "planned"} if check else {"n1": "ok", "n2": "failed"})
    assert validator["state"] == ("pending" if check else "failed") and bool(found.get("failed")) != check
    assert found["verified"] == (["n1", "n2", "n3"] if check else ["n1", "n3"])
    api.requests.clear()
    quiet = act(gpu_verify.ActionModule, options, task_vars(localhost={}), check)
    assert quiet["pods"] == [] and not quiet.get("failed") and api.sent() == []
    without = {**plan, "components": {**plan["components"], "device_plugin": {"state": "absent"}}}
    asked = {**options, "cluster": without, "check_pods": 1}
    told = act(gpu_verify.ActionModule, asked, task_vars(localhost={}), check)
    reason = "skipped: the cluster does not deliver device_plugin"
    assert {(one["state"], one["reason"]) for one in told["pods"]} == {("skipped", reason)} and not told.get("failed")
    assert "pending" in {one["state"] for one in told["checks"]} and api.sent() == []
    wrong = act(gpu_verify.ActionModule, {**options, "check_pods": "some"}, task_vars(localhost={}), check)
    assert wrong["failed"] and "no number of Nodes" in wrong["msg"]


def test_what_the_cluster_does_not_deliver_is_named_also_by_a_run_that_names_all_components(
        api: ApiServer, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]) -> None:
    """As site does if it has delivered them."""
    monkeypatch.setattr(gpu_verify, "display", SimpleNamespace(display=lambda line: None))
    plan["kubeconfig"] = str(api.kubeconfig)
    plan["components"] = {name: {"state": "absent"} for name in ("validator", "device_plugin", "dcgm_exporter")}
    api.put(node("n1"), node("n2"), node("n3"))
    options = {"cluster": plan, "timeout": 0, "compare": False, "check_pods": 1, "check_metrics": ["n1"]}
    for names in (None, [*plan["components"]]):
        told = act(gpu_verify.ActionModule, {**options, "components": names}, task_vars(localhost={}))
        assert {(one["component"], one["state"]) for one in told["checks"]} == {
            ("validator", "pending"), ("dcgm_exporter", "pending")}
        assert {one["state"] for one in told["pods"]} == {"skipped"}
        # Nothing is wrong with these Nodes.
        assert not told.get("failed") and told["verified"] == ["n1", "n2", "n3"]
    assert act(gpu_verify.ActionModule, {**options, "components": ["driver"]}, task_vars(localhost={}))["checks"] == []
