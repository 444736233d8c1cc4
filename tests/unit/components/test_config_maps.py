# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ConfigMaps and Secrets that a policy names, and that do not exist in the cluster or have another content."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
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
