# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Situations and their results: the plan of a host, or the text of a refusal."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import MIG_CONFIG, MODELS, changed, facts

V26, V24 = "26.7.0", "24.9.2"


def plan(models: list[str], policy: Any = None, release: str = V26, **mine: Any) -> dict[str, Any]:
    """The plan of one host; mine: its variables in the inventory."""
    chosen = releases.release(release)
    return resolve(formats.read(policy, chosen), chosen, {"gpu01": facts(*models)}, {"gpu01": mine})["hosts"]["gpu01"]


def driver(**keys: Any) -> dict[str, Any]:
    return {"driver": keys}


@pytest.mark.parametrize(("models", "policy", "release", "mine", "expected"), [
    # version: the host's word, the policy's, the release's
    (["A100"], None, V26, {}, ("595.91.07", 595, "open")),
    (["A100"], None, "26.3.3", {}, ("580.126.20", 580, "open")),
    (["A100"], driver(version="580.173.02"), V26, {}, ("580.173.02", 580, "open")),
    (["A100"], driver(version="580.173.02"), V26, {"driver_version": "610.57.04"}, ("610.57.04", 610, "open")),
    (["A100"], driver(version="580.173.02"), V26, {"driver_branch": 610}, (None, 610, "open")),
    (["A100"], None, V26, {"driver_version": "610.57.04", "driver_branch": 610}, ("610.57.04", 610, "open")),
    (["A100"], driver(version="580"), V26, {}, (None, 580, "open")),
    (["A100"], driver(version="R580"), V26, {}, (None, 580, "open")),
    (["A100"], driver(version="580.126.20-ubuntu22.04"), V26, {}, ("580.126.20", 580, "open")),
    (["A100"], driver(version=""), V26, {}, ("595.91.07", 595, "open")),
    # the newest that the release supports where its default does not suit
    (["V100"], None, V26, {}, ("580.173.02", 580, "proprietary")),
    (["V100", "A100"], None, V26, {}, ("580.173.02", 580, "proprietary")),
    (["B200"], None, "25.3.0", {}, ("570.148.08", 570, "open")),
    # flavour
    (["T4", "A100"], None, V26, {}, ("595.91.07", 595, "open")),
    (["V100"], driver(version="580.173.02"), V26, {}, ("580.173.02", 580, "proprietary")),
    (["V100", "A100"], driver(version="580.173.02"), V26, {}, ("580.173.02", 580, "proprietary")),
    (["A100"], None, V24, {}, ("550.144.03", 550, "proprietary")),
    (["GH200"], None, V24, {}, ("550.144.03", 550, "open")),
    (["B200"], None, V26, {}, ("595.91.07", 595, "open")),
    (["A100"], driver(kernelModuleType="proprietary"), V26, {}, ("595.91.07", 595, "proprietary")),
    (["A100"], driver(kernelModuleType="proprietary"), V26, {"driver_kernel_module_type": "open"},
     ("595.91.07", 595, "open")),
    (["A100"], driver(version="620.10"), V26, {}, ("620.10", 620, "open")),
    (["A100"], driver(useOpenKernelModules=True), V24, {}, ("550.144.03", 550, "open")),
    (["A100"], driver(useOpenKernelModules=False), V26, {}, ("595.91.07", 595, "open")),
    (["K80"], driver(version="470.256.02"), V26, {}, ("470.256.02", 470, "proprietary")),
    (["NEW"], None, V26, {}, ("595.91.07", 595, "open")),
])
def test_driver(models: list[str], policy: Any, release: str, mine: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = plan(models, policy, release, **mine)["driver"]
    assert (found["version"], found["branch"], found["kernel_module_type"]) == expected
    assert (found["placement"], found["state"], found["source"]) == ("host", "present", "cuda_repository")


@pytest.mark.parametrize(("models", "policy", "release", "mine", "words"), [
    ([], None, V26, {}, ["gpu01: no NVIDIA GPU is on its PCI bus", "gpu_hosts"]),
    (["V100"], driver(version="595.91.07"), V26, {},
     ["driver.version of gpu_policy requests driver 595.91.07, but Tesla V100-SXM2-32GB (volta) needs proprietary "
      "kernel modules and a branch up to 580", "driver.version: 580.173.02"]),
    (["V100"], None, V26, {"driver_branch": "595"},
     ["driver_branch of this host requests driver branch 595", "driver_branch: 580 (proprietary modules)"]),
    (["V100"], driver(version="580.173.02", kernelModuleType="open"), V26, {},
     ["driver.kernelModuleType requests open kernel modules, but", "driver.kernelModuleType: proprietary"]),
    (["K80"], driver(version="580.173.02"), V26, {}, ["a branch up to 470", "driver.version: 470"]),
    (["K80"], None, V26, {}, ["a branch up to 470, but release 26.7.0 supports drivers 610.57.04, 595.91.07"]),
    (["B200"], driver(kernelModuleType="proprietary"), V26, {},
     ["driver.kernelModuleType requests proprietary kernel modules, but NVIDIA B200 (blackwell) needs open kernel "
      "modules", "driver.kernelModuleType: open (driver 595.91.07)"]),
    (["B200"], None, V24, {}, ["needs driver 570.133.20 or newer, but release 24.9.2 supports", "gpu_release: 26.7.0"]),
    (["B200"], driver(version="550.144.03"), V24, {}, ["requests driver 550.144.03, but NVIDIA B200 (blackwell)"]),
    (["B200", "V100"], driver(version="580.173.02"), V26, {},
     ["NVIDIA B200 (blackwell) needs open kernel modules", "but Tesla V100", "different hosts",
      "only NVIDIA B200"]),
    (["K80", "H100"], driver(version="470.256.02"), V26, {}, ["Tesla K80", "(hopper) needs driver 525 or newer"]),
    (["A100"], driver(version="620.10", kernelModuleType="proprietary"), V26, {},
     ["branch 620 has open kernel modules only", "driver.version: 595.91.07", "driver.kernelModuleType: open"]),
    (["A100"], driver(version="470.256.02", kernelModuleType="open"), V26, {},
     ["branch 470 has proprietary kernel modules only"]),
    (["A100"], None, V26, {"driver_state": "gone", "driver_source": "net", "container_toolkit_mode": True},
     ["driver_state 'gone' is not allowed", "Set one of present, absent, adopted, rolled_back", "driver_source 'net'",
      "container_toolkit_mode True is not allowed"]),
    (["A100"], None, V26, {"container_toolkit_runtime": ["docker", "dokcer"]},
     ["container_toolkit_runtime ['docker', 'dokcer'] is not allowed", "podman, or a list of them"]),
    (["A100"], None, V26, {"container_toolkit_runtime": "docker, podman"}, ["'docker, podman' is not allowed"]),
    (["A100"], None, V26, {"container_toolkit_runtime": []}, ["container_toolkit_runtime [] is not allowed"]),
    (["A100"], None, V26, {"container_toolkit_runtime": {"docker": True}}, ["{'docker': True} is not allowed"]),
    (["A100"], None, V26, {"container_toolkit_runtime": ["docker", "all"]},
     ["container_toolkit_runtime: all excludes other names", "Set only all, or only names of runtimes"]),
    (["A100"], None, V26, {"container_toolkit_runtime": "docker,docker"}, ["docker is named twice"]),
    (["A100"], None, V26, {"driver_module_parameters": "NVreg_X=1", "driver_imex_nodes": "10.0.0.1"},
     ["driver_module_parameters 'NVreg_X=1' is not allowed", "a mapping of modules", "driver_imex_nodes '10.0.0.1' is",
      "Write a list of addresses"]),
    (["A100"], None, V26, {"driver_next_kernel": "never"}, ["driver_next_kernel 'never' is not allowed"]),
    (["A100"], None, V26, {"driver_hold_kernel": "always"}, ["driver_hold_kernel 'always' is not allowed"]),
    (["A100"], None, V26, {"driver_image": "yes"}, ["driver_image is true, but a host with GPUs is not an image"]),
    (["A100"], None, V26, {"mig_manager_selected": "all-1g.10gb", "mig_manager_devices": [1]}, ["has no GPU '1'"]),
    (["A100"], None, V26, {"mig_manager_selected": "all-1g.10gb", "mig_manager_devices": "1"},
     ["mig_manager_devices '1' is not allowed", "Write a list of GPUs"]),
    (["A100"], None, V26, {"mig_manager_selected": ["all-1g.5gb"]}, ["['all-1g.5gb'] is not the name of a layout"]),
    (["A100"], None, V26, {"feature_discovery_sharing": "twice"},
     ["feature_discovery_sharing: sharing: a mapping is expected", "Use the format of the device plugin"]),
    (["A100"], {"devicePlugin": {"config": {"name": "p", "create": True, "default": "one", "data": {
        "one": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}"}}}}, V26, {},
     ["gpu01: devicePlugin.config.data of gpu_policy has one fault:", "one: sharing.timeSlicing.resources[0].replicas",
      "1 is too small; the smallest value is 2"]),
    (["A100"], None, V26, {"driver_version": "595.91.07", "driver_branch": 580},
     ["gpu01: driver_version 595.91.07 does not belong to driver_branch 580", "Set only one of them"]),
    (["A100"], driver(version="sha256:0123"), V26, {}, ["'sha256:0123'", "is not a driver version"]),
    (["A100"], driver(usePrecompiled=True, version="580"), V26, {},
     ["driver.usePrecompiled requests precompiled modules, but debian 12 has", "no precompiled modules"]),
    (["A100"], {"toolkit": {"version": "latest"}}, V26, {}, ["toolkit version 'latest' is not valid"]),
    (["A100"], None, V26, {"driver_kernel_module_type": "closed"}, ["'closed' is not allowed"]),
    (["L40S"], None, V26, {"mig_manager_selected": "all-1g.10gb", "mig_manager_config": MIG_CONFIG},
     ["MIG layout 'all-1g.10gb'", "NVIDIA L40S", "does not support MIG"]),
    (["L40S"], None, V26, {"mig_manager_selected": "all-1g.10gb"}, ["for the GPUs of this host (NVIDIA L40S)"]),
    (["A100"], None, V26, {"mig_manager_selected": "all-1g.6gb"}, ["no generated configuration 'all-1g.6gb'"]),
    (["A30"], None, V26, {"mig_manager_selected": "all-1g.10gb", "mig_manager_config": MIG_CONFIG},
     ["NVIDIA A30) has no profile 1g.10gb", "It has 1g.6gb"]),
    (["A100"], None, V26, {"mig_manager_selected": "nope", "mig_manager_config": MIG_CONFIG},
     ["no configuration 'nope'"]),
    (["A100"], None, V26, {"mig_manager_config": MIG_CONFIG}, ["none is selected", "all-1g.10gb, half"]),
    (["A100"], {"migManager": {"enabled": False}}, V26, {"mig_manager_selected": "all-1g.10gb"}, ["but MIG is off"]),
    (["A100"], {"apiVersion": "gpu.nvidia.com/v1", "kind": "GPUClusterPolicy",
                "spec": {"driver": {"version": "470.82.01"}, "cuda": {"enabled": True, "version": "12.4"}}}, V26, {},
     ["requests driver 470.82.01, but CUDA 12.4 (cuda.version) needs driver 525.60.13 or newer"]),
])
def test_refusals(models: list[str], policy: Any, release: str, mine: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(PolicyError) as error:
        plan(models, policy, release, **mine)
    for word in words:
        assert word in str(error.value)
    assert str(error.value).endswith("Nothing was changed.")


def test_all_refusals_in_one_message_hosts_with_the_same_together() -> None:
    chosen = releases.release(V26)
    fleet = {"a": facts("V100"), "b": facts("A100"), "c": facts("V100"), "d": facts()}
    policy = formats.read({"toolkit": {"version": "x"}, "driver": {"version": "595.91.07"}}, chosen)
    with pytest.raises(PolicyError) as error:
        resolve(policy, chosen, fleet, {})
    refusals = {tuple(item["hosts"]): item["reason"] for item in error.value.details["refusals"]}
    assert list(refusals) == [("a", "c"), ("a", "b", "c"), ("d",)]
    assert "  a, c: driver.version of gpu_policy requests driver 595.91.07" in str(error.value)


def test_hosts_do_not_change_each_other() -> None:
    chosen = releases.release(V26)
    policy = formats.read(None, chosen)
    alone = resolve(policy, chosen, {"a": facts("A100")}, {})["hosts"]["a"]
    among = resolve(policy, chosen, {"b": facts("B200"), "a": facts("A100"), "c": facts("T4")}, {})["hosts"]["a"]
    assert alone == among


def test_a_host_without_facts_is_left_out_and_said() -> None:
    chosen = releases.release(V26)
    found = resolve(formats.read(None, chosen), chosen, {"a": facts("A100"), "b": None}, {})
    assert list(found["hosts"]) == ["a"]
    assert found["notes"] == [
        "b: not part of this plan, because there are no facts (unreachable, or excluded with --limit)."]


@pytest.mark.parametrize(("policy", "release", "mine", "expected"), [
    (None, V26, {}, ("1.20.0", True, False, "auto")),
    (None, "25.3.4", {}, ("1.17.8", False, True, "auto")),
    ({"toolkit": {"version": "v1.17.8-ubuntu20.04"}}, V26, {}, ("1.17.8", True, False, "auto")),
    ({"toolkit": {"version": "1.19.1"}, "cdi": {"enabled": False}}, V26, {}, ("1.19.1", False, True, "auto")),
    ({"toolkit": {"env": [{"name": "CONTAINERD_SET_AS_DEFAULT", "value": "true"}]}}, V26, {},
     ("1.20.0", True, True, "auto")),
    (None, V26, {"container_toolkit_version": "1.18.1", "container_toolkit_runtime": "docker",
                 "container_toolkit_set_as_default": True, "container_toolkit_cdi": False},
     ("1.18.1", False, True, "docker")),
    (None, V26, {"container_toolkit_runtime": ["docker", "podman"]}, ("1.20.0", True, False, ["docker", "podman"])),
    (None, V26, {"container_toolkit_runtime": "docker,podman"}, ("1.20.0", True, False, ["docker", "podman"])),
    (None, V26, {"container_toolkit_runtime": ["crio"]}, ("1.20.0", True, False, "crio")),
    (None, V26, {"container_toolkit_runtime": "all"}, ("1.20.0", True, False, "all")),
    (None, V26, {"container_toolkit_runtime": ""}, ("1.20.0", True, False, "auto")),
])
def test_container_toolkit(policy: Any, release: str, mine: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = plan(["A100"], policy, release, **mine)["container_toolkit"]
    assert (found["version"], found["cdi"], found["set_as_default"], found["runtime"]) == expected


def _env(**variables: str) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value} for name, value in variables.items()]}


@pytest.mark.parametrize(("policy", "mine", "name"), [
    (None, {}, "nvidia"),
    ({"operator": {"runtimeClass": "site"}}, {}, "site"),
    ({"operator": {"runtimeClass": "site"}, "toolkit": _env(CONTAINERD_RUNTIME_CLASS="gpu")}, {}, "gpu"),
    ({"toolkit": _env(DOCKER_RUNTIME_NAME="b", NVIDIA_RUNTIME_NAME="a", CRIO_RUNTIME_CLASS="c")}, {}, "a"),
    ({"toolkit": _env(NVIDIA_RUNTIME_NAME="", CRIO_RUNTIME_CLASS="c")}, {}, "c"),
    ({"toolkit": _env(NVIDIA_RUNTIME_NAME="a")}, {"container_toolkit_nvidia_runtime_name": "mine"}, "mine"),
    ({"toolkit": _env(NVIDIA_RUNTIME_NAME="nvidia-legacy")}, {}, "nvidia"),
])
def test_the_name_of_the_nvidia_runtime(policy: Any, mine: dict[str, Any], name: str) -> None:
    assert plan(["A100"], policy, V26, **mine)["container_toolkit"]["nvidia_runtime_name"] == name


@pytest.mark.parametrize(("policy", "mine", "words"), [
    ({"toolkit": _env(CONTAINERD_RUNTIME_CLASS="A_b")}, {},
     "toolkit.env: CONTAINERD_RUNTIME_CLASS: A_b: it is not a name of a runtime class"),
    ({"operator": {"runtimeClass": "runc"}}, {}, "operator.runtimeClass: runc: the name is reserved"),
    (None, {"container_toolkit_nvidia_runtime_name": "nvidia-cdi"},
     "container_toolkit_nvidia_runtime_name: nvidia-cdi: the name is reserved"),
    (None, {"container_toolkit_nvidia_runtime_path": "/x", "container_toolkit_mode": "cdi"},
     "container_toolkit_nvidia_runtime_path: container_toolkit_mode cdi also sets the program"),
])
def test_invalid_names_of_the_nvidia_runtime(policy: Any, mine: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        plan(["A100"], policy, V26, **mine)


def test_variables_of_the_operators_pod_that_a_host_has_too() -> None:
    environment = {"NVIDIA_CONTAINER_RUNTIME_MODE": "legacy", "NVIDIA_CONTAINER_RUNTIME_RUNTIMES": "crun, runc",
                   "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true", "CONTAINERD_SOCKET": "/run/c.sock",
                   "DOCKER_SET_AS_DEFAULT": "true"}
    policy = {"toolkit": {"env": [{"name": name, "value": value} for name, value in environment.items()]},
              "cdi": {"nriPluginEnabled": True}}
    chosen = releases.release(V26)
    found = resolve(formats.read(policy, chosen), chosen, {"a": facts("A100", containerd=False)}, {}, "hosts")
    plan_of_host = found["hosts"]["a"]["container_toolkit"]
    assert plan_of_host["settings"] == {
        "nvidia-container-runtime.mode": "legacy", "nvidia-container-runtime.runtimes": ["crun", "runc"],
        "accept-nvidia-visible-devices-as-volume-mounts": True}
    assert plan_of_host["set_as_default"] and plan_of_host["nri"]
    assert [text for text in found["notes"] if "CONTAINERD_SOCKET" in text and "MODE" not in text]


@pytest.mark.parametrize(("installed", "mine", "named"), [
    (["docker"], {}, "docker"), (["docker", "crio"], {"container_toolkit_runtime": "all"}, "docker, crio"),
    (["docker", "containerd"], {"container_toolkit_runtime": "docker"}, "docker"),
    (["docker", "containerd"], {"container_toolkit_runtime": "docker,containerd"}, ""), (["containerd"], {}, ""),
    ([], {}, ""), (["docker"], {"container_toolkit_runtime": "k3s"}, ""),
])
def test_nri_is_that_of_containerd(installed: list[str], mine: dict[str, Any], named: str) -> None:
    chosen, known = releases.release(V26), facts("A100")
    runtime = {"version": "2.0.0", "running": True, "boot": "yes", "stale": False, "classes": [], "default": None,
               "cri": True}
    known["runtimes"] = {name: dict(runtime) if name in installed else None
                         for name in ("containerd", "docker", "crio", "podman")}
    policy = formats.read({"cdi": {"nriPluginEnabled": True}}, chosen)
    notes = [note for note in resolve(policy, chosen, {"a": known}, {"a": mine})["notes"] if "nriPlugin" in note]
    assert notes == ([f"a: cdi.nriPluginEnabled: no effect on {named}: only NRI of containerd is enabled."]
                     if named else [])
    known["host"]["markers"]["kubernetes"] = "k3s"  # its containerd is configured
    found = resolve(policy, chosen, {"a": known}, {"a": {"container_toolkit_runtime": "auto"}})
    assert not [note for note in found["notes"] if "nriPlugin" in note]


def test_settings_of_the_host_are_added_to_those_of_the_policy() -> None:
    policy = {"toolkit": _env(NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL="info", NVIDIA_CONTAINER_CLI_DEBUG="/var/log/a")}
    mine = {"nvidia-container-runtime": {"log-level": "debug"}, "features.gds": True}
    found = plan(["A100"], policy, container_toolkit_settings=mine)["container_toolkit"]["settings"]
    assert found == {"nvidia-container-runtime.log-level": "debug", "nvidia-container-cli.debug": "/var/log/a",
                     "features.gds": True}


@pytest.mark.parametrize(("env", "mine", "words"), [
    ({"ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "yes"}, {},
     "toolkit.env: ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS: 'yes' is not allowed.*Set true or false, in quotes"),
    ({"CONTAINERD_SET_AS_DEFAULT": "on"}, {}, "toolkit.env: CONTAINERD_SET_AS_DEFAULT: 'on' is not allowed"),
    ({"NVIDIA_CONTAINER_RUNTIME_MODE": "fast"}, {},
     "toolkit.env: nvidia-container-runtime.mode: 'fast' is not a valid value of .*one of auto, cdi"),
    ({}, {"container_toolkit_settings": {"mod": 1}}, "container_toolkit_settings: mod: 'mod' is not a known setting"),
    ({}, {"container_toolkit_settings": "mode=cdi"}, "container_toolkit_settings 'mode=cdi' is not allowed"),
])
def test_settings_that_the_toolkit_does_not_know_are_refused(env: dict[str, str], mine: dict[str, Any],
                                                             words: str) -> None:
    with pytest.raises(PolicyError, match=f"(?s){words}"):
        plan(["A100"], {"toolkit": _env(**env)}, **mine)
    if env:  # nobody needs them where the toolkit is not delivered
        assert plan(["A100"], {"toolkit": {"enabled": False, **_env(**env)}})["container_toolkit"]["settings"] == {}


def test_a_variable_without_a_value_sets_nothing() -> None:
    env = [{"name": "NVIDIA_CONTAINER_RUNTIME_MODE"}, {"name": "NVIDIA_CONTAINER_CLI_DEBUG", "value": None}]
    assert plan(["A100"], {"toolkit": {"env": env}})["container_toolkit"]["settings"] == {}
    exporter = plan(["A100"], {"dcgmExporter": {"env": [{"name": "DCGM_EXPORTER_LISTEN"}]}})["dcgm_exporter"]
    assert exporter["listen"] == ":9400"


@pytest.mark.parametrize(("section", "component"), [("gfd", "feature_discovery"), ("migManager", "mig_manager")])
def test_what_is_switched_off_says_so(section: str, component: str) -> None:
    (because,) = plan(["A100"], {section: {"enabled": False}})[component]["because"]
    assert because.startswith("not delivered: ") and f"{section}.enabled" in because


@pytest.mark.parametrize(("release", "settings"), [("25.3.4", {"nvidia-container-runtime.mode": "cdi"}), (V26, {})])
def test_cdi_as_default_of_older_releases(release: str, settings: dict[str, Any]) -> None:
    policy = {"cdi": {"enabled": True, "default": True}}
    assert plan(["A100"], policy, release)["container_toolkit"]["settings"] == settings


def test_mig_is_left_alone_unless_a_layout_is_selected() -> None:
    found = plan(["A100"])["mig_manager"]
    assert (found["state"], found["selected"], found["config"]) == ("gathered", None, None)
    chosen = plan(["A100", "A100"], mig_manager_selected="half", mig_manager_config=MIG_CONFIG)["mig_manager"]
    assert (chosen["state"], chosen["selected"], chosen["config"]) == ("present", "half", MIG_CONFIG)


def test_the_only_layout_of_a_file_needs_no_name() -> None:
    config = {"version": "v1", "mig-configs": {"mine": [
        {"devices": "all", "mig-enabled": True, "mig-devices": {}}]}}
    assert plan(["A100"], mig_manager_config=config)["mig_manager"]["selected"] == "mine"


def test_mig_of_some_gpus_alone() -> None:
    found = plan(["A100", "A30"], mig_manager_selected="all-1g.10gb", mig_manager_config=MIG_CONFIG,
                 mig_manager_devices=[0])["mig_manager"]
    assert (found["devices"], found["selected"]) == ([0], "all-1g.10gb")


def test_mig_layouts_of_the_policy() -> None:
    text = "version: v1\nmig-configs:\n  mine:\n    - {devices: all, mig-enabled: true, mig-devices: {}}\n"
    values = {"migManager": {"config": {"name": "n", "create": True, "data": {"config.yaml": text}}}}
    found = plan(["A100"], values, mig_manager_selected="mine")["mig_manager"]
    assert list(found["config"]["mig-configs"]) == ["mine"]


@pytest.mark.parametrize(("mine", "boot"), [
    ({}, True), ({"mig_manager_boot": ""}, True), ({"mig_manager_boot": True}, True),
    ({"mig_manager_boot": "yes"}, True), ({"mig_manager_boot": False}, False), ({"mig_manager_boot": "no"}, False),
    ({"mig_manager_boot": "False"}, False)])
def test_a_layout_is_there_again_after_a_boot_unless_a_host_says_otherwise(mine: dict[str, Any], boot: bool) -> None:
    """Values of inventories in INI format are words. A layout that exists only until the next boot is work to do."""
    chosen = releases.release(V26)
    known = facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, mig={"1g.10gb": 7})
    mine = {"mig_manager_selected": "all-1g.10gb", "mig_manager_config": MIG_CONFIG, **mine}
    found = resolve(formats.read(None, chosen), chosen, {"a": known}, {"a": mine})["hosts"]["a"]
    assert found["mig_manager"]["boot"] is boot
    assert found["preview"] == (["mig_manager"] if boot else [])


@pytest.mark.parametrize(("name", "policy"), [
    ("mig_manager_boot", None), ("container_toolkit_cdi", None), ("container_toolkit_set_as_default", None),
    ("dcgm_profiling", {"dcgm": {"enabled": True}}),
    ("cuda_profile", {"apiVersion": "gpu.nvidia.com/v1", "kind": "GPUClusterPolicy", "spec": {
        "cuda": {"enabled": True}}})])
def test_a_word_that_is_neither_true_nor_false_is_refused(name: str, policy: Any) -> None:
    with pytest.raises(PolicyError, match=f"{name} 'maybe' is not allowed.\\s+Set true or false"):
        plan(["A100"], policy, **{name: "maybe"})


def test_words_of_an_inventory_switch_off() -> None:
    """Without CDI, the nvidia runtime becomes the default, as with a boolean."""
    for off in (False, "false", "No", "off"):
        found = plan(["A100"], container_toolkit_cdi=off)["container_toolkit"]
        assert (found["cdi"], found["set_as_default"]) == (False, True)
        found = plan(["A100"], container_toolkit_cdi=off, container_toolkit_set_as_default=off)["container_toolkit"]
        assert (found["cdi"], found["set_as_default"]) == (False, False)


TWO_PROFILES = {"version": "v1", "mig-configs": {
    "two": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 2, "2g.20gb": 1}}],
    "each": [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}},
             {"devices": [1], "mig-enabled": True, "mig-devices": {"2g.20gb": 3}}],
    "one": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 3}}]}}


@pytest.mark.parametrize("layout", ["two", "each"])
@pytest.mark.parametrize(("policy", "mine"), [
    ({"mig": {"strategy": "single"}}, {}), (None, {"feature_discovery_mig_strategy": "single"}),
    ({"mig": {"strategy": "mixed"}}, {"feature_discovery_mig_strategy": "single"})])
def test_two_profiles_are_refused_where_a_user_asks_for_single(layout: str, policy: Any, mine: dict[str, Any]) -> None:
    mine = {"mig_manager_selected": layout, "mig_manager_config": TWO_PROFILES, **mine}
    with pytest.raises(PolicyError) as caught:
        plan(["A100", "A100"], policy, **mine)
    said = str(caught.value)
    assert f"MIG layout '{layout}' has the profiles 1g.10gb, 2g.20gb, but mig.strategy single supports" in said
    assert "Set mig.strategy to mixed, or select a layout of one profile." in said
    assert plan(["A100", "A100"], policy, **{**mine, "mig_manager_selected": "one"})["mig_manager"]["selected"] == "one"


def test_two_profiles_are_said_where_nobody_asks_for_single_and_fine_where_mixed_is() -> None:
    chosen = releases.release(V26)
    mine = {"mig_manager_selected": "two", "mig_manager_config": TWO_PROFILES}
    for policy, own, told in ((None, {}, True), ({"mig": {"strategy": "mixed"}}, {}, False),
                              ({"mig": {"strategy": "single"}}, {"feature_discovery_mig_strategy": "mixed"}, False)):
        found = resolve(formats.read(policy, chosen), chosen, {"a": facts("A100")}, {"a": {**mine, **own}})
        assert any("Labels and Kubernetes need mig.strategy mixed" in note for note in found["notes"]) is told
        assert found["hosts"]["a"]["mig_manager"]["selected"] == "two"


@pytest.mark.parametrize(("policy", "strategy"), [
    (None, "single"), ({"mig": {"strategy": "mixed"}}, "mixed"),
    ({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": {}}, "none"),
])
def test_mig_strategy(policy: Any, strategy: str) -> None:
    assert plan(["A100"], policy)["feature_discovery"]["mig_strategy"] == strategy


def test_a_disabled_driver_is_adopted() -> None:
    found = plan(["V100"], driver(enabled=False))["driver"]
    assert (found["placement"], found["state"], found["version"]) == ("none", "adopted", None)


@pytest.mark.parametrize(("mine", "expected"), [
    ({}, (None, None)), ({"driver_version": "560.35.03"}, ("560.35.03", 560)), ({"driver_branch": 560}, (None, 560)),
])
def test_whoever_adopts_a_driver_is_asked_nothing_else(mine: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Neither the version of the policy nor the requirements of the GPUs count, because nothing is installed."""
    found = plan(["V100", "B200"], driver(version="595.91.07"), driver_state="adopted", **mine)["driver"]
    assert (found["placement"], found["state"], found["version"], found["branch"]) == ("none", "adopted", *expected)


FORMER = {"version": "580.126.20", "flavour": "open", "source": "cuda_repository", "installation": "full"}


def with_former(former: dict[str, Any] | None, *models: str, loaded: str = "", **variables: Any) -> dict[str, Any]:
    """The plan of a host on which a former driver is recorded and driver_state is rolled_back."""
    chosen = releases.release(V26)
    known = facts_sample.driven(facts(*models), loaded) if loaded else facts(*models)
    known["journals"]["former_driver"] = former
    policy = formats.read(driver(version="595.91.07", kernelModuleType="proprietary"), chosen)
    return resolve(policy, chosen, {"a": known}, {"a": {"driver_state": "rolled_back", **variables}})


@pytest.mark.parametrize("variables", [{}, {"driver_version": "610.57.04", "driver_source": "cuda_repository"}])
def test_a_return_to_the_former_driver_is_planned_with_its_version(variables: dict[str, Any]) -> None:
    """Neither the policy nor the variables of the host decide, so after the run nothing is reported as drift."""
    found = with_former(FORMER, "A100", loaded="580.126.20", **variables)["hosts"]["a"]
    planned = found["driver"]
    assert (planned["placement"], planned["state"], planned["version"], planned["kernel_module_type"],
            planned["source"]) == ("host", "rolled_back", "580.126.20", "open", "cuda_repository")
    assert planned["installation"] == "full" and "nvidia-open" in planned["packages"]
    assert "driver 580.126.20: driver_state: rolled_back" in planned["because"]
    assert "driver" in found["preview"]  # the module tells whether it can be had again


def test_a_return_without_a_former_driver_is_refused() -> None:
    with pytest.raises(PolicyError, match="(?s)no former driver of this host is recorded.*Set driver_state: present"):
        with_former(None, "A100")


def test_a_return_that_the_host_does_not_allow_is_refused_with_its_reason() -> None:
    with pytest.raises(PolicyError, match=r"(?s)driver_state: rolled_back requests driver 595.80.01, but Tesla V100.*"
                                          "driver_state: present and driver_version: 580.173.02"):
        with_former({**FORMER, "version": "595.80.01", "flavour": None}, "V100")


def test_placement() -> None:
    chosen = releases.release(V26)
    policy = formats.read(None, chosen)
    found = resolve(policy, chosen, {"a": facts("A100")}, {}, {"container_toolkit": "none"})["hosts"]["a"]
    assert (found["container_toolkit"]["placement"], found["driver"]["placement"]) == ("none", "host")
    for wrong in ("elsewhere", {"driver": "clusters"}, {"nothing": "host"}, {"device_plugin": "host"}):
        with pytest.raises(InputError):
            resolve(policy, chosen, {"a": facts("A100")}, {}, wrong)


@pytest.mark.parametrize(("placement", "driver_at", "labels_at"), [
    ("hosts", "host", "host"), ("hybrid", "host", "cluster"), ({"feature_discovery": "cluster"}, "host", "cluster"),
])
def test_a_component_is_at_one_place(placement: Any, driver_at: str, labels_at: str) -> None:
    chosen = releases.release(V26)
    plan = resolve(formats.read(None, chosen), chosen, {"a": facts("A100")}, {}, placement)
    found = plan["hosts"]["a"]
    assert (found["driver"]["placement"], found["feature_discovery"]["placement"]) == (driver_at, labels_at)


def test_nothing_is_planned_for_hosts_where_all_is_in_the_cluster() -> None:
    chosen = releases.release(V26)
    plan = resolve(formats.read(None, chosen), chosen, {"a": facts("A100"), "b": None}, {}, "cluster")
    assert (plan["hosts"], plan["notes"]) == ({}, [])


@pytest.mark.parametrize(("upgrade", "level", "expected"), [
    ({"autoUpgrade": False}, "reboot", "never"), ({"autoUpgrade": True}, "drain", "drain"), ({}, "idle", "idle"),
])
def test_the_stricter_disruption_counts_for_the_driver(upgrade: dict[str, Any], level: str, expected: str) -> None:
    chosen = releases.release(V26)
    policy = formats.read(driver(upgradePolicy=upgrade), chosen)
    found = resolve(policy, chosen, {"a": facts("A100")}, {}, "hosts", level)
    assert found["hosts"]["a"]["driver"]["disruption"] == expected
    assert found["hosts"]["a"]["mig_manager"]["disruption"] == level
    assert found["disruption"] == level


@pytest.mark.parametrize(("own", "level", "expected"), [
    ("drain", "idle", "idle"), ("never", "drain", "never"), ("idle", "reboot", "idle"), ("", "drain", "drain")])
@pytest.mark.parametrize("part", ["driver", "container_toolkit", "mig_manager"])
def test_a_hosts_own_level_is_never_above_that_of_the_fleet(part: str, own: str, level: str, expected: str) -> None:
    chosen = releases.release(V26)
    found = resolve(formats.read(None, chosen), chosen, {"a": facts("A100")}, {"a": {f"{part}_disruption": own}},
                    "hosts", level)
    levels = {name: found["hosts"]["a"][name]["disruption"] for name in ("driver", "container_toolkit", "mig_manager")}
    assert levels == {**dict.fromkeys(levels, level), part: expected}
    with pytest.raises(PolicyError, match=f"{part}_disruption 'always' is not allowed"):
        resolve(formats.read(None, chosen), chosen, {"a": facts("A100")}, {"a": {f"{part}_disruption": "always"}})


def test_unknown_disruption() -> None:
    with pytest.raises(InputError, match="gpu_disruption"):
        chosen = releases.release(V26)
        resolve(formats.read(None, chosen), chosen, {}, {}, "hosts", "always")


def test_preview_names_what_differs() -> None:
    chosen = releases.release(V26)
    policy = formats.read(None, chosen)
    fleet = {"done": facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True),
             "old": facts("A100", driver="580.126.20", toolkit="1.20.0", containerd=True),
             "mig": facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, mig={"3g.40gb": 2}),
             "both": facts("A100", driver="580.126.20", toolkit="1.20.0", containerd=True, mig={"1g.10gb": 7})}
    layout = {"mig_manager_selected": "all-1g.10gb", "mig_manager_boot": False}
    found = resolve(policy, chosen, fleet, {"mig": layout, "both": layout})["hosts"]
    # A reload of the driver takes the instances, so MIG is asked too.
    assert {host: mine["preview"] for host, mine in found.items()} == {
        "done": [], "old": ["driver"], "mig": ["mig_manager"], "both": ["driver", "mig_manager"]}


@pytest.mark.parametrize(("spec", "brought", "words"), [
    ({"toolkit": {"enabled": False}}, ["container_toolkit"], "--tags container_toolkit"),
    ({"driver": {"enabled": False}}, ["driver"], "--tags driver"),
    ({"dcgmExporter": {"enabled": False}, "dcgm": {"enabled": False}}, ["dcgm"], "--tags dcgm"),
    ({"migManager": {"enabled": False}}, ["mig"], "--tags mig_manager"),
    ({"toolkit": {"enabled": False}}, ["driver"], ""),
    ({}, ["container_toolkit", "driver"], ""),
])
def test_what_is_no_longer_managed_is_said(spec: dict[str, Any], brought: list[str], words: str) -> None:
    chosen = releases.release(V26)
    host = changed(facts("A100", driver="595.91.07"), journals={"brought": brought})
    notes = [note for note in resolve(formats.read(spec, chosen), chosen, {"a": host}, {})["notes"]
             if "no longer managed" in note]
    assert len(notes) == bool(words) and words in "".join(notes)


@pytest.mark.parametrize(("value", "allowed"), [(-5, False), ("-5", False), ("soon", False), (1.5, False), (0, True),
                                                ("300", True), (120, True)])
def test_seconds_are_a_number(value: Any, allowed: bool) -> None:
    chosen = releases.release(V26)
    policy, host = formats.read(None, chosen), facts("A100")
    if allowed:
        assert resolve(policy, chosen, {"a": host}, {"a": {"driver_lock_timeout": value}})
        return
    with pytest.raises(PolicyError, match=f"driver_lock_timeout '?{value}'? is not allowed"):
        resolve(policy, chosen, {"a": host}, {"a": {"driver_lock_timeout": value}})


def test_notes_say_what_is_not_delivered() -> None:
    chosen = releases.release(V26)
    policy = formats.read({"sandboxWorkloads": {"enabled": True}, "driver": {"version": "575.57.08"}}, chosen)
    fleet = {"a": changed(facts("A100"), host={"secure_boot": True}), "b": facts("NEW", containerd=None)}
    notes = resolve(policy, chosen, fleet, {})["notes"]
    for words in ("sandboxWorkloads.enabled is true", "a, b: driver branch 575 gets no more fixes",
                  "a: Secure Boot is on",
                  "b: GPU 3fff is not known", "b: no container runtime"):
        assert any(words in note for note in notes), words


@pytest.mark.parametrize(("policy", "mine", "expected"), [
    ({}, {}, (False, False, False, {})),
    ({"gds": {"enabled": True}, "gdrcopy": {"enabled": True}, "driver": {"rdma": {"enabled": True}}}, {},
     (True, True, True, {})),
    ({"gds": {"enabled": True}}, {"driver_gds": False, "driver_peermem": True}, (True, False, False, {})),
    ({"gdrcopy": {"enabled": True}}, {"driver_gdrcopy": "off", "driver_gds": "Yes"}, (False, True, False, {})),
    ({}, {"driver_module_parameters": {"nvidia": {"NVreg_X": 1}}}, (False, False, False, {"nvidia": {"NVreg_X": 1}})),
])
def test_what_stands_beside_the_driver(policy: Any, mine: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = plan(["A100"], policy, **mine)["driver"]
    assert (found["peermem"], found["gds"], found["gdrcopy"], found["module_parameters"]) == expected


@pytest.mark.parametrize(("gpus", "env", "mine", "proxy", "settings", "words"), [
    (["A100"] * 8, {"HTTPS_PROXY": "http://p:1", "no_proxy": "a, b", "NVFM_CONFIG_FABRIC_MODE": "1"}, {},
     {"https": "http://p:1", "no_proxy": "a,b"}, {"FABRIC_MODE": "1"}, ""),
    (["A100"] * 8, {"NVFM_CONFIG_FABRIC_MODE": "1"}, {"driver_fabric_manager_settings": {"LOG_LEVEL": 5}}, {},
     {"LOG_LEVEL": 5}, ""),
    (["A100"], {"NVFM_CONFIG_FABRIC_MODE": "1", "OTHER": "x"}, {}, {}, {},
     "driver.env: NVFM_CONFIG_FABRIC_MODE, OTHER: no effect: hosts do not use them."),
    (["A100"], {}, {"driver_fabric_manager_settings": {"LOG_LEVEL": 5}}, {}, {}, ""),
    (["A100"], {"HTTP_PROXY": "http://me:secret@p:1"}, {}, {}, {}, "a proxy with a password, which hosts do not use"),
    (["A100"], {"HTTP_PROXY": "p:1"}, {}, {}, {}, "Hosts do not use this proxy; set driver_proxy."),
])
def test_variables_of_the_driver_container(gpus: list[str], env: dict[str, str], mine: dict[str, Any],
                                           proxy: dict[str, str], settings: dict[str, Any], words: str) -> None:
    policy = {"driver": {"env": [{"name": name, "value": value} for name, value in env.items()]}}
    chosen = releases.release(V26)
    found = resolve(formats.read(policy, chosen), chosen, {"a": facts(*gpus)}, {"a": mine})
    driver = found["hosts"]["a"]["driver"]
    assert (driver["proxy"], driver["fabric_manager_settings"]) == (proxy, settings)
    noted = [note for note in found["notes"] if "driver.env" in note]
    assert len(noted) == bool(words) and words in "".join(noted) and "secret" not in str(found)


def test_a_bad_setting_of_the_driver_container_is_refused_by_its_name() -> None:
    policy = {"driver": {"env": [{"name": "NVFM_CONFIG_fabric_mode", "value": "1"}]}}
    with pytest.raises(PolicyError, match="driver.env: NVFM_CONFIG_fabric_mode: .*is not a setting"):
        plan(["A100"] * 8, policy)


def test_the_set_of_packages() -> None:
    def names(known: Any, **mine: Any) -> list[str]:
        chosen = releases.release(V26)
        found = resolve(formats.read(None, chosen), chosen, {"a": known}, {"a": mine})["hosts"]["a"]["driver"]
        return [name for name in found["packages"] if name in ("nvidia-open", "nvidia-driver-cuda")]

    bare = facts("A100")
    assert names(bare) == names(bare, driver_installation="compute-only") == ["nvidia-driver-cuda"]
    full = ["nvidia-driver-cuda", "nvidia-open"]
    assert names(bare, driver_installation="full") == full
    there = facts("A100")
    there["driver"]["packages"] = dict.fromkeys(full, "595.91.07-1")
    assert names(there) == full and names(there, driver_installation="compute-only") == ["nvidia-driver-cuda"]
    assert plan(["A100"], driver_installation="full")["preview"][0] == "driver"


def test_a_set_that_a_source_lacks_is_refused() -> None:
    chosen = releases.release(V26)
    with pytest.raises(PolicyError, match="(?s)driver_installation compute-only is not available from cuda_repository "
                                          "on azurelinux 3.0.*Set one of auto, full"):
        resolve(formats.read(None, chosen), chosen, {"a": facts_sample.facts(["20b2"], "azurelinux3.0")},
                {"a": {"driver_installation": "compute-only"}})


@pytest.mark.parametrize("mine", [
    {"driver_hold_kernel": True}, {"driver_installation": "full"},
    {"driver_module_parameters": {"nvidia": {"NVreg_X": 1}}}, {"driver_fabric_manager_settings": {"FABRIC_MODE": 1}}])
def test_options_that_no_fact_shows_are_previewed(mine: dict[str, Any]) -> None:
    whole = plan(["A100"] * 8)
    settled = facts_sample.driven(facts(*["A100"] * 8), str(whole["driver"]["version"]))
    chosen = releases.release(V26)

    def previewed(**variables: Any) -> list[str]:
        made = resolve(formats.read(None, chosen), chosen, {"a": settled}, {"a": variables})
        return [name for name in made["hosts"]["a"]["preview"] if name == "driver"]

    assert plan(["A100"] * 8, **mine)["driver"]["placement"] == "host"
    assert previewed(**mine) == ["driver"]


def test_a_host_that_asks_for_gds_needs_what_a_policy_would() -> None:
    with pytest.raises(PolicyError, match=r"(?s)driver_gds \(GPUDirect Storage\) needs open .* driver_gds: false"):
        plan(["V100"], None, driver_gds=True)
    with pytest.raises(PolicyError, match="driver_gds 'maybe' is not allowed"):
        plan(["A100"], None, driver_gds="maybe")


def test_nothing_stands_beside_a_driver_that_is_not_ours() -> None:
    chosen = releases.release(V26)
    policy = formats.read({"gds": {"enabled": True}, "driver": {"rdma": {"enabled": True}}}, chosen)
    found = resolve(policy, chosen, {"a": facts("A100"), "b": facts("A100")}, {
        "a": {"driver_state": "adopted"}, "b": {"driver_state": "adopted", "driver_gds": False,
                                                "driver_peermem": False}})
    assert [note for note in found["notes"] if "DCGM" not in note] == [
        "a: driver.rdma, gds: requested, but not delivered, because this collection does not manage the driver here."]
    assert found["hosts"]["a"]["driver"]["gds"] is False


@pytest.mark.parametrize(("placement", "policy", "mine", "note"), [
    ("hybrid", None, {"cuda_version": "13.0"}, "cuda_version: CUDA is not delivered on the host (gpu_placement does"),
    ({"driver": "cluster"}, None, {"driver_version": "595.91.07", "driver_hold_kernel": "yes"},
     "driver_version, driver_hold_kernel: driver is not delivered on the host (delivered in the cluster), so nothing"),
    ("hosts", {"dcgmExporter": {"enabled": False}}, {"dcgm_exporter_listen": ":9"},
     "dcgm_exporter_listen: DCGM exporter is not delivered on the host (dcgmExporter.enabled is false)"),
    ({"driver": "cluster"}, None, {"driver_disruption": "idle", "driver_gds": False}, ""),
    ({"driver": "cluster"}, None, {"driver_persistenced": False, "driver_signing_password": True,
                                   "driver_licence_feature_type": 4},
     "driver_persistenced, driver_licence_feature_type, driver_signing_password: driver is not delivered on the host"),
    ("hybrid", None, {"feature_discovery_target": "slurm", "feature_discovery_node_name": "n"},
     "feature_discovery_target, feature_discovery_node_name: labels is not delivered on the host (delivered in the"),
    ({"container_toolkit": "none"}, None, {
        "container_toolkit_nri": True, "container_toolkit_cdi_management": True, "container_toolkit_cdi": False,
        "container_toolkit_repository_url": "https://m", "container_toolkit_proxy": True},
     "container_toolkit_cdi, container_toolkit_cdi_management, container_toolkit_nri, "
     "container_toolkit_repository_url, container_toolkit_proxy: container toolkit is not delivered on the host"),
    ("hosts", None, {"container_toolkit_runtime": "containerd"}, ""),
])
def test_variables_of_what_is_not_delivered_on_the_host_are_named(placement: Any, policy: Any, mine: dict[str, Any],
                                                                  note: str) -> None:
    chosen = releases.release(V26)
    found = resolve(formats.read(policy, chosen), chosen, {"a": facts("A100")}, {"a": mine}, placement)
    assert [one for one in found["notes"] if "so nothing is configured" in one] == (
        [one for one in found["notes"] if note in one] if note else []), found["notes"]
    assert not note or any(note in one for one in found["notes"])


def test_variables_of_hosts_without_effect_in_a_cluster_are_named() -> None:
    chosen = releases.release(V26)
    mine = {"driver_version": "595.91.07", "cuda_version": "13.0", "driver_disruption": "idle",
            "driver_state": "adopted", "dcgm_exporter_listen": ":9", "mig_manager_selected": "all-1g.10gb",
            "device_plugin_config": "shared",
            "driver_persistenced": False, "driver_signing_key": True}
    for placement in ("cluster", dict.fromkeys(components.NAMES, "none")):
        found = resolve(formats.read(None, chosen), chosen, {"a": facts("A100")}, {
            "a": mine, "b": mine, "c": {"dcgm_version": "4.2.0"}, "d": {}}, placement)
        assert not found["hosts"] and [one for one in found["notes"] if "nothing is delivered on hosts" in one] == [
            "a, b: driver_version, driver_persistenced, driver_signing_key, mig_manager_selected, cuda_version, "
            "dcgm_exporter_listen: no effect: nothing is delivered on hosts.",
            "c: dcgm_version: no effect: nothing is delivered on hosts."]


def test_variables_that_are_true_by_default() -> None:
    root, found = pathlib.Path(__file__).parents[3], set()
    for one in components.COMPONENTS:
        path = root / f"roles/{one.name}/defaults/main.yml"
        given = yaml.safe_load(path.read_text()) if path.exists() else {}
        found |= {name for name in one.variables if str(given.get(name)).lower().replace(" ", "").endswith(
            ("true", "|default(true)}}"))}
    assert found == {*components.TRUE_BY_DEFAULT}


@pytest.mark.parametrize(("mine", "named"), [
    ({}, ""), ({"driver_hold_kernel": "no", "driver_source": "auto", "driver_imex_nodes": []}, ""),
    ({"driver_hold_kernel": "yes", "driver_fabric_manager_settings": {"FABRIC_MODE": 1}},
     "driver_fabric_manager_settings, driver_hold_kernel"),
    ({"driver_installation": "full", "driver_licence_token": True}, "driver_installation, driver_licence_token"),
    ({"driver_persistenced": "no", "driver_next_kernel": False, "driver_fabric": "none", "driver_proxy": True,
      "driver_runfile_checksum": True, "driver_signing_certificate": True, "driver_licence_settings": True},
     "driver_fabric, driver_proxy, driver_runfile_checksum, driver_signing_certificate, driver_licence_settings, "
     "driver_persistenced, driver_next_kernel"),
    ({"driver_persistenced": True, "driver_next_kernel": "yes", "driver_fabric": "auto", "driver_proxy": False}, ""),
])
@pytest.mark.parametrize("state", ["adopted", "rolled_back"])
def test_variables_without_effect_on_a_driver_that_is_not_ours_are_named(mine: dict[str, Any], named: str,
                                                                         state: str) -> None:
    chosen = releases.release(V26)
    policy = formats.read({"driver": {"enabled": state == "adopted"}}, chosen)
    found = resolve(policy, chosen, {"a": facts("A100")}, {"a": {"driver_state": state, **mine}})
    assert found["hosts"]["a"]["driver"]["placement"] == "none"
    words = ", ".join(filter(None, [named, "driver_state: rolled_back" if state == "rolled_back" else ""]))
    assert [note for note in found["notes"] if "driver_" in note] == (
        [f"a: {words}: no effect, because this collection does not manage the driver here."] if words else [])


def test_keys_of_the_policy_without_effect_on_a_driver_that_is_not_ours_are_named() -> None:
    chosen = releases.release(V26)
    section = {"version": "580.173.02", "kernelModuleType": "open", "env": [{"name": "A", "value": "b"}],
               "usePrecompiled": True, **BY_HAND}
    for given, mine, placement, named in (
            (section, {"driver_state": "adopted"}, "hosts", "a: driver.version, driver.kernelModuleType, driver.env, "
             "driver.usePrecompiled, driver.secretEnv, driver.certConfig, driver.virtualTopology, "
             "driver.kernelModuleConfig, driver.licensingConfig, driver.repoConfig"),
            ({"version": "580.173.02"}, {}, {"driver": "none"}, "a: driver.version"),
            # Nobody expects an effect of a section that is switched off, or of defaults.
            ({**section, "enabled": False}, {}, "hosts", ""), ({}, {"driver_state": "adopted"}, "hosts", "")):
        notes = resolve(formats.read({"driver": given}, chosen), chosen, {"a": facts("A100")}, {"a": mine},
                        placement)["notes"]
        assert [note for note in notes if "does not manage the driver" in note] == (
            [f"{named}: no effect, because this collection does not manage the driver here."] if named else [])


BY_HAND = {"kernelModuleConfig": {"name": "one"}, "licensingConfig": {"secretName": "two"},
           "repoConfig": {"configMapName": "three"}, "certConfig": {"name": "four"},
           "virtualTopology": {"config": "five"}, "secretEnv": "six"}


def test_objects_of_a_cluster_are_named_with_what_to_do_on_hosts() -> None:
    chosen = releases.release(V26)
    set_here = {"driver_module_parameters": {"nvidia": {"a": 1}}, "driver_licence_token": True,
                "driver_repository_url": "https://mirror.example/"}
    notes = resolve(formats.read(driver(**BY_HAND), chosen), chosen, {"a": facts("A100"), "b": facts("A100")},
                    {"b": set_here})["notes"]
    said = {note.split(" names the ")[0].rpartition("driver.")[2]: note for note in notes}
    assert list(said) == ["kernelModuleConfig.name", "licensingConfig.secretName", "repoConfig.configMapName",
                          "certConfig.name", "virtualTopology.config", "secretEnv"]
    for note, words in zip(said.values(), ("a: ", "Secret two", "driver_repository_url", "a, b: ", "five", "six")):
        assert words in note
    assert "b: " not in said["kernelModuleConfig.name"] + said["licensingConfig.secretName"]
    assert not any("names the" in note for note in resolve(formats.read(None, chosen), chosen, {"a": facts("A100")},
                                                           {})["notes"])


def carried(text: str) -> dict[str, Any]:
    """Values together with the ConfigMap that their policy names."""
    return {"driver": {"kernelModuleConfig": {"name": "params"}}, "extraObjects": [
        {"kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"nvidia.conf": "NVreg_X=1"}},
        {"kind": "ConfigMap", "metadata": {"name": "params"}, "data": {"nvidia-uvm.conf": text, "README": "a b"}}]}


def test_parameters_that_values_carry_reach_hosts() -> None:
    chosen = releases.release(V26)
    known, mine = {"a": facts("A100"), "b": facts("A100")}, {"nvidia": {"NVreg_Y": 2}}
    found = resolve(formats.read(carried("uvm_disable_hmm=1\n\nuvm_debug_prints=0 "), chosen), chosen, known,
                    {"b": {"driver_module_parameters": mine}})
    assert found["hosts"]["a"]["driver"]["module_parameters"] == {
        "nvidia-uvm": {"uvm_disable_hmm": "1", "uvm_debug_prints": "0"}}
    assert found["hosts"]["b"]["driver"]["module_parameters"] == mine
    assert not any("kernelModuleConfig" in note for note in found["notes"])
    with pytest.raises(InputError, match="ConfigMap params, nvidia-uvm.conf: 'uvm_disable_hmm' is not a parameter"):
        formats.read(carried("uvm_disable_hmm"), chosen)


@pytest.mark.parametrize(("enrolled", "mine", "expected"), [
    (True, {}, "mok"), (False, {"driver_signing_key": True}, "mok"), (None, {}, None),
    (None, {"driver_signing_key": True}, "mok"),
])
def test_a_key_of_ones_own_signs_modules(enrolled: bool | None, mine: dict[str, Any], expected: str | None) -> None:
    chosen = releases.release(V26)
    known = changed(facts("A100"), host={"secure_boot": True, "mok": {"tool": True, "enrolled": enrolled}})
    found = resolve(formats.read(None, chosen), chosen, {"a": known}, {"a": mine})["hosts"]["a"]["driver"]
    assert (found["secure_boot"], found["source"]) == (expected, "cuda_repository")


def test_modules_that_come_built_have_a_source_of_their_own() -> None:
    """On request, or because other modules cannot be loaded: the role gets the name of the packages."""
    chosen = releases.release(V26)
    known = facts_sample.facts(["20b2"])
    signed = facts_sample.facts(["20b2"], secure_boot=True)
    for host, policy in ((known, driver(usePrecompiled=True, version="580")),
                         (signed, driver(usePrecompiled=True, version="580"))):
        found = resolve(formats.read(policy, chosen), chosen, {"a": host}, {})["hosts"]["a"]["driver"]
        assert (found["source"], found["precompiled"]) == ("precompiled", True)


@pytest.mark.parametrize(("policy", "secure_boot", "source", "words"), [
    (driver(usePrecompiled=True, version="580"), False, "distribution",
     ["driver.usePrecompiled requests precompiled modules, but driver_source of this host requests distribution",
      "driver.usePrecompiled: false", "driver_source: precompiled"]),
    (driver(usePrecompiled=True, version="580"), False, "auto",
     ["driver_source of this host is auto, which installs modules that are built", "driver.usePrecompiled is true",
      "Set driver_source: precompiled, or remove driver_source"]),
    # The module would install modules of the archive that are built, which this kernel does not load.
    (driver(version="580"), True, "distribution", ["Secure Boot is on", "requests distribution"]),
    (driver(version="580"), True, "auto", ["driver_source of this host is auto", "Secure Boot is on"]),
])
def test_the_source_of_the_inventory_is_that_of_the_plan(policy: Any, secure_boot: bool, source: str,
                                                         words: list[str]) -> None:
    chosen, known = releases.release(V26), facts_sample.facts(["20b2"], secure_boot=secure_boot)
    with pytest.raises(PolicyError) as caught:
        resolve(formats.read(policy, chosen), chosen, {"a": known}, {"a": {"driver_source": source}})
    assert [word for word in words if word not in str(caught.value)] == []
    found = resolve(formats.read(policy, chosen), chosen, {"a": known}, {"a": {"driver_source": "precompiled"}})
    assert found["hosts"]["a"]["driver"]["source"] == "precompiled"


def test_modules_of_the_archive_that_are_built() -> None:
    known, chosen = facts_sample.facts(["20b2"]), releases.release(V26)
    for source, expected in (("distribution", "distribution"), ("auto", "cuda_repository")):
        found = resolve(formats.read(driver(version="580"), chosen), chosen, {"a": known},
                        {"a": {"driver_source": source}})["hosts"]["a"]["driver"]
        assert (found["source"], found["precompiled"]) == (expected, False)


@pytest.mark.parametrize(("name", "value", "words"), [
    ("driver_version", "580", "a complete version such as 595.91.07"),
    ("driver_version", "R580", "a complete version such as 595.91.07"),
    ("driver_version", "580.173.02-ubuntu24.04", "without the suffix of an image"),
    ("driver_branch", "595.91.07", "a branch of three digits such as 595"),
    ("driver_branch", "R595", "a branch of three digits such as 595"),
])
def test_versions_that_the_module_refuses_are_refused_by_the_plan(name: str, value: str, words: str) -> None:
    with pytest.raises(InputError):
        Spec(**{name.partition("_")[2]: value})
    with pytest.raises(PolicyError, match=f"{name} of this host is '{value}'; allowed: .*{words}") as caught:
        plan(["A100"], **{name: value})
    assert f"remove {name}" in str(caught.value)
    # The role does not pass them for a return to the former driver.
    found = with_former(FORMER, "A100", **{name: value})["hosts"]["a"]
    assert found["driver"]["version"] == "580.126.20"


GUEST = "https://files.example/NVIDIA-Linux-x86_64-580.126.09-grid.run"


@pytest.mark.parametrize(("mine", "expected"), [
    ({"driver_source": "runfile"}, ("runfile", "595.91.07")),
    ({"driver_source": "runfile", "driver_version": "580.173.02"}, ("runfile", "580.173.02")),
    ({"driver_runfile_src": GUEST}, ("runfile", "580.126.09")),
    ({"driver_runfile_src": "/srv/driver.run", "driver_branch": "580"}, ("runfile", None)),
    ({"driver_runfile_src": GUEST, "driver_source": "cuda_repository"}, ("cuda_repository", "580.126.09")),
])
def test_the_run_file(mine: dict[str, Any], expected: tuple[str, str]) -> None:
    found = plan(["A100"], driver(version="570.211.01") if "driver_runfile_src" in mine else None, **mine)["driver"]
    assert (found["source"], found["version"]) == expected
    assert bool(found["packages"]) == (expected[0] != "runfile")


@pytest.mark.parametrize(("models", "policy", "mine", "words"), [
    (["A100"], None, {"driver_source": "runfile", "driver_branch": 580}, "the complete version must be known"),
    (["V100"], None, {"driver_runfile_src": GUEST.replace("580.126.09", "595.91.07")}, "a driver_runfile_src of 580"),
    (["A100"], {"gds": {"enabled": True}}, {"driver_source": "runfile"}, "GPUDirect Storage comes from NVIDIA's rep"),
    (["A100"], {"gdrcopy": {"enabled": True}}, {"driver_source": "distribution"}, "GDRCopy comes from NVIDIA's"),
])
def test_what_a_source_does_not_bring(models: list[str], policy: Any, mine: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        plan(models, policy, **mine)


def test_a_guest_with_a_vgpu_takes_the_driver_of_its_licence() -> None:
    chosen = releases.release(V26)
    guest = changed(facts("A100"))
    guest["vgpu"] = {"version": "580.126.09", "branch": "r580"}
    for given in (None, {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "spec": {"driverType": "vgpu"}}):
        policy = formats.read(given, chosen)
        assert formats.unsupported_on_hosts(policy) == []
        with pytest.raises(PolicyError, match="driver_runfile_src with the guest driver"):
            resolve(policy, chosen, {"a": guest}, {})
        found = resolve(policy, chosen, {"a": guest}, {"a": {
            "driver_runfile_src": GUEST, "driver_licence_token": True}})["hosts"]["a"]["driver"]
        assert (found["source"], found["version"], found["licence"]) == ("runfile", "580.126.09", True)


OFF = {"dcgm": {"enabled": False}, "dcgmExporter": {"enabled": False}}


@pytest.mark.parametrize(("policy", "placement", "words"), [
    (OFF, {"dcgm_exporter": "host"}, "dcgm.enabled is false"),
    (None, {"dcgm": "none"}, "gpu_placement does not deliver it on the host"),
    (None, {"dcgm": "cluster"}, "dcgm.enabled is false"),
    ({"dcgm": {"enabled": True}}, {"dcgm": "cluster"}, "delivered in the cluster"),
])
def test_an_exporter_without_its_engine_is_refused(policy: Any, placement: dict[str, str], words: str) -> None:
    chosen, known = releases.release(V26), facts("A100")
    asked = formats.read(policy, chosen)
    for older in (None, {"version": "3.3.9", "running": True}):
        known["software"]["dcgm"] = older
        with pytest.raises(PolicyError, match=f"(?s)DCGM exporter is delivered on the host, but DCGM is not: .*{words}"
                                              ".*Set dcgm: host beside dcgm_exporter in gpu_placement"):
            resolve(asked, chosen, {"a": known}, {}, placement)
    # As the refusal says:
    for change in ({"dcgm": "host", "dcgm_exporter": "host"}, {"dcgm_exporter": "none"}):
        assert resolve(asked, chosen, {"a": known}, {}, {**placement, **change})["hosts"]
    known["software"]["dcgm"] = {"version": "4.6.0", "running": True}
    found = resolve(asked, chosen, {"a": known}, {}, placement)["hosts"]["a"]
    assert "dcgm_exporter" in found["delivered"] and "dcgm" not in found["delivered"]


def test_services_of_the_fabric_can_be_left_to_others() -> None:
    chosen, known = releases.release(V26), facts_sample.facts()
    for told, manager in (("auto", "fabricmanager"), ("none", None)):
        found = resolve(formats.read(None, chosen), chosen, {"a": known}, {"a": {"driver_fabric": told}})
        assert found["hosts"]["a"]["driver"]["fabric"]["manager"] == manager


@pytest.mark.parametrize("release", [V24, "25.3.0", V26])
def test_every_pair_of_models_has_a_plan_or_a_refusal(release: str) -> None:
    outcomes = {"plan": 0, "refusal": 0}
    for pair in itertools.combinations_with_replacement(MODELS, 2):
        for flavour in ("auto", "open", "proprietary"):
            try:
                plan(list(pair), driver(kernelModuleType=flavour), release)
                outcomes["plan"] += 1
            except PolicyError:
                outcomes["refusal"] += 1
    assert sum(outcomes.values()) == len(MODELS) * (len(MODELS) + 1) // 2 * 3 and min(outcomes.values()) > 40


def test_what_hosts_have_is_nobodys_business_where_all_is_in_the_cluster() -> None:
    """A GPU that no release supports is no reason to stop in this case."""
    chosen = releases.release(V26)
    policy = formats.read({"driver": {"version": "595.91.07"}}, chosen)
    assert resolve(policy, chosen, {"a": facts("V100")}, {}, "cluster")["hosts"] == {}
    with pytest.raises(PolicyError):
        resolve(policy, chosen, {"a": facts("V100")}, {})


def test_who_names_a_component_that_the_policy_leaves_off_gets_it() -> None:
    chosen = releases.release(V26)
    policy = formats.read({"dcgm": {"enabled": False}, "dcgmExporter": {"enabled": False}}, chosen)

    def place(name: str, placement: Any) -> tuple[str, list[str]]:
        found = resolve(policy, chosen, {"a": facts("A100")}, {}, placement)["hosts"]["a"][name]
        return found["placement"], found["because"]

    assert place("dcgm", "hosts") == ("none", ["not delivered: dcgm.enabled is false"])
    assert place("dcgm", {"dcgm": "host"})[0] == "host"


@pytest.mark.parametrize(("profile", "mine", "placement", "driver_at"), [
    ("dgx_os", {}, "hosts", "none"), ("dgx_os", {"driver_state": "present"}, "hosts", "host"),
    ("dgx_os", {"driver_state": "adopted"}, "hosts", "none"), ("dgx_os", {}, {"driver": "host"}, "host"),
    ("none", {}, "hosts", "host")])
def test_a_driver_of_the_system_is_replaced_only_for_who_asks(
        profile: str, mine: dict[str, Any], placement: Any, driver_at: str) -> None:
    chosen = releases.release(V26)
    found = resolve(formats.read(None, chosen), chosen, {"a": facts("A100")}, {"a": {"gpu_profile": profile, **mine}},
                    placement)["hosts"]["a"]
    assert found["driver"]["placement"] == driver_at
    assert ("DGX OS" in " ".join(found["driver"]["because"])) == (driver_at == "none")


@pytest.mark.parametrize(("mine", "placement", "words"), [
    ({"driver_state": "present"}, "hosts", "the component driver is requested, but Bottlerocket"),
    ({}, {"driver": "host"}, "the component driver is requested, but Bottlerocket"),
    ({"mig_manager_selected": "all-1g.10gb"}, "hosts", "the component MIG is requested, but Bottlerocket")])
def test_what_a_system_keeps_to_itself_is_refused_to_who_asks(mine: dict[str, Any], placement: Any, words: str) -> None:
    chosen = releases.release(V26)
    with pytest.raises(PolicyError, match=words):
        resolve(formats.read(None, chosen), chosen, {"a": facts("A100")},
                {"a": {"gpu_profile": "bottlerocket", **mine}}, placement)


def test_each_part_of_a_plan_says_why_it_is_so() -> None:
    chosen = releases.release(V26)
    policy = formats.read(driver(upgradePolicy={"autoUpgrade": False}), chosen)
    found = resolve(policy, chosen, {"a": facts("A100")}, {}, "hosts", "reboot")
    reason = "driver: driver.upgradePolicy.autoUpgrade is false: a running driver is not replaced"
    assert reason in found["explanations"]["a"]
    assert "mig_manager: no layout is selected for this host: MIG stays as it is" in found["explanations"]["a"]
    assert found["placement"]["driver"] == "host" and found["release"] == V26
