# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role passes every option of the module, and documents it."""

from __future__ import annotations

import pathlib
import typing as t

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuops.nvidia.plugins.doc_fragments._attributes import ModuleDocFragment
from ansible_collections.gpuops.nvidia.plugins.modules import node_drain, nvidia_driver

ROLE = pathlib.Path(__file__).parents[3] / "roles" / "driver"
SECRETS = {"driver_signing_key", "driver_signing_password", "driver_licence_token", "driver_proxy"}


def load(path: str) -> t.Any:
    return yaml.safe_load((ROLE / path).read_text(encoding="utf-8"))


OPTIONS: dict[str, t.Any] = {name: option for text in (nvidia_driver.DOCUMENTATION, ModuleDocFragment.PLAN,
                                                       ModuleDocFragment.REPOSITORY, ModuleDocFragment.PROXY)
                             for name, option in yaml.safe_load(text)["options"].items()}


def test_every_option_is_handed_over() -> None:
    task, = load("tasks/install.yml")
    given = task["gpuops.nvidia.nvidia_driver"]
    assert set(given) == set(OPTIONS)
    for name, option in OPTIONS.items():
        if name != "proxy":  # a variable as a whole
            assert set(option.get("suboptions", ())) == set(given[name] if "suboptions" in option else ()), name


def test_every_variable_has_a_default_and_an_argument() -> None:
    specs = load("meta/argument_specs.yml")["argument_specs"]
    defaults, arguments = load("defaults/main.yml"), specs["main"]["options"]
    assert set(defaults) - set(arguments) == {"driver_plan"}
    assert set(arguments) <= set(defaults)
    assert set(specs["remove"]["options"]) <= set(arguments)
    assert {name for name, one in arguments.items() if one.get("no_log")} == SECRETS


def test_what_a_plan_says_reaches_the_module() -> None:
    """The defaults of the role read the keys of hosts[HOST].driver that are parameters of the role."""
    text = (ROLE / "defaults" / "main.yml").read_text(encoding="utf-8")
    for key in ("state", "version", "branch", "kernel_module_type", "source", "peermem", "gds", "gdrcopy",
                "module_parameters", "disruption"):
        assert f"driver_{key}: \"{{{{ driver_plan.{key} |" in text, key


def test_a_node_in_maintenance_loses_all_its_pods_before_its_host_reboots() -> None:
    """The pods with GPUs have been evicted before. A failed drain ends the block, so nothing reboots."""
    _install, block = load("tasks/host.yml")
    assert block["block"][0]["ansible.builtin.include_tasks"] == "reboot.yml"
    _facts, _refusal, drains, reboot = load("tasks/reboot.yml")
    drain, = load("tasks/drain.yml")
    assert drains["ansible.builtin.import_tasks"] == {"file": "drain.yml"} and "gpuops.nvidia.host_reboot" in reboot
    assert not {"ignore_errors", "failed_when", "rescue"} & {*drains, *drain, *block}
    plan = {"host_nodes": {"a": {"name": "node-a"}}, "kubeconfig": "/k", "context": None, "disruption": "reboot"}
    maintenance = yaml.safe_load((ROLE.parent / "maintenance" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    defaults = {name: trust_as_template(value) if isinstance(value, str) else value
                for name, value in maintenance.items()}

    def of(text: t.Any, **variables: t.Any) -> t.Any:
        return Templar(DataLoader(), variables=variables).template(trust_as_template(text))

    given = {name: of(value, inventory_hostname="a", gpu_plan=plan, **defaults) if isinstance(value, str) else value
             for name, value in drain["gpuops.nvidia.node_drain"].items() if name not in ("nodes", "context")}
    assert given == {"pods": "all", "kubeconfig": "/k", "disruption": "reboot", "timeout": 600, "force": False,
                     "delete_emptydir_data": False}
    assert set(given) <= set(yaml.safe_load(node_drain.DOCUMENTATION)["options"]) | {"kubeconfig", "disruption"}
    when = "{{ " + drains["when"] + " }}"
    assert of(when, inventory_hostname="a", gpu_plan=plan, **defaults) is True
    assert of(when) is False  # outside the role maintenance


def test_the_role_alone_reboots_no_node() -> None:
    """A plan limits the level on a Node, and the role maintenance drains it. A play with only this role has neither."""
    facts, refusal = load("tasks/reboot.yml")[:2]

    def of(task: t.Any, **variables: t.Any) -> t.Any:
        text = trust_as_template("{{ " + task["when"] + " }}")
        return Templar(DataLoader(), variables=variables).template(text)

    assert "gpuops.nvidia.gpu_info" in facts and of(facts) is True
    assert of(facts, gpu_plan={}) is False and of(facts, maintenance_node="node-a") is False
    for kubernetes, refused in ((None, False), ("kubelet", True)):
        read = {"facts": {"host": {"markers": {"kubernetes": kubernetes}}}}
        assert of(refusal, driver_facts=read) is refused
    assert of(refusal, driver_facts={"skipped": True}) is False
