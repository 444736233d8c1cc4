# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The templates of the role mig_manager and the playbook mig."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuops.nvidia.plugins.filter.disturbing_components import disturbing_components

ROLE = pathlib.Path(__file__).parents[3] / "roles" / "mig_manager"
PLAYBOOKS = ROLE.parents[1] / "playbooks"
LAYOUT = ROLE.parent / "maintenance" / "tasks" / "layout.yml"
WAITING = {"id": "configure MIG: 0000:01:00.0", "needs": "never", "pending_reason": "it does not answer"}
CREATE = {"id": "create MIG instances: 0000:02:00.0", "needs": "never"}


def load(path: str) -> Any:
    return yaml.safe_load((ROLE / path).read_text(encoding="utf-8"))


def of_role(text: Any, **variables: Any) -> Any:
    """Templates a text of the tasks of the role with these variables of a play."""
    tagged = {name: trust_as_template(value) if isinstance(value, str) else value
              for name, value in {**load("defaults/main.yml"), "inventory_hostname": "a", **variables}.items()}
    return Templar(DataLoader(), variables=tagged).template(trust_as_template(text))


@pytest.mark.parametrize(("variables", "boot"), [
    ({}, True),
    ({"gpu_plan": {"hosts": {"a": {"mig_manager": {"boot": True}}}}}, True),
    ({"gpu_plan": {"hosts": {"a": {"mig_manager": {"boot": False}}}}}, False),
    ({"gpu_plan": {"hosts": {"b": {"mig_manager": {"boot": False}}}}}, True),
    ({"gpu_plan": {"hosts": {"a": {"mig_manager": {"boot": True}}}}, "mig_manager_boot": False}, False),
    ({"mig_manager_boot": "no"}, False),
])
def test_the_boot_unit_is_that_of_the_plan_unless_a_variable_says_otherwise(
        variables: dict[str, Any], boot: bool) -> None:
    change, = load("tasks/host.yml")
    check, = load("tasks/verify.yml")
    variables = {"gpu_plan": {}, **variables}
    given = of_role(change["gpuops.nvidia.mig_config"]["boot"], **variables)
    assert given == variables.get("mig_manager_boot", boot)  # the module's option is a boolean and takes words
    assert of_role(check["gpuops.nvidia.gpu_verify"]["expected"]["mig_manager"]["boot"], **variables) is boot


def variables_of(part: Any) -> Iterator[tuple[str, Any]]:
    """The variables that plays, blocks and tasks define, each with its value."""
    for one in part if isinstance(part, list) else [part]:
        if isinstance(one, dict):
            yield from (one.get("vars") or {}).items()
            for key in ("tasks", "block", "rescue", "always"):
                yield from variables_of(one.get(key) or [])


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yml")), ids=lambda path: path.name)
def test_a_variable_of_a_playbook_has_one_meaning(path: pathlib.Path) -> None:
    meanings: dict[str, set[str]] = {}
    for name, value in variables_of(yaml.safe_load(path.read_text(encoding="utf-8"))):
        meanings.setdefault(name, set()).add(str(value))
    assert not [name for name, values in meanings.items() if len(values) > 1]


def serve_layout(result: dict[str, Any], level: str = "drain", maintenance: dict[str, Any] | None = None,
                 check: bool = False) -> tuple[list[str], str]:
    """(the tasks of layout.yml that run, why they end early). result: what mig_config returns, in the preview and in
    the run. As in Ansible, a skipped task registers that; maintenance: what node_maintenance returned."""
    variables: dict[str, Any] = {"mig_manager_result": result, "maintenance_result": maintenance or {"skipped": True},
                                 "maintenance_level": level, "mig_manager_level": level, "ansible_check_mode": check}
    ran = []
    for task in yaml.safe_load(LAYOUT.read_text(encoding="utf-8")):
        known = {**variables, **task.get("vars", {})}
        when = task.get("when", True)
        runs = all(of_role("{{ " + str(one) + " }}", **known) for one in (when if isinstance(when, list) else [when]))
        if "ansible.builtin.import_role" in task:
            variables["mig_manager_result"] = result if runs else {"changed": False, "skipped": True}
        if runs:
            ran.append(task["name"])
        if runs and "ansible.builtin.fail" in task:
            return ran, str(of_role(task["ansible.builtin.fail"]["msg"], **known))
    return ran, ""


@pytest.mark.parametrize("plan", [[], [CREATE]])
@pytest.mark.parametrize("level", ["never", "idle", "drain"])
def test_a_layout_that_is_pending_on_one_gpu_is_no_success(plan: list[dict[str, Any]], level: str) -> None:
    """Nothing is planned for a GPU that does not respond, so the module does not change it."""
    ran, why = serve_layout({"plan": plan, "pending": [WAITING], "touched": ["0000:02:00.0"] if plan else []}, level)
    assert "Set the state success on the Node" not in ran
    assert why == "configure MIG: 0000:01:00.0: it does not answer"


def test_a_layout_that_is_there_is_a_success() -> None:
    assert serve_layout({"plan": [], "pending": [], "touched": []}) == (["Set the state success on the Node"], "")
    assert serve_layout({"plan": [CREATE], "pending": [], "touched": ["0000:02:00.0"]})[0][-2:] == [
        "Apply the MIG layout", "Set the state success on the Node"]


@pytest.mark.parametrize("check", [True, False])
def test_a_layout_that_waits_for_a_reboot_is_a_success_of_check_mode_alone(check: bool) -> None:
    """The run reboots the host, and then has the layout; if it still waits then, the run fails."""
    waits = {"plan": [], "pending": [{**WAITING, "needs": "reboot"}], "touched": ["x"], "reboot_required": True}
    ran, why = serve_layout(waits, "reboot", check=check)
    assert ("Set the state success on the Node" in ran) is check and bool(why) is not check


def test_a_layout_gets_the_instances_that_fit_beside_what_must_stay() -> None:
    """The Node is not out of service for the other instances, so the layout is incomplete; node_maintenance has paused
    what may be paused."""
    obstacle = {"id": "evict: Pod a/b", "pending_reason": "gpu_disruption is 'idle'"}
    result = {"plan": [CREATE], "pending": [{"id": "enable MIG mode: x", "pending_reason": "it"}], "touched": ["x"]}
    ran, why = serve_layout(result, "idle", {"started": True, "level": "never", "pending": [obstacle]})
    assert "Apply the MIG layout" in ran and "Set the state success on the Node" not in ran
    assert why == "evict: Pod a/b: gpu_disruption is 'idle'"
    ran, why = serve_layout(result, "idle", {"started": False, "level": "never", "pending": [obstacle]})
    assert ran == ["Fail if gpu_disruption forbids the change"] and why == "evict: Pod a/b: gpu_disruption is 'idle'"
    changing = next(one for one in yaml.safe_load(LAYOUT.read_text(encoding="utf-8"))
                    if one.get("register") == "maintenance_changing")
    assert changing["gpuops.nvidia.node_mig"]["pause"] is False


@pytest.mark.parametrize(("level", "required", "check", "reboots"), [
    ("reboot", True, False, True), ("reboot", False, False, False), ("drain", True, False, False),
    ("reboot", True, True, False)])
def test_a_host_reboots_only_for_a_mode_that_needs_it_and_is_then_finished(
        level: str, required: bool, check: bool, reboots: bool) -> None:
    block, = load("tasks/reboot.yml")
    variables = {"mig_manager_level": level, "mig_manager_result": {"reboot_required": required},
                 "ansible_check_mode": check}
    assert all(of_role("{{ " + when + " }}", **variables) for when in block["when"]) is reboots
    reboot, again = block["block"]
    assert reboot["ansible.builtin.include_role"]["name"] == "gpuops.nvidia.driver"
    assert reboot["ansible.builtin.include_role"]["tasks_from"] == "reboot"
    assert again["ansible.builtin.include_tasks"] == "host.yml"


@pytest.mark.parametrize(("result", "tags", "disturbed"), [
    ({"reboot_required": True, "pending": [CREATE]}, ["all"], True),
    ({"reboot_required": False, "pending": [CREATE]}, ["all"], False),
    ({"reboot_required": True, "pending": [CREATE]}, ["driver"], False),
    ({"skipped": True}, ["all"], False)])
def test_site_reboots_in_its_second_pass(result: dict[str, Any], tags: list[str], disturbed: bool) -> None:
    plays = yaml.safe_load((PLAYBOOKS / "site.yml").read_text(encoding="utf-8"))
    hosts = next(one for one in plays if "gpu_undisturbed" in one.get("vars", {}))
    group = next(one for one in hosts["tasks"] if "ansible.builtin.group_by" in one)
    changed = disturbing_components({"mig_manager": {"placement": "host"}}, "reboot", {}, tags)
    variables = {**group["vars"], "gpu_undisturbed": False, "gpu_plan": {"disruption": "reboot"}, "driver_result": {},
                 "mig_manager_result": result, "driver_level": "reboot", "gpu_results": [], "gpu_changed": changed}
    assert of_role("{{ " + group["when"] + " }}", **variables) is disturbed
