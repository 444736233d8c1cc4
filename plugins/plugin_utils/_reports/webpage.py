# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one HTML page, from the template C(page.html.j2). Pure. PRIVATE."""

from __future__ import annotations

import base64
import functools
import hashlib
import os

import jinja2
import markupsafe
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report as host
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import (
    report_cluster,
    report_findings,
    report_gpus,
    report_states,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report

# The most Nodes of one component on the page; the result of gpu_verify has all of them.
_SHOWN = 30


def page(report: Report) -> str:
    """The whole document."""
    title = ("GPU cluster" if not report.hosts else "GPU hosts and cluster") if report.cluster else "GPU hosts"
    return _template().render(
        title=title, report=report, host=host, cluster=report_cluster, findings=report_findings,
        standing=report_states, gpus=report_gpus, by_name=by_name, script=markupsafe.Markup(_script()),
        security=_security(),
        tiles=_tiles(report), columns=host.columns(report), shown=_SHOWN,
        checked=any(entry.checks is not None for entry in report.hosts.values()))


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), undefined=jinja2.StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.get_template("page.html.j2")


@functools.cache
def _script() -> str:
    with open(os.path.join(os.path.dirname(__file__), "page.js"), encoding="utf-8") as handle:
        return handle.read()


def _security() -> str:
    """The Content Security Policy of the page: its own script is the only one that a browser runs, and it loads nothing
    else."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _tiles(report: Report) -> list[tuple[int, str]]:
    """The numbers at the head of the page."""
    states = host.host_states(report)
    gpus = sum(len(entry.facts["gpus"]) for entry in report.hosts.values() if entry.facts)
    tiles = [(len(report.hosts), "hosts"), (gpus, "GPUs")] if report.hosts or not report.cluster else []
    if report.cluster:
        tiles += report_cluster.tiles(report.cluster)
    tiles += [(count, report_findings.word(severity, count)) for severity, count in counts(report.findings).items()
              if count]
    if states:
        ok, pending = states.count("ok"), states.count("pending")
        tiles += [(ok, "checks ok"), (pending, "pending"), (len(states) - ok - pending, "failed")]
    return tiles
