# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read from host variables, and from which folders files are read."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars, settings, variable_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample


class HostVars(dict):  # type: ignore[type-arg]
    """Ansible's hostvars: templated with an index, not templated with raw_get."""

    def raw_get(self, host: str) -> Any:
        return self[host]


def task_vars(**hosts: dict[str, Any]) -> dict[str, Any]:
    return {"ansible_play_hosts_all": list(hosts), "inventory_hostname": next(iter(hosts)), "hostvars": HostVars(hosts)}


FOUND = {"preflight_found": {"facts": {"gpus": []}, "changed": False}}


def test_facts_of_all_hosts_of_the_play() -> None:
    unreachable = {"preflight_found": {"unreachable": True}}
    assert inventory_vars.facts(task_vars(a=FOUND, b={}, c=unreachable)) == {"a": {"gpus": []}, "b": None, "c": None}


def test_overrides_are_the_variables_of_roles_alone() -> None:
    mine = {"driver_version": "595.91.07", "driver_result": {}, "mig_manager_selected": "x", "other": 1}
    assert inventory_vars.overrides(task_vars(a=mine, b={"gpu_profile": "none"})) == {
        "a": {"driver_version": "595.91.07", "mig_manager_selected": "x"}, "b": {"gpu_profile": "none"}}


def test_of_secrets_only_counts_that_they_are_set() -> None:
    mine = {"driver_signing_key": "-----BEGIN PRIVATE KEY-----", "driver_licence_token": ""}
    assert inventory_vars.overrides(task_vars(a=mine)) == {
        "a": {"driver_signing_key": True, "driver_licence_token": False}}


def test_steps_and_pending_by_component() -> None:
    step = {"id": "x: y"}
    found = task_vars(a={"driver_result": {"plan": [step], "pending": []}, "mig_manager_result": {"skipped": True}})
    assert inventory_vars.steps_of(found, "a", "plan") == {"driver": [step]}
    assert inventory_vars.steps_of(found, "a", "pending") == {}


@pytest.mark.parametrize(("result", "found"), [
    ({"plan": [{"id": "add repository: cuda", "action": "add repository", "target": "cuda"},
               {"id": "load module: nvidia", "action": "load module", "target": "nvidia"}]}, ["cuda"]),
    ({"plan": []}, []), ({"failed": True}, []), (None, [])])
def test_what_the_driver_role_would_do_of_a_kind(result: Any, found: list[str]) -> None:
    host = {} if result is None else {"driver_result": result}
    assert inventory_vars.driver_steps(task_vars(a=host, b={}), "add repository") == found


def test_errors_of_modules() -> None:
    error = {"kind": "host", "message": "no.", "hint": "do."}
    found = task_vars(a={"driver_result": {"failed": True, "msg": "no. do.", "error": error},
                         "container_toolkit_result": {"failed": True, "msg": "broke"}, "mig_manager_result": {}})
    assert inventory_vars.errors(found, "a") == {"driver": error, "container_toolkit": {"message": "broke", "hint": ""}}


def test_a_host_that_stops_answering_in_the_preview_has_an_error() -> None:
    """If the play ignores the error, Ansible does not count the result as a failure."""
    gone = {"unreachable": True, "msg": "Failed to connect."}
    found = task_vars(a={"driver_result": gone}, b={"software_result": gone}, c={"driver_result": {"plan": []}})
    said = {"message": "Failed to connect.", "hint": ""}
    assert inventory_vars.errors(found, "a") == {"driver": said} and inventory_vars.errors(found, "b") == {"cuda": said}
    assert inventory_vars.errors(found, "c") == {}


def test_what_was_never_asked_is_no_success() -> None:
    """The preview of a host ends at the first failed task, whether or not this task has a result of a module."""
    asked = ["driver", "container_toolkit", "mig_manager", "dcgm", "validator"]
    ended = {"driver_result": {"failed": True, "msg": "broke"}, "preflight_failure": "Install the driver: \x1bbroke"}
    found = task_vars(a=ended, b={"mig_manager_result": {"skipped": True}, "software_result": {"components": {}},
                                  "container_toolkit_result": {"plan": []}})
    errors = inventory_vars.errors(found, "a", asked)
    assert list(errors) == asked[:4] and errors["driver"]["message"] == "broke"
    assert errors["dcgm"]["message"] == ("The preview of the host failed before this module ran: "
                                         "Install the driver: \\x1bbroke")
    assert inventory_vars.errors(found, "b", asked) == {}  # no preview has ended there
    found["hostvars"]["b"]["preflight_failure"] = "Install the driver: broke"
    assert list(inventory_vars.errors(found, "b", asked)) == ["driver"]


def test_errors_of_the_cluster() -> None:
    """Including errors that the module did not raise itself, for example of an option that cannot be templated."""
    error = {"kind": "cluster", "message": "no.", "hint": "do."}
    broken = {"failed": True, "msg": "broke"}
    found = task_vars(a={"operands_result": {"skipped": True}, "deploy_labels_result": broken},
                      b={"operands_result": {"failed": False, "error": error}})
    assert inventory_vars.cluster_errors(found) == {"operands": error, "labels": {"message": "broke", "hint": ""}}


def test_facts_serve_until_a_role_changes_the_host() -> None:
    assert inventory_vars.unchanged_facts(task_vars(a=FOUND), "a") == {"gpus": []}
    unchanged = task_vars(a={**FOUND, "driver_result": {"changed": False}})
    assert inventory_vars.unchanged_facts(unchanged, "a") == {"gpus": []}
    assert inventory_vars.unchanged_facts(task_vars(a={**FOUND, "driver_result": {"changed": True}}), "a") is None
    assert inventory_vars.unchanged_facts(task_vars(a={}), "a") is None


def test_checks() -> None:
    assert inventory_vars.checks(task_vars(a={"preflight_checked": {"checks": [1]}}), "a") == [1]
    assert inventory_vars.checks(task_vars(a={}), "a") is None
    assert inventory_vars.checks(task_vars(a={"preflight_checked": {"skipped": True}}), "a") == []


def test_a_cluster_is_what_one_host_has_registered() -> None:
    skipped, plan = {"skipped": True}, {"namespace": "x"}
    assert inventory_vars.cluster(task_vars(a={"operands_result": skipped}), None) is None
    one = {"operands_result": {"objects": []}, "deploy_labels_result": skipped,
           "preflight_cluster": {"checks": [1], "observed": {"a": {}}}}
    assert inventory_vars.cluster(task_vars(a={}, b=one), plan) == {
        "plan": plan, "operands": {"objects": []}, "labels": None, "checks": [1], "observed": {"a": {}}}
    assert inventory_vars.cluster(task_vars(a={}), plan) == {
        "plan": plan, "operands": None, "labels": None, "checks": None, "observed": None}


def test_hosts_that_limit_leaves_out() -> None:
    known = task_vars(a={}, b={"gpu_policy": "x"}, c={}, d={})
    known |= {"ansible_play_hosts_all": ["a"], "groups": {"gpu_control": ["a"], "gpu_hosts": ["a", "b", "c"]}}
    assert inventory_vars.left_out(known) == {"b": {"gpu_policy": "x"}, "c": {}}


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
    """So are facts with another structure: they are set by hand, so the user gets the error."""
    mine = facts_sample.facts()
    assert inventory_vars.checked_facts({"a": mine, "b": None}) == {"a": mine, "b": None}
    with pytest.raises(InputError, match="facts.a: it is a mapping without host; allowed: the keys schema, "):
        inventory_vars.checked_facts({"a": {"schema": 3}})
    with pytest.raises(InputError, match=r"facts.a.gpus\[0\].uuid: it is 7; allowed: a string"):
        inventory_vars.checked_facts({"a": {**mine, "gpus": [{**mine["gpus"][0], "uuid": 7}]}})
    for other in ({"schema": 2}, {}, "text"):
        with pytest.raises(InputError, match="facts.b: the schema is .* Gather them again"):
            inventory_vars.checked_facts({"a": mine, "b": other})


LIE = {"preflight_found": {"failed": False, "error": {"kind": "answer", "path": "facts.gpus", "message": "No.",
                                                      "hint": "Look."}}}


def test_a_host_that_is_not_believed_has_no_facts_and_a_reason() -> None:
    """Another error of gpu_info is different: such a host has failed, and Ansible names it."""
    broken = {"preflight_found": {"failed": True, "error": {"kind": "host", "message": "x"}}}
    found = task_vars(a=LIE, b=FOUND, c=broken, d={})
    assert inventory_vars.facts(found) == {"a": None, "b": {"gpus": []}, "c": None, "d": None}
    assert inventory_vars.rejected(found) == {"a": {"path": "facts.gpus", "message": "No.", "hint": "Look."}}


@pytest.mark.parametrize("name", ["gpu_disruption", "gpu_take_over", "mig_manager_nodes", "driver_result",
                                  "inventory_dir"])
def test_facts_that_set_a_variable_of_ours_count_for_nobody(name: str) -> None:
    """Such facts take precedence over the inventory: one host could set the variable for all others."""
    forged = {**FOUND, "ansible_facts": {name: "x", "gpu_labels": {}, "distribution": "Debian"}, name: "x"}
    found = task_vars(a=forged, b={**FOUND, "gpu_disruption": "never"})
    found["groups"] = {"gpu_hosts": ["a", "b"]}
    assert list(inventory_vars.variables(found)) == ["b"] and inventory_vars.overrides(found) == {"a": {}, "b": {}}
    assert inventory_vars.facts(found)["a"] is None and inventory_vars.facts(found)["b"] is not None
    assert inventory_vars.rejected(found)["a"]["path"] == f"hostvars.a.{name}"
    assert inventory_vars.errors(found, "a") == {}
    assert inventory_vars.left_out({**found, "ansible_play_hosts_all": ["b"]}) == {}
    with pytest.raises(InputError, match=f"a has a fact {name}"):
        inventory_vars.refuse_forged({"inventory_hostname": "a", **forged})
    inventory_vars.refuse_forged({"inventory_hostname": "b", "gpu_disruption": "never",
                                  "ansible_facts": {"gpu_labels": {}}})


@pytest.mark.parametrize("look, name, before, after", [
    (inventory_vars.plugin_configs, "device_plugin_config", {"a": "x", "b": "y"}, {"b": "y"}),
    (inventory_vars.node_profiles, "gpu_profile", {"a": "x", "b": "y", "": "y"}, {"b": "y", "": "y"}),
    (inventory_vars.node_names, "gpu_node_name", {"a": "x", "b": "y"}, {"a": "a", "b": "y"})])
def test_what_a_node_gets_is_the_inventorys_to_say(look: Any, name: str, before: Any, after: Any) -> None:
    """The facts of a host about its Node are ignored, and do not end the run for the other hosts."""
    found = task_vars(a={name: "x"}, b={name: "y"})
    found["groups"] = {"gpu_hosts": ["a", "b"], "gpu_control": ["b"]}
    assert look(found) == before
    found["hostvars"]["a"]["ansible_facts"] = {name: "x"}
    assert look(found) == after
    assert f"a has a fact {name}: only the inventory may" in inventory_vars.rejected(found)["a"]["message"]


def test_a_control_host_whose_facts_are_forged_speaks_for_no_node() -> None:
    found = task_vars(a={"gpu_profile": "x", "ansible_facts": {"gpu_profile": "x"}}, b={"gpu_profile": "y"})
    found["groups"] = {"gpu_control": ["a", "b"]}
    assert inventory_vars.node_profiles(found) == {"": "y"}


def test_a_host_with_a_forged_name_is_no_node_of_another_host() -> None:
    """Its Node counts as not ready until it has been verified."""
    forged = {"gpu_node_name": "b", "ansible_facts": {"gpu_node_name": "b"}}
    found = task_vars(a=forged, b={**FOUND, "preflight_checked": {"checks": []}}, c=forged, d={"gpu_node_name": "c"})
    found["groups"] = {"gpu_hosts": ["a", "b", "c", "d"]}
    assert inventory_vars.node_names(found) == {"a": "a", "b": "b", "d": "c"}
    assert inventory_vars.unready_nodes(found) == {"a", "c"}


def test_reserved_are_all_variables_of_roles_and_playbooks() -> None:
    """Options, defaults and registered results of roles, and the variables of users that playbooks read."""
    root = pathlib.Path(__file__).parents[3]
    names = {*components.VARIABLES, *components.SECRETS, *(f"gpu_{name}" for name in settings.DEFAULTS)}
    for path in root.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            names |= set(entry.get("options") or {})
    for path in root.glob("roles/*/defaults/main.yml"):
        names |= set(yaml.safe_load(path.read_text()) or {})
    for path in (*root.glob("roles/*/tasks/*.yml"), *root.glob("playbooks/*.yml")):
        text = path.read_text()
        names |= set(re.findall(r"^\s*register: (\w+)", text, re.M))
        # In a template, as an operand or at its beginning.
        names |= {name for template in re.findall(r"\{\{(.*?)\}\}|when: (.*)", text, re.S) for part in template
                  for name in re.findall(r"(?<![\w.'])gpu_[a-z_]+(?![\w'])", part)}
        # What a user may leave out, but for Ansible's own.
        names |= set(re.findall(r"(?<![\w.])(?<!\| )([a-z]\w*) *\| *default\(", text)) - {"inventory_dir"}
    known = {component.result for component in components.COMPONENTS} | {components.SOFTWARE_RESULT}
    assert names - {"gpu_labels", "gpu_hosts", "gpu_control", *known} <= variable_names.NAMES
    assert known <= variable_names.NAMES and "gpu_labels" not in variable_names.NAMES


@pytest.mark.parametrize("kept", [True, False])
def test_what_waits_as_its_node_stays_in_service_is_pending(kept: bool) -> None:
    step = {"id": "enable MIG mode: all", "needs": "idle"}
    obstacle = {"id": "evict: Pod a/b", "needs": "drain", "pending_reason": "gpu_disruption is 'idle'"}
    found = task_vars(a={"mig_manager_result": {"plan": [step], "pending": []},
                         "maintenance_result": {"started": not kept, "pending": [obstacle] if kept else []}})
    waits = {**step, "needs": "drain", "pending_reason": "evict: Pod a/b: gpu_disruption is 'idle'"}
    assert inventory_vars.steps_of(found, "a", "pending") == ({"mig_manager": [waits]} if kept else {})
    assert inventory_vars.steps_of(found, "a", "plan") == ({} if kept else {"mig_manager": [step]})


def test_what_waits_beside_new_instances_names_what_is_in_its_way() -> None:
    """Only operands were paused, so the module worked at the level never."""
    create, mode = {"id": "create MIG instances: a", "needs": "never"}, {"id": "enable MIG mode: b", "needs": "idle"}
    obstacle = {"id": "evict: Pod a/b", "needs": "drain", "pending_reason": "gpu_disruption is 'idle'"}
    found = task_vars(a={"mig_manager_result": {"plan": [create], "pending": [{**mode, "pending_reason": "never"}]},
                         "maintenance_result": {"started": True, "level": "never", "pending": [obstacle]}})
    waits = {**mode, "needs": "drain", "pending_reason": "evict: Pod a/b: gpu_disruption is 'idle'"}
    assert inventory_vars.steps_of(found, "a", "pending") == {"mig_manager": [waits]}
    assert inventory_vars.steps_of(found, "a", "plan") == {"mig_manager": [create]}


def test_a_host_that_waits_for_a_window_says_so_instead_of_its_level() -> None:
    """Steps that every level allows wait for something else."""
    first = {"id": "unload modules: nvidia", "needs": "idle", "pending_reason": "gpu_disruption is 'never'"}
    other = {"id": "enrol the key: MOK", "needs": "never", "pending_reason": "a person must do it"}
    later = "the maintenance windows are closed until Sat 2026-11-28 22:00 (UTC)"
    found = task_vars(a={"driver_result": {"plan": [], "pending": [first, other]}, "maintenance_later": later},
                      b={"driver_result": {"plan": [], "pending": [first, other]}, "maintenance_later": ""})
    assert inventory_vars.steps_of(found, "a", "pending") == {
        "driver": [{**first, "needs": "never", "pending_reason": later}, other]}
    assert inventory_vars.steps_of(found, "b", "pending") == {"driver": [first, other]}
