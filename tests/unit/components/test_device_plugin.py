# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sharing in a cluster: from gpu_sharing, the policy or the cluster to the ConfigMap, the pods and the labels of
Nodes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import device_plugin
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import sharing
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import env, facts, node, objects, plan, pod

PLUGIN, MPS, GFD = ("nvidia-device-plugin-daemonset", "nvidia-device-plugin-mps-control-daemon",
                    "gpu-feature-discovery")
LABEL = "nvidia.com/device-plugin.config"
ANNOTATION = "gpuops.nvidia/config"
TEXT = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n"


def four(count: int = 4) -> dict[str, Any]:
    return {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": count}]}}


def by_mps(**more: Any) -> dict[str, Any]:
    return {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}, **more}


def read(data: Any) -> sharing.Sharing:
    return sharing.read(Document(data))


BOTH = read({"default": "dense", "configs": {"dense": four(), "plain": {}}})


def marks(found: dict[str, Any]) -> list[str]:
    """The checksums in the pods that read the configuration."""
    return [str(found[f"DaemonSet/{name}"]["spec"]["template"]["metadata"].get("annotations", {}).get(ANNOTATION))
            for name in (PLUGIN, MPS, GFD)]


def test_configurations_become_a_config_map_that_pods_read() -> None:
    found = objects(sharing=BOTH)
    assert set(found["ConfigMap/nvidia-device-plugin-config"]["data"]) == {"dense", "plain"}
    for name in (PLUGIN, MPS, GFD):
        assert env(found, name, "config-manager")["DEFAULT_CONFIG"] == "dense"
        assert {"name": "nvidia-device-plugin-config", "configMap": {"name": "nvidia-device-plugin-config"}} in pod(
            found, name)["volumes"]
        assert env(found, name)["CONFIG_FILE"] == "/config/config.yaml"


def test_without_configurations_pods_have_neither_sidecar_nor_checksum() -> None:
    found = objects()
    assert marks(found) == ["None"] * 3
    assert "config-manager" not in [one["name"] for one in pod(found, PLUGIN)["containers"]]


def test_the_pods_change_with_the_content_only() -> None:
    one, same, other = (marks(objects(sharing=read(four(count)))) for count in (4, 4, 5))
    assert one == same != other
    assert len(set(one)) == 1 and len(one[0]) == 16


def test_the_name_and_the_default_of_the_policy_count() -> None:
    policy = {"devicePlugin": {"config": {"name": "mine", "default": "plain"}}}
    found = objects(policy, sharing=BOTH)
    assert "ConfigMap/mine" in found
    assert env(found, PLUGIN, "config-manager")["DEFAULT_CONFIG"] == "plain"


def test_content_in_values_is_checked_and_marked() -> None:
    def values(text: str) -> dict[str, Any]:
        return {"devicePlugin": {"config": {"create": True, "name": "plugin", "data": {"any": text}}}}

    found = objects(values(TEXT))
    assert marks(found) != ["None"] * 3
    # as the chart has it: no default unless the values say one
    assert env(found, PLUGIN, "config-manager")["DEFAULT_CONFIG"] == ""
    with pytest.raises(InputError, match=r"any: flags\.renameByDefault \(line 1\): true has no effect"):
        plan(values("flags: {renameByDefault: true}"))


def in_cluster(data: dict[str, str] | None, *nodes: dict[str, Any]) -> dict[str, Any]:
    return {**facts(*(nodes or (node(),))), "config_maps": {"theirs": data}}


def test_a_config_map_in_the_cluster_is_checked_and_marked_and_not_made() -> None:
    policy = {"devicePlugin": {"config": {"name": "theirs", "default": "any"}}}
    found = objects(policy, in_cluster({"any": TEXT}))
    assert "ConfigMap/theirs" not in found
    assert marks(found) == [sharing.checksum({"any": TEXT})] * 3
    with pytest.raises(PolicyError, match="devicePlugin.config.default: 'any' is not one of the configurations of "
                                          "ConfigMap theirs in namespace gpu-operator; allowed: other"):
        plan(policy, in_cluster({"other": TEXT}))
    with pytest.raises(InputError, match="ConfigMap theirs in namespace gpu-operator has one fault:\n  any: flags"):
        plan(policy, in_cluster({"any": "flags: {renameByDefault: true}"}))
    with pytest.raises(PolicyError, match="ConfigMap 'theirs' is not in namespace gpu-operator, .*\n.*create configmap "
                                          "theirs"):
        plan(policy, in_cluster(None))
    # nobody was asked: manifests are only written
    assert marks(objects(policy)) == ["None"] * 3


@pytest.mark.parametrize(("policy", "given", "configs", "told"), [
    ({"devicePlugin": {"config": {"create": True, "name": "a", "data": {"b": TEXT}}}}, BOTH, {},
     "both have configurations"),
    ({"devicePlugin": {"config": {"name": "a"}}}, read({"kind": "ConfigMap", "metadata": {"name": "b"}, "data": {
        "any": TEXT}}), {}, "ConfigMap 'b', devicePlugin.config.name is 'a'"),
    ({"devicePlugin": {"config": {"name": "a", "default": "dens"}}}, BOTH, {}, "'dens' is not one .* mean 'dense'"),
    (None, BOTH, {"n1": "plan"}, "n1: device_plugin_config 'plan' is not one .* mean 'plain'"),
    (None, None, {"n1": "plain"}, "there are no configurations"),
    ({"mig": {"strategy": "mixed"}}, read(by_mps()), {}, "MPS cannot be used with the MIG strategy mixed"),
])
def test_what_cannot_be_is_refused(policy: Any, given: Any, configs: dict[str, str], told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        plan(policy, sharing=given, plugin_configs=configs)


def test_without_a_strategy_of_the_policy_that_of_the_configuration_counts() -> None:
    found = read({"flags": {"migStrategy": "mixed"}, "sharing": by_mps()})
    assert len(device_plugin.refusals(found, "", {})) == 1
    assert device_plugin.refusals(found, "single", {}) == []


def test_mps_is_refused_where_mig_cuts_the_gpus_and_nowhere_else() -> None:
    cut = facts(node(**{"nvidia.com/mig.config": "all-1g.10gb"}), node(**{"nvidia.com/mig.config": "all-disabled"}))
    with pytest.raises(PolicyError, match="n1: MPS sharing is requested, but nvidia.com/mig.config requests MIG"):
        plan(None, cut, sharing=read(by_mps()))
    both = read({"default": "mps", "configs": {"mps": by_mps(), "plain": {}}})
    assert plan(None, cut, sharing=both, plugin_configs={"n1": "plain"})["deploy"]["plugin_configs"] == {"n1": "plain"}


@pytest.mark.parametrize(("major", "replicas", "refused"), [("6", 17, True), ("6", 16, False), ("7", 48, False)])
def test_gpus_before_volta_have_fewer_clients_of_mps(major: str, replicas: int, refused: bool) -> None:
    old = facts(node(**{"nvidia.com/gpu.compute.major": major}), node(**{"nvidia.com/gpu.compute.major": "9"}))
    given = read({"mps": {"resources": [{"name": "gpu", "replicas": replicas}]}})
    found = plan(None, old, sharing=given, strict=False)["rejected"]
    assert list(found) == (["n1"] if refused else [])
    assert all("GPUs older than Volta have at most 16 MPS clients" in one["message"] for one in found.values())


@pytest.mark.parametrize(("policy", "given", "told"), [
    ({"mig": {"strategy": "single"}}, {"flags": {"migStrategy": "none"}, "sharing": four()},
     "flags.migStrategy: none has no effect, as mig.strategy single"),
    (None, {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": [0]}]}},
     "resources[0].devices: the plugin ignores it"),
    (None, {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "rename": "nvidia.com/half"}]}},
     "resources[0].rename: the plugin ignores it"),
    (None, {"timeSlicing": {"resources": [{"name": "mig-1g.10gb", "replicas": 2}]}},
     "mig-1g.10gb exists only with the MIG strategy mixed"),
    (None, {"resources": {"gpus": [{"pattern": "*", "name": "x"}]}}, "resources: the plugin ignores this section"),
    (None, {"configs": {"a": four(), "b": {}}}, "has no default: Nodes without the label"),
])
def test_what_has_no_effect_is_said(policy: Any, given: dict[str, Any], told: str) -> None:
    said = plan(policy, sharing=read(given))["notes"]
    assert [one for one in said if told in one], said


def test_what_is_right_is_not_spoken_of() -> None:
    assert plan(None, sharing=BOTH)["notes"] == plan()["notes"]


def test_a_label_that_names_nothing_is_said() -> None:
    made = plan(None, facts(node(**{LABEL: "gone"}), node(**{LABEL: "plain"})), sharing=BOTH)
    assert [one for one in made["notes"] if "n1 (gone)" in one and "n2" not in one]


# -- the label

def labelled(labels: dict[str, str], wanted: dict[str, str], ours: str = "") -> dict[str, str | None]:
    """The labels that the Node gets in addition to deploy labels."""
    one = deploy_labels.Node("n1", {"feature.node.kubernetes.io/pci-10de.present": "true", **labels},
                             {deploy_labels.ANNOTATION: ours} if ours else {}, True)
    deploy = deploy_labels.parse_deploy({"components": {"device_plugin": True}, "plugin_configs": wanted})
    change = deploy_labels.plan_present(one, deploy, deploy_labels.Terms(0))
    return {key: value for key, value in (change.labels if change else {}).items() if key == LABEL}


def test_nodes_that_the_inventory_names_get_the_label() -> None:
    assert labelled({}, {"n1": "dense"}) == {LABEL: "dense"}
    assert labelled({}, {"n2": "dense"}) == {}


def test_ours_follows_the_inventory() -> None:
    assert labelled({LABEL: "dense"}, {"n1": "plain"}, LABEL) == {LABEL: "plain"}
    assert labelled({LABEL: "dense"}, {"n1": "dense"}, LABEL) == {}
    assert labelled({LABEL: "dense"}, {}, LABEL) == {LABEL: None}


def test_that_of_others_stays_and_is_named() -> None:
    assert labelled({LABEL: "theirs"}, {"n1": "plain"}) == {}
    assert labelled({LABEL: "theirs"}, {}) == {}
    one = deploy_labels.Node("n1", {"feature.node.kubernetes.io/pci-10de.present": "true", LABEL: "theirs"})
    deploy = deploy_labels.parse_deploy({"components": {"device_plugin": True}, "plugin_configs": {"n1": "plain"}})
    assert deploy_labels.foreign(one, deploy) == {LABEL}


def test_no_label_where_the_plugin_is_not_delivered() -> None:
    made = plan({"devicePlugin": {"enabled": False}}, sharing=BOTH, plugin_configs={"n1": "plain"})
    assert made["deploy"]["plugin_configs"] == {}
