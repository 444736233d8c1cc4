# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A removal ends driver pods and MPS daemons Node by Node, after the pods that use the GPUs of the Node."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import PAUSED, REASON, REMOVING
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver, node_by_node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.node_by_node import Terms
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request, status

Object = dict[str, Any]
D = "nvidia.com/gpu.deploy."
LABELS = {f"{D}driver": "true", f"{D}device-plugin": "true", f"{D}dcgm": "false"}
DRIVER, MPS = {"app": "own", "app.kubernetes.io/component": "nvidia-driver"}, {"app": objects.MPS_DAEMON}
SETS = "/apis/apps/v1/namespaces/s/daemonsets"
# Nobody has this process any more.
GONE, NOW = Holder("here", 4194305, 1, 1000.0), Holder("here", 4194306, 1, 1000.0)


def daemon_set(name: str, labels: dict[str, str]) -> Object:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "s"}, "spec": {
        "selector": {"matchLabels": {"app": labels["app"]}}, "template": {"metadata": {"labels": labels}, "spec": {
            "nodeSelector": {f"{D}{name}": "true"}, "containers": []}}}}


def account(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "s"}}


def has(group: str, resource: str, kind: str) -> list[Object]:
    """A namespaced kind as the server lists it."""
    return [{"metadata": {"name": group}, "versions": [{"version": "v1", "resources": [
        {"resource": resource, "responseKind": {"group": group, "version": "v1", "kind": kind}, "scope": "Namespaced",
         "verbs": ["list"]}]}]}]


# What this server has in namespaces, as far as a removal has to know.
KINDS = {"/api": has("", "pods", "Pod"), "/apis": has("apps", "controllerrevisions", "ControllerRevision")}


class Killed(BaseException):
    """Ends the run here, as SIGKILL does."""


class Site:
    """A cluster with three Nodes, each with a driver pod and a GPU pod; n1 also with an MPS daemon.

    budget: the pods that must not be evicted; lasting: pods that do not end although they were deleted. lasting: pods
    that stay though they were deleted.
    """

    def __init__(self, api: ApiServer, client: Client) -> None:
        self.api, self.client = api, client
        self.budget: set[str] = set()
        self.lasting: set[str] = set()
        self.told: list[str] = []
        self.holder = NOW
        self.ended: list[str] = []
        self.present([account("nvidia-driver"), daemon_set("driver", DRIVER)])
        for name in ("driver", "device-plugin", objects.MPS_DAEMON):
            live = api.objects[f"{SETS}/{name}"]
            live["status"] = {"currentNumberScheduled": 1}
            api.put({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {
                "name": f"{name}-1", "namespace": "s", "labels": live["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": [{"kind": "DaemonSet", "controller": True, "uid": live["metadata"]["uid"]}]}})
        for name in ("n1", "n2", "n3"):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": LABELS},
                     "spec": {"unschedulable": True} if name == "n3" else {},
                     "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
            self.pod(f"driver-{name}", name, "driver", DRIVER)
            self.pod(f"job-{name}", name)
        self.pod("mps-n1", "n1", objects.MPS_DAEMON, MPS)
        self.pod("plugin-n1", "n1", "device-plugin", {"app": "plugin"})
        api.before = self.answer
        api.requests.clear()

    def pod(self, name: str, node: str, owner: str = "", labels: dict[str, str] | None = None) -> None:
        """owner: its DaemonSet; a pod without one uses a GPU."""
        uid = self.api.objects[f"{SETS}/{owner}"]["metadata"]["uid"] if owner else "set"
        containers = [{"resources": {"limits": {} if owner else {"nvidia.com/gpu": "1"}}, "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all" if owner == objects.MPS_DAEMON else "void"}]}]
        self.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "namespace": "s" if owner else "work", "labels": labels or {}, "generateName": f"{owner}-",
            "ownerReferences": [{"kind": "DaemonSet" if owner else "ReplicaSet", "controller": True, "uid": uid}]},
            "spec": {"nodeName": node, "containers": containers},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})

    def answer(self, request: Request) -> Reply | None:
        """Simulates controllers and kubelets, and checks the invariants whenever a driver pod or an MPS daemon is
        deleted."""
        name = request.path.split("/")[-1]
        if request.path in ("/api", "/apis"):
            return Reply(200, {"kind": "APIGroupDiscoveryList", "items": KINDS[request.path]})
        if name == "eviction":
            return self.evicted(request)
        live = self.api.objects.get(request.path)
        if request.verb == "delete" and live and live["kind"] == "DaemonSet":
            for path, pod in list(self.api.objects.items()):
                if pod["metadata"].get("ownerReferences", [{}])[0].get("uid") == live["metadata"]["uid"]:
                    if request.body["propagationPolicy"] == "Orphan":
                        del pod["metadata"]["ownerReferences"]
                    else:
                        del self.api.objects[path]
        if request.verb == "delete" and live and live["kind"] == "Pod":
            self.ended.append(name)
            assert self.out_of_service() == [live["spec"]["nodeName"]]
            assert f"job-{live['spec']['nodeName']}" not in self.pods()
            assert self.node(live["spec"]["nodeName"])["labels"][f"{D}device-plugin"].startswith("paused-for-")
            if name in self.lasting:
                return Reply(200, live)
        merges = request.verb == "patch" and isinstance(request.body, dict)
        labels = request.body["metadata"].get("labels", {}) if merges else {}
        if labels.get(f"{D}device-plugin") == PAUSED:
            self.api.objects.pop(f"/api/v1/namespaces/s/pods/plugin-{name}", None)
        return None

    def evicted(self, request: Request) -> Reply:
        path = request.path.rpartition("/")[0]
        name = path.split("/")[-1]
        if name in self.budget:
            return status(429, "busy", causes=[{"message": "The disruption budget b needs 1"}], retry_after=10)
        if not request.query.get("dryRun"):
            self.ended.append(name)
            del self.api.objects[path]
        return Reply(201, {"kind": "Status", "status": "Success"})

    def node(self, name: str) -> Object:
        """The metadata of a Node."""
        return dict(self.api.objects[f"/api/v1/nodes/{name}"]["metadata"])

    def out_of_service(self) -> list[str]:
        return [one["metadata"]["name"] for _path, one in sorted(self.api.objects.items()) if one["kind"] == "Node"
                and (one["metadata"].get("annotations") or {}).get(HELD, "").startswith("here/")]

    def as_before(self) -> bool:
        """Whether all Nodes are in their former state."""
        names = ("n1", "n2", "n3")
        cordoned = [name for name in names if NodeState.read(self.api.objects[f"/api/v1/nodes/{name}"]).cordoned]
        return cordoned == ["n3"] and all(
            self.node(name)["labels"] == LABELS and not self.node(name).get("annotations") for name in names)

    def pods(self) -> list[str]:
        return [one["metadata"]["name"] for _path, one in sorted(self.api.objects.items()) if one["kind"] == "Pod"]

    def present(self, driver: list[Object], level: str = "drain", check: bool = False, **more: Any) -> Object:
        """Runs site.yml with this driver and all other components."""
        return deliver.present(self.client, self.wanted(driver), None, check, level=level,
                               terms=Terms(self.holder, **more), tell=self.told.append)

    @staticmethod
    def wanted(driver: list[Object]) -> list[objects.Wanted]:
        """The objects with this driver and all other components."""
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "s"}}
        return objects.wanted({
            "driver": driver,
            "device_plugin": [space, account("nvidia-device-plugin"), daemon_set("device-plugin", {"app": "plugin"}),
                              daemon_set(objects.MPS_DAEMON, MPS)]})

    def remove(self, level: str = "drain", check: bool = False, holder: Holder = NOW,
               components: list[str] | None = None, **more: Any) -> Object:
        return deliver.absent(self.client, components, 60, check, self.told.append, Terms(holder, level, **more))


@pytest.fixture
def site(api: ApiServer, client: Client) -> Site:
    """The cluster with all pods running."""
    return Site(api, client)


ORDER = ["job-n1", "mps-n1", "driver-n1", "job-n2", "driver-n2", "job-n3", "driver-n3"]


def test_one_node_after_the_other_and_then_the_rest(site: Site) -> None:
    preview = site.remove(check=True)
    assert site.api.sent() == [] and preview["changed"]
    done = site.remove()
    assert done["plan"] == preview["plan"] and done["pending"] == []
    assert [one["id"] for one in done["plan"]][:10] == [
        "delete: DaemonSet s/driver", f"delete: DaemonSet s/{objects.MPS_DAEMON}",
        "hold: Node n1", "cordon: Node n1", "evict: Pod work/job-n1", "pause: device-plugin on Node n1",
        "delete: Pod s/mps-n1", "delete: Pod s/driver-n1", "resume: device-plugin on Node n1", "uncordon: Node n1"]
    assert site.ended == ORDER
    # Nothing that they need has gone before the last of them, nor the operands of the Nodes whose turn comes later.
    gone = site.api.sent("delete")
    assert all("/pods/" in path or path.endswith(("/driver", objects.MPS_DAEMON)) for path in gone[:6])
    assert site.as_before() and site.pods() == []
    assert {path for path in site.api.objects if "/nodes/" not in path} == set()
    assert site.told == [f"{name} is taken out of service, {number} of 3" for number, name in enumerate(
        ("n1", "n2", "n3"), 1)]


@pytest.mark.parametrize("component", ["driver", "device_plugin"])
def test_only_pods_of_the_components_that_go_are_ended(site: Site, component: str) -> None:
    site.remove(components=[component])
    assert [name for name in site.ended if "job" not in name] == {
        "driver": ["driver-n1", "driver-n2", "driver-n3"], "device_plugin": ["mps-n1"]}[component]
    assert ("job-n2" in site.pods()) == (component == "device_plugin") and site.as_before()


@pytest.mark.parametrize("at", range(0, 15, 2))
def test_what_a_killed_run_leaves_the_next_one_finishes(site: Site, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The run is killed at any write: between two Nodes, or with one out of service, with or without its driver pod."""
    writes = [0]
    wire: Any = site.client._wire  # pylint: disable=protected-access
    send = wire.send

    def killed(verb: str, target: str, method: str, *words: Any, **more: Any) -> Any:
        if method != "GET" and "reviews" not in words[0]:
            writes[0] += 1
            if writes[0] > at:
                raise Killed
        return send(verb, target, method, *words, **more)

    monkeypatch.setattr(wire, "send", killed)
    with pytest.raises(Killed):
        site.remove(holder=GONE)
    monkeypatch.setattr(wire, "send", send)
    assert len(site.out_of_service()) <= 1
    state = copy.deepcopy(site.api.objects)
    # Below the level they still wait, with all that they need.
    waiting = site.remove("idle", components=["driver", "cluster"])
    assert site.api.objects == state and any("driver" in one["id"] for one in waiting["pending"])
    site.remove()
    assert sorted(set(site.ended), key=ORDER.index) == ORDER
    assert site.as_before() and site.pods() == [] and f"{SETS}/driver" not in site.api.objects


def test_pods_without_their_daemon_set_wait_for_the_level_with_what_they_need(site: Site) -> None:
    for name in ("driver", objects.MPS_DAEMON):
        del site.api.objects[f"{SETS}/{name}"]
    for one in site.api.objects.values():
        if one["kind"] == "Pod" and one["metadata"]["labels"] in (DRIVER, MPS):
            del one["metadata"]["ownerReferences"]
    result = site.remove("never")
    assert [one["id"] for one in result["pending"]] == [
        *(f"delete: Pod s/{name}" for name in ("mps-n1", "driver-n1", "driver-n2", "driver-n3")),
        "delete: DaemonSet s/device-plugin", "delete: ServiceAccount s/nvidia-device-plugin",
        "delete: ServiceAccount s/nvidia-driver", "delete: Namespace s"]
    assert site.api.sent() == [] and "Set gpu_disruption: drain" in result["warnings"][0]
    preview = site.remove("drain", check=True)
    assert site.remove("drain")["plan"] == preview["plan"] and preview["plan"][-1]["id"] == "delete: Namespace s"
    assert site.pods() == [] and site.as_before()


def skipped(site: Site, words: str, **more: Any) -> ClusterError:
    """The error of a removal that skips one Node. All others are served, and everything is removed that this Node does
    not need."""
    with pytest.raises(ClusterError, match=words) as caught:
        site.remove(timeout=30, **more)
    assert caught.value.reason == "Timeout" and caught.value.details["pending"] == []
    (name,) = caught.value.details["nodes"]
    assert {path.split("/")[-1] for path, one in site.api.objects.items() if one["kind"] not in ("Node", "Pod")} == {
        "nvidia-driver", "nvidia-device-plugin", "s"}
    assert {pod for pod in site.pods() if pod != f"job-{name}"} <= {f"driver-{name}", f"mps-{name}"}
    return caught.value


def finished(site: Site) -> bool:
    """Whether the next run removes what is left."""
    site.remove()
    return site.as_before() and site.pods() == [] and not [path for path in site.api.objects if "/nodes/" not in path]


def test_a_node_whose_budget_forbids_an_eviction_is_skipped(site: Site) -> None:
    site.budget = {"job-n2"}
    error = skipped(site, "pods of n2 have not been removed. n2: .* work/job-n2 on n2: The disruption budget b")
    assert error.details["blocked"][0]["pod"] == "work/job-n2" and "Then run again" in error.hint
    assert site.as_before() and site.ended == [*ORDER[:3], *ORDER[5:]] and site.pods() == ["driver-n2", "job-n2"]
    # The pods are nobody's, and below the level they still wait.
    assert "delete: Pod s/driver-n2" in [one["id"] for one in site.remove("idle")["pending"]]
    site.budget.clear()
    assert finished(site)


def failed(site: Site, words: str, **more: Any) -> ClusterError:
    """The error of a removal in which a Node has failed."""
    with pytest.raises(ClusterError, match=words) as caught:
        site.remove(timeout=30, **more)
    assert caught.value.details["failed"] and caught.value.details["pending"] == []
    return caught.value


@pytest.mark.parametrize("pod", ["driver-n1", "mps-n1"])
def test_the_first_node_is_a_test_of_the_others(site: Site, pod: str) -> None:
    """The pod of the first Node does not end. This Node stays cordoned, and no other Node is changed."""
    site.lasting = {pod}
    error = failed(site, rf"of n\[1-3\] have not been removed. n1: Pod s/{pod} has not ended 30 s after it was "
                   r"deleted. n\[2-3\]: not changed, because n1 failed before. See gpu_max_fail_percentage. Check")
    assert error.details["failed"] == ["n1"] and list(error.details["nodes"]) == ["n1", "n2", "n3"]
    assert {"job-n2", "driver-n2", "job-n3", "driver-n3"} <= set(site.pods())
    assert "/api/v1/namespaces/s/serviceaccounts/nvidia-driver" in site.api.objects
    marks = site.node("n1")["annotations"]
    assert pod in marks[REASON] and "driver" in marks[REMOVING] and HELD not in marks
    assert NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned and site.node("n1")["labels"] == LABELS
    # The next run tries it last, so that it does not stand in the way for ever.
    failed(site, f"of n1 have not been removed. n1: Pod s/{pod} has not ended")
    assert site.ended[-3:] == ["job-n3", "driver-n3", pod]
    site.lasting.clear()
    assert finished(site)


@pytest.mark.parametrize(("share", "untouched"), [(0, ["n3"]), (33, ["n3"]), (34, [])])
def test_more_failures_than_allowed_leave_the_rest(site: Site, share: int, untouched: list[str]) -> None:
    site.lasting = {"driver-n2"}
    error = failed(site, "n2: Pod s/driver-n2 has not ended", max_fail=share)
    assert error.details["failed"] == ["n2"] and list(error.details["nodes"]) == ["n2", *untouched]
    assert ("driver-n3" in site.pods()) == ("job-n3" in site.pods()) == bool(untouched)
    assert ("not changed, because n2 failed before" in str(error)) == bool(untouched)
    site.lasting.clear()
    assert finished(site)


def test_a_node_that_is_passed_over_is_no_failure(site: Site) -> None:
    """Before the first Node is served: because of a budget, another run, or a kubelet."""
    site.budget = {"job-n1"}
    other = Holder("there", 7, 7, NOW.since).text
    site.api.objects["/api/v1/nodes/n2"]["metadata"]["annotations"] = {HELD: other}
    with pytest.raises(ClusterError) as caught:
        site.remove(timeout=30)
    assert caught.value.details["failed"] == [] and list(caught.value.details["nodes"]) == ["n1", "n2"]
    assert "driver-n3" not in site.pods()


def test_site_fails_where_a_node_has_failed(site: Site) -> None:
    site.lasting = {"driver-n1"}
    (problem,) = site.present([], timeout=30)["problems"]
    assert re.search(r"n1: Pod s/driver-n1 has not ended.* n\[2-3\]: not changed", problem)
    assert "driver-n2" in site.pods() and NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned


def test_a_node_that_only_has_to_be_put_back_is_not_waited_for(site: Site) -> None:
    """Its pod has ended after the run, and its kubelet is no longer running."""
    site.lasting = {"driver-n1"}
    failed(site, "has not ended")
    site.lasting.clear()
    del site.api.objects["/api/v1/namespaces/s/pods/driver-n1"]
    site.api.objects["/api/v1/nodes/n1"]["status"]["conditions"][0]["status"] = "Unknown"
    assert "uncordon: Node n1" in [one["id"] for one in site.remove(check=True)["plan"]]
    assert finished(site)


def foreseen(preview: dict[str, Any]) -> list[str]:
    """The problems that check mode names, which are pending and a warning, too. Without hints."""
    problems = list(preview.get("problems", ()))
    assert not problems or problems[0] in preview["warnings"]
    assert bool(problems) == any("driver and MPS pods of" in step["id"] for step in preview["pending"])
    return [re.split(r"(?<=\.) (?=Find|Wait|Set|Then)", one)[0] for one in problems]


def hold(site: Site) -> None:
    other = Holder("there", 7, 7, NOW.since).text
    site.api.objects["/api/v1/nodes/n2"]["metadata"].setdefault("annotations", {})[HELD] = other


def ended(site: Site) -> None:
    site.api.objects["/api/v1/nodes/n2"]["status"]["conditions"][0]["status"] = "Unknown"


def alone(site: Site) -> None:
    del site.api.objects["/api/v1/namespaces/work/pods/job-n2"]["metadata"]["ownerReferences"]


@pytest.mark.parametrize("hinder", [hold, ended, alone])
def test_check_mode_fails_for_the_nodes_that_a_run_would_skip(site: Site, hinder: Callable[[Site], None]) -> None:
    """In site.yml: with the same Nodes and reasons. This does not apply to a budget, for which the run waits."""
    site.budget = {"job-n1"}
    assert foreseen(site.present([], check=True)) == []
    site.budget.clear()
    hinder(site)
    (ahead,) = foreseen(site.present([], check=True))
    assert site.api.sent() == []
    done = site.present([], timeout=30)
    assert ahead == foreseen(done)[0].replace("have not been", "will not be") and "n2: " in ahead
    assert site.ended == ["job-n1", "driver-n1", "job-n3", "driver-n3"]


def test_a_node_that_is_not_ready_is_passed_over_without_a_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_by_node, "_PAUSE", 1000.0)
    ready = site.api.objects["/api/v1/nodes/n2"]["status"]["conditions"][0]
    ready["status"] = "Unknown"
    preview = site.remove(check=True)
    assert foreseen(preview) == [
        "The driver and MPS pods of n2 will not be removed. n2: Node n2 is not Ready, so its pods would not end."]
    assert not [one for one in preview["plan"] if "n2" in one["id"]] and site.api.sent() == []
    skipped(site, "n2: Node n2 is not Ready")
    assert site.as_before() and "job-n2" in site.pods() and not [
        path for path in site.api.sent("patch") if path.endswith("/n2")]
    ready["status"] = "True"
    assert finished(site)


def test_a_node_whose_pods_may_not_be_evicted_is_skipped(site: Site) -> None:
    del site.api.objects["/api/v1/namespaces/work/pods/job-n3"]["metadata"]["ownerReferences"]
    skipped(site, "n3: Pods cannot be evicted: work/job-n3 on n3: no controller creates it again.* Set the option")
    assert site.as_before() and site.pods() == ["driver-n3", "job-n3"]
    site.remove(evictions=EvictionOptions(force=True))
    assert site.pods() == []


def test_one_error_names_nodes_that_were_passed_over_and_objects_that_stay(site: Site) -> None:
    site.budget = {"job-n1"}
    answer = site.answer
    site.api.before = lambda request: Reply(200, {}) if (request.verb, request.path) == (
        "delete", f"{SETS}/device-plugin") else answer(request)
    with pytest.raises(ClusterError, match="of n1 have not been removed.* No object or pod was removed for 60 s. "
                       "Left") as caught:
        site.remove(timeout=30)
    assert caught.value.reason == "Timeout" and list(caught.value.details["nodes"]) == ["n1"]
    assert "finalizers" in caught.value.hint and "Then run again" in caught.value.hint
    site.api.before, site.budget = answer, set()
    assert finished(site)


def test_no_node_is_begun_once_the_server_fails(site: Site) -> None:
    answer, failing = site.answer, []

    def fails(request: Request) -> Reply | None:
        failing.extend([True] if request.path.endswith("pods/driver-n1") and request.verb == "delete" else [])
        return status(500, "broken") if failing else answer(request)

    site.api.before = fails
    with pytest.raises(ClusterError, match="broken") as caught:
        site.remove()
    assert caught.value.reason != "Timeout" and not [line for line in site.told if line.startswith("n2")]
    site.api.before = answer
    assert finished(site)


def test_a_driver_that_is_not_wanted_any_more_ends_node_by_node(site: Site) -> None:
    """With site.yml. A Node that is skipped is pending, and everybody else is served."""
    preview = site.present([], check=True)
    assert site.api.sent() == []
    site.budget = {"job-n2"}
    done = site.present([], timeout=30)
    assert done["plan"] == preview["plan"] and [one["id"] for one in done["plan"]][:5] == [
        "delete: DaemonSet s/driver", "hold: Node n1", "cordon: Node n1", "evict: Pod work/job-n1",
        "pause: device-plugin on Node n1"]
    assert site.ended == ["job-n1", "driver-n1", "job-n3", "driver-n3"] and site.as_before()
    (pending,) = done["pending"]
    assert pending["id"] == "delete: driver and MPS pods of n2" and "disruption budget b" in pending["pending_reason"]
    (problem,) = done["problems"]
    assert "driver and MPS pods of n2 have not been removed. n2: " in problem and "disruption budget b" in problem
    assert problem in done["warnings"] and preview["problems"] == []
    assert "/api/v1/namespaces/s/serviceaccounts/nvidia-driver" in site.api.objects and "mps-n1" in site.pods()
    waiting = site.present([], "idle")
    assert [one["id"] for one in waiting["pending"]] == [
        "delete: Pod s/driver-n2", "delete: ServiceAccount s/nvidia-driver"] and "Set gpu_dis" in waiting["warnings"][0]
    site.budget.clear()
    served = site.present([])
    assert served["pending"] == served["problems"] == [] and "warnings" not in served
    assert site.as_before() and "driver-n2" not in site.pods()
    assert "/api/v1/namespaces/s/serviceaccounts/nvidia-driver" not in site.api.objects
    site.api.requests.clear()
    assert not site.present([])["changed"] and site.api.sent() == []


@pytest.mark.parametrize("by", ["present", "remove"])
def test_a_daemon_set_without_pods_goes_whole_below_the_level(site: Site, by: str) -> None:
    site.api.objects[f"{SETS}/driver"]["status"] = {}
    if by == "present":
        site.present([], "idle")
    else:
        site.remove("idle", components=["driver"])
    (asked,) = [one.body["propagationPolicy"] for one in site.api.requests
                if one.verb == "delete" and one.path == f"{SETS}/driver"]
    assert asked == "Foreground"


def test_as_many_at_once_as_may_be_unavailable(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = []

    class Pool(node_by_node.ThreadPoolExecutor):
        def __init__(self, size: int) -> None:
            pools.append(size)
            super().__init__(1)

    monkeypatch.setattr(node_by_node, "ThreadPoolExecutor", Pool)
    site.remove(at_once="67%")
    assert pools == [2]


def test_a_wrong_number_at_once_is_refused_before_anything_is_deleted(site: Site) -> None:
    with pytest.raises(InputError, match="gpu_max_unavailable"):
        site.remove(at_once="many")
    assert site.api.sent() == []


def test_the_rights_are_asked_for_before_anything_is_deleted(site: Site) -> None:
    site.api.allowed = lambda asked: asked["resource"] not in ("pods", "nodes")
    with pytest.raises(ClusterError, match="delete pods in namespace s; patch nodes; create pods/eviction"):
        site.remove()
    assert site.api.sent() == []


def test_a_driver_whose_labels_somebody_took_is_a_driver(site: Site) -> None:
    del site.api.objects[f"{SETS}/driver"]["metadata"]["labels"]
    result = site.remove("idle")
    assert "delete: DaemonSet s/driver" in [one["id"] for one in result["pending"]] and "driver-n1" in site.pods()
    assert f"{SETS}/driver" in site.api.objects


@pytest.mark.parametrize("level", ["never", "drain"])
def test_a_node_that_a_removal_has_left_is_put_back_once_its_driver_is_wanted_again(site: Site, level: str) -> None:
    """With site.yml, although no pod has to end any more. If site.yml runs first, the pod still ends."""
    driver = [account("nvidia-driver"), daemon_set("driver", DRIVER)]
    site.lasting = {"driver-n1"}
    failed(site, "n1: Pod s/driver-n1 has not ended")
    pod = site.api.objects["/api/v1/namespaces/s/pods/driver-n1"]["metadata"]
    pod["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    former = site.node("n1")["annotations"]
    waiting = site.present(driver, level)
    assert NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned and site.node("n1")["annotations"] == former
    (problem,) = waiting["problems"]
    assert "Node n1" in problem and "Pod s/driver-n1" in problem and problem in waiting["warnings"]
    ahead = site.present(driver, level, check=True)  # the pod may have ended when the run begins
    assert ahead["problems"] == [] and problem in ahead["warnings"]
    del pod["deletionTimestamp"]
    preview = site.present(driver, level, check=True)
    done = site.present(driver, level)
    assert done["plan"] == preview["plan"] and done["problems"] == []
    assert [one["id"] for one in done["plan"]][-2:] == ["uncordon: Node n1", "release: Node n1"]
    assert site.as_before() and "driver-n1" in site.pods()
    site.api.requests.clear()
    assert not site.present(driver, level)["changed"] and site.api.sent() == []


def test_a_node_that_a_removal_has_left_is_no_matter_of_rights_to_evict(site: Site) -> None:
    site.lasting = {"driver-n1"}
    failed(site, "has not ended")
    site.api.allowed = lambda asked: asked.get("subresource") != "eviction"
    site.present([account("nvidia-driver"), daemon_set("driver", DRIVER)], "never")
    assert site.as_before()


def test_pods_that_come_while_their_daemon_set_goes_are_ended_too(site: Site) -> None:
    """Pods on a new Node, and pods that replace a failed one."""
    answer = site.answer

    def late(request: Request) -> Reply | None:
        if (request.verb, request.path) == ("delete", f"{SETS}/driver"):
            del site.api.objects["/api/v1/namespaces/s/pods/driver-n2"]
            site.api.put({**copy.deepcopy(site.api.objects["/api/v1/nodes/n2"]), "metadata": {
                "name": "n4", "labels": LABELS}})
            site.pod("again-n2", "n2", "driver", DRIVER)
            site.pod("new-n4", "n4", "driver", DRIVER)
            site.pod("job-n4", "n4")
        return answer(request)

    site.api.before = late
    site.remove()
    assert site.pods() == [] and site.as_before() and not site.node("n4").get("annotations")
    assert site.ended == [*ORDER[:3], "job-n2", "again-n2", "job-n3", "driver-n3", "job-n4", "new-n4"]


def test_pods_in_a_former_namespace_are_found(site: Site) -> None:
    """Their DaemonSet has been removed, and no other object of the driver is there."""
    site.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "former", "labels": {**objects.marks(objects.SHARED)}}})
    path = "/api/v1/namespaces/former/pods/driver-n2"
    pod = site.api.objects.pop("/api/v1/namespaces/s/pods/driver-n2")
    site.api.put({**pod, "metadata": {"name": "driver-n2", "namespace": "former", "labels": DRIVER}})
    assert "delete: Pod former/driver-n2" in [one["id"] for one in site.present([], check=True)["plan"]]
    site.remove(components=["driver"])
    assert path not in site.api.objects and site.ended[-4:] == ["job-n2", "driver-n2", "job-n3", "driver-n3"]


@pytest.mark.parametrize("level", ["idle", "drain"])
def test_a_node_is_put_back_where_its_driver_is_wanted_again(site: Site, level: str) -> None:
    """A run of site.yml has left it cordoned, and then the policy is reverted."""
    site.lasting = {"driver-n1"}
    assert "has not ended" in site.present([], timeout=30)["problems"][0]
    assert NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned and site.node("n1")["annotations"][REMOVING]
    wanted = [account("nvidia-driver"), daemon_set("driver", DRIVER)]
    preview = site.present(wanted, level, check=True)
    assert "uncordon: Node n1" in [one["id"] for one in preview["plan"]]
    assert site.present(wanted, level)["pending"] == [] and site.as_before() and "driver-n1" in site.pods()
    site.api.requests.clear()
    assert not site.present(wanted, level)["changed"] and site.api.sent() == []


def test_the_unfinished_work_of_another_component_keeps_its_node(site: Site) -> None:
    site.lasting = {"driver-n1"}
    assert "has not ended" in site.present([], timeout=30)["problems"][0]
    marks = site.node("n1")["annotations"]
    assert marks[REMOVING] == "driver"
    preview = site.remove(components=["device_plugin"], check=True)
    assert "delete: Pod s/mps-n1" in [one["id"] for one in preview["plan"]]
    assert "uncordon: Node n1" not in [one["id"] for one in preview["plan"]]
    assert site.remove(components=["device_plugin"])["plan"] == preview["plan"]
    assert "mps-n1" not in site.pods() and site.node("n1")["annotations"] == marks
    assert NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned and site.node("n1")["labels"] == LABELS
    site.lasting.clear()
    site.remove(components=["driver"])
    assert site.as_before()


def test_a_node_on_which_another_run_was_killed_is_named_until_its_host_is_changed(site: Site) -> None:
    """That run had cordoned it, and a removal runs before its successor."""
    node = site.api.objects["/api/v1/nodes/n1"]
    node["metadata"]["annotations"] = {HELD: GONE.text, cordon.ANNOTATION: "false"}
    node["spec"] = {"unschedulable": True}
    site.remove(components=["device_plugin"])
    assert "mps-n1" not in site.pods() and NodeState.read(node).cordoned and site.node("n1")["annotations"] == {
        REASON: "the run was killed", cordon.ANNOTATION: "false"}


def test_an_mps_pod_that_still_ends_keeps_its_node_while_others_are_served(site: Site) -> None:
    site.pod("mps-n2", "n2", objects.MPS_DAEMON, MPS)
    for name in ("n1", "n2"):
        site.node(name)["labels"][f"{D}{objects.MPS_DAEMON}"] = "true"
    site.lasting = {"mps-n1"}
    assert "has not ended" in exclusive(site, timeout=30)["problems"][0]
    marks = dict(site.node("n1")["annotations"])
    del site.api.objects["/api/v1/namespaces/s/pods/driver-n1"]
    site.api.objects["/api/v1/namespaces/s/pods/mps-n1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    done = site.present([])
    assert "Node n1 is out of service since a removal" in done["problems"][0] and "driver-n2" not in site.pods()
    assert NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned and site.node("n1")["annotations"][
        REMOVING] == marks[REMOVING]


@pytest.mark.parametrize("marks", [{REASON: "its host has failed", cordon.ANNOTATION: "false"},
                                   {cordon.ANNOTATION: "false"}])
def test_a_node_that_other_work_has_cordoned_stays_so(site: Site, marks: dict[str, str]) -> None:
    """The change of its host has failed, or node_drain has drained it."""
    node = site.api.objects["/api/v1/nodes/n1"]
    node["metadata"]["annotations"], node["spec"] = dict(marks), {"unschedulable": True}
    preview = site.remove(components=["device_plugin"], check=True)
    assert site.remove(components=["device_plugin"])["plan"] == preview["plan"]
    node = site.api.objects["/api/v1/nodes/n1"]
    assert node["metadata"]["annotations"] == marks and NodeState.read(node).cordoned and "mps-n1" not in site.pods()


def exclusive(site: Site, **more: Any) -> Object:
    """Runs site.yml without shared GPUs: with another device plugin, and without an MPS daemon."""
    plugin = daemon_set("device-plugin", {"app": "plugin"})
    plugin["spec"]["updateStrategy"] = {"type": "RollingUpdate"}
    plugin["spec"]["template"]["spec"]["containers"] = [{"name": "exclusive"}]
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "s"}}
    return deliver.present(site.client, objects.wanted({
        "driver": [account("nvidia-driver"), daemon_set("driver", DRIVER)],
        "device_plugin": [space, account("nvidia-device-plugin"), plugin]}), None, False, level="drain",
        terms=Terms(NOW, **more), tell=site.told.append)


def test_the_device_plugin_comes_anew_when_its_node_is_put_back(site: Site) -> None:
    """Not before its MPS daemon has ended, but before the run reaches the last Node."""
    site.pod("mps-n2", "n2", objects.MPS_DAEMON, MPS)
    site.budget = {"job-n2"}
    answer, seen = site.answer, []

    def look(request: Request) -> Reply | None:
        spec = site.api.objects[f"{SETS}/device-plugin"]["spec"]
        if request.verb == "delete" and "/pods/" in request.path:
            seen.append((request.path.split("/")[-1], spec["template"]["spec"]["containers"], spec["updateStrategy"]))
        return answer(request)

    site.api.before = look
    (pending,) = exclusive(site, timeout=30)["pending"]
    assert pending["id"] == "delete: driver and MPS pods of n2"
    changed = ([{"name": "exclusive"}], {"type": "OnDelete"})
    assert seen == [("mps-n1", *changed)]
    # The pods of n2 stay as they are while its MPS daemon has clients.
    assert site.api.objects[f"{SETS}/device-plugin"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    site.budget.clear()
    assert exclusive(site)["pending"] == [] and seen[1:] == [("mps-n2", *changed)] and site.as_before()
    assert site.api.objects[f"{SETS}/device-plugin"]["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
    site.api.requests.clear()
    assert not exclusive(site)["changed"] and site.api.sent() == []
