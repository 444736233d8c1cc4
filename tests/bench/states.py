# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the states of a fleet from what a run has read, with table, page, JSON and metrics: the time, compared with
parsing the same documents as JSON, and whether it grows only linearly."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

NODES, FEWER, ROUNDS, BUDGET_RATIO, BUDGET_GROWTH, BUDGET_MIB = 1000, 250, 3, 200, 6.0, 150
# In a process of its own, whose memory is nobody else's. Each tenth Node has a problem.
TASK = """import json, resource, sys, time
from dataclasses import replace
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import (
    metrics, report_data, report_states, states, webpage)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report_cluster import alone

count = int(sys.argv[1])
names = [f"gpu-{number:05d}" for number in range(count)]
made = alone()
cluster = made["cluster"]
cluster["plan"]["nodes"].update(gpu=names, pools=[])
cluster["plan"]["deploy"]["on_host"] = {}
problem = cluster["checks"][1]["nodes"][0]
cluster["checks"][1]["nodes"] = [{**problem, "node": name} for name in names[::10]]
cluster["checks"][2]["nodes"] = [{**problem, "node": name, "waits_for": "validator"} for name in names[::10]]
cluster["observed"] = {name: {"ready_since": "2026-11-22T07:10:47Z", "capacity": 8, "offered": 8,
                              "valid_since": "2026-11-22T07:10:47Z", "driver": "595.91.07"} for name in names}
webpage.page(Report.of(alone()))  # compiles the template
text = json.dumps(made)
started = time.perf_counter()
document = json.loads(text)
reading = time.perf_counter() - started
started = time.perf_counter()
report = Report.of(document)
found = states.states(report)
table = report_states.render(found, Style(80))
page = webpage.page(replace(report, states=found))
data = json.dumps(report_data.document(document, [], found))
told = metrics.text(found, 0)
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "reading": reading, "nodes": len(found), "summary": table[-1],
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
Row = tuple[str, str, str, bool]


def rows() -> list[Row]:
    """The rows C((what, figure, budget, whether it is kept))."""
    runs, fewer = ([json.loads(subprocess.run([sys.executable, "-c", TASK, str(count)], check=True, capture_output=True,
                                              text=True).stdout) for _number in range(ROUNDS)]
                   for count in (NODES, FEWER))
    ratio = statistics.median(run["seconds"] / run["reading"] for run in runs)
    seconds, before = (statistics.median(run["seconds"] for run in some) for some in (runs, fewer))
    growth, memory = seconds / before, max(run["mib"] for run in runs)
    complete = all(run["nodes"] == NODES and run["summary"] == f"States: {NODES - NODES // 10} Ready, "
                   f"{NODES // 10} NotReady" for run in runs)
    return [
        (f"states of {NODES} Nodes, against reading their documents", f"{ratio:.2f}", f"< {BUDGET_RATIO}",
         ratio < BUDGET_RATIO and complete),
        (f"  median seconds, against {FEWER} Nodes", f"{seconds:.2f} {growth:.1f}x", f"< {BUDGET_GROWTH}x",
         growth < BUDGET_GROWTH),
        ("  memory with the documents, MiB", f"{memory:.0f}", f"< {BUDGET_MIB}", memory < BUDGET_MIB),
    ]
