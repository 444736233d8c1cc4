# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For Nodes, works from the controller. Else ships pynvml where the host needs it, then runs the module."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._host_action import HostAction

Result = t.Dict[str, t.Any]


class ActionModule(HostAction):
    """See the documentation of the module gpu_labels."""

    NODE_ARGUMENTS = {
        "state": {"type": "str", "choices": ["gathered", "present", "absent"], "default": "gathered"},
        "target": {"type": "str", "choices": ["node"], "required": True},
        "kubeconfig": {"type": "path", "required": True},
        "context": {"type": "str"},
        "nodes": {"type": "list", "elements": "str"},
        "deploy": {"type": "dict"},
        "wait_for_nfd": {"type": "int", "default": 0},
    }

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> Result:
        """Ansible's entry point. No host is connected to where the target is a Node."""
        if self._task.args.get("target") != "node":
            return super().run(tmp, task_vars)
        # Loading the client's library takes longer than the whole task on a host, which has no use for it.
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.deploy import label_nodes

        result: Result = ActionBase.run(self, tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(self.NODE_ARGUMENTS)
        arguments["kubeconfig"] = find_file(task_vars or {}, arguments["kubeconfig"])
        try:
            result.update(label_nodes(arguments, self._task.check_mode))
        except GpuopsError as error:
            result.update(error.as_result(), failed=True)
        return result
