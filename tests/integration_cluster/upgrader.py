# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(python -m tests.integration_cluster.upgrader KUBECONFIG PLAN LEVEL [NODE...]): upgrades the drivers of a
cluster, or of these Nodes, as the action of node_upgrade does, in a process that a test can kill. Prints the result as
JSON in the last line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade import fleet
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.node_upgrade import Terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.run import Limits, Upgrade

if __name__ == "__main__":
    kubeconfig, plan, level, *names = sys.argv[1:]
    client = Client(kubeconfig)
    found = fleet.read(client, json.loads(Path(plan).read_text()), names)
    run = Upgrade(client, found, Terms(Holder.of_process(os.getpid()), level), Limits(max_fail=100), print)
    print(json.dumps(run.run()))
