# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The labels of MIG: what is paused and resumed, which states are set, what is left to the vendor's manager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.mig_protocol import Protocol, Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock, one_by_one

Object = dict[str, Any]
D, CONFIG, STATE = "nvidia.com/gpu.deploy.", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
PLUGIN, GFD, DCGM, MANAGER = f"{D}device-plugin", f"{D}gpu-feature-discovery", f"{D}dcgm-exporter", f"{D}mig-manager"
LABELS = {PLUGIN: "true", GFD: "false", DCGM: "paused-for-driver-upgrade", f"{D}driver": "true",
          f"{D}client": "true", CONFIG: "all-1g.10gb", "example.com/rack": "7"}


class Server:
    """An API server in memory. each: called with the number of the request before every read of a Node."""

    server = "https://lab"

    def __init__(self, each: Callable[[Server, int], None] = lambda server, look: None,
                 **nodes: dict[str, str]) -> None:
        self.labels = {name: dict(labels) for name, labels in nodes.items()}
        self.annotations: dict[str, dict[str, str]] = {name: {} for name in nodes}
        self.sets: list[Object] = []
        self.pods: list[Object] = []
        self.each, self.looks = each, 0
        self.writes: list[str] = []
        self.clock = Clock()

    def get(self, api_version: str, kind: str, name: str) -> Object | None:
        self.looks += 1
        self.each(self, self.looks)
        if name not in self.labels:
            return None
        return {"metadata": {"name": name, "resourceVersion": str(len(self.writes)), "labels": dict(self.labels[name]),
                             "annotations": dict(self.annotations[name])}}

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: None, body: Object) -> None:
        assert body["metadata"]["resourceVersion"] == str(len(self.writes))
        self.writes.append(name)
        for part, kept in (("labels", self.labels[name]), ("annotations", self.annotations[name])):
            for key, value in body["metadata"].get(part, {}).items():
                kept.pop(key, None)
                if value is not None:
                    kept[key] = value

    def list(self, api_version: str, kind: str, **words: Any) -> list[Object]:
        if kind == "Node":
            return [item for item in (self.get("v1", "Node", name) for name in self.labels)
                    if item and item["metadata"]["labels"].get(MANAGER) == "true"]
        return self.sets if kind == "DaemonSet" else [
            one for one in self.pods
            if words["field_selector"] == f"spec.nodeName={one['spec']['nodeName']}"]

    many = staticmethod(one_by_one)

    def run(self, state: str, *names: str, tell: Callable[[str], None] = lambda line: None, **more: Any) -> Object:
        """Runs the task."""
        protocol = Protocol(self, Request(names, **{"level": "idle", **more}), tell, self.clock, self.clock.sleep)  # type: ignore[arg-type]
        result: Object = getattr(protocol, state)()
        return result


def ids(result: Object) -> list[str]:
    return [step["id"] for step in result["plan"]]


def test_only_what_runs_is_paused_and_comes_back() -> None:
    server = Server(n1=LABELS)
    result = server.run("changing", "n1")
    assert server.labels["n1"] == {**LABELS, PLUGIN: mig_labels.PAUSED, f"{D}client": mig_labels.PAUSED,
                                   STATE: "pending"}
    assert ids(result) == ["set MIG state: pending on Node n1", "pause: device-plugin on Node n1",
                           "pause: client on Node n1"]
    assert server.writes == ["n1"]  # one patch
    assert not server.run("changing", "n1")["changed"] and server.writes == ["n1"]
    assert server.run("gathered", "n1")["nodes"]["n1"] == {
        "layout": "all-1g.10gb", "state": "pending", "paused": ["device-plugin", "client"], "reason": "",
        "unfinished": True, "managed": False}
    result = server.run("settled", "n1")
    assert server.labels["n1"] == {**LABELS, STATE: "success"}
    assert ids(result) == ["set MIG state: success on Node n1", "resume: device-plugin on Node n1",
                           "resume: client on Node n1"]
    assert not server.run("settled", "n1")["changed"] and len(server.writes) == 2


def test_operands_that_somebody_else_has_paused_are_no_matter() -> None:
    server = Server(n1=LABELS)
    assert ids(server.run("changing", "n1", pause=False)) == ["set MIG state: pending on Node n1"]
    assert server.labels["n1"] == {**LABELS, STATE: "pending"}


def test_check_names_the_steps_of_the_whole_run_and_writes_nothing() -> None:
    for before in ({}, {STATE: "success"}, {STATE: "failed"}):
        preview, server = Server(n1={**LABELS, **before}), Server(n1={**LABELS, **before})
        first = preview.run("changing", "n1", layout="all-2g.20gb", check=True)
        second = preview.run("settled", "n1", check=True, seen=first["labels"])
        assert not preview.writes
        assert ids(first) == ids(server.run("changing", "n1", layout="all-2g.20gb"))
        assert ids(second) == ids(server.run("settled", "n1"))
        assert server.labels["n1"] == {**LABELS, CONFIG: "all-2g.20gb", STATE: "success"}


def test_a_failure_says_why_until_it_succeeds() -> None:
    server = Server(n1=LABELS)
    server.run("changing", "n1")
    result = server.run("settled", "n1", outcome="failed", reason="GPU 0 is busy:\n  pid 7")
    assert server.labels["n1"] == {**LABELS, STATE: "failed"}
    assert server.annotations["n1"] == {"gpuops.nvidia/mig-reason": "GPU 0 is busy: pid 7"}
    assert "resume: device-plugin on Node n1" in ids(result)
    again = server.run("settled", "n1", outcome="failed", reason="another")
    assert ids(again) == ["write the reason: Node n1"]
    server.run("settled", "n1", outcome="failed", reason="x" * 5000)
    assert len(server.annotations["n1"]["gpuops.nvidia/mig-reason"]) == 1000
    server.run("settled", "n1")
    assert server.annotations["n1"] == {}


def test_operands_are_waited_for_by_who_owns_them() -> None:
    def each(server: Server, look: int) -> None:
        if server.clock.now > 105:
            server.pods[:] = server.pods[1:]

    server = Server(each, n1=LABELS)
    server.sets = [{"metadata": {"uid": uid}, "spec": {"template": {"spec": {"nodeSelector": {key: "true"}}}}}
                   for uid, key in (("u1", PLUGIN), ("u2", f"{D}driver"), ("u3", GFD))]
    server.pods = [{"metadata": {"namespace": "ops", "name": f"p-{uid}", "uid": uid, "ownerReferences": [{"uid": uid}]},
                    "spec": {"nodeName": "n1"}} for uid in ("u1", "u2", "u3")]
    server.run("changing", "n1")
    assert 105 < server.clock.now < 110
    server.pods = [{"metadata": {"namespace": "ops", "name": "p-u1", "uid": "p", "ownerReferences": [{"uid": "u1"}]},
                    "spec": {"nodeName": "n1"}}]
    server.each = lambda server, look: None
    with pytest.raises(ClusterError, match="Operands did not end within 30 seconds: ops/p-u1"):
        server.run("changing", "n1", timeout=30)


def test_two_writers_are_refused() -> None:
    server = Server(n1={**LABELS, MANAGER: "true"}, n2=LABELS)
    for state in ("changing", "settled"):
        with pytest.raises(InputError, match="MIG manager serves n1"):
            server.run(state, "n1")
    with pytest.raises(InputError, match="serves n2"):
        server.run("requested", "n2", layout="all-1g.10gb")
    assert not server.writes


def test_a_change_holds_its_node_until_it_is_settled() -> None:
    server, me = Server(n1=LABELS), Holder("here", 8, 8, 1_000_000)
    server.run("changing", "n1", holder=me)
    assert server.annotations["n1"] == {HELD: me.text} and server.writes == ["n1"]  # one patch
    # Another task of the run comes later, and holds it already.
    later = Holder("here", 8, 8, 1_000_060)
    assert not server.run("changing", "n1", holder=later)["changed"] and server.writes == ["n1"]
    for state in ("changing", "settled", "recovered"):
        with pytest.raises(ClusterError, match="Node n1 is held by another run"):
            server.run(state, "n1", holder=Holder("elsewhere", 8, 8, 1_000_000))
    server.run("settled", "n1", holder=later, outcome="failed", reason="x", release=False)
    assert server.annotations["n1"] == {HELD: me.text, mig_labels.REASON: "x"}
    server.run("settled", "n1", holder=later)
    assert server.annotations["n1"] == {} and server.labels["n1"] == {**LABELS, STATE: "success"}


def test_only_what_a_killed_run_left_is_recovered() -> None:
    """The annotation of the killed run stays, because that run can have taken the Node out of service, too. The
    vendor's manager may be working on the Node."""
    gone, me = Holder("elsewhere", 7, 7, 1_000_000), Holder("here", 8, 8, 2_000_000)
    server = Server(n1={**LABELS, STATE: "pending", PLUGIN: mig_labels.PAUSED}, n2={**LABELS, STATE: "success"},
                    n3=LABELS,
                    n4={**LABELS, STATE: "pending", MANAGER: "true"},
                    n5={**LABELS, STATE: "rebooting", MANAGER: "true"})
    server.annotations["n1"] = {HELD: gone.text}
    preview = server.run("recovered", *server.labels, holder=me, outcome="failed", reason="killed", check=True)
    result = server.run("recovered", *server.labels, holder=me, outcome="failed", reason="killed")
    assert ids(result) == ids(preview) and server.writes == ["n1"]
    assert server.labels["n1"] == {**LABELS, STATE: "failed"}
    assert server.annotations["n1"] == {HELD: gone.text, mig_labels.REASON: "killed"}
    assert not server.run("recovered", "n1", holder=me, outcome="failed", reason="killed")["changed"]
    # A state of a MIG manager that no longer serves the Node.
    server.labels["n3"] = {**LABELS, STATE: "rebooting"}
    server.run("recovered", "n3", holder=me, outcome="failed", reason="killed")
    assert server.labels["n3"] == {**LABELS, STATE: "failed"}


def test_no_layout_and_no_node() -> None:
    server = Server(n1={})
    with pytest.raises(InputError, match="No layout is requested for Node n1"):
        server.run("changing", "n1")
    with pytest.raises(InputError, match="no Node n9"):
        server.run("gathered", "n9")


def test_a_wish_that_came_meanwhile_stays() -> None:
    server = Server(n1={**LABELS, CONFIG: "all-3g.40gb"})
    with pytest.raises(ClusterError, match="Node n1 now requests all-3g.40gb"):
        server.run("changing", "n1", layout="all-1g.10gb", expected="all-1g.10gb")
    assert not server.writes
    server.labels["n1"][CONFIG] = "all-1g.10gb"
    server.run("changing", "n1", layout="all-1g.10gb", expected="all-1g.10gb")
    server.labels["n1"][CONFIG] = "all-3g.40gb"
    with pytest.raises(ClusterError, match="now requests all-3g.40gb"):
        server.run("settled", "n1", layout="all-1g.10gb", expected="all-1g.10gb")
    assert server.labels["n1"][STATE] == "pending"
    server.run("settled", "n1", layout="all-1g.10gb", expected="all-1g.10gb", outcome="failed", reason="it is")
    assert server.labels["n1"] == {**LABELS, CONFIG: "all-3g.40gb", STATE: "failed"}
    del server.labels["n1"][CONFIG]
    with pytest.raises(ClusterError, match="now requests no layout"):
        server.run("settled", "n1", layout="all-1g.10gb", expected="all-1g.10gb")
    # What the variable of a run asks for replaces what stood there when it began.
    server.run("changing", "n1", layout="all-2g.20gb", expected="")
    server.run("settled", "n1", layout="all-2g.20gb", expected="")
    assert server.labels["n1"] == {**LABELS, CONFIG: "all-2g.20gb", STATE: "success"}


# -- the vendor's manager

MANAGED = {MANAGER: "true", CONFIG: "all-disabled", STATE: "success"}


def worker(server: Server, look: int) -> None:
    """Simulates the manager: it starts a request after three reads and completes it after three more; a layout named
    bad fails."""
    for labels in server.labels.values():
        if MANAGER not in labels:
            continue
        now = labels.get(STATE)
        if look % 3 == 0 and now is None:
            labels[STATE] = "pending"
        elif look % 3 == 0 and now == "pending":
            labels[STATE] = "failed" if labels[CONFIG] == "bad" else "success"


def test_the_manager_is_asked_and_seen_to_the_end() -> None:
    server, lines = Server(worker, n1=MANAGED, n2=MANAGED, n3={CONFIG: "other"}), []
    preview = server.run("requested", layout="all-1g.10gb", check=True)
    assert not server.writes
    result = server.run("requested", layout="all-1g.10gb", tell=lines.append)
    assert result["plan"] == preview["plan"] and result["done"] == ["n1", "n2"]
    assert ids(result) == ["request layout: all-1g.10gb on Node n1", "request layout: all-1g.10gb on Node n2"]
    assert server.writes == ["n1", "n2"] and server.labels["n3"] == {CONFIG: "other"}
    again = server.run("requested", layout="all-1g.10gb")
    assert not again["changed"] and again["done"] == ["n1", "n2"] and len(server.writes) == 2


def test_below_idle_no_other_layout_is_asked_for() -> None:
    """The manager would destroy instances. A Node that already has this request is followed until its end."""
    server = Server(worker, n1=MANAGED, n2={**MANAGED, CONFIG: "all-1g.10gb", STATE: "pending"}, n3=MANAGED)
    for check in (True, False):
        result = server.run("requested", layout="all-1g.10gb", level="never", check=check)
        assert not server.writes and not result["changed"] and "failed" not in result
        assert [(one["id"], one["pending_reason"]) for one in result["pending"]] == [
            (f"request layout: all-1g.10gb on Node {name}", "gpu_disruption is 'never', this needs 'idle' or higher")
            for name in ("n1", "n3")]
    assert result["done"] == ["n2"]
    result = server.run("requested", level="never")
    assert not result["pending"] and result["done"] == ["n1", "n2", "n3"] and not server.writes


def test_a_failed_node_stops_further_ones_and_says_what_to_do() -> None:
    server = Server(worker, n1=MANAGED, n2=MANAGED, n3=MANAGED)
    server.pods = [{"metadata": {"name": "manager-x"}, "spec": {"nodeName": "n1"}}]
    result = server.run("requested", layout="bad")
    assert result["failed"] and result["failed_nodes"] == ["n1"] and result["left"] == ["n2", "n3"]
    assert server.labels["n2"] == MANAGED
    assert "n1: the MIG manager could not apply bad" in result["msg"]
    assert "n[2-3]: not requested after that" in result["msg"]
    assert "kubectl -n gpu-operator delete pod manager-x" in result["msg"]
    # It is not tried again by itself: known at once, and waited for by nobody.
    begin = server.clock.now
    assert server.run("requested", "n1")["failed"] and server.clock.now == begin
    # A third of them may fail, n1 as well as another one.
    server.labels["n2"] = {**MANAGED, CONFIG: "bad", STATE: "failed"}
    result = server.run("requested", max_fail=33)
    assert (result["failed_nodes"], result["done"], result["left"]) == (["n1"], [], ["n2", "n3"])
    result = server.run("requested", max_fail=34)
    assert (result["failed_nodes"], result["done"], result["left"]) == (["n1", "n2"], [], ["n3"])
    result = server.run("requested", max_fail=67)
    assert (result["failed_nodes"], result["done"], result["left"]) == (["n1", "n2"], ["n3"], [])


def test_a_node_that_another_run_holds_is_left_out_unless_it_was_named() -> None:
    """A kubelet can renew the annotation without end: this affects only its own Node."""
    server = Server(worker, n1=MANAGED, n2=MANAGED, n3=MANAGED)
    server.annotations["n2"] = {HELD: Holder("elsewhere", 7, 7, 1_000_000).text}
    me = Holder("here", 8, 8, 1_000_000)
    result = server.run("requested", layout="all-1g.10gb", holder=me)
    assert result["done"] == ["n1", "n3"] and result["failed"] and result["changed"]
    assert (result["failed_nodes"], result["left"], server.labels["n2"]) == (["n2"], [], MANAGED)
    assert "Node n2 is held by another run (elsewhere/7/7@" in result["msg"]
    assert "kubectl annotate node n2 gpuops.nvidia/held-by-" in result["msg"]
    assert server.run("requested", layout="all-1g.10gb", holder=me, check=True)["failed"]
    with pytest.raises(ClusterError, match="Node n2 is held"):
        server.run("requested", "n1", "n2", layout="all-2g.20gb", holder=me)
    assert server.writes == ["n1", "n3"]
    # Both reasons are told where another Node fails.
    result = server.run("requested", layout="bad", holder=me)
    assert (result["failed_nodes"], result["left"]) == (["n1", "n2"], ["n3"])
    assert "could not apply bad" in result["msg"] and "Node n2 is held" in result["msg"]


def test_one_that_never_ends_is_told_with_what_it_left() -> None:
    stuck = {**MANAGED, CONFIG: "all-1g.10gb", STATE: "pending", PLUGIN: mig_labels.PAUSED}
    server, lines = Server(n1=stuck), []
    result = server.run("requested", tell=lines.append, timeout=60)
    assert result["failed"] and server.clock.now == pytest.approx(160)
    assert "has not finished applying all-1g.10gb; it has left device-plugin paused" in result["msg"]
    assert len(lines) == 3 and lines[0] == "n1: all-1g.10gb pending"
    # Nobody takes the wish up.
    server = Server(n1={**MANAGED, CONFIG: "all-1g.10gb", STATE: ""})
    assert "has not begun to apply all-1g.10gb" in server.run("requested", timeout=5)["msg"]


def test_one_that_goes_and_one_that_others_ask_are_not_done() -> None:
    def each(server: Server, look: int) -> None:
        if server.writes == ["n1", "n2"]:
            server.labels.pop("n1", None)
            server.labels["n2"][CONFIG] = "all-disabled"

    server = Server(each, n1=MANAGED, n2=MANAGED, n3=MANAGED)
    result = server.run("requested", "n1", "n2", "n3", layout="all-1g.10gb", at_once="2")
    assert (result["done"], result["failed_nodes"], result["left"]) == ([], ["n1", "n2"], ["n3"])
    assert "n1: the Node is gone." in result["msg"]
    assert "n2: its label now requests all-disabled" in result["msg"]


def test_what_gpus_have_by_themselves_needs_no_answer() -> None:
    untouched = {MANAGER: "true", CONFIG: "all-disabled"}
    server = Server(n1=untouched)
    assert server.run("requested")["done"] == ["n1"] and server.clock.now == 100
    # But who asks for it now waits for the answer.
    server = Server(n1={**untouched, CONFIG: "all-1g.10gb", STATE: "success"})
    assert server.run("requested", layout="all-disabled", timeout=9)["failed"]


def test_some_nodes_at_once() -> None:
    server = Server(worker, n1=MANAGED, n2=MANAGED, n3=MANAGED)
    order: list[tuple[str, ...]] = []

    def each(server: Server, look: int) -> None:
        worker(server, look)
        open_now = tuple(name for name, labels in server.labels.items() if labels.get(STATE) != "success")
        order.append(open_now)

    server.each = each
    server.run("requested", layout="all-1g.10gb", at_once="70%")
    assert ("n1", "n2") in order and not any("n3" in names and len(names) > 1 for names in order)
