# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of mig_config: reads C(config_file) and ConfigMaps, because hosts have no YAML library."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import SHIP
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import UNLOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import mig_document


class ActionModule(HostAction):
    """Runs the module with one plain document as C(config)."""

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """See HostAction."""
        args = self.options(module_args)
        try:
            # The module refuses both options together.
            both = args.get("config_file") and args.get("config")
            document = None if both else mig_document.from_options(
                task_vars, args.get("config_file"), args.get("config"))
        except GpuopsError as error:
            return {"failed": True, **error.as_result()}
        if document is not None:
            args.pop("config_file", None)
            args["config"] = document.data
        if self._task.check_mode:
            args.setdefault("after_reload", bool(inventory_vars.driver_steps(task_vars, UNLOAD)))
            args.setdefault("files_before", inventory_vars.driver_steps(task_vars, SHIP))
        return _placed(super().run_module(task_vars, args), document)


def _placed(result: Data, document: mig_document.MigDocument | None) -> Data:
    """Adds the file and the position to an error about the document, because the host gets only its content."""
    error = result.get("error") or {}
    path = error.get("path")
    if result.get("failed") and document is not None and path:
        place = document.place(path)
        result["msg"] = str(result.get("msg", "")).replace(path, place, 1)
        result["error"] = {**error, "path": place, "message": str(error.get("message", "")).replace(path, place, 1)}
    return result
