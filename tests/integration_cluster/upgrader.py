# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(python -m tests.integration_cluster.upgrader KUBECONFIG PLAN LEVEL BAD [NODE...]): upgrades the drivers of a
cluster, or of these Nodes, as the action of node_upgrade does, in a process that a test can kill. Prints the result as
JSON in the last line. BAD: the Nodes with faults, separated by commas."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Container
from pathlib import Path

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade import fleet
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.node_upgrade import Terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.run import Limits, Upgrade


class Clock:
    """A clock that stands still while a pod of a Node without a fault starts or ends: on a busy machine, this takes any
    time, and only the Nodes with faults must reach a limit."""

    def __init__(self, client: Client, namespace: str, bad: Container[str]) -> None:
        self.client, self.namespace, self.bad = client, namespace, bad
        self.passed, self.last, self.lock = 0.0, time.monotonic(), threading.Lock()

    def __call__(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        with self.lock:
            moves, now = self.moves(), time.monotonic()
            self.passed += 0.0 if moves else now - self.last
            self.last = now

    def moves(self) -> bool:
        """Whether a driver or a validator without a fault is not Ready."""
        return any(not is_ready(pod) or "deletionTimestamp" in pod["metadata"]
                   for pod in self.client.list("v1", "Pod", self.namespace)
                   if pod["spec"].get("nodeName") not in self.bad)


if __name__ == "__main__":
    kubeconfig, plan, level, bad, *names = sys.argv[1:]
    client = Client(kubeconfig)
    found = fleet.read(client, json.loads(Path(plan).read_text()), names)
    clock = Clock(client, found.namespace, bad.split(","))
    terms = Terms(Holder.of_process(os.getpid()), level, clock=clock, sleep=clock.sleep)
    run = Upgrade(client, found, terms, Limits(max_fail=100), print)
    print(json.dumps(run.run()))
