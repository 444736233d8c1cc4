# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of actions whose module needs pynvml on the host. PRIVATE to the collection.

Hosts have no package for pynvml, and as part of the payload of a module it would add 332 KB to each task. Therefore,
the module runs without it. If the module returns C(missing_library: pynvml), the file of the controller is copied to
the temporary folder of the task, and the module runs again. The driver role installs it permanently.
"""

from __future__ import annotations

import importlib.util
import os
import re
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.answers import AnswerError, calm, parsed, received
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.inventory_vars import refuse_forged

# The environment variable by which the module finds the shipped file; read by module_utils/_nvml.py.
PYTHON_PATH_VARIABLE = "GPUOPS_PYTHON_PATH"
# The programs by which a task becomes another user; the most characters of their output in a message.
_BECOME = re.compile(r"\b(sudo(ers)?|su|doas|pbrun|pfexec|dzdo|runas|ksu|machinectl|sesu)\b|password", re.I)
_WORDS = 500


class Asking(ActionBase):
    """An action that runs a module on a host, which may be compromised.

    Nothing that the host or its SSH server prints reaches the terminal as it is, also not where no module has run.
    """

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Ansible's entry point."""
        try:
            ActionBase.run(self, tmp, task_vars)
            return self.work(task_vars or {})
        except AnsibleError as error:
            # The same error, because its class says whether the host is unreachable. Its text includes its causes.
            error.message, error.orig_exc = _quoted(str(error)), None
            raise error from None

    def work(self, task_vars: Data) -> Data:
        """What the action does; returns its result."""
        raise NotImplementedError

    def _low_level_execute_command(self, *words: t.Any, **options: t.Any) -> Data:
        """Runs a command like Ansible, which quotes its standard error in warnings."""
        told: Data = super()._low_level_execute_command(*words, **options)
        errors = _quoted(told["stderr"])
        return {**told, "stderr": errors, "stderr_lines": errors.splitlines()}

    def _parse_returned_data(self, res: Data, *profile: t.Any) -> Data:
        """Parses the result like Ansible, but control characters that a host prints neither reach the terminal nor end
        the task."""
        plain = {**res, "stdout": calm(res.get("stdout", ""))}
        return parsed(lambda: t.cast("Data", super(Asking, self)._parse_returned_data(plain, *profile)))


class HostAction(Asking):
    """Runs the module of the same name, and copies pynvml to the host if it is missing there."""

    _supports_check_mode = True
    _supports_async = False
    # Facts that the module may set for its host, and keys that each success has.
    FACTS: t.Tuple[str, ...] = ()
    NEEDED: t.Tuple[str, ...] = ()

    def work(self, task_vars: Data) -> Data:
        """See Asking."""
        try:
            refuse_forged(task_vars)
        except GpuopsError as error:
            return {"failed": True, **error.as_result()}
        result = self.run_module(task_vars)
        self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

    def options(self, module_args: Data | None = None) -> Data:
        """The options of the task, or those given, without those that are null."""
        given = self._task.args if module_args is None else module_args
        return {name: value for name, value in given.items() if value is not None}

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """Runs the module, and again with pynvml if it needs it. module_args: by default those of the task."""
        result = self._ask(task_vars, module_args)
        error = result.get("error") or {}
        if result.get("failed") and error.get("kind") == "missing_library" and error.get("library") == "pynvml":
            source = importlib.util.find_spec("pynvml")
            if source is None or source.origin is None:
                result["msg"] = ("Neither the host nor the controller has pynvml. "
                                 "Install it on the controller: pip install nvidia-ml-py.")
                return result
            # There is one where modules are not sent by pipelining; a further one would stay on the host.
            folder = self._connection._shell.tmpdir or self._make_tmp_path()
            target = self._connection._shell.join_path(folder, os.path.basename(source.origin))
            self._transfer_file(source.origin, target)
            self._task.environment = [*(self._task.environment or []), {PYTHON_PATH_VARIABLE: folder}]
            result = self._ask(task_vars, module_args)
        return result

    def _ask(self, task_vars: Data, module_args: Data | None) -> Data:
        try:
            result = self._execute_module(module_args=module_args, task_vars=task_vars)
        except AnswerError as error:
            return {"failed": True, **error.as_result()}
        return explained(received(result, interpreter(self), self.FACTS, self.NEEDED), result)


def refuse_options(arguments: Data, state: str, allowed: t.Collection[str]) -> None:
    """Raises InputError if an option is set that the state does not use. A null does not set an option."""
    others = [name for name, value in arguments.items() if value is not None and name not in ("state", *allowed)]
    if others:
        raise InputError(f"{', '.join(sorted(others))} cannot be set with state {state}.",
                         f"Remove it, or set another state. Allowed options: {', '.join(sorted(allowed))}.",
                         path=sorted(others)[0], allowed=sorted(allowed))


def _quoted(text: str) -> str:
    """What Ansible shows of the output of a program, printable. ssh and terminals end lines with CR LF."""
    return printable(text.replace("\r\n", "\n").rstrip("\r"))


def explained(result: Data, answer: Data) -> Data:
    """The result. If no module has answered, it contains the output of what did: sudo, a shell, or a Python that cannot
    start.
    """
    if result.get("_ansible_parsed") is not False:
        return result
    told = str(answer.get("module_stderr") or "") or str(answer.get("module_stdout") or "")
    lines = [printable(line.strip()) for line in told[-_WORDS:].splitlines() if line.strip()]
    if not lines:
        return result
    words = " / ".join(lines).rstrip(".")
    hint = ("Check become, become_user, become_method and the become password of this host." if _BECOME.search(words)
            else "Try the same by hand: ansible HOST -m ansible.builtin.raw -a id, with the same become options.")
    return {**result, **HostError(f"The host did not run the module: {words}.", hint).as_result()}


def interpreter(action: ActionBase) -> dict[str, str]:
    """The fact by which Ansible keeps the Python that it has discovered on the host, empty if it did not look for one.
    """
    name = getattr(action, "_discovered_interpreter_key", None)
    return {name: printable(action._discovered_interpreter)} if name else {}
