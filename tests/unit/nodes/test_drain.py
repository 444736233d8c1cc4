# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes are drained and uncordoned: budgets, order, refusals, time limits, killed runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Later
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.drain import Drain, Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions, sort
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.pod import Pod
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock, one_by_one

Object = dict[str, Any]


def pod(name: str, node: str = "n1", gpu: str = "nvidia.com/gpu", owner: str = "ReplicaSet", **more: Any) -> Object:
    """A pod in the namespace work. gpu: the GPU resource that its container requests, empty for none."""
    asked = {"resources": {"limits": {gpu: "1"}}} if gpu else {}
    owners = [{"kind": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "namespace": "work", "uid": f"uid-{name}", "ownerReferences": owners,
                         **more.pop("metadata", {})},
            "spec": {"nodeName": node, "containers": [asked], **more}, "status": {"phase": "Running"}}


class Cluster:
    """An API server in memory. said: maps pods to the answers for evictions, one after the other, after which the pod
    is evicted; tried: the same for dry runs, which succeed by default. tried: the same for dry runs, which by default
    say that it goes.

    lasting: seconds between the eviction and the end of a pod.
    """

    server = "https://lab"

    def __init__(self, *pods: Object, cordoned: Iterable[str] = (), names: Iterable[str] = ("n1",),
                 lasting: float = 0) -> None:
        self.clock = Clock()
        self.nodes = {name: {"metadata": {"name": name, "resourceVersion": "1", "annotations": {}},
                             "spec": {"unschedulable": True} if name in cordoned else {}} for name in names}
        self.pods = {one["metadata"]["name"]: one for one in pods}
        self.ends: dict[str, float] = {}
        self.lasting = lasting
        self.said: dict[str, list[Later | GpuopsError]] = {}
        self.tried: dict[str, list[Later | GpuopsError]] = {}
        self.trials: list[str] = []
        self.asked: list[tuple[float, str]] = []
        self.writes: list[tuple[str, Object]] = []
        self.races = 0
        self.graces: set[int | None] = set()

    def get(self, api_version: str, kind: str, name: str) -> Object | None:
        found = self.nodes.get(name)
        return None if found is None else {"metadata": {**found["metadata"]}, "spec": {**found["spec"]}}

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: str | None, body: Object) -> Object:
        node = self.nodes[name]
        if self.races:
            self.races -= 1
            node["metadata"]["resourceVersion"] += "1"
        if body["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"]:
            raise ClusterError("the object has been modified", status=409)
        self.writes.append((name, body))
        node["metadata"]["resourceVersion"] += "1"
        for key, value in body["metadata"].get("annotations", {}).items():
            node["metadata"]["annotations"] = {**node["metadata"]["annotations"], key: value}
            if value is None:
                del node["metadata"]["annotations"][key]
        node["spec"] = {key: value for key, value in {**node["spec"], **body.get("spec", {})}.items()
                        if value is not None}
        return node

    def list(self, api_version: str, kind: str, field_selector: str = "",
             label_selector: str | None = None) -> list[Object]:
        node = field_selector.partition("=")[2]
        for name in [name for name, end in self.ends.items() if end <= self.clock.now]:
            self.pods.pop(name, None)
        return [{**one, "metadata": {**one["metadata"], **({"deletionTimestamp": "x"} if name in self.ends else {})}}
                for name, one in self.pods.items() if one["spec"]["nodeName"] == node]

    def evict(self, name: str, namespace: str, uid: str, grace_period: int | None, dry_run: bool) -> Later | None:
        self.graces.add(grace_period)
        assert uid == self.pods[name]["metadata"]["uid"] and name not in self.ends
        if dry_run:
            self.trials.append(name)
        else:
            self.asked.append((self.clock.now, name))
        answers = (self.tried if dry_run else self.said).get(name)
        if answers:
            answer = answers.pop(0)
            if isinstance(answer, GpuopsError):
                raise answer
            return answer
        if dry_run:
            return None
        self.ends[name] = self.clock.now + self.lasting
        return None

    many = staticmethod(one_by_one)

    def drain(self, level: str = "drain", tell: Callable[[str], None] = lambda line: None, **more: Any) -> Drain:
        """Drains all Nodes."""
        request = Request(list(self.nodes), level=level, **more)
        return Drain(self, request, tell, self.clock, self.clock.sleep)  # type: ignore[arg-type]

    def state(self, name: str = "n1") -> tuple[bool, bool | None]:
        """(whether the Node is cordoned, whether it was cordoned before, according to the annotation)."""
        one = NodeState.read(self.nodes[name])
        return one.cordoned, cordon.before(one)


def uses_gpu(one: Object) -> bool:
    return Pod.read(one).uses_gpu


def ids(steps: list[Object]) -> list[str]:
    return [step["id"] for step in steps]


def test_check_names_what_the_run_does_and_the_second_run_writes_nothing() -> None:
    cluster = Cluster(pod("b", gpu=""), pod("a", gpu=""), pod("worker"),
                      lasting=3)
    evictions = EvictionOptions(only_gpu=False)
    preview = cluster.drain(evictions=evictions, check=True).drained().as_dict()
    assert not cluster.writes and not cluster.asked and preview["changed"]
    assert ids(preview["plan"]) == ["cordon: Node n1", "evict: Pod work/worker", "evict: Pod work/a",
                                    "evict: Pod work/b"]
    result = cluster.drain(evictions=evictions).drained().as_dict()
    assert result["plan"] == preview["plan"] and result["diff"] == preview["diff"]
    assert [one["pod"] for one in result["evicted"]] == ["work/worker", "work/a", "work/b"]
    assert cluster.state() == (True, False) and not cluster.pods
    # The others were asked only after the one with a GPU had ended.
    assert [when for when, _name in cluster.asked][1] >= cluster.asked[0][0] + 3
    cluster.writes.clear()
    again = cluster.drain(evictions=evictions).drained().as_dict()
    assert not again["changed"] and not cluster.writes and again["plan"] == []


def test_below_drain_everything_is_pending() -> None:
    for level in ("never", "idle"):
        cluster = Cluster(pod("worker"), pod("alone", owner=""))
        result = cluster.drain(level).drained().as_dict()
        assert not result["changed"] and not cluster.writes and not cluster.asked
        assert ids(result["pending"]) == ["cordon: Node n1", "evict: Pod work/worker", "evict: Pod work/alone"]
        assert "this needs 'drain'" in result["pending"][0]["pending_reason"] and result["cordoned"] == []


def test_a_budget_is_waited_for_as_the_server_asks() -> None:
    cluster, lines = Cluster(pod("worker"), pod("other")), []
    why = "The disruption budget pdb-a needs 2 healthy pods and has 2 currently"
    cluster.said["worker"] = [Later(10, why), Later(0, why), Later(10, "x")]
    result = cluster.drain(tell=lines.append).drained().as_dict()
    assert not result["blocked"] and len(result["evicted"]) == 2
    times = [when - 100 for when, name in cluster.asked if name == "worker"]
    assert times == [0, 10, 15, 25]
    assert lines == [f"n1: waits for work/worker: {why}", "n1: waits for work/worker: x"]
    assert [name for _when, name in cluster.asked].count("other") == 1


BUDGET = Later(10, "The disruption budget pdb-a needs 1 healthy pods and has 1 currently")


def test_no_pod_ends_while_a_budget_keeps_another_one() -> None:
    """The budget protects a pod of the same Node; other Nodes are drained meanwhile."""
    cluster = Cluster(pod("a"), pod("worker"), pod("plain", gpu=""), pod("free", node="n2"), names=("n1", "n2"))
    cluster.tried["worker"] = [BUDGET] * 99
    result = cluster.drain(timeout=60, evictions=EvictionOptions(only_gpu=False)).drained().as_dict()
    assert cluster.asked == [(100, "free")] and set(cluster.pods) == {"a", "worker", "plain"}
    assert [(one["pod"], one["budget"]) for one in result["blocked"]] == [
        ("work/worker", "pdb-a"), ("work/a", ""), ("work/plain", "")]
    assert result["blocked"][1]["reason"] == "it was not evicted, because another pod of its Node could not be evicted"
    assert cluster.state("n1") == (False, None) and len(cluster.trials) < 40
    cluster.tried["worker"], now = [BUDGET], cluster.clock.now
    assert not cluster.drain(evictions=EvictionOptions(only_gpu=False)).drained().as_dict()["blocked"]
    assert [(when - now, name) for when, name in cluster.asked[1:3]] == [(10, "a"), (10, "worker")]


@pytest.mark.parametrize("cordoned", [False, True])
def test_what_blocks_is_named_and_the_node_is_as_before(cordoned: bool) -> None:
    cluster = Cluster(pod("worker"), pod("slow", node="n2"), pod("free", node="n3"), names=("n1", "n2", "n3"),
                      cordoned=["n1"] if cordoned else [])
    cluster.said["worker"] = [Later(10, "The disruption budget pdb-a needs 1 healthy pods and has 1 currently")] * 99
    cluster.lasting = 1000
    cluster.said["free"] = []
    cluster.ends["free"] = 103
    result = cluster.drain(timeout=60).drained().as_dict()
    assert result["failed"] and cluster.clock.now == pytest.approx(160)
    assert result["blocked"] == [
        {"node": "n1", "pod": "work/worker", "budget": "pdb-a",
         "reason": "The disruption budget pdb-a needs 1 healthy pods and has 1 currently"},
        {"node": "n2", "pod": "work/slow", "budget": "", "reason": "it was evicted or deleted, but has not ended"}]
    assert result["msg"].startswith("n[1-2] could not be emptied within 60 seconds; 2 pods are still there. "
                                    "work/worker on n1: The disruption budget pdb-a")
    assert cluster.state("n1") == (cordoned, None) and cluster.state("n2") == (False, None)
    assert cluster.state("n3") == (True, False) and result["uncordoned"] == ["n1", "n2"]


@pytest.mark.parametrize("error", [False, True])
def test_what_an_earlier_task_has_cordoned_stays_cordoned(error: bool) -> None:
    """As before a reboot: the pods with GPUs have ended, the others stay."""
    cluster = Cluster(pod("worker"), pod("plain", gpu=""))
    cluster.drain().drained().as_dict()
    cluster.said["plain"] = [ClusterError("Pod work/plain: forbidden.", status=403) if error else Later(10, "x")] * 9
    everything = cluster.drain("reboot", evictions=EvictionOptions(only_gpu=False), timeout=30)
    if error:
        with pytest.raises(ClusterError, match="forbidden"):
            everything.drained().as_dict()
    else:
        result = everything.drained().as_dict()
        assert result["failed"] and result["uncordoned"] == []
    assert cluster.state() == (True, False)
    cluster.drain().uncordoned().as_dict()
    assert cluster.state() == (False, None)


def test_an_error_on_the_way_gives_every_node_back() -> None:
    cluster = Cluster(pod("worker"), names=("n1", "n2"))
    cluster.said["worker"] = [ClusterError("Pod work/worker: forbidden.", status=403)]
    with pytest.raises(ClusterError, match="forbidden"):
        cluster.drain().drained().as_dict()
    assert cluster.state("n1") == cluster.state("n2") == (False, None)


def test_refused_before_anything_is_changed() -> None:
    alone, data = pod("alone", owner=""), pod("data", volumes=[{"name": "x", "emptyDir": {}}])
    cluster = Cluster(alone, data, pod("worker"))
    for check in (True, False):
        with pytest.raises(ClusterError) as caught:
            cluster.drain(check=check).drained().as_dict()
        assert "work/alone on n1: no controller" in str(caught.value)
        assert "work/data on n1: its emptyDir" in str(caught.value)
    assert not cluster.writes and not cluster.asked
    assert [one["pod"] for one in caught.value.details["blocked"]] == ["work/alone", "work/data"]
    waiting = cluster.drain(level="idle").drained().as_dict()
    assert waiting["pending"] and not waiting["changed"], "who evicts nobody refuses nothing"
    assert not cluster.writes and not cluster.asked
    result = cluster.drain(evictions=EvictionOptions(force=True, empty_dirs=True)).drained().as_dict()
    assert len(result["evicted"]) == 3


def test_what_stays_and_what_uses_a_gpu() -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    found = sort(map(Pod.read, [
        pod("daemon", owner="DaemonSet"), pod("mirror", metadata=mirror), pod("plain", gpu=""),
        {**pod("done"), "status": {"phase": "Succeeded"}}, pod("worker")]), EvictionOptions())
    assert [one.name for one in found.evicted] == ["worker"] and not found.refused
    assert [(one.name, why) for one, why in found.staying] == [
        ("daemon", "it belongs to a DaemonSet"), ("mirror", "it belongs to the kubelet (a mirror pod)")]
    assert all(uses_gpu(pod("x", gpu=name)) for name in (
        "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/small-gpu"))
    assert not any(uses_gpu(pod("x", gpu=name)) for name in ("", "cpu", "nvidia.com/hostdev", "amd.com/gpu"))
    init = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    assert uses_gpu(pod("x", gpu="", initContainers=[init]))
    none = pod("x", gpu="")
    none["spec"]["containers"] = [{"resources": {"limits": {"nvidia.com/gpu": "0"}}}]
    assert not uses_gpu(none)


@pytest.mark.parametrize(("more", "uses"), [
    ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}, True),
    ({"resourceClaims": []}, False),
    ({"resources": {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": 1}}}, True),
    ({"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": 0}}}, False),
    ({"containers": [{}, {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]}, True),
    ({"containers": [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {}}}]}]}, True),
    ({"containers": [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}]}, False),
    ({"containers": [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}]}, False),
    ({"containers": [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}]}, False),
    ({"containers": [{"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}]}, False),
    ({"ephemeralContainers": [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]}]}, True),
    ({"initContainers": [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]}, False),
    ({"initContainers": [{"restartPolicy": "Always", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]},
     True),
    ({"containers": [{"volumeMounts": [{"name": "x", "mountPath": "/var/run/nvidia-container-devices/GPU-1"}]}]}, True),
    ({"metadata": {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}}, True),
    ({"metadata": {"annotations": {"cdi.k8s.io/x": "intel.com/gpu=0", "note": "nvidia.com/gpu=0"}}}, False),
])
def test_a_gpu_may_be_used_without_a_container_that_asks_for_one(more: Object, uses: bool) -> None:
    """Otherwise, such a pod would be neither evicted nor listed, and would use the GPU when MIG changes."""
    one = pod("x", gpu="", **{**more, "metadata": dict(more.get("metadata", {}))})
    if "containers" in more:
        one["spec"]["containers"] = more["containers"]
    assert uses_gpu(one) is uses
    assert [found.name for found in sort([Pod.read(one)], EvictionOptions()).evicted] == (["x"] if uses else [])


def test_a_killed_run_is_gone_on_with_and_given_back() -> None:
    """The killed run had cordoned the Node and evicted one of two pods."""
    cluster = Cluster(pod("a"), pod("b"))
    node.write(cluster, "n1", cordon.cordon)
    del cluster.pods["a"]
    assert ids(cluster.drain(check=True).drained().as_dict()["plan"]) == ["evict: Pod work/b"]
    cluster.drain().drained().as_dict()
    assert cluster.state() == (True, False)
    preview = cluster.drain(check=True).uncordoned().as_dict()
    assert cluster.state() == (True, False)
    assert cluster.drain().uncordoned().as_dict() == preview and ids(preview["plan"]) == ["uncordon: Node n1"]
    assert cluster.state() == (False, None)
    cluster.writes.clear()
    assert not cluster.drain().uncordoned().as_dict()["changed"] and not cluster.writes


@pytest.mark.parametrize("cordoned", [False, True])
def test_check_tells_what_is_given_back_though_nothing_was_taken(cordoned: bool) -> None:
    names = ["n1"] if cordoned else []
    cluster = Cluster(cordoned=names)
    taken = cluster.drain(check=True).drained().as_dict()["cordoned"]
    preview = cluster.drain(check=True, seen=taken).uncordoned().as_dict()
    cluster.drain().drained().as_dict()
    assert cluster.drain(seen=taken).uncordoned().as_dict()["plan"] == preview["plan"] and len(preview["plan"]) == 1
    assert not cluster.drain(seen=taken).uncordoned().as_dict()["changed"]


def test_somebody_elses_cordon_stays() -> None:
    cluster = Cluster(cordoned=["n1"])
    assert not cluster.drain("never").uncordoned().as_dict()["changed"]
    cluster.drain().drained().as_dict()
    assert cluster.state() == (True, True)
    cluster.drain("never").uncordoned().as_dict()
    assert cluster.state() == (True, None)


def test_a_node_that_others_write_meanwhile() -> None:
    cluster = Cluster()
    cluster.races = 3
    cluster.drain().drained().as_dict()
    assert cluster.state() == (True, False)
    cluster.races = 99
    with pytest.raises(ClusterError, match="other clients changed it 20 times"):
        cluster.drain().uncordoned().as_dict()


def test_a_pod_that_comes_meanwhile_goes_too() -> None:
    cluster = Cluster(pod("worker"), lasting=2)
    sleep = cluster.clock.sleep

    def once(seconds: float) -> None:
        sleep(seconds)
        if "late" not in cluster.pods and cluster.clock.now < 102:
            cluster.pods["late"] = pod("late")

    request = Request(["n1"], level="drain")
    result = Drain(cluster, request, clock=cluster.clock, sleep=once).drained().as_dict()  # type: ignore[arg-type]
    assert ids(result["plan"])[-1] == "evict: Pod work/late" and not cluster.pods


def test_a_pod_that_comes_meanwhile_and_may_not_be_evicted_blocks_its_node() -> None:
    """Nothing evicts the pod, and the Node is not drained while it has this pod."""
    cluster = Cluster(pod("worker"), lasting=2)
    sleep = cluster.clock.sleep

    def once(seconds: float) -> None:
        sleep(seconds)
        cluster.pods.setdefault("late", pod("late", owner=""))

    request = Request(["n1"], level="drain", timeout=60)
    result = Drain(cluster, request, clock=cluster.clock, sleep=once).drained().as_dict()  # type: ignore[arg-type]
    assert result["failed"] and cluster.state() == (False, None)
    assert [(one["pod"], one["reason"]) for one in result["blocked"]] == [
        ("work/late", "no controller creates it again on another Node (force: true evicts it)")]
    assert [name for _when, name in cluster.asked] == ["worker"] and "late" in cluster.pods


def test_pods_have_the_time_to_end_that_is_asked_for_or_their_own() -> None:
    for asked in (None, 0, 30):
        cluster = Cluster(pod("worker"))
        cluster.drain(grace_period=asked).drained().as_dict()
        assert cluster.graces == {asked}


def test_a_pod_that_was_not_asked_says_why() -> None:
    """One pod was ending before; the other waits for it, because that one has a GPU."""
    cluster = Cluster(pod("ending"), pod("plain", gpu=""))
    cluster.ends["ending"] = 10_000
    result = cluster.drain(evictions=EvictionOptions(only_gpu=False), timeout=60).drained().as_dict()
    assert [(one["pod"], one["reason"]) for one in result["blocked"]] == [
        ("work/ending", "it was deleted and has not ended yet"),
        ("work/plain", "it is evicted only after the pods with GPUs have ended")]
    assert not cluster.asked


def test_pods_with_gpus_that_stay_are_told() -> None:
    result = Cluster(pod("daemon", owner="DaemonSet"), pod("worker")).drain().drained().as_dict()
    assert result["staying"] == [{"node": "n1", "pod": "work/daemon", "reason": "it belongs to a DaemonSet"}]


def test_a_name_that_is_no_node() -> None:
    cluster = Cluster()
    request = Request(["n1", "nowhere"], level="drain")
    with pytest.raises(InputError, match="no Node nowhere"):
        Drain(cluster, request).drained().as_dict()  # type: ignore[arg-type]
    assert not cluster.writes
