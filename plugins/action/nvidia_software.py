# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies pynvml to the host, where the node status exporter installs it permanently, then runs the module."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import SHIP
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import ADD, INSTALL
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars


class ActionModule(HostAction):
    """Passes to the module, in check mode, what the role driver would have changed before."""

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """See HostAction."""
        args = self.options(module_args)
        if self._task.check_mode:
            args.setdefault("repaired_repositories", inventory_vars.driver_steps(task_vars, ADD))
            args.setdefault("packages_before", bool(inventory_vars.driver_steps(task_vars, INSTALL)))
            args.setdefault("files_before", inventory_vars.driver_steps(task_vars, SHIP))
        return super().run_module(task_vars, args)
