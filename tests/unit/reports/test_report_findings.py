# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of a preflight for users and programs: wide, narrow without UTF-8, without a plan, as a page, as data."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_data, webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report import render_plan, render_preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report_findings import verdict
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report import Parser, assert_golden
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import driven, facts

TODAY = datetime.date(2026, 11, 21)
HELD = {"pid": 4711, "name": "python3", "gpu": "0000:07:00.0", "instance": None, "unit": None, "container": None}


def known() -> dict[str, Any]:
    """Two similar hosts whose keys are not enrolled, one with an old driver in use, one that did not respond."""
    return {"gpu-a1": facts(secure_boot=True), "gpu-a2": facts(secure_boot=True),
            "gpu-l1": driven(facts(["26b9"] * 4, clients=[HELD]), "570.211.01"), "gpu-l2": None}


def planned() -> dict[str, Any]:
    """A plan of these hosts, written by hand with only what a report needs."""
    def mine() -> dict[str, Any]:
        return {"driver": {"placement": "host", "version": "595.91.07", "branch": 595, "kernel_module_type": "open"},
                "container_toolkit": {"placement": "host", "version": "1.20.0"},
                "mig_manager": {"placement": "host", "selected": None}, "preview": ["driver", "container_toolkit"],
                "profile": None}

    return {"release": "26.7.0", "policy": "/srv/policy.yml", "format": "ClusterPolicy", "disruption": "never",
            "placement": {"driver": "host", "container_toolkit": "host"},
            "hosts": {host: mine() for host, facts in known().items() if facts}, "notes": ["a note."],
            "explanations": {"gpu-a1": ["driver: 595.91.07, the default"]}, "cluster": None}


def report() -> dict[str, Any]:
    plan = planned()
    steps = [{"id": "install packages: nvidia-open=595.91.07-1", "reason": "", "needs": "never"}]
    return {"plan": plan, "problem": None, "cluster": None,
            "findings": preflight.listed(preflight.checks(plan, known(), None, TODAY)),
            "hosts": {host: {"facts": one, "checks": None, "steps": {"driver": steps} if one else {}, "pending": {}}
                      for host, one in known().items()}}


REFUSALS = [{"hosts": ["gpu-a1", "gpu-a2"], "reason": "driver 595.91.07 (driver.version of policy.yml) cannot drive "
             "Tesla V100 (volta), whose last branch is 580", "remedy": "Set driver.version: 580.173.02.",
             "constraints": [{"id": "driver.version", "text": "595"}], "free": []}]


def refusal() -> dict[str, Any]:
    """The refusal of a policy that cannot be carried out."""
    error = {"kind": "policy", "hint": "", "refusals": REFUSALS,
             "message": "The policy (policy.yml, release 26.7.0) cannot be carried out:\n  gpu-a1: .."}
    return {**report(), "plan": None, "problem": error["message"],
            "findings": preflight.listed(preflight.refused(error, known(), None, TODAY))}


@pytest.mark.parametrize("name", ["preflight-119", "preflight-79", "refused-119", "plan-119", "plan-79"])
def test_rendering(name: str) -> None:
    kind, width = name.split("-")
    style = Style(int(width), fancy=width != "79")
    shown = Report.of(refusal() if kind == "refused" else report())
    text = (render_plan if kind == "plan" else render_preflight)(shown, style)
    assert_golden(f"findings-{name}", text + "\n")
    assert max(map(len, text.splitlines())) <= int(width)
    assert style.fancy or text.isascii()


def test_the_head_of_a_run_has_no_notes() -> None:
    found = [*report()["findings"], {"host": "gpu-a1", "check": "x", "severity": "info", "text": "fine", "fix": ""}]
    assert "fine" not in render_plan(Report.of({**report(), "findings": found}), Style())
    assert "fine" in render_preflight(Report.of({**report(), "findings": found}), Style())


def test_nobody_says_that_nothing_is_to_do_where_it_is_not_known() -> None:
    calm = {**report(), "hosts": {"gpu-l2": report()["hosts"]["gpu-l2"]}}
    assert "Nothing to do" not in render_preflight(Report.of(calm), Style())
    assert "Nothing to do: every host" in render_preflight(Report.of({**calm, "findings": []}), Style())


def test_without_hosts_and_plan_there_is_no_table_of_hosts() -> None:
    text = render_preflight(Report.of({**refusal(), "hosts": {}}), Style())
    assert "driver" not in text.partition("Findings")[0] and "no plan" in text


def test_sums() -> None:
    assert verdict(report()["findings"]) == "2 errors, 2 warnings."
    assert verdict([]) == "The preflight found no problem."
    shown = Report.of({**report(), "findings": []})
    assert render_preflight(shown, Style()).endswith("The preflight found no problem.")
    assert some_of(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_page() -> None:
    made = refusal()
    made["findings"][0] = {**made["findings"][0], "text": "<script>x</script>", "fix": "<img src=x>"}
    text = webpage.page(Report.of(made))
    parser = Parser()
    parser.feed(text)
    assert "img" not in parser.tags and parser.tags.count("script") == 1 and parser.loaded == []
    assert "class='mark error'" in text and "release 26.7.0) cannot be carried out: see the errors below." in text
    assert "gpu-a1: .." not in text, "the reasons are findings"
    assert webpage.page(Report.of({**report(), "findings": []})).count("<h2>Findings") == 0


def test_data() -> None:
    document = json.loads(json.dumps(report_data.document(report(), [])))
    assert set(document) == {"schema", "plan", "problem", "refusals", "findings", "counts", "hosts", "cluster",
                             "states"}
    assert document["states"] is None
    assert document["counts"] == {"error": 2, "warning": 2, "info": 0}
    assert document["hosts"]["gpu-a1"]["plan"]["driver"]["version"] == "595.91.07"
    assert document["hosts"]["gpu-l2"]["plan"] is None
    refused = report_data.document(refusal(), REFUSALS)
    assert refused["plan"] is None and refused["refusals"] == REFUSALS and refused["counts"]["error"] == 3


def test_data_of_a_cluster_holds_no_environment() -> None:
    part = {"state": "present", "because": [], "env": {"PASSWORD": "secret"}, "images": {"nfd": "x/nfd:v1"}}
    cluster = {"plan": {"server": "s", "namespace": "n", "components": {"nfd": part}, "nodes": {"pools": []}},
               "checks": None}
    document = report_data.document({**report(), "cluster": cluster}, [])
    assert "secret" not in json.dumps(document)
    assert document["cluster"]["components"]["nfd"] == {key: part[key] for key in ("state", "because", "images")}
