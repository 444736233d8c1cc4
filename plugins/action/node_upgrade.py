# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrades the driver pods of a cluster, and prints the progress."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import tell
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import windows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.refuse_operator import refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.deliver import check_plan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade import fleet
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.node_upgrade import Terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.run import Limits, Upgrade


class ActionModule(ControllerAction):
    """See the documentation of the module node_upgrade."""

    ARGUMENTS = {
        "cluster": {"type": "dict", "required": True},
        "kubeconfig": {"type": "path", "required": True},
        "context": {"type": "str"},
        "nodes": {"type": "list", "elements": "str", "default": []},
        "first": {"type": "list", "elements": "str", "default": []},
        "max_parallel": {"type": "int"},
        "max_unavailable": {"type": "str"},
        "max_fail_percentage": {"type": "int", "default": 0},
        "windows": {"type": "raw"},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Upgrades the driver pods, or in check mode says which would be upgraded."""
        cluster = arguments["cluster"]
        check_plan(cluster)
        client = Client(find_file(task_vars, arguments["kubeconfig"]), arguments["context"])
        refuse_operator(client)
        terms = Terms(Holder.of_run(), str(cluster.get("disruption", LEVELS[0])))
        limits = Limits(arguments["max_parallel"], arguments["max_unavailable"], arguments["max_fail_percentage"],
                        arguments["first"], windows.parse(arguments["windows"], "windows"))
        check = bool(self._task.check_mode)
        upgrade = Upgrade(client, fleet.read(client, cluster, arguments["nodes"], check), terms, limits, tell)
        return upgrade.preview() if check else upgrade.run()
