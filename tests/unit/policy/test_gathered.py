# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken from host variables, and from where files are read."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import gathered


class HostVars(dict):  # type: ignore[type-arg]
    """Ansible's hostvars: templated by index, raw by raw_get."""

    def raw_get(self, host: str) -> Any:
        return self[host]


def task_vars(**hosts: dict[str, Any]) -> dict[str, Any]:
    return {"ansible_play_hosts_all": list(hosts), "inventory_hostname": next(iter(hosts)), "hostvars": HostVars(hosts)}


FOUND = {"preflight_found": {"facts": {"gpus": []}, "changed": False}}


def test_facts_of_all_hosts_of_the_play() -> None:
    unreachable = {"preflight_found": {"unreachable": True}}
    assert gathered.facts(task_vars(a=FOUND, b={}, c=unreachable)) == {"a": {"gpus": []}, "b": None, "c": None}


def test_overrides_are_the_variables_of_roles_alone() -> None:
    mine = {"driver_version": "595.91.07", "driver_result": {}, "mig_manager_selected": "x", "other": 1}
    assert gathered.overrides(task_vars(a=mine, b={"gpu_profile": "none"})) == {
        "a": {"driver_version": "595.91.07", "mig_manager_selected": "x"}, "b": {"gpu_profile": "none"}}


def test_of_secrets_only_counts_that_they_are_set() -> None:
    mine = {"driver_signing_key": "-----BEGIN PRIVATE KEY-----", "driver_licence_token": ""}
    assert gathered.overrides(task_vars(a=mine)) == {"a": {"driver_signing_key": True, "driver_licence_token": False}}


def test_steps_and_pending_by_component() -> None:
    step = {"id": "x: y"}
    found = task_vars(a={"driver_result": {"plan": [step], "pending": []}, "mig_manager_result": {"skipped": True}})
    assert gathered.listed(found, "a", "plan") == {"driver": [step]}
    assert gathered.listed(found, "a", "pending") == {}


def test_errors_of_modules() -> None:
    error = {"kind": "host", "message": "no.", "hint": "do."}
    found = task_vars(a={"driver_result": {"failed": True, "msg": "no. do.", "error": error},
                         "container_toolkit_result": {"failed": True, "msg": "broke"}, "mig_manager_result": {}})
    assert gathered.errors(found, "a") == {"driver": error, "container_toolkit": {"message": "broke", "hint": ""}}


def test_facts_serve_until_a_role_changes_the_host() -> None:
    assert gathered.unchanged_facts(task_vars(a=FOUND), "a") == {"gpus": []}
    assert gathered.unchanged_facts(task_vars(a={**FOUND, "driver_result": {"changed": False}}), "a") == {"gpus": []}
    assert gathered.unchanged_facts(task_vars(a={**FOUND, "driver_result": {"changed": True}}), "a") is None
    assert gathered.unchanged_facts(task_vars(a={}), "a") is None


def test_checks() -> None:
    assert gathered.checks(task_vars(a={"preflight_checked": {"checks": [1]}}), "a") == [1]
    assert gathered.checks(task_vars(a={}), "a") is None
    assert gathered.checks(task_vars(a={"preflight_checked": {"skipped": True}}), "a") == []


def test_a_cluster_is_what_one_host_has_registered() -> None:
    skipped, plan = {"skipped": True}, {"namespace": "x"}
    assert gathered.cluster(task_vars(a={"operands_result": skipped}), None) is None
    one = {"operands_result": {"objects": []}, "deploy_labels_result": skipped, "preflight_cluster": {"checks": [1]}}
    assert gathered.cluster(task_vars(a={}, b=one), plan) == {
        "plan": plan, "operands": {"objects": []}, "labels": None, "checks": [1]}
    assert gathered.cluster(task_vars(a={}), plan) == {"plan": plan, "operands": None, "labels": None, "checks": None}


def test_hosts_that_limit_leaves_out() -> None:
    known = task_vars(a={}, b={"gpu_policy": "x"}, c={}, d={})
    known |= {"ansible_play_hosts_all": ["a"], "groups": {"gpu_control": ["a"], "gpu_hosts": ["a", "b", "c"]}}
    assert gathered.left_out(known) == {"b": {"gpu_policy": "x"}, "c": {}}


def test_files_are_found_beside_the_inventory_then_the_playbook(tmp_path: pathlib.Path) -> None:
    for folder in ("inventory", "playbook"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "policy.yml").touch()
    (tmp_path / "playbook" / "other.yml").touch()
    known = {"inventory_dir": str(tmp_path / "inventory"), "playbook_dir": str(tmp_path / "playbook")}
    assert find_file(known, "policy.yml") == str(tmp_path / "inventory" / "policy.yml")
    assert find_file(known, "other.yml") == str(tmp_path / "playbook" / "other.yml")
    assert find_file(known, "none.yml") == os.path.abspath("none.yml")
    assert find_file(known, "/etc/passwd") == "/etc/passwd"


def test_facts_of_another_version_are_refused() -> None:
    mine = {"schema": 2, "driver": {}, "gpus": [], "host": {}, "modules": {}, "runtimes": {}, "software": {},
            "toolkit": {}}
    assert gathered.same_shape({"a": mine, "b": None}) == {"a": mine, "b": None}
    with pytest.raises(InputError, match="facts.a: it lacks driver, gpus, host, .* software, toolkit. Give all"):
        gathered.same_shape({"a": {"schema": 2}})
    for other in ({"schema": 1}, {}, "text"):
        with pytest.raises(InputError, match="facts.b: they have the schema .* Gather them again"):
            gathered.same_shape({"a": mine, "b": other})
