# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of actions whose module needs pynvml on the host. PRIVATE to the collection.

Hosts have no package for pynvml, and as part of a module's payload it would cost 332 KB a task. So the module runs
without it; only where it answers C(missing_library: pynvml) is the controller's file copied into the task's temporary
folder and the module run once more. The driver role installs it for good.
"""

from __future__ import annotations

import importlib.util
import os
import typing as t

from ansible.plugins.action import ActionBase

# The environment variable by which the module finds the shipped file; read by module_utils/_nvml.py.
PYTHON_PATH_VARIABLE = "GPUOPS_PYTHON_PATH"


class HostAction(ActionBase):
    """Runs the module of the same name, with pynvml shipped where it is missing."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Ansible's entry point."""
        super().run(tmp, task_vars)
        result = self.run_module(task_vars or {})
        self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

    def run_module(self, task_vars: dict[str, t.Any], module_args: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Runs the module, a second time with pynvml where it asked for it. module_args: default the task's."""
        result = self._execute_module(module_args=module_args, task_vars=task_vars)
        error = result.get("error") or {}
        if result.get("failed") and error.get("kind") == "missing_library" and error.get("library") == "pynvml":
            source = importlib.util.find_spec("pynvml")
            if source is None or source.origin is None:
                result["msg"] = ("The host has no pynvml and neither has the controller. "
                                 "Install it on the controller: pip install nvidia-ml-py.")
                return result
            folder = self._make_tmp_path()
            target = self._connection._shell.join_path(folder, os.path.basename(source.origin))
            self._transfer_file(source.origin, target)
            self._task.environment = [*(self._task.environment or []), {PYTHON_PATH_VARIABLE: folder}]
            result = self._execute_module(module_args=module_args, task_vars=task_vars)
        return result
