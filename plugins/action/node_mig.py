# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and writes the labels that request a MIG layout for Nodes."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import tell
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import host_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.manager_layouts import refuse_unknown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.mig_protocol import Protocol, Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder


class ActionModule(ControllerAction):
    """See the documentation of the module node_mig."""

    ARGUMENTS = {
        "state": {"type": "str", "choices": ["gathered", "changing", "settled", "recovered", "requested"],
                  "default": "gathered"},
        "nodes": {"type": "list", "elements": "str", "default": []},
        "kubeconfig": {"type": "path", "required": True},
        "context": {"type": "str"},
        "namespace": {"type": "str", "default": "gpu-operator"},
        "layout": {"type": "str", "default": ""},
        "expected_layout": {"type": "str"},
        "outcome": {"type": "str", "choices": ["success", "failed"], "default": "success"},
        "reason": {"type": "str", "default": ""},
        "labels": {"type": "dict", "default": {}},
        "release": {"type": "bool", "default": True},
        "pause": {"type": "bool", "default": True},
        "at_once": {"type": "str", "default": "1"},
        "max_fail_percentage": {"type": "int", "default": 0},
        "timeout": {"type": "int", "default": 300},
        "disruption": {"type": "str", "choices": list(LEVELS), "default": "never"},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Carries out one state of the label protocol."""
        state, names = arguments["state"], list(dict.fromkeys(arguments["nodes"]))
        if state in ("changing", "settled", "recovered") and not names:
            raise InputError("It is required with this state.", "Name the Nodes whose hosts are about to change.",
                             path="nodes")
        host_nodes.batch(arguments["at_once"], 1, "at_once")
        outcome = mig_labels.FAILED if state == "recovered" else arguments["outcome"]
        request = Request(names, arguments["layout"], arguments["expected_layout"], outcome, arguments["reason"],
                          arguments["labels"], arguments["namespace"], arguments["at_once"],
                          arguments["max_fail_percentage"], arguments["timeout"], bool(self._task.check_mode),
                          Holder.of_run(), arguments["release"], arguments["disruption"],
                          arguments["pause"])
        client = Client(find_file(task_vars, arguments["kubeconfig"]), arguments["context"])
        if state == "requested" and arguments["layout"]:
            refuse_unknown(client, arguments["namespace"], arguments["layout"], names)
        result: Data = getattr(Protocol(client, request, tell), state)()
        return result
