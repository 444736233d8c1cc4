# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster is handed back to its GPU Operator: what is written, in which order, and the effect of a race."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Request, status

SPACE, OPERATOR, DRIVER, PLUGIN = "gpu-operator", "gpu-operator", "nvidia-driver-daemonset", "nvidia-device-plugin"
DAEMONS = f"/apis/apps/v1/namespaces/{SPACE}/daemonsets"
OPERATORS = f"/apis/apps/v1/namespaces/{SPACE}/deployments/{OPERATOR}"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
POLICY: Object = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
                  "spec": {"driver": {"version": "595.91.07"}}}
MARKS = {objects.APPLIED: "sha", "nvidia.com/last-applied-hash": "1", "gpuops.nvidia/system": "ubuntu22.04"}

NODE = "/api/v1/nodes/gpu-1"
# A ClusterPolicy with which the operator upgrades drivers, and what a killed run has left on a Node.
UPGRADING: Object = {**POLICY, "spec": {"driver": {"version": "595.91.07", "upgradePolicy": {"autoUpgrade": True}}}}
HELD = {"gpuops.nvidia/held-by": "other/1/2@2026-01-01T00:00:00Z", "gpuops.nvidia/labels": "x"}
STATE, PLUGIN_LABEL = "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/gpu.deploy.device-plugin"
OURS, THEIRS = "gpuops.nvidia/cordoned-before", "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
PAUSED = {PLUGIN_LABEL: "paused-for-driver-upgrade"}


def daemon(name: str, component: str, image: str, **annotations: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
        "name": name, "namespace": SPACE, "uid": f"uid-{name}", "generation": 2, "labels": {
            "app": name, **objects.marks(component)},
        "annotations": {"theirs": "x", **MARKS, **annotations},
        "managedFields": [{"manager": "gpuops.nvidia", "operation": "Apply", "fieldsV1": {"f:spec": {}}},
                          {"manager": "kcm", "subresource": "status", "fieldsV1": {"f:status": {}}}]},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": image}]}}},
        "status": {"observedGeneration": 2}}


def revision(number: int, image: str, ours: bool) -> Object:
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": number, "metadata": {
        "name": f"r{number}", "namespace": SPACE, "annotations": {objects.APPLIED: "sha"} if ours else {},
        "ownerReferences": [{"uid": f"uid-{DRIVER}"}]},
        "data": {"spec": {"template": {"$patch": "replace", "metadata": {"labels": {"app": DRIVER}}, "spec": {
            "containers": [{"name": "c", "image": image}]}}}}}


@pytest.fixture
def taken(api: ApiServer) -> ApiServer:
    """A cluster that was adopted: the operator is stopped, and we have rewritten the template of its driver."""
    api.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
        "name": OPERATOR, "namespace": SPACE, "labels": {"app": "gpu-operator"},
        "annotations": {"gpuops.nvidia/replicas": "1"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "gpu-operator"}}}},
        {**POLICY, "spec": {"driver": {"version": "580.126.20"}}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": objects.marks("cluster")}},
        daemon(DRIVER, "driver", "driver:2"), daemon(PLUGIN, "device_plugin", "plugin:1"),
        daemon("nfd-worker", "nfd", "nfd:1"), revision(1, "driver:1", False), revision(2, "driver:2", True),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "annotations": {
            "gpuops.nvidia/labels": "x", "a": "b"}}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cpu-1", "annotations": {"a": "b"}}})
    return api


def back(client: Client, policy: Object = POLICY, check: bool = False) -> dict[str, Any]:
    return deliver.handed_back(client, policy, check)


def test_all_becomes_the_operators_before_it_starts(taken: ApiServer, client: Client) -> None:
    """First the policy, then the other objects, without what only our labels need."""
    preview = back(client, check=True)
    assert taken.sent() == [] and preview["operator"]
    result = back(client)
    assert [step["id"] for step in result["plan"]] == [step["id"] for step in preview["plan"]]
    sent = taken.sent()
    assert sent[0] == f"patch {POLICIES}" and sent[-1] == f"patch {OPERATORS}"
    assert set(sent[1:3]) == {f"patch {DAEMONS}/{DRIVER}", f"patch {DAEMONS}/{PLUGIN}"}
    assert sent[3:-1] == ["patch /api/v1/nodes/gpu-1"]
    policy = taken.objects[POLICIES]
    assert policy["spec"] == POLICY["spec"]
    for name in (DRIVER, PLUGIN):
        item = taken.objects[f"{DAEMONS}/{name}"]
        metadata = item["metadata"]
        assert metadata["ownerReferences"] == [{
            "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy",
            "uid": policy["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}]
        assert (metadata["labels"], metadata["annotations"]) == ({"app": name}, {"theirs": "x"})
        assert [one["manager"] for one in metadata["managedFields"]] == ["kcm"] and not objects.is_ours(item)
    assert taken.objects["/api/v1/nodes/gpu-1"]["metadata"]["annotations"] == {"a": "b"}
    assert objects.is_ours(taken.objects[f"{DAEMONS}/nfd-worker"])
    assert taken.objects[OPERATORS]["spec"]["replicas"] == 1


def test_the_drivers_template_is_put_back_and_noticed_before_the_operator_starts(
        taken: ApiServer, client: Client) -> None:
    """Otherwise, the operator would consider its own running pods outdated and restart them."""
    path, looks = f"{DAEMONS}/{DRIVER}", 0

    def controller(request: Request) -> None:
        nonlocal looks
        item = taken.objects[path]
        if request.verb == "patch" and request.path == path:
            item["metadata"]["generation"] = 3
        if request.verb == "get" and request.path == path:
            looks += 1
            item["status"]["observedGeneration"] = 3 if looks == 3 else 2
        if request.path == OPERATORS and request.verb == "patch":
            assert item["status"]["observedGeneration"] == 3

    taken.before = controller
    back(client)
    assert looks == 3
    template = taken.objects[path]["spec"]["template"]
    assert template["spec"]["containers"] == [{"name": "c", "image": "driver:1"}] and "$patch" not in template
    assert taken.objects[f"{DAEMONS}/{PLUGIN}"]["spec"]["template"]["spec"]["containers"][0]["image"] == "plugin:1"


def test_an_operator_is_not_started_where_no_controller_takes_notice(taken: ApiServer, client: Client) -> None:
    taken.objects[f"{DAEMONS}/{DRIVER}"]["metadata"]["generation"] = 3
    with pytest.raises(ClusterError, match="no controller has seen its change for 120 s; the operator was not started"):
        back(client)
    assert taken.objects[OPERATORS]["spec"]["replicas"] == 0


def test_a_second_run_has_nothing_to_hand_over(taken: ApiServer, client: Client) -> None:
    back(client)
    taken.requests.clear()
    result = back(client)
    assert not result["changed"] and result["operator"] and taken.sent() == []


@pytest.mark.parametrize("missing", ["operator", "definition"])
def test_without_an_operator_nothing_is_handed_over(taken: ApiServer, client: Client, missing: str) -> None:
    if missing == "operator":
        del taken.objects[OPERATORS]
    else:
        taken.without.add("clusterpolicies")
    result = back(client)
    assert not result["operator"] and not result["changed"] and taken.sent() == []


def test_a_policy_that_is_not_there_is_made_and_owns_all(taken: ApiServer, client: Client) -> None:
    del taken.objects[POLICIES]
    back(client)
    assert taken.sent()[0] == f"apply {POLICIES}"
    owner, = taken.objects[f"{DAEMONS}/{PLUGIN}"]["metadata"]["ownerReferences"]
    assert owner["uid"] == taken.objects[POLICIES]["metadata"]["uid"]


def test_a_policy_that_says_the_same_is_not_written_and_owns_all(taken: ApiServer, client: Client) -> None:
    taken.objects[POLICIES]["spec"] = copy.deepcopy(POLICY["spec"])
    back(client)
    assert not [one for one in taken.sent() if "clusterpolicies" in one]
    owner, = taken.objects[f"{DAEMONS}/{PLUGIN}"]["metadata"]["ownerReferences"]
    assert owner["uid"] == taken.objects[POLICIES]["metadata"]["uid"]


def test_a_policy_that_somebody_writes_meanwhile_stops_the_run_before_anything_is_handed_over(
        taken: ApiServer, client: Client) -> None:
    def faster(request: Request) -> None:
        if request.verb == "patch" and request.path == POLICIES:
            taken.objects[POLICIES]["metadata"]["resourceVersion"] = "9999"

    taken.before = faster
    with pytest.raises(ClusterError) as caught:
        back(client)
    assert caught.value.status == 409 and objects.is_ours(taken.objects[f"{DAEMONS}/{PLUGIN}"])


@pytest.mark.parametrize("race", ["written", "deleted", "handed over", "always written", "forbidden"])
def test_races_while_an_object_is_handed_over(taken: ApiServer, client: Client, race: str) -> None:
    path, left = f"{DAEMONS}/{PLUGIN}", [1]

    def faster(request: Request) -> Any:
        if (request.verb, request.path) == ("patch", path) and (left or race == "always written"):
            left.clear()
            if race == "deleted":
                del taken.objects[path]
                return None
            if race == "forbidden":
                return status(403, "no")
            metadata = taken.objects[path]["metadata"]
            metadata["resourceVersion"] += "1"
            metadata["labels"]["new"] = "x"
            if race == "handed over":
                metadata.update(labels={}, managedFields=[])
        return None

    taken.before = faster
    if race in ("always written", "forbidden"):
        with pytest.raises(ClusterError, match="others write it all the time" if race != "forbidden" else "refused"):
            back(client)
        assert taken.objects[OPERATORS]["spec"]["replicas"] == 0, "the operator rests as long as something is ours"
        return
    back(client)
    assert taken.objects[OPERATORS]["spec"]["replicas"] == 1
    if race == "written":
        metadata = taken.objects[path]["metadata"]
        assert metadata["labels"] == {"app": PLUGIN, "new": "x"} and metadata["ownerReferences"]
    if race == "handed over":
        assert "ownerReferences" not in taken.objects[path]["metadata"]


def test_a_driver_of_an_nvidia_driver_gets_that_one_as_its_owner(taken: ApiServer, client: Client) -> None:
    name = "nvidia-gpu-driver-ubuntu22.04-7c5cf494fd"
    mine = daemon(name, "driver", "driver:2", **{"gpuops.nvidia/driver": "canary"})
    mine["spec"]["template"]["metadata"]["labels"]["nvidia.com/node.os-version"] = "ubuntu22.04"
    mine["metadata"]["ownerReferences"] = [{"kind": "Other", "name": "o", "uid": "o"}]
    taken.put(mine, {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "spec": {"driverType": "gpu"},
                     "metadata": {"name": "canary", "uid": "a45a87ac-a43e-43a8-90a0-ad7524afa2b5"}})
    back(client)
    metadata = taken.objects[f"{DAEMONS}/{name}"]["metadata"]
    assert [one["kind"] for one in metadata["ownerReferences"]] == ["Other", "NVIDIADriver"]
    assert metadata["annotations"] == {"theirs": "x"}
    owner, = taken.objects[f"{DAEMONS}/{DRIVER}"]["metadata"]["ownerReferences"]
    assert owner["kind"] == "ClusterPolicy"


def test_nothing_is_written_where_the_operator_would_not_know_its_drivers_again(
        taken: ApiServer, client: Client) -> None:
    taken.put(daemon("nvidia-driver-daemonset-rhel9", "driver", "driver:2"))
    with pytest.raises(ClusterError, match="would not adopt these drivers.*DaemonSet .*-rhel9.*Nothing has been "
                       "changed"):
        back(client)
    assert taken.sent() == []


def test_what_is_being_deleted_is_not_handed_over(taken: ApiServer, client: Client) -> None:
    taken.objects[f"{DAEMONS}/{PLUGIN}"]["metadata"]["deletionTimestamp"] = "x"
    assert not [step for step in back(client)["plan"] if PLUGIN in step["id"]]


def test_a_driver_that_is_deleted_while_its_change_is_to_be_noticed_is_not_waited_for(
        taken: ApiServer, client: Client) -> None:
    path = f"{DAEMONS}/{DRIVER}"
    taken.before = lambda request: taken.objects.pop(path, None) and None if (request.verb, request.path) == (
        "get", path) else None
    back(client)
    assert taken.objects[OPERATORS]["spec"]["replicas"] == 1


def left(api: ApiServer, state: str, labels: dict[str, str], annotations: dict[str, str],
         cordoned: bool = False) -> None:
    """A run was killed on the Node."""
    api.put({"apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": True} if cordoned else {}, "metadata": {
        "name": "gpu-1", "labels": {STATE: state, **labels}, "annotations": {**HELD, **annotations}}})


@pytest.mark.parametrize(("state", "annotations", "cordoned", "after", "marks"), [
    ("cordon-required", {}, False, "cordon-required", {}),
    ("cordon-required", {}, True, "cordon-required", {THEIRS: "true"}),
    ("wait-for-jobs-required", {OURS: "false"}, True, "wait-for-jobs-required", {}),
    ("wait-for-jobs-required", {OURS: "true", THEIRS: "true"}, True, "wait-for-jobs-required", {THEIRS: "true"}),
    ("pod-restart-required", {OURS: "true"}, True, "pod-restart-required", {THEIRS: "true"}),
    ("validation-required", {OURS: "false", "nvidia.com/gpu-driver-upgrade-validation-start-time": "1"}, True,
     "validation-required", {}),
    # At the level idle, nothing is cordoned.
    ("pod-deletion-required", {}, False, "cordon-required", {}),
    ("pod-restart-required", {}, False, "cordon-required", {}),
    ("validation-required", {}, False, "validation-required", {}),
    ("pod-restart-required", {}, True, "pod-restart-required", {THEIRS: "true"}),
])
def test_the_operator_finishes_the_upgrade_of_a_killed_run(
        taken: ApiServer, client: Client, state: str, annotations: dict[str, str], cordoned: bool, after: str,
        marks: dict[str, str]) -> None:
    left(taken, state, PAUSED, annotations, cordoned)
    preview = back(client, UPGRADING, check=True)
    assert taken.sent() == [] and "forget: Node gpu-1" in [step["id"] for step in preview["plan"]]
    back(client, UPGRADING)
    node = taken.objects[NODE]
    assert node["metadata"]["labels"] == {STATE: after, PLUGIN_LABEL: "true"}
    assert node["metadata"]["annotations"] == marks
    assert bool(node["spec"].get("unschedulable")) == cordoned
    assert taken.sent()[-2:] == [f"patch {NODE}", f"patch {OPERATORS}"]
    taken.requests.clear()
    back(client, UPGRADING)
    assert taken.sent() == []


@pytest.mark.parametrize(("state", "labels", "annotations", "policy"), [
    ("upgrade-failed", {}, {}, UPGRADING),
    ("pod-restart-required", {}, {"gpuops.nvidia/maintenance-failed": "no driver"}, UPGRADING),
    ("pod-restart-required", {}, {"gpuops.nvidia/removing": "driver"}, UPGRADING),
    ("pod-restart-required", {"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}, {}, UPGRADING),
    ("upgrade-done", {}, {}, UPGRADING),
    ("pod-restart-required", {}, {}, POLICY),
    ("pod-restart-required", {}, {}, {**UPGRADING, "spec": {
        **UPGRADING["spec"], "sandboxWorkloads": {"enabled": True}}}),
    ("pod-restart-required", {}, {}, {**UPGRADING, "spec": {"driver": {
        **UPGRADING["spec"]["driver"], "enabled": False}}}),
])
def test_what_the_operator_would_not_finish_is_refused(
        taken: ApiServer, client: Client, state: str, labels: dict[str, str], annotations: dict[str, str],
        policy: Object) -> None:
    left(taken, state, labels, annotations)
    with pytest.raises(ClusterError, match="has not finished its work on gpu-1.*Nothing has been changed"):
        back(client, policy)
    assert taken.sent() == []


def test_a_node_that_a_run_may_still_work_on_is_not_handed_over(taken: ApiServer, client: Client) -> None:
    left(taken, "pod-restart-required", {}, {"gpuops.nvidia/held-by": Holder.of_process(os.getpid()).text})
    with pytest.raises(ClusterError, match="Node gpu-1 is held by another run"):
        back(client, UPGRADING)
    assert taken.sent() == []


def test_an_upgrade_of_the_operator_itself_is_left_as_it_is(taken: ApiServer, client: Client) -> None:
    taken.put({"apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": True}, "metadata": {
        "name": "gpu-1", "labels": {STATE: "pod-restart-required"}, "annotations": {"a": "b"}}})
    back(client)
    assert f"patch {NODE}" not in taken.sent()
