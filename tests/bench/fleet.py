# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures site.yml from an empty cluster to 1,000 Nodes with all operands ready, C(kubectl apply) of the same objects,
and status.yml and the plan of a driver upgrade on these Nodes.

They run alternately, each in a cluster of its own, because the remains of thousands of pods would slow down the next
measurement. Two measurements of the same kind differ by up to a seventh.

site.yml starts with Nodes that have only the labels of node feature discovery. For kubectl, the Nodes have all labels
already; kubectl is only queried for the DaemonSets until all are ready.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab.controlplane import binary
from tests.bench.cluster import inventory_of, lab_cluster
from tests.integration import user

NODES, ROUNDS, BUDGET, MEMORY, PATIENCE = 1000, 2, 1.3, 300, 900.0
SHARE = 0.5  # of the time of site.yml, that status.yml and the plan of an upgrade may take
UPGRADED = "580.173.02"  # another driver than the default
# Runs a command; the last line is the memory of its largest process in MiB.
MEASURED = """import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
sys.exit(done.returncode)
"""
Row = tuple[str, str, str, bool]
Object = dict[str, Any]


def rows() -> list[Row]:
    """The rows C((what, figure, budget, whether it is kept))."""
    ours, plain, mib, late, reads, plans = [], [], [], [], [], []
    for _number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with lab_cluster("--gpu", str(NODES)) as kubeconfig:
                took, memory = site(kubeconfig, folder)
                reads.append(status(folder)[0] / took)
                plans.append(upgrade(folder) / took)
                labels = {one["metadata"]["name"]: {key: value for key, value in one["metadata"]["labels"].items()
                                                    if key.startswith("nvidia.com/")} for one in nodes(kubeconfig)}
                late += lacking(Client(kubeconfig))
                pods = wanted(Client(kubeconfig))
            with lab_cluster("--gpu", str(NODES)) as kubeconfig:
                plain.append(apply(kubeconfig, folder, labels, pods))
        ours.append(took)
        mib.append(memory)
    ratio = sum(ours) / sum(plain)
    return [
        (f"site.yml, empty to {NODES} Nodes ready, against kubectl apply", f"{ratio:.2f}", f"< {BUDGET}",
         ratio < BUDGET and not late),
        (f"  seconds for {sum(pods.values())} pods: site.yml / kubectl",
         " ".join(f"{one:.0f}/{other:.0f}" for one, other in zip(ours, plain)), "", True),
        ("  DaemonSets that were not ready when it ended", ", ".join(late) or "0", "0", not late),
        (f"  status.yml on {NODES} Nodes, against site.yml", f"{max(reads):.2f}", f"< {SHARE}", max(reads) < SHARE),
        (f"  plan of a driver upgrade of {NODES} Nodes, against site.yml", f"{max(plans):.2f}", f"< {SHARE}",
         max(plans) < SHARE),
        ("  memory of the largest process, MiB", f"{max(mib):.0f}", f"< {MEMORY}", max(mib) < MEMORY),
    ]


def site(kubeconfig: str, folder: Path) -> tuple[float, float]:
    """C((seconds, MiB)) of a run of site.yml, which also writes the manifests to a folder."""
    inventory = inventory_of(kubeconfig, folder)
    words = [str(user.HOME / "venv" / "bin" / "ansible-playbook"), f"-i{inventory}", "gpuops.nvidia.site"]
    started = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", MEASURED, *words], check=False, cwd=user.HOME, stdout=subprocess.PIPE,
                         env=user.environment(), stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, text=True)
    took = time.monotonic() - started
    if ran.returncode:
        raise SystemExit(ran.stdout)
    rendered = user.playbook("site", [inventory], "-e", f"gpu_render_to={folder / 'manifests'}")
    if rendered.rc:
        raise SystemExit(rendered.output)
    return took, float(ran.stdout.splitlines()[-1])


def status(folder: Path) -> tuple[float, str]:
    """C((seconds, output)) of a run of status.yml with the inventory that L(site) has written to a folder."""
    started = time.monotonic()
    ran = user.playbook("status", [folder / "inventory.yml"], gpu_report_json=str(folder / "report.json"))
    if ran.rc:
        raise SystemExit(ran.output)
    return time.monotonic() - started, ran.output


def upgrade(folder: Path) -> float:
    """Seconds of upgrade.yml in check mode, with another driver and the inventory of L(site)."""
    started = time.monotonic()
    ran = user.playbook("upgrade", [folder / "inventory.yml"], "--check", gpu_disruption="drain",
                        gpu_policy={"driver": {"version": UPGRADED}})
    if ran.rc or len(ran.result("cluster", "node_upgrade")["nodes"]) != NODES:
        raise SystemExit(ran.output)
    return time.monotonic() - started


def apply(kubeconfig: str, folder: Path, labels: dict[str, dict[str, str]], pods: dict[str, int]) -> float:
    """Seconds of C(kubectl apply) until each DaemonSet has this number of ready pods."""
    client = Client(kubeconfig)
    client.many(lambda name: client.merge_patch("v1", "Node", name, None, {"metadata": {"labels": labels[name]}}),
                labels)
    started = time.monotonic()
    subprocess.run(["kubectl", "--kubeconfig", kubeconfig, "--cache-dir", str(folder / "cache"), "apply",
                    "--server-side", "--kustomize", str(folder / "manifests")], executable=binary.program(),
                   check=True, capture_output=True, env={**os.environ, "KUBECONFIG": ""})
    while wanted(client) != pods or lacking(client):
        if time.monotonic() - started > PATIENCE:
            raise SystemExit(f"{', '.join(lacking(client))}: not ready after {PATIENCE:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - started


def daemon_sets(client: Client) -> list[Object]:
    """All DaemonSets of the cluster."""
    return client.list("apps/v1", "DaemonSet")


def nodes(kubeconfig: str) -> list[Object]:
    """All Nodes."""
    return Client(kubeconfig).list("v1", "Node", metadata_only=True)


def wanted(client: Client) -> dict[str, int]:
    """Maps each DaemonSet to its desired number of pods."""
    return {one["metadata"]["name"]: one["status"]["desiredNumberScheduled"] for one in daemon_sets(client)}


def lacking(client: Client) -> list[str]:
    """The DaemonSets whose pods are not all ready."""
    return [one["metadata"]["name"] for one in daemon_sets(client)
            if one["status"]["numberReady"] < one["status"]["desiredNumberScheduled"]]
