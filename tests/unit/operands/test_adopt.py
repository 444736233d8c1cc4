# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The owners of objects in the cluster of a GPU Operator, refusals, and the steps, as data."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects, operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.operator import Operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import adopt, hand_back

POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": "p"}
POLICIES = [{"metadata": {"name": "cluster-policy", "uid": "p"}}]


def deployment(replicas: int = 1, labels: dict[str, str] | None = None, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": "gpu-operator", "namespace": "gpu-operator", "uid": "d",
                         "labels": {"app": "gpu-operator", **(labels or {})}, "annotations": annotations},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "gpu-operator"}}}}


def daemon_set(name: str, app: str = "", owner: Any = ..., **labels: str) -> dict[str, Any]:
    """owner: None for nobody, by default the ClusterPolicy."""
    owner = POLICY if owner is ... else owner
    return {"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": "gpu-operator", "uid": name, "labels": labels,
                         "ownerReferences": [owner] if owner else []},
            "spec": {"selector": {"matchLabels": {"app": app or name}},
                     "template": {"metadata": {"labels": {"app": app or name}}, "spec": {"containers": []}}}}


def wanted(*items: dict[str, Any]) -> list[objects.Wanted]:
    return [objects.Wanted("driver", kinds.find("apps/v1", "DaemonSet"), item) for item in items]


def live(*items: dict[str, Any]) -> dict[objects.Key, dict[str, Any]]:
    return {objects.key_of(item): item for item in items}


@pytest.mark.parametrize(("owner", "theirs"), [
    (POLICY, True),
    ({"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "name": "default"}, True),
    ({"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "name": "labels"}, False),
    ({"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}, False),
    (None, False),
])
def test_what_belongs_to_the_operator(owner: dict[str, Any] | None, theirs: bool) -> None:
    item = daemon_set("x", owner=owner)
    assert operator.owns(item) == theirs
    assert operator.other_owners(item) == ([owner] if owner and not theirs else [])


@pytest.mark.parametrize(("labels", "annotations", "said"), [
    ({"olm.owner": "gpu-operator-certified.v26.7.0"}, {}, "Operator Lifecycle Manager.*Subscription"),
    ({"helm.toolkit.fluxcd.io/name": "gpu"}, {}, r"Flux \(HelmRelease gpu\).*flux suspend helmrelease gpu"),
    ({"kustomize.toolkit.fluxcd.io/name": "gpu"}, {}, "Flux"),
    ({}, {"argocd.argoproj.io/tracking-id": "gpu:apps/Deployment:x/y"}, "Argo CD"),
])
def test_an_operator_that_would_come_back(labels: dict[str, str], annotations: dict[str, str], said: str) -> None:
    for replicas in (0, 1):
        with pytest.raises(ClusterError, match=said):
            operator.refuse(Operator(POLICIES, deployments=[deployment(replicas, labels, **annotations)]))


@pytest.mark.parametrize(("state", "replicas", "refused"), [
    ("cordon-required", 1, True), ("validation-required", 1, True), ("pod-restart-required", 0, False),
    ("upgrade-done", 1, False), ("upgrade-required", 1, False), ("upgrade-failed", 1, False), ("", 1, False)])
def test_an_upgrade_ends_before_its_operator(state: str, replicas: int, refused: bool) -> None:
    """A stopped operator never completes an upgrade, so a wait would never end. All such Nodes are named, with the
    advice for a Node that has this label without an upgrade."""
    found = Operator(POLICIES, deployments=[deployment(replicas)], nodes=[
        {"metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu-driver-upgrade-state": state}}},
        {"metadata": {"name": "gpu-2", "labels": {"nvidia.com/gpu-driver-upgrade-state": state}}},
        {"metadata": {"name": "cpu-1"}}])
    if refused:
        with pytest.raises(ClusterError, match=rf"2 Nodes: gpu-1 \({state}\), gpu-2 \({state}\)\..*"
                           "kubectl scale deployment gpu-operator --namespace gpu-operator --replicas 0.*playbook "
                           "upgrade.*kubectl label node gpu-1 nvidia.com/gpu-driver-upgrade-state-"):
            operator.refuse(found)
    else:
        operator.refuse(found)


def test_a_gpu_cluster_needs_its_operator() -> None:
    with pytest.raises(ClusterError, match="finalizer of the GPUCluster gpu-cluster"):
        operator.refuse(Operator(POLICIES, clusters=[{"metadata": {"name": "gpu-cluster"}}]))


def test_all_selectors_that_differ_are_named() -> None:
    found = Operator(POLICIES, deployments=[deployment()])
    mine = wanted(daemon_set("a"), daemon_set("b"), daemon_set("c"))
    theirs = live(daemon_set("a", "a-1"), daemon_set("b", "b-1"), daemon_set("c"))
    with pytest.raises(ClusterError, match="gpu-operator/a, DaemonSet gpu-operator/b.*Nothing has been changed"):
        adopt.check(found, mine, theirs)
    # Of others it is none of our business here.
    adopt.check(found, mine, live(daemon_set("a", "a-1", owner=None)))


def test_what_it_runs_beside_is_named_but_not_the_operator_itself() -> None:
    found = Operator(POLICIES, deployments=[deployment()])
    own = {"apiVersion": "apps/v1", "kind": "Deployment", **deployment()}
    own["metadata"]["ownerReferences"] = [POLICY]
    adopt.check(found, wanted(daemon_set("a")), live(daemon_set("a"), own))
    with pytest.raises(ClusterError, match="not in the plan: DaemonSet gpu-operator/nvidia-vfio-manager"):
        adopt.check(found, wanted(daemon_set("a")), live(daemon_set("a"), daemon_set("nvidia-vfio-manager")))


def test_stop_and_start_are_each_others_inverse() -> None:
    """The Deployment stores the former number of replicas; a stopped operator need not be stopped."""
    step, = operator.stop(Operator(POLICIES, deployments=[deployment(2)]))
    assert step.id == "stop: Deployment gpu-operator/gpu-operator" and step.manifest is not None
    assert step.manifest["spec"] == {"replicas": 0}
    assert step.manifest["metadata"]["annotations"] == {"gpuops.nvidia/replicas": "2"}
    stopped = deployment(0, **{"gpuops.nvidia/replicas": "2"})
    assert operator.stop(Operator(POLICIES, deployments=[stopped])) == []
    step, = operator.start([stopped])
    assert step.manifest is not None and step.manifest["spec"] == {"replicas": 2}
    assert step.manifest["metadata"]["annotations"] == {"gpuops.nvidia/replicas": None}
    assert operator.start([deployment(1)]) == []
    # One that somebody else has stopped.
    assert operator.start([deployment(0)])[0].manifest["spec"] == {"replicas": 1}  # type: ignore[index]


class Stopping:
    """The operator's Deployment, one entry for each read: (generation seen by its controller, replicas, pods)."""

    def __init__(self, *looks: tuple[int, int, int]) -> None:
        self.looks = list(looks)

    def get(self, *_which: str) -> dict[str, Any]:
        return {"metadata": {"generation": 2}, "status": {"observedGeneration": self.looks[0][0],
                                                          "replicas": self.looks[0][1]}}

    def list(self, *_which: str, metadata_only: bool) -> list[dict[str, Any]]:
        return [{}] * self.looks[0][2]


def test_an_operator_has_stopped_once_its_controller_wants_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first read, its pod is being replaced: there is none, and another one is created."""
    client = Stopping((1, 1, 0), (1, 1, 1), (2, 1, 1), (2, 0, 1), (2, 0, 0))
    monkeypatch.setattr("time.sleep", lambda _seconds: client.looks.pop(0))
    adopt.wait_stopped(client, Operator(POLICIES, deployments=[deployment()]))  # type: ignore[arg-type]
    assert client.looks == [(2, 0, 0)]


def test_helm_is_named_with_what_an_uninstall_would_do_now() -> None:
    marks = {"meta.helm.sh/release-name": "gpu-op-1", "meta.helm.sh/release-namespace": "ops"}
    note, = operator.notes(Operator(POLICIES, deployments=[deployment(**marks)]))
    assert "helm uninstall gpu-op-1 -n ops --no-hooks" in note and "Do not upgrade" in note
    assert operator.notes(Operator(POLICIES, deployments=[deployment()])) == []


def test_what_stays_with_the_policy_is_named() -> None:
    there = live(daemon_set("a"), daemon_set("b"), daemon_set("c", owner=None))
    changes = [Change("adopt", kinds.find("apps/v1", "DaemonSet"), "driver", daemon_set("a"), daemon_set("a"))]
    note, = adopt.notes(Operator(POLICIES), changes, there)
    assert note == ("These objects still belong to ClusterPolicy cluster-policy and are deleted with it: "
                    "DaemonSet gpu-operator/b.")


def ours(name: str, component: str, kind: str = "DaemonSet", pod: dict[str, str] | None = None) -> dict[str, Any]:
    item = {**daemon_set(name, owner=None, **objects.marks(component)), "kind": kind}
    item["spec"]["template"]["metadata"]["labels"].update(pod or {})
    return item


def test_what_is_handed_back() -> None:
    """Not Node Feature Discovery, which the operator does not own, nor manifests of users, nor objects of others."""
    there = live(ours("driver", "driver"), ours("nvidia", "cluster"), ours("nfd", "nfd"), ours("mine", "dashboards"),
                 daemon_set("theirs"))
    assert [one["metadata"]["name"] for one in hand_back.ours(there)] == ["driver", "nvidia"]


@pytest.mark.parametrize(("name", "pod", "known"), [
    ("nvidia-driver-daemonset", {}, True),
    ("nvidia-driver-daemonset-5.15.0-84-generic-ubuntu22.04", {"nvidia.com/precompiled": "true"}, True),
    ("nvidia-driver-daemonset-rhel9", {}, False), ("nvidia-gpu-driver-volta-ubuntu22.04", {}, False)])
def test_drivers_that_the_operator_would_not_know(name: str, pod: dict[str, str], known: bool) -> None:
    if known:
        hand_back.refuse([ours(name, "driver", pod=pod)], [])
    else:
        with pytest.raises(ClusterError, match=f"would not adopt these drivers.*DaemonSet gpu-operator/{name}"):
            hand_back.refuse([ours(name, "driver", pod=pod)], [])


@pytest.mark.parametrize(("name", "uid", "kernel", "known"), [
    ("nvidia-gpu-driver-ubuntu22.04-7c5cf494fd", "a45a87ac-a43e-43a8-90a0-ad7524afa2b5", "", True),
    ("nvidia-gpu-driver-ubuntu22.04-7c5cf494fd", "671ab3cd-a8d9-4301-9379-6af4625544c0", "", False),
    ("nvidia-gpu-driver-ubuntu22.04-7c5cf494fd", "a45a87ac-a43e-43a8-90a0-ad7524afa2b5", "5.15.0-84-generic", False),
    ("nvidia-gpu-driver-canary-ubuntu22.04", "a45a87ac-a43e-43a8-90a0-ad7524afa2b5", "", False)])
def test_drivers_of_nvidia_drivers_are_known_by_their_uid(name: str, uid: str, kernel: str, known: bool) -> None:
    """The names are those that operator 26.7.0 gives for an NVIDIADriver with this uid; a recreated one has another
    uid."""
    daemon = ours(name, "driver", pod={"nvidia.com/node.os-version": "ubuntu22.04"})
    daemon["metadata"]["annotations"] = {"gpuops.nvidia/driver": "canary"}
    if kernel:
        daemon["spec"]["template"]["spec"]["nodeSelector"] = {
            "feature.node.kubernetes.io/kernel-version.full": kernel}
    drivers = [{"metadata": {"name": "canary", "uid": uid}, "spec": {"driverType": "gpu"}}]
    if known:
        hand_back.refuse([daemon], drivers)
    else:
        with pytest.raises(ClusterError, match="an NVIDIADriver is new"):
            hand_back.refuse([daemon], drivers)


def revision(number: int, name: str, ours: bool, owner: str = "nvidia-driver-daemonset") -> dict[str, Any]:
    return {"metadata": {"ownerReferences": [{"uid": owner}],
                         "annotations": {objects.APPLIED: "1"} if ours else {"nvidia.com/last-applied-hash": "2"}},
            "revision": number, "data": {"spec": {"template": {"$patch": "replace", "spec": {"nodeName": name}}}}}


@pytest.mark.parametrize(("revisions", "template"), [
    ([(1, "a", False), (2, "b", False), (3, "c", True), (4, "d", True)], "b"),
    ([(1, "a", False), (3, "c", True), (5, "b", False)], None),
    ([(1, "a", True), (2, "b", True)], None),
    ([], None),
])
def test_the_drivers_template_is_the_operators_last(revisions: list[tuple[int, str, bool]], template: Any) -> None:
    """A template that was adopted without a change still has the operator's revision; other DaemonSets do not count."""
    daemon = daemon_set("nvidia-driver-daemonset", owner=None)
    back = hand_back.former(daemon, [*(revision(*one) for one in revisions), revision(9, "x", False, "other")])
    assert (back and back["spec"]["template"]) == (template and {"spec": {"nodeName": template}})
    assert back is None or back["spec"]["selector"] == daemon["spec"]["selector"]


def test_the_policy_is_written_only_where_it_says_something_else() -> None:
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"},
              "spec": {"driver": {"enabled": True}, "gfd": {}}}
    there = {**policy, "metadata": {"name": "p", "uid": "1"}}
    assert [step.action for step in hand_back.policy_step(policy, [])] == ["create"]
    assert hand_back.policy_step(policy, [{**there, "spec": {"driver": {"enabled": True}}}]) == []
    more = {**there, "spec": {"driver": {"enabled": True, "version": "580.173.02"}}}
    step, = hand_back.policy_step(policy, [more])
    assert (step.action, step.reasons) == ("update", ["spec.driver.version"])
    with pytest.raises(ClusterError, match="The cluster has the ClusterPolicy other, but the policy has the name p"):
        hand_back.policy_step(policy, [{**there, "metadata": {"name": "other"}}])
    # An export of no resource has no name of its own.
    assert hand_back.policy_step({**policy, "metadata": {}}, [there]) == []
