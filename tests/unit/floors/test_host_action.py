# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How pynvml is copied to a host: only if its module needs it, and without leaving files behind."""

from __future__ import annotations

import importlib.util
import typing as t
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.action import container_toolkit, gpu_info, host_reboot
from ansible_collections.gpuops.nvidia.plugins.module_utils import _pynvml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import host

ERROR = {"kind": "missing_library", "message": "", "hint": "", "library": "pynvml"}
ASKS = {"failed": True, "msg": "no pynvml", "error": ERROR}
DONE = {"changed": False, "gpus": []}
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


class Action(host.HostAction):
    """One task on a host that returns these answers in order."""

    def __init__(self, answers: list[dict[str, t.Any]], environment: t.Any = None) -> None:
        self.answers = answers
        self.ran: list[tuple[t.Any, t.Any, t.Any]] = []
        self.sent: list[tuple[str, str]] = []
        self.removed: list[str | None] = []
        shell = SimpleNamespace(tmpdir=None, join_path=lambda *parts: "/".join(parts))
        self._connection = SimpleNamespace(_shell=shell)
        self._task = SimpleNamespace(environment=environment, async_val=0, check_mode=False, action="x", args={})

    def _execute_module(self, **options: t.Any) -> dict[str, t.Any]:
        self.ran.append((options["module_args"], options["task_vars"], self._task.environment))
        return dict(self.answers.pop(0))

    def _make_tmp_path(self, remote_user: t.Any = None) -> str:
        self._connection._shell.tmpdir = "/tmp/on-host"
        return "/tmp/on-host"

    def _transfer_file(self, local_path: str, remote_path: str) -> None:
        self.sent.append((local_path, remote_path))

    def _remove_tmp_path(self, tmp_path: str | None, force: bool = False) -> None:
        self.removed.append(tmp_path)


def test_a_host_that_has_it_is_asked_once() -> None:
    action = Action([DONE])
    assert action.run(None, {"a": 1}) == DONE
    assert (action.ran, action.sent) == ([(None, {"a": 1}, None)], [])


@pytest.mark.parametrize("environment", [None, [{"http_proxy": "x"}]])
def test_a_host_that_lacks_it_gets_the_controllers_for_the_task(environment: t.Any) -> None:
    action = Action([ASKS, DONE], environment)
    assert action.run(None, {"a": 1}) == DONE
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None and action.sent == [(spec.origin, "/tmp/on-host/pynvml.py")]
    assert [variables for _args, variables, _environment in action.ran] == [{"a": 1}, {"a": 1}]
    assert action.ran[1][2] == [*(environment or []), {_pynvml.PYTHON_PATH_VARIABLE: "/tmp/on-host"}]
    assert action.removed == ["/tmp/on-host"]


def test_a_folder_that_the_task_has_on_the_host_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pipelining, there is already a folder for the module; a second one would remain on the host."""
    action = Action([ASKS, DONE])
    action._connection._shell.tmpdir = "/tmp/of-the-task"
    assert action.run(None, {}) == DONE
    assert [target for _source, target in action.sent] == ["/tmp/of-the-task/pynvml.py"]
    assert action.removed == ["/tmp/of-the-task"]


def test_arguments_of_an_action_reach_both_runs() -> None:
    action = Action([ASKS, DONE])
    assert action.run_module({}, {"x": 1}) == DONE
    assert [args for args, _variables, _environment in action.ran] == [{"x": 1}, {"x": 1}]


@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)])
def test_where_neither_has_it_that_is_said(monkeypatch: pytest.MonkeyPatch, spec: t.Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    action = Action([ASKS])
    told = action.run(None, {})
    assert told["failed"] and "pip install nvidia-ml-py" in told["msg"]
    assert action.sent == []


@pytest.mark.parametrize("answer", [
    {"failed": True, "msg": "x"}, {"failed": True, "error": {**ERROR, "kind": "device"}},
    {"failed": True, "error": {**ERROR, "library": "rpm"}}, {**ASKS, "failed": False}])
def test_other_failures_are_the_result(answer: dict[str, t.Any]) -> None:
    action = Action([answer])
    assert action.run(None, None) == answer
    assert (len(action.ran), action.sent) == (1, [])


@pytest.mark.parametrize(("printed", "words", "hint"), [
    ({"module_stderr": "/bin/sh: 1: sudo: not found\n"}, "/bin/sh: 1: sudo: not found.", "become_user"),
    ({"module_stderr": "", "module_stdout": "sudo: a password is required\r\n"}, "sudo: a password is required.",
     "become password"),
    ({"module_stderr": "nobody is not in the sudoers file.\nSo it is.\n"}, "is not in the sudoers file. / So it is.",
     "become_user"),
    ({"module_stderr": "python3: error while loading shared libraries\n"}, "python3: error while", "by hand"),
    ({"module_stderr": f"{'x' * 10_000} end"}, "x end.", "by hand"),
    ({"module_stderr": "\x1b[2Jcleared"}, "\\x1b[2Jcleared", "by hand"),
])
def test_where_no_module_has_answered_the_words_of_what_did_are_told(printed: dict[str, str], words: str,
                                                                     hint: str) -> None:
    answer = {"failed": True, "_ansible_parsed": False, "msg": "Module result deserialization failed.", **printed}
    told = Action([answer]).run(None, {})
    assert told["failed"] and words in told["msg"] and hint in told["msg"] and "deserialization" not in told["msg"]
    assert told["error"]["kind"] == "host" and len(told["msg"]) < 1_000


def test_without_words_the_message_is_ansibles() -> None:
    answer = {"failed": True, "_ansible_parsed": False, "msg": "Module result deserialization failed."}
    assert Action([answer]).run(None, {})["msg"] == answer["msg"]


def acting(kind: type[host.Asking], execute: t.Callable[..., t.Any], **more: t.Any) -> t.Any:
    """An action whose host answers as told."""
    action = kind.__new__(kind)
    shell = SimpleNamespace(tmpdir=None, remove=lambda path, recurse: f"rm {path}")
    action._connection = SimpleNamespace(_shell=shell, transport="ssh", get_option=lambda _name: 10)
    action._task = SimpleNamespace(environment=None, async_val=0, check_mode=False, diff=False, action="x", args={},
                                   **more)
    action._execute_module = execute
    action._cleanup_remote_tmp = True
    return action


def raising(error: Exception, cause: Exception | None = None) -> t.Callable[..., t.Any]:
    def execute(**_options: t.Any) -> t.NoReturn:
        raise error from cause

    return execute


@pytest.mark.parametrize("kind", [gpu_info.ActionModule, container_toolkit.ActionModule, host_reboot.ActionModule])
@pytest.mark.parametrize("error", [AnsibleConnectionFailure, AnsibleAuthenticationFailure, AnsibleError])
def test_what_a_host_prints_in_place_of_an_answer_is_quoted(kind: type[host.Asking],
                                                            error: type[AnsibleError]) -> None:
    """Ansible makes such an error of it, and shows it as it is. A host that is unreachable stays so."""
    first = error(f"Failed to connect: {ESCAPE}\r\nBye\r\n")
    with pytest.raises(error) as found:
        acting(kind, raising(first, ValueError(ESCAPE))).run(None, {})
    text = str(found.value)
    assert type(found.value) is error and text.replace("\n", "").isprintable()
    assert text.count(f"Failed to connect: {SHOWN}\nBye") == 1
    assert found.value.__cause__ is None and found.value.__suppress_context__


def test_an_error_that_ansible_words_stays_as_it_is() -> None:
    with pytest.raises(AnsibleError) as found:
        acting(gpu_info.ActionModule, raising(AnsibleError("No interpreter line.\n\tLook."))).run(None, {})
    assert str(found.value) == "No interpreter line.\n\tLook."


@pytest.mark.parametrize("kind", [gpu_info.ActionModule, container_toolkit.ActionModule])
def test_a_host_that_keeps_its_temporary_folder_is_quoted(kind: type[host.Asking],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible warns with what the host says of it."""
    said: list[str] = []
    monkeypatch.setattr("ansible.plugins.action.display.warning", said.append)
    monkeypatch.setattr(ActionBase, "_low_level_execute_command", lambda *_words, **_options: {
        "rc": 1, "stdout": "", "stdout_lines": [], "stderr": f"{ESCAPE}\r\nBye.\r\n", "stderr_lines": [ESCAPE]})
    action = acting(kind, lambda **_options: {"failed": True, "msg": "x"})
    action._connection._shell.tmpdir = "/tmp/ansible-tmp-1"
    assert action.run(None, {}) == {"failed": True, "msg": "x"}
    assert len(said) == 1 and f"stderr: {SHOWN}\nBye." in said[0] and said[0].replace("\n", "").isprintable()


def test_the_python_that_a_host_names_is_quoted() -> None:
    action = acting(gpu_info.ActionModule, lambda **_options: {"failed": True, "msg": "x"})
    action._discovered_interpreter_key, action._discovered_interpreter = "discovered_interpreter_python", f"/{ESCAPE}"
    action._remove_tmp_path = lambda _path: None
    assert action.run(None, {})["ansible_facts"] == {"discovered_interpreter_python": f"/{SHOWN}"}
