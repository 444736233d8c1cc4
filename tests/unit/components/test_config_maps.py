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


def of_host(seen: dict[str, Any], given: sharing.Sharing | None = None, **variables: Any) -> tuple[Any, list[str]]:
    """(the plan of the host with these variables, notes). seen: the ConfigMaps in the cluster; given: gpu_sharing."""
    release = releases.release("26.7.0")
    made = resolve(formats.read(FOR_HOSTS, release), release, {"a": host_facts.facts()},  # type: ignore[typeddict-item]
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
