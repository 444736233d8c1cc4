# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of mig_config: reads C(config_file), for hosts have no YAML."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._host_action import HostAction


class ActionModule(HostAction):
    """Runs the module with the file's content as C(config)."""

    def run_module(self, task_vars: dict[str, t.Any], module_args: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """See HostAction."""
        args = dict(self._task.args if module_args is None else module_args)
        path = args.get("config_file")
        if path and not args.get("config"):
            try:
                args["config"] = self._loader.load_from_file(find_file(task_vars, path))
            except AnsibleError as error:
                return {"failed": True, "msg": f"config_file: {error}"}
            del args["config_file"]
        return super().run_module(task_vars, args)
