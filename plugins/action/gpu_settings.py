# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of gpu_settings: brings pynvml to the host, and names what an earlier task would install."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import SHIP
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars


class ActionModule(HostAction):
    """Runs the module."""

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """See HostAction."""
        args = self.options(module_args)
        if self._task.check_mode:
            args.setdefault("files_before", inventory_vars.driver_steps(task_vars, SHIP))
        return super().run_module(task_vars, args)
