# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is secret in addresses is in no log and no result; what is not, is there to be read."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.module_utils import basic
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.modules import nvidia_driver

PLAIN = "https://mirror.example.com/NVIDIA-Linux-x86_64-595.91.07.run"
SECRET = "sig=c0ffee%2Babc123"


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **arguments: t.Any) -> tuple[str, str]:
    """What the module prints, and what it sends to the system's log; it fails with its address in the message."""
    logged: list[str] = []

    class Driver:
        def __init__(self, spec: t.Any, _level: str, _check: bool) -> None:
            self.spec = spec

        def present(self) -> dict[str, t.Any]:
            src = self.spec.runfile["src"] if self.spec.runfile else ""
            raise HostError(f"{src.partition('?')[0]} cannot be fetched: it led to https://other.example/x?{SECRET}.")

        adopted = absent = present

    monkeypatch.setattr(nvidia_driver, "Driver", Driver)
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    monkeypatch.setattr(basic.AnsibleModule, "log", lambda _self, text, log_args=None: logged.append(text))
    with pytest.raises(SystemExit):
        nvidia_driver.main()
    return capsys.readouterr().out, "".join(logged)


def test_a_signed_query_is_in_no_result_and_no_log(monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    printed, logged = call(monkeypatch, capsys, runfile={"src": f"{PLAIN}?{SECRET}", "checksum": "sha256:00"})
    assert SECRET not in printed and SECRET not in logged and "c0ffee" not in printed + logged
    assert json.loads(printed)["error"]["message"].startswith(f"{PLAIN} cannot be fetched")


@pytest.mark.parametrize("src", [PLAIN, "/srv/NVIDIA-Linux-x86_64-595.91.07.run"])
def test_an_address_without_a_query_is_no_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                                 src: str) -> None:
    printed, _logged = call(monkeypatch, capsys, runfile={"src": src})
    result = json.loads(printed)
    assert result["msg"].startswith(f"{src} cannot be fetched")
    assert result["invocation"]["module_args"]["runfile"]["src"] == src


@pytest.mark.parametrize("arguments", [
    {"runfile": {"src": "https://somebody:hunter2-xyz@mirror.example.com/x.run"}},
    {"repository": {"url": "https://somebody:hunter2-xyz@mirror.example.com/cuda/"}},
    {"repository": {"key": "https://hunter2-xyz@mirror.example.com/key.pub"}}])
def test_a_password_in_an_address_that_is_refused_is_not_repeated(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: dict[str, t.Any]) -> None:
    printed, _logged = call(monkeypatch, capsys, **arguments)
    assert "hunter2" not in printed
