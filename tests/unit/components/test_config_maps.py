# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ConfigMaps and Secrets that a policy names: those that do not exist in the cluster, and their content for hosts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import config_maps, formats, sharing
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, objects, plan, pod

NAMES = {"migManager": {"config": {"name": "layouts", "default": ""}, "gpuClientsConfig": {"name": "clients"}},
         "dcgmExporter": {"config": {"name": "counters"}}}
LAYOUTS = "version: v1\nmig-configs: {half: [{devices: all, mig-enabled: false}]}\n"
THERE: dict[str, Any] = {"layouts": {"config.yaml": LAYOUTS}, "clients": {"clients.yaml": "version: v1\n"},
                         "counters": {"dcgm-metrics.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, degrees\n"}}


def cluster(**config_maps: Any) -> dict[str, Any]:
    return {**facts(node()), "config_maps": {**THERE, **config_maps}}


def refusals(policy: Any, seen: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        plan(policy, seen, namespace="ours", **more)
    return [f"{one['reason']}. {one['remedy']}" for one in caught.value.details["refusals"]]


@pytest.mark.parametrize(("section", "name", "pods", "key"), [
    ("migManager.config", "layouts", "MIG manager", "config.yaml"),
    ("migManager.gpuClientsConfig", "clients", "MIG manager", "clients.yaml"),
    ("dcgmExporter.config", "counters", "DCGM exporter", "dcgm-metrics.csv"),
])
def test_pods_would_wait_for_a_config_map_and_its_key(section: str, name: str, pods: str, key: str) -> None:
    assert plan(NAMES, cluster())["components"]["mig_manager"]["state"] == "present"
    gone, = refusals(NAMES, cluster(**{name: None}))
    assert gone == (
        f"{section}.name: ConfigMap {name!r} is not in namespace ours, so the pods of the {pods} cannot start. Create "
        f"the object (kubectl -n ours create configmap {name} --from-file={key}), or remove {section}.name from the "
        "policy.")
    other, = refusals(NAMES, cluster(**{name: {"other": "x"}}))
    assert f"{section}.name: ConfigMap {name!r} in namespace ours has no key {key}. Add {key} to it" in other


def test_all_that_is_missing_is_refused_at_once() -> None:
    assert len(refusals(NAMES, cluster(layouts=None, clients=None, counters=None))) == 3


def test_what_is_not_known_or_not_needed_is_not_refused() -> None:
    plan(NAMES, facts(node()))  # only rendered, or the user may not read ConfigMaps
    gone = cluster(layouts=None, clients=None, counters=None)
    plan({**NAMES, "migManager": {**NAMES["migManager"], "enabled": False},
          "dcgmExporter": {**NAMES["dcgmExporter"], "enabled": False}}, gone)


def test_config_maps_of_the_operator_are_delivered_here() -> None:
    policy = {"migManager": {"config": {"name": "default-mig-parted-config"},
                             "gpuClientsConfig": {"name": "default-gpu-clients"}}}
    seen = cluster(**{"default-mig-parted-config": None, "default-gpu-clients": None})
    assert {"ConfigMap/default-mig-parted-config", "ConfigMap/default-gpu-clients"} <= set(objects(policy, seen))


def test_a_default_layout_that_the_config_map_lacks() -> None:
    policy = {"migManager": {"config": {"name": "layouts", "default": "all-disabled"}}}
    assert refusals(policy, cluster()) == [
        "migManager.config.default (all-disabled) is not a layout of ConfigMap 'layouts', which has half. Add it "
        "there, or set migManager.config.default to an empty string."]
    # the manager reads no other key
    more = {"config.yaml": LAYOUTS, "old.yaml": LAYOUTS.replace("half", "all-disabled")}
    assert len(refusals(policy, cluster(layouts=more))) == 1
    plan(policy, cluster(layouts={"config.yaml": LAYOUTS.replace("half", "all-disabled")}))


@pytest.mark.parametrize(("text", "told"), [
    ("a: [b", "ConfigMap 'layouts' in namespace ours, config.yaml"),
    (LAYOUTS.replace("false", "maybe"), "config.yaml, mig-configs.half[0].mig-enabled: 'maybe' is not true or false")])
def test_layouts_that_are_invalid(text: str, told: str) -> None:
    one, = refusals(NAMES, cluster(layouts={"config.yaml": text}))
    assert told in one


@pytest.mark.parametrize(("section", "key"), [("migManager", "config.yaml"), ("dcgmExporter", "dcgm-metrics.csv")])
def test_values_that_create_a_config_map_without_the_key(section: str, key: str) -> None:
    given = {section: {"config": {"name": "n", "create": True, "data": {"other": "x"}}}}
    told, = refusals(given, cluster())
    assert f"{section}.config.data has no key {key}, which the pods" in told
    assert of_refused_host(given) == [told]


@pytest.mark.parametrize(("section", "config", "told"), [
    ("migManager", {"create": True, "data": {"config.yaml": LAYOUTS}},
     "migManager.config.create is true, but the ConfigMap has no name. Set migManager.config.name."),
    ("dcgmExporter", {"create": True, "data": "x, gauge, y"},
     "dcgmExporter.config.create is true, but the ConfigMap has no name. Set dcgmExporter.config.name."),
    ("devicePlugin", {"create": True},
     "devicePlugin.config.create is true, but the ConfigMap has no name. Set devicePlugin.config.name."),
    ("dcgmExporter", {"create": True, "name": "n", "data": ["x, gauge, y"]},
     "dcgmExporter.config.data: a mapping of keys to texts is expected, not ['x, gauge, y']. "
     "Write dcgm-metrics.csv: | below it."),
    ("migManager", {"create": True, "name": "n", "data": {"config.yaml": {"version": "v1"}}},
     "migManager.config.data['config.yaml']: a string is expected, not {'version': 'v1'}. "
     "Write config.yaml: | and indent the lines below it."),
    ("devicePlugin", {"create": True, "name": "n", "default": "tow", "data": {"two": "version: v1"}},
     "devicePlugin.config.default: 'tow' is not one of the configurations of devicePlugin.config.data of gpu_policy; "
     "did you mean 'two'?. Name one of them."),
])
def test_config_maps_in_values_that_pods_cannot_use_are_refused_on_hosts_as_well(
        section: str, config: dict[str, Any], told: str) -> None:
    given = {section: {"config": config}}
    assert list(dict.fromkeys(refusals(given, cluster()))) == of_refused_host(given) == [told]
    # Without the component, nothing reads them.
    off = {"devicePlugin": "gfd"}.get(section, section)
    of_host({}, policy={**given, off: {**given.get(off, {}), "enabled": False}})


def test_a_pull_secret_that_does_not_exist_is_a_note() -> None:
    """The kubelet pulls without it, and that can succeed."""
    policy = {"toolkit": {"imagePullSecrets": ["theirs"]}, "driver": {"imagePullSecrets": ["private"]},
              "gdrcopy": {"imagePullSecrets": ["unused"]}}
    seen = {**facts(node()), "secrets": {"theirs": False, "private": False, "unused": False, "common": True}}
    made = plan(policy, seen, pull_secrets=["common"])
    note, = (one for one in made["notes"] if "gpu_pull_secrets" in one)
    assert note.startswith("private, theirs: ") and "create secret docker-registry private" in note
    assert {"name": "theirs"} in pod(objects(policy, seen), "nvidia-container-toolkit-daemonset")["imagePullSecrets"]


# -- hosts

SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}\n"
FOR_HOSTS = {"migManager": {"config": {"name": "layouts"}}, "dcgmExporter": {"config": {"name": "counters"}},
             "devicePlugin": {"config": {"name": "sharing", "default": "two"}}}
SEEN: dict[str, Any] = {**THERE, "sharing": {"two": SHARED % 2, "four": SHARED % 4}}


def of_host(seen: dict[str, Any], given: sharing.Sharing | None = None, policy: Any = None,
            **variables: Any) -> tuple[Any, list[str]]:
    """(the plan of the host with these variables, notes). seen: the ConfigMaps in the cluster; given: gpu_sharing."""
    release = releases.release("26.7.0")
    made = resolve(formats.read(policy or FOR_HOSTS, release), release, {"a": host_facts.facts()},  # type: ignore[typeddict-item]
                   {"a": variables}, seen=config_maps.Seen("ours", seen, given))
    return made["hosts"]["a"], [one for one in made["notes"] if "ConfigMap" in one]


def test_hosts_use_the_config_maps_of_the_cluster() -> None:
    host, notes = of_host(SEEN, mig_manager_selected="half")
    assert notes == []
    assert host["mig_manager"]["config"]["mig-configs"]["half"] == [{"devices": "all", "mig-enabled": False}]
    assert host["dcgm_exporter"]["counters"] == THERE["counters"]["dcgm-metrics.csv"]
    assert host["feature_discovery"]["sharing"]["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 2
    host, _notes = of_host(SEEN, device_plugin_config="four", dcgm_exporter_counters="own",
                           mig_manager_config={"version": "v1", "mig-configs": {"own": [
                               {"devices": "all", "mig-enabled": False}]}})
    assert host["feature_discovery"]["sharing"]["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4
    assert host["dcgm_exporter"]["counters"] == "own" and host["mig_manager"]["selected"] == "own"


def test_gpu_sharing_is_used_instead_of_a_config_map_that_it_creates() -> None:
    given = sharing.of_texts("sharing", "", SEEN["sharing"], "gpu_sharing")
    host, notes = of_host({**SEEN, "sharing": None}, given)
    assert notes == []
    assert host["feature_discovery"]["sharing"]["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 2


def of_refused_host(policy: Any, given: sharing.Sharing | None = None, **variables: Any) -> list[str]:
    """The refusals of a host, as those of a cluster (L(refusals))."""
    with pytest.raises(PolicyError) as caught:
        of_host({}, given, policy, **variables)
    return [f"{one['reason']}. {one['remedy']}" for one in caught.value.details["refusals"]]


BOTH = sharing.of_texts("", "two", SEEN["sharing"], "gpu_sharing")


def replicas(policy: Any, given: sharing.Sharing | None = BOTH, **variables: Any) -> int:
    """The number of replicas in the labels of a host."""
    found = of_host({}, given, policy, **variables)[0]["feature_discovery"]["sharing"]
    return int(found["sharing"]["timeSlicing"]["resources"][0]["replicas"])


def test_a_host_has_the_configuration_that_its_node_would_have() -> None:
    of_policy = {"devicePlugin": {"config": {"default": "four"}}}
    assert (replicas({"nfd": {}}), replicas(of_policy), replicas(of_policy, device_plugin_config="two")) == (2, 4, 2)
    values = {"devicePlugin": {"config": {"create": True, "name": "n", "default": "two", "data": SEEN["sharing"]}}}
    assert (replicas(values, None), replicas(values, None, device_plugin_config="four")) == (2, 4)
    without = sharing.of_texts("", "", SEEN["sharing"], "gpu_sharing")
    host, = (of_host({}, without, {"nfd": {}}),)
    assert host[0]["feature_discovery"]["sharing"] is None


@pytest.mark.parametrize(("policy", "given", "variables", "told"), [
    ({}, BOTH, {"device_plugin_config": "fuor"}, "device_plugin_config 'fuor' is not one of the configurations; did "
     "you mean 'four'?. Name one of gpu_sharing."),
    ({}, None, {"device_plugin_config": "two"}, "device_plugin_config is set, but there are no configurations. Set "
     "gpu_sharing."),
    ({"create": True, "name": "n", "data": {"b": "version: v1\n"}}, BOTH, {}, "gpu_sharing and "
     "devicePlugin.config.data of gpu_policy both have configurations. Keep one of them."),
    ({"name": "other"}, sharing.of_texts("mine", "", SEEN["sharing"], "gpu_sharing"), {}, "gpu_sharing is the "
     "ConfigMap 'mine', devicePlugin.config.name is 'other'. Use the same name for both, or remove the name from the "
     "policy."),
    ({"default": "tow"}, BOTH, {}, "devicePlugin.config.default: 'tow' is not one of the configurations of "
     "gpu_sharing; did you mean 'two'?. Name one of them."),
])
def test_gpu_sharing_is_refused_on_hosts_as_in_a_cluster(policy: Any, given: Any, variables: Any, told: str) -> None:
    policy = {"nfd": {}, "devicePlugin": {"config": policy}}
    named = {node: name for name in variables.values() for node in ("n1",)}
    theirs = refusals(policy, cluster(), sharing=given, plugin_configs=named)
    assert [one.replace("n1: ", "") for one in theirs] == of_refused_host(policy, given, **variables) == [told]


def test_sharing_that_nothing_uses_is_noted() -> None:
    off = {"devicePlugin": {"enabled": False}}
    note = "gpu_sharing, device_plugin_config: no effect in the cluster: devicePlugin.enabled is false."
    assert note in plan(off, cluster(), sharing=BOTH, plugin_configs={"n1": "two"})["notes"]
    assert not [one for one in plan(off, cluster())["notes"] if "gpu_sharing" in one]
    release = releases.release("26.7.0")
    made = resolve(formats.read({"gfd": {"enabled": False}}, release), release, {"a": host_facts.facts()},
                   {"a": {"device_plugin_config": "two"}}, seen=config_maps.Seen("ours", {}, BOTH))
    assert [one for one in made["notes"] if "labels" in one] == [
        "gpu_sharing: no effect on hosts: they do not compute labels.",
        "a: device_plugin_config: no effect on hosts: they do not compute labels."]


def test_without_a_cluster_notes_say_what_to_set() -> None:
    host, notes = of_host({})
    assert [one.split(" are not known")[0] for one in notes] == [
        "a: migManager.config.name: the layouts of ConfigMap 'layouts'",
        "a: devicePlugin.config.name: the configurations of ConfigMap 'sharing'",
        "a: dcgmExporter.config.name: the counters of ConfigMap 'counters'"]
    assert all("set gpu_kubeconfig to the cluster that has it" in one or "or gpu_kubeconfig to the cluster" in one
               for one in notes)
    assert (host["mig_manager"]["layouts"], host["dcgm_exporter"]["counters"],
            host["feature_discovery"]["sharing"]) == (None, None, None)


@pytest.mark.parametrize(("seen", "variables", "told"), [
    # A layout of this name that is generated from the GPUs can be another one.
    ({}, {"mig_manager_selected": "all-balanced"}, "the layouts of ConfigMap 'layouts' are not known, and MIG layout "
     "'all-balanced' is selected.\n    Set mig_manager_config_file to a file with its layouts, or gpu_kubeconfig"),
    (SEEN, {"mig_manager_selected": "hlaf"}, "MIG layout 'hlaf': selected: config has no configuration 'hlaf'"),
    ({**SEEN, "layouts": None}, {}, "migManager.config.name: ConfigMap 'layouts' is not in namespace ours, so hosts "
     "cannot use it.\n    Create the object"),
    ({**SEEN, "layouts": {"config.yaml": LAYOUTS.replace("false", "maybe")}}, {}, "migManager.config.name: ConfigMap "
     "'layouts' in namespace ours, config.yaml, mig-configs.half[0].mig-enabled: 'maybe' is not true or false"),
    ({**SEEN, "layouts": {"config.yaml": "a: [b"}}, {}, "ConfigMap 'layouts' in namespace ours, config.yaml"),
    ({**SEEN, "layouts": {"config.yaml": "a: 1\n---\nb: 2"}}, {}, "one document in mig-parted's format is expected"),
    ({**SEEN, "counters": {"x": ""}}, {}, "ConfigMap 'counters' in namespace ours has no key dcgm-metrics.csv"),
    ({**SEEN, "sharing": None}, {}, "devicePlugin.config.name: ConfigMap 'sharing' is not in namespace ours"),
    ({**SEEN, "sharing": {"one": SHARED % 1, "two": SHARED % 2}}, {}, "ConfigMap sharing in namespace ours has one "
     "fault:\n  one: sharing.timeSlicing.resources[0].replicas (line 2): 1 is too small"),
    ({**SEEN, "sharing": {"one": SHARED % 2}}, {}, "devicePlugin.config.default: 'two' is not one of the configurat"),
    (SEEN, {"device_plugin_config": "fuor"}, "device_plugin_config 'fuor' is not one of the configurations; did you "
     "mean 'four'"),
])
def test_what_hosts_cannot_use_is_refused(seen: dict[str, Any], variables: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        of_host(seen, **variables)
    assert told in str(caught.value), caught.value
