# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan for existing objects: ours, those of others, objects that are being removed, and obstacles."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import plan
from ansible_collections.gpuops.nvidia.tests.unit.operands.test_switching import Cluster, applied

ENFORCE = "pod-security.kubernetes.io/enforce"
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x", "uid": "x"}


def make(kind: str, name: str = "a", api_version: str = "v1", space: str = "s", **more: Any) -> Object:
    metadata = {"name": name, **({"namespace": space} if space else {}), **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def space(name: str = "s", **labels: str) -> Object:
    return make("Namespace", name, space="", metadata={"labels": labels})


def workload(kind: str = "DaemonSet", name: str = "d", **spec: Any) -> Object:
    return make(kind, name, "apps/v1" if kind != "Job" else "batch/v1", spec={
        "selector": {"matchLabels": {"app": name}}, "updateStrategy": {"type": "RollingUpdate"},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c"}], **spec}}})


def ours(manifest: Object, component: str = "c", **metadata: Any) -> Object:
    """The object as we have applied it."""
    one, = objects.wanted({component: [manifest]})
    item = applied(one.manifest)
    return {**item, "metadata": {**item["metadata"], **metadata}}


class Known(Cluster):
    """A cluster that returns whole definitions and objects of their kinds."""

    def __init__(self, there: List[Object], used: List[Object], pods: List[Object]) -> None:
        super().__init__()
        self.live, self.used, self.pods = {objects.key_of(one): one for one in there}, used, pods

    def list_row(self, row: Any, metadata_only: bool = False) -> List[Object]:
        assert metadata_only and row.root == "/apis/x.example/v1"
        return self.used if row.plural == "widgets" else []

    def list(self, api_version: str, kind: str, namespace: str, metadata_only: bool = False) -> List[Object]:
        assert (api_version, kind, namespace, metadata_only) == ("v1", "Pod", "s", True)
        return self.pods


def planned(manifests: list[Object], there: list[Object], components: list[str] | None = None,
            used: list[Object] | None = None, adopts: Any = lambda have: False,
            pods: list[Object] | None = None) -> list[plan.Change]:
    client: Any = Known(there, used or [], pods or [])
    live = {objects.key_of(one): {key: value for key, value in one.items() if key != "spec"}
            if one["kind"] == "CustomResourceDefinition" else one for one in copy.deepcopy(there)}
    return plan.plan(client, objects.wanted({"c": manifests}), live, components, adopts)


def ids(changes: list[plan.Change]) -> list[str]:
    return [one.id for one in changes]


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(ClusterError) as caught:
        planned(*args, **options)
    assert caught.value.hint.endswith("Nothing has been changed.") and caught.value.reason == "Foreign"
    return str(caught.value)


def test_what_nobody_wants_goes_in_the_reverse_order_of_what_stands_on_what() -> None:
    there = [ours(make(kind, name, version)) for kind, name, version in (
        ("ServiceAccount", "a", "v1"), ("Service", "b", "v1"), ("Service", "a", "v1"), ("ConfigMap", "a", "v1"))]
    there += [ours(workload()), ours(space()), ours({**workload(), "kind": "Deployment"}, "nfd"),
              ours(make("NodeFeatureRule", "r", "nfd.k8s-sigs.io/v1alpha1", ""))]
    assert ids(planned([], there)) == [
        "delete: Deployment s/d", "delete: NodeFeatureRule r", "delete: DaemonSet s/d", "delete: Service s/a",
        "delete: Service s/b", "delete: ConfigMap s/a", "delete: ServiceAccount s/a"]


@pytest.mark.parametrize("owner", [{**OWNER, "controller": True}])
def test_what_a_controller_has_made_is_that_controllers(owner: Object) -> None:
    """The controller copies our labels to its objects; an owner that is no controller does not protect an object."""
    made = make("ConfigMap")
    assert planned([], [ours(made, ownerReferences=[owner])]) == []
    assert ids(planned([], [ours(made, ownerReferences=[OWNER])])) == ["delete: ConfigMap s/a"]


def test_what_is_being_deleted_already_is_not_deleted_again_and_is_made_anew_where_it_is_wanted() -> None:
    going = ours(make("ConfigMap"), deletionTimestamp="x")
    assert planned([], [going]) == []
    change, = planned([make("ConfigMap")], [going])
    assert change.id == "create: ConfigMap s/a" and change.live == going


def test_only_what_is_ours_and_of_these_components_goes() -> None:
    there = [ours(make("ConfigMap", "mine")), ours(make("ConfigMap", "other"), "other"), make("ConfigMap", "theirs")]
    assert ids(planned([], there, ["c"])) == ["delete: ConfigMap s/mine"]
    assert ids(planned([], there)) == ["delete: ConfigMap s/mine", "delete: ConfigMap s/other"]
    assert planned([], there, []) == []


def test_a_config_map_that_pods_still_mount_becomes_that_of_the_user() -> None:
    """A policy that has named the content of a ConfigMap, and now names the ConfigMap only."""
    daemon_set = workload(volumes=[{"name": "v", "configMap": {"name": "layouts"}}, {"name": "h", "hostPath": {}}])
    there = [ours(daemon_set), *(ours(make("ConfigMap", name)) for name in ("layouts", "other")),
             ours(make("ConfigMap", "layouts", space="t"))]
    kept, *gone = ids(planned([daemon_set], there))
    assert kept == "keep: DaemonSet s/d"
    assert gone == ["release: ConfigMap s/layouts", "delete: ConfigMap s/other", "delete: ConfigMap t/layouts"]


CRD = make("CustomResourceDefinition", "widgets.x.example", "apiextensions.k8s.io/v1", "", spec={
    "group": "x.example", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
    "versions": [{"name": "v1alpha1", "served": False}, {"name": "v1", "served": True}]})


def made_by(*uids: str) -> Object:
    """An object that is removed with the owner of one of these uids."""
    return make("ConfigMap", metadata={"ownerReferences": [{**OWNER, "uid": uid} for uid in uids]})


@pytest.mark.parametrize(("used", "action"), [
    ([], "delete"), ([ours(make("ConfigMap"))], "delete"), ([ours(make("ConfigMap")), make("ConfigMap")], "release"),
    ([made_by("our-worker")], "delete"), ([made_by("our-pod")], "delete"), ([made_by("our-pod", "x")], "delete"),
    ([made_by("another-worker")], "release"), ([made_by("our-pod"), made_by("another-pod")], "release")])
def test_a_definition_whose_objects_others_have_made_stays(used: list[Object], action: str) -> None:
    """The worker of another NFD owns its objects, as ours does; all definitions of the group stay for it."""
    other = copy.deepcopy(CRD)
    other["metadata"]["name"], other["spec"]["names"]["plural"] = "gadgets.x.example", "gadgets"
    worker = ours(workload(), uid="our-worker")
    pods = [make("Pod", uid, metadata={"uid": uid, "ownerReferences": [{**OWNER, "uid": owner}]})
            for uid, owner in (("our-pod", "our-worker"), ("another-pod", "another-worker"))]
    assert ids(planned([], [ours(CRD), ours(other), worker], used=used, pods=pods)) == [
        "delete: DaemonSet s/d", *(f"{action}: CustomResourceDefinition {name}.x.example"
                                   for name in ("gadgets", "widgets"))]


def test_a_definition_that_has_changed_is_compared_as_a_whole() -> None:
    """Lists contain only its metadata."""
    newer = copy.deepcopy(CRD)
    newer["spec"]["versions"][0]["served"] = True
    change, = planned([newer], [ours(CRD)])
    assert (change.action, change.reasons) == ("update", ["spec.versions[0].served"])
    assert change.live is not None and "spec" in change.live
    assert [one.action for one in planned([CRD], [ours(CRD)])] == ["keep"]


def test_an_object_without_a_record_of_what_we_applied_is_repaired() -> None:
    lost = ours(make("ConfigMap", data={"a": "b"}), managedFields=[])
    change, = planned([make("ConfigMap", data={"a": "b"})], [lost])
    assert (change.action, change.reasons) == ("repair", ["metadata.managedFields"])


def test_why_an_object_is_written_is_said_without_our_own_mark() -> None:
    change, = planned([make("ConfigMap", data={"a": "2"})], [ours(make("ConfigMap", data={"a": "1"}))])
    assert (change.action, change.reasons) == ("update", ["data.a"])
    change, = planned([make("ConfigMap", data={"a": "1"})], [ours(make("ConfigMap", data={"a": "1", "b": "2"}))])
    assert (change.action, change.reasons) == ("update", ["metadata.annotations[gpuops.nvidia/applied]"])


@pytest.mark.parametrize(("level", "pods", "needs"), [
    ("restricted", {"hostNetwork": True}, True), ("baseline", {"hostPID": True}, True),
    ("baseline", {"hostIPC": True}, True),
    ("baseline", {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, True),
    ("baseline", {"containers": [{"name": "c", "securityContext": {"privileged": True}}]}, True),
    ("baseline", {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, True),
    ("baseline", {"initContainers": [{"name": "i"}], "volumes": [{"name": "v", "emptyDir": {}}]}, False),
    ("privileged", {"hostNetwork": True}, False),
])
@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment", "Job"])
def test_a_namespace_whose_level_refuses_the_pods_is_refused(kind: str, level: str, pods: Object, needs: bool) -> None:
    manifests, there = [space(), workload(kind, **pods)], [space(**{ENFORCE: level})]
    if needs:
        said = refused(manifests, there)
        assert f"Namespace s has the label {ENFORCE}={level}" in said and f"the pods of {kind} s/d." in said
        assert "kubectl label --overwrite namespace" in said
    else:
        assert f"create: {kind} s/d" in ids(planned(manifests, there))


def test_a_level_matters_to_what_is_written_there_alone() -> None:
    strict, daemon = space(**{ENFORCE: "restricted"}), workload(hostNetwork=True)
    assert "keep: DaemonSet s/d" in ids(planned([space(), daemon], [strict, ours(daemon)]))
    other = space("other", **{ENFORCE: "restricted"})
    assert "create: DaemonSet s/d" in ids(planned([space("other"), space(), daemon], [other]))
    warned = space(**{"pod-security.kubernetes.io/warn": "restricted"})
    assert "create: DaemonSet s/d" in ids(planned([space(), daemon], [warned]))
    many = [workload(name=name, hostNetwork=True) for name in "abcde"]
    assert "DaemonSet s/a, DaemonSet s/b, DaemonSet s/c and 2 more." in refused([space(), *many], [strict])


def test_a_label_that_a_namespace_of_others_has_otherwise_is_named() -> None:
    """If we have created the Namespace or set the label, we may change it."""
    wanted = space(**{ENFORCE: "privileged"})
    said = refused([wanted], [space(**{ENFORCE: "baseline"})])
    assert f"The labels of Namespace s, which is foreign, forbid it: {ENFORCE} is 'baseline' and must be " in said
    former = ours(space(**{ENFORCE: "baseline"}))
    assert [one.action for one in planned([wanted], [former])] == ["update"]
    created = {**former, "metadata": {**former["metadata"], "annotations": {objects.CREATED: "true"},
                                      "managedFields": []}}
    assert [one.action for one in planned([wanted], [created])] == ["update"]
    assert [one.action for one in planned([wanted], [space(team="x")])] == ["update"]


def test_what_others_have_made_and_does_the_same_is_used_and_otherwise_named() -> None:
    manifest = make("ConfigMap", data={"a": "1"})
    more = {**manifest, "data": {"a": "1", "b": "2"}}
    change, = planned([manifest], [more])
    assert change.id == "reuse: ConfigMap s/a" and not change.writes
    said = refused([manifest], [{**manifest, "data": {"a": "2"}}])
    assert "ConfigMap s/a exists and is not managed by this collection (managed by an unknown manager). It differs " \
           "from the one that c needs in data.a." in said and "Remove or rename these objects" in said
    keys = {str(number): "1" for number in range(6)}
    assert "data.4 and more." in refused([make("ConfigMap", data=keys)], [make("ConfigMap", data={})])


@pytest.mark.parametrize(("metadata", "who"), [
    ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, "Helm"),
    ({"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": {"meta.helm.sh/release-name": "r"}},
     "Helm, release r"),
    ({"managedFields": [{"manager": "kubectl"}, {"manager": "argocd"}, {"manager": "kcm", "subresource": "status"}]},
     "argocd, kubectl"),
])
def test_whose_object_stands_in_the_way(metadata: Object, who: str) -> None:
    there = make("ConfigMap", data={"a": "2"}, metadata=metadata)
    assert f"(managed by {who})" in refused([make("ConfigMap", data={"a": "1"})], [there])


def test_all_that_stands_in_the_way_is_named_at_once() -> None:
    manifests = [make("ConfigMap", name, data={"a": "1"}) for name in "ab"]
    said = refused(manifests, [{**one, "data": {}} for one in manifests])
    assert "ConfigMap s/a" in said and "ConfigMap s/b" in said and said.count("Remove or rename") == 1


def test_what_is_adopted_is_spelt_as_it_was_and_a_namespace_is_never_adopted() -> None:
    """Pods must not be restarted because of the order of its variables."""
    names = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    mine = workload(containers=[{"name": "c", "env": names}])
    theirs = workload(containers=[{"name": "c", "env": names[::-1]}])
    theirs["metadata"]["annotations"] = {"a": "b"}
    namespace, change = planned([space(), mine], [space(), theirs], adopts=lambda have: True)
    assert namespace.action == "update" and change.action == "adopt" and change.manifest is not None
    assert change.manifest["spec"]["template"] == theirs["spec"]["template"]
    assert change.reasons == ["metadata.labels"]


def test_a_template_that_drifted_is_put_back_as_we_had_it() -> None:
    """A drift outside the template restarts no pod."""
    names = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    mine = workload(containers=[{"name": "c", "env": names}])
    there = ours(mine)
    there["spec"]["template"]["spec"]["containers"] = [{"name": "c", "env": names[::-1]}]
    there["spec"]["updateStrategy"] = {"type": "OnDelete"}
    fields = there["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]
    fields["f:updateStrategy"] = {}
    change, = planned([mine], [there])
    assert change.action == "repair" and change.manifest is not None
    assert change.manifest["spec"]["template"]["spec"]["containers"][0]["env"] == names[::-1]
    fields["f:template"]["f:spec"] = {}
    there["spec"]["template"]["spec"]["hostNetwork"] = True
    mine["spec"]["template"]["spec"]["hostNetwork"] = False
    there["metadata"]["annotations"] = ours(mine)["metadata"]["annotations"]
    change, = planned([mine], [there])
    assert change.action == "repair" and change.manifest is not None
    assert change.manifest["spec"]["template"]["spec"]["containers"][0]["env"] == names
