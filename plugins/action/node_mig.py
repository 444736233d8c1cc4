# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.holder import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.mig_layouts import refuse_unknown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.mig_work import Protocol, Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._controller_action import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._screen import tell


class ActionModule(ControllerAction):
    """See the documentation of the module node_mig."""

    ARGUMENTS = {
        "state": {"type": "str", "choices": ["gathered", "changing", "settled", "requested"], "default": "gathered"},
        "nodes": {"type": "list", "elements": "str", "default": []},
        "kubeconfig": {"type": "path", "required": True},
        "context": {"type": "str"},
        "namespace": {"type": "str", "default": "gpu-operator"},
        "layout": {"type": "str", "default": ""},
        "asked": {"type": "str"},
        "outcome": {"type": "str", "choices": ["success", "failed"], "default": "success"},
        "reason": {"type": "str", "default": ""},
        "labels": {"type": "dict", "default": {}},
        "at_once": {"type": "int", "default": 1},
        "timeout": {"type": "int", "default": 300},
        "disruption": {"type": "str", "choices": list(LEVELS), "default": "never"},
    }

    def work(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Does one part of the protocol."""
        state, names = arguments["state"], list(dict.fromkeys(arguments["nodes"]))
        if state in ("changing", "settled") and not names:
            raise InputError("It is needed with this state.", "Name the Nodes whose hosts are about to change.",
                             path="nodes")
        if arguments["at_once"] < 1:
            raise InputError("It must be 1 or more.", "Say how many Nodes may change at the same time.", path="at_once",
                             value=arguments["at_once"])
        request = Request(names, arguments["layout"], arguments["asked"], arguments["outcome"], arguments["reason"],
                          arguments["labels"], arguments["namespace"], arguments["at_once"], arguments["timeout"],
                          bool(self._task.check_mode), Holder.of_run(), arguments["disruption"])
        client = Client(find_file(task_vars, arguments["kubeconfig"]), arguments["context"])
        if state == "requested" and arguments["layout"]:
            refuse_unknown(client, arguments["namespace"], arguments["layout"], names)
        result: dict[str, t.Any] = getattr(Protocol(client, request, tell), state)()
        return result
