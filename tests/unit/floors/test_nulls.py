# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An option or a suboption that is null is the same as one that is omitted, in all modules and actions."""

from __future__ import annotations

import importlib
import json
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils import basic
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import licence
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import spec as driver_spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.module_parameters import parameters as of_kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._module_main import Module
from ansible_collections.gpuops.nvidia.plugins.module_utils._nulls import without_nulls
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import unit_text
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import settings_file

from tests.unit.floors import specs

PLUGINS = Path(__file__).parents[3] / "plugins"
Spec = specs.Spec
# A value for an option that must be set, by its type.
VALUES: dict[str, t.Any] = {"path": "/x", "str": "x", "dict": {}, "list": [], "int": 1, "bool": True}


def value(option: Spec) -> t.Any:
    return next(iter(option.get("choices", ())), VALUES[option.get("type", "str")])


def cases(spec: Spec) -> list[tuple[str, dict[str, t.Any], dict[str, t.Any]]]:
    """(name, arguments with a null, the same arguments without it) for each option and suboption."""
    needed = {name: value(option) for name, option in spec.items() if option.get("required")}
    found = []
    for name, option in spec.items():
        if name not in needed:
            found.append((name, {**needed, name: None}, needed))
        subs = option.get("options") or {}
        empty = {sub: value(one) for sub, one in subs.items() if one.get("required")}
        for sub in [one for one in subs if one not in empty]:
            null = {**empty, sub: None}
            lists = option.get("type") == "list"
            found.append((f"{name}.{sub}", {**needed, name: [null] if lists else null},
                          {**needed, name: [empty] if lists else empty}))
    return found


def controller_actions() -> dict[str, Spec]:
    """The options of the actions that only run on the controller."""
    found: dict[str, Spec] = {}
    for path in sorted((PLUGINS / "action").glob("[a-z]*.py")):
        action = importlib.import_module(
            f"ansible_collections.gpuops.nvidia.plugins.action.{path.stem}").ActionModule
        for name in ("ARGUMENTS", "CLUSTER_ARGUMENTS"):
            if getattr(action, name, None):
                found[f"{path.stem} {name}"] = getattr(action, name)
    return found


OF_MODULES = {name: specs.spec(name) for name in specs.MODULES}
OF_ACTIONS = controller_actions()


def test_all_specifications_are_found() -> None:
    assert {"container_toolkit", "gpu_labels", "mig_config", "nvidia_driver", "nvidia_software"} <= set(OF_MODULES)
    assert len(OF_ACTIONS) > 6 and "gpu_policy ARGUMENTS" in OF_ACTIONS


def parameters(monkeypatch: pytest.MonkeyPatch, spec: Spec, arguments: dict[str, t.Any]) -> t.Any:
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    monkeypatch.setattr(basic.AnsibleModule, "log", lambda *_words, **_options: None)
    return Module(**spec).params


@pytest.mark.parametrize("name", OF_MODULES)
def test_modules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = OF_MODULES[name]
    for option, null, omitted in cases(spec["argument_spec"]):
        assert parameters(monkeypatch, spec, null) == parameters(monkeypatch, spec, omitted), option


@pytest.mark.parametrize("name", OF_MODULES)
def test_modules_use_it(name: str) -> None:
    assert "_module_main.Module(" in (PLUGINS / "modules" / f"{name}.py").read_text()


def test_a_null_does_not_exclude_another_option(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parameters(monkeypatch, OF_MODULES["mig_config"], {"config": {"x": 1}, "config_file": None})
    assert found["config"] == {"x": 1}


class Action(ControllerAction):
    """An action whose result is its arguments."""

    def work(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        return {"arguments": arguments}


@pytest.mark.parametrize("name", OF_ACTIONS)
def test_actions(name: str) -> None:
    spec = OF_ACTIONS[name]
    for option, null, omitted in cases(spec):
        found = [ArgumentSpecValidator(spec).validate(without_nulls(arguments, spec)) for arguments in (null, omitted)]
        assert [one.error_messages for one in found] == [[], []], option
        assert found[0].validated_parameters == found[1].validated_parameters, option


def test_an_action_on_the_controller_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    action = object.__new__(Action)
    monkeypatch.setattr(Action, "ARGUMENTS", {"wait": {"type": "bool", "default": True}, "policy": {"type": "dict"}})
    monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda *_words: {})
    action._task = SimpleNamespace(args={"wait": None, "policy": {"driver": None}}, action="x")
    assert action.run(None, {})["arguments"] == {"wait": True, "policy": {"driver": None}}


def test_values_without_suboptions_are_not_changed() -> None:
    spec = {"free": {"type": "dict"}, "list": {"type": "list", "elements": "dict", "options": {"a": {}}},
            "dict": {"type": "dict", "options": {"free": {"type": "dict"}, "b": {}}}}
    given = {"free": {"a": None}, "list": [{"a": None}, None, 3], "dict": {"free": {"a": None}, "b": None, "c": None},
             "unknown": None}
    assert without_nulls(given, spec) == {"free": {"a": None}, "list": [{}, None, 3],
                                          "dict": {"free": {"a": None}, "c": None}, "unknown": None}
    assert given["dict"] == {"free": {"a": None}, "b": None, "c": None}
    assert without_nulls({"dict": "b=1", "list": "a"}, spec) == {"dict": "b=1", "list": "a"}


def test_nulls_in_mappings_of_the_user_set_nothing() -> None:
    assert of_kernel(driver_spec.Spec(module_parameters={"nvidia": {"a": None, "b": 1}, "nvidia_drm": None})) == {
        ("nvidia", "b"): "1"}
    assert licence.settings(driver_spec.Spec(licence={"settings": {"ServerAddress": "x", "ServerPort": None}})) == {
        "ServerAddress": "x"}
    assert settings_file.by_name({"nvidia-container-runtime": {"mode": None, "log-level": "info"}, "features": None}
                                 ) == {"nvidia-container-runtime.log-level": "info"}
    assert unit_text.environment({"A": "1", "B": None}, "x") == unit_text.environment({"A": "1"}, "x")
