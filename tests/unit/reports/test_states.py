# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states of hosts and Nodes: each rule, their order, and what a user sees of a small and a large fleet."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.node_status import NodeStatus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import DIFFERS, LOST, OUTDATED, Problem
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_states, states, webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import (
    Host,
    HostCheck,
    NodeState,
    Report,
    Step,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.states import Machine, state_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report import Parser, fleet
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report_cluster import alone, both, check, part
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import changed, facts

ROOT = Path(__file__).parents[3]
EARLY, LATE = "2026-11-27T10:00:00Z", "2026-11-28T10:00:00Z"
WANTED = frozenset({"driver", "container_toolkit", "validator", "device_plugin", "mig_manager"})
NODE = NodeStatus(ready_since=EARLY, valid_since=LATE, driver="595.91.07", capacity=8, offered=8,
                  labels={"mig_manager": ""})
FACTS = facts("A100", "A100", driver="595.91.07", toolkit="1.20.0", containerd=True)
PLANNED = {"delivered": ["driver", "container_toolkit", "dcgm", "cuda", "validator"], "driver": {"placement": "host"}}
Outcome = tuple[str, str]


def node(**parts: Any) -> Machine:
    """A Node of the cluster that works. parts: what is different in its status."""
    return Machine("gpu-1", node=replace(NODE, **parts), wanted=WANTED, desired="595.91.07")


def host(known: dict[str, Any] | None = FACTS, checks: dict[str, str] | None = None, **pending: str) -> Machine:
    """A host that works. checks: states of checks by component; pending: the level of a pending step by component."""
    found = [HostCheck(name, state, f"{name} is {state}") for name, state in (checks or {}).items()]
    steps = {name: [Step("act", needs=level)] for name, level in pending.items()}
    return Machine("gpu-1", "gpu-1", Host(known, found, {}, steps), PLANNED, desired="595.91.07")


def problem(component: str, **parts: Any) -> tuple[str, Problem]:
    return component, Problem(node="gpu-1", **{"container": "ctr", "state": "Running", "cause": "it ends", **parts})


def outcome(one: Machine) -> Outcome:
    found = state_of(one)
    return found.state, found.reason


DIFFERENCE = problem("nodes", container="", state=DIFFERS, cause="a label differs from the plan")
CASES: list[tuple[Machine, Outcome]] = [
    (node(), ("Ready", "AsPlanned")),
    (host(), ("Ready", "AsPlanned")),
    (replace(host(), has_plan=False, planned=None), ("Ready", "NoPlan")),
    (node(cordoned=True), ("Ready", "Cordoned")),
    (node(operands=False), ("Disabled", "OperandsDisabled")),
    (node(labels=dict.fromkeys(WANTED, "false")), ("Disabled", "OperandsDisabled")),
    (node(workload="vm-vgpu"), ("Disabled", "VirtualMachines")),
    (replace(node(), wanted=frozenset()), ("Disabled", "NothingPlanned")),
    (replace(host(), planned={"delivered": [], "driver": {"placement": "none"}}), ("Disabled", "NothingPlanned")),
    *((node(upgrade=f"{label}-required"), ("Upgrading", reason)) for label, reason in (
        ("cordon", "CordonRequired"), ("wait-for-jobs", "WaitForJobsRequired"), ("drain", "DrainRequired"),
        ("pod-deletion", "PodDeletionRequired"), ("pod-restart", "PodRestartRequired"),
        ("validation", "ValidationRequired"), ("uncordon", "UncordonRequired"))),
    (node(upgrade="node-maintenance-required"), ("Upgrading", "UpgradeInProgress")),
    (node(upgrade="x\"y"), ("Upgrading", "UpgradeInProgress")),
    (node(held="controller", held_since=EARLY), ("Upgrading", "HeldByRun")),
    (node(upgrade="upgrade-required"), ("Upgrading", "UpgradeRequired")),
    (node(upgrade="upgrade-done"), ("Ready", "AsPlanned")),
    (node(upgrade="upgrade-failed"), ("Degraded", "UpgradeFailed")),
    (replace(node(), refused="no driver suits it."), ("NotReady", "PlanRefused")),
    (host(None), ("NotReady", "HostUnreachable")),
    (node(ready=False), ("NotReady", "NodeNotReady")),
    (replace(node(), problems=[problem("driver", cause=LOST, container="")]), ("NotReady", "NodeNotReady")),
    (host(changed(FACTS, driver={}) | {"gpus": []}), ("NotReady", "NoGpuVisible")),
    (node(gone_since=EARLY), ("NotReady", "NoGpuVisible")),
    (node(offered=0), ("NotReady", "NoGpuVisible")),
    (node(capacity=0, offered=0), ("Ready", "AsPlanned")),
    (host(facts("A100")), ("NotReady", "DriverNotLoaded")),
    (host(changed(FACTS, driver={"nvml": {"available": False, "error": "no."}})), ("NotReady", "DriverNotUsable")),
    (host({**FACTS, "gpus": [{**gpu, "error": "lost"} for gpu in FACTS["gpus"]]}), ("NotReady", "DriverNotUsable")),
    (host({**FACTS, "gpus": [FACTS["gpus"][0], {**FACTS["gpus"][1], "error": "lost"}]}), ("Ready", "AsPlanned")),
    (replace(host(changed(FACTS, driver={"nvml": {"available": False, "error": None}})), wanted=WANTED),
     ("Ready", "AsPlanned")),
    (node(mig="pending"), ("NotReady", "MigLayoutPending")),
    (node(mig="rebooting"), ("NotReady", "MigLayoutPending")),
    (node(mig="failed"), ("Degraded", "MigLayoutFailed")),
    (node(mig="success"), ("Ready", "AsPlanned")),
    (replace(node(), problems=[problem("validator")]), ("NotReady", "ValidatorNotReady")),
    (replace(node(), problems=[problem("validator", waits_for="driver"), problem("driver")]),
     ("NotReady", "DriverNotReady")),
    (replace(node(), problems=[problem("nfd")]), ("Ready", "AsPlanned")),
    (replace(node(), unready={"device_plugin": "0/3 ready"}), ("NotReady", "DevicePluginNotReady")),
    (replace(node(), unready={"dcgm": "absent"}), ("Ready", "AsPlanned")),
    (replace(node(), unready={"mig_manager": "0/3 ready"}), ("Ready", "AsPlanned")),
    (node(labels={"driver": "pre-installed", "mig_manager": "false"}), ("Ready", "AsPlanned")),
    (node(labels={"driver": ""}), ("NotReady", "DriverNotReady")),
    (node(labels={"validator": "paused-for-driver-upgrade"}), ("NotReady", "ValidatorNotReady")),
    (node(labels={"validator": "maybe"}), ("NotReady", "ValidatorNotReady")),
    (host(changed(FACTS, toolkit={"version": None}), {"container_toolkit": "absent"}),
     ("NotReady", "ContainerToolkitNotReady")),
    (host({**FACTS, "runtimes": {"containerd": None}}, {"container_toolkit": "failed"}),
     ("NotReady", "ContainerToolkitNotReady")),
    (host(FACTS, {"container_toolkit": "failed"}), ("Degraded", "Drift")),
    (host(changed(FACTS, software={"dcgm": {"version": "4.6.0", "running": False}}), {"dcgm": "failed"}),
     ("NotReady", "DcgmNotReady")),
    (host(changed(FACTS, software={"dcgm": None}), {"dcgm": "absent"}), ("NotReady", "DcgmNotReady")),
    (host(FACTS, {"dcgm": "failed"}), ("Degraded", "Drift")),
    (host(changed(FACTS, software={"cuda": {}}), {"cuda": "absent"}), ("NotReady", "CudaNotReady")),
    (host(FACTS, {"validator": "failed"}), ("NotReady", "ValidatorNotReady")),
    (host(FACTS, {"driver": "failed"}), ("Degraded", "Drift")),
    (host(FACTS, {"mig_manager": "pending"}), ("Degraded", "Drift")),
    (replace(host(), compared=False), ("NotReady", "NotCompared")),
    (replace(host(), findings=[{"severity": "error", "check": "gpu_lost", "text": "a GPU is lost"}]),
     ("Degraded", "GpuLost")),
    (replace(host(), findings=[{"severity": "warning", "check": "xid", "text": "Xid 63", "detail": "0000:3b:00.0"}]),
     ("Degraded", "Xid")),
    (replace(host(), findings=[{"severity": "info", "check": "xid", "text": "Xid 43"}]), ("Ready", "AsPlanned")),
    (node(offered=7), ("Degraded", "GpusDiffer")),
    (replace(node(), problems=[problem("device_plugin", state=DIFFERS)]), ("Degraded", "GpusDiffer")),
    (host(changed(FACTS, driver={"reboot_pending": True}), {"driver": "pending"}), ("Degraded", "RebootPending")),
    (host(FACTS, {"driver": "pending"}, driver="reboot"), ("Degraded", "RebootPending")),
    (host(FACTS, {"driver": "pending"}, driver="drain"), ("Degraded", "Drift")),
    (node(left="An earlier run has left it."), ("Degraded", "LeftByRun")),
    (replace(node(), problems=[problem("mig_manager", state="layout all-1g.10gb failed", level="failed")]),
     ("Degraded", "MigLayoutFailed")),
    (replace(node(), problems=[problem("mig_manager", state="layout all-1g.10gb not started", level="pending")]),
     ("Degraded", "MigLayoutPending")),
    (replace(node(), problems=[problem("driver", cause=f"{OUTDATED} and keeps running", container="")]),
     ("Degraded", "PodOutdated")),
    (replace(node(), problems=[problem("driver", cause=f"{OUTDATED} and keeps running")]),
     ("NotReady", "DriverNotReady")),
    (replace(node(), problems=[DIFFERENCE]), ("Degraded", "Drift")),
]


@pytest.mark.parametrize(("one", "expected"), CASES, ids=lambda value: "-".join(value) if isinstance(
    value, tuple) else "")
def test_rules(one: Machine, expected: Outcome) -> None:
    assert outcome(one) == expected
    found = state_of(one)
    assert found.message and not found.message.endswith(".")
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", found.reason)


def test_each_rule_decides_a_case() -> None:
    """So that none is dead because an earlier one includes it."""
    deciding = {next(number for number, rule in enumerate(states.RULES) if rule.find(one)) for one, _expected in CASES}
    assert deciding == {*range(len(states.RULES))}


AXES: dict[str, list[dict[str, Any]]] = {
    "status": [{}, {"ready": False}, {"cordoned": True}, {"operands": False}, {"offered": 0}, {"mig": "pending"}],
    "upgrade": [{}, {"upgrade": "upgrade-done"}, {"upgrade": "upgrade-required"}, {"upgrade": "drain-required"},
                {"upgrade": "upgrade-failed"}, {"upgrade": "?"}],
}


def test_each_combination_has_exactly_one_state() -> None:
    """The product of what can be true of a machine: always one of the five states, the same in each evaluation, and
    never Ready if something needs a person."""
    hosts = [None, FACTS, facts("A100"), changed(FACTS, driver={"reboot_pending": True})]
    findings = [(), [{"severity": "error", "check": "ecc", "text": "x"}]]
    problems = [(), [problem("driver")], [DIFFERENCE]]
    seen = set()
    for status, upgrade, known, found, shown, compared in itertools.product(
            *AXES.values(), ("no host", *hosts), findings, problems, (True, False)):
        one = replace(node(**status, **upgrade), findings=found, problems=shown, compared=compared)
        if known != "no host":
            mine = host(known)  # type: ignore[arg-type]
            one = replace(one, host=mine.host, planned=mine.planned, host_name="gpu-1")
        result = state_of(one)
        assert result == state_of(one)
        assert [result.state == state for state in states.STATES].count(True) == 1
        if result.state == "Ready":
            assert not (found or shown) and compared and known in ("no host", FACTS)
            assert upgrade.get("upgrade", "upgrade-done") == "upgrade-done" and not status.keys() - {"cordoned"}
        seen.add(result.state)
    assert seen == {*states.STATES}


@pytest.mark.parametrize(("one", "since"), [
    (node(), LATE), (node(ready_since=LATE, valid_since=EARLY), LATE), (node(valid_since=""), ""),
    (node(ready=False), EARLY), (node(upgrade="drain-required", upgrade_since=LATE), LATE),
    (node(upgrade="drain-required", upgrade_since=LATE, held="c", held_since=EARLY), EARLY),
    (node(held="c", held_since=EARLY), EARLY), (node(gone_since=EARLY), EARLY),
    (replace(node(), problems=[problem("driver", since=EARLY)]), EARLY), (node(upgrade="upgrade-failed"), ""),
    (host(), ""), (replace(node(), problems=[DIFFERENCE]), ""),
])
def test_since_is_only_what_the_cluster_tells(one: Machine, since: str) -> None:
    assert state_of(one).since == since
    assert ("since" in state_of(one).as_dict()) == bool(since)


def test_drift_and_reboots_are_told_whatever_the_state_is() -> None:
    upgrading = replace(node(upgrade="drain-required"), problems=[DIFFERENCE])
    assert (state_of(upgrading).state, state_of(upgrading).drift) == ("Upgrading", True)
    assert state_of(node()).drift is False and state_of(node()).reboot_pending is None
    unknown = state_of(replace(host(), has_plan=False))
    assert unknown.drift is None and unknown.reboot_pending is False
    assert state_of(host(None)).drift is None and state_of(replace(node(), refused="no")).drift is None
    waits = state_of(host(changed(facts("A100"), driver={"reboot_pending": True})))
    assert (waits.state, waits.reboot_pending, waits.running) == ("NotReady", True, "")


def report(made: dict[str, Any]) -> dict[str, NodeState]:
    return {one.name: one for one in states.states(Report.of(made))}


def test_hosts_and_nodes_of_a_run() -> None:
    made = both()
    found = report(made)
    assert len(found) == 25 and {name: (one.state, one.reason) for name, one in found.items()
                                 if one.state != "Ready"} == {
        "gpu-03": ("NotReady", "ValidatorNotReady"), "gpu01": ("NotReady", "DriverNotLoaded"),
        "gpu02": ("Degraded", "Drift"), "gpu04": ("NotReady", "HostUnreachable")}
    assert [found[name].drift for name in ("gpu02", "gpu03", "gpu04")] == [True, False, None]
    assert found["gpu02"].desired == "595.91.07" and found["gpu02"].running == "580.126.20"


def test_a_host_and_its_node_are_one() -> None:
    made = both()
    made["cluster"]["plan"]["nodes"]["by_host"] = {"gpu-03": "gpu03"}
    made["cluster"]["observed"] = {"gpu-03": {"cordoned": True, "upgrade": "upgrade-failed"}}
    found = report(made)
    assert "gpu03" not in found and found["gpu-03"].host == "gpu03" and found["gpu-03"].cordoned
    assert found["gpu-03"].reason == "ValidatorNotReady" and found["gpu-03"].running == "595.91.07"


def test_a_node_that_is_gone_is_not_ready() -> None:
    made = alone()
    made["cluster"]["observed"] = {name: {} for name in made["cluster"]["plan"]["nodes"]["gpu"][1:]}
    found = report(made)
    assert found["gpu-00"].reason == "NodeNotReady" and found["gpu-01"].state == "Ready"


def test_an_upgrade_that_a_run_has_left_says_so() -> None:
    left = state_of(node(upgrade="drain-required", left="An earlier run was killed."))
    assert left.message == "nvidia.com/gpu-driver-upgrade-state is drain-required; An earlier run was killed"


def test_a_node_that_only_its_host_serves_is_unknown_without_the_host() -> None:
    made = alone()
    made["cluster"]["plan"]["deploy"]["on_host"] = {"gpu-00": ["validator", "device_plugin", "feature_discovery",
                                                               "dcgm_exporter"]}
    assert "gpu-00" not in report(made) and "gpu-01" in report(made)


def test_hosts_and_nodes_that_the_plan_leaves_out() -> None:
    made = both()
    made["plan"]["rejected"] = {"gpu04": {"message": "its facts are invalid."}}
    made["cluster"]["plan"]["rejected"] = {"gpu-19": {"message": "no driver suits it"}}
    found = report(made)
    assert found["gpu04"].reason == found["gpu-19"].reason == "PlanRefused"
    assert found["gpu04"].message == "its facts are invalid"


def test_pods_on_unknown_nodes_make_all_nodes_not_ready() -> None:
    made = alone()
    made["cluster"]["checks"][3] = check("feature_discovery", state="failed", ready=20, detail="20/21 at the timeout")
    reasons = {one.reason for one in report(made).values()}
    assert reasons == {"FeatureDiscoveryNotReady", "ValidatorNotReady"}
    made["cluster"]["checks"][3] = check("feature_discovery", state="absent", desired=0, ready=0, detail="no objects")
    assert {one.reason for one in report(made).values()} == {"FeatureDiscoveryNotReady", "ValidatorNotReady"}


def test_without_the_checks_of_a_cluster_nothing_is_ready() -> None:
    made = alone()
    made["cluster"]["checks"] = None
    assert {one.reason for one in report(made).values()} == {"NotCompared"}


def test_a_rendered_cluster_has_no_nodes() -> None:
    made = alone()
    made["cluster"]["plan"]["render_to"] = "/tmp/x"
    assert report(made) == {}


def test_a_pool_says_which_driver_is_desired() -> None:
    made = alone()
    made["cluster"]["plan"]["components"]["driver"] = {"state": "present", "pools": []}
    made["cluster"]["plan"]["pools"] = [{"nodes": ["gpu-00", "gpu-01"], "driver": {"image": "x", "version": "580"}}]
    made["cluster"]["plan"]["deploy"]["without_driver"] = ["gpu-01"]
    made["cluster"]["observed"] = {name: {"driver": "580.126.20", "labels": {}} for name in ("gpu-00", "gpu-01")}
    found = report(made)
    assert (found["gpu-00"].desired, found["gpu-01"].desired) == ("580", "")
    assert report_states.driver(found["gpu-00"]) == "580.126.20"


@pytest.mark.parametrize(("desired", "running", "shown"), [
    ("595.91.07", "595.91.07", "595.91.07"), ("595.91.07", "580.126.20", "580.126.20 → 595.91.07"),
    ("595.91.07", "", "none → 595.91.07"), ("595.91.07", None, "→ 595.91.07"), ("", "", "none"), ("", None, ""),
    ("", "580.126.20", "580.126.20"), ("58", "580.126.20", "580.126.20 → 58"),
    ("sha256:0123", "580.126.20", "580.126.20"),
])
def test_drivers(desired: str, running: str | None, shown: str) -> None:
    assert report_states.driver(NodeState("a", "Ready", "x", "y", desired=desired, running=running)) == shown


def thousand() -> list[NodeState]:
    """1,000 Nodes, some of which need a person."""
    odd = {7: ("NotReady", "DriverNotReady"), 8: ("NotReady", "DriverNotReady"), 500: ("Degraded", "Xid"),
           12: ("Upgrading", "DrainRequired"), 900: ("Disabled", "OperandsDisabled")}
    return [NodeState(f"gpu-{number:04}", *odd.get(number, ("Ready", "AsPlanned")), "why", desired="595.91.07",
                      running="580.126.20" if number % 10 == 3 else "595.91.07") for number in range(1000)]


def test_a_thousand_nodes_fit_a_screen() -> None:
    text = "\n".join(report_states.render(thousand(), Style(80)))
    lines = text.splitlines()
    assert len(lines) < 30 and max(map(len, lines)) <= 80
    order = [word for line in lines[3:-2] for word in line.split("│")[1].split()[1:]]
    assert list(dict.fromkeys(order)) == ["NotReady", "Upgrading", "Degraded", "Disabled", "Ready"]
    assert "gpu-[0007-0008]" in text and lines[-1] == (
        "States: 995 Ready, 2 NotReady, 1 Upgrading, 1 Degraded, 1 Disabled")
    assert "\n".join(report_states.render(thousand(), Style(79, fancy=False))).isascii()
    assert report_states.render([], Style()) == []


def test_many_groups_are_cut() -> None:
    many = [NodeState(f"gpu-{number:03}", "Degraded", f"Reason{number}", "why") for number in range(100)]
    text = report_states.render(many, Style(80))
    assert len(text) < 40 and "and 76 more groups with 76 nodes" in text[1]


def test_failing() -> None:
    assert report_states.failing(thousand(), []) == ""
    assert report_states.failing(thousand(), ["NotReady", "Degraded"]) == (
        "gpu_status_fail_on is NotReady, Degraded: 2 NotReady (gpu-[0007-0008]), 1 Degraded (gpu-0500).")
    assert report_states.failing([one for one in thousand() if one.state == "Ready"], ["NotReady"]) == ""


def test_page() -> None:
    made = Report.of(both())
    found = [*states.states(made), NodeState("<b>evil</b>", "NotReady", "X", "<script>")]
    text = webpage.page(replace(made, states=found))
    parser = Parser()
    parser.feed(text)
    assert parser.tags.count("script") == 1 and "&lt;b&gt;evil" in text and "&lt;script&gt;" in text
    assert text.index("<h2>States") < text.index("<h2>Result")
    assert text.count("class='mark ok'>Ready<") == 23, "two groups, and each of 21"
    assert "<h2>States" not in webpage.page(made)
    assert "(and others)" not in text


def test_the_documentation_has_the_table_of_rules() -> None:
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (\w+) \| `(\w+)`", text, re.MULTILINE)
    assert rows == [(rule.state, rule.reason) for rule in states.RULES]


def test_the_fixture_has_a_host_of_each_kind() -> None:
    """The tests above rely on it."""
    assert set(fleet()["hosts"]) == {"gpu01", "gpu02", "gpu03", "gpu04"} and len(part()["plan"]["nodes"]["gpu"]) == 21
