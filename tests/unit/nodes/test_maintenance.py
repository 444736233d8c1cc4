# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Node is taken out of service and put back: what is written, what is refused, what a killed run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action import node_maintenance
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import label_keys
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Later
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON, marks
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, drain, maintenance, mig_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import MIG_MANAGER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import PAUSED, REASON, Maintenance
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.mig_protocol import Protocol
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.mig_protocol import Request as MigRequest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import EXPIRES, HELD, Holder
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.nodes.test_drain import Cluster, pod
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer

Object = dict[str, Any]
D = "nvidia.com/gpu.deploy."
LABELS = {f"{D}device-plugin": "true", f"{D}driver": "true", f"{D}dcgm": "false", "example.com/rack": "7"}
BUSY = Later(0.0, "Cannot evict pod as it would violate its disruption budget. The disruption budget web needs 1.")
MINE = Holder("here", 7, 70, 1000.0)
OTHER = Holder("there", 8, 80, 1000.0)


class Site(Cluster):
    """A cluster with a Node that has labels, and the operand that one of them starts."""

    def __init__(self, *pods: Object, labels: dict[str, str] | None = None, cordoned: tuple[str, ...] = ()) -> None:
        super().__init__(*pods, cordoned=cordoned)
        self.nodes["n1"]["metadata"]["labels"] = dict(LABELS if labels is None else labels)
        self.nodes["n1"]["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.bodies: list[Object] = []

    def get(self, api_version: str, kind: str, name: str) -> Object | None:
        found = super().get(api_version, kind, name)
        return found and {**found, "status": self.nodes[name]["status"]}

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: str | None, body: Object) -> Object:
        self.bodies.append(body)
        labels = self.nodes[name]["metadata"]["labels"]
        done = super().merge_patch(api_version, kind, name, namespace, body)
        self.nodes[name]["metadata"]["labels"] = {**labels, **body.get("metadata", {}).get("labels", {})}
        return done

    def list(self, api_version: str, kind: str, **words: Any) -> list[Object]:
        if kind == "DaemonSet":
            return [{"metadata": {"uid": "plugin", "labels": marks("device_plugin")}, "spec": {"template": {"spec": {
                "nodeSelector": {f"{D}device-plugin": "true"}}}}}, {
                    "metadata": {"uid": "extra", "labels": marks("extra")}, "spec": {"template": {"spec": {}}}}]
        found = super().list(api_version, kind, **words)
        if self.labels[f"{D}device-plugin"] == "true":
            return found
        return [one for one in found if not any(owner.get("uid") == "plugin"
                                                for owner in one["metadata"]["ownerReferences"])]

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.nodes["n1"]["metadata"]["labels"])

    @property
    def running(self) -> list[str]:
        """The pods of the Node, without paused operands."""
        return [one["metadata"]["name"] for one in self.list("v1", "Pod", field_selector="spec.nodeName=n1")]

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.nodes["n1"]["metadata"]["annotations"])

    def run(self, state: str, level: str = "drain", check: bool = False, holder: Holder = MINE, **more: Any) -> Object:
        evictions = more.pop("evictions", EvictionOptions())
        begun = maintenance.Outcome.read(more.pop("begun", {}))
        request = maintenance.Request(drain.Request(["n1"], evictions, None, 60, level, check), holder, begun=begun,
                                      **more)
        task = Maintenance(self, request, lambda line: None, self.clock, self.clock.sleep)  # type: ignore[arg-type]
        outcome: maintenance.Outcome = getattr(task, state)()
        return outcome.as_dict()


def operand(name: str = "plugin", uid: str = "plugin", **more: Any) -> Object:
    """A pod of a DaemonSet that gets GPUs without requesting them."""
    containers = [{"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]
    return pod(name, gpu="", owner="DaemonSet", **{"containers": containers, "metadata": {"ownerReferences": [
        {"kind": "DaemonSet", "controller": True, "uid": uid}]}, **more})


def ids(result: Object) -> list[str]:
    return [step["id"] for step in result["plan"]]


def test_out_of_service_and_back_as_it_was() -> None:
    site = Site(operand(), pod("job"))
    begun = site.run("started")
    assert ids(begun) == ["hold: Node n1", "cordon: Node n1", "evict: Pod work/job", "pause: device-plugin on Node n1"]
    assert begun["started"] and begun["evicted"] == [{"node": "n1", "pod": "work/job"}]
    assert site.labels == {**LABELS, f"{D}device-plugin": PAUSED}
    assert site.annotations == {HELD: MINE.text, cordon.ANNOTATION: "false"}
    assert site.nodes["n1"]["spec"]["unschedulable"]
    assert [sorted({*body, *body["metadata"]} - {"metadata", "resourceVersion"}) for body in site.bodies] == [
        ["annotations"], ["annotations", "spec"], ["labels"]]  # held, cordoned, paused
    writes = len(site.bodies)
    ended = site.run("ended")
    assert ids(ended) == ["resume: device-plugin on Node n1", "uncordon: Node n1", "release: Node n1"]
    assert len(site.bodies) == writes + 1
    assert (site.labels, site.annotations) == (LABELS, {})
    assert not site.nodes["n1"]["spec"].get("unschedulable")
    assert not site.run("ended")["changed"] and len(site.bodies) == writes + 1


def test_check_names_the_same_steps_and_writes_nothing() -> None:
    site, run = Site(operand(), pod("job")), Site(operand(), pod("job"))
    begun = site.run("started", check=True)
    assert ids(begun) == ids(run.run("started"))
    assert ids(site.run("ended", check=True, begun=begun)) == ids(run.run("ended"))
    assert not site.bodies and not site.asked


@pytest.mark.parametrize("level", ["idle", "drain"])
def test_check_names_the_same_steps_where_a_killed_run_has_paused_operands_for_mig(level: str) -> None:
    """A run resumes them first, so it pauses them again."""
    def steps(check: bool) -> list[str]:
        site = Site(operand(), labels={**LABELS, f"{D}device-plugin": mig_labels.PAUSED, f"{D}dcgm-exporter": PAUSED,
                                       mig_labels.STATE: mig_labels.PENDING})
        site.nodes["n1"]["metadata"]["annotations"] = {HELD: OTHER.text}
        later = Holder("here", 7, 70, 1000.0 + EXPIRES)
        request = MigRequest(["n1"], outcome=mig_labels.FAILED, reason="killed", holder=later, release=False,
                             check=check)
        found = Protocol(site, request).recovered()
        begun = site.run("started", level, check, later, seen=found["labels"])
        ended = site.run("ended", level, check, later, begun=begun)
        assert bool(site.bodies) is not check
        return ids(found) + ids(begun) + ids(ended)

    assert "pause: device-plugin on Node n1" in steps(check=False)
    assert steps(check=True) == steps(check=False)


def test_who_was_cordoned_before_stays_so() -> None:
    site = Site(cordoned=("n1",))
    site.run("started")
    site.run("ended")
    assert site.nodes["n1"]["spec"]["unschedulable"] and site.annotations == {}


def test_idle_evicts_nobody_and_waits_for_who_uses_a_gpu() -> None:
    free = Site(operand(), pod("web", gpu=""))
    assert ids(free.run("started", "idle")) == ["hold: Node n1", "pause: device-plugin on Node n1"]
    assert "unschedulable" not in free.nodes["n1"]["spec"]
    for owner in ("ReplicaSet", ""):  # also one that could not be evicted at all
        busy = Site(operand(), pod("job", owner=owner))
        result = busy.run("started", "idle")
        assert not result["started"] and not result["changed"] and not busy.bodies
        assert [(step["id"], step["needs"]) for step in result["pending"]] == [("evict: Pod work/job", "drain")]
        assert result["pending"][0]["pending_reason"] == "gpu_disruption is 'idle', this needs 'drain' or higher"
    process = [{"pid": 7, "name": "train", "container": None}, {"pid": 8, "name": "plugin", "container": "0123"}]
    result = Site(operand()).run("started", "idle", clients=process)
    assert [step["id"] for step in result["pending"]] == ["stop: train (pid 7)"] and not result["started"]
    assert Site(operand()).run("started", "drain", clients=process)["started"]


@pytest.mark.parametrize("uses", [
    pod("uses", owner="DaemonSet"), operand("uses", "foreign"), operand("uses", "extra"),
    pod("uses", owner="Node", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})])
@pytest.mark.parametrize("mps_daemon", [False, True])
def test_idle_waits_for_every_pod_that_uses_a_gpu_but_operands(uses: Object, mps_daemon: bool) -> None:
    """Also for a pod that an eviction would not end: one of a DaemonSet or of the kubelet."""
    site = Site(operand(), *([mps()] if mps_daemon else []), uses)
    result = site.run("started", "idle")
    assert [(step["id"], step["needs"]) for step in result["pending"]] == [("stop: Pod work/uses", "drain")]
    assert "and no level evicts this pod, because it belongs to" in result["pending"][0]["pending_reason"]
    assert not result["started"] and not site.bodies
    uses["status"]["phase"] = "Succeeded"
    assert site.run("started", "idle")["started"] and "mps" not in site.running
    uses["status"]["phase"] = "Running"


def test_a_pod_of_a_daemon_set_that_comes_while_the_operands_end_keeps_an_idle_node_in_service() -> None:
    class Filling(Site):
        def merge_patch(self, *words: Any) -> Object:
            if PAUSED in words[-1]["metadata"].get("labels", {}).values():
                self.pods["late"] = pod("late", owner="DaemonSet")
            return super().merge_patch(*words)

    site = Filling(operand())
    result = site.run("started", "idle")
    assert not result["started"] and [step["id"] for step in result["pending"]] == ["stop: Pod work/late"]
    assert (site.labels, site.annotations) == (LABELS, {})


def test_a_pod_that_comes_while_the_operands_end_keeps_an_idle_node_in_service() -> None:
    """Below drain, the Node is not cordoned, so new pods can start until its device plugin has ended."""
    class Filling(Site):
        def merge_patch(self, *words: Any) -> Object:
            if PAUSED in words[-1]["metadata"].get("labels", {}).values():
                self.pods["late"] = pod("late")
            return super().merge_patch(*words)

    site = Filling(operand())
    result = site.run("started", "idle")
    assert not result["started"] and [step["id"] for step in result["pending"]] == ["evict: Pod work/late"]
    assert result["pending"][0]["pending_reason"] == "gpu_disruption is 'idle', this needs 'drain' or higher"
    assert ids(result) == ["hold: Node n1", "pause: device-plugin on Node n1", "resume: device-plugin on Node n1",
                           "release: Node n1"]
    assert result["changed"] and "resume" in result["diff"][0]["after"]
    assert (site.labels, site.annotations) == (LABELS, {}) and "unschedulable" not in site.nodes["n1"]["spec"]
    assert not site.run("ended", "idle")["changed"]


def mps(**more: Any) -> Object:
    """The MPS daemon of a Node, which ends when the device plugin is paused."""
    return operand("mps", metadata={"labels": {"app": MPS_DAEMON}, "ownerReferences": [
        {"kind": "DaemonSet", "controller": True, "uid": "plugin"}]}, **more)


@pytest.mark.parametrize("level", ["never", "idle", "drain", "reboot"])
def test_for_instances_in_free_space_operands_are_paused_and_nobody_is_evicted(level: str) -> None:
    labels = {**LABELS, f"{D}container-toolkit": "true", mig_labels.CLIENT: "true", f"{D}nvsm": "true"}
    process = [{"pid": 7, "name": "train", "container": None}]
    site = Site(operand(), pod("job"), pod("alone", owner=""), labels=labels)
    preview = site.run("started", level, check=True, evict=False, creates=True, clients=process)
    begun = site.run("started", level, evict=False, creates=True, clients=process)
    assert ids(preview) == ids(begun) == ["hold: Node n1", "pause: device-plugin on Node n1"]
    assert begun["started"] and begun["level"] == preview["level"] == "never" and begun["pending"] == []
    # Those that know the instances of the GPUs; nobody that a GPU client needs, and no GPU client.
    assert site.labels == {**labels, f"{D}device-plugin": PAUSED} and sorted(site.running) == ["alone", "job"]
    assert "unschedulable" not in site.nodes["n1"]["spec"]
    site.run("ended", level, begun=begun)
    assert (site.labels, site.annotations) == (labels, {})


def test_where_the_rest_must_wait_instances_in_free_space_need_not() -> None:
    site = Site(operand(), pod("job"))
    begun = site.run("started", "idle", creates=True)
    assert begun["started"] and begun["level"] == "never"
    assert [one["id"] for one in begun["pending"]] == ["evict: Pod work/job"] and site.running == ["job"]
    site.run("ended", "idle", begun=begun)
    assert (site.labels, site.annotations) == (LABELS, {})
    free = Site(operand()).run("started", "idle", creates=True)
    assert free["started"] and free["level"] == "idle" and free["pending"] == []


@pytest.mark.parametrize(("level", "job", "pending"), [
    ("never", False, ["stop: MPS daemon work/mps"]), ("idle", False, []), ("drain", False, []), ("drain", True, []),
    ("idle", True, ["evict: Pod work/job"]), ("never", True, ["evict: Pod work/job", "stop: MPS daemon work/mps"])])
def test_no_mps_daemon_is_ended_for_instances_in_free_space_unless_the_level_allows_it(
        level: str, job: bool, pending: list[str]) -> None:
    """Its clients end with it. It has the label of the device plugin."""
    site = Site(operand(), mps(), *([pod("job")] if job else []))
    for check in (True, False):
        begun = site.run("started", level, check=check, evict=False, creates=True)
        assert [one["id"] for one in begun["pending"]] == pending and begun["started"] is not bool(pending)
        assert begun["level"] == ("never" if pending else level)
    assert bool(site.bodies) is not bool(pending) and ("mps" in site.running) is bool(pending)
    assert ("job" in site.running) is (job and level != "drain")
    if pending:
        assert begun["pending"][-1]["pending_reason"].startswith(f"gpu_disruption is '{level}', this needs ")


def test_a_node_that_was_ready_is_waited_for() -> None:
    site = Site(operand())
    site.run("started")
    site.nodes["n1"]["status"]["conditions"][0]["status"] = "Unknown"
    with pytest.raises(ClusterError, match="not Ready 60 s after its host was changed") as caught:
        site.run("ended")
    assert caught.value.reason == "NotReady" and HELD in site.annotations
    assert site.labels[f"{D}device-plugin"] == PAUSED
    # With a reason nobody waits: the Node stays cordoned anyway.
    site.run("ended", reason=str(caught.value))
    assert site.nodes["n1"]["spec"]["unschedulable"] and HELD not in site.annotations
    # One that was not Ready before is not waited for.
    assert site.run("started")["ready"] is False
    site.run("ended", begun={"ready": False})
    assert site.annotations == {} and not site.nodes["n1"]["spec"].get("unschedulable")


@pytest.mark.parametrize(("act", "labels"), [
    (lambda site: drain.Drain(site, drain.Request(["n1"], level="drain", holder=MINE)).drained(), LABELS),
    (lambda site: Protocol(site, MigRequest(["n1"], "all-1g.10gb", holder=MINE)).changing(), LABELS),
    (lambda site: Protocol(site, MigRequest(["n1"], "all-1g.10gb", holder=MINE)).requested(),
     {**LABELS, MIG_MANAGER: "true"}),
])
def test_who_drains_or_changes_mig_waits_for_the_run_that_holds_the_node(act: Any, labels: dict[str, str]) -> None:
    site = Site(pod("job"), labels=labels)
    site.nodes["n1"]["metadata"]["annotations"] = {HELD: OTHER.text}
    with pytest.raises(ClusterError, match="held by another run"):
        act(site)
    assert not site.bodies and not site.asked


def test_a_failure_says_why_and_keeps_the_cordon_until_a_run_succeeds() -> None:
    site = Site(operand(), pod("job"))
    site.run("started")
    ended = site.run("ended", reason="modprobe failed:\n  no such\x1b[2J device " + "x" * 2000)
    assert "write the reason: Node n1" in ids(ended)
    assert site.annotations[REASON].startswith("modprobe failed: no such")
    assert site.annotations[REASON].isprintable()
    assert len(site.annotations[REASON]) == 1000 and HELD not in site.annotations
    assert site.labels == LABELS and site.nodes["n1"]["spec"]["unschedulable"]
    assert maintenance.left_behind(site.annotations)
    site.run("ended")
    assert site.annotations == {} and not site.nodes["n1"]["spec"].get("unschedulable")
    assert not maintenance.left_behind(site.annotations)


def test_nodes_that_earlier_runs_have_left_are_named_with_the_reason() -> None:
    later = Holder("here", 7, 70, 1000.0 + EXPIRES)
    nodes = {"untouched": {"example.com/rack": "7"}, "killed": {HELD: OTHER.text},
             "failed": {REASON: "Pod s/driver\x1b[2J has not ended", cordon.ANNOTATION: "false"},
             "removing": {maintenance.REMOVING: "true", REASON: "x" * 2000},
             "worked on": {HELD: Holder("there", 8, 80, later.since).text, maintenance.REMOVING: "true"},
             "mine": {HELD: MINE.text}}
    found = maintenance.left_by_runs(nodes, later)
    assert list(found) == ["killed", "failed", "removing"]
    assert found["killed"] == "An earlier run was killed while it worked on Node killed."
    assert found["failed"].startswith("An earlier run has left Node failed cordoned: Pod s/driver")
    assert found["failed"].isprintable() and found["failed"].endswith(" has not ended.")
    assert found["removing"].startswith("An earlier run has failed on Node removing: xxx")
    assert len(found["removing"]) < 1100


def test_a_budget_that_stays_gives_everything_back_and_no_operand_was_ever_paused() -> None:
    """This includes the MPS daemon: its end would end the pods that the budget protects."""
    site = Site(operand(), pod("job"))
    site.said["job"] = [BUSY] * 100
    result = site.run("started")
    assert result["failed"] and "job" in result["msg"] and result["blocked"][0]["budget"] == "web"
    assert (site.labels, site.annotations) == (LABELS, {}) and not site.nodes["n1"]["spec"].get("unschedulable")
    assert not any(body["metadata"].get("labels") for body in site.bodies)


def test_operands_are_paused_after_the_last_pod_that_uses_a_gpu_has_ended() -> None:
    class Slow(Site):
        def merge_patch(self, *words: Any) -> Object:
            if PAUSED in words[-1]["metadata"].get("labels", {}).values():
                assert list(self.pods) == ["plugin"] and self.clock.now >= self.asked[0][0] + 5
            return super().merge_patch(*words)

    site = Slow(operand(), pod("job"))
    site.lasting = 5
    site.run("started")
    assert site.labels[f"{D}device-plugin"] == PAUSED


def test_what_an_earlier_run_has_left_stays_when_an_eviction_is_refused() -> None:
    """Its host can be changed partially, so the Node must not be put back into service."""
    left = {HELD: OTHER.text, REASON: "it failed", maintenance.REMOVING: "driver", cordon.ANNOTATION: "false"}
    paused = {**LABELS, f"{D}device-plugin": PAUSED, f"{D}dcgm-exporter": "true"}
    later = Holder("here", 7, 70, 1000.0 + EXPIRES)
    site = Site(operand(), pod("job"), labels=paused, cordoned=("n1",))
    site.nodes["n1"]["metadata"]["annotations"] = dict(left)
    site.said["job"] = [BUSY] * 100
    assert site.run("started", holder=later)["failed"]
    assert (site.labels, site.annotations) == (paused, left) and site.nodes["n1"]["spec"]["unschedulable"]
    site.said.clear()
    site.run("started", holder=later)
    site.run("ended", holder=later)
    # Other work than this does not finish the removal.
    assert site.labels == {**paused, f"{D}device-plugin": "true"} and site.nodes["n1"]["spec"]["unschedulable"]
    assert site.annotations == {key: value for key, value in left.items() if key != HELD}
    site.run("started", holder=later, removing={"driver"})
    site.run("ended", holder=later, removing={"driver"})
    assert site.labels == {**paused, f"{D}device-plugin": "true"} and site.annotations == {}
    assert not site.nodes["n1"]["spec"].get("unschedulable")


class Killed(BaseException):
    """Ends the run here, as SIGKILL does."""


@pytest.mark.parametrize("refused", [False, True])
def test_a_run_that_is_killed_at_any_request_is_resumed(refused: bool) -> None:
    """The run is killed at each write of the Node and each eviction, before and after the server has executed it."""
    class Deadly(Site):
        left = 0

        def __init__(self) -> None:
            super().__init__(operand(), pod("job"))
            if refused:
                self.said["job"] = [BUSY] * 100

        def merge_patch(self, *words: Any) -> Object:
            return self.deadly(super().merge_patch, *words)

        def evict(self, *words: Any, **more: Any) -> Later | None:
            return self.deadly(super().evict, *words, **more)

        def deadly(self, act: Any, *words: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed
            answer = act(*words, **more)
            self.left -= 1
            if self.left == 0:
                raise Killed
            return answer

    later = Holder("here", 7, 70, 1000.0 + EXPIRES)
    for at in range(1, 100):
        site = Deadly()
        site.left = at
        try:
            site.run("started", holder=OTHER)
            site.run("ended", holder=OTHER)
        except Killed:
            assert maintenance.left_behind(site.annotations) or (site.labels, site.annotations) == (LABELS, {})
        else:
            break
        site.left, site.said = 0, {}
        assert site.run("started", holder=later)["started"] and "job" not in site.pods
        assert site.labels[f"{D}device-plugin"] == PAUSED and site.nodes["n1"]["spec"]["unschedulable"]
        site.run("ended", holder=later)
        assert (site.labels, site.annotations) == (LABELS, {}) and not site.nodes["n1"]["spec"].get("unschedulable")
    assert at > 10


def test_an_operand_that_does_not_end_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(operand())
    monkeypatch.setattr(Site, "labels", property(lambda self: LABELS))
    with pytest.raises(ClusterError, match="work/plugin"):
        site.run("started")
    assert site.nodes["n1"]["metadata"]["labels"] == LABELS and site.annotations == {}


def test_what_may_not_be_evicted_is_refused_before_anything_is_written() -> None:
    site = Site(pod("bare", owner=""))
    with pytest.raises(ClusterError, match="work/bare"):
        site.run("started")
    assert not site.bodies
    assert site.run("started", evictions=EvictionOptions(True, True))["started"]


@pytest.mark.parametrize(("key", "value", "said"), [
    (label_keys.UPGRADE_STATE, "drain-required", "driver upgrade"),
    (mig_labels.STATE, mig_labels.PENDING, "MIG layout"),
    (mig_labels.STATE, mig_labels.REBOOTING, "MIG layout")])
def test_work_of_others_on_the_node_is_refused(key: str, value: str, said: str) -> None:
    site = Site(labels={**LABELS, key: value, MIG_MANAGER: "true"})
    with pytest.raises(ClusterError, match=said):
        site.run("started")
    assert not site.bodies
    assert Site(labels={**LABELS, label_keys.UPGRADE_STATE: "upgrade-done"}).run("started")["started"]
    # A label of a former operator: the Node gets no driver pod.
    former = {**LABELS, f"{D}driver": "false", label_keys.UPGRADE_STATE: "drain-required"}
    assert Site(labels=former).run("started", check=True)["started"]
    # A state that a killed run or a removed MIG manager has left: no MIG manager serves this Node.
    for state in mig_labels.UNDER_WAY:
        assert Site(labels={**LABELS, mig_labels.STATE: state}).run("started", check=True)["started"]


def test_a_node_that_another_run_holds_is_refused_until_that_has_gone() -> None:
    site = Site(operand())
    site.run("started", holder=OTHER)
    for state in ("started", "ended"):
        with pytest.raises(ClusterError, match="there/8/80@1970-01-01T00:16:40Z"):
            site.run(state)
    later = Holder("here", 7, 70, 1000.0 + EXPIRES)
    assert ids(site.run("started", holder=later)) == ["hold: Node n1"]  # what is paused and cordoned is so already
    assert site.annotations[HELD] == later.text
    site.run("ended", holder=later)
    assert (site.labels, site.annotations) == (LABELS, {})


def test_somebody_who_takes_it_between_look_and_write_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(operand())
    look = Site.get

    def get(self: Site, api_version: str, kind: str, name: str) -> Object | None:
        found = look(self, api_version, kind, name)
        self.nodes["n1"]["metadata"]["annotations"][HELD] = OTHER.text
        return found

    monkeypatch.setattr(Site, "get", get)
    with pytest.raises(ClusterError, match="held by another run"):
        site.run("started")
    assert not site.bodies


def test_the_process_of_a_run_tells_whether_it_lives() -> None:
    me = Holder.of_process(os.getpid())
    assert Holder.read(me.text) == Holder(me.controller, me.pid, me.started, float(int(me.since)))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    other = Holder.of_process(child.pid)
    assert me.must_wait_for(other) and not other.must_wait_for(other)
    # Its number was given to another process since.
    assert not me.must_wait_for(Holder(other.controller, other.pid, other.started + 1, other.since))
    child.kill()
    child.wait()
    assert not me.must_wait_for(other)
    assert not me.must_wait_for(Holder(me.controller, 0, 0, time.time()))
    assert not me.must_wait_for(Holder("elsewhere", 1, 1, time.time() - EXPIRES - 60))
    assert me.must_wait_for(Holder("elsewhere", 1, 1, time.time()))


@pytest.mark.parametrize("text", ["", "x", "a/b/c@2026-01-01T00:00:00Z", "a/1/1@2026-13-01T00:00:00Z", "\x1b[2J/1/1@",
                                  "a/1/1@2026-01-01T00:00:00Z\n"])
def test_an_annotation_that_nobody_of_us_wrote_holds_nothing(text: str) -> None:
    assert Holder.read(text) is None
    site = Site(operand())
    site.nodes["n1"]["metadata"]["annotations"][HELD] = text
    assert site.run("started")["started"]


def upgraded(state: str, **marks: str) -> Site:
    """A Node that an upgrade of its driver pod, which was killed or has failed, has left cordoned."""
    site = Site(operand(), labels={**LABELS, label_keys.UPGRADE_STATE: state}, cordoned=("n1",))
    site.nodes["n1"]["metadata"]["annotations"] = {cordon.ANNOTATION: "false", **marks}
    return site


KILLED = {HELD: OTHER.text}
FAILED = {REASON: "the validator is not Ready"}
LATER = Holder("here", 7, 70, 1000.0 + EXPIRES)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(("state", "marks"), [
    ("cordon-required", KILLED), ("pod-restart-required", KILLED), ("validation-required", KILLED),
    ("uncordon-required", KILLED), ("upgrade-failed", FAILED), ("upgrade-failed", {**KILLED, **FAILED})])
@pytest.mark.parametrize("begun", [{}, {"started": False, "ready": True}])
def test_a_node_that_an_upgrade_has_left_stays_so_if_this_run_has_not_taken_it(
        state: str, marks: dict[str, str], begun: Object, check: bool) -> None:
    """The driver pod of the Node may not work, so only the playbook upgrade puts it back."""
    site = upgraded(state, **marks)
    ended = site.run("ended", check=check, holder=LATER, begun=begun)
    assert not ended["changed"] and not site.bodies and ended["plan"] == []
    pending, = ended["pending"]
    assert pending["id"] == "release: Node n1" and "playbook upgrade" in pending["pending_reason"]
    assert f"{label_keys.UPGRADE_STATE}={state}" in pending["pending_reason"]
    # The upgrade itself ends it.
    done = site.run("ended", check=check, holder=LATER, begun=begun, upgrades=True)
    assert "uncordon: Node n1" in ids(done) and done["pending"] == []
    assert check or site.annotations == {} and not site.nodes["n1"]["spec"].get("unschedulable")


@pytest.mark.parametrize("state", ["", "unknown", "upgrade-required", "upgrade-done"])
def test_a_node_whose_upgrade_has_ended_is_put_back(state: str) -> None:
    site = upgraded(state, **FAILED)
    ended = site.run("ended", holder=LATER)
    assert "uncordon: Node n1" in ids(ended) and ended["pending"] == [] and site.annotations == {}


def test_a_node_with_a_state_of_an_upgrade_that_nobody_has_left_is_not_pending() -> None:
    site = Site(labels={**LABELS, label_keys.UPGRADE_STATE: "upgrade-failed"})
    ended = site.run("ended")
    assert ended["pending"] == [] and not ended["changed"] and not site.bodies


@pytest.mark.parametrize("level", ["idle", "drain"])
def test_a_change_of_the_host_of_a_failed_upgrade_ends_with_the_node_still_cordoned(level: str) -> None:
    """The change of the host says nothing about the driver pod, whose upgrade has failed."""
    site, ahead = upgraded("upgrade-failed", **FAILED), upgraded("upgrade-failed", **FAILED)
    begun = site.run("started", level)
    preview = ahead.run("ended", level, check=True, begun=ahead.run("started", level, check=True))
    ended = site.run("ended", level, begun=begun)
    assert ids(ended) == ids(preview) == ["resume: device-plugin on Node n1", "release: Node n1"]
    assert [one["id"] for one in ended["pending"]] == [one["id"] for one in preview["pending"]] == ["uncordon: Node n1"]
    assert site.labels[f"{D}device-plugin"] == "true" and site.nodes["n1"]["spec"]["unschedulable"]
    assert site.annotations == {cordon.ANNOTATION: "false", **FAILED}
    assert not site.run("ended", level)["changed"]


def test_the_removal_of_the_driver_ends_its_failed_upgrade() -> None:
    """Otherwise the Node would wait for an upgrade of a driver that it does not have any more."""
    site = upgraded("upgrade-failed", **FAILED)
    site.run("started", removing={"driver"})
    site.run("ended", begun={"started": True}, removing={"driver"})
    assert site.labels[label_keys.UPGRADE_STATE] is None
    del site.nodes["n1"]["metadata"]["labels"][label_keys.UPGRADE_STATE]
    site.run("ended")
    assert site.annotations == {} and not site.nodes["n1"]["spec"].get("unschedulable")
    mps_only = upgraded("upgrade-failed", **FAILED)
    mps_only.run("started", removing={"mps"})
    mps_only.run("ended", begun={"started": True}, removing={"mps"})
    assert mps_only.labels[label_keys.UPGRADE_STATE] == "upgrade-failed"
    assert mps_only.nodes["n1"]["spec"]["unschedulable"] and mps_only.annotations[REASON] == FAILED[REASON]


def test_a_node_without_a_driver_pod_does_not_wait_for_an_upgrade() -> None:
    """Its driver is on the host. The label is of a former operator, and the playbook upgrade would find no pod."""
    site = upgraded("upgrade-failed", **FAILED)
    site.nodes["n1"]["metadata"]["labels"][f"{D}driver"] = "false"
    ended = site.run("ended")
    assert ended["changed"] and not ended["pending"] and not site.nodes["n1"]["spec"].get("unschedulable")


@pytest.mark.parametrize("check", [False, True])
def test_a_run_warns_of_a_node_that_it_leaves_to_the_upgrade(api: ApiServer, check: bool) -> None:
    """The role maintenance registers no result of the end."""
    api.put({"apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": True}, "status": {"conditions": [
        {"type": "Ready", "status": "True"}]}, "metadata": {"name": "n1", "labels": {
            label_keys.UPGRADE_STATE: "upgrade-failed", **LABELS},
            "annotations": {cordon.ANNOTATION: "false", **FAILED}}})
    options = {"state": "ended", "node": "n1", "kubeconfig": str(api.kubeconfig), "begun": {"skipped": True}}
    result = act(node_maintenance.ActionModule, options, task_vars(localhost={}), check)
    warning, = result["warnings"]
    assert warning.startswith("Node n1 stays out of service: an upgrade of its driver pod has failed (")
    assert not result["changed"] and api.sent() == []
