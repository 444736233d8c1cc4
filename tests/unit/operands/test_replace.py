# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the API server never changes in place, and which pods stay then."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import plan
from ansible_collections.gpuops.nvidia.tests.unit.operands.test_switching import Cluster, applied

RBAC = "rbac.authorization.k8s.io"
CLASS: Object = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "a"}, "handler": "nvidia"}
BINDING: Object = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "a"}, "subjects": [],
                   "roleRef": {"kind": "ClusterRole", "name": "a"}}
SETTINGS: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"},
                    "data": {"a": "1"}}
SECRET: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "b"},
                  "data": {"a": "eA=="}}


SERVICE: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "b"},
                   "spec": {"ports": [{"port": 80}]}}


def addressed(address: str, ports: int = 80) -> Object:
    return {**SERVICE, "spec": {"ports": [{"port": ports}], "clusterIP": address}}


def pods(strategy: str = "RollingUpdate", image: str = "x:1", **labels: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "a", "namespace": "b"}, "spec": {
        "selector": {"matchLabels": {"app": "a"}}, "updateStrategy": {"type": strategy},
        "template": {"metadata": {"labels": {"app": "a", **labels}}, "spec": {"containers": [
            {"name": "a", "image": image}]}}}}


def planned(manifest: Object, there: Object) -> plan.Change:
    one, = objects.wanted({"c": [manifest]})
    have = {**there, "metadata": {**applied(objects.wanted({"c": [manifest]})[0].manifest)["metadata"]}}
    have["metadata"]["managedFields"] = []  # made by another hand, with our marks
    made: Any = Cluster()
    change, = plan.plan(made, [one], {one.key: have}, ["c"])
    return change


@pytest.mark.parametrize(("manifest", "there", "action"), [
    (CLASS, {**CLASS, "handler": "runc"}, "replace"),
    (CLASS, {**CLASS, "scheduling": {"nodeSelector": {"a": "b"}}}, "repair"),
    (BINDING, {**BINDING, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}}, "replace"),
    (BINDING, {**BINDING, "roleRef": {"apiGroup": RBAC, **BINDING["roleRef"]}, "subjects": [{"name": "x"}]}, "repair"),
    (SETTINGS, {**SETTINGS, "immutable": True}, "replace"),
    (SETTINGS, {**SETTINGS, "data": {"a": "2"}}, "repair"),
    (SECRET, {**SECRET, "type": "Opaque", "data": {}}, "repair"),
    ({**SECRET, "type": "mine"}, {**SECRET, "type": "Opaque"}, "replace"),
    ({**SECRET, "data": {}}, {**SECRET, "type": "mine"}, "replace"),
    (SERVICE, addressed("None"), "replace"),
    (SERVICE, addressed("10.1.2.3", 81), "repair"),
    (addressed("None"), addressed("10.1.2.3"), "replace"),
    (addressed("None"), addressed("None", 81), "repair"),
    (pods(), pods(image="x:2"), "repair"),
])
def test_a_new_object_only_where_nothing_else_helps(manifest: Object, there: Object, action: str) -> None:
    assert planned(manifest, there).action == action


def test_a_service_without_an_address_that_nobody_owns_is_made_anew() -> None:
    """The server keeps the address when a repair takes over the field."""
    one, = objects.wanted({"c": [SERVICE]})
    have = applied(one.manifest)
    have["spec"] = addressed("None")["spec"]
    made: Any = Cluster()
    change, = plan.plan(made, [one], {one.key: have}, ["c"])
    assert (change.action, change.reasons) == ("replace", ["spec.clusterIP"])
    have["spec"] = addressed("10.1.2.3")["spec"]
    assert [one.action for one in plan.plan(made, [one], {one.key: have}, ["c"])] == ["keep"]


def selecting(item: Object, **labels: str) -> Object:
    made = copy.deepcopy(item)
    made["spec"]["selector"]["matchLabels"] = labels
    return made


def test_pods_that_roll_go_with_their_daemon_set() -> None:
    for labels in ({"app": "b"}, {"app": "a", "more": "x"}):
        change = planned(pods(), selecting(pods(), **labels))
        assert change.action == "replace" and not plan.keeps_pods(change)


def test_pods_that_only_users_restart_stay_where_the_new_one_knows_them() -> None:
    change = planned(pods("OnDelete"), selecting(pods("OnDelete", more="x"), more="x"))
    assert change.action == "replace" and plan.keeps_pods(change)
    strange = selecting(pods("OnDelete"), app="b")
    strange["spec"]["template"]["metadata"]["labels"] = {"app": "b"}
    with pytest.raises(ClusterError) as caught:
        planned(pods("OnDelete"), strange)
    assert "DaemonSet b/a has another selector" in caught.value.message
    assert "kubectl delete daemonset" in caught.value.hint and "Nothing has been changed" in caught.value.hint


@pytest.mark.parametrize("owner, hint", [
    ({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy"}, "Run adopt.yml"),
    ({"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}, "Remove or rename these objects")])
def test_what_a_stopped_operator_has_left_is_taken_over(owner: Object, hint: str) -> None:
    """For example the Role of feature discovery, which 26.7 needs and 24.6 has left."""
    one, = objects.wanted({"c": [SETTINGS]})
    have = {**SETTINGS, "data": {}, "metadata": {**SETTINGS["metadata"], "ownerReferences": [owner]}}
    made: Any = Cluster()
    with pytest.raises(ClusterError, match=f"ConfigMap b/a exists and is not managed by this.*{hint}"):
        plan.plan(made, [one], {one.key: have}, None)
