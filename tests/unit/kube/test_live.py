# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where objects are searched for, how much of them is read, and when a GPU Operator prevents the run."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import live, objects, refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, status

OURS = objects.marks("c")
POLICY: Object = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}


def make(kind: str, name: str = "a", space: str = "s", api_version: str = "v1", **more: Any) -> Object:
    metadata = {"name": name, **({"namespace": space} if space else {}), **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def found(client: Client, *manifests: Object, everything: bool = False) -> set[tuple[str, str, str]]:
    wanted = objects.wanted({"c": manifests})
    return {key[1:] for key in live.read(client, wanted, everything)}


def test_foreign_objects_are_read_where_something_is_wanted_and_nowhere_else(api: ApiServer, client: Client) -> None:
    api.put(make("ConfigMap", "a", "s"), make("ConfigMap", "b", "elsewhere"), make("Service", "c", "s"),
            make("ClusterRole", "r", "", "rbac.authorization.k8s.io/v1"))
    assert found(client, make("ConfigMap")) == {("ConfigMap", "s", "a"), ("Service", "s", "c"),
                                                ("ClusterRole", "", "r")}


def test_a_namespace_with_our_label_is_searched_too(api: ApiServer, client: Client) -> None:
    """For example the Namespace of a run with another gpu_namespace."""
    api.put(make("Namespace", "former", "", metadata={"labels": OURS}), make("Namespace", "x", ""),
            make("ConfigMap", "a", "former", metadata={"labels": OURS}), make("ConfigMap", "a", "x"))
    assert found(client) == {("Namespace", "", "former"), ("Namespace", "", "x"), ("ConfigMap", "former", "a")}
    api.requests.clear()
    found(client, make("ConfigMap", "a", "former"))
    lists = api.sent("list")
    assert len(lists) == len(set(lists)), "nothing is asked twice"


def test_monitors_are_looked_for_anywhere(api: ApiServer, client: Client) -> None:
    api.put(make("ServiceMonitor", "m", "monitoring", "monitoring.coreos.com/v1"))
    assert found(client) == {("ServiceMonitor", "monitoring", "m")}
    assert api.sent("list").count("list /apis/monitoring.coreos.com/v1/servicemonitors") == 1


def test_kinds_that_only_users_have_are_read_where_they_are_wanted_or_all_goes(
        api: ApiServer, client: Client) -> None:
    api.put(make("Job", "j", "s", "batch/v1", metadata={"labels": OURS}),
            make("Job", "theirs", "s", "batch/v1"), make("ConfigMap", "theirs", "s"))
    assert found(client) == set()
    assert found(client, make("Job", "j", "s", "batch/v1")) >= {("Job", "s", "j"), ("Job", "s", "theirs")}
    assert found(client, everything=True) == {("Job", "s", "j")}


def test_of_definitions_namespaces_and_secrets_of_others_only_metadata_are_read(
        api: ApiServer, client: Client) -> None:
    """In a large cluster, the complete objects would be many MB; and the Secrets of others must not be read."""
    api.put(make("CustomResourceDefinition", "d", "", "apiextensions.k8s.io/v1", spec={}),
            make("Namespace", "s", "", metadata={"labels": OURS}, spec={}), make("Secret", "x", "s", data={"a": "eA=="},
                                                                                metadata={"labels": OURS}),
            make("ConfigMap", "a", "s", data={"a": "b"}))

    def whole(manifests: list[Object], everything: bool = False) -> set[str]:
        there = live.read(client, objects.wanted({"c": manifests}), everything)
        return {key[1] for key, item in there.items() if set(item) - {"apiVersion", "kind", "metadata"}}

    assert whole([make("ConfigMap")]) == {"ConfigMap"}
    assert whole([make("Secret", "x", "s", data={})]) == {"ConfigMap", "Secret"}
    assert whole([], True) == {"ConfigMap"}


def test_a_list_that_is_refused_is_an_error(api: ApiServer, client: Client) -> None:
    """Otherwise, existing objects would count as missing."""
    api.before = lambda request: status(403, "no") if request.path.endswith("configmaps") else None
    with pytest.raises(ClusterError, match="configmaps: the API server refused to list it"):
        found(client, make("ConfigMap"))


def deployment(name: str = "gpu-operator", replicas: int = 1, **labels: str) -> Object:
    return make("Deployment", name, "ops", "apps/v1", spec={"replicas": replicas}, metadata={"labels": labels})


def operand(name: str, owner: Object = POLICY) -> Object:
    return make("DaemonSet", name, "ops", "apps/v1", metadata={"ownerReferences": [
        {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}]})


@pytest.mark.parametrize(("there", "said"), [
    ([], ""), ([deployment()], ""), ([operand("a")], ""), ([POLICY], ""),
    ([POLICY, deployment(replicas=0)], ""), ([POLICY, deployment("other")], ""),
    ([POLICY, operand("a", make("Deployment"))], ""),
    ([POLICY, deployment()], "ClusterPolicy cluster-policy, Deployment ops/gpu-operator."),
    ([POLICY, deployment("any", app="gpu-operator")], "Deployment ops/any."),
    ([POLICY, operand("a")], "ClusterPolicy cluster-policy, DaemonSet ops/a."),
    ([POLICY, deployment(app="gpu-operator"), *map(operand, "abc")],
     "Deployment ops/gpu-operator, DaemonSet ops/a, DaemonSet ops/b and 1 more."),
])
def test_a_cluster_that_an_operator_owns_is_left_alone(
        api: ApiServer, client: Client, there: list[Object], said: str) -> None:
    """An operator without a policy is no owner, nor is a policy that no operator uses and that owns nothing."""
    api.put(*there)
    if said:
        with pytest.raises(ClusterError, match="A GPU Operator manages this cluster: ClusterPolicy") as error:
            refuse_operator.refuse_operator(client)
        assert said in error.value.message and "gpuops.nvidia.adopt" in error.value.hint
        assert "kubectl delete clusterpolicy cluster-policy" in error.value.hint
    else:
        refuse_operator.refuse_operator(client)
    if POLICY not in there:
        assert len(api.requests) == 1


def test_a_removal_names_what_another_controller_has_taken(api: ApiServer, client: Client) -> None:
    marks = {"app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": "dcgm"}
    owner = {"apiVersion": "example.org/v1", "kind": "Team", "name": "ml", "uid": "u", "controller": True}
    api.put(*({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
        "name": name, "namespace": "s", "labels": marks, "ownerReferences": owners}}
        for name, owners in (("theirs", [owner]), ("ours", [{**owner, "controller": False}]))))
    done = deliver.absent(client, None, 1, False)
    assert [one["object"] for one in done["objects"]] == ["ServiceAccount s/ours"]
    said, = done["warnings"]
    assert said.startswith("ServiceAccount s/theirs stays: Team ml is its controller by now")
    assert "warnings" not in deliver.absent(client, ["driver"], 1, False)
