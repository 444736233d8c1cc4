# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies pynvml to the host, where the module installs it permanently, then runs the module."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction, refuse_options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data

# Options that module_defaults can set for all tasks. They do not describe the driver.
_WITH_GATHERED = ("disruption", "lock_timeout", "proxy")
# Options that the former driver determines.
_FORMER = ("version", "branch", "kernel_module_type", "source", "installation")


class ActionModule(HostAction):
    """Refuses options that describe a driver if the task only reads the driver, or returns to the former one."""

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """See HostAction."""
        given, state = self._task.args, self._task.args.get("state")
        try:
            if state == "gathered":
                refuse_options(given, state, _WITH_GATHERED)
            if state == "rolled_back":
                refuse_options(given, state, [name for name in given if name not in _FORMER])
        except InputError as error:
            return {"failed": True, **error.as_result()}
        return super().run_module(task_vars, module_args)
