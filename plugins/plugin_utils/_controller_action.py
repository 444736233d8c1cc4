# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of actions that run on the controller alone. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError


class ControllerAction(ActionBase):
    """Validates the arguments against C(ARGUMENTS), runs L(work), turns expected errors into a failed result."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    ARGUMENTS: t.Dict[str, t.Dict[str, t.Any]] = {}

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Ansible's entry point."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(self.ARGUMENTS)
        try:
            result.update(self.work(arguments, task_vars or {}))
        except GpuopsError as error:
            result.update(error.as_result(), failed=True)
        return result

    def work(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """What the action does; returns its result."""
        raise NotImplementedError
