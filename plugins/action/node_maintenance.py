# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes a Node out of service, or puts it back, and prints the progress."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import tell
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import drain
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import Maintenance, Outcome, Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder


class ActionModule(ControllerAction):
    """See the documentation of the module node_maintenance."""

    ARGUMENTS = {
        "state": {"type": "str", "choices": ["started", "ended"], "required": True},
        "node": {"type": "str", "required": True},
        "kubeconfig": {"type": "path", "required": True},
        "context": {"type": "str"},
        "disruption": {"type": "str", "choices": list(LEVELS), "default": "never"},
        "clients": {"type": "list", "elements": "dict", "default": []},
        "grace_period": {"type": "int"},
        "timeout": {"type": "int", "default": 300},
        "delete_emptydir_data": {"type": "bool", "default": False},
        "force": {"type": "bool", "default": False},
        "reason": {"type": "str", "default": ""},
        "begun": {"type": "dict", "default": {}},
        "labels": {"type": "dict", "default": {}},
        "evict": {"type": "bool", "default": True},
        "creates": {"type": "bool", "default": False},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Takes the Node out of service, or puts it back."""
        evictions = EvictionOptions(True, arguments["force"], arguments["delete_emptydir_data"])
        drained = drain.Request([arguments["node"]], evictions, arguments["grace_period"], arguments["timeout"],
                                arguments["disruption"], bool(self._task.check_mode))
        request = Request(drained, Holder.of_run(), arguments["clients"], arguments["reason"],
                          Outcome.read(arguments["begun"]), seen=arguments["labels"], evict=arguments["evict"],
                          creates=arguments["creates"])
        client = Client(find_file(task_vars, arguments["kubeconfig"]), arguments["context"])
        task = Maintenance(client, request, tell)
        outcome = task.started() if arguments["state"] == "started" else task.ended()
        # No task registers the pending steps of the end, so they are shown at once.
        waits = [f"{one.target} stays out of service: {one.pending_reason}."
                 for one in outcome.pending if arguments["state"] == "ended"]
        return {**outcome.as_dict(), "warnings": [*drain.staying_warnings(outcome.staying), *waits]}
