# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets in URLs are in no log and no result; all other parts of a URL can be read there."""

from __future__ import annotations

import json
import typing as t
from types import SimpleNamespace

import pytest
from ansible.module_utils import basic
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.modules import container_toolkit, nvidia_driver, nvidia_software

PLAIN = "https://mirror.example.com/NVIDIA-Linux-x86_64-595.91.07.run"
SECRET = "sig=c0ffee%2Babc123"


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: t.Any = nvidia_driver,
         **arguments: t.Any) -> tuple[str, str]:
    """The output of a module, and what it sends to the system log; it fails with its URLs in the message."""
    logged: list[str] = []

    def fail() -> None:
        given = {**(arguments.get("repository") or {}), **(arguments.get("runfile") or {})}
        tried = " ".join(one.partition("?")[0] for one in given.values() if "/" in one)
        raise HostError(f"{tried} cannot be fetched: it led to https://other.example/x?{SECRET}.")

    work = SimpleNamespace(present=fail, absent=fail, adopted=fail, gathered=fail)
    for name in ("Driver", "Software", "handle_request"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda *_given, **_more: fail() if module is container_toolkit else work)
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    monkeypatch.setattr(basic.AnsibleModule, "log", lambda _self, text, log_args=None: logged.append(text))
    with pytest.raises(SystemExit):
        module.main()
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


MODULES = pytest.mark.parametrize("module", [nvidia_driver, nvidia_software, container_toolkit])
HOST = "mirror.example.com/cuda/"


@MODULES
@pytest.mark.parametrize("secret", ["somebody:hunter2-xyz", "hunter2-xyz"])
@pytest.mark.parametrize("option", ["url", "key"])
def test_what_is_secret_in_the_address_of_a_repository_is_not_repeated(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: t.Any, secret: str, option: str
        ) -> None:
    both = call(monkeypatch, capsys, module, repository={option: f"https://{secret}@{HOST}"})
    assert "hunter2" not in "".join(both)
    printed, logged = call(monkeypatch, capsys, module, repository={option: f"https://{HOST}?{SECRET}"})
    assert "c0ffee" not in printed + logged
    assert json.loads(printed)["msg"].startswith(f"https://{HOST} cannot be fetched")


@MODULES
def test_an_address_of_a_repository_without_a_secret_is_shown(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: t.Any) -> None:
    addresses = {"url": f"https://{HOST}", "key": f"https://{HOST}key"}
    result = json.loads(call(monkeypatch, capsys, module, repository=addresses)[0])
    assert {**result["invocation"]["module_args"]["repository"], **addresses} == \
        result["invocation"]["module_args"]["repository"]
    assert result["msg"].startswith(f"https://{HOST} https://{HOST}key cannot be fetched")


def test_a_password_in_the_address_of_a_run_file_is_not_repeated(monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    both = call(monkeypatch, capsys, runfile={"src": "https://somebody:hunter2-xyz@mirror.example.com/x.run"})
    assert "hunter2" not in "".join(both)
