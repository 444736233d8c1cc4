# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._controller_action import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import components, gathered
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.verify import Check, verify, with_pending


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_verify."""

    _requires_connection = True
    ARGUMENTS = {
        "components": {"type": "list", "elements": "str"},
        "expected": {"type": "dict", "required": True},
        "facts": {"type": "dict"},
        "labels": {"type": "dict"},
        "pending": {"type": "dict"},
        "enforce": {"type": "bool", "default": True},
    }

    def work(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Compares, and fails where a check has failed."""
        only = arguments["components"]
        for name in only or ():
            components.by_name(name)
        host = task_vars["inventory_hostname"]
        facts = arguments["facts"] or gathered.unchanged_facts(task_vars, host) or self._gather(task_vars)
        pending = arguments["pending"]
        if pending is None:
            pending = gathered.listed(task_vars, host, "pending")
        expected = dict(arguments["expected"])
        file = (expected.get("mig_manager") or {}).get("config_file")
        if file:
            document = gathered.mig_document(task_vars, str(file))
            expected["mig_manager"] = {**expected["mig_manager"], "config": document}
        found = verify(expected, facts, only, arguments["labels"])
        checks = with_pending(found, pending, self._task.check_mode)
        result: dict[str, t.Any] = {"changed": False, "checks": [check.as_dict() for check in checks]}
        failed = [check for check in checks if check.state in ("failed", "absent")]
        if failed and arguments["enforce"]:
            result.update(failed=True, msg=_reasons(failed))
        return result

    def _gather(self, task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The facts as they are now, through the action of gpu_info, which ships pynvml where it is missing."""
        task = self._task.copy()
        task.action, task.args = "gpuops.nvidia.gpu_info", {}
        action = self._shared_loader_obj.action_loader.get(
            task.action, task=task, connection=self._connection, play_context=self._play_context,
            loader=self._loader, templar=self._templar, shared_loader_obj=self._shared_loader_obj)
        result = action.run(task_vars=task_vars)
        if result.get("failed"):
            raise HostError(str(result.get("msg", "gpu_info failed.")))
        return t.cast("dict[str, t.Any]", result["facts"])


def _reasons(failed: list[Check]) -> str:
    return "\n".join(f"{components.by_name(check.component).title}: {check.detail}. {check.hint}".strip()
                     for check in failed)
