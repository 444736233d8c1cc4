# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ends pods that GPU clients run on waits for the level that allows it: the run itself, on an API server."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import _deploy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import deliver, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.render import render
from ansible_collections.gpuops.nvidia.tests.unit.cluster.clusters import facts, node, plan
from ansible_collections.gpuops.nvidia.tests.unit.cluster.server import ApiServer

DRIVER, MPS = "nvidia-driver-daemonset", objects.MPS_DAEMON
SPACE = "/apis/apps/v1/namespaces/gpu-operator/daemonsets"
UBUNTU = {"feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
          "feature.node.kubernetes.io/system-os_release.VERSION_ID": "22.04"}
SHARED = {"config": {"name": "shared", "create": True, "default": "a", "data": {
    "a": "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"}}}
KERNEL = {**node(), "kernel": "5.15.0-84-generic"}
CLUSTER = facts(KERNEL, nfd="foreign")


def run(client: Client, made: dict[str, Any], check: bool = False) -> dict[str, Any]:
    wanted = objects.wanted({name: render(name, made) for name in (
        objects.SHARED, "driver", "device_plugin", "dcgm_exporter")})
    return deliver.present(client, wanted, None, check, level=made["disruption"])


def started(api: ApiServer, client: Client, policy: Any = None, cluster: dict[str, Any] | None = None,
            pods: int = 2) -> dict[str, Any]:
    """A cluster whose DaemonSets have pods on its two Nodes."""
    assert not run(client, plan(policy, cluster or CLUSTER))["pending"]
    for path, one in api.objects.items():
        if path.startswith(SPACE):
            one["status"] = {"currentNumberScheduled": pods}
    api.put(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}", "labels": {
        **UBUNTU, "nvidia.com/gpu.deploy.driver": "true"}}} for number in (1, 2)))
    return {path: one for path, one in api.objects.items() if "driver" in path}


CHANGES: dict[str, dict[str, Any]] = {
    "another kind of DaemonSet": {"policy": {"driver": {"usePrecompiled": True, "version": "580"}}},
    "another namespace": {"namespace": "elsewhere"},
    "no driver": {"policy": {"driver": {"enabled": False}}},
}


@pytest.mark.parametrize(("change", "check"), [*((change, False) for change in CHANGES), ("no driver", True)])
def test_driver_pods_do_not_go_all_at_once(api: ApiServer, client: Client, change: str, check: bool) -> None:
    before = started(api, client)
    for level in ("never", "idle"):
        result = run(client, plan(cluster=CLUSTER, disruption=level, **CHANGES[change]), check)
        held = [one["id"] for one in result["pending"]]
        assert f"delete: DaemonSet gpu-operator/{DRIVER}" in held
        assert all(f"gpu_disruption is '{level}', this needs 'drain'" in one["pending_reason"]
                   for one in result["pending"])
        assert "Set gpu_disruption: drain" in result["warnings"][0]
        assert not any("driver" in one["id"] for one in result["plan"])
        assert {path: one for path, one in api.objects.items() if "driver" in path} == before
    result = run(client, plan(cluster=CLUSTER, disruption="drain", **CHANGES[change]), check)
    assert result["pending"] == []
    assert f"delete: DaemonSet gpu-operator/{DRIVER}" in [one["id"] for one in result["plan"]]
    assert (f"{SPACE}/{DRIVER}" in api.objects) == check


def test_what_has_no_pods_may_go(api: ApiServer, client: Client) -> None:
    started(api, client, pods=0)
    assert run(client, plan({"driver": {"enabled": False}}, CLUSTER))["pending"] == []
    assert f"{SPACE}/{DRIVER}" not in api.objects


def test_what_disturbs_nobody_is_done_meanwhile(api: ApiServer, client: Client) -> None:
    started(api, client)
    run(client, plan({"driver": {"enabled": False}, "dcgmExporter": {"enabled": False}}, CLUSTER))
    assert f"{SPACE}/nvidia-dcgm-exporter" not in api.objects and f"{SPACE}/{DRIVER}" in api.objects


@pytest.mark.parametrize(("labels", "held"), [(UBUNTU, 0), ({}, 1)])
def test_a_selector_that_leaves_nodes_out_waits(api: ApiServer, client: Client, labels: dict[str, str],
                                                held: int) -> None:
    """A Node of another system joins: the DaemonSet that is there gets a selector for its own."""
    started(api, client)
    api.objects["/api/v1/nodes/n2"]["metadata"]["labels"] = {**labels, "nvidia.com/gpu.deploy.driver": "true"}
    cluster = {**facts(KERNEL, node(("ubuntu", "24.04")), nfd="foreign"), "driver_daemon_sets": {DRIVER: "ubuntu22.04"}}
    result = run(client, plan(cluster=cluster))
    daemon_sets = [one for one in result["pending"] if "DaemonSet" in one["id"]]
    assert [one["pending_reason"].partition("higher: ")[2] for one in daemon_sets[:held]] == [
        "its pods would end at once on 1 Nodes, such as n2"][:held]
    assert bool(result["pending"]) == bool(held)


def test_the_mps_daemon_goes_where_its_clients_may_end(api: ApiServer, client: Client) -> None:
    """A changed configuration replaces no pod of it, and without the plugin it stays."""
    started(api, client, {"devicePlugin": SHARED})
    assert api.objects[f"{SPACE}/{MPS}"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    for level, pending in (("idle", [f"delete: DaemonSet gpu-operator/{MPS}"]), ("drain", [])):
        result = run(client, plan({"devicePlugin": {"enabled": False}}, CLUSTER, disruption=level))
        assert [one["id"] for one in result["pending"]] == pending
    assert f"{SPACE}/{MPS}" not in api.objects
    run(client, plan({"devicePlugin": SHARED}, CLUSTER, disruption="drain"))
    assert api.objects[f"{SPACE}/{MPS}"]["spec"]["updateStrategy"]["type"] == "RollingUpdate"


@pytest.mark.parametrize(("policy", "labels", "key"), [
    ({"driver": {"enabled": False}}, {}, "driver"),
    ({"devicePlugin": {"enabled": False}}, {"nvidia.com/mps.capable": "true"}, "device-plugin"),
])
def test_labels_by_which_such_pods_stand_stay(policy: Any, labels: dict[str, str], key: str) -> None:
    label = f"nvidia.com/gpu.deploy.{key}"
    gpu = {**labels, **UBUNTU, "feature.node.kubernetes.io/pci-10de.present": "true"}
    one = _deploy.Node("n1", {**gpu, label: "true"}, {_deploy.ANNOTATION: label})
    stays = {}
    for level in ("never", "idle", "drain"):
        deploy = _deploy.parse_deploy(plan(policy, facts(node(**gpu)), disruption=level)["deploy"])
        change = _deploy.plan_present(one, deploy, _deploy.Terms(0))
        assert change is not None
        stays[level] = label not in change.labels
    assert stays == {"never": True, "idle": True, "drain": False}


def test_a_node_that_shares_by_mps_keeps_its_configuration() -> None:
    """The sidecar of the daemon starts it anew for another label."""
    text = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
    policy = {"devicePlugin": {"config": {**SHARED["config"], "data": {**SHARED["config"]["data"], "b": text}}}}
    cluster = facts(*(node(**labels) for labels in (
        {"nvidia.com/mps.capable": "true", "nvidia.com/device-plugin.config": "a"}, {"nvidia.com/mps.capable": "true"},
        {"nvidia.com/device-plugin.config": "a"})))
    configs = dict.fromkeys(("n1", "n2", "n3"), "b")
    made = plan(policy, cluster, plugin_configs=configs)
    assert made["deploy"]["plugin_configs"] == {"n1": "a", "n3": "b"}
    assert any(note.startswith("n1, n2: the configuration of the device plugin stays") for note in made["notes"])
    assert plan(policy, cluster, plugin_configs=configs, disruption="drain")["deploy"]["plugin_configs"] == configs
