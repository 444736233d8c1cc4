# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reboot of a host: Ansible's, without what a terminal would obey in the words of the host."""

from __future__ import annotations

import json
import time
import typing as t
from types import SimpleNamespace

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.action import host_reboot
from ansible_collections.gpuops.nvidia.plugins.modules import host_reboot as documented
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.answers import refuse
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import Fault
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes
from ansible_collections.gpuops.nvidia.tests.integration.hostile import forged

Data = t.Dict[str, t.Any]
SETUP = {"ansible_facts": {"ansible_distribution": "Ubuntu", "ansible_distribution_version": "24.04",
                           "ansible_os_family": "Debian"}}
SAID = {"rc": 1, "stdout": forged.ESCAPE, "stderr": f"{forged.ESCAPE}\r\n"}


class Host:
    """A host with a systemd. answers: by the first word of a command what the host says, in order, the last for ever.
    """

    def __init__(self, patch: pytest.MonkeyPatch, **answers: list[Data]) -> None:
        self.answers = answers
        self.commands: list[str] = []
        self.modules: Data = {"ansible.legacy.setup": SETUP, "ansible.legacy.find": {"files": [{"path": "shutdown"}]}}
        patch.setattr(ActionBase, "_low_level_execute_command", lambda _self, command, **_options: self._says(command))
        patch.setattr("ansible.plugins.action.reboot.time.sleep", lambda _seconds, sleep=time.sleep: sleep(0.05))

    def _says(self, command: str) -> Data:
        self.commands.append(command)
        told = self.answers[command.split()[0]]
        return {"rc": 0, "stdout": "", "stderr": "", **(told.pop(0) if len(told) > 1 else told[0])}

    def _answer(self, module_name: str, **_options: t.Any) -> t.Any:
        found = self.modules[module_name]
        return found() if callable(found) else found

    def reboot(self, check: bool = False, **args: t.Any) -> Data:
        """What the task returns."""
        action = object.__new__(host_reboot.ActionModule)
        action._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None), transport="ssh", reset=lambda: None,
                                             get_option=lambda _name: 10)
        action._task = SimpleNamespace(async_val=0, check_mode=check, action="gpuops.nvidia.host_reboot", args=args)
        action._execute_module = self._answer
        result: Data = action.run(None, {})
        assert not forged.OBEYED.search(json.dumps(result, ensure_ascii=False, default=str)), result
        return result


def test_a_host_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, systemctl=[{"stdout": "1"}, {"stdout": "1"}, {"stdout": "2"}], shutdown=[{}],
                whoami=[SAID, {"stdout": "root"}])
    told = host.reboot(reboot_timeout=60)
    assert (told["rebooted"], told["changed"]) == (True, True) and not told.get("failed")
    assert [command.split()[0] for command in host.commands] == [
        "systemctl", "shutdown", "systemctl", "systemctl", "whoami", "whoami"]
    # Hosts that are containers share the boot id of the kernel.
    assert "UserspaceTimestampMonotonic" in host.commands[0]


@pytest.mark.parametrize("failing", ["systemctl", "shutdown"])
def test_the_words_of_a_host_that_does_not_reboot(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    told = Host(monkeypatch, **{"systemctl": [{"stdout": "1"}], "shutdown": [{}], failing: [SAID]}).reboot()
    assert told["failed"] and told["msg"].count(r"\x1b]0;owned\x07") == 2, told


def test_a_host_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, systemctl=[{"stdout": "1"}, SAID], shutdown=[{}])
    told = host.reboot(reboot_timeout=1)
    assert told["failed"] and "timeout=1" in told["msg"]


def test_what_ansible_cannot_read_is_a_named_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    host.modules["ansible.legacy.setup"] = lambda: refuse("it", Fault("", "too large", "less"))
    told = host.reboot()
    assert told["failed"] and told["error"]["kind"] == answer_shapes.KIND and host.commands == []


def test_check_mode_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    assert host.reboot(check=True)["changed"] is True and host.commands == []


def test_the_options_are_those_of_the_documentation() -> None:
    assert set(yaml.safe_load(documented.DOCUMENTATION)["options"]) == host_reboot.ActionModule._VALID_ARGS
