# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures site.yml on a converged cluster, and C(kubectl apply) of the objects that site.yml manages."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from lab.controlplane import binary
from lab.stages import ROOT
from tests.integration import user

NAME, NODES, ROUNDS, BUDGET = "bench", 20, 5, 5.0
Row = tuple[str, str, str, bool]


def rows(scale: float) -> list[Row]:
    """The rows C((what, figure, budget, whether it is kept)). scale: how many seconds on this machine correspond to one
    second on the machine for which the budget was set."""
    with lab_cluster("--gpu", str(NODES), "--cpu", "2") as kubeconfig, tempfile.TemporaryDirectory() as folder:
        return measure(kubeconfig, Path(folder), scale)


@contextmanager
def lab_cluster(*nodes: str) -> Iterator[str]:
    """The kubeconfig of a new cluster. nodes: the options of the lab that describe its Nodes."""
    lab = [sys.executable, "-m", "lab", "cluster"]
    subprocess.run([*lab, "up", "--name", NAME, "--nodes", "plain", *nodes], cwd=ROOT, check=True)
    try:
        shown = subprocess.run([*lab, "kubeconfig", "--name", NAME], cwd=ROOT, check=True, capture_output=True,
                               text=True)
        yield shown.stdout.strip().splitlines()[-1]
    finally:
        subprocess.run([*lab, "down", "--name", NAME], cwd=ROOT, check=True)


def inventory_of(kubeconfig: str, folder: Path) -> Path:
    """Writes an inventory of one cluster to a folder; returns it."""
    inventory = folder / "inventory.yml"
    inventory.write_text(yaml.safe_dump({
        "all": {"vars": {"gpu_placement": "cluster", "gpu_kubeconfig": kubeconfig}},
        "gpu_control": {"hosts": {"cluster": {
            "ansible_connection": "local", "ansible_become": False,
            "ansible_python_interpreter": "{{ ansible_playbook_python }}"}}}}))
    return inventory


def measure(kubeconfig: str, folder: Path, scale: float) -> list[Row]:
    """Measures both alternately on the same objects; neither changes an object."""
    inventory = inventory_of(kubeconfig, folder)
    manifests = folder / "manifests"
    site(inventory)
    site(inventory, "-e", f"gpu_render_to={manifests}")
    apply = ["kubectl", "--kubeconfig", kubeconfig, "--cache-dir", str(folder / "cache"), "apply", "--server-side",
             "--force-conflicts", "--field-manager", "gpuops-bench", "--kustomize", str(manifests)]
    ours, plain, changed, count = [], [], 0, 0
    for _number in range(ROUNDS):
        took, run = site(inventory)
        ours.append(took)
        changed += len(run.changed("cluster"))
    for _number in range(ROUNDS + 1):
        started = time.monotonic()
        done = subprocess.run(apply, executable=binary.program(), check=True, capture_output=True, text=True,
                              env={**os.environ, "KUBECONFIG": ""})
        plain.append(time.monotonic() - started)
        count = len(done.stdout.splitlines())
    seconds = statistics.median(ours)
    return [
        (f"site.yml, converged cluster of {NODES + 2} Nodes, seconds", f"{seconds * scale:.2f}", f"< {BUDGET:.0f}",
         seconds * scale < BUDGET),
        (f"  median seconds here: site.yml / kubectl apply of {count}",
         f"{seconds:.2f} / {statistics.median(plain[1:]):.2f}", "", True),
        ("  changed", str(changed), "0", not changed),
    ]


def site(inventory: Path, *words: str) -> tuple[float, user.Run]:
    """Wall time of one run of site.yml."""
    started = time.monotonic()
    run = user.playbook("site", [inventory], *words)
    if run.rc:
        raise SystemExit(run.output)
    return time.monotonic() - started, run
