# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output for users: tables in a wide terminal, in a narrow one without UTF-8, and as a page."""

from __future__ import annotations

import html.parser
import os
import pathlib
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import output_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.verify import verify, with_pending
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report import (
    render_plan,
    render_result,
    render_state,
    verdict,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import facts

RELOAD = {"id": "reload modules: nvidia", "reason": "580.126.20 is loaded", "needs": "idle"}
PENDING = {**RELOAD, "pending_reason": "gpu_disruption is 'never', this needs 'idle' or higher"}
FOLLOWS = {"id": "start service: x", "reason": "", "needs": "never", "pending_reason": "it follows 'reload modules'"}


def fleet() -> dict[str, Any]:
    """A new host, one with an old driver that must not be reloaded, one that is complete, one that was not reached."""
    chosen = releases.release("26.7.0")
    known = {"gpu01": facts(*["A100"] * 8),
             "gpu02": facts(*["A100"] * 8, driver="580.126.20", toolkit="1.20.0", containerd=True, mig={"3g.40gb": 2}),
             "gpu03": facts(*["L40S"] * 4, driver="595.91.07", toolkit="1.20.0", containerd=True), "gpu04": None}
    plan = resolve(formats.read(None, chosen), chosen, known, {"gpu01": {"mig_manager_selected": "all-1g.10gb"}})
    hosts = {}
    for host, mine in known.items():
        pending = {"driver": [PENDING, FOLLOWS]} if host == "gpu02" else {}
        checks = None if mine is None else [
            check.as_dict() for check in with_pending(verify(plan["hosts"][host], mine), pending)]
        hosts[host] = {"facts": mine, "checks": checks, "steps": {}, "pending": pending}
    packages = [{"id": "install packages: nvidia-open=595.91.07-1", "reason": "", "needs": "never"},
                {"id": "load module: nvidia", "reason": "it is not loaded", "needs": "never"}]
    mig = [{"id": f"{what}: 0000:0{number}:00.0", "reason": "selected=all-1g.10gb", "needs": needs}
           for number in (7, 8, 9) for what, needs in (("enable MIG mode", "idle"), ("create MIG instances", "never"))]
    hosts["gpu01"]["steps"] = {"driver": packages, "mig_manager": mig}
    hosts["gpu02"]["steps"] = {"driver": [RELOAD]}
    return {"plan": plan, "problem": None, "hosts": hosts, "findings": []}


def assert_golden(name: str, text: str) -> None:
    """Checks that the text equals that of a file. After an intended change: GPUOPS_GOLDEN=write pytest
    tests/unit/reports."""
    path = os.path.join(os.path.dirname(__file__), "golden", f"{name}.txt")
    if os.environ.get("GPUOPS_GOLDEN") == "write":
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(text)
    with open(path, encoding="utf-8") as handle:
        assert text == handle.read()


@pytest.mark.parametrize("name", ["plan-119", "plan-79", "result-119", "result-79", "state-100"])
def test_rendering(name: str) -> None:
    kind, width = name.split("-")
    style = Style(int(width), fancy=width != "79")
    render = {"plan": render_plan, "result": render_result, "state": render_state}[kind]
    text = render(Report.of(fleet()), style) + "\n"
    assert_golden(name, text)
    assert max(map(len, text.splitlines())) <= int(width)
    assert style.fancy or text.isascii()


def test_a_converged_fleet_has_nothing_to_do() -> None:
    report = fleet()
    report["hosts"] = {"gpu03": report["hosts"]["gpu03"]}
    assert "Nothing to do: every host is as planned." in render_plan(Report.of(report), Style())
    assert verdict(Report.of(report)) == "6 of 6 checks are ok on 1 host."


def test_hosts_with_the_same_steps_stand_together() -> None:
    report = fleet()
    report["hosts"]["gpu05"] = report["hosts"]["gpu01"]
    assert "Steps on gpu01, gpu05:" in render_plan(Report.of(report), Style())


def test_state_says_why_there_is_no_plan() -> None:
    report = {**fleet(), "plan": None, "problem": "The policy cannot be carried out."}
    assert render_state(Report.of(report), Style()).endswith("The policy cannot be carried out.")


def test_colours_do_not_move_columns() -> None:
    style = Style(40, paint=lambda text, state: f"<{text}>" if state == "failed" else text)
    lines = style.table(["a", "b"], [[Cell("x"), Cell("y", "failed")]]).splitlines()
    assert lines[3].replace("<", "").replace(">", "") == "│ x │ ✖ y │"


class Parser(html.parser.HTMLParser):
    """Collects tags, and the URLs that would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [str(value) for key, value in attrs if key in ("src", "href")]


def test_page_is_self_contained_and_escaped() -> None:
    report = fleet()
    report["plan"]["notes"] = ["<script>alert('note')</script>"]
    report["hosts"]["<b>evil</b>"] = report["hosts"].pop("gpu03")
    report["hosts"]["gpu01"]["steps"]["driver"][0]["id"] = "<img src=x>"
    report["hosts"]["gpu01"]["checks"][0]["detail"] = "<iframe>"
    text = webpage.page(Report.of(report))
    parser = Parser()
    parser.feed(text)
    assert not {"img", "iframe", "link"} & set(parser.tags) and parser.tags.count("script") == 1, "its own"
    assert parser.tags.count("b") == 5, "only those of the tiles"
    assert parser.loaded == [] and "url(" not in text and "@import" not in text
    for words in ("&lt;script&gt;", "&lt;b&gt;evil", "&lt;img src=x&gt;", "not reached", "595.91.07"):
        assert words in text


def test_a_file_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path, act in ((tmp_path / "file" / "report.html", "written"), (tmp_path, "read")):
        with pytest.raises(InputError, match=f"html_path: {path} cannot be {act}: .*. Name a file in a folder"):
            output_file.write("html_path", str(path), b"text", False)
