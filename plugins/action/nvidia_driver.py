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


class ActionModule(HostAction):
    """Refuses options that describe a driver if the task only reads the driver."""

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """See HostAction."""
        if self._task.args.get("state") == "gathered":
            try:
                refuse_options(self._task.args, "gathered", _WITH_GATHERED)
            except InputError as error:
                return {"failed": True, **error.as_result()}
        return super().run_module(task_vars, module_args)
