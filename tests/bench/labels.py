# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the labelling of 1,000 new Nodes: one task, compared with 16 plain connections that send the same
PATCHes."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import MANAGER, Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    Terms,
    parse_deploy,
    plan_present,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import read_nodes

from lab.stages import ROOT

NODES, CONNECTIONS, ROUNDS, BUDGET, MEMORY = 1000, 16, 3, 1.5, 150
DEPLOY = {"components": dict.fromkeys((
    "nfd", "driver", "container_toolkit", "validator", "device_plugin", "feature_discovery", "dcgm_exporter",
    "mig_manager"), True), "mig_default": "all-disabled"}
# What a host with eight H100 tells.
TOLD = {
    **{f"nvidia.com/{key}": value for key, value in {
        "cuda.driver-version.major": "595", "cuda.driver-version.minor": "91", "cuda.driver-version.revision": "07",
        "cuda.driver-version.full": "595.91.07", "cuda.driver.major": "595", "cuda.driver.minor": "91",
        "cuda.driver.rev": "07", "cuda.runtime-version.major": "13", "cuda.runtime-version.minor": "2",
        "cuda.runtime-version.full": "13.2", "cuda.runtime.major": "13", "cuda.runtime.minor": "2",
        "gpu.machine": "DGXH100", "gpu.count": "8", "gpu.memory": "81559", "gpu.product": "NVIDIA-H100-80GB-HBM3",
        "gpu.family": "hopper", "gpu.compute.major": "9", "gpu.compute.minor": "0", "gpu.replicas": "1",
        "gpu.sharing-strategy": "none", "gpu.mode": "compute", "mig.capable": "true", "mps.capable": "false",
        "vgpu.present": "false"}.items()}}
# The task without Ansible around it, in a process of its own: its memory is nobody else's.
TASK = """import json, resource, sys, time
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import label_nodes
arguments = {"context": None, "nodes": None, "wait_for_nfd": 0, "adopt": [], "gone_after": 600, **json.load(sys.stdin)}
started = time.monotonic()
result = label_nodes(arguments, False, arguments.pop("told"))
print(json.dumps({"seconds": time.monotonic() - started, "changed": result["counts"]["changed"],
                  "failed": result["counts"]["failed"],
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
Row = tuple[str, str, str, bool]


def rows() -> list[Row]:
    """The rows C((what, figure, budget, whether it is kept))."""
    lab = [sys.executable, "-m", "lab", "cluster"]
    subprocess.run([*lab, "up", "--name", "bench", "--nodes", "plain", "--gpu", str(NODES)], cwd=ROOT, check=True)
    try:
        shown = subprocess.run([*lab, "kubeconfig", "--name", "bench"], cwd=ROOT, check=True, capture_output=True,
                               text=True)
        return measure(shown.stdout.strip().splitlines()[-1])
    finally:
        subprocess.run([*lab, "down", "--name", "bench"], cwd=ROOT, check=True)


def measure(kubeconfig: str) -> list[Row]:
    """Measures both alternately on the same Nodes; the labels are removed in between."""
    task("absent", kubeconfig)
    plain, ours, again, mended = [], [], {}, {}
    for _number in range(ROUNDS):
        plain.append(plainly(kubeconfig))
        task("absent", kubeconfig)
        ours.append(task("present", kubeconfig))
        again = task("present", kubeconfig)
        lose_one(kubeconfig)
        mended = task("present", kubeconfig)
        task("absent", kubeconfig)
    seconds = statistics.median(one["seconds"] for one in ours)
    ratio = seconds / statistics.median(plain)
    complete = all(one["changed"] >= NODES and not one["failed"] for one in ours)
    memory = max(one["mib"] for one in ours)
    return [
        (f"all labels of {NODES} new Nodes, against plain PATCHes", f"{ratio:.2f}", f"< {BUDGET}",
         ratio < BUDGET and complete),
        ("  median seconds: one task / 16 connections", f"{seconds:.2f} / {statistics.median(plain):.2f}", "", True),
        ("  once more: seconds / Nodes written", f"{again['seconds']:.2f} / {again['changed']}", "0 Nodes",
         not again["changed"]),
        ("  a label that was removed by hand: Nodes written", str(mended["changed"]), "1 Node", mended["changed"] == 1),
        ("  memory, MiB", f"{memory:.0f}", f"< {MEMORY}", memory < MEMORY),
    ]


def task(state: str, kubeconfig: str) -> dict[str, Any]:
    """Runs the task once; returns C({seconds, changed, failed, mib})."""
    told = dict.fromkeys((f"gpu-{number + 1}" for number in range(NODES)), TOLD)
    given = json.dumps({"state": state, "kubeconfig": kubeconfig, "deploy": DEPLOY, "told": told})
    ran = subprocess.run([sys.executable, "-c", TASK], input=given, check=True, capture_output=True, text=True)
    return dict(json.loads(ran.stdout))


def lose_one(kubeconfig: str) -> None:
    """Removes a label from a Node, as another client would."""
    gone = {"metadata": {"labels": {"nvidia.com/gpu.count": None}}}
    Client(kubeconfig).merge_patch("v1", "Node", "gpu-7", None, gone, field_manager="somebody")


def plainly(kubeconfig: str) -> float:
    """Seconds for the PATCHes that the task would send, with the connections of the standard library only."""
    address, context = connect(kubeconfig)
    deploy = parse_deploy(DEPLOY)
    nodes = [replace(node, host=TOLD) for node in read_nodes(Client(kubeconfig)) if node.gpu]
    changes = [change for change in (plan_present(node, deploy, Terms(time.time())) for node in nodes) if change]
    bodies = iter([(f"/api/v1/nodes/{change.node}?fieldManager={MANAGER}", json.dumps(change.patch()))
                   for change in changes])
    lock = threading.Lock()
    statuses: list[int] = []

    def work() -> None:
        connection = http.client.HTTPSConnection(address, context=context)
        while True:
            with lock:
                path, body = next(bodies, ("", ""))
            if not path:
                return
            connection.request("PATCH", path, body, {"Content-Type": "application/merge-patch+json"})
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)

    threads = [threading.Thread(target=work) for _number in range(CONNECTIONS)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - started
    if statuses.count(200) != len(changes) or len(changes) < NODES:
        raise SystemExit(f"{statuses.count(200)} of {len(changes)} plain PATCHes went through")
    return took


def connect(kubeconfig: str) -> tuple[str, ssl.SSLContext]:
    """C((host and port, TLS context with the client certificate)) from a kubeconfig of the lab, which contains all of
    it."""
    document = yaml.safe_load(Path(kubeconfig).read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("client-certificate", "client-key")]
        for path in paths:
            Path(path).write_bytes(base64.b64decode(user[f"{os.path.basename(path)}-data"]))
        context.load_cert_chain(*paths)
    return cluster["server"].removeprefix("https://"), context
