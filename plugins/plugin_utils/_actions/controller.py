# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of actions that only run on the controller. PRIVATE to the collection."""

from __future__ import annotations

import traceback
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._nulls import without_nulls
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.play_vars import PlayHostVars, Values
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable_result
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Unexpected
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars


class ControllerAction(ActionBase):
    """Validates the arguments against C(ARGUMENTS), runs L(work), and turns expected errors into a failed result."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    ARGUMENTS: t.Dict[str, t.Dict[str, t.Any]] = {}
    # Options that do not depend on the host. A task with only these also runs on a host whose answers are invalid,
    # without these answers: with run_once it runs on the first host, and its failure would end the play for all hosts.
    HOST_INDEPENDENT: t.Tuple[str, ...] = ()

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Ansible's entry point."""
        result: Data = super().run(tmp, task_vars)
        self._task.args = without_nulls(self._task.args, self.ARGUMENTS)
        _spec, arguments = self.validate_argument_spec(self.ARGUMENTS)
        variables = task_vars or {}
        try:
            if self._task.args and set(self._task.args) <= set(self.HOST_INDEPENDENT):
                names = inventory_vars.forged(variables)
                variables = {name: value for name, value in variables.items() if name not in names}
            else:
                inventory_vars.refuse_forged(variables)
            result.update(self.work(arguments, self._seen(variables)))
        except GpuopsError as error:
            result.update(error.as_result(), failed=True)
        except Exception as error:  # raised, it ends the play whatever the task says, also before a report of it
            result.update(_unexpected(error, self._task.action).as_result(), failed=True,
                          exception=traceback.format_exc())
        return printable_result(result)

    def _seen(self, task_vars: Data) -> Data:
        """The variables of the task. C(hostvars) also has the variables of the play, unless the command line overrides
        them."""
        if "hostvars" not in task_vars:
            return task_vars
        said = load_extra_vars(self._loader)
        play = {name: value for name, value in self._task.get_play().get_vars().items() if name not in said}
        return {**task_vars, "hostvars": PlayHostVars(task_vars["hostvars"], play, self._of_host)}

    def _of_host(self, value: t.Any, variables: Values) -> t.Any:
        return self._templar.copy_with_new_env(available_variables=variables).template(value)

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Does the work of the action; returns its result."""
        raise NotImplementedError


def _unexpected(error: Exception, action: str) -> Unexpected:
    if isinstance(error, AnsibleError):
        return Unexpected(f"{action} has failed: {str(error).rstrip('.')}.")
    what = "".join(traceback.format_exception_only(error)).strip()
    return Unexpected(f"{action} has failed for a defect of this collection: {what}.",
                      "Report it with the output of the same run with -vvv.")
