# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains Nodes of a cluster, or restores their schedulability."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import tell
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.drain import Drain, Request, staying_warnings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder


class ActionModule(ControllerAction):
    """See the documentation of the module node_drain."""

    ARGUMENTS = {
        "state": {"type": "str", "choices": ["drained", "uncordoned"], "default": "drained"},
        "nodes": {"type": "list", "elements": "str", "required": True},
        "kubeconfig": {"type": "path", "required": True},
        "context": {"type": "str"},
        "pods": {"type": "str", "choices": ["gpu", "all"], "default": "gpu"},
        "grace_period": {"type": "int"},
        "timeout": {"type": "int", "default": 300},
        "delete_emptydir_data": {"type": "bool", "default": False},
        "force": {"type": "bool", "default": False},
        "cordoned": {"type": "list", "elements": "str", "default": []},
        "disruption": {"type": "str", "choices": list(LEVELS), "default": "never"},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Drains the Nodes, or restores their schedulability."""
        evictions = EvictionOptions(arguments["pods"] == "gpu", arguments["force"], arguments["delete_emptydir_data"])
        request = Request(list(dict.fromkeys(arguments["nodes"])), evictions, arguments["grace_period"],
                          arguments["timeout"], arguments["disruption"], bool(self._task.check_mode),
                          arguments["cordoned"], Holder.of_run())
        client = Client(find_file(task_vars, arguments["kubeconfig"]), arguments["context"])
        drain = Drain(client, request, tell)
        outcome = drain.drained() if arguments["state"] == "drained" else drain.uncordoned()
        return {**outcome.as_dict(), "warnings": staying_warnings(outcome.staying)}
