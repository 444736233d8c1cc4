# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine of DCGM and the exporters, enabled and disabled."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import env, facts, node, objects, plan, pod

ENGINE, EXPORTER, STATUS = "nvidia-dcgm", "nvidia-dcgm-exporter", "nvidia-node-status-exporter"
REMOTE = "DCGM_REMOTE_HOSTENGINE_INFO"
ON = {"dcgm": {"enabled": True}}
# A resource that leaves dcgm.enabled out has it on; the chart's values have it off.
RESOURCE = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": {
    name: {} for name in ("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gfd", "nodeStatusExporter",
                          "operator", "toolkit")}}


@pytest.mark.parametrize(("policy", "placement", "engine", "remote"), [
    ({}, "cluster", False, None), (ON, "cluster", True, "nvidia-dcgm:5555"),
    (ON, "hybrid", True, "nvidia-dcgm:5555"), (RESOURCE, "cluster", True, "nvidia-dcgm:5555"),
    # nobody answers under that name where the engine is not the cluster's
    (ON, {"dcgm_exporter": "cluster", "dcgm": "host"}, False, None),
    (ON, {"dcgm_exporter": "cluster", "dcgm": "none"}, False, None),
    ({"dcgm": {"enabled": True}, "dcgmExporter": {"env": [{"name": REMOTE, "value": "elsewhere:5555"}]}}, "cluster",
     True, "elsewhere:5555"),
])
def test_the_exporter_asks_the_engine_where_there_is_one(policy: Any, placement: Any, engine: bool,
                                                         remote: str | None) -> None:
    found = objects(policy, placement=placement)
    assert ({f"DaemonSet/{ENGINE}", f"Service/{ENGINE}", f"ServiceAccount/{ENGINE}"} <= set(found)) is engine
    assert [name for name in found if name.endswith(f"/{ENGINE}")] == [] or engine
    assert env(found, EXPORTER).get(REMOTE) == remote


def test_nodes_are_labelled_for_what_is_delivered() -> None:
    deploy = plan({**ON, "nodeStatusExporter": {"enabled": True}})["deploy"]["components"]
    assert deploy["dcgm"] and deploy["node_status_exporter"]
    assert not plan()["deploy"]["components"]["dcgm"]


def test_images_of_older_releases() -> None:
    policy = {**ON, "nodeStatusExporter": {"enabled": True}}
    for release, engine, status in (
            ("26.7.0", "dcgm:4.6.0-1-ubuntu24.04", "nvcr.io/nvidia/gpu-operator:v26.7.0"),
            ("25.3.4", "dcgm:4.3.1-1-ubuntu22.04",
             "nvcr.io/nvidia/cloud-native/gpu-operator-validator:v25.3.4")):
        found = objects(policy, release=release)
        assert pod(found, ENGINE)["containers"][0]["image"] == f"nvcr.io/nvidia/cloud-native/{engine}"
        assert pod(found, STATUS)["containers"][0]["image"] == status


def test_an_engine_of_the_node_is_reached_from_its_network() -> None:
    local = {"env": [{"name": REMOTE, "value": "localhost:5555"}]}
    assert pod(objects({"dcgmExporter": local}), EXPORTER)["hostNetwork"] is True
    assert "hostNetwork" not in pod(objects(ON), EXPORTER)


def test_prometheus_is_told_of_the_node_status_exporter_where_there_is_one() -> None:
    policy = {"nodeStatusExporter": {"enabled": True}}
    monitor = f"ServiceMonitor/{STATUS}"
    assert monitor not in objects(policy)
    found = objects(policy, facts(node(), monitors=True))
    port = found[monitor]["spec"]["endpoints"][0]["port"]
    assert [one["port"] for one in found[f"Service/{STATUS}"]["spec"]["ports"] if one["name"] == port] == [8000]
    assert found[monitor]["spec"]["selector"]["matchLabels"].items() <= found[f"Service/{STATUS}"]["metadata"][
        "labels"].items()


@pytest.mark.parametrize(("monitor", "expected"), [
    ({}, {"interval": "15s", "honorLabels": False, "relabelings": []}),
    # a time limit of ours could be longer than this, which Prometheus refuses
    ({"interval": "5s"}, {"interval": "5s", "honorLabels": False, "relabelings": []}),
    ({"interval": "1m", "scrapeTimeout": "30s", "honorLabels": True, "relabelings": [
        {"action": "replace", "sourceLabels": ["a"], "targetLabel": "b"}]},
     {"interval": "1m", "scrapeTimeout": "30s", "honorLabels": True, "relabelings": [
         {"action": "replace", "sourceLabels": ["a"], "targetLabel": "b"}]}),
])
def test_service_monitor_of_the_exporter(monitor: Any, expected: Any) -> None:
    policy = {"dcgmExporter": {"serviceMonitor": {"enabled": True, **monitor}}}
    endpoint, = objects(policy, facts(node(), monitors=True))[f"ServiceMonitor/{EXPORTER}"]["spec"]["endpoints"]
    assert {key: value for key, value in endpoint.items() if key not in ("port", "path")} == expected
