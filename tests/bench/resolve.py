# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the plan of 5,000 mixed hosts from their facts: the time, compared with parsing the same facts as JSON, and
the memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

HOSTS, ROUNDS, BUDGET_SECONDS, BUDGET_RATIO, BUDGET_MIB = 5000, 3, 5, 5, 300
# In a process of its own, whose memory is nobody else's. Each host has facts of its own, as from as many machines.
TASK = """import json, resource, sys, time
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import driven, facts

count = int(sys.argv[1])
boards = (["20b2"] * 8, ["2330"] * 8, ["2901"] * 8, ["1db5"] * 8, ["1eb8"] * 4, ["26b9"] * 4, ["2342"],
          ["1db5", "20b2"])
systems = (("ubuntu22.04", "5.15.0-{}-generic"), ("ubuntu24.04", "6.8.0-{}-generic"), ("debian12", "6.1.0-{}-amd64"),
           ("rhel9.6", "5.14.0-570.{}.1.el9_6.x86_64"))
kinds = [driven(one, "580.173.02", "proprietary" if "1db5" in gpus else "open") if index % 2 else one
         for index, gpus in enumerate(boards) for system, kernel in systems
         for one in [facts(gpus, system, kernel.format(index + 20))]]
texts = {f"gpu{number:04d}": json.dumps(kinds[number % len(kinds)]) for number in range(count)}
started = time.perf_counter()
fleet = {name: json.loads(text) for name, text in texts.items()}
reading = time.perf_counter() - started
mine = {name: {"mig_manager_selected": "all-balanced"} for number, name in enumerate(fleet)
        if kinds[number % len(kinds)]["gpus"][0]["device_id"] == "2330" and number % 3 == 0}
release = releases.release()
policy = formats.read(None, release)
started = time.perf_counter()
plan = resolve(policy, release, fleet, mine)
seconds = time.perf_counter() - started
versions = {host["driver"]["version"] for host in plan["hosts"].values()}
print(json.dumps({"seconds": seconds, "reading": reading, "hosts": len(plan["hosts"]), "versions": len(versions),
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
Row = tuple[str, str, str, bool]


def rows() -> list[Row]:
    """The rows C((what, figure, budget, whether it is kept))."""
    runs = [json.loads(subprocess.run([sys.executable, "-c", TASK, str(HOSTS)], check=True, capture_output=True,
                                      text=True).stdout) for _number in range(ROUNDS)]
    seconds = statistics.median(run["seconds"] for run in runs)
    ratio = statistics.median(run["seconds"] / run["reading"] for run in runs)
    memory = max(run["mib"] for run in runs)
    complete = all(run["hosts"] == HOSTS and run["versions"] > 1 for run in runs)
    return [
        (f"resolve {HOSTS} mixed hosts, against reading their facts", f"{ratio:.2f}", f"< {BUDGET_RATIO}",
         ratio < BUDGET_RATIO and complete),
        ("  median seconds", f"{seconds:.2f}", f"< {BUDGET_SECONDS}", seconds < BUDGET_SECONDS),
        ("  memory with the facts, MiB", f"{memory:.0f}", f"< {BUDGET_MIB}", memory < BUDGET_MIB),
    ]
