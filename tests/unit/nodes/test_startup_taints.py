# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The startup taint: the Nodes from which it is removed; other taints stay."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check, Problem
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import startup_taints
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.checks import verified
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import one_by_one

KEY = "startup-taint.cluster-autoscaler.kubernetes.io/gpu"
OURS = {"key": KEY, "value": "true", "effect": "NoSchedule"}
THEIRS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
Object = dict[str, Any]


def node(name: str, *taints: Object, ready: str = "True", **resources: str) -> Object:
    """A Node that offers eight GPUs, or these resources."""
    offered = {f"nvidia.com/{key}": count for key, count in (resources or {"gpu": "8"}).items()}
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"taints": list(taints)} if taints else {},
            "status": {"allocatable": {"cpu": "8", **offered}, "conditions": [{"type": "Ready", "status": ready}]}}


class Server:
    """Nodes in memory. races: how often another client writes before our patch."""

    def __init__(self, *nodes: Object) -> None:
        self.server = "https://lab"
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self.asked: list[str] = []
        self.races = 0

    def list(self, api_version: str, kind: str) -> list[Object]:
        """All Nodes."""
        self.asked.append("list")
        return copy.deepcopy(list(self.nodes.values()))

    def get(self, api_version: str, kind: str, name: str) -> Object:
        """One of them."""
        return copy.deepcopy(self.nodes[name])

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: None, body: Object) -> None:
        """Applies a patch; refuses it if the resourceVersion differs."""
        one = self.nodes[name]
        if self.races:
            self.races -= 1
            one["spec"]["taints"] = [THEIRS, *one["spec"]["taints"]]
            one["metadata"]["resourceVersion"] += "1"
        if body["metadata"]["resourceVersion"] != one["metadata"]["resourceVersion"]:
            raise ClusterError("Conflict.", status=409)
        self.asked.append(f"patch {name}")
        one["spec"] = {key: value for key, value in {**one["spec"], **body["spec"]}.items() if value is not None}

    many = staticmethod(one_by_one)


def run(monkeypatch: pytest.MonkeyPatch, server: Server, names: list[str] | None, state: str = "absent",
        check: bool = False, unready: tuple[str, ...] = (), taint: str | None = KEY) -> Object:
    """Runs the task."""
    monkeypatch.setattr(startup_taints, "Client", lambda kubeconfig, context: server)
    return startup_taints.release({"state": state, "taint": taint, "nodes": names, "kubeconfig": "k",
                                   "context": None}, check, unready)


def test_one_patch_for_each_that_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other Nodes keep the taint: not verified, host not as planned, no GPU offered. Other taints always stay."""
    server = Server(node("a", THEIRS, OURS), node("b", OURS), node("c", OURS), node("d", OURS, gpu="0"),
                    node("e", THEIRS), node("f", OURS))
    before = copy.deepcopy(server.nodes)
    names = ["a", "b", "d", "e", "f"]
    said = run(monkeypatch, server, names, check=True, unready=("f",))
    assert server.nodes == before
    assert run(monkeypatch, server, names, unready=("f",)) == said
    assert server.asked == ["list", "list", "patch a", "patch b"]
    assert server.nodes["a"]["spec"] == {"taints": [THEIRS]} and server.nodes["b"]["spec"] == {}
    assert all(server.nodes[name] == before[name] for name in "cdef")
    assert said["untainted"] == ["a", "b"] and said["tainted"] == ["c", "d", "f"]
    assert [note.split(":")[0] for note in said["notes"]] == ["d", "c, f"]
    assert "daemonsets.tolerations" in said["notes"][0]
    assert [entry["after_header"] for entry in said["diff"]] == ["Nodes a, b"]
    again = run(monkeypatch, server, names, unready=("f",))
    assert not again["changed"] and again["untainted"] == []
    assert run(monkeypatch, server, None, "gathered")["tainted"] == ["c", "d", "f"]


def test_a_node_that_cannot_serve_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of its kubelet is old, the Node is being removed, or the offered resources are network cards."""
    leaving = node("b", OURS)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T07:00:00Z"
    server = Server(node("a", OURS, ready="Unknown"), leaving, node("c", OURS, hostdev="8"),
                    node("d", OURS, **{"mig-1g.10gb": "7", "gpu": "0"}))
    said = run(monkeypatch, server, list("abcd"))
    assert said["untainted"] == ["d"] and said["tainted"] == ["a", "b", "c"]
    assert [note.split(",")[:2] for note in said["notes"]] == [
        ["a", " b: the Node is not Ready or is being removed"],
        ["c: the kubelet offers no GPU (nvidia.com/gpu", " nvidia.com/mig-...)"]]


def test_a_taint_that_comes_meanwhile_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(node("a", OURS))
    server.races = 2
    assert run(monkeypatch, server, ["a"])["untainted"] == ["a"]
    assert server.nodes["a"]["spec"]["taints"] == [THEIRS, THEIRS] and server.asked == ["list", "patch a"]


def test_a_node_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(node("a", OURS), node("b", OURS))
    server.races = 20
    result = run(monkeypatch, server, ["a", "b"])
    assert result["failed"] and list(result["failures"]) == ["a"] and result["untainted"] == ["b"]
    assert result["tainted"] == ["a"]


@pytest.mark.parametrize("state, taint, names, path", [
    ("absent", None, ["a"], "taint"), ("absent", f"{KEY}=true:NoSchedule", ["a"], "taint"),
    ("gathered", f"{KEY}:NoSchedule", None, "taint"), ("present", KEY, ["a"], "state"), ("absent", KEY, None, "nodes")])
def test_refused(monkeypatch: pytest.MonkeyPatch, state: str, taint: str | None, names: list[str] | None,
                 path: str) -> None:
    server = Server(node("a", OURS))
    with pytest.raises(InputError) as caught:
        run(monkeypatch, server, names, state, taint=taint)
    assert caught.value.details["path"] == path and server.asked == []


def check(ok: bool, *nodes: str, desired: int = 3, ready: int = 3) -> Check:
    """A check of a component."""
    return Check("driver", ok, desired=desired, ready=ready, nodes=[Problem(node=name) for name in nodes])


@pytest.mark.parametrize("checks, expected", [
    ([check(True)], ["a", "b", "c"]), ([check(True), check(False, "b", ready=2)], ["a", "c"]),
    ([check(False, "b", ready=1)], []), ([check(False, desired=0, ready=0)], []), ([check(False, "", ready=2)], []),
    ([check(False, "a"), check(False, "c", "cpu", ready=1)], ["b"])])
def test_nodes_are_verified_by_what_is_not_said_of_them(checks: list[Check], expected: list[str]) -> None:
    """A missing pod without a name can be on any of them."""
    assert verified(["a", "b", "c"], checks) == expected


def test_a_node_whose_host_is_not_as_planned_is_not_ready() -> None:
    """Nor is a Node that was not checked in this run."""
    class HostVars(dict[str, Any]):
        def raw_get(self, host: str) -> Any:
            return self[host]

    hosts = HostVars({"a": {"preflight_checked": {"checks": [{"ok": True}]}},
                      "b": {"preflight_checked": {"checks": [{"ok": True}, {"ok": False}]}, "gpu_node_name": "node-b"},
                      "c": {}, "d": {"preflight_checked": {"skipped": True}}})
    assert inventory_vars.unready_nodes({"groups": {"gpu_hosts": list(hosts)}, "hostvars": hosts}) == {"node-b", "c"}
