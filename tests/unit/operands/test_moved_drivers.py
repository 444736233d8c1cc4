# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers whose DaemonSet is replaced or moves are replaced Node by Node: the new one waits until the old one has
ended."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import PAUSED, REASON, REMOVING
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver, successors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.node_by_node import Terms
from ansible_collections.gpuops.nvidia.tests.unit.operands.test_node_by_node import (
    DRIVER,
    GONE,
    LABELS,
    MPS,
    NOW,
    Killed,
    Site,
    account,
    daemon_set,
)
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request

Object = dict[str, Any]
LABEL = "nvidia.com/gpu.deploy.driver"
NODES = ("n1", "n2", "n3")


class Moving(Site):
    """The same cluster with a simple controller of DaemonSets: it adopts pods, ends those on Nodes that are not
    selected, and creates missing ones. unready: Nodes on which a new pod does not start."""

    kinds = (DRIVER, {**DRIVER, "app": "new"})

    def __init__(self, api: ApiServer, client: Client) -> None:
        super().__init__(api, client)
        self.unready: set[str] = set()
        self.refused: set[str] = set()  # Nodes for which the server takes no pod
        self.twice: list[Any] = []  # Nodes to which a driver has come while another one was there

    def answer(self, request: Request) -> Reply | None:
        reply = super().answer(request)
        if request.verb in ("get", "list"):
            self.controller()
        return reply

    def controller(self) -> None:
        for path, one in list(self.api.objects.items()):
            if one["kind"] != "DaemonSet" or not any(successors.selects(one, labels) for labels in self.kinds):
                continue
            uid, space, count = one["metadata"]["uid"], one["metadata"]["namespace"], 0
            for node in [node for node in self.api.objects.values() if node["kind"] == "Node"]:
                name, mine = node["metadata"]["name"], []
                for place, pod in list(self.api.objects.items()):
                    if (pod["kind"] != "Pod" or pod["spec"]["nodeName"] != name or pod["metadata"]["namespace"] != space
                            or not successors.selects(one, pod["metadata"]["labels"])):
                        continue
                    owners = pod["metadata"].setdefault("ownerReferences", [])
                    owners += [] if owners else [{"kind": "DaemonSet", "controller": True, "uid": uid}]
                    mine += [place] if owners[0]["uid"] == uid else []
                if not successors.runs_on(one, node):
                    for place in mine:
                        self.ended.append(f"{place.split('/')[-1]} by its controller")
                        del self.api.objects[place]
                elif not mine and name not in self.refused:
                    former = self.of(one["spec"]["template"]["metadata"]["labels"], name)
                    if any(self.runs(pod) for pod in former):
                        self.twice.append((path, name, former, dict(node["metadata"]["labels"])))
                    ready = "False" if name in self.unready else "True"
                    self.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {
                        "name": f"{one['metadata']['name']}-{name}-new", "namespace": space,
                        "labels": one["spec"]["template"]["metadata"]["labels"], "generateName": "x-",
                        "ownerReferences": [{"kind": "DaemonSet", "controller": True, "uid": uid}]},
                        "spec": {"nodeName": name, "containers": []},
                        "status": {"conditions": [{"type": "Ready", "status": ready}]}})
                    mine.append("")
                count += bool(mine)
            one["status"] = {"currentNumberScheduled": count}

    def drivers(self, node: str) -> list[str]:
        return self.of(DRIVER, node)

    def of(self, labels: dict[str, str], node: str) -> list[str]:
        """The driver pods on a Node, or its other pods with these labels."""
        key = "app.kubernetes.io/component" if "app.kubernetes.io/component" in labels else "app"
        return [one["metadata"]["name"] for one in self.api.objects.values() if one["kind"] == "Pod"
                and one["spec"]["nodeName"] == node and one["metadata"]["labels"].get(key) == labels[key]]

    def runs(self, pod: str) -> bool:
        return not any(one["metadata"]["name"] == pod and (one.get("status") or {}).get("phase") == "Failed"
                       for one in self.api.objects.values())

    def all_drivers(self) -> list[list[str]]:
        """The driver pods of each Node."""
        return [self.drivers(name) for name in NODES]


@pytest.fixture
def site(api: ApiServer, client: Client) -> Moving:
    return Moving(api, client)


def changed(name: str = "driver", space: str = "s", app: str = "own", **selector: str) -> list[Object]:
    """The driver objects of a changed plan."""
    one = daemon_set(name, {**DRIVER, "app": app})
    one["metadata"]["namespace"] = space
    one["spec"]["template"]["spec"]["nodeSelector"] = {LABEL: "true", **selector}
    home = [] if space == "s" else [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}]
    return [*home, account("nvidia-driver"), one]


POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": "p"}


def of_operator(site: Moving) -> None:
    """Makes a stopped GPU Operator the owner of all objects."""
    for one in site.api.objects.values():
        if one["kind"] in ("DaemonSet", "ServiceAccount"):
            del one["metadata"]["labels"]
            one["metadata"].update(managedFields=[], ownerReferences=[{**POLICY, "controller": True}])
    site.api.objects["/api/v1/namespaces/s"]["metadata"].update(labels={}, managedFields=[])
    site.api.put({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {
        "name": POLICY["name"], "uid": "p"}}, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
            "name": "gpu-operator", "namespace": "s", "labels": {"app": "gpu-operator"}},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "gpu-operator"}}}})


def adopted(site: Moving, driver: list[Object], level: str = "drain", check: bool = False) -> Object:
    """Runs adopt.yml."""
    return deliver.adopted(site.client, site.wanted(driver), ("driver", "device_plugin"), check, level,
                              terms=Terms(site.holder), tell=site.told.append)


def written(site: Moving) -> list[str]:
    """The writes, without dry runs."""
    return [f"{one.verb} {one.path}" for one in site.api.requests if one.verb in ("apply", "patch", "delete", "create")
            and "reviews" not in one.path and not one.query.get("dryRun")]


CHANGES: dict[str, list[Object]] = {
    "another name, and pods that are selected alike": changed("precompiled"),
    "another name": changed("named", app="new"),
    "another namespace": changed(space="elsewhere"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_node_after_the_other(site: Moving, change: str) -> None:
    wanted = CHANGES[change]
    assert site.present(wanted, "idle")["pending"] and site.ended == []
    site.api.requests.clear()
    preview = site.present(wanted, check=True)
    assert written(site) == []
    done = site.present(wanted)
    assert done["pending"] == [] and done["plan"] == preview["plan"]
    assert site.ended == ["job-n1", "driver-n1", "job-n2", "driver-n2", "job-n3", "driver-n3"] and site.as_before()
    name = wanted[-1]["metadata"]["name"]
    assert site.all_drivers() == [[f"{name}-{node}-new"] for node in NODES]
    assert site.twice == []
    steps = [one["id"] for one in done["plan"]]
    at = steps.index("hold: Node n1")
    assert steps[0] == "delete: DaemonSet s/driver" and "pause: driver on Node n3" in steps[:at]
    assert f"create: DaemonSet {wanted[-1]['metadata']['namespace']}/{name}" in steps[:at]
    assert steps[at:at + 7] == [
        "hold: Node n1", "cordon: Node n1", "evict: Pod work/job-n1", "pause: device-plugin on Node n1",
        "delete: Pod s/driver-n1", "resume: driver on Node n1", "resume: device-plugin on Node n1"]
    site.api.requests.clear()
    assert not site.present(wanted)["changed"] and site.api.sent() == []


def test_a_selector_that_leaves_nodes_out_moves_only_these(site: Moving) -> None:
    site.node("n2")["labels"]["pool"] = "a"
    site.api.objects["/api/v1/nodes/n2"]["metadata"]["labels"] = {**LABELS, "pool": "a"}
    wanted = changed(pool="a")
    (first, *_more) = site.present(wanted, "idle")["pending"]
    assert first["id"] == "update: DaemonSet s/driver"
    preview = site.present(wanted, check=True)
    assert site.present(wanted)["plan"] == preview["plan"]
    assert site.ended == ["job-n1", "driver-n1", "job-n3", "driver-n3"]
    assert site.all_drivers() == [[], ["driver-n2"], []]
    assert site.node("n1")["labels"][LABEL] == "true" and not site.node("n1").get("annotations")
    site.api.requests.clear()
    assert not site.present(wanted)["changed"] and site.api.sent() == []


def test_adopted_daemon_sets_leave_nodes_node_by_node(site: Moving) -> None:
    """The driver of the operator is planned only for n2."""
    of_operator(site)
    site.api.objects["/api/v1/nodes/n2"]["metadata"]["labels"] = {**LABELS, "pool": "a"}
    wanted = changed(pool="a")
    with pytest.raises(ClusterError, match="gpu_disruption is 'idle'.*follows 'adopt: DaemonSet s/driver'"):
        adopted(site, wanted, "idle")
    preview = adopted(site, wanted, check=True)
    assert written(site) == []
    done = adopted(site, wanted)
    assert done["plan"] == preview["plan"] and done["pending"] == [] == done["problems"]
    assert not any("DaemonSet s/driver" in text for text in done["warnings"])
    assert site.ended == ["job-n1", "driver-n1", "job-n3", "driver-n3"]
    assert site.all_drivers() == [[], ["driver-n2"], []]
    assert objects.is_ours(site.api.objects["/apis/apps/v1/namespaces/s/daemonsets/driver"])
    assert not adopted(site, wanted)["changed"]


@pytest.mark.parametrize("write", range(0, 12))
def test_what_a_killed_adoption_leaves_the_next_one_finishes(site: Moving, monkeypatch: pytest.MonkeyPatch, write: int
                                                             ) -> None:
    of_operator(site)
    site.api.objects["/api/v1/nodes/n2"]["metadata"]["labels"] = {**LABELS, "pool": "a"}
    wanted = changed(pool="a")
    assert killed_at(site, monkeypatch, write, wanted, adopted)
    assert adopted(site, wanted)["pending"] == []
    assert site.ended == ["job-n1", "driver-n1", "job-n3", "driver-n3"] and site.all_drivers() == [
        [], ["driver-n2"], []]


def test_other_operands_do_not_wait_for_the_last_node(site: Moving) -> None:
    """Those of the former namespace must not run in parallel with the new ones for long."""
    site.api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "old", "namespace": "s", "labels": objects.marks("dcgm")}}, {
            **account("nvidia-driver-old"), "metadata": {"name": "nvidia-driver-old", "namespace": "s",
                                                         "labels": objects.marks("driver")}})
    site.present(CHANGES["another namespace"])
    done = written(site)
    assert done.index("delete /api/v1/namespaces/s/configmaps/old") < done.index(
        "delete /api/v1/namespaces/s/pods/driver-n1") < done.index(
        "delete /api/v1/namespaces/s/serviceaccounts/nvidia-driver-old")


def test_a_node_that_is_passed_over_keeps_its_driver(site: Moving) -> None:
    site.budget = {"job-n2"}
    wanted = CHANGES["another name, and pods that are selected alike"]
    (pending,) = site.present(wanted, timeout=30)["pending"]
    assert pending["id"] == "delete: driver and MPS pods of n2" and site.drivers("n2") == ["driver-n2"]
    assert site.node("n2")["labels"][LABEL] == PAUSED and not site.node("n2").get("annotations")
    waiting = site.present(wanted, "never")["pending"]
    assert waiting[0]["id"] == "delete: Pod s/driver-n2" and site.drivers("n2") == ["driver-n2"]
    site.budget.clear()
    assert site.present(wanted)["pending"] == [] and site.as_before()
    assert site.drivers("n2") == ["precompiled-n2-new"]


def test_below_the_level_only_a_node_without_a_former_driver_gets_the_new_one(site: Moving) -> None:
    site.budget = {"job-n2", "job-n3"}
    wanted = CHANGES["another name"]
    site.present(wanted, timeout=30)
    del site.api.objects["/api/v1/namespaces/s/pods/driver-n3"]  # with its Node, that came back since
    site.present(wanted, "never")
    assert site.all_drivers() == [["named-n1-new"], ["driver-n2"], ["named-n3-new"]] and not site.twice
    assert [site.node(name)["labels"][LABEL] for name in NODES] == ["true", PAUSED, "true"]


def test_a_policy_that_is_turned_back_ends_no_driver_at_once(site: Moving) -> None:
    site.budget = {"job-n2", "job-n3"}
    site.present(CHANGES["another name"], timeout=30)
    site.budget.clear()
    assert site.present(changed())["pending"] == [] and site.as_before()
    assert site.all_drivers() == [[f"driver-{node}-new"] for node in NODES]
    assert not any("controller" in one for one in site.ended)


def test_a_new_driver_that_does_not_start_stops_the_run(site: Moving) -> None:
    site.unready = {"n1"}
    wanted = CHANGES["another namespace"]
    (problem,) = site.present(wanted, timeout=30)["problems"]
    assert re.search(r"Pod elsewhere/driver-n1-new is not Ready 30 s after.*n\[2-3\]: not changed", problem)
    assert REASON in site.node("n1")["annotations"] and site.node("n1")["annotations"][REMOVING] == "driver"
    assert NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned
    assert site.drivers("n2") == ["driver-n2"] and site.node("n2")["labels"][LABEL] == PAUSED
    # The next run tries it last.
    (problem,) = site.present(wanted, timeout=30)["problems"]
    assert "of n1 have not been removed or replaced. n1: Pod elsewhere/driver" in problem
    assert site.all_drivers()[1:] == [["driver-n2-new"], ["driver-n3-new"]]
    site.api.objects["/api/v1/namespaces/elsewhere/pods/driver-n1-new"]["status"]["conditions"][0]["status"] = "True"
    assert site.present(wanted)["pending"] == [] and site.as_before()


def two_kernels(site: Moving, foreign: bool = False) -> Object:
    """The DaemonSets of precompiled drivers select the same pods. foreign: whether the returned DaemonSet is
    foreign."""
    for name, nodes in (("driver", ("n1", "n2")), ("kernel-b", ("n3",))):
        for node in nodes:
            site.node(node)["labels"]["kernel"] = name
        one = daemon_set(name, DRIVER)
        one["spec"]["template"]["spec"]["nodeSelector"] = {LABEL: "true", "kernel": name}
        site.api.put({**copy.deepcopy(one), "metadata": {
            **one["metadata"], "uid": name, "labels": {} if foreign and name != "driver" else objects.marks("driver")},
                      "status": {"currentNumberScheduled": 1}})
    for node, name in (("n1", "driver"), ("n2", "driver"), ("n3", "kernel-b")):
        pod = site.api.objects[f"/api/v1/namespaces/s/pods/driver-{node}"]["metadata"]
        pod["ownerReferences"] = [{"kind": "DaemonSet", "controller": True, "uid": name}]
        pod["generateName"] = f"{name}-"
    return one


def test_a_kernel_without_nodes_goes_beside_one_that_stays(site: Moving) -> None:
    stays = two_kernels(site)
    for name in ("n1", "n2"):
        site.node(name)["labels"]["kernel"] = "kernel-b"  # rebooted into it, while their former pods still end
    done = site.present([account("nvidia-driver"), stays])
    assert done["pending"] == [] == done["problems"] and site.drivers("n3") == ["driver-n3"]
    assert site.all_drivers()[:2] == [["kernel-b-n1-new"], ["kernel-b-n2-new"]] and not site.twice


@pytest.mark.parametrize("foreign", [False, True])
def test_pods_that_a_daemon_set_that_stays_would_take_wait_at_every_level(site: Moving, foreign: bool) -> None:
    """A DaemonSet that adopts a pod without an owner ends it on a Node that it does not select."""
    stays = two_kernels(site, foreign)
    wanted = [*CHANGES["another name"], *([] if foreign else [stays])]
    for check in (True, False):
        done = site.present(wanted, check=check)
        ids = [one["id"] for one in done["pending"]]
        assert {"create: DaemonSet s/named", "delete: DaemonSet s/driver"} <= set(ids) and done["problems"] == []
        assert done["pending"][ids.index("delete: DaemonSet s/driver")]["pending_reason"] == (
            "DaemonSet s/kernel-b stays, and it would take the pods of DaemonSet s/driver and end them at once, as it "
            "selects them, too: all 2 pods of it would end")
        assert "gpu.deploy.driver=false" in done["warnings"][0] and not done["changed"]
    assert written(site) == [] and site.all_drivers() == [["driver-n1"], ["driver-n2"], ["driver-n3"]]
    # The way that the warning names.
    for name in ("n1", "n2"):
        site.node(name)["labels"][LABEL] = "false"
    site.api.requests.clear()
    assert site.present(wanted)["pending"] == [] and site.drivers("n3") == ["driver-n3"]
    assert "delete /apis/apps/v1/namespaces/s/daemonsets/driver" in written(site)


def test_an_adoption_names_the_way_for_pods_that_another_daemon_set_would_take(site: Moving) -> None:
    """The level is not the reason."""
    stays = two_kernels(site)
    of_operator(site)
    with pytest.raises(ClusterError, match="would take the pods of DaemonSet s/driver") as caught:
        adopted(site, [*changed(pool="a"), stays])
    assert "gpu.deploy.driver=false" in caught.value.hint and "gpu_disruption" not in caught.value.hint
    assert written(site) == []


def test_pods_that_two_successors_select_are_replaced(site: Moving) -> None:
    """If one of them were faster, it would end the pods of the other."""
    stays = two_kernels(site)
    wanted = copy.deepcopy([*changed(kernel="driver", pool="a"), stays])
    wanted[-1]["spec"]["template"]["spec"]["nodeSelector"]["pool"] = "a"
    site.node("n2")["labels"]["pool"] = "a"
    done = site.present(wanted)
    assert done["pending"] == [] == done["problems"] and not any("controller" in one for one in site.ended)
    assert site.all_drivers() == [[], ["driver-n2-new"], []] and not site.twice


def test_two_kernels_give_way_to_one_driver_node_by_node(site: Moving) -> None:
    """Both DaemonSets are removed, so neither adopts the pods of the other."""
    two_kernels(site)
    done = site.present(CHANGES["another name"])
    assert done["pending"] == [] == done["problems"] and not any("controller" in one for one in site.ended)
    assert site.ended == ["job-n1", "driver-n1", "job-n2", "driver-n2", "job-n3", "driver-n3"]
    assert site.all_drivers() == [[f"named-{node}-new"] for node in NODES]


def test_a_foreign_daemon_set_without_labels_takes_nothing() -> None:
    own = {**DRIVER, "app": "own"}
    assert not successors.selects({"spec": {"selector": {}}}, own)
    expression = {"key": "app", "operator": "In", "values": ["own"]}
    assert successors.selects({"spec": {"selector": {"matchExpressions": [expression]}}}, own)
    assert not successors.selects({"spec": {"selector": {"matchExpressions": [{**expression, "values": ["a"]}]}}}, own)


def test_a_driver_that_does_not_come_is_no_success_of_the_next_run(site: Moving) -> None:
    """For example because a webhook or a quota forbids it."""
    site.refused = {"n1"}
    wanted = CHANGES["another name"]
    for _run in range(2):
        assert "No driver pod was created on Node n1" in site.present(wanted, timeout=30)["problems"][0]
        assert NodeState.read(site.api.objects["/api/v1/nodes/n1"]).cordoned
        assert site.node("n1")["annotations"][REMOVING]
    site.refused.clear()
    assert site.present(wanted)["pending"] == [] and site.as_before()


def test_a_driver_has_the_time_that_its_probe_gives_it() -> None:
    one = daemon_set("driver", DRIVER)
    assert successors.time_to_start(one) == 0
    one["spec"]["template"]["spec"]["containers"] = [{"name": "a"}, {"name": "b", "startupProbe": {
        "initialDelaySeconds": 60, "periodSeconds": 10, "failureThreshold": 120}}]
    assert successors.time_to_start(one) == 1260


def test_a_former_driver_that_its_kubelet_has_refused_keeps_no_driver_away(site: Moving) -> None:
    """The kubelet restarted while its Node waited to be changed."""
    site.budget = {"job-n2"}
    wanted = CHANGES["another name"]
    site.present(wanted, timeout=30)
    site.api.objects["/api/v1/namespaces/s/pods/driver-n2"]["status"] = {"phase": "Failed"}
    done = site.present(wanted, "never")
    assert done["pending"] == [] and site.node("n2")["labels"][LABEL] == "true"
    assert "named-n2-new" in site.drivers("n2")


def killed_at(site: Moving, monkeypatch: pytest.MonkeyPatch, write: int, wanted: list[Object],
              run: Callable[[Moving, list[Object]], Object] = Moving.present) -> bool:
    """Whether a run was killed that is killed before this write."""
    wire: Any = site.client._wire  # pylint: disable=protected-access
    send, left = wire.send, [write]

    def deadly(verb: str, target: str, method: str, *words: Any, **more: Any) -> Any:
        if method != "GET" and "reviews" not in words[0]:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        return send(verb, target, method, *words, **more)

    monkeypatch.setattr(wire, "send", deadly)
    site.holder = GONE
    try:
        run(site, wanted)
    except Killed:
        return True
    finally:
        monkeypatch.setattr(wire, "send", send)
        site.holder = NOW
    return False


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("change", [*CHANGES][::2])
def test_what_a_killed_run_leaves_the_next_one_finishes(site: Moving, monkeypatch: pytest.MonkeyPatch, change: str,
                                                        back: bool) -> None:
    """Each driver ends only when its Node is changed, whether the policy stays or is reverted."""
    begin, write = copy.deepcopy(site.api.objects), int(back)
    last = changed() if back else CHANGES[change]
    name = last[-1]["metadata"]["name"]
    while killed_at(site, monkeypatch, write, CHANGES[change]):
        assert site.present(last)["pending"] == [] and site.as_before(), write
        assert not site.twice and not any("controller" in one for one in site.ended), write
        drivers = site.all_drivers()
        assert all(len(pods) == 1 and pods[0].startswith(name) for pods in drivers), write
        site.api.objects.clear()
        site.api.objects.update(copy.deepcopy(begin))
        site.ended.clear()
        write += 5
    assert write > 20


@pytest.mark.parametrize(("expressions", "runs"), [
    ([{"key": "pool", "operator": "In", "values": ["a", "b"]}], True),
    ([{"key": "pool", "operator": "In", "values": ["b"]}], False),
    ([{"key": "pool", "operator": "NotIn", "values": ["a"]}], False),
    ([{"key": "other", "operator": "NotIn", "values": ["a"]}], True),
    ([{"key": "pool", "operator": "Exists"}, {"key": "other", "operator": "DoesNotExist"}], True),
    ([{"key": "pool", "operator": "DoesNotExist"}], False),
    ([{"key": "count", "operator": "Gt", "values": ["7"]}], True),
    ([{"key": "count", "operator": "Lt", "values": ["8"]}], False),
    ([{"key": "pool", "operator": "Gt", "values": ["7"]}], False),
    ([], False),
])
def test_a_daemon_set_runs_where_its_affinity_holds(expressions: list[Object], runs: bool) -> None:
    one = changed()[-1]
    node = {"metadata": {"name": "n1", "labels": {LABEL: "true", "pool": "a", "count": "8"}}, "spec": {"taints": [
        {"key": "only", "effect": "NoSchedule"}]}}
    spec = one["spec"]["template"]["spec"]
    spec["tolerations"] = [{"key": "only", "operator": "Exists"}]
    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]},
        {"matchExpressions": expressions}]}}}
    assert successors.runs_on(one, node) == runs
    spec["tolerations"] = []
    assert not successors.runs_on(one, node) and successors.runs_on(one, node, ("NoExecute",)) == runs


LATE = "the maintenance windows are closed until Sat 2026-11-28 22:00 (UTC)"


def in_windows(site: Moving, closed: Callable[[], str], check: bool = False, level: str = "drain") -> Object:
    """Runs site.yml with a driver of another name. closed: why no Node is begun now."""
    return deliver.present(site.client, site.wanted(changed("named", app="new")), None, check, level=level,
                           terms=Terms(site.holder, closed=closed), tell=site.told.append)


def test_outside_of_the_windows_no_driver_pod_ends(site: Moving) -> None:
    """As at the level never; the reason is the window, if it is not the level."""
    before = in_windows(site, str, level="never")["pending"]
    found = in_windows(site, lambda: LATE)
    assert [one["id"] for one in found["pending"]] == [one["id"] for one in before] != []
    assert all(one["pending_reason"].startswith((LATE, "it follows ", f"{LATE}: it follows"))
               for one in found["pending"]), found["pending"]
    assert any(text.startswith("Pending: ") and LATE in text and "gpu_disruption" not in text
               for text in found["warnings"])
    assert found["problems"] == [] and site.ended == [] and site.all_drivers() == [[f"driver-{one}"] for one in NODES]
    assert "gpu_disruption is 'idle'" in str(in_windows(site, lambda: LATE, level="idle")["pending"])
    site.api.requests.clear()
    assert in_windows(site, lambda: LATE, check=True)["pending"] == found["pending"] and written(site) == []


def test_a_window_that_closes_leaves_the_nodes_that_have_not_begun(site: Moving) -> None:
    """They are in service with their former driver, which the next runs do not touch until a window opens."""
    found = in_windows(site, lambda: LATE if "driver-n1" in drained(site) else "")
    assert found["problems"] == [] and [(one["id"], one["pending_reason"]) for one in found["pending"]] == [
        (f"delete: driver and MPS pods of {name}", LATE) for name in ("n2", "n3")]
    assert drained(site) == ["job-n1", "driver-n1"] and not site.out_of_service() and site.twice == []
    assert site.all_drivers() == [["named-n1-new"], ["driver-n2"], ["driver-n3"]]
    again = in_windows(site, lambda: LATE)
    assert again["problems"] == [] and {one["id"] for one in again["pending"]} == {
        "delete: Pod s/driver-n2", "delete: Pod s/driver-n3"} and drained(site) == ["job-n1", "driver-n1"]
    done = in_windows(site, str)
    assert done["pending"] == done["problems"] == [] and site.twice == []
    assert site.all_drivers() == [[f"named-{name}-new"] for name in NODES]


def leaves(site: Moving, *names: str, level: str = "drain", check: bool = False, wanted: list[Object] | None = None,
           **more: Any) -> Object:
    """Runs site.yml with a plan in which these Nodes have no suitable driver any more, or have it on their hosts."""
    return deliver.present(site.client, site.wanted(changed() if wanted is None else wanted), None, check, level=level,
                           terms=Terms(site.holder, **more), tell=site.told.append, leaving={"driver": names})


def drained(site: Moving) -> list[str]:
    """The pods that have ended. The controller can end the pod of a Node whose label is paused before the run does."""
    return [one.removesuffix(" by its controller") for one in dict.fromkeys(site.ended)]


def test_drivers_of_nodes_that_lose_their_label_end_node_by_node(site: Moving) -> None:
    site.present(changed())
    for level in ("never", "idle"):
        assert not leaves(site, "n2", "n3", level=level)["changed"] and site.ended == []
    site.api.requests.clear()
    preview = leaves(site, "n2", "n3", check=True)
    assert written(site) == [] and preview["ended_on"] == ["n2", "n3"]
    done = leaves(site, "n2", "n3")
    assert done["plan"] == preview["plan"] and done["ended_on"] == ["n2", "n3"] and done["problems"] == []
    assert drained(site) == ["job-n2", "driver-n2", "job-n3", "driver-n3"]
    assert site.all_drivers() == [["driver-n1"], [], []] and not site.out_of_service()
    assert [site.node(name)["labels"][LABEL] for name in NODES] == ["true", PAUSED, PAUSED]
    steps = [one["id"] for one in done["plan"]]
    assert steps[:6] == [
        "hold: Node n2", "cordon: Node n2", "evict: Pod work/job-n2", "pause: device-plugin on Node n2",
        "pause: driver on Node n2", "delete: Pod s/driver-n2"]
    # The task gpu_labels takes the label; until then the driver does not come back.
    assert not leaves(site, "n2", "n3")["changed"] and not leaves(site, "n2", "n3", level="never")["changed"]


def test_a_driver_of_another_namespace_ends_with_its_label_and_a_pod_without_one_stays(site: Moving) -> None:
    """The driver of a former operator, whose DaemonSet is foreign."""
    site.present(changed())
    for name, owners in (("theirs", [{"kind": "DaemonSet", "controller": True, "uid": "x"}]), ("bare", [])):
        site.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "namespace": "former", "labels": {**DRIVER, "app": "x"}, "ownerReferences": owners},
            "spec": {"nodeName": "n2", "containers": []}})
    assert leaves(site, "n2")["ended_on"] == ["n2"] and set(drained(site)[1:]) == {"driver-n2", "theirs"}
    assert site.drivers("n2") == ["bare"]


def test_a_run_of_other_components_leaves_the_drivers_of_such_nodes(shared: Shared) -> None:
    """As with --tags: the label stays until a run includes the driver."""
    def run(*components: str, check: bool = False) -> Object:
        wanted = [one for one in shared.wanted(changed()) if one.component in components]
        return deliver.present(shared.client, wanted, components, check, terms=Terms(shared.holder), level="drain",
                               leaving={"driver": ["n1", "n3"], "device_plugin": ["n1", "n2"]})

    assert not run("dcgm")["changed"] and run("dcgm")["ended_on"] == [] and shared.ended == []
    for components, ended_on in ((("device_plugin",), ["n2"]), (("device_plugin", "driver"), ["n1", "n2", "n3"])):
        preview, done = run(*components, check=True), run(*components)
        assert preview["ended_on"] == done["ended_on"] == ended_on and done["plan"] == preview["plan"]
        assert ("job-n3" in shared.ended) == ("driver-n3" in shared.ended) == ("driver" in components)
    assert shared.mps() == [[], [], []]


def test_a_node_that_is_skipped_keeps_its_label(site: Moving) -> None:
    site.present(changed())
    site.budget = {"job-n2"}
    done = leaves(site, "n2", "n3", timeout=30)
    assert done["ended_on"] == ["n3"] and [one["id"] for one in done["pending"]] == [
        "delete: driver and MPS pods of n2"] and done["problems"]
    assert site.drivers("n2") == ["driver-n2"] and site.node("n2")["labels"][LABEL] == "true"


@pytest.mark.parametrize("wanted", [[], CHANGES["another name"], CHANGES["another namespace"]])
def test_a_node_loses_its_label_while_drivers_move_or_go(site: Moving, wanted: list[Object]) -> None:
    site.present(changed())
    preview = leaves(site, "n2", wanted=wanted, check=True)
    done = leaves(site, "n2", wanted=wanted)
    assert done["plan"] == preview["plan"] and done["ended_on"] == ["n2"] and done["problems"] == []
    assert site.ended == ["job-n1", "driver-n1", "job-n2", "driver-n2", "job-n3", "driver-n3"] and not site.twice
    assert [len(one) for one in site.all_drivers()] == ([1, 0, 1] if wanted else [0, 0, 0])
    assert site.node("n2")["labels"][LABEL] == PAUSED


@pytest.mark.parametrize("write", range(0, 7))
def test_labels_that_a_killed_run_was_about_to_take(site: Moving, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    site.present(changed())
    assert killed_at(site, monkeypatch, write, [], lambda site, _wanted: leaves(site, "n2"))
    done = leaves(site, "n2")
    assert done["ended_on"] == ["n2"] and done["problems"] == [] and drained(site) == ["job-n2", "driver-n2"]
    assert site.all_drivers() == [["driver-n1"], [], ["driver-n3"]] and not site.out_of_service()
    assert site.node("n2")["labels"][LABEL] == PAUSED and not site.node("n2").get("annotations")


def test_pods_that_another_daemon_set_would_take_end_on_nodes_that_lose_their_label(site: Moving) -> None:
    """The pods end with the label, and then the DaemonSet can be removed, too."""
    wanted = [account("nvidia-driver"), two_kernels(site)]
    done = leaves(site, "n1", "n2", wanted=wanted)
    assert done["ended_on"] == ["n1", "n2"] and "delete: DaemonSet s/driver" in [one["id"] for one in done["pending"]]
    assert drained(site) == ["job-n1", "driver-n1", "job-n2", "driver-n2"] and site.drivers("n3") == ["driver-n3"]
    assert leaves(site, "n1", "n2", wanted=wanted)["pending"] == [] and site.drivers("n3") == ["driver-n3"]


class Shared(Moving):
    """The same cluster with MPS daemons on n1 and n2."""

    kinds = (MPS,)

    def __init__(self, api: ApiServer, client: Client) -> None:
        super().__init__(api, client)
        self.pod("mps-n2", "n2", objects.MPS_DAEMON, MPS)
        for name in NODES:
            api.objects[f"/api/v1/nodes/{name}"]["metadata"]["labels"] = {
                **LABELS, **({"mps": "true"} if name != "n3" else {})}
        for one in self.wanted([]):
            if one.kind.kind == "DaemonSet":
                path = f"/apis/apps/v1/namespaces/s/daemonsets/{one.manifest['metadata']['name']}"
                api.objects[path]["spec"]["template"]["spec"]["nodeSelector"] = self.selector(one.manifest)
        self.present(changed())
        api.requests.clear()

    @staticmethod
    def selector(manifest: Object) -> dict[str, str]:
        shares = {"mps": "true"} if manifest["metadata"]["name"] == objects.MPS_DAEMON else {}
        return {"nvidia.com/gpu.deploy.device-plugin": "true", **shares}

    @classmethod
    def wanted(cls, driver: list[Object], space: str = "s") -> list[objects.Wanted]:  # type: ignore[override]
        """Everything in this namespace, except for the driver."""
        items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}, account("plugin"),
                 daemon_set("device-plugin", {"app": "plugin"}), daemon_set(objects.MPS_DAEMON, MPS)]
        for one in items[1:]:
            one["metadata"]["namespace"] = space
            if one["kind"] == "DaemonSet":
                one["spec"]["template"]["spec"]["nodeSelector"] = cls.selector(one)
                one["spec"]["updateStrategy"] = {"type": "OnDelete"}
        return objects.wanted({"driver": driver, "device_plugin": items})

    def moved(self, level: str = "drain", check: bool = False, **more: Any) -> Object:
        return deliver.present(self.client, self.wanted(changed(), "elsewhere"), None, check, level=level,
                               terms=Terms(self.holder, **more), tell=self.told.append)

    def mps(self) -> list[list[str]]:
        return [self.of(MPS, name) for name in NODES]


PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
AWAY = "paused-for-mps-daemon"


@pytest.fixture
def shared(api: ApiServer, client: Client) -> Shared:
    return Shared(api, client)


def test_mps_daemons_that_move_are_replaced_node_by_node(shared: Shared) -> None:
    for level in ("never", "idle"):
        pending = [one["id"] for one in shared.moved(level)["pending"]]
        assert {f"delete: DaemonSet s/{objects.MPS_DAEMON}",
                f"create: DaemonSet elsewhere/{objects.MPS_DAEMON}"} <= set(pending)
        assert shared.mps() == [["mps-n1"], ["mps-n2"], []] and not shared.twice
    shared.api.requests.clear()
    preview = shared.moved(check=True)
    assert written(shared) == []
    done = shared.moved()
    assert done["pending"] == [] == done["problems"] and done["plan"] == preview["plan"]
    assert [one for one in shared.ended if "plugin" not in one] == ["job-n1", "mps-n1", "job-n2", "mps-n2"]
    name = objects.MPS_DAEMON
    assert shared.mps() == [[f"{name}-n1-new"], [f"{name}-n2-new"], []] and not shared.twice
    assert [shared.node(one)["labels"][PLUGIN] for one in NODES] == ["true"] * 3
    assert not any(shared.node(one).get("annotations") for one in NODES)
    steps = [one["id"] for one in done["plan"]]
    at = steps.index("hold: Node n1")
    assert steps[0] == f"delete: DaemonSet s/{name}" and "pause: device-plugin on Node n2" in steps[:at]
    assert steps[at:at + 6] == [
        "hold: Node n1", "cordon: Node n1", "evict: Pod work/job-n1", "delete: Pod s/mps-n1", "uncordon: Node n1",
        "release: Node n1"]
    shared.api.requests.clear()
    assert not shared.moved()["changed"] and shared.api.sent() == []


def test_an_mps_daemon_of_a_node_that_is_skipped_keeps_its_clients(shared: Shared) -> None:
    shared.budget = {"job-n2"}
    (pending,) = shared.moved(timeout=30)["pending"]
    assert pending["id"] == "delete: driver and MPS pods of n2" and shared.mps()[1] == ["mps-n2"]
    assert shared.node("n2")["labels"][PLUGIN] == AWAY and not shared.node("n2").get("annotations")
    waiting = shared.moved("idle")["pending"]
    assert [one["id"] for one in waiting] == ["delete: Pod s/mps-n2"] and shared.mps()[1] == ["mps-n2"]
    shared.budget.clear()
    assert shared.moved()["pending"] == []
    assert shared.mps()[1] == [f"{objects.MPS_DAEMON}-n2-new"] and not shared.twice
    assert shared.node("n2")["labels"][PLUGIN] == "true"


def test_a_new_mps_daemon_that_does_not_start_stops_the_run(shared: Shared) -> None:
    shared.unready = {"n1"}
    (problem,) = shared.moved(timeout=30)["problems"]
    assert re.search(rf"Pod elsewhere/{objects.MPS_DAEMON}-n1-new is not Ready 30 s after.*n2: not changed", problem)
    assert shared.mps()[1] == ["mps-n2"] and "job-n2" in shared.pods()


@pytest.mark.parametrize("write", range(0, 22, 2))
def test_mps_daemons_that_a_killed_run_leaves(shared: Shared, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    def run(site: Moving, wanted: list[Object]) -> Object:
        return Shared.moved(shared)

    assert killed_at(shared, monkeypatch, write, [], run)
    assert shared.moved()["pending"] == [] and not shared.twice
    name = objects.MPS_DAEMON
    assert shared.mps() == [[f"{name}-n1-new"], [f"{name}-n2-new"], []]
    assert [one for one in shared.ended if "plugin" not in one] == ["job-n1", "mps-n1", "job-n2", "mps-n2"]
    assert [shared.node(one)["labels"][PLUGIN] for one in NODES] == ["true"] * 3


@pytest.mark.parametrize("write", range(0, 24, 3))
def test_nodes_that_wait_for_an_mps_daemon_which_is_not_wanted_any_more(
        shared: Shared, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    """A run that moves MPS daemons was killed, and then the plan shares no GPUs by MPS any more."""
    def run(site: Moving, wanted: list[Object]) -> Object:
        return Shared.moved(shared)

    assert killed_at(shared, monkeypatch, write, [], run)
    wanted = [one for one in shared.wanted(changed(), "elsewhere")
              if one.manifest["metadata"]["name"] != objects.MPS_DAEMON]

    def without(check: bool = False) -> Object:
        return deliver.present(shared.client, wanted, None, check, level="drain", terms=Terms(shared.holder),
                               tell=shared.told.append)

    preview = without(check=True)
    done = without()
    assert done["plan"] == preview["plan"] and done["pending"] == []
    assert shared.mps() == [[], [], []]
    assert [shared.node(one)["labels"][PLUGIN] for one in NODES] == ["true"] * 3
    assert not any(shared.node(one).get("annotations") for one in NODES)
    assert not without()["changed"]


@pytest.mark.parametrize("write", range(0, 6))
def test_below_the_level_no_mps_daemon_comes_beside_one_that_a_killed_run_leaves(
        shared: Shared, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    def run(site: Moving, wanted: list[Object]) -> Object:
        return Shared.moved(shared)

    assert killed_at(shared, monkeypatch, write, [], run)
    for level in ("never", "idle"):
        assert {"delete: Pod s/mps-n1", f"delete: DaemonSet s/{objects.MPS_DAEMON}"} & {
            one["id"] for one in shared.moved(level)["pending"]}
        shared.controller()
        assert shared.mps() == [["mps-n1"], ["mps-n2"], []] and not shared.twice
    assert shared.moved()["pending"] == [] and not shared.twice


@pytest.mark.parametrize("write", [1, 3, 6, 9, 11, 12, 13, 16, 21])
def test_mps_daemons_go_on_if_their_move_is_turned_back(shared: Shared, monkeypatch: pytest.MonkeyPatch, write: int
                                                        ) -> None:
    """They belong to their DaemonSet again, which would end them on Nodes that it does not select."""
    def run(site: Moving, wanted: list[Object]) -> Object:
        return Shared.moved(shared)

    def back(level: str = "drain", check: bool = False) -> Object:
        return deliver.present(shared.client, shared.wanted(changed()), None, check, level=level,
                               terms=Terms(shared.holder), tell=shared.told.append)

    assert killed_at(shared, monkeypatch, write, [], run)
    there = shared.mps()
    back("idle")
    shared.controller()
    assert [before for before, now in zip(there, shared.mps()) if not set(before) <= set(now)] == []
    preview, done = back(check=True), back()
    shared.controller()
    assert done["plan"] == preview["plan"] and done["pending"] == [] == done["problems"] and not shared.twice
    assert not any(one.startswith("mps") and "controller" in one for one in shared.ended)
    assert [len(one) for one in shared.mps()] == [1, 1, 0] and not back()["changed"]
    assert [shared.node(one)["labels"][PLUGIN] for one in NODES] == ["true"] * 3
