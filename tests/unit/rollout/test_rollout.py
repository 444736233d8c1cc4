# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a cluster: when the wait ends, the messages on the way, and the result."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check, Open, Progress, Waiting
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload, workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.rollout import Rollout
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import (
    Clock,
    FakeClient,
    daemon_set,
    node,
    plan,
    pod,
    warning,
)

Checks = dict[str, dict[str, Any]]


def follow(client: FakeClient, components: list[str], cluster: dict[str, Any] | None = None,
           timeout: float = 60, seen: list[Workload] | None = None) -> tuple[Checks, list[Progress], float]:
    """(checks by component, messages, elapsed seconds)."""
    clock = Clock()
    told: list[Progress] = []
    rollout = Rollout(client, cluster or plan("n1", "n2"), components, told.append, clock, clock.sleep, seen or ())
    checks = [check.as_dict() for check in rollout.follow(timeout)]
    assert [check["component"] for check in checks] == components
    return {check["component"]: check for check in checks}, told, clock.now - 100


def test_a_ready_cluster_costs_three_lists_and_no_line() -> None:
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 2)], Node=[node("n1"), node("n2")])
    checks, told, seconds = follow(client, ["driver"])
    assert checks["driver"]["ok"] and checks["driver"]["detail"] == "2/2 ready" and checks["driver"]["nodes"] == []
    assert (told, seconds) == ([], 0)
    assert sorted(client.asked) == ["list DaemonSet", "list Deployment", "list Node", "rows of Pods"]


def test_what_was_just_read_and_is_settled_is_not_asked_for_again() -> None:
    seen = [workload(daemon_set("driver", 2, 2))]
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 1)], Node=[node("n1"), node("n2")])
    checks, told, seconds = follow(client, ["driver"], seen=seen)
    assert checks["driver"]["ok"] and client.asked == ["rows of Pods"] and (told, seconds) == ([], 0)
    # What is not settled, or of other components alone, is no answer.
    for other in (workload(daemon_set("driver", 2, 1)), workload(daemon_set("nfd", 2, 2))):
        checks, _told, _seconds = follow(client, ["driver"], timeout=5, seen=[other])
        assert not checks["driver"]["ok"] and "list DaemonSet" in client.asked


def test_lines_tell_what_changes_and_whom_it_waits_for() -> None:
    def each(client: FakeClient, look: int) -> None:
        ready = 1 if look < 6 else 2
        client.objects["DaemonSet"] = [daemon_set("driver", 2, 2), daemon_set("validator", 2, ready)]

    client = FakeClient(each, Node=[node("n1"), node("n2")], Pod=[pod("validator", "n2", 1)])
    checks, told, seconds = follow(client, ["driver", "validator"])
    assert all(check["ok"] for check in checks.values())
    assert [(one.open, one.done, one.ends) for one in told] == [
        ([Open("validator", 1, 2, [], [Waiting("n2", "toolkit-validation")])], [], ""), ([], [("validator", 2)], "")]
    assert told[0].elapsed == 0 and told[0].left == 60 and 5 < told[1].elapsed < 10
    assert 5 < seconds < 10


def test_one_component_gets_one_line_in_five_seconds() -> None:
    def each(client: FakeClient, look: int) -> None:
        client.objects["DaemonSet"] = [daemon_set("driver", 100, look)]

    told = follow(FakeClient(each, Node=[]), ["driver"], timeout=20)[1]
    assert 3 <= len(told) <= 5


def test_who_waits_long_is_told_again() -> None:
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 1)], Node=[])
    told = follow(client, ["driver"], timeout=150)[1]
    assert [one.open for one in told] == [told[0].open] * 3 + [[]] and told[0].open
    assert [one.ends for one in told] == ["", "", "", "timeout"]


def test_a_long_message_is_told_by_its_end() -> None:
    words = f"runc: {'x ' * 200}\nlibnvidia-ml.so.1: cannot open shared object file"
    client = FakeClient(DaemonSet=[daemon_set("validator", 1, 0)], Node=[node("n1")],
                        Pod=[pod("validator", "n1", 1, "CrashLoopBackOff", words)])
    check = follow(client, ["validator"], timeout=0)[0]["validator"]
    assert check["detail"].endswith("libnvidia-ml.so.1: cannot open shared object file)")
    assert len(check["detail"]) < 400 and check["nodes"][0]["message"] == words


def test_labels_of_a_moment_ago_are_waited_for() -> None:
    def each(client: FakeClient, look: int) -> None:
        client.objects["DaemonSet"] = [daemon_set("driver", 0, 0) if look == 1 else daemon_set("driver", 2, 2)]

    checks, _told, seconds = follow(FakeClient(each, Node=[node("n1"), node("n2")]), ["driver"])
    assert checks["driver"]["detail"] == "2/2 ready" and 0 < seconds < 3


def test_a_busy_controller_counts_them_late() -> None:
    """It has counted one of the Nodes, whose pod is ready, and creates pods of other DaemonSets for 10 s."""
    def each(client: FakeClient, look: int) -> None:
        client.objects["DaemonSet"] = [daemon_set("driver", *((1, 1) if look < 8 else (2, 2)))]

    checks, _told, seconds = follow(FakeClient(each, Node=[node("n1"), node("n2")]), ["driver"])
    assert checks["driver"]["detail"] == "2/2 ready" and 10 < seconds < 20


def test_drivers_for_several_systems_share_the_nodes() -> None:
    """One DaemonSet selects all Nodes except those of the other, which requires a further label."""
    pools = [daemon_set("driver", 1, 1), daemon_set("driver", 1, 1)]
    pools[1]["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "true", "os": "new"}
    found = [node("n1"), node("n2", os="new")]
    checks, _told, seconds = follow(FakeClient(DaemonSet=pools, Node=found), ["driver"])
    assert checks["driver"]["ok"] and seconds == 0


@pytest.mark.parametrize(("uncounted", "least"), [(0, 30), (1, 0)])
def test_a_node_that_no_pod_may_run_on_is_not_waited_for_for_ever(uncounted: int, least: float) -> None:
    """The Node can have a taint that is not tolerated. A pod that runs there nevertheless counts at once."""
    one = daemon_set("driver", 1, 1)
    one["status"]["numberMisscheduled"] = uncounted
    checks, _told, seconds = follow(FakeClient(DaemonSet=[one], Node=[node("n1"), node("n2")]), ["driver"])
    assert checks["driver"]["ok"] and least <= seconds < least + 5


@pytest.mark.parametrize(("again", "state"), [(4, "failed"), (99, "ok")])
def test_what_crashes_over_and_over_is_not_ready_in_between(again: int, state: str) -> None:
    """A container without a readiness probe counts as ready from its start to its crash."""
    def each(client: FakeClient, look: int) -> None:
        client.objects["DaemonSet"] = [daemon_set("device_plugin", 1, int(look > 1 and look % again != 0))]

    client = FakeClient(each, Node=[node("n1")], Pod=[pod("device_plugin", "n1", None, "CrashLoopBackOff", "no NVML")])
    checks, _told, seconds = follow(client, ["device_plugin"], timeout=40)
    assert checks["device_plugin"]["state"] == state
    if state == "ok":
        assert 12 <= seconds < 25
    else:
        assert "no NVML" in checks["device_plugin"]["detail"] and seconds >= 40
        assert client.asked[-1] == "log device_plugin-n1 device_plugin-ctr previous"


@pytest.mark.parametrize(("said", "waits"), [
    ("3 (4s ago)", True), ("12 (5m1s ago)", True), ("12 (5m ago)", True), ("3 (7m ago)", False), ("1 (3h ago)", False),
    ("0", False), (3, False)])
@pytest.mark.parametrize("seen", [True, False])
def test_what_has_crashed_a_moment_ago_must_stay_ready(said: Any, waits: bool, seen: bool) -> None:
    """Whether it was ready at the first read, or the run has just seen it become ready."""
    broken = pod("device_plugin", "n1", ready=True)
    broken["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1, "message": "no NVML"}}
    client = FakeClient(DaemonSet=[daemon_set("device_plugin", 1, 1)], Node=[node("n1")], Pod=[broken])
    client.restarts = {"nvidia-device_plugin-x1": "0", "device_plugin-n1": said}
    client.objects["DaemonSet"][0]["metadata"]["name"] = "device_plugin"
    works = [workload(client.objects["DaemonSet"][0])] if seen else None
    checks, _told, seconds = follow(client, ["device_plugin"], timeout=60, seen=works)
    assert checks["device_plugin"]["ok"] and (12 <= seconds < 20 if waits else seconds == 0)
    checks, _told, _seconds = follow(client, ["device_plugin"], timeout=5, seen=works)
    assert checks["device_plugin"]["ok"] is not waits
    assert not waits or "no NVML" in checks["device_plugin"]["detail"]


@pytest.mark.parametrize(("started", "steady"), [("01:40", True), ("01:55", False), ("", False)])
def test_what_runs_steadily_since_its_restart_has_not_failed(started: str, steady: bool) -> None:
    """It ended at 01:30, 34 seconds ago, while another component crashes repeatedly until the timeout."""
    def each(client: FakeClient, look: int) -> None:
        client.objects["DaemonSet"] = [daemon_set("device_plugin", 1, 1),
                                       daemon_set("container_toolkit", 1, int(look % 4 == 3))]

    before = pod("device_plugin", "n1", ready=True)
    status = before["status"]["containerStatuses"][0]
    status["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:01:30Z"}}
    status["state"] = {"running": {"startedAt": f"2026-01-01T00:{started}Z"} if started else {}}
    client = FakeClient(each, Node=[node("n1")],
                        Pod=[before, pod("container_toolkit", "n1", None, "CrashLoopBackOff", "denied")])
    client.restarts = {"nvidia-device_plugin-n1": "2 (34s ago)"}
    before["metadata"]["name"] = "nvidia-device_plugin-n1"
    checks, _told, _seconds = follow(client, ["device_plugin", "container_toolkit"], timeout=10)
    assert checks["container_toolkit"]["state"] == "failed"
    assert checks["device_plugin"]["state"] == ("ok" if steady else "failed")


def test_a_cluster_whose_nodes_are_all_lost_is_not_ready() -> None:
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 0)], Node=[node("n1", ready=False), node("n2", ready=False)],
                        Pod=[pod("driver", name) for name in ("n1", "n2")])
    check = follow(client, ["driver"])[0]["driver"]
    assert check["state"] == "failed" and "2 nodes, n[1-2]" in check["detail"] and "NotReady" in check["detail"]


def test_what_the_controller_has_not_seen_is_not_ready() -> None:
    late = daemon_set("driver", 2, 2)
    late["metadata"]["generation"] = 3
    checks, _told, seconds = follow(FakeClient(DaemonSet=[late], Node=[]), ["driver"], timeout=10)
    assert not checks["driver"]["ok"] and "nvidia-driver" in checks["driver"]["detail"]
    assert seconds >= 10


@pytest.mark.parametrize(("nodes", "on_host", "component", "why"), [
    ((), {}, "driver", "the cluster has no GPU node"),
    (("n1",), {"n1": ["driver"]}, "driver", "it is delivered on the host of every GPU node"),
    (("n1",), {}, "mig_manager", "MIG-capable"),
    (("n1",), {}, "dcgm_exporter", "has its deploy label"),
])
def test_no_node_asks_for_it(nodes: tuple[str, ...], on_host: dict[str, list[str]], component: str, why: str) -> None:
    client = FakeClient(DaemonSet=[daemon_set(component, 0, 0)], Node=[])
    check = follow(client, [component], plan(*nodes, on_host=on_host))[0][component]
    assert check["ok"] and check["detail"].startswith("no Node needs this component") and why in check["detail"]


def test_absent_is_not_waited_for() -> None:
    checks, _told, seconds = follow(FakeClient(Node=[]), ["driver"])
    assert checks["driver"]["state"] == "absent" and seconds == 0


def test_check_mode_looks_once_and_fails_nothing() -> None:
    client = FakeClient(DaemonSet=[daemon_set("validator", 2, 1)], Node=[node("n1")], Pod=[pod("validator", "n1", 1)])
    checks = Rollout(client, plan("n1"), ["driver", "validator"]).now(check_mode=True)
    assert [check.state for check in checks] == ["pending", "pending"]
    assert checks[0].detail == "check mode: the cluster has no objects of this component"
    assert client.asked.count("list DaemonSet") == 1


def test_before_a_take_over_the_operator_has_it() -> None:
    cluster = {**plan("n1"), "take_over": True}
    checks = Rollout(FakeClient(Node=[node("n1")]), cluster, ["driver"]).now(check_mode=True)
    assert checks[0].detail == "check mode: the GPU Operator still owns this component"


def test_the_validator_at_init_1_is_named_and_others_are_good() -> None:
    client = FakeClient(
        DaemonSet=[daemon_set(name, 2, 1 if name == "validator" else 2)
                   for name in ("container_toolkit", "validator", "device_plugin")],
        Node=[node("n1"), node("n2")], Pod=[pod("validator", "n1", ready=True), pod("validator", "n2", 1)])
    checks, _told, seconds = follow(client, ["container_toolkit", "validator", "device_plugin"])
    assert [check["state"] for check in checks.values()] == ["ok", "failed", "ok"]
    check = checks["validator"]
    assert check["detail"].startswith("1/2 ready; n2: toolkit-validation Init:1/4; likely cause: the driver "
                                      "is not injected")
    assert "restart the runtime" in check["hint"]
    assert [(one["node"], one["container"], one["level"]) for one in check["nodes"]] == [
        ("n2", "toolkit-validation", "failed")]
    assert seconds >= 60


def test_the_first_cause_on_a_node_is_the_reason() -> None:
    names = ["driver", "container_toolkit", "validator", "device_plugin"]
    client = FakeClient(
        DaemonSet=[daemon_set(name, 2, 1) for name in names], Node=[node("n1"), node("n2")],
        Pod=[pod("driver", "n2", 0, "CrashLoopBackOff"), pod("container_toolkit", "n2", 0), pod("validator", "n2", 0),
             pod("device_plugin", "n2", 0)])
    checks = follow(client, names)[0]
    assert [check["state"] for check in checks.values()] == ["failed", "pending", "pending", "pending"]
    assert checks["device_plugin"]["detail"] == "1/2 ready; waits for driver on n2"
    assert checks["device_plugin"]["nodes"][0]["waits_for"] == "driver"
    assert kinds(checks["driver"]) == kinds(checks["device_plugin"]) == ["pod"]


def test_what_the_host_delivers_is_looked_for_on_the_host() -> None:
    client = FakeClient(DaemonSet=[daemon_set("validator", 1, 0)], Node=[node("n1")], Pod=[pod("validator", "n1", 1)])
    cluster = plan("n1", on_host={"n1": ["driver", "container_toolkit"]})
    check = follow(client, ["validator"], cluster)[0]["validator"]
    assert check["state"] == "failed" and "the host n1.example" in check["hint"]


def test_a_lost_node_is_named_and_soon_not_waited_for() -> None:
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 1)], Node=[node("n1"), node("n2", ready=False)],
                        Pod=[pod("driver", "n1", ready=True), pod("driver", "n2")])
    checks, _told, seconds = follow(client, ["driver"])
    assert checks["driver"]["state"] == "pending" and "n2: driver-ctr" in checks["driver"]["detail"]
    assert "NotReady" in checks["driver"]["detail"] and 15 <= seconds < 25
    assert kinds(checks["driver"]) == ["lost"]


def test_a_lost_node_that_is_not_counted_is_named_too() -> None:
    away = daemon_set("driver", 1, 1)
    away["status"]["numberMisscheduled"] = 1
    client = FakeClient(DaemonSet=[away], Node=[node("n1"), node("n2", ready=False)])
    check = follow(client, ["driver"])[0]["driver"]
    assert check["state"] == "pending"
    assert check["detail"].startswith("1/1 ready; n2: not counted; the node is NotReady")
    assert kinds(check) == ["lost"]


def test_a_lost_node_does_not_end_the_wait_for_others() -> None:
    client = FakeClient(DaemonSet=[daemon_set("driver", 3, 1)], Node=[node("n1"), node("n2", ready=False), node("n3")],
                        Pod=[pod("driver", "n1", ready=True), pod("driver", "n2"), pod("driver", "n3", 0)])
    checks, _told, seconds = follow(client, ["driver"])
    assert checks["driver"]["state"] == "failed" and "n3" in checks["driver"]["detail"] and seconds >= 60
    assert [one["level"] for one in checks["driver"]["nodes"]] == ["pending", "failed"]


def revisions(*tags: str) -> list[dict[str, Any]]:
    """The revisions of the driver's DaemonSet, the oldest first, by the tag of the image; the newest is called new."""
    return [{"metadata": {"labels": {"app": "driver", "controller-revision-hash": name},
                          "ownerReferences": [{"uid": "uid-driver"}]}, "revision": number,
             "data": {"spec": {"template": {"spec": {"containers": [
                 {"image": f"r.example:5000/nvidia/driver:{tag}"}]}}}}}
            for number, (name, tag) in enumerate(zip(["old"] * (len(tags) - 1) + ["new"], tags), 9)]


def kinds(check: dict[str, Any]) -> list[str]:
    """The kinds of the problems of a check, as a report of its JSON reads them."""
    return [one.kind for one in Check.of(check).nodes]


def outdated(ready: bool = True, image: str = "nvcr.io/nvidia/driver:570.158.01-ubuntu22.04",
             cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    """The check of the driver if n1 has the desired version and n2 has not."""
    client = FakeClient(
        DaemonSet=[daemon_set("driver", 2, 1 + ready, updated=1, updateStrategy={"type": "OnDelete"})],
        Node=[node("n1"), node("n2")], ControllerRevision=revisions("570.158.01-ubuntu22.04", "580.95.05-ubuntu22.04"),
        Pod=[pod("driver", "n1", ready=True), pod("driver", "n2", None if ready else 0, "" if ready else
                                                  "CrashLoopBackOff", ready=ready, revision="old", image=image)])
    checks, _told, seconds = follow(client, ["driver"], cluster, timeout=5)
    assert seconds == 0 or not ready
    return checks["driver"]


@pytest.mark.parametrize("ready", [True, False])
def test_driver_pods_that_are_outdated_are_named_with_what_to_do(ready: bool) -> None:
    check = outdated(ready)
    assert check["state"] == "pending" and [one["node"] for one in check["nodes"]] == ["n2"]
    assert "n2: " in check["detail"] and "n1" not in check["detail"]
    assert "(current image: 570.158.01-ubuntu22.04, desired: 580.95.05-ubuntu22.04) and keeps" in check["detail"]
    assert check["nodes"][0]["do"] == ["kubectl drain n2 --ignore-daemonsets",
                                       "kubectl -n gpu-operator delete pod driver-n2", "kubectl uncordon n2"]
    assert "drain n2, delete the pod" in check["hint"]
    assert kinds(check) == ["outdated" if ready else "pod"]


def test_a_driver_manager_that_may_evict_needs_no_drain() -> None:
    allowed = plan("n1", "n2")
    allowed["components"]["driver"]["pools"] = [{"manager_env": {"ENABLE_GPU_POD_EVICTION": "true"}}]
    check = outdated(cluster=allowed)
    assert check["nodes"][0]["do"] == ["kubectl -n gpu-operator delete pod driver-n2"]
    assert "drain" not in check["hint"] and "Its driver manager first evicts" in check["hint"]
    allowed["components"]["driver"]["pools"].append({"manager_env": {"ENABLE_GPU_POD_EVICTION": "false"}})
    assert "drain n2" in outdated(cluster=allowed)["hint"]


def test_an_outdated_mps_daemon_is_replaced_on_a_drained_node() -> None:
    """The driver manager does not evict its clients, so the level does not matter."""
    allowed = plan("n1")
    allowed["components"]["driver"]["pools"] = [{"manager_env": {"ENABLE_GPU_POD_EVICTION": "true"}}]
    daemon = daemon_set("device_plugin", 1, 1, updated=0, updateStrategy={"type": "OnDelete"})
    daemon["metadata"]["name"] = MPS_DAEMON
    made = revisions("v1", "v2")
    for one in made:
        one["metadata"]["ownerReferences"] = [{"uid": daemon["metadata"]["uid"]}]
        one["metadata"]["labels"]["app"] = "device_plugin"
    client = FakeClient(DaemonSet=[daemon], Node=[node("n1")], ControllerRevision=made,
                        Pod=[pod("device_plugin", "n1", ready=True, revision="old")])
    check = follow(client, ["device_plugin"], allowed, timeout=5)[0]["device_plugin"]
    assert check["state"] == "pending" and check["nodes"][0]["do"] == [
        "kubectl drain n1 --ignore-daemonsets", "kubectl -n gpu-operator delete pod device_plugin-n1",
        "kubectl uncordon n1"]


def test_an_outdated_mig_manager_changes_instances_when_its_pod_is_deleted() -> None:
    manager = daemon_set("mig_manager", 1, 1, updated=0, updateStrategy={"type": "OnDelete"})
    made = revisions("v1", "v2")
    for one in made:
        one["metadata"]["ownerReferences"] = [{"uid": manager["metadata"]["uid"]}]
        one["metadata"]["labels"]["app"] = "mig_manager"
    client = FakeClient(DaemonSet=[manager], Node=[node("n1")], ControllerRevision=made,
                        Pod=[pod("mig_manager", "n1", ready=True, revision="old")])
    check = follow(client, ["mig_manager"], timeout=5)[0]["mig_manager"]
    assert check["state"] == "pending" and "the MIG instances of n1 may change" in check["hint"]
    assert check["nodes"][0]["do"] == ["kubectl -n gpu-operator delete pod mig_manager-n1"]


def test_settings_alone_make_a_pod_outdated_too() -> None:
    detail = outdated(image="nvcr.io/nvidia/driver:580.95.05-ubuntu22.04")["detail"]
    assert "the pod is outdated and keeps running until it is deleted" in detail


def placed(revision: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The same with other fields of the pod."""
    revision["data"]["spec"]["template"]["spec"].update(spec)
    return revision


TERMS = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}


@pytest.mark.parametrize(("fields", "ok"), [
    ({"nodeSelector": {"system": "ubuntu22.04"}}, True), ({"affinity": {"nodeAffinity": TERMS}}, True),
    ({"affinity": APART}, False), ({"hostPID": True}, False)])
def test_where_pods_may_stand_makes_none_outdated(fields: dict[str, Any], ok: bool) -> None:
    """A Node with another system joins: the existing DaemonSet gets a selector for its own system."""
    same = revisions("580", "580")
    client = FakeClient(
        DaemonSet=[daemon_set("driver", 2, 2, updated=0, updateStrategy={"type": "OnDelete"})],
        Node=[node("n1"), node("n2")], ControllerRevision=[same[0], placed(same[1], **fields)],
        Pod=[pod("driver", name, ready=True, revision="old") for name in ("n1", "n2")])
    check = follow(client, ["driver"])[0]["driver"]
    assert check["ok"] is ok and (check["state"], len(check["nodes"])) == (("ok", 0) if ok else ("pending", 2))


def test_a_pod_whose_revision_is_gone_is_outdated() -> None:
    """The DaemonSet keeps ten revisions."""
    client = FakeClient(
        DaemonSet=[daemon_set("driver", 1, 1, updated=0, updateStrategy={"type": "OnDelete"})], Node=[node("n1")],
        ControllerRevision=revisions("580"), Pod=[pod("driver", "n1", ready=True, revision="older")])
    assert follow(client, ["driver"])[0]["driver"]["state"] == "pending"


def test_what_is_up_to_date_costs_no_list_of_revisions() -> None:
    client = FakeClient(DaemonSet=[daemon_set("driver", 1, 1, updateStrategy={"type": "OnDelete"})], Node=[node("n1")],
                        ControllerRevision=revisions("a", "b"))
    assert follow(client, ["driver"])[0]["driver"]["ok"]
    assert "list ControllerRevision" not in client.asked and "list Pod" not in client.asked


def test_a_rolling_update_is_waited_for() -> None:
    client = FakeClient(DaemonSet=[daemon_set("nfd", 3, 3, updated=1)], Node=[])
    checks, _told, seconds = follow(client, ["nfd"], timeout=10)
    assert checks["nfd"]["state"] == "failed" and "1/3 updated" in checks["nfd"]["detail"] and seconds >= 10


def test_pods_that_are_refused_show_what_the_controller_says() -> None:
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 0)], Node=[node("n1"), node("n2")], Event=[
        warning("DaemonSet", "nvidia-driver", 'Error creating: pods "x" is forbidden: violates PodSecurity "baseline"'),
        warning("DaemonSet", "other", "boom")])
    check = follow(client, ["driver"], timeout=5)[0]["driver"]
    assert check["state"] == "failed" and "pod security level" in check["detail"] and "psa.enabled" in check["hint"]


def test_events_of_a_pod_tell_the_cause() -> None:
    client = FakeClient(DaemonSet=[daemon_set("device_plugin", 1, 0)], Node=[node("n1")],
                        Pod=[pod("device_plugin", "n1", 0)], Event=[
        warning("Pod", "device_plugin-n1", 'no runtime for "nvidia" is configured'),
        {**warning("Pod", "device_plugin-n1", "Back-off restarting", "2026-01-02T00:00:00Z"), "reason": "BackOff"}])
    check = follow(client, ["device_plugin"], timeout=5)[0]["device_plugin"]
    assert "has no runtime handler named nvidia" in check["detail"]
    assert check["nodes"][0]["message"] == 'no runtime for "nvidia" is configured'


def test_what_kept_a_pod_from_starting_is_over_once_a_container_has_ended() -> None:
    """A kubelet 1.36 reported this for a validator whose toolkit became ready later."""
    event = {**warning("Pod", "validator-n1", 'unable to get OCI runtime for sandbox "9f": no runtime for "nvidia" is '
                       'configured'), "reason": "FailedCreatePodSandBox"}
    for reason, said in (("CrashLoopBackOff", "CUDA program does not run"), ("", "no runtime handler named nvidia")):
        client = FakeClient(DaemonSet=[daemon_set("validator", 1, 0)], Node=[node("n1")], Event=[event],
                            Pod=[pod("validator", "n1", 2, reason)])
        check = follow(client, ["validator"], timeout=5)[0]["validator"]
        assert said in check["nodes"][0]["cause"], check


def test_pods_of_others_with_the_same_labels_do_not_count() -> None:
    foreign = pod("driver", "n2", 0)
    foreign["metadata"]["ownerReferences"] = [{"uid": "somebody"}]
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 1)], Node=[node("n1"), node("n2")],
                        Pod=[foreign, pod("driver", "n1", 0)])
    check = follow(client, ["driver"], timeout=5)[0]["driver"]
    assert [one["node"] for one in check["nodes"]] == ["n1"]


def test_many_nodes_are_one_line_and_nodes_are_listed_once() -> None:
    count = 300
    client = FakeClient(DaemonSet=[daemon_set("driver", count, 0)],
                        Node=[node(f"gpu-{number:03}") for number in range(count)],
                        Pod=[pod("driver", f"gpu-{number:03}", 0) for number in range(count)])
    check = follow(client, ["driver"], timeout=0)[0]["driver"]
    assert "gpu-[000-299]" in check["detail"] and len(check["nodes"]) == count
    assert "get Node" not in client.asked and client.asked.count("list Node") == 2
    assert client.asked.count("list Pod") == 1


# -- MIG layouts of the vendor's manager


def asked(name: str, layout: str, state: str = "", **labels: str) -> dict[str, Any]:
    """A Node that its MIG manager serves."""
    more = {"nvidia.com/mig.config.state": state} if state else {}
    return node(name, **{"nvidia.com/gpu.deploy.mig-manager": "true", "nvidia.com/mig.config": layout, **more,
                         **labels})


def test_a_layout_is_waited_for_and_told_on_the_way() -> None:
    def each(client: FakeClient, look: int) -> None:
        state = "" if look < 4 else "pending" if look < 8 else "success"
        client.objects["Node"] = [asked("n1", "all-1g.10gb", state), asked("n2", "all-disabled")]

    client = FakeClient(each, DaemonSet=[daemon_set("mig_manager", 2, 2)], Node=[asked("n1", "all-1g.10gb")])
    checks, told, seconds = follow(client, ["mig_manager"])
    assert checks["mig_manager"]["ok"] and 7 < seconds < 25
    assert told[0].open[0].waiting == [Waiting("n1", "all-1g.10gb not started")]
    assert told[-1].open == [] and told[-1].done == [("mig_manager", 2)]


def test_a_failed_layout_is_named_at_once_with_what_to_do() -> None:
    paused = {"nvidia.com/gpu.deploy.device-plugin": "paused-for-mig-change"}
    client = FakeClient(DaemonSet=[daemon_set("mig_manager", 3, 3)], Pod=[pod("mig_manager", "n1", ready=True)],
                        Node=[asked("n1", "all-7g.80gb", "failed", **paused), asked("n2", "all-1g.10gb", "success"),
                              node("n3", **{"nvidia.com/mig.config": "x", "nvidia.com/mig.config.state": "failed"})])
    checks, _told, seconds = follow(client, ["mig_manager"])
    check = checks["mig_manager"]
    assert seconds == 0 and check["state"] == "failed" and [one["node"] for one in check["nodes"]] == ["n1"]
    assert check["detail"].startswith("3/3 ready; n1: layout all-7g.80gb failed; the MIG manager could not apply "
                                      "all-7g.80gb, often because pods use the GPUs")
    assert check["detail"].endswith("it has left device-plugin paused")
    assert "kubectl -n gpu-operator logs mig_manager-n1" in check["hint"]
    assert "The MIG manager does not try again by itself" in check["hint"]


def test_a_layout_that_does_not_end_is_pending_with_its_node() -> None:
    client = FakeClient(DaemonSet=[daemon_set("mig_manager", 1, 1)], Node=[asked("n1", "all-1g.10gb", "pending")])
    checks, _told, seconds = follow(client, ["mig_manager"], timeout=30)
    assert seconds >= 30 and checks["mig_manager"]["state"] == "pending"
    assert "n1: layout all-1g.10gb pending" in checks["mig_manager"]["detail"]
    assert kinds(checks["mig_manager"]) == ["layout"]
    assert "node_drain" in checks["mig_manager"]["hint"]


def test_no_node_is_asked_for_where_no_manager_is_wanted() -> None:
    client = FakeClient(Node=[asked("n1", "all-1g.10gb", "failed")])
    seen = [workload(daemon_set("mig_manager", 0, 0)), workload(daemon_set("driver", 1, 1))]
    assert follow(client, ["driver", "mig_manager"], seen=seen)[0]["mig_manager"]["ok"]
    assert client.asked == ["rows of Pods"]


def test_a_layout_that_has_failed_is_seen_where_all_pods_are_ready() -> None:
    """A run without changes reports the same as verify and status."""
    seen = [workload(daemon_set("mig_manager", 1, 1))]
    client = FakeClient(DaemonSet=[daemon_set("mig_manager", 1, 1)], Node=[asked("n1", "all-9g.90gb", "failed")],
                        Pod=[pod("mig_manager", "n1", ready=True)])
    for told in (follow(client, ["mig_manager"], seen=seen)[0], follow(client, ["mig_manager"], timeout=0)[0]):
        check = told["mig_manager"]
        assert check["state"] == "failed" and "n1: layout all-9g.90gb failed" in check["detail"]
    client = FakeClient(Node=[asked("n1", "all-9g.90gb", "success")])
    client.objects["Node"].clear()  # the selector names those that are not settled
    assert follow(client, ["mig_manager"], seen=seen)[0]["mig_manager"]["ok"]
    assert client.asked.count("list DaemonSet") == 0
