# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(make bench): reports each figure as a ratio to a calibrator that is measured in the same run. The hosts of the lab
are converged afterwards.

It needs a lab that C(GPUOPS_BENCHMARK=1 python3 -m lab up) has created; the hosts of such a lab have no bytecode cache.

The Nodes belong to a cluster that is created for the benchmark and removed afterwards.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lab.stages import ROOT
from tests.bench import cluster, features, fleet, labels, mig, resolve, states
from tests.integration import user

HOST = "gpu-a2"
ROUNDS = 5
# A play with facts and eight small modules, as the calibrator of a converged run: 2.9 s where the chain of the peers'
# roles (driver, toolkit, DCGM: 39 tasks) took 14.5 s, both measured on one machine. 0.35 of that chain is the budget.
CALIBRATOR_SECONDS, CHAIN_SECONDS, SHARE = 2.9, 14.5, 0.35
CALIBRATOR = """- hosts: all
  gather_facts: true
  tasks:
""" + "".join(f"    - name: Small module {number}\n      ansible.builtin.ping:\n        data: '{number}'\n"
              for number in range(8))


def seconds(name: str, inventory: list[Path]) -> tuple[float, user.Run]:
    """Wall time of one run on one host."""
    started = time.monotonic()
    run = user.playbook(name, inventory, "--limit", HOST)
    if run.rc:
        raise SystemExit(run.output)
    return time.monotonic() - started, run


def main() -> int:
    """Prints the table. Returns 1 if a budget is exceeded."""
    os.environ["GPUOPS_BENCHMARK"] = "1"  # no cache of byte code in this process and its runs
    user.install()
    words = [sys.executable, "-m", "lab", "inventory"]
    shown = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    inventory = [Path(shown.strip().splitlines()[-1]), ROOT / "lab" / "demo" / "hosts.yml"]
    calibrator = user.HOME / "calibrator.yml"
    calibrator.write_text(CALIBRATOR)
    seconds("site", inventory)
    site, small, last = [], [], user.Run(0, "")
    for _number in range(ROUNDS):
        small.append(seconds(str(calibrator), inventory)[0])
        took, last = seconds("site", inventory)
        site.append(took)
    tasks = last.of(HOST)
    modules = [line for line in tasks if line["action"] not in user.ON_CONTROLLER]
    ratio = statistics.median(site) / statistics.median(small)
    chain = ratio * CALIBRATOR_SECONDS / CHAIN_SECONDS
    rows = [
        ("site.yml, converged host, share of the peers' chain", f"{chain:.2f}", f"< {SHARE}", chain < SHARE),
        ("  median seconds: site.yml / calibrator", f"{statistics.median(site):.2f} / {statistics.median(small):.2f}",
         "", True),
        ("  executed tasks", str(len(tasks)), "<= 25", len(tasks) <= 25),
        ("  of these on the host", str(len(modules)), "<= 8", len(modules) <= 8),
        ("  changed", str(len(last.changed(HOST))), "0", not last.changed(HOST)),
        *cluster.rows(CALIBRATOR_SECONDS / statistics.median(small)),
        *resolve.rows(),
        *states.rows(),
        *labels.rows(),
        *features.rows(),
        *mig.rows(),
        *fleet.rows(),
    ]
    for what, figure, budget, good in rows:
        print(f"{what:<55} {figure:>12}  {budget:<8} {'' if good else 'MISSED'}".rstrip())
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
