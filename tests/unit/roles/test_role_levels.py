# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which level of disruption the modules get, and for which components a Node is taken out of service."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuops.nvidia.plugins.filter import (
    disturbing_components,
    disturbing_steps,
    gpu_remedies,
    strictest_level,
)

FILTERS = {f"gpuops.nvidia.{name}": function
           for module in (disturbing_components, disturbing_steps, gpu_remedies, strictest_level)
           for name, function in module.FilterModule().filters().items()}
ROOT = pathlib.Path(__file__).parents[3]
ROLES = ("driver", "container_toolkit", "mig_manager")


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def template(text: str, variables: dict[str, Any]) -> Any:
    given = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in variables.items()}
    templar = Templar(DataLoader(), variables=given)
    templar.environment.filters.update(FILTERS)
    return templar.template(trust_as_template(text))


@pytest.mark.parametrize(("own", "chosen"), [("reboot", ["driver"]), ("drain", []), ("never", [])])
def test_a_driver_whose_own_level_forbids_its_reboot_does_not_disturb_its_node(own: str, chosen: list[str]) -> None:
    """The level of the run is reboot. Otherwise each run would drain the Node for nothing."""
    host = {"driver": {"placement": "host", "disruption": own}}
    driver = {"pending": [{"needs": "reboot"}]}
    assert disturbing_components.disturbing_components(host, "reboot", driver, ["all"]) == chosen


def level(role: str, fleet: str | None, plan: str | None, **inventory: str) -> Any:
    """The level that the module of a role gets. fleet: the level of the plan; plan: that of the host, None without
    one."""
    hosts = {"a": {role: {"disruption": plan}}} if plan else {}
    variables = {**read(f"roles/{role}/defaults/main.yml"), **inventory, **read(f"roles/{role}/vars/main.yml"),
                 "inventory_hostname": "a", **({"gpu_plan": {"disruption": fleet, "hosts": hosts}} if fleet else {})}
    return template(f"{{{{ {role}_level }}}}", variables)


def choice(fleet: str, levels: dict[str, str], driver_result: dict[str, Any], node: bool = True
           ) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the task of site.yml that chooses the hosts to be disturbed, its variables). levels: of the components on the
    host; node: whether the host is a Node."""
    task = next(one for one in read("playbooks/site.yml")[1]["tasks"] if "ansible.builtin.group_by" in one)
    here = {name: {"placement": "host", "disruption": one} for name, one in levels.items()}
    return task, {**task["vars"], "gpu_undisturbed": node, "gpu_plan": {"disruption": fleet},
                  "ansible_run_tags": ["all"], "ansible_skip_tags": [], "driver_result": driver_result,
                  "driver_level": levels["driver"],
                  "gpu_host_plan": {"node": {"name": "a", "left": False} if node else {}, **here}}


def starts(task: dict[str, Any], variables: dict[str, Any]) -> bool:
    """Whether the task of the role maintenance works on the Node."""
    given = {"maintenance_creates": False, "maintenance_slurm_waits": False, **{name: task["vars"][name] for name in (
        "maintenance_disturbs", "maintenance_creating")}, **variables}
    return all(template("{{ " + one + " }}", given) for one in task["when"])


@pytest.mark.parametrize("role", ROLES)
def test_the_strictest_level_counts(role: str) -> None:
    own = f"{role}_disruption"
    assert level(role, None, None) == "never" and level(role, None, None, **{own: "reboot"}) == "reboot"
    assert level(role, "drain", None) == "drain" and level(role, "drain", "idle") == "idle"
    # The host belongs to a cluster that is not known, or the policy says autoUpgrade: false.
    assert level(role, "drain", "idle", **{own: "drain"}) == "idle"
    assert level(role, "reboot", "never", **{own: "reboot"}) == "never"
    assert level(role, "drain", "drain", **{own: "never"}) == "never"
    # A removal has no plan of the host.
    assert level(role, "idle", None, **{own: "drain"}) == "idle"
    assert level(role, "drain", None, **{own: "idle"}) == "idle"
    with pytest.raises(AnsibleError):
        level(role, "drain", None, **{own: "nevr"})


def test_a_node_is_taken_out_of_service_at_the_stricter_level() -> None:
    """The inventory can only restrict what the plan allows."""
    name = "maintenance_disruption"
    assert level("maintenance", "drain", None) == "drain"
    assert level("maintenance", "idle", None, **{name: "reboot"}) == "idle"
    assert level("maintenance", "reboot", None, **{name: "never"}) == "never"
    with pytest.raises(AnsibleError):
        level("maintenance", "drain", None, **{name: "nevr"})


@pytest.mark.parametrize("role", ["maintenance", "gpu_settings"])
def test_a_host_whose_node_is_not_known_has_a_lower_level(role: str) -> None:
    variables = {**read(f"roles/{role}/defaults/main.yml"), **read(f"roles/{role}/vars/main.yml"),
                 "gpu_plan": {"disruption": "reboot", "host_levels": {"a": "idle", "b": "reboot"}}}
    found = {host: template(f"{{{{ {role}_level }}}}", {**variables, "inventory_hostname": host}) for host in "ab"}
    assert found == {"a": "idle", "b": "reboot"}


RESET = {"id": "reset GPU: p", "target": "p", "needs": "idle", "pending_reason": "the level is too low"}
STOP = {"id": "stop GPU clients: p", "target": "p", "needs": "drain", "pending_reason": "evict these pods"}
BOOT = {"id": "reboot: this host", "target": "this host", "needs": "reboot", "pending_reason": "the level is too low"}
START = {"id": "start service: s", "target": "s", "needs": "never"}


@pytest.mark.parametrize(("plan", "pending", "fleet", "disturbs", "chosen"), [
    ([RESET], [], "idle", True, True), ([], [RESET], "never", False, False), ([], [STOP], "idle", False, False),
    ([], [STOP], "drain", True, True), ([], [BOOT], "drain", False, False), ([BOOT], [], "reboot", True, True),
    ([START], [], "never", False, True), ([START], [], "reboot", False, True), ([], [], "reboot", False, False)])
def test_a_host_is_taken_out_of_service_only_for_steps_that_its_level_allows(
        plan: list[dict[str, Any]], pending: list[dict[str, Any]], fleet: str, disturbs: bool, chosen: bool) -> None:
    """A pending reboot at the level drain would empty the Node in each run, for nothing."""
    play = read("playbooks/remediate.yml")[1]
    group = next(one for one in play["tasks"] if "ansible.builtin.group_by" in one)
    preview = {"plan": plan, "pending": pending, "refused": []}
    variables = {**play["vars"], "gpu_plan": {"disruption": fleet, "host_levels": {"a": fleet}, "rejected": {},
                                              "host_nodes": {"a": {"name": "a", "left": False}}},
                 "inventory_hostname": "a", "gpu_sick": bool(plan or pending), "gpu_reset_preview": preview}
    when = "{{ " + group["when"] + " }}"
    assert template(when, variables) is chosen
    start = next(one for one in read("roles/maintenance/tasks/main.yml")[0]["block"]
                 if one.get("register") == "maintenance_result")
    assert starts(start, {"maintenance_node": "a", "maintenance_level": fleet, "maintenance_results": [preview],
                          "maintenance_components": ["gpu_reset"]}) is disturbs
    told = next(one for one in play["tasks"] if "ansible.builtin.debug" in one)
    if plan or pending:
        text = template(told["ansible.builtin.debug"]["msg"], {**variables, **told["vars"]})
        after = ["stop GPU clients: p: after its pods are evicted"] if disturbs else [
            f"{one['id']}: not now: {one['pending_reason']}" for one in pending]
        assert text == [*(one["id"] for one in plan), *(after if pending else [])]


@pytest.mark.parametrize("change", [
    {"rejected": {"a": {"message": "no driver suits"}}}, {"host_levels": {}, "host_nodes": {}}])
def test_a_host_that_the_plan_rejects_or_does_not_know_is_not_changed(change: dict[str, Any]) -> None:
    play = read("playbooks/remediate.yml")[1]
    group = next(one for one in play["tasks"] if "ansible.builtin.group_by" in one)
    plan = {"disruption": "reboot", "host_levels": {"a": "reboot"}, "rejected": {}, "host_nodes": {"a": {}}, **change}
    variables = {**play["vars"], "gpu_plan": plan, "inventory_hostname": "a", "gpu_sick": True,
                 "gpu_reset_preview": {"plan": [BOOT], "pending": [], "refused": []}}
    assert template("{{ " + group["when"] + " }}", variables) is False


def test_only_gpus_that_a_person_must_reset_do_not_take_a_host_out_of_service() -> None:
    refused = [{**RESET, "target": "q"}]
    assert disturbing_steps.disturbing_steps([{"pending": refused}, {"skipped": True}], "drain", ["q"]) == []
    assert disturbing_steps.disturbing_steps([{"pending": refused}], "drain") == refused
    with pytest.raises(AnsibleError, match="is not a level of disruption"):
        disturbing_steps.disturbing_steps([], "nevr")


@pytest.mark.parametrize("role", [*ROLES, "maintenance"])
def test_tasks_go_by_the_strictest_level(role: str) -> None:
    for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
        assert f"{role}_disruption" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(("levels", "reboot", "expected"), [
    ({"driver": "never", "mig_manager": "drain"}, False, False),
    ({"driver": "never", "mig_manager": "drain"}, True, False),
    ({"driver": "drain", "mig_manager": "drain"}, False, True)])
def test_a_node_stays_in_service_for_a_driver_that_may_not_be_disturbed(
        levels: dict[str, str], reboot: bool, expected: bool) -> None:
    """With autoUpgrade: false, a driver stays pending: otherwise, each run would hold the Node, drain it and release
    it."""
    results = {"driver": {"pending": [{"needs": "idle"}], "plan": [], "reboot_required": reboot},
               "mig_manager": {"pending": [], "plan": []}}
    task, variables = choice("drain", levels, results["driver"])
    changed = template("{{ gpu_changed }}", variables)
    variables["gpu_results"] = [results[name] for name in changed]
    assert template("{{ " + task["when"] + " }}", variables) is expected
    # The role itself, where the Node is left behind or MIG has to be changed.
    block = read("roles/maintenance/tasks/main.yml")[0]["block"]
    start = next(one for one in block if one.get("register") == "maintenance_result")
    variables |= {"maintenance_components": changed, "maintenance_node": "a", "maintenance_level": "drain"}
    assert starts(start, {**variables, "maintenance_results": variables["gpu_results"]}) is expected


@pytest.mark.parametrize(("level", "needed", "skipped", "expected"), [
    ("reboot", True, [], True), ("reboot", False, [], False), ("reboot", True, ["driver"], False),
    ("drain", True, [], False), ("never", True, [], False)])
def test_hosts_that_are_no_nodes_reboot_in_batches(level: str, needed: bool, skipped: list[str], expected: bool
                                                   ) -> None:
    """Not in the first pass, which is for all hosts at once."""
    plays = read("playbooks/site.yml")
    everywhere, batched = plays[1], next(play for play in plays if play.get("name", "").startswith("Change the hosts"))
    choose, variables = choice(level, {"driver": level}, {"pending": [], "plan": [], "reboot_required": needed}, False)
    variables |= {"ansible_skip_tags": skipped, "ansible_check_mode": False}
    assert template("{{ " + choose["when"] + " }}", variables) is expected
    assert choose["ansible.builtin.group_by"]["key"] in batched["hosts"]
    words = [f"ansible.builtin.{verb}_role" for verb in ("import", "include")]
    called = [[task[word] for task in tasks for word in words
               if word in task] for tasks in (everywhere["tasks"], read("roles/maintenance/tasks/change.yml"))]
    roles = [next(role for role in found if role["name"] == "gpuops.nvidia.driver") for found in called]
    assert [one["tasks_from"] for one in roles] == ["install", "host"]
    _install, reboot = read("roles/driver/tasks/host.yml")
    assert all(template("{{ " + one + " }}", variables) for one in reboot["when"]) is (level == "reboot" and needed)


@pytest.mark.parametrize(("fleet", "needs", "mok", "expected"), [
    ("drain", ["reboot", "idle"], True, []), ("reboot", ["reboot", "idle"], True, []),
    ("idle", ["reboot"], False, []), ("drain", ["reboot"], False, []), ("reboot", ["reboot"], False, ["driver"]),
    ("drain", ["idle", "never"], False, ["driver"]), ("drain", ["drain"], True, ["driver"])])
def test_a_node_stays_in_service_for_a_driver_that_no_run_can_change(
        fleet: str, needs: list[str], mok: bool, expected: list[str]) -> None:
    """needs: the levels of the pending steps. A key that waits for the console must be confirmed by a person there; a
    nouveau that a console uses needs a reboot. Otherwise, each run would hold the Node, drain it and release it."""
    result = {"pending": [{"needs": one} for one in needs], "plan": [], "reboot_required": True,
              "mok": {"enrolled": False, "pending": mok}}
    task, variables = choice(fleet, {"driver": fleet}, result)
    changed = template("{{ gpu_changed }}", variables)
    variables["gpu_results"] = [result for _name in changed]
    assert changed == expected
    assert template("{{ " + task["when"] + " }}", variables) is bool(expected)
    variables["gpu_undisturbed"] = False
    assert template("{{ " + task["when"] + " }}", variables) is (bool(expected) and fleet == "reboot")


@pytest.mark.parametrize(("driver", "mig", "left", "chosen", "expected"), [
    ("drain", "never", False, True, True), ("never", "drain", False, False, False),
    ("never", "never", False, False, False), ("never", "drain", True, True, False),
    ("drain", "drain", True, True, True)])
def test_a_removal_leaves_a_node_in_service_for_what_may_not_be_disturbed(
        driver: str, mig: str, left: bool, chosen: bool, expected: bool) -> None:
    """Only the driver has pending steps; driver, mig: the levels of the roles; left: whether a killed run has left the
    Node behind; chosen: whether the last play has the Node; expected: whether it takes the Node out of service."""
    hosts, nodes = read("playbooks/remove.yml")[1:3]
    choice, groups = (next(one for one in hosts["tasks"] if f"ansible.builtin.{name}" in one)
                      for name in ("set_fact", "group_by"))
    variables = {"gpu_undisturbed": True, "inventory_hostname": "a", "ansible_run_tags": ["all"],
                 "ansible_skip_tags": [], "driver_level": driver, "container_toolkit_level": "drain",
                 "mig_manager_level": mig, "driver_result": {"plan": [], "pending": [{"needs": "idle"}]},
                 "mig_manager_result": {"plan": [], "pending": []},
                 "remove_from": {"disruption": "drain", "hosts": {"a": {"node": {"name": "a", "left": left}}}}}
    variables["gpu_changed"] = template(choice["vars"]["gpu_changed"], variables)
    variables["gpu_disturbing"] = template(choice["vars"]["gpu_disturbing"], variables)
    components = template(choice["ansible.builtin.set_fact"]["maintenance_components"], variables)
    results = [variables[f"{name}_result"] for name in components if f"{name}_result" in variables]
    assert template("{{ " + groups["when"] + " }}", {**variables, "gpu_results": results}) is chosen
    # What is set in the play itself would not count beside it.
    assert "maintenance_components" not in nodes["vars"]
    block = read("roles/maintenance/tasks/main.yml")[0]["block"]
    start = next(one for one in block if one.get("register") == "maintenance_result")
    given = {**variables, "maintenance_results": results, "maintenance_components": components, "maintenance_node": "a",
             "maintenance_level": "drain"}
    assert starts(start, given) is expected


def test_a_node_that_was_passed_over_fails_the_run_at_its_end() -> None:
    """With site.yml, also if tags or gpu_disruption skip the comparison of the cluster."""
    task = read("roles/preflight/tasks/compare.yml")[0]["always"][0]["always"][0]
    assert task["tags"] == ["always"] and task["run_once"]
    variables = {"preflight_plan": {"cluster": None}, "operands_result": {"problems": ["n2: it does not end."]}}
    for more, problems in (({}, ["n2: it does not end."]),
                           ({"preflight_cluster": {"problems": ["other"]}}, ["other", "n2: it does not end."]),
                           ({"operands_result": {"changed": True}}, []), ({"operands_result": {"skipped": True}}, [])):
        given = {**variables, **more}
        given["preflight_problems"] = template(task["vars"]["preflight_problems"], {**given, "preflight_nodes": []})
        assert given["preflight_problems"] == problems
        assert template("{{ " + task["when"] + " }}", given) is bool(problems)


PASSED_OVER = {"failed": True, "changed": False, "msg": "n2: Pod s/driver has not ended. Then run again.",
               "error": {"reason": "Timeout", "nodes": {"n2": "Pod s/driver has not ended."}, "pending": []}}
STUCK = {"failed": True, "msg": "Nothing has gone.", "error": {"reason": "Timeout", "pending": []}}


@pytest.mark.parametrize(("result", "stops", "fails"), [
    (PASSED_OVER, False, True), (STUCK, True, False), ({"failed": True, "msg": "The server is broken."}, True, False),
    ({"changed": True, "pending": []}, False, False), ({"skipped": True}, False, False)])
def test_a_removal_goes_on_after_a_node_that_was_passed_over(result: dict[str, Any], stops: bool, fails: bool) -> None:
    """Its play is for all hosts, and a task that fails on all of them would end the run before the hosts are changed.
    The last task of the run names the Node (test_end_of_a_run.py)."""
    cluster, report = (read("playbooks/remove.yml")[at] for at in (0, -1))
    operands = next(one for one in cluster["tasks"] if "block" in one)["block"][0]
    variables: dict[str, Any] = {"operands_result": result, "ansible_play_hosts": ["a", "b"], "inventory_hostname": "a",
                                 "gpu_skipped": operands["vars"]["gpu_skipped"]}
    assert template("{{ " + operands["failed_when"] + " }}", variables) is stops
    changed = result.get("changed", False) or result is PASSED_OVER
    assert template("{{ " + operands["changed_when"] + " }}", variables) is changed
    last = report["tasks"][-1]["always"][0]["always"][0]
    assert last["tags"] == ["always"] and last["run_once"]
    given = {**variables, "operands_result": {**result, "failed": stops}}
    given["gpu_skipped"] = template(last["vars"]["gpu_skipped"], given)
    assert template("{{ " + last["when"] + " }}", given) is fails
    assert not fails or template(last["ansible.builtin.fail"]["msg"], given) == PASSED_OVER["msg"]


CREATE = {"action": "create MIG instances", "needs": "never"}


@pytest.mark.parametrize("level", ["never", "idle", "drain", "reboot"])
@pytest.mark.parametrize(("plan", "tags", "expected"), [
    ([CREATE], ["all"], True), ([CREATE], ["driver"], False), ([], ["all"], False)])
@pytest.mark.parametrize("playbook", ["site", "remove"])
def test_instances_in_free_space_go_through_the_node_at_every_level(
        playbook: str, level: str, plan: list[dict[str, Any]], tags: list[str], expected: bool) -> None:
    """The first pass leaves them out, and nothing else is disturbed for them. The driver has nothing to do."""
    plays = read(f"playbooks/{playbook}.yml")
    hosts = next(one for one in plays if "gpu_undisturbed" in one.get("vars", {}))
    nodes = next(one for one in plays if "maintenance_creates" in one.get("vars", {}))
    group = next(one for one in hosts["tasks"] if "ansible.builtin.group_by" in one)
    mig = {"plan": [], "pending": plan, "in_free_space": ["0000:07:00.0"] if plan else []}
    results = {"driver_result": {"plan": [], "pending": []},
               "mig_manager_result": mig if "all" in tags else {"skipped": True}}
    here = {"node": {"name": "a", "left": False}, "mig_manager": {"placement": "host", "disruption": level}}
    fleet = {"disruption": level, "hosts": {"a": here}}
    variables = {**results, "inventory_hostname": "a", "gpu_undisturbed": True, "gpu_host_plan": here,
                 "gpu_plan": fleet, "remove_from": fleet, "ansible_run_tags": tags, "ansible_skip_tags": [],
                 "gpu_waits": False,
                 "gpu_results": [] if playbook == "site" else list(results.values()), "driver_level": level}
    assert template("{{ " + group["when"] + " }}", variables) is expected
    variables |= {"maintenance_creates": nodes["vars"]["maintenance_creates"], "maintenance_level": level,
                  "maintenance_components": [], "maintenance_node": "a", "maintenance_results": [],
                  "mig_manager_result": {**mig, "plan": plan, "pending": []} if "all" in tags else {"skipped": True}}
    start = next(one for one in read("roles/maintenance/tasks/main.yml")[0]["block"]
                 if one.get("register") == "maintenance_result")
    assert starts(start, variables) is expected
    told = {name: template(start["vars"][name], {**variables, "maintenance_creates": True}) for name in (
        "maintenance_disturbs", "maintenance_creating")}
    assert told["maintenance_disturbs"] is False
    task, = read("roles/mig_manager/tasks/host.yml")
    assert task["gpuops.nvidia.mig_config"]["create"] == "{{ mig_manager_create }}"
    own = read("roles/mig_manager/defaults/main.yml")["mig_manager_create"]
    assert template(own, {"gpu_undisturbed": True}) is False and template(own, {}) is True


@pytest.mark.parametrize(("result", "undisturbed"), [
    ({"skipped": True}, True), ({"started": False, "level": "never", "pending": [{}]}, True),
    ({"started": True, "level": "never"}, True), ({"started": True, "level": "drain"}, False)])
def test_a_host_is_disturbed_only_while_its_node_is_out_of_service(result: dict[str, Any], undisturbed: bool) -> None:
    """Also in check mode, and also if MIG instances are created meanwhile."""
    block = read("roles/maintenance/tasks/main.yml")[0]["block"]
    change = next(one for one in block if one["name"] == "Change the host")
    variables = {"maintenance_node": "a", "maintenance_result": result, "maintenance_slurm": False}
    assert template(change["vars"]["gpu_undisturbed"], variables) is undisturbed
    assert change["vars"]["mig_manager_create"] is True
    assert template(change["vars"]["gpu_undisturbed"], {**variables, "maintenance_node": ""}) is False


@pytest.mark.parametrize(("node", "result", "slurm", "undisturbed"), [
    ("", {}, {"skipped": True}, True), ("", {}, {"started": True}, False), ("", {}, {"started": False}, True),
    ("a", {"started": True, "level": "drain"}, {"skipped": True}, True),
    ("a", {"started": True, "level": "drain"}, {"started": True}, False),
    ("a", {"skipped": True}, {"started": True}, True)])
def test_a_host_is_disturbed_only_while_its_node_of_slurm_is_out_of_service(
        node: str, result: dict[str, Any], slurm: dict[str, Any], undisturbed: bool) -> None:
    """Also if the host is a Node of Kubernetes, too."""
    block = read("roles/maintenance/tasks/main.yml")[0]["block"]
    change = next(one for one in block if one["name"] == "Change the host")
    variables = {"maintenance_node": node, "maintenance_result": result, "maintenance_slurm": True,
                 "maintenance_slurm_result": slurm}
    assert template(change["vars"]["gpu_undisturbed"], variables) is undisturbed


@pytest.mark.parametrize(("pending", "expected"), [([], True), ([{"id": "drain"}], False)])
def test_jobs_keep_a_host_as_it_is(pending: list[dict[str, str]], expected: bool) -> None:
    """No task that changes or puts back runs, and the Node of the host is not cordoned."""
    waits = template(read("roles/maintenance/vars/main.yml")["maintenance_slurm_waits"],
                     {"maintenance_slurm_result": {"pending": pending}})
    block = {one.get("register") or one["name"]: one for one in read("roles/maintenance/tasks/main.yml")[0]["block"]}
    for name in ("maintenance_result", "Change the host", "Compare the host with the plan",
                 "maintenance_slurm_resumed"):
        condition, = (one for one in block[name]["when"] if "maintenance_slurm_waits" in one)
        assert template("{{ " + condition + " }}", {"maintenance_slurm_waits": waits}) is expected, name


def test_instances_that_replace_others_do_not_go_through_a_node_that_stays_in_service() -> None:
    """Nothing could be created at the level never, and operands would restart in every run."""
    start = next(one for one in read("roles/maintenance/tasks/main.yml")[0]["block"]
                 if one.get("register") == "maintenance_result")
    destroy = {"action": "destroy MIG instances", "needs": "idle"}
    result = {"plan": [destroy, CREATE], "pending": [], "in_free_space": []}
    variables = {"maintenance_creates": True, "mig_manager_result": result, "maintenance_level": "idle",
                 "maintenance_components": ["mig_manager"], "maintenance_results": [result], "maintenance_node": "a"}
    assert template(start["vars"]["maintenance_creating"], variables) is False
    assert template(start["vars"]["maintenance_disturbs"], variables) is True
