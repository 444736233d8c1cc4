# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that forge the answers of every module of the collection, all of them in one play with a sound host."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible import template
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible.template import Templar
from ansible_collections.gpuops.nvidia.plugins.action import (
    container_toolkit,
    gpu_info,
    gpu_labels,
    gpu_policy,
    gpu_report,
    gpu_verify,
    mig_config,
    nvidia_driver,
    nvidia_software,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import (
    answer_shapes,
    inventory_vars,
    variable_names,
)
from ansible_collections.gpuops.nvidia.tests.integration.hostile import forged, sound
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act

Data = dict[str, Any]
FACTS = sound.facts()
SOUND = sound.answers(FACTS)
# By module its action, and where its role registers the answer.
MODULES: dict[str, tuple[Any, str]] = {
    "gpu_info": (gpu_info, "preflight_found"), "nvidia_driver": (nvidia_driver, "driver_result"),
    "container_toolkit": (container_toolkit, "container_toolkit_result"),
    "mig_config": (mig_config, "mig_manager_result"),
    "gpu_labels": (gpu_labels, "feature_discovery_result"), "nvidia_software": (nvidia_software, "software_result")}
# Of outputs those that are small enough to be tried with every module.
LONGEST = 300_000


def task(module: str, output: bytes) -> Data:
    """The result of the task of a module for this output of a host."""
    action = object.__new__(MODULES[module][0].ActionModule)
    shell = SimpleNamespace(tmpdir="/tmp/x", join_path=lambda *parts: "/".join(parts))
    action._connection = SimpleNamespace(_shell=shell)
    action._task = SimpleNamespace(environment=None, async_val=0, check_mode=True, diff=True, action=module, args={})
    profile = () if len(inspect.signature(ActionBase._parse_returned_data).parameters) < 3 else ("legacy",)
    text = output.decode("utf-8", "surrogateescape")
    action._execute_module = lambda **_options: action._parse_returned_data(
        {"stdout": text, "stderr": "", "rc": 0}, *profile)
    action._remove_tmp_path = action._transfer_file = lambda *_path: None
    own = {"inventory_hostname": "h", **task_vars(h={})}
    result: Data = action.run(None, own)
    return result


def table(module: str) -> list[bytes]:
    """The forged answers for a module."""
    text = json.dumps(SOUND[module])
    every = [*forged.of_variables(text), *forged.of_keys(text), *forged.outputs(text), *forged.of_read(text),
             *[json.dumps({**SOUND[module], "ansible_facts": {name: "x"}}).encode()
               for name in sorted(variable_names.NAMES)[::9]],
             *(forged.of_facts(text, 60) if module == "gpu_info" else [])]
    return [output for output in every if len(output) < LONGEST]


@pytest.fixture(scope="module")
def results() -> dict[str, list[tuple[bytes, Data]]]:
    """Maps modules to their forged answers and the results for these."""
    with pytest.MonkeyPatch.context() as patch:
        # Ansible warns of what stands beside an answer.
        patch.setattr("ansible.plugins.action.display.warning",
                      lambda text: pytest.fail(text) if forged.OBEYED.search(text) else None)
        return {module: [(output, task(module, output)) for output in table(module)] for module in MODULES}


def test_there_are_hundreds(results: dict[str, list[tuple[bytes, Data]]]) -> None:
    assert all(len({output for output, _told in each}) > 400 for each in results.values())


@pytest.mark.parametrize("module", MODULES)
def test_an_answer_is_plain_data_or_a_named_failure(results: dict[str, list[tuple[bytes, Data]]], module: str) -> None:
    refused = 0
    for output, told in results[module]:
        text = json.dumps(told, default=str, ensure_ascii=False)
        assert not forged.OBEYED.search(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")), output[:300]
        assert {type(told.get(key, False)) for key in ("failed", "changed", "unreachable")} == {bool}, output[:300]
        assert set(told.get("ansible_facts", {})) <= (set(answer_shapes.OWN_FACTS) if module == "gpu_labels" else set())
        assert not {"add_host", "add_group", "results", "include", "ansible_job_id"} & set(told), output[:300]
        assert {key for key in told if key.startswith("_ansible")} <= {"_ansible_parsed"}, output[:300]
        if (told.get("error") or {}).get("kind") == answer_shapes.KIND:
            refused += 1
            assert told["failed"] and told["error"]["path"] and len(told["msg"]) < 2000
    # Of container_toolkit only two keys of an answer are used, and every other is dropped.
    assert refused > 60, refused
    assert not Path(forged.CANARY).exists()


def registered(results: dict[str, list[tuple[bytes, Data]]]) -> dict[str, Data]:
    """Maps hosts to their variables: every fourth forged answer, each on a host whose other answers are sound."""
    found: dict[str, Data] = {}
    for module, each in results.items():
        for number, (_output, told) in enumerate(each[::4]):
            found[f"{module}-{number}"] = {"preflight_found": SOUND["gpu_info"], MODULES[module][1]: told,
                                           "ansible_facts": told.get("ansible_facts", {})}
    return found


def test_all_of_them_in_one_play(results: dict[str, list[tuple[bytes, Data]]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sound host has the same plan, checks and lines in reports as in a play on it alone."""
    lines: list[str] = []
    monkeypatch.setattr(gpu_report, "display", SimpleNamespace(display=lines.append))
    good = {"sound": {result: task(module, json.dumps(SOUND[module]).encode())
                      for module, (_action, result) in MODULES.items()}}
    assert not [name for name, told in good["sound"].items() if told.get("failed")], good
    every = {**registered(results), **good}
    plans, shown = [], []
    for hosts in (good, every):
        variables = {**task_vars(**hosts), "groups": {"gpu_hosts": list(hosts)}, "inventory_hostname": "sound"}
        plans.append(act(gpu_policy.ActionModule, {"disruption": "idle"}, variables))
        plan = plans[-1]
        assert not plan.get("failed"), plan
        for show in ("plan", "preflight", "result", "state"):
            act(gpu_report.ActionModule, {"show": show, "plan": plan}, variables)
        shown.append("\n".join(lines))
        lines.clear()
        for host in {**plan["hosts"]}:
            own = {**variables, "inventory_hostname": host}
            seen = inventory_vars.facts(own)[host] if host == "sound" else FACTS
            told = act(gpu_verify.ActionModule, {"expected": plan["hosts"][host], "facts": seen, "previewed": True,
                                                 "enforce": False}, own)
            assert not told.get("failed"), (host, told)
            if host == "sound":
                plans[-1]["checked"] = told["checks"]
    alone, beside = plans
    for key in ("release", "policy", "disruption", "placement", "cluster", "strict", "kubeconfig", "checked"):
        assert (beside[key]["sound"] if key == "placement" and "sound" in beside[key] else beside[key]) == (
            alone[key]["sound"] if key == "placement" and "sound" in alone[key] else alone[key]), key
    assert beside["hosts"]["sound"] == alone["hosts"]["sound"]
    assert [one for one in beside["checks"] if one["host"] == "sound"] == alone["checks"]
    assert len(beside["rejected"]) > 25 and not forged.OBEYED.search(shown[1])
    assert all(name in shown[1] for name in beside["rejected"])


@pytest.mark.parametrize(("playbook", "result"), [("site", "preflight_plan"), ("remove", "remove_from")])
def test_no_host_sets_how_many_nodes_change_together(playbook: str, result: str) -> None:
    """The fact cache can have any content for a host that was not reached or is left out by --limit."""
    loader = DataLoader()
    plays = yaml.safe_load((Path(__file__).parents[3] / "playbooks" / f"{playbook}.yml").read_text())
    # ansible-core 2.18 has no such function, and trusts every text.
    trusted = getattr(template, "trust_as_template", str)
    serial, = (trusted(play["serial"]) for play in plays if "gpuops_disturbed" in str(play.get("serial")))
    variables = {"groups": {"gpu_hosts": ["gone", "b", "c"], "gpuops_disturbed": ["b", "c"]},
                 "hostvars": {"gone": {result: {"batch": "100%"}}, **dict.fromkeys("bc", {result: {"batch": 2}})}}
    assert Templar(loader, variables=variables).template(serial) in (2, [2])
    if playbook == "site":  # one host first
        assert Templar(loader, variables={**variables, "gpu_upgrade": True}).template(serial) == [1, 2]
    assert Templar(loader, variables={**variables, "groups": {"gpu_hosts": ["gone"]}}).template(serial) in (1, [1])
