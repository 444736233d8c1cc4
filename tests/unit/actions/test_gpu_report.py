# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_report as a task: what it reads from the run, what it prints, returns and writes."""

from __future__ import annotations

import json
import pathlib
import random
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gpuops.nvidia.plugins.action import gpu_policy, gpu_report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import output_file
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report import fleet
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report_cluster import part
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import spoil


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for module in (gpu_report, output_file):
        monkeypatch.setattr(module, "display", SimpleNamespace(display=lines.append))
    return lines


def run() -> dict[str, Any]:
    """task_vars at the end of a run on the fleet, with the registered results of its tasks."""
    found = fleet()
    made: dict[str, Any] = task_vars(**{host: {
        "preflight_found": {"facts": entry["facts"]} if entry["facts"] else {"unreachable": True},
        "preflight_checked": {} if entry["checks"] is None else {"checks": entry["checks"]},
        **{f"{name}_result": {"plan": steps, "pending": entry["pending"].get(name, [])}
           for name, steps in entry["steps"].items()}} for host, entry in found["hosts"].items()})
    return {**made, "groups": {"gpu_hosts": list(found["hosts"])}}


def report(show: str, variables: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return act(gpu_report.ActionModule, {"show": show, **options}, run() if variables is None else variables)


def test_a_result_tells_what_the_run_has_registered(printed: list[str]) -> None:
    found = report("result", plan=fleet()["plan"])
    text, = printed
    for words in ("gpu01", "gpu02", "reload modules: nvidia", "gpu_disruption is 'never'", "595.91.07"):
        assert words in text
    assert not found["changed"] and not found.get("failed")
    assert found["verdict"] in text and "1 host not reached" in found["verdict"] and "pending" in found["verdict"]
    assert found["findings"] == [] and found["counts"] == {"error": 0, "warning": 0, "info": 0}
    assert "html_path" not in found and "json_path" not in found


def test_what_is_given_by_hand_counts_instead(printed: list[str]) -> None:
    hosts = {"elsewhere": {**fleet()["hosts"]["gpu03"]}}
    found = report("result", hosts=hosts, plan={**fleet()["plan"], "hosts": {
        "elsewhere": fleet()["plan"]["hosts"]["gpu03"]}})
    assert "elsewhere" in printed[0] and "gpu01" not in printed[0]
    assert found["verdict"] == "6 of 6 checks are ok on 1 host."


def whole() -> dict[str, Any]:
    """All options of gpu_report, from a run with hosts and a cluster."""
    found, cluster = fleet(), part()
    checks = [{"host": "gpu02", "check": "x", "severity": "warning", "text": "it is old", "fix": "", "new": 1}]
    return {"plan": {**found["plan"], "checks": checks, "cluster": cluster["plan"]}, "hosts": found["hosts"],
            "cluster": cluster}


@pytest.mark.parametrize(("path", "value", "said"), [
    ("plan.hosts", 7, "plan.hosts: 7 is invalid (allowed: a mapping"),
    ("plan.release", None, "plan.release: None is invalid (allowed: a string"),
    ("plan.checks", "x", "plan.checks: 'x' is invalid (allowed: a list"),
    ("plan.hosts.gpu01.driver", {"placement": "host"}, "plan.hosts.gpu01.driver: a mapping without version"),
    ("plan", {"error": {"kind": "policy"}}, "plan.error: a mapping without message is invalid (allowed: the keys"),
    ("hosts.gpu01", {"facts": None}, "hosts.gpu01: a mapping without steps"),
    ("hosts.gpu01.facts.gpus", [7], "hosts.gpu01.facts.gpus[0]: 7 is invalid (allowed: a mapping"),
    ("hosts.gpu01.steps.drivr", [], "hosts.gpu01.steps: a mapping with the key 'drivr' is invalid (allowed:"),
    ("cluster.checks", {}, "cluster.checks: a dict of 0 is invalid (allowed: a list"),
    ("cluster.plan.components.driver", {"state": "present"}, "driver: a mapping without pools"),
    ("cluster.plan.components.nfd.state", "on", "cluster.plan.components.nfd.state: 'on' is invalid (allowed: one of "),
])
def test_what_is_given_by_hand_is_one_error(printed: list[str], path: str, value: Any, said: str) -> None:
    options = place = whole()
    *way, last = path.split(".")
    for name in way:
        place[name] = dict(place[name])
        place = place[name]
    place[last] = value
    found = report("plan", **options)
    assert found["failed"] and said in found["msg"] and "defect" not in found["msg"] and not printed
    assert found["error"]["path"] and found["error"]["value"] and found["error"]["hint"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 2 ** 60), show=st.sampled_from(["plan", "preflight", "result", "state"]),
       option=st.sampled_from(["plan", "hosts", "cluster"]), times=st.integers(1, 3))
def test_anything_that_is_given_by_hand_is_shown_or_one_error(
        printed: list[str], tmp_path: pathlib.Path, number: int, show: str, option: str, times: int) -> None:
    options, rng = whole(), random.Random(number)
    for _time in range(times):
        options[option] = spoil(rng, options[option])
    if not isinstance(options[option], dict):
        return  # Ansible refuses it
    found = report(show, html_path=str(tmp_path / "page.html"), json_path=str(tmp_path / "report.json"), states=True,
                   metrics_path=str(tmp_path / "states.prom"), **options)
    assert not found.get("failed") or found["error"]["path"].split(".")[0].split("[")[0] == option, found["msg"]


def test_what_a_run_has_is_reported(printed: list[str], tmp_path: pathlib.Path) -> None:
    for show in ("plan", "preflight", "result", "state"):
        for options in (whole(), {"plan": REFUSED}, {"plan": None}):
            assert not report(show, json_path=str(tmp_path / "report.json"), **options).get("failed")


def test_a_plan_has_findings_and_errors_of_the_modules_that_were_asked(printed: list[str]) -> None:
    variables = run()
    variables["hostvars"]["gpu01"]["driver_result"] = {"failed": True, "error": {
        "message": "The mirror does not answer.", "hint": "Look at it."}}
    plan = {**fleet()["plan"], "checks": [{"host": "gpu02", "check": "x", "severity": "warning", "text": "it is old",
                                           "fix": ""}]}
    found = report("plan", variables, plan=plan)
    assert [(one["host"], one["severity"], one["text"]) for one in found["findings"]] == [
        ("gpu01", "error", "The mirror does not answer"), ("gpu02", "warning", "it is old")]
    assert found["counts"]["error"] == found["counts"]["warning"] == 1
    assert "it is old" in printed[0] and "The mirror does not answer" in printed[0]
    assert report("state", variables, plan=plan)["findings"] == []
    assert report("state", variables, plan=plan, health=True)["findings"] == [], "its GPUs are healthy"
    given = report("plan", variables, plan=plan, hosts=fleet()["hosts"])
    assert len(given["findings"]) == 1, "who gives hosts by hand speaks of another run"


REFUSED = {"failed": True, "msg": "No.", "error": {
    "kind": "policy", "message": "The policy cannot be carried out.", "hint": "", "checks": [],
    "refusals": [{"hosts": ["gpu01"], "reason": "no", "remedy": "do"}]}}


def test_without_a_plan_the_reason_is_told(printed: list[str], tmp_path: pathlib.Path) -> None:
    found = report("preflight", plan=REFUSED, json_path=str(tmp_path / "report.json"))
    assert not found.get("failed")
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["plan"], document["problem"]) == (None, "The policy cannot be carried out.")
    assert document["refusals"] == REFUSED["error"]["refusals"]  # type: ignore[index]
    report("state", plan=REFUSED)
    assert printed[-1].endswith("The policy cannot be carried out.")


@pytest.mark.parametrize("error", [KeyError("gpus"), RecursionError("too deep"), AnsibleError("no such file")])
def test_a_defect_of_the_plan_is_a_finding_of_the_report(
        printed: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """If it were raised, status.yml and preflight.yml would end before their reports; the cause can be facts that
    nobody can read."""
    def broken(*_given: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(gpu_policy, "resolve", broken)
    variables = run()
    plan = act(gpu_policy.ActionModule, {}, variables)
    assert plan["failed"] and str(error) in plan["msg"] and type(error).__name__ in plan["exception"]
    monkeypatch.setattr("ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.preflight.checks", broken)
    found = report("preflight", variables, plan=plan)
    only, = found["findings"]
    assert (only["host"], only["check"], only["severity"]) == ("policy", "policy", "error")
    assert str(error) in only["text"] and str(error) in printed[-1]
    assert not report("state", variables, plan=plan).get("failed") and str(error) in printed[-1]


def test_files_are_written_where_they_are_asked_for_and_said(printed: list[str], tmp_path: pathlib.Path) -> None:
    """Folders are made. The document has what a program needs, and the page has what people see."""
    paths = {name: tmp_path / "new" / f"report.{name}" for name in ("html", "json")}
    found = report("result", plan=fleet()["plan"], html_path=str(paths["html"]), json_path=str(paths["json"]))
    assert {name: found[f"{name}_path"] for name in paths} == {name: str(path) for name, path in paths.items()}
    assert printed[1:] == [f"Report: {paths['html']} (its folder was created)", f"Report: {paths['json']}"]
    document = json.loads(paths["json"].read_text())
    assert set(document["hosts"]) == {"gpu01", "gpu02", "gpu03", "gpu04"}
    assert document["hosts"]["gpu02"]["pending"]["driver"][0]["id"] == "reload modules: nvidia"
    assert document["hosts"]["gpu01"]["steps"]["driver"][1]["id"] == "load module: nvidia"
    assert document["plan"]["release"] == "26.7.0" and document["refusals"] == []
    assert "gpu02" in paths["html"].read_text() and paths["html"].read_text().startswith("<!doctype html>")


def test_states_are_shown_returned_and_written(printed: list[str], tmp_path: pathlib.Path) -> None:
    paths = {name: str(tmp_path / f"states.{end}") for name, end in (("json_path", "json"), ("metrics_path", "prom"))}
    found = report("result", plan=fleet()["plan"], states=True, **paths)
    assert not found.get("failed")
    assert found["state_counts"] == {"NotReady": 2, "Upgrading": 0, "Degraded": 1, "Disabled": 0, "Ready": 1}
    assert "States: 1 Ready, 2 NotReady, 1 Degraded" in printed[0] and "Metrics: " in printed[-1]
    assert json.loads(pathlib.Path(paths["json_path"]).read_text())["states"] == found["states"]
    assert found["states"]["gpu02"] == {
        "state": "Degraded", "reason": "Drift", "host": "gpu02", "reboot_pending": False, "drift": True,
        "cordoned": None, "driver": {"desired": "595.91.07", "running": "580.126.20"},
        "message": found["states"]["gpu02"]["message"]}
    metrics = pathlib.Path(paths["metrics_path"]).read_text()
    assert 'gpuops_node_state{node="gpu03",state="Ready"} 1' in metrics
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".prom"] == ["states.prom"]


def test_without_states_nothing_of_them_is_shown(printed: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "states.prom"
    for options in ({"show": "result"}, {"show": "plan", "states": True, "plan": {**fleet()["plan"], "checks": []}}):
        found = report(**options, metrics_path=str(path), fail_on=["NotReady"])  # type: ignore[arg-type]
        assert not found.get("failed") and not {"states", "metrics_path"} & found.keys() and not path.exists()
    assert not any("States:" in line for line in printed)


def test_a_state_that_must_not_be_fails_after_the_report(printed: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "report.json"
    options = {"plan": fleet()["plan"], "states": True, "json_path": str(path)}
    found = report("result", fail_on=["NotReady", "Upgrading"], **options)
    assert found["failed"] and found["msg"] == "gpu_status_fail_on is NotReady, Upgrading: 2 NotReady (gpu[01,04])."
    assert "States: 1 Ready" in printed[0] and path.exists() and "gpu01" in path.read_text()
    assert found["state_counts"]["NotReady"] == 2 and not {"states", "findings"} & found.keys()
    assert not report("result", fail_on=["Upgrading"], **options).get("failed")
    with pytest.raises(AnsibleError, match="value of fail_on must be one or more of: NotReady, Upgrading"):
        report("result", fail_on=["Broken"], **options)


def test_check_mode_writes_nothing_and_says_what_would_change(printed: list[str], tmp_path: pathlib.Path) -> None:
    """Also no folder. A second report with the same content changes nothing, and its file is not written."""
    options = {"show": "result", "plan": fleet()["plan"], "html_path": str(tmp_path / "new" / "report.html")}
    found = act(gpu_report.ActionModule, options, run(), check=True)
    assert found["changed"] and found["html_path"] == options["html_path"] and list(tmp_path.iterdir()) == []
    assert printed[1:] == [f"Report: {options['html_path']} (not written in check mode)"]
    assert act(gpu_report.ActionModule, options, run())["changed"]
    written = pathlib.Path(options["html_path"]).stat().st_ino
    for check in (True, False):
        assert not act(gpu_report.ActionModule, options, run(), check=check)["changed"]
    assert pathlib.Path(options["html_path"]).stat().st_ino == written
    assert act(gpu_report.ActionModule, {**options, "show": "state", "plan": None}, run(), check=True)["changed"]


def test_what_a_cluster_says_reaches_no_terminal(printed: list[str], tmp_path: pathlib.Path) -> None:
    """Others choose the names of pods, Nodes and events."""
    cluster = part()
    for check in cluster["checks"]:
        check["detail"] = check["hint"] = "\x1b]0;owned\x07\x9b2J"
    page = tmp_path / "page.html"
    report("result", cluster=cluster, hosts={}, plan={**fleet()["plan"], "hosts": {}}, html_path=str(page))
    assert not [sign for sign in printed[0] + page.read_text() if not sign.isprintable() and sign != "\n"]


def test_a_file_that_cannot_be_written_fails_the_task(printed: list[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    found = report("state", plan=fleet()["plan"], json_path=str(tmp_path / "file" / "report.json"))
    assert found["failed"] and "cannot be written" in found["msg"] and found["error"]["path"] == "json_path"


def test_a_cluster_alone_has_no_hosts_that_were_not_reached(printed: list[str]) -> None:
    """A host from which the cluster is managed is no GPU host, unless it is in the group of GPU hosts."""
    variables: dict[str, Any] = task_vars(localhost={"preflight_cluster": {"checks": part()["checks"]}})
    plan = {**fleet()["plan"], "hosts": {}, "cluster": part()["plan"]}
    found = report("result", variables, plan=plan)
    assert "not reached" not in found["verdict"] and "localhost" not in printed[0]
    assert "the nvidia runtime is not injected" in printed[0]
    grouped = report("result", {**variables, "groups": {"gpu_hosts": ["localhost"]}}, plan=plan)
    assert "1 host not reached" in grouped["verdict"]
    alone = report("result", task_vars(localhost={}), plan=fleet()["plan"])
    assert "1 host not reached" in alone["verdict"]


def test_a_cluster_that_is_given_counts_instead_of_what_was_registered(printed: list[str]) -> None:
    variables: dict[str, Any] = task_vars(localhost={"preflight_cluster": {"checks": []}})
    given = report("result", variables, plan={**fleet()["plan"], "hosts": {}}, cluster=part(), hosts={})
    assert "gpu-03" in printed[0] and given["verdict"]


def test_what_was_refused_in_the_cluster_is_a_finding(printed: list[str]) -> None:
    """The finding also exists if the play continued, so that the report has all findings."""
    variables = task_vars(localhost={"operands_result": {"failed": False, "error": {
        "message": "The user of this kubeconfig may not create configmaps.", "hint": "Give the user these rights."}}})
    cluster = {"plan": part()["plan"], "operands": {"error": {}}, "labels": None, "checks": None}
    plan = {**fleet()["plan"], "hosts": {}, "checks": []}
    found = report("preflight", variables, plan=plan, cluster=cluster)
    assert [(one["host"], one["check"], one["severity"]) for one in found["findings"]] == [
        ("cluster", "operands", "error")]
    assert "may not create configmaps" in printed[0] and "every object is as planned" not in printed[0]


def test_the_state_shows_the_health_of_gpus(printed: list[str]) -> None:
    variables = run()
    facts = variables["hostvars"]["gpu01"]["preflight_found"]["facts"]
    facts["xids"] = [{"pci": "0000:07:00.0", "xid": 95, "count": 2, "first": "2026-11-27T20:00:00Z",
                      "last": "2026-11-27T20:01:02Z"}]
    for show in ("state", "result"):
        found = report(show, variables, plan=fleet()["plan"], health=True)
        assert [(one["check"], one["severity"]) for one in found["findings"]] == [("xid", "warning")]
        assert found["counts"] == {"error": 0, "warning": 1, "info": 0} and "Xid 95" in printed[-1]
        assert report(show, variables, plan=fleet()["plan"])["findings"] == [] and "Xid" not in printed[-1]
