# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""If Ansible cannot template a variable of a host, only this host has no plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from ansible_collections.gpuops.nvidia.plugins.action import gpu_policy
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts

HYBRID = {"placement": "hybrid", "render_to": "manifests", "node_os": ["ubuntu24.04"]}


def task_vars(folder: Path, control: tuple[str, ...] = (), **hosts: dict[str, Any]) -> dict[str, Any]:
    """The task_vars of the first host of a real inventory; control: the hosts that only represent a cluster."""
    inventory = folder / "inventory.json"
    groups = {"gpu_hosts": [host for host in hosts if host not in control], "gpu_control": control}
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "children": {
        name: {"hosts": dict.fromkeys(members)} for name, members in groups.items()}}}))
    loader = DataLoader()
    known = InventoryManager(loader, [str(inventory)])
    manager = VariableManager(loader, known)
    for host in groups["gpu_hosts"]:
        manager.set_nonpersistent_facts(host, {"preflight_found": {"facts": facts(("20b2",))}})
    return {"inventory_hostname": next(iter(hosts)), "ansible_play_hosts_all": list(hosts),
            "groups": {name: list(members) for name, members in groups.items()},
            "hostvars": HostVars(known, manager, loader)}


@pytest.mark.parametrize("name", ["gpu_placement", "gpu_disruption", "gpu_profile", "gpu_node_name", "driver_version",
                                  "driver_signing_key", "device_plugin_config"])
@pytest.mark.parametrize("value", ["{{ undefined_thing }}", "{{ 'a' | there_is_no_such_filter }}", "{{ 1 / 0 }}"])
def test_one_host_is_left_out_and_the_others_have_a_plan(tmp_path: Path, name: str, value: str) -> None:
    """Also if it is the first host, which runs the task for all hosts."""
    wrong = task_vars(tmp_path, a={name: value}, b={}, c={})
    plan = act(gpu_policy.ActionModule, HYBRID, wrong)
    assert not plan.get("failed"), plan
    assert list(plan["hosts"]) == ["b", "c"] and list(plan["rejected"]) == ["a"]
    error = plan["rejected"]["a"]
    assert error["path"] == f"hostvars.a.{name}" and error["message"].startswith(f"hostvars.a.{name}: ")
    first = plan["checks"][0]
    assert (first["host"], first["check"], first["severity"]) == ("a", "variables", "error")
    assert plan["cluster"]["nodes"]["by_host"] == {"a": "a", "b": "b", "c": "c"}
    removed = act(gpu_policy.ActionModule, {"resolve": False}, wrong)
    assert not removed.get("failed") and list(removed["rejected"]) == ["a"]


@pytest.mark.parametrize("value", ["{{ gpu_release }}", {"__ansible_vault": "$ANSIBLE_VAULT;1.1;AES256\n3031\n"}])
def test_a_variable_that_names_itself_or_cannot_be_decrypted(tmp_path: Path, value: Any) -> None:
    plan = act(gpu_policy.ActionModule, {}, task_vars(tmp_path, a={"gpu_release": value}, b={}))
    assert list(plan["hosts"]) == ["b"] and list(plan["rejected"]) == ["a"]


def test_a_host_of_which_another_variable_is_wrong_stays_the_node_that_it_is(tmp_path: Path) -> None:
    wrong = {"gpu_node_name": "n1", "gpu_profile": "{{ undefined_thing }}"}
    plan = act(gpu_policy.ActionModule, HYBRID, task_vars(tmp_path, a=wrong, b={}))
    assert plan["cluster"]["nodes"]["by_host"] == {"n1": "a", "b": "b"}


def test_what_no_host_can_say_ends_the_run(tmp_path: Path) -> None:
    """Otherwise, the default would replace the value that the user has set for all hosts."""
    wrong = {"gpu_release": "{{ undefined_thing }}"}
    told = act(gpu_policy.ActionModule, {}, task_vars(tmp_path, a=wrong, b=wrong))
    assert told["failed"] and told["error"]["path"] == "hostvars.a.gpu_release", told
    # As what a host says that only stands for a cluster: no plan leaves it out.
    told = act(gpu_policy.ActionModule, {}, task_vars(tmp_path, ("c",), a={}, c=wrong))
    assert told["failed"] and told["error"]["path"] == "hostvars.c.gpu_release", told


def test_variables_of_others_and_registered_results_are_not_templated(tmp_path: Path) -> None:
    plan = act(gpu_policy.ActionModule, {}, task_vars(tmp_path, a={"theirs": "{{ undefined_thing }}",
                                                                   "cuda_result": "{{ undefined_thing }}"}, b={}))
    assert list(plan["hosts"]) == ["a", "b"] and plan["rejected"] == {}


WHOLE = {"server": "s", "version": "v1.36.3", "nfd": True, "service_monitors": False}


@pytest.mark.parametrize(("options", "words"), [
    ({"overrides": {"a": 1}}, "overrides.a: a mapping is expected, not 1."),
    ({"cluster_facts": {**WHOLE, "nodes": 3}}, "cluster_facts.nodes: a mapping is expected, not 3."),
    ({"cluster_facts": {**WHOLE, "nodes": {"a": "x"}}}, "cluster_facts.nodes.a: a mapping is expected, not 'x'."),
    ({"cluster_facts": {**WHOLE, "nodes": {"a": {}}}},
     "cluster_facts.nodes.a: these keys are missing: labels, annotations, ready"),
    ({"cluster_facts": {**WHOLE, "nodes": {"a": {
        "labels": {}, "annotations": {}, "ready": True, "gpu": True, "os": None, "kernel": "6.8"}}}},
     "cluster_facts.nodes.a: these keys are missing: os_image, arch, runtime"),
])
def test_an_option_that_came_out_as_something_else_is_named(tmp_path: Path, options: dict[str, Any],
                                                            words: str) -> None:
    told = act(gpu_policy.ActionModule, {**HYBRID, "facts": {}, **options}, task_vars(tmp_path, a={}))
    assert told["failed"] and words in told["msg"], told
