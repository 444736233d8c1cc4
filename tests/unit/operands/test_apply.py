# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests of a run to an API server and their order, and the result if others write at the same time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, live, objects, operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import apply, deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.plan import plan
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request, status

SPACE: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "s"}}
SPACES, MAPS = "/api/v1/namespaces", "/api/v1/namespaces/s/configmaps"
DAEMONS = "/apis/apps/v1/namespaces/s/daemonsets"
POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": "p",
          "controller": True}


def settings(name: str = "a", **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "s"},
            "data": data or {"key": "value"}}


def pods(name: str = "d", strategy: str = "RollingUpdate", **selector: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "s"}, "spec": {
        "selector": {"matchLabels": {"app": name, **selector}}, "updateStrategy": {"type": strategy},
        "template": {"metadata": {"labels": {"app": name, **selector}}, "spec": {"containers": []}}}}


def run(client: Client, *manifests: Object, check: bool = False) -> dict[str, Any]:
    """Runs operands for a component C(c) with these manifests."""
    return deliver.present(client, objects.wanted({"c": manifests}), ["c"], check)


def added(api: ApiServer, path: str, key: str, value: str, manager: str = "kubectl-edit") -> None:
    """Another client adds a key to a ConfigMap."""
    item = api.objects[path]
    item["data"] = {**item["data"], key: value}
    item["metadata"]["managedFields"].append({"manager": manager, "operation": "Update", "apiVersion": "v1",
                                              "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {f"f:{key}": {}}}})
    item["metadata"]["resourceVersion"] += "1"


def once(api: ApiServer, verb: str, path: str, do: Any) -> None:
    """do: is called right before the first such request is answered; it can return the answer."""
    left = [do]

    def before(request: Request) -> Reply | None:
        if left and (request.verb, request.path) == (verb, path):
            found = left.pop()()
            return found if isinstance(found, Reply) else None
        return None

    api.before = before


def test_what_others_stand_on_comes_first_and_a_second_run_writes_nothing(api: ApiServer, client: Client) -> None:
    run(client, pods(), settings(), SPACE)
    assert api.sent() == [f"apply {SPACES}/s", f"apply {MAPS}/a", f"apply {DAEMONS}/d"]
    api.requests.clear()
    assert not run(client, pods(), settings(), SPACE)["changed"] and api.sent() == []


def test_an_apply_is_ours_by_name_and_takes_what_others_have_set(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(key="wanted"))
    item = api.objects[f"{MAPS}/a"]
    item["data"]["key"] = "theirs"
    item["metadata"]["managedFields"][0]["fieldsV1"]["f:data"] = {}
    item["metadata"]["managedFields"].append({"manager": "helm", "operation": "Update", "apiVersion": "v1",
                                              "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:key": {}}}})
    assert run(client, SPACE, settings(key="wanted"))["counts"]["repair"] == 1
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "wanted"}
    query = next(one.query for one in api.requests if one.verb == "apply")
    assert query == {"fieldManager": "gpuops.nvidia", "force": "true", "fieldValidation": "Strict"}


@pytest.mark.parametrize("code", [409, 429, 503])
def test_a_server_that_is_busy_and_a_race_that_was_lost_are_tried_again(
        api: ApiServer, client: Client, code: int) -> None:
    once(api, "apply", f"{MAPS}/a", lambda: status(code, name="a"))
    run(client, SPACE, settings())
    assert api.sent().count(f"apply {MAPS}/a") == 2 and f"{MAPS}/a" in api.objects


def test_an_object_that_fails_stops_what_stands_on_it_and_is_named(api: ApiServer, client: Client) -> None:
    refused = {"b", "c"}
    api.before = lambda request: status(403, f"{request.path[-1]} is forbidden") if (
        request.verb == "apply" and request.path[-1] in refused) else None
    with pytest.raises(ClusterError) as caught:
        run(client, SPACE, settings("a"), settings("b"), settings("c"), pods())
    error = caught.value
    assert "ConfigMap s/b: the API server refused to apply it (Forbidden): b is forbidden." in error.message
    assert "ConfigMap s/c" in error.message and "s/a" not in error.message and error.status == 403
    assert error.hint.startswith("Give the user of this kubeconfig the permission")
    assert error.details["done"] == ["create: Namespace s", "create: ConfigMap s/a"]
    assert len(error.details["failures"]) == 2
    assert f"apply {DAEMONS}/d" not in api.sent() and f"{MAPS}/a" in api.objects
    refused.clear()
    assert run(client, SPACE, settings("a"), settings("b"), settings("c"), pods())["counts"]["create"] == 3


def test_of_many_failures_all_are_told_and_a_few_are_in_the_message(api: ApiServer, client: Client) -> None:
    api.before = lambda request: status(403) if request.verb == "apply" and request.path.startswith(MAPS) else None
    with pytest.raises(ClusterError, match="s/a: .*s/d: .*And 2 more.") as caught:
        run(client, SPACE, *map(settings, "abcdef"))
    assert len(caught.value.details["failures"]) == 6 and "s/e" not in caught.value.message


def test_check_mode_has_the_server_try_and_changes_nothing(api: ApiServer, client: Client) -> None:
    """Objects in a Namespace that does not exist yet cannot be tried."""
    run(client, SPACE, settings(key="1"))
    before = copy.deepcopy(api.objects)
    api.requests.clear()
    run(client, SPACE, settings(key="2"), {**settings("other"), "metadata": {"name": "other", "namespace": "new"}},
        check=True)
    tried = [one for one in api.requests if one.verb == "apply"]
    assert [one.path for one in tried] == [f"{MAPS}/a"] and tried[0].query["dryRun"] == "All"
    assert api.objects == before
    api.before = lambda request: status(403, "a policy says no") if request.verb == "apply" else None
    with pytest.raises(ClusterError, match="a policy says no"):
        run(client, SPACE, settings(key="2"), check=True)


def test_a_value_that_another_hand_has_set_under_our_name_is_put_back(api: ApiServer, client: Client) -> None:
    """The record of owners names us, but a dry run of our manifest shows the difference."""
    run(client, SPACE, settings(key="1"))
    api.objects[f"{MAPS}/a"]["data"]["key"] = "theirs"
    preview = run(client, SPACE, settings(key="1"), check=True)
    result = run(client, SPACE, settings(key="1"))
    assert [one["reasons"] for one in result["objects"] if one["action"] == "repair"] == [["data.key"]]
    assert preview["plan"] == result["plan"] and preview["diff"] == result["diff"]
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "1"}
    assert not run(client, SPACE, settings(key="1"))["changed"]


def mirrored(item: Object) -> str:
    """Changes images to a mirror, as a webhook does."""
    if "data" in item:
        item["data"]["key"] = f"mirror/{item['data']['key'].rpartition('/')[2]}"
    return ""


def test_a_value_that_the_servers_admission_sets_stays(api: ApiServer, client: Client) -> None:
    """The admission would set the value again. If a webhook cannot be tried, denies or fails, or if the user may not
    write, there is no result: the object needs no write."""
    api.admission = mirrored
    run(client, SPACE, settings(key="1"))
    for refusal in (None, status(400, "the webhook does not support dry run"), status(403), status(422, "denied"),
                    status(500, "failed calling webhook")):
        before = copy.deepcopy(api.objects)
        api.before = lambda request, refusal=refusal: refusal if request.verb == "apply" else None  # type: ignore[misc]
        api.requests.clear()
        assert not run(client, SPACE, settings(key="1"))["changed"]
        assert api.objects == before and set(api.sent()) == {f"apply {MAPS}/a"}  # a server's error is asked again
    api.before = lambda request: status(401) if request.verb == "apply" else None
    with pytest.raises(ClusterError, match="Unauthorized"):
        run(client, SPACE, settings(key="1"))


def twice(item: Object) -> str:
    """Refuses a ConfigMap that has a key in two forms, as the server does."""
    return "data[key]: Invalid value" if {*item.get("data", ())} & {*item.get("binaryData", ())} else ""


def test_check_mode_takes_foreign_fields_over_as_the_run_does(api: ApiServer, client: Client) -> None:
    """A field of another type that cannot exist together with ours is refused, so it is removed in the same request."""
    run(client, SPACE, settings(key="1"))
    item = api.objects[f"{MAPS}/a"]
    del item["data"]
    item["binaryData"] = {"key": "eA=="}
    item["metadata"]["managedFields"][0]["fieldsV1"].pop("f:data")
    item["metadata"]["managedFields"].append({"manager": "kubectl-edit", "operation": "Update", "apiVersion": "v1",
                                              "fieldsType": "FieldsV1", "fieldsV1": {"f:binaryData": {"f:key": {}}}})
    before, api.admission = copy.deepcopy(api.objects), twice
    api.requests.clear()
    preview = run(client, SPACE, settings(key="1"), check=True)
    assert api.objects == before and api.sent() == [f"patch {MAPS}/a"]
    tried = api.requests[-1]
    assert tried.query == {"fieldManager": "gpuops.nvidia", "fieldValidation": "Strict", "dryRun": "All"}
    assert run(client, SPACE, settings(key="1"))["plan"] == preview["plan"]
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "1"} and not api.objects[f"{MAPS}/a"].get("binaryData")
    api.admission = lambda item: "not so" if item["metadata"]["name"] == "a" else ""
    added(api, f"{MAPS}/a", "theirs", "2")
    with pytest.raises(ClusterError, match="not so"):
        run(client, SPACE, settings(key="1"), check=True)


def test_check_mode_tries_no_object_that_is_going_nor_one_of_an_unknown_kind(api: ApiServer, client: Client) -> None:
    rule = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "r"}}
    api.without.add("nodefeaturerules")
    run(client, SPACE, settings())
    api.objects[f"{MAPS}/a"]["metadata"]["deletionTimestamp"] = "x"
    api.requests.clear()
    assert run(client, SPACE, settings(), rule, check=True)["counts"]["create"] == 2
    assert api.sent() == []


def test_what_is_not_wanted_goes_in_reverse_order_with_its_pods(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(), pods())
    api.requests.clear()
    run(client, SPACE, settings("b"))
    assert api.sent() == [f"apply {MAPS}/b", f"delete {DAEMONS}/d", f"delete {MAPS}/a"]
    asked = {one.path: one.body["propagationPolicy"] for one in api.requests if one.verb == "delete"}
    assert asked == {f"{DAEMONS}/d": "Foreground", f"{MAPS}/a": "Background"}
    assert set(api.objects) == {f"{SPACES}/s", f"{MAPS}/b"}


DEPLOYMENTS = DAEMONS.replace("daemonsets", "deployments")


def of_nfd(client: Client, *manifests: Object) -> dict[str, Any]:
    """Runs operands for Node Feature Discovery with these manifests."""
    return deliver.present(client, objects.wanted({"nfd": [SPACE, *manifests]}), ["nfd"], False)


@pytest.fixture
def master(api: ApiServer, client: Client) -> str:
    """The path of the pod of a Deployment of Node Feature Discovery, which also has a ConfigMap."""
    of_nfd(client, settings(), {**pods(), "kind": "Deployment"})
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "s", "labels": {"app": "d"}},
             "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    return "/api/v1/namespaces/s/pods/p"


def test_nfds_master_has_ended_before_others_are_deleted(api: ApiServer, client: Client, clock: Clock, master: str
                                                         ) -> None:
    """It would remove the labels of Nodes when its other objects are deleted. A pod of a Node that does not answer
    stays, but is not Ready any more."""
    begin, deleted_after = clock.now, []

    def ended(request: Request) -> None:
        if request.verb == "list" and clock.now > begin + 30:
            api.objects[master]["status"]["conditions"][0]["status"] = "False"
        if request.verb == "delete":
            deleted_after.append((request.path, clock.now > begin + 30))

    api.before = ended
    of_nfd(client)
    assert deleted_after == [(f"{DEPLOYMENTS}/d", False), (f"{MAPS}/a", True)]


def test_a_master_that_does_not_end_is_named_and_the_next_run_goes_on(api: ApiServer, client: Client, master: str
                                                                      ) -> None:
    api.objects[f"{DEPLOYMENTS}/d"]["metadata"]["finalizers"] = ["foregroundDeletion"]
    with pytest.raises(ClusterError, match="The pods of Deployment s/d have not ended after 120 s") as caught:
        of_nfd(client)
    assert "kubectl describe pod" in caught.value.hint and f"{MAPS}/a" in api.objects
    of_nfd(client)
    assert f"{MAPS}/a" not in api.objects and master in api.objects


def test_a_controller_of_a_user_outlives_what_it_controls(api: ApiServer, client: Client) -> None:
    """Its finalizers and webhooks may be needed for the deletion of other objects."""
    run(client, SPACE, settings(), {**pods(), "kind": "Deployment"})
    api.requests.clear()
    run(client, SPACE)
    assert [one for one in api.sent() if one.startswith("delete")] == [f"delete {DEPLOYMENTS}/d", f"delete {MAPS}/a"]
    assert not any(one.verb == "list" and one.path.endswith("/pods") for one in api.requests)


def test_what_somebody_made_anew_meanwhile_is_not_deleted(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings())

    def anew() -> None:
        api.objects[f"{MAPS}/a"] = {**settings(), "metadata": {
            "name": "a", "namespace": "s", "uid": "another", "resourceVersion": "99"}}

    once(api, "delete", f"{MAPS}/a", anew)
    run(client, SPACE)
    assert api.objects[f"{MAPS}/a"]["metadata"]["uid"] == "another"


def test_what_is_gone_already_is_deleted(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings())
    once(api, "delete", f"{MAPS}/a", lambda: api.objects.pop(f"{MAPS}/a"))
    assert run(client, SPACE)["counts"]["delete"] == 1


def test_keys_that_another_hand_adds_go(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(key="1"))
    added(api, f"{MAPS}/a", "theirs", "2")
    result = run(client, SPACE, settings(key="1"))
    assert [one["reasons"] for one in result["objects"] if one["action"] == "repair"] == [["data.theirs"]]
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "1"}
    assert not run(client, SPACE, settings(key="1"))["changed"]


def test_keys_that_another_hand_adds_while_they_are_taken_over_go_too(api: ApiServer, client: Client) -> None:
    """Keys of another client are removed, too, and no object is overwritten that was not read."""
    run(client, SPACE, settings(key="1"))
    added(api, f"{MAPS}/a", "first", "2")
    once(api, "patch", f"{MAPS}/a", lambda: added(api, f"{MAPS}/a", "second", "3", "another"))
    api.requests.clear()
    run(client, SPACE, settings(key="1"))
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "1"}
    assert api.sent() == [f"patch {MAPS}/a", f"patch {MAPS}/a", f"apply {MAPS}/a"]


def test_keys_that_come_between_the_take_over_and_the_apply_go_too(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(key="1"))
    added(api, f"{MAPS}/a", "first", "2")
    once(api, "apply", f"{MAPS}/a", lambda: added(api, f"{MAPS}/a", "second", "3"))
    run(client, SPACE, settings(key="1"))
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "1"}


def test_an_object_that_is_deleted_while_it_is_taken_over_is_made_again(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(key="1"))
    added(api, f"{MAPS}/a", "theirs", "2")
    once(api, "patch", f"{MAPS}/a", lambda: api.objects.pop(f"{MAPS}/a"))
    run(client, SPACE, settings(key="1"))
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "1"}


def test_a_take_over_that_is_refused_is_an_error(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(key="1"))
    added(api, f"{MAPS}/a", "theirs", "2")
    api.before = lambda request: status(403, "no") if request.verb == "patch" else None
    with pytest.raises(ClusterError, match="refused to patch it"):
        run(client, SPACE, settings(key="1"))
    assert len([one for one in api.requests if one.verb == "patch"]) == 1


def test_a_hand_that_writes_all_the_time_is_named(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(key="1"))

    def again(request: Request) -> None:
        if request.verb == "apply" and request.path == f"{MAPS}/a":
            added(api, f"{MAPS}/a", "theirs", "2", "busybody")

    added(api, f"{MAPS}/a", "theirs", "2", "busybody")
    api.before = again
    with pytest.raises(ClusterError, match="others write it faster than it can be repaired: busybody") as caught:
        run(client, SPACE, settings(key="1"))
    assert caught.value.status == 409


@pytest.mark.parametrize(("strategy", "propagation"), [("RollingUpdate", "Foreground"), ("OnDelete", "Orphan")])
def test_what_cannot_be_changed_in_place_is_gone_before_it_is_made_anew(
        api: ApiServer, client: Client, clock: Clock, strategy: str, propagation: str) -> None:
    """Pods that only a user may restart stay."""
    run(client, SPACE, pods(strategy=strategy, more="x"))
    path, begin = f"{DAEMONS}/d", clock.now
    former = api.objects[path]["metadata"]
    former["finalizers"] = ["foregroundDeletion"]

    def ended(request: Request) -> None:
        if request.verb == "get" and request.path == path and clock.now > begin + 30:
            api.objects.pop(path, None)

    api.before = ended
    api.requests.clear()
    wanted = pods(strategy=strategy)
    result = run(client, SPACE, wanted)
    assert result["counts"]["replace"] == 1 and api.sent() == [f"delete {path}", f"apply {path}"]
    deletion = next(one.body for one in api.requests if one.verb == "delete")
    assert deletion == {"propagationPolicy": propagation, "preconditions": {"uid": former["uid"]}}
    assert clock.now > begin + 30 and api.objects[path]["metadata"]["uid"] != former["uid"]
    assert api.objects[path]["spec"] == wanted["spec"]


def test_an_object_that_is_going_is_waited_for_and_made_again(api: ApiServer, client: Client, clock: Clock) -> None:
    """If another object with this name exists, the former one counts as removed."""
    run(client, SPACE, settings())
    path, begin = f"{MAPS}/a", clock.now
    api.objects[path]["metadata"].update(deletionTimestamp="x", finalizers=["x"])

    def ended(request: Request) -> None:
        if request.verb == "get" and request.path == path and clock.now > begin + 30:
            api.objects[path] = {**settings(key="another"), "metadata": {
                "name": "a", "namespace": "s", "uid": "another", "resourceVersion": "9"}}

    api.before = ended
    api.requests.clear()
    assert run(client, SPACE, settings())["counts"]["create"] == 1
    assert api.sent() == [f"apply {path}"] and clock.now > begin + 30
    assert api.objects[path]["data"] == {"key": "value"}


def test_an_object_that_never_goes_is_named_with_its_finalizers(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings())
    api.objects[f"{MAPS}/a"]["metadata"].update(deletionTimestamp="x", finalizers=["x"])
    with pytest.raises(ClusterError, match="ConfigMap s/a is being removed and is not gone after 120 s") as caught:
        run(client, SPACE, settings())
    assert "finalizers" in caught.value.hint


CRD: Object = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
               "metadata": {"name": "nodefeaturerules.nfd.k8s-sigs.io"}, "spec": {
                   "group": "nfd.k8s-sigs.io", "scope": "Cluster", "names": {
                       "kind": "NodeFeatureRule", "plural": "nodefeaturerules"},
                   "versions": [{"name": "v1alpha1", "served": True}]}}
RULE: Object = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "r"}}


def test_a_definition_is_established_and_served_before_its_objects_are_made(
        api: ApiServer, client: Client, clock: Clock) -> None:
    path, begin = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodefeaturerules.nfd.k8s-sigs.io", clock.now
    api.without.add("nodefeaturerules")
    made: list[float] = []

    def later(request: Request) -> None:
        if path in api.objects and clock.now > begin + 10:
            api.objects[path]["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
        if clock.now > begin + 20:
            api.without.clear()
        if request.verb == "apply" and "nodefeaturerules/r" in request.path:
            made.append(clock.now)

    api.before = later
    run(client, CRD, RULE)
    assert len(made) == 1 and made[0] > begin + 20
    api.without.add("nodefeaturerules")
    api.before = lambda request: None
    changed = copy.deepcopy(CRD)
    changed["spec"]["names"]["shortNames"] = ["nfr"]
    with pytest.raises(ClusterError, match="is not served after 120 s"):
        run(client, changed)


def test_a_definition_that_is_not_established_is_waited_for(api: ApiServer, client: Client) -> None:
    with pytest.raises(ClusterError, match="CustomResourceDefinition nodefeaturerules.nfd.k8s-sigs.io is not served"):
        run(client, CRD)


def test_what_an_operator_made_becomes_ours_in_one_write(api: ApiServer, client: Client) -> None:
    """Its other owners and its labels stay; if a run is killed afterwards, the object has an owner."""
    beside = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    theirs = settings(key="1")
    theirs["metadata"].update(labels={"app": "a"}, ownerReferences=[POLICY, beside], managedFields=[
        {"manager": "gpu-operator", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
         "fieldsV1": {"f:data": {".": {}, "f:key": {}, "f:old": {}}}}])
    theirs["data"]["old"] = "x"
    api.put(SPACE, theirs)
    wanted = objects.wanted({"c": [settings(key="1")]})
    changes = plan(client, wanted, live.read(client, wanted), ["c"], operator.owns)
    once(api, "apply", f"{MAPS}/a", lambda: status(403, "killed here"))
    with pytest.raises(ClusterError, match="killed here"):
        apply.execute(client, changes)
    half = api.objects[f"{MAPS}/a"]["metadata"]
    assert half["ownerReferences"] == [beside]
    assert half["labels"] == {"app": "a", "app.kubernetes.io/managed-by": "gpuops.nvidia",
                              "gpuops.nvidia/component": "c"}
    apply.execute(client, plan(client, wanted, live.read(client, wanted), ["c"], operator.owns))
    assert api.objects[f"{MAPS}/a"]["data"] == {"key": "1"}
    assert {one.action for one in plan(client, wanted, live.read(client, wanted), ["c"], operator.owns)} == {"keep"}


def test_an_operators_object_that_nobody_has_touched_changes_its_owner_too(api: ApiServer, client: Client) -> None:
    """It has no differences, so no field must be taken over."""
    theirs = settings(key="1")
    theirs["metadata"].update(ownerReferences=[POLICY], managedFields=[])
    api.put(SPACE, theirs)
    wanted = objects.wanted({"c": [settings(key="1")]})
    apply.execute(client, plan(client, wanted, live.read(client, wanted), ["c"], operator.owns))
    assert api.objects[f"{MAPS}/a"]["metadata"]["ownerReferences"] == []


def test_a_foreign_object_loses_our_marks_and_keeps_everything_else(api: ApiServer, client: Client) -> None:
    """A definition that others use, and a Namespace that existed before."""
    run(client, SPACE)
    marked = copy.deepcopy(api.objects[f"{SPACES}/s"])
    assert objects.APPLIED in marked["metadata"]["annotations"]
    theirs: Object = {**SPACE, "metadata": {"name": "t", "labels": {"team": "x"}, "annotations": {"a": "b"}}}
    api.put(theirs)
    run(client, {**SPACE, "metadata": {"name": "t", "labels": {"level": "high"}}})
    item = api.objects[f"{SPACES}/t"]
    assert item["metadata"]["labels"]["level"] == "high"
    namespace = kinds.find("v1", "Namespace")
    apply.execute(client, [Change("release", namespace, "cluster", None, copy.deepcopy(item))])
    left = api.objects[f"{SPACES}/t"]["metadata"]
    assert (left["labels"], left["annotations"]) == ({"team": "x"}, {"a": "b"})


def test_what_is_released_is_nobodys(api: ApiServer, client: Client) -> None:
    """The records of other managers stay; if there are none, the server must not create one."""
    row, path = kinds.find("v1", "ConfigMap"), f"{MAPS}/a"
    run(client, SPACE, settings(key="1"))
    api.objects[path]["metadata"]["labels"]["mine"] = "x"
    apply.execute(client, [Change("release", row, "c", None, copy.deepcopy(api.objects[path]))])
    patch = next(one.body for one in api.requests if one.verb == "patch")
    assert patch[-1] == {"op": "replace", "path": "/metadata/managedFields", "value": [{}]}
    left = api.objects[path]
    assert left["metadata"]["labels"] == {"mine": "x"} and left["metadata"]["annotations"] == {}
    assert left["data"] == {"key": "1"} and not objects.is_ours(left)
    run(client, SPACE, settings("b"))
    added(api, f"{MAPS}/b", "theirs", "2")
    apply.execute(client, [Change("release", row, "c", None, copy.deepcopy(api.objects[f"{MAPS}/b"]))])
    assert [one["manager"] for one in api.objects[f"{MAPS}/b"]["metadata"]["managedFields"]] == ["kubectl-edit"]


def test_nothing_is_released_over_what_somebody_has_written_meanwhile(api: ApiServer, client: Client) -> None:
    run(client, SPACE, settings(key="1"))
    read = copy.deepcopy(api.objects[f"{MAPS}/a"])
    added(api, f"{MAPS}/a", "theirs", "2")
    with pytest.raises(ClusterError) as caught:
        apply.execute(client, [Change("release", kinds.find("v1", "ConfigMap"), "c", None, read)])
    assert caught.value.status == 409 and objects.is_ours(api.objects[f"{MAPS}/a"])


def test_an_operator_is_stopped_and_started_by_its_replicas_alone(api: ApiServer, client: Client) -> None:
    api.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
        "name": "gpu-operator", "namespace": "s", "labels": {"app": "gpu-operator"}, "annotations": {"a": "b"}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "paused": True}})
    path = "/apis/apps/v1/namespaces/s/deployments/gpu-operator"
    apply.execute(client, operator.stop(operator.Operator(deployments=operator.deployments(client))))
    item = api.objects[path]
    assert (item["spec"]["replicas"], item["spec"]["paused"]) == (0, True)
    assert item["metadata"]["annotations"] == {"a": "b", "gpuops.nvidia/replicas": "2"}
    apply.execute(client, operator.start(operator.deployments(client)))
    assert api.objects[path]["spec"]["replicas"] == 2 and api.objects[path]["metadata"]["annotations"] == {"a": "b"}
