# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Outdated driver pods are replaced Node by Node: order, states, limits, failures, and what a killed run leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import windows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import marks
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import PAUSED, REASON
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.upgrade_policy import UpgradePolicy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade import fleet
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.node_upgrade import Terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.run import Limits, Upgrade
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.slots import Slots, Waiting
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request, status

Object = dict[str, Any]
D = "nvidia.com/gpu.deploy."
OPERANDS = {"device-plugin": "plugin", "operator-validator": "nvidia-operator-validator"}
LABELS = {f"{D}driver": "true", **{f"{D}{name}": "true" for name in OPERANDS}}
DRIVER = {"app": "nvidia-driver-daemonset", "app.kubernetes.io/component": "nvidia-driver"}
SET = "nvidia-driver-daemonset"
# Nobody has these processes any more.
GONE, NOW = Holder("here", 4194305, 1, 1000.0), Holder("here", 4194306, 1, 1000.0)
NO_EVICTION = {"force": False, "delete_emptydir_data": False, "timeout": 60}


class Killed(BaseException):
    """Ends the run here, as SIGKILL does."""


def policy(**more: Any) -> UpgradePolicy:
    """The policy of the upgrades, by default one Node at a time."""
    given: Any = {"automatic": True, "max_parallel": 1, "max_unavailable": "25%",
                  "wait": {"selector": "", "timeout": 0}, "pods": dict(NO_EVICTION),
                  "drain": {**NO_EVICTION, "enabled": False, "selector": ""}, **more}
    return UpgradePolicy(**given)


class Site:
    """A cluster of Nodes with outdated driver pods, and with a job on each Node.

    broken: the Nodes on which the new driver does not become Ready; invalid: those whose validator does not;
    budget: the pods that must not be evicted; states: the states of each Node, in their order; most: the largest number
    of Nodes that were out of service at the same time.
    """

    def __init__(self, api: ApiServer, client: Client, clock: Clock, nodes: int = 4) -> None:
        self.api, self.client, self.clock = api, client, clock
        self.broken: set[str] = set()
        self.invalid: set[str] = set()
        self.budget: set[str] = set()
        self.states: dict[str, list[str]] = {}
        self.most = 0
        self.told: list[str] = []
        self.policy = policy()
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        for name, labels in ((SET, DRIVER), *((app, {"app": app}) for app in OPERANDS.values())):
            self.put("apps/v1", "DaemonSet", name, labels=marks("driver" if labels is DRIVER else "x"), spec={
                "selector": {"matchLabels": {"app": labels["app"]}}, "template": self.template(labels, "2")})
        for revision in ("1", "2"):
            self.put("apps/v1", "ControllerRevision", f"{SET}-{revision}", owner=SET, revision=int(revision), labels={
                **DRIVER, "controller-revision-hash": revision}, data={"spec": {"template": self.template(
                    DRIVER, revision)}})
        for name in self.names:
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(LABELS)}, "spec": {},
                     "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
            self.pod(f"driver-{name}", name, SET, {**DRIVER, "controller-revision-hash": "1"})
            self.operands(name)
            self.pod(f"job-{name}", name, "", {"app": "job"})
        api.before = self.answer

    @staticmethod
    def template(labels: dict[str, str], revision: str) -> Object:
        key = f"{D}driver" if labels is DRIVER else next(
            f"{D}{name}" for name, app in OPERANDS.items() if app == labels["app"])
        return {"metadata": {"labels": labels}, "spec": {"nodeSelector": {key: "true"}, "containers": [
            {"name": "c", "image": f"nvcr.io/driver:5{revision}0-ubuntu22.04"}]}}

    def put(self, version: str, kind: str, name: str, owner: str = "", labels: dict[str, str] | None = None,
            **more: Any) -> None:
        uid = self.api.objects[f"/apis/apps/v1/namespaces/s/daemonsets/{owner}"]["metadata"]["uid"] if owner else ""
        self.api.put({"apiVersion": version, "kind": kind, "metadata": {
            "name": name, "namespace": "s", "labels": labels or {}, "ownerReferences": [
                {"kind": "DaemonSet", "controller": True, "uid": uid}] if owner else []}, **more})

    def pod(self, name: str, node: str, owner: str, labels: dict[str, str], ready: bool = True,
            restarts: int = 0) -> None:
        """owner: its DaemonSet; a pod without one uses a GPU and has a controller that creates it elsewhere."""
        uid = self.api.objects[f"/apis/apps/v1/namespaces/s/daemonsets/{owner}"]["metadata"]["uid"] if owner else "set"
        gpu = {} if owner else {"nvidia.com/gpu": "1"}
        image = f"nvcr.io/driver:5{labels.get('controller-revision-hash', '0')}0-ubuntu22.04"
        self.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "namespace": "s" if owner else "jobs", "labels": labels, "ownerReferences": [
                {"kind": "DaemonSet" if owner else "ReplicaSet", "controller": True, "uid": uid}]},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": image, "resources": {"limits": gpu}}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}],
                       "containerStatuses": [{"name": "c", "ready": ready, "restartCount": restarts}]}})

    def operands(self, node: str) -> None:
        for name, app in OPERANDS.items():
            path = f"/api/v1/namespaces/s/pods/{app}-{node}"
            runs = self.node(node)["metadata"]["labels"].get(f"{D}{name}") == "true"
            if runs and path not in self.api.objects:
                self.pod(f"{app}-{node}", node, app, {"app": app},
                         not (app.endswith("validator") and node in self.invalid))
            elif not runs:
                self.api.objects.pop(path, None)

    def node(self, name: str) -> Object:
        return self.api.objects[f"/api/v1/nodes/{name}"]

    def answer(self, request: Request) -> Reply | None:
        """Simulates controllers and kubelets."""
        name = request.path.split("/")[-1]
        if name == "eviction":
            path = request.path.rpartition("/")[0]
            if path.split("/")[-1] in self.budget:
                return status(429, "busy", causes=[{"message": "The disruption budget b needs 1"}], retry_after=10)
            if not request.query.get("dryRun"):
                del self.api.objects[path]
            return Reply(201, {"kind": "Status", "status": "Success"})
        live = self.api.objects.get(request.path)
        if request.verb == "delete" and live and live["kind"] == "Pod":
            self.safe(live["spec"]["nodeName"])
            return self.deleted(request)
        for one in self.names:
            self.operands(one)
            state = self.node(one)["metadata"]["labels"].get(upgrades.STATE, "")
            if self.states.setdefault(one, [""])[-1] != state:
                self.states[one].append(state)
        self.most = max(self.most, len(self.held()))
        return None

    def deleted(self, request: Request) -> Reply:
        """Deletes a driver pod; its controller creates the next one."""
        live = self.api.objects.pop(request.path)
        node = live["spec"]["nodeName"]
        broken = node in self.broken
        self.pod(f"new-{node}", node, SET, {**DRIVER, "controller-revision-hash": "2"}, not broken, 11 * broken)
        return Reply(200, live)

    def safe(self, node: str) -> None:
        """What holds whenever a driver pod is deleted."""
        assert f"/api/v1/namespaces/jobs/pods/job-{node}" not in self.api.objects
        assert self.node(node)["metadata"]["labels"][f"{D}device-plugin"] == PAUSED
        assert node in self.held()

    def held(self) -> list[str]:
        return [one for one in self.names if HELD in (self.node(one)["metadata"].get("annotations") or {})]

    def cordoned(self) -> list[str]:
        return [one for one in self.names if self.node(one)["spec"].get("unschedulable")]

    def pods(self) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.api.objects.values() if one["kind"] == "Pod"
                      and one["metadata"]["labels"].get("app") in (DRIVER["app"], "job"))

    def upgrade(self, level: str = "drain", check: bool = False, holder: Holder = NOW, **limits: Any) -> Object:
        names = limits.pop("nodes", ())
        cluster = {"namespace": "s", "components": {
            "driver": {"state": "present", "pools": [{"name": SET, "owner": "", "upgrade": self.policy}]},
            "validator": {"state": "present"}}}
        terms = Terms(holder, level, self.clock, self.clock.sleep, self.clock)
        found = fleet.read(self.client, cluster, names, clock=self.clock, sleep=self.clock.sleep)
        task = Upgrade(self.client, found, terms, Limits(**limits), self.told.append)
        return task.preview() if check else task.run()

    def of(self, result: Object) -> dict[str, str]:
        """The state of each Node in a result."""
        return {row["node"]: row["state"] for row in result["nodes"]}

    def is_done(self) -> bool:
        """Whether all Nodes are upgraded and in their former state."""
        return not self.cordoned() and all(
            self.node(one)["metadata"]["labels"] == {**LABELS, upgrades.STATE: upgrades.DONE}
            and not self.node(one)["metadata"].get("annotations") for one in self.names)


@pytest.fixture
def site(api: ApiServer, client: Client, clock: Clock) -> Site:
    """A cluster with four Nodes."""
    return Site(api, client, clock)


IN_ORDER = ["", upgrades.CORDON, upgrades.WAIT, upgrades.POD_DELETION, upgrades.POD_RESTART, upgrades.VALIDATION,
            upgrades.UNCORDON, upgrades.DONE]


def test_one_node_after_the_other_with_the_states_of_the_operator(site: Site) -> None:
    preview = site.upgrade(check=True)
    assert site.api.sent("patch", "delete") == [] and preview["changed"]
    result = site.upgrade()
    assert [step["id"] for step in result["plan"]] == [step["id"] for step in preview["plan"]]
    assert [step["id"] for step in result["plan"]][:9] == [
        "hold: Node n1", "cordon: Node n1", "evict: Pod jobs/job-n1", "pause: operator-validator on Node n1",
        "pause: device-plugin on Node n1", "replace: driver Pod of Node n1", "resume: operator-validator on Node n1",
        "resume: device-plugin on Node n1", "uncordon: Node n1"]
    assert result["plan"][5]["reason"] == "510-ubuntu22.04 becomes 520-ubuntu22.04"
    assert set(site.of(result).values()) == {"upgraded"} and not result.get("failed")
    assert site.most == 1 and site.is_done() and site.pods() == [f"new-{name}" for name in site.names]
    writes = len(site.api.sent())
    again = site.upgrade()
    assert all(states == IN_ORDER for states in site.states.values())
    assert not again["changed"] and again["nodes"] == [] and len(site.api.sent()) == writes


@pytest.mark.parametrize(("level", "states"), [("never", {"pending"}), ("idle", {"pending"})])
def test_below_drain_nothing_that_uses_a_gpu_is_disturbed(site: Site, level: str, states: set[str]) -> None:
    result = site.upgrade(level)
    assert set(site.of(result).values()) == states and not result["changed"] and not result.get("failed")
    assert site.api.sent("patch", "delete") == [] and len(result["pending"]) >= 4
    assert [one["id"] for one in result["pending"]] == [one["id"] for one in site.upgrade(level, True)["pending"]]


def test_idle_nodes_are_upgraded_at_idle_without_a_cordon(site: Site) -> None:
    for name in ("n1", "n3"):
        del site.api.objects[f"/api/v1/namespaces/jobs/pods/job-{name}"]
    result = site.upgrade("idle")
    assert site.of(result) == {"n1": "upgraded", "n2": "pending", "n3": "upgraded", "n4": "pending"}
    assert "cordon: Node n1" not in [step["id"] for step in result["plan"]]
    assert site.pods() == ["driver-n2", "driver-n4", "job-n2", "job-n4", "new-n1", "new-n3"]


def kill(site: Site, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Kills the run before the write with this number."""
    wire: Any = site.client._wire  # pylint: disable=protected-access
    send, writes = wire.send, [0]

    def killed(verb: str, target: str, method: str, *more: Any, **words_: Any) -> Any:
        if method in ("PATCH", "DELETE"):
            writes[0] += 1
            if writes[0] >= at:
                raise Killed
        return send(verb, target, method, *more, **words_)

    monkeypatch.setattr(wire, "send", killed)


@pytest.mark.parametrize("at", range(1, 10))
def test_a_killed_upgrade_is_finished_by_the_next_run(site: Site, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """In another controller's run that has expired."""
    with monkeypatch.context() as patch:
        kill(site, patch, at)
        with pytest.raises(Killed):
            site.upgrade(holder=GONE)
    site.clock.now += 4000  # longer than the validator may take
    site.upgrade()
    assert site.is_done() and site.pods() == [f"new-{name}" for name in site.names]


def test_the_first_node_is_a_test_of_the_others(site: Site) -> None:
    site.policy = policy(max_parallel=0, max_unavailable="100%")
    site.broken = {"n1"}
    result = site.upgrade()
    assert result["failed"] and site.of(result) == {"n1": "failed", **dict.fromkeys(("n2", "n3", "n4"), "waiting")}
    assert "n1: Container c of driver pod new-n1 has restarted 11 times" in result["msg"]
    assert "n[2-4]: not started, because n1 failed before. See gpu_max_fail_percentage." in result["msg"]
    one = site.node("n1")["metadata"]
    assert site.cordoned() == ["n1"] and not site.held()
    assert one["labels"] == {**LABELS, upgrades.STATE: upgrades.FAILED}
    assert "restarted 11 times" in one["annotations"][REASON] and one["annotations"][cordon.ANNOTATION] == "false"
    # The driver of the Node works again: it is finished, after the others.
    site.broken.clear()
    del site.api.objects["/api/v1/namespaces/s/pods/new-n1"]
    site.pod("new-n1", "n1", SET, {**DRIVER, "controller-revision-hash": "2"})
    again = site.upgrade()
    assert [row["node"] for row in again["nodes"]] == ["n2", "n3", "n4", "n1"] and site.is_done()


def test_a_node_with_a_broken_driver_is_not_put_into_service_by_a_refused_eviction(site: Site) -> None:
    """And its next upgrade has the whole time for the jobs and the validator."""
    site.policy = policy(wait={"selector": "app=job", "timeout": 5})
    site.broken = {"n1"}
    site.upgrade(nodes=["n1"])
    before = site.node("n1")
    site.clock.now += 4000
    site.pod("job-n1", "n1", "", {"app": "job"})
    site.put("apps/v1", "ControllerRevision", f"{SET}-3", owner=SET, revision=3, labels={
        **DRIVER, "controller-revision-hash": "3"}, data={"spec": {"template": site.template(DRIVER, "3")}})
    site.budget = {"job-n1"}
    begin = site.clock()
    assert site.of(site.upgrade(nodes=["n1"])) == {"n1": "skipped"} and site.clock() - begin >= 5
    after = site.node("n1")
    assert after["metadata"]["labels"] == before["metadata"]["labels"] and after["spec"]["unschedulable"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert not {upgrades.WAITING_SINCE, upgrades.VALIDATING_SINCE} & after["metadata"]["annotations"].keys()


def test_a_node_stays_held_while_its_upgrade_takes_hours(site: Site) -> None:
    """Another controller takes a Node whose annotation is older than an hour."""
    site.policy = policy(wait={"selector": "app=job", "timeout": 8000})

    def minute(_seconds: float) -> None:
        site.clock.now += 60

    site.clock.sleep = minute  # type: ignore[method-assign]
    seen: list[str] = []
    site.api.before, answer = lambda request: (seen.append(
        (site.node("n1")["metadata"].get("annotations") or {}).get(HELD, "")), answer(request))[1], site.api.before
    site.upgrade(nodes=["n1"])
    times = [found.since for found in map(Holder.read, dict.fromkeys(filter(None, seen))) if found]
    assert times[-1] - times[0] >= 7000 and max(b - a for a, b in zip(times, times[1:])) < 600


def test_a_node_without_a_validator_is_not_waited_for(site: Site) -> None:
    site.node("n1")["metadata"]["labels"][f"{D}operator-validator"] = "false"
    assert set(site.of(site.upgrade()).values()) == {"upgraded"}


def test_nodes_that_fail_keep_no_others_waiting(site: Site) -> None:
    site.broken, site.invalid = {"n2"}, {"n3"}
    result = site.upgrade(max_fail=50)
    assert site.of(result) == {"n1": "upgraded", "n2": "failed", "n3": "failed", "n4": "upgraded"}
    assert "n3: Validator pod nvidia-operator-validator-n3 is not Ready 600 s after the new driver." in result["msg"]
    assert site.cordoned() == ["n2", "n3"] and site.most == 1


def test_a_node_whose_budget_forbids_an_eviction_is_skipped_and_as_before(site: Site) -> None:
    site.budget = {"job-n1"}
    result = site.upgrade()
    assert site.of(result) == {"n1": "skipped", **dict.fromkeys(("n2", "n3", "n4"), "upgraded")}
    assert result["failed"] and result["blocked"][0]["pod"] == "jobs/job-n1"
    one = site.node("n1")
    assert one["metadata"]["labels"] == LABELS and not one["metadata"].get("annotations") and not site.cordoned()
    assert "job-n1" in site.pods()
    site.budget.clear()
    site.upgrade()
    assert site.is_done()


def test_a_drain_evicts_all_pods_of_its_selector(site: Site) -> None:
    """Where the pods that use a GPU may not be evicted by themselves: this one has no controller."""
    for name, labels in (("alone", {"drain": "yes"}), ("kept", {"drain": "yes", upgrades.DRAIN_SKIP: "true"})):
        site.pod(f"{name}-n1", "n1", "", {"app": name, **labels})
        pod = site.api.objects[f"/api/v1/namespaces/jobs/pods/{name}-n1"]
        pod["metadata"]["ownerReferences"] = []
        if name == "kept":
            pod["spec"]["containers"][0]["resources"] = {}
    assert site.of(site.upgrade())["n1"] == "skipped"
    # A pod that the selector leaves out is still evicted only as podDeletion allows.
    site.policy = policy(drain={**NO_EVICTION, "force": True, "enabled": True, "selector": "drain=no"})
    assert site.of(site.upgrade())["n1"] == "skipped"
    assert "/api/v1/namespaces/jobs/pods/alone-n1" in site.api.objects
    site.policy = policy(drain={**NO_EVICTION, "force": True, "enabled": True, "selector": "drain=yes"})
    site.upgrade()
    assert site.is_done() and upgrades.DRAIN in site.states["n1"]
    assert "/api/v1/namespaces/jobs/pods/kept-n1" in site.api.objects
    assert "/api/v1/namespaces/jobs/pods/alone-n1" not in site.api.objects


def test_an_upgrade_waits_for_jobs_until_they_end_or_their_time_is_over(site: Site) -> None:
    site.policy = policy(wait={"selector": "app=job", "timeout": 100})
    begin = site.clock()
    result = site.upgrade(nodes=["n1"])
    assert site.of(result) == {"n1": "upgraded"} and site.clock() - begin >= 100
    assert "n1: waits for jobs/job-n1" in site.told
    assert "wait: Pod jobs/job-n2" in [one["id"] for one in site.upgrade(check=True)["plan"]]

    def job_ends(seconds: float) -> None:
        site.clock.now += seconds
        if site.clock.now > begin + 1000:
            site.api.objects.pop("/api/v1/namespaces/jobs/pods/job-n2", None)

    site.policy = policy(wait={"selector": "app=job", "timeout": 0})
    site.clock.sleep = job_ends  # type: ignore[method-assign]
    site.upgrade(nodes=["n2"])
    assert site.clock() >= begin + 1000 and "new-n2" in site.pods()
    assert site.of(site.upgrade("idle", nodes=["n3"])) == {"n3": "pending"}


def test_nodes_are_left_out_by_label_and_policy_and_if_they_are_not_ready(site: Site) -> None:
    site.node("n2")["metadata"]["labels"][upgrades.SKIP] = "true"
    site.node("n3")["status"]["conditions"][0]["status"] = "False"
    site.policy = policy(max_unavailable="2")
    result = site.upgrade()
    assert site.of(result) == {"n1": "upgraded", "n2": "skipped", "n3": "skipped", "n4": "upgraded"}
    assert "n3: it is not Ready." in result["msg"] and "n2" not in result["msg"]
    site.policy = policy(automatic=False)
    result = site.upgrade(nodes=["n2", "n4"])
    assert site.of(result) == {"n2": "skipped"} and not result.get("failed")


def test_unavailable_nodes_count_and_the_run_ends_instead_of_waiting(site: Site) -> None:
    """A Node that is not Ready takes the only place; a Node that a user has cordoned is upgraded and stays cordoned."""
    site.node("n3")["status"]["conditions"][0]["status"] = "False"
    site.node("n4")["spec"]["unschedulable"] = True
    site.policy = policy(max_unavailable="1")
    result = site.upgrade()
    assert site.of(result) == {"n4": "upgraded", "n1": "waiting", "n2": "waiting", "n3": "skipped"}
    assert "n[1-2]: not started, because only 1 Node may be unavailable at the same time" in result["msg"]
    assert site.cordoned() == ["n4"] and not site.node("n4")["metadata"].get("annotations")


@pytest.mark.parametrize("level", ["idle", "drain"])
def test_an_upgrade_of_the_operator_is_continued(site: Site, level: str) -> None:
    """The operator has cordoned n1 and evicted its pods; a user had cordoned n2 before; n3 waits for a safe load; the
    operator was killed when it had cordoned n4."""
    if level == "idle":
        for name in site.names:
            del site.api.objects[f"/api/v1/namespaces/jobs/pods/job-{name}"]
    for name, state in (("n1", upgrades.POD_RESTART), ("n2", upgrades.VALIDATION), ("n3", upgrades.REQUIRED),
                        ("n4", upgrades.CORDON)):
        site.node(name)["metadata"]["labels"][upgrades.STATE] = state
    for name in ("n1", "n2", "n4"):
        site.node(name)["spec"]["unschedulable"] = True
    site.node("n2")["metadata"]["annotations"] = {upgrades.CORDONED_BEFORE: "true"}
    site.node("n3")["metadata"]["annotations"] = {upgrades.SAFE_LOAD: "true"}
    site.policy = policy(max_unavailable="2")
    site.upgrade(level)
    assert site.cordoned() == ["n2"]
    for name in site.names:
        assert site.node(name)["metadata"]["labels"] == {**LABELS, upgrades.STATE: upgrades.DONE}
        assert not site.node(name)["metadata"].get("annotations")


def test_a_removal_deletes_the_state_and_nothing_else_does(site: Site) -> None:
    for name in site.names:
        site.node(name)["metadata"]["annotations"] = {deploy_labels.ANNOTATION: ",".join(LABELS)}
    site.broken = {"n2"}
    site.upgrade(max_fail=50)
    for name in ("n1", "n2"):
        meta = site.node(name)["metadata"]
        live = deploy_labels.Node(name, meta["labels"], meta["annotations"], host={"nvidia.com/gpu.count": "8"})
        change = deploy_labels.plan_absent(live)
        assert change and change.labels == dict.fromkeys(sorted([*LABELS, upgrades.STATE]))
        kept = deploy_labels.plan_present(live, deploy_labels.parse_deploy({"components": {"driver": True}}),
                                          deploy_labels.Terms(0.0))
        assert upgrades.STATE not in (kept.labels if kept else {})


def test_a_node_that_another_run_holds_is_left_to_it(site: Site) -> None:
    other = Holder("there", 1, 1, 999.0)
    site.node("n1")["metadata"]["annotations"] = {HELD: other.text}
    result = site.upgrade()
    assert site.of(result)["n1"] == "skipped" and "is held by another run" in result["msg"]
    assert site.node("n1")["metadata"]["annotations"] == {HELD: other.text}


def test_missing_permissions_are_named_before_the_first_write(site: Site) -> None:
    site.api.allowed = lambda asked: asked["verb"] != "delete"
    with pytest.raises(ClusterError, match="may not delete pods"):
        site.upgrade()
    assert site.api.sent("patch", "delete") == []


def change(site: Site, revision: str) -> None:
    """Adds a revision of the driver's DaemonSet."""
    site.put("apps/v1", "ControllerRevision", f"{SET}-{revision}", owner=SET, revision=int(revision), labels={
        **DRIVER, "controller-revision-hash": revision}, data={"spec": {"template": site.template(DRIVER, revision)}})


def test_a_run_waits_until_a_changed_daemon_set_has_its_revision(site: Site) -> None:
    """Before, all pods would look current. The controller of DaemonSets needs a moment."""
    site.upgrade()
    daemon_set = site.api.objects[f"/apis/apps/v1/namespaces/s/daemonsets/{SET}"]
    daemon_set["metadata"]["generation"], daemon_set["status"] = 2, {"observedGeneration": 1}
    ended = site.clock.now + 10

    def controller(seconds: float) -> None:
        site.clock.now += seconds
        if site.clock.now >= ended and daemon_set["status"]["observedGeneration"] == 1:
            daemon_set["status"] = {"observedGeneration": 2}
            change(site, "3")

    site.clock.sleep = controller  # type: ignore[method-assign]
    assert [row["desired"] for row in site.upgrade(check=True)["nodes"]] == ["530-ubuntu22.04"] * 4
    daemon_set["status"] = {"observedGeneration": 1}
    ended = float("inf")
    with pytest.raises(ClusterError, match=f"has not seen the last change of {SET} for 60 s"):
        site.upgrade(check=True)


@pytest.mark.parametrize(("state", "excluded"), [
    (upgrades.WAIT, "label"), (upgrades.DRAIN, "label"), (upgrades.POD_DELETION, "policy")])
def test_an_unwanted_upgrade_that_has_begun_is_undone(site: Site, state: str, excluded: str) -> None:
    """The driver pod is not replaced yet: the Node goes back into service, at each level."""
    one = site.node("n1")
    one["metadata"]["labels"].update({upgrades.STATE: state, f"{D}device-plugin": PAUSED})
    one["metadata"]["annotations"] = {HELD: GONE.text, cordon.ANNOTATION: "false",
                                      deploy_labels.ANNOTATION: f"a,{upgrades.STATE}"}
    one["spec"]["unschedulable"] = True
    if excluded == "label":
        one["metadata"]["labels"][upgrades.SKIP] = "true"
    else:
        site.policy = policy(automatic=False)
    check = site.upgrade("never", check=True, nodes=["n1"])
    assert [step["id"] for step in check["plan"]] == ["undo the upgrade: Node n1"]
    result = site.upgrade("never", nodes=["n1"])
    assert site.of(result) == {"n1": "skipped"} and not result.get("failed") and result["changed"]
    skip = {upgrades.SKIP: "true"} if excluded == "label" else {}
    assert site.node("n1")["metadata"]["labels"] == {**LABELS, **skip} and not site.cordoned()
    assert site.node("n1")["metadata"]["annotations"] == {deploy_labels.ANNOTATION: "a"}
    assert "driver-n1" in site.pods() and "job-n1" in site.pods()


@pytest.mark.parametrize("case", ["replaced", "failed before", "requested"])
def test_a_node_whose_driver_may_not_work_is_not_put_into_service(site: Site, case: str) -> None:
    """A run has replaced the driver pod, and the pod is outdated again, or the upgrade before had failed."""
    site.pod("new-n1", "n1", SET, {**DRIVER, "controller-revision-hash": "2"}, False)
    del site.api.objects["/api/v1/namespaces/s/pods/driver-n1"]
    one = site.node("n1")
    state = upgrades.WAIT if case == "failed before" else upgrades.VALIDATION
    one["metadata"]["labels"].update({upgrades.STATE: state, upgrades.SKIP: "true"})
    one["metadata"]["annotations"] = {HELD: GONE.text, cordon.ANNOTATION: "false",
                                      **({REASON: "it crashes"} if case == "failed before" else {}),
                                      **({upgrades.REQUESTED: "true"} if case == "requested" else {})}
    one["spec"]["unschedulable"] = True
    if case != "requested":
        change(site, "3")
    result = site.upgrade(nodes=["n1"])
    assert result["failed"] and site.of(result) == {"n1": "skipped"} and site.cordoned() == ["n1"]
    assert f"an earlier upgrade has left it in the state {state}" in result["msg"]
    assert site.api.sent("patch", "delete") == []


def test_the_maintenance_of_another_playbook_is_no_upgrade(site: Site) -> None:
    """It was killed, and the Node is excluded from upgrades: site finishes its work."""
    one = site.node("n1")
    one["metadata"]["labels"][upgrades.SKIP] = "true"
    one["metadata"]["annotations"] = {HELD: GONE.text, cordon.ANNOTATION: "false"}
    one["spec"]["unschedulable"] = True
    result = site.upgrade(nodes=["n1"])
    assert site.of(result) == {"n1": "skipped"} and not result.get("failed") and site.api.sent("patch", "delete") == []


def test_a_node_that_had_failed_stays_out_of_service_after_a_killed_and_a_refused_retry(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.broken = {"n1"}
    site.upgrade(nodes=["n1"])
    reason = site.node("n1")["metadata"]["annotations"][REASON]
    change(site, "3")
    site.pod("job-n1", "n1", "", {"app": "job"})
    with monkeypatch.context() as patch:
        kill(site, patch, 2)
        with pytest.raises(Killed):
            site.upgrade(nodes=["n1"], holder=GONE)
    site.clock.now += 4000
    site.budget = {"job-n1"}
    assert site.of(site.upgrade(nodes=["n1"])) == {"n1": "skipped"}
    one = site.node("n1")
    assert site.cordoned() == ["n1"] and one["metadata"]["annotations"][REASON] == reason
    assert one["metadata"]["labels"][upgrades.STATE] == upgrades.FAILED


def test_a_drain_evicts_nothing_if_it_would_be_for_nothing(site: Site) -> None:
    """A pod with a GPU that the drain does not select must not be evicted: check mode and the run refuse the Node."""
    site.pod("alone-n1", "n1", "", {"app": "alone"})
    site.api.objects["/api/v1/namespaces/jobs/pods/alone-n1"]["metadata"]["ownerReferences"] = []
    site.policy = policy(drain={**NO_EVICTION, "force": True, "enabled": True, "selector": "app=job"})
    check, run = (site.upgrade(check=check, nodes=["n1"]) for check in (True, False))
    for result in (check, run):
        assert site.of(result) == {"n1": "skipped"}
        assert "Pod jobs/alone-n1 uses a GPU of Node n1. The drain does not select it" in result["msg"]
    assert "job-n1" in site.pods() and not site.cordoned()


def test_an_unwanted_upgrade_whose_driver_is_replaced_is_finished(site: Site) -> None:
    site.node("n1")["metadata"]["labels"].update({upgrades.STATE: upgrades.VALIDATION, upgrades.SKIP: "true"})
    del site.api.objects["/api/v1/namespaces/s/pods/driver-n1"]
    site.pod("new-n1", "n1", SET, {**DRIVER, "controller-revision-hash": "2"})
    assert site.of(site.upgrade(nodes=["n1"])) == {"n1": "upgraded"}


def test_a_node_without_a_driver_that_an_upgrade_has_left_is_named(site: Site) -> None:
    del site.api.objects["/api/v1/namespaces/s/pods/driver-n1"]
    site.node("n1")["metadata"]["labels"].update({upgrades.STATE: upgrades.POD_RESTART, f"{D}driver": "false"})
    result = site.upgrade()
    assert result["failed"] and site.of(result)["n1"] == "skipped" and site.of(result)["n2"] == "upgraded"
    assert "n1: an earlier upgrade has left it in the state pod-restart-required, but the policy delivers no" in \
        result["msg"]


@pytest.mark.parametrize("text", ["", NOW.text.replace("4194306", "4194305")])
def test_a_run_stops_on_a_node_that_it_no_longer_holds(site: Site, text: str) -> None:
    """Somebody has removed the annotation, or another run that has ended meanwhile had taken the Node."""
    answer = site.api.before
    assert answer

    def taken(request: Request) -> Reply | None:
        marks_now = site.node("n1")["metadata"].get("annotations") or {}
        if request.verb == "delete" and HELD in marks_now:
            site.node("n1")["metadata"]["annotations"] = {**marks_now, HELD: text}
            if not text:
                del site.node("n1")["metadata"]["annotations"][HELD]
        return answer(request) if request.verb != "delete" else site.deleted(request)

    site.api.before = taken
    result = site.upgrade(nodes=["n1"])
    assert site.of(result) == {"n1": "failed"} and "This run no longer holds Node n1" in result["msg"]
    assert f"{'changed' if text else 'removed'} the annotation" in result["msg"]
    one = site.node("n1")
    assert one["metadata"]["labels"][upgrades.STATE] == upgrades.POD_RESTART and one["spec"]["unschedulable"]
    assert REASON not in one["metadata"]["annotations"]
    site.api.before = answer
    site.upgrade(nodes=["n1"])
    assert site.node("n1")["metadata"]["labels"] == {**LABELS, upgrades.STATE: upgrades.DONE} and not site.cordoned()


def test_check_mode_shows_the_batches_and_which_nodes_do_not_start(site: Site) -> None:
    site.policy = policy(max_parallel=2, max_unavailable="50%")
    preview = site.upgrade(check=True)
    assert {row["node"]: row["batch"] for row in preview["nodes"]} == {"n1": 1, "n2": 2, "n3": 2, "n4": 3}
    assert site.told == [f"batch {number}: {names}: 510-ubuntu22.04 becomes 520-ubuntu22.04"
                         for number, names in ((1, "n1"), (2, "n[2-3]"), (3, "n4"))]
    site.node("n4")["status"]["conditions"][0]["status"] = "False"
    site.policy = policy(max_unavailable="1")
    preview, result = site.upgrade(check=True), site.upgrade()
    assert preview["failed"] and preview["msg"] == result["msg"] and site.of(preview)["n1"] == "waiting"
    assert preview["plan"] == [] and result["plan"] == []


def test_check_mode_shows_the_pods_that_a_drain_evicts(site: Site) -> None:
    site.pod("alone-n1", "n1", "", {"app": "alone"})
    site.api.objects["/api/v1/namespaces/jobs/pods/alone-n1"]["metadata"]["ownerReferences"] = []
    assert site.of(site.upgrade(check=True, nodes=["n1"])) == {"n1": "skipped"}
    site.policy = policy(drain={**NO_EVICTION, "force": True, "enabled": True, "selector": ""})
    check = {step["id"] for step in site.upgrade(check=True, nodes=["n1"])["plan"]}
    assert {"evict: Pod jobs/alone-n1", "evict: Pod jobs/job-n1", "replace: driver Pod of Node n1"} <= check
    assert check == {step["id"] for step in site.upgrade(nodes=["n1"])["plan"]}


@pytest.mark.parametrize("level", ["never", "idle"])
def test_below_drain_cordoned_nodes_let_no_run_fail(site: Site, level: str) -> None:
    site.node("n4")["spec"]["unschedulable"] = True
    site.policy = policy(max_unavailable="1")
    result = site.upgrade(level)
    assert set(site.of(result).values()) == {"pending"} and not result.get("failed")


def test_all_first_nodes_end_before_the_others_start(site: Site) -> None:
    site.policy = policy(max_parallel=4, max_unavailable="100%")
    preview = site.upgrade(check=True, first=["n3", "n4"])
    assert {row["node"]: row["batch"] for row in preview["nodes"]} == {"n3": 1, "n4": 2, "n1": 3, "n2": 3}
    order: list[str] = []
    site.told = order
    site.upgrade(first=["n3", "n4"])
    texts = [text for text in order if "upgrade started" in text or "upgraded in" in text]
    assert [text.split(":")[0] for text in texts[:4]] == ["n3", "n3", "n4", "n4"] and site.is_done()


def test_a_required_upgrade_of_a_node_that_is_current_ends(site: Site) -> None:
    """The policy was changed back before the operator has upgraded the Node."""
    site.upgrade()
    site.node("n2")["metadata"]["labels"][upgrades.STATE] = upgrades.REQUIRED
    result = site.upgrade()
    assert [step["id"] for step in result["plan"]][0] == "finish the upgrade: Node n2" and site.is_done()


def test_a_node_that_is_deleted_during_its_upgrade_is_no_failure(site: Site) -> None:
    answer = site.api.before
    assert answer

    def deleted(request: Request) -> Reply | None:
        if request.verb == "delete":
            del site.api.objects["/api/v1/nodes/n1"]
            site.names.remove("n1")
            site.api.before = answer
            return Reply(200, site.api.objects[request.path])
        return answer(request)

    site.api.before = deleted
    result = site.upgrade()
    assert site.of(result) == {"n1": "gone", **dict.fromkeys(("n2", "n3", "n4"), "upgraded")}
    assert not result.get("failed") and "n1: it was deleted during its upgrade" in site.told


@pytest.mark.parametrize(("parallel", "most", "others"), [(1, "100%", 1), (2, "1", 1), (3, "100%", 2)])
def test_nodes_that_another_run_upgrades_count(site: Site, parallel: int, most: str, others: int) -> None:
    site.policy = policy(max_parallel=parallel, max_unavailable=most)
    there = Holder("there", 1, 1, 999.0)
    for name in ("n3", "n4")[:others]:
        site.node(name)["metadata"]["labels"][upgrades.STATE] = upgrades.POD_DELETION
        site.node(name)["metadata"]["annotations"] = {HELD: there.text}
    site.upgrade(nodes=["n1", "n2"])
    assert (site.most > others) == (parallel > others and most == "100%") and site.most <= parallel


def test_an_old_pod_that_is_ready_is_not_the_new_driver(site: Site) -> None:
    """A pod of a former revision, a pod of another DaemonSet, and one that is being deleted."""
    answer = site.api.before
    assert answer
    site.broken = {"n1"}

    def beside(request: Request) -> Reply | None:
        found = answer(request)
        if request.verb == "delete":
            site.pod("old-n1", "n1", SET, {**DRIVER, "controller-revision-hash": "1"})
            site.pod("other-n1", "n1", OPERANDS["device-plugin"], {**DRIVER, "controller-revision-hash": "2"})
            site.pod("gone-n1", "n1", SET, {**DRIVER, "controller-revision-hash": "2"})
            site.api.objects["/api/v1/namespaces/s/pods/gone-n1"]["metadata"]["deletionTimestamp"] = "x"
        return found

    site.api.before = beside
    assert site.of(site.upgrade(nodes=["n1"])) == {"n1": "failed"}


def test_names_with_numbers_are_sorted_as_numbers(api: ApiServer, client: Client, clock: Clock) -> None:
    site = Site(api, client, clock, 12)
    preview = site.upgrade(check=True)
    assert [row["node"] for row in preview["nodes"]] == [f"n{number}" for number in range(1, 13)]
    assert site.told[-2:] == ["batch 10: n10: 510-ubuntu22.04 becomes 520-ubuntu22.04", "12 batches in all"]


def test_batches_of_a_run_are_those_of_check_mode(api: ApiServer, client: Client, clock: Clock) -> None:
    site = Site(api, client, clock, 8)
    site.policy = policy(max_parallel=3, max_unavailable="100%", wait={"selector": "app=job", "timeout": 5})
    check, run = ({row["node"]: row["batch"] for row in site.upgrade(check=check)["nodes"]} for check in (True, False))
    assert check == run and max(run.values()) == 4


def test_nodes_that_do_not_start_are_in_no_batch(site: Site) -> None:
    for check in (True, False):
        assert {row["batch"] for row in site.upgrade("never", check=check)["nodes"]} == {0}
    assert site.told == []


def test_the_time_that_is_left_is_estimated(site: Site) -> None:
    site.policy = policy(wait={"selector": "app=job", "timeout": 300}, max_parallel=2, max_unavailable="2")
    site.upgrade()
    left = [text for text in site.told if "left, about" in text]
    assert left[0] == "3 Nodes left, about 10 min" and "left" not in site.told[-1]


@pytest.mark.parametrize(("limits", "path"), [
    ({"max_parallel": -1}, "max_parallel"), ({"max_fail": 101}, "max_fail_percentage"),
    ({"max_fail": -1}, "max_fail_percentage"), ({"first": ["n1", "n9"]}, "first")])
def test_wrong_numbers_and_names_are_refused(site: Site, limits: Object, path: str) -> None:
    with pytest.raises(InputError) as caught:
        site.upgrade(**limits)
    assert caught.value.details["path"] == path and site.api.sent("patch", "delete") == []
    assert path != "first" or caught.value.details["value"] == ["n9"]


def test_a_removal_after_a_killed_first_upgrade_deletes_the_state(site: Site,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    site.node("n1")["metadata"]["annotations"] = {deploy_labels.ANNOTATION: ",".join(LABELS)}
    kill(site, monkeypatch, 3)
    with pytest.raises(Killed):
        site.upgrade(nodes=["n1"])
    ours = site.node("n1")["metadata"]["annotations"][deploy_labels.ANNOTATION].split(",")
    assert site.cordoned() == ["n1"] and upgrades.STATE in ours


def test_a_hold_is_renewed_while_pods_are_evicted_for_hours(site: Site) -> None:
    site.policy = policy(pods={**NO_EVICTION, "timeout": 9000})
    site.budget = {"job-n1"}
    seen: list[str] = []

    def minute(_seconds: float) -> None:
        site.clock.now += 60
        seen.append(site.node("n1")["metadata"]["annotations"][HELD])

    site.clock.sleep = minute  # type: ignore[method-assign]
    site.upgrade(nodes=["n1"])
    times = [found.since for found in map(Holder.read, dict.fromkeys(seen)) if found]
    assert times[-1] - times[0] >= 8000 and max(b - a for a, b in zip(times, times[1:])) < 600


def test_wrong_limits_are_refused_with_their_path(site: Site) -> None:
    with pytest.raises(InputError, match="is not a number of Nodes") as caught:
        site.upgrade(max_unavailable="many")
    assert caught.value.details["path"] == "max_unavailable"
    site.policy = policy(max_unavailable="200%")
    with pytest.raises(InputError) as caught:
        site.upgrade()
    assert caught.value.details["path"] == "driver.upgradePolicy.maxUnavailable"


@pytest.mark.parametrize(("slots", "expected"), [
    (Slots(1, 25), ["a"]),
    (Slots(4, 25), ["a", "x"]),  # one of each DaemonSet until one of its Nodes has been upgraded
    (Slots(4, 25, proved=frozenset({"s", "t"})), ["a", "b", "c", "x"]),
    (Slots(0, 25, proved=frozenset({"s", "t"})), ["a", "b", "c", "x"]),
    (Slots(4, 2, proved=frozenset({"s", "t"})), ["a", "b"]),
    (Slots(4, 2, frozenset({"z"}), proved=frozenset({"s", "t"})), ["a"]),
    (Slots(4, 2, frozenset({"z", "c"}), proved=frozenset({"s", "t"})), ["c"]),
    (Slots(4, 2, frozenset(), {"q": "s"}, frozenset({"s", "t"})), ["a"]),
    (Slots(1, 2, frozenset(), {"q": "s"}, frozenset({"s", "t"})), []),
    (Slots(4, 0), []),
])
def test_which_nodes_are_next(slots: Slots, expected: list[str]) -> None:
    waiting = [Waiting("a", "s"), Waiting("b", "s"), Waiting("c", "s"), Waiting("x", "t")]
    assert slots.next(waiting) == expected


# Saturday, 2026-11-28, 22:00 to 04:00 in Berlin, and seconds since 1970: a time before it, and when it opens.
WINDOW = windows.parse([{"days": ["sat"], "start": "22:00", "hours": 6, "timezone": "Europe/Berlin"}])
BEFORE, OPENS = 1795870800.0, 1795899600.0
CLOSED = "the maintenance windows are closed until Sat 2026-11-28 22:00 (Europe/Berlin)"


def reasons(result: Object, state: str = "pending") -> dict[str, str]:
    """The reasons of the Nodes in a state."""
    return {row["node"]: row["reason"] for row in result["nodes"] if row["state"] == state}


def test_outside_of_the_windows_nothing_is_written(site: Site) -> None:
    """The run succeeds, and says what waits and until when."""
    site.clock.now = BEFORE
    for check in (True, False):
        result = site.upgrade(check=check, windows=WINDOW)
        assert site.api.sent("patch", "delete", "post") == [] and not result["changed"] and not result.get("failed")
        assert reasons(result) == {name: f"replace: driver Pod of Node {name}: {CLOSED}" for name in site.names}
        assert [one["pending_reason"] for one in result["pending"]] == [CLOSED] * 4 and result["plan"] == []
        assert result["next_opening"] == "2026-11-28T21:00:00Z"
    assert site.told == [
        f"gpu_maintenance_windows: {CLOSED}. Until then, no host or Node is begun that the run would disturb; what an "
        "earlier run has begun is finished."] * 2
    site.clock.now = OPENS
    result = site.upgrade(windows=WINDOW)
    assert site.is_done() and result["next_opening"] == "" and result["pending"] == []
    assert "a maintenance window is open until Sun 2026-11-29 04:00 (Europe/Berlin)" in site.told[2]


def test_at_a_level_that_forbids_the_upgrade_the_level_is_the_reason(site: Site) -> None:
    site.clock.now = BEFORE
    result = site.upgrade("never", windows=WINDOW)
    assert all("gpu_disruption is 'never'" in reason for reason in reasons(result).values()) and len(
        reasons(result)) == 4


def slow(site: Site, seconds: Mapping[str, float]) -> None:
    """The driver of a Node takes this long to be loaded. seconds: by Node."""
    answer = site.deleted

    def deleted(request: Request) -> Reply:
        site.clock.now += seconds.get(site.api.objects[request.path]["spec"]["nodeName"], 0)
        return answer(request)

    site.deleted = deleted  # type: ignore[method-assign]


def test_a_node_that_has_begun_is_finished_after_the_window_has_closed(site: Site) -> None:
    """The others wait for the next window, in which they are upgraded."""
    site.clock.now = OPENS
    slow(site, {"n2": 7 * 3600})
    result = site.upgrade(windows=WINDOW)
    assert site.of(result) == {"n1": "upgraded", "n2": "upgraded", "n3": "pending", "n4": "pending"}
    assert not result.get("failed") and result["next_opening"] == "2026-12-05T21:00:00Z"
    assert "closed until Sat 2026-12-05 22:00" in reasons(result)["n3"]
    assert site.cordoned() == [] and site.states["n2"] == IN_ORDER and "n3" not in {
        name for name, states in site.states.items() if len(states) > 1}
    site.clock.now = OPENS + 7 * 86400
    assert site.of(site.upgrade(windows=WINDOW)) == {"n3": "upgraded", "n4": "upgraded"} and site.is_done()


def test_a_node_is_not_begun_if_an_upgrade_takes_longer_than_the_window_is_open(site: Site) -> None:
    """The first Node takes 100 minutes. The second one fits, and a third one does not."""
    site.clock.now = OPENS + 2 * 3600
    slow(site, dict.fromkeys(site.names, 6000))
    result = site.upgrade(windows=WINDOW)
    assert site.of(result) == {"n1": "upgraded", "n2": "upgraded", "n3": "pending", "n4": "pending"}
    assert reasons(result)["n3"].endswith(
        "an upgrade took 6001 s in this run, and the maintenance window closes before that, at Sun 2026-11-29 04:00 "
        "(Europe/Berlin); the next one opens at Sat 2026-12-05 22:00 (Europe/Berlin)")
    assert not result.get("failed") and result["next_opening"] == "2026-12-05T21:00:00Z"
    assert ("3 Nodes left, about 300 min, but the maintenance window closes at Sun 2026-11-29 04:00 (Europe/Berlin)"
            in site.told)
    assert site.clock.now < OPENS + 6 * 3600 and site.cordoned() == []


@pytest.mark.parametrize("at", [2, 3, 5, 7, 9])
def test_a_killed_upgrade_is_finished_outside_of_the_windows(site: Site, monkeypatch: pytest.MonkeyPatch, at: int
                                                             ) -> None:
    """And nothing else is begun."""
    site.clock.now = OPENS
    with monkeypatch.context() as patch:
        kill(site, patch, at)
        with pytest.raises(Killed):
            site.upgrade(holder=GONE, windows=WINDOW)
    site.clock.now = BEFORE + 86400 * 3
    result = site.upgrade(windows=WINDOW)
    assert site.of(result) == {"n1": "upgraded", **dict.fromkeys(("n2", "n3", "n4"), "pending")}
    assert not result.get("failed") and site.cordoned() == [] and not site.held()
    assert site.node("n1")["metadata"]["labels"][upgrades.STATE] == upgrades.DONE
    assert site.pods() == ["driver-n2", "driver-n3", "driver-n4", "job-n2", "job-n3", "job-n4", "new-n1"]


@pytest.mark.parametrize("cordoned", [True, False])
def test_a_failed_node_is_finished_outside_of_the_windows_if_it_is_out_of_service(site: Site, cordoned: bool) -> None:
    """If somebody has uncordoned it, jobs may run there."""
    site.clock.now = OPENS
    site.broken = {"n1"}
    site.upgrade(windows=WINDOW)
    assert site.cordoned() == ["n1"]
    site.broken.clear()
    del site.api.objects["/api/v1/namespaces/s/pods/new-n1"]
    site.pod("new-n1", "n1", SET, {**DRIVER, "controller-revision-hash": "2"})
    if not cordoned:
        del site.node("n1")["spec"]["unschedulable"]
    site.clock.now = BEFORE + 86400 * 3
    result = site.upgrade(windows=WINDOW)
    assert site.of(result)["n1"] == ("upgraded" if cordoned else "pending")
    assert [site.of(result)[name] for name in ("n2", "n3", "n4")] == ["pending"] * 3 and not result.get("failed")


def test_too_many_failures_are_reported_also_if_the_window_has_closed(site: Site) -> None:
    site.clock.now = OPENS
    site.broken = {"n1"}
    slow(site, {"n1": 7 * 3600})
    result = site.upgrade(windows=WINDOW)
    assert result["failed"] and site.of(result) == {"n1": "failed", **dict.fromkeys(("n2", "n3", "n4"), "waiting")}


def test_a_window_that_opens_during_a_run_is_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Node that an earlier run has begun takes until then."""
    site.clock.now = BEFORE
    with monkeypatch.context() as patch:
        kill(site, patch, 5)
        with pytest.raises(Killed):
            site.upgrade(holder=GONE)
    site.clock.now = OPENS - 3600
    slow(site, {"n1": 3600})
    assert set(site.of(site.upgrade(windows=WINDOW)).values()) == {"upgraded"} and site.is_done()
