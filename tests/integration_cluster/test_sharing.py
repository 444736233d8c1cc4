# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Node has which configuration of the device plugin, and a ConfigMap of another owner, on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.read_cluster import read_cluster, read_named
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import monitoring, sharing

from lab.controlplane import cluster as clusters
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.test_labels import Fleet, three_nodes
from tests.unit.simulated.clusters import facts, node, objects

LABEL = "nvidia.com/device-plugin.config"


@pytest.fixture
def fleet(cluster: clusters.Cluster, client: Client, fresh: Callable[[], str]) -> Iterator[Fleet]:
    with three_nodes(cluster, client, fresh()) as found:
        yield found


def test_the_label_follows_the_inventory(fleet: Fleet, audit: Audit) -> None:
    def run(**configs: str) -> dict[str, Any]:
        fleet.deploy = {**fleet.deploy, "plugin_configs": {getattr(fleet, name): one for name, one in configs.items()}}
        result = fleet.run()
        return {name: fleet.metadata(getattr(fleet, name))["labels"].get(LABEL) for name in "ab"} | {
            "changed": result["changed"]}

    assert run(a="dense") == {"a": "dense", "b": None, "changed": True}
    audit.start()
    assert run(a="dense") == {"a": "dense", "b": None, "changed": False}
    assert not audit.writes
    assert run(a="plain", b="dense") == {"a": "plain", "b": "dense", "changed": True}
    fleet.write(fleet.b, labels={LABEL: "by-hand"})
    assert run(a="plain", b="dense")["b"] == "dense"
    assert run() == {"a": None, "b": None, "changed": True}
    fleet.write(fleet.b, labels={LABEL: "theirs"})
    assert run(b="dense") == {"a": None, "b": "theirs", "changed": False}


def test_a_config_map_of_somebody_else_is_read(client: Client, kubectl: Kubectl, fresh: Callable[[], str]) -> None:
    name = fresh()
    kubectl("--namespace", "default", "create", "configmap", name, "--from-literal=any=version: v1")
    found = read_named(client, "default", {"ConfigMap": [name, "none"], "Secret": []})
    assert found["config_maps"] == {name: {"any": "version: v1"}, "none": None}
    kubectl("--namespace", "default", "delete", "configmap", name)


def test_config_maps_of_ours_are_taken_by_the_server(client: Client) -> None:
    """Also the ConfigMap with all dashboards, which must stay below the size limit of the server."""
    shared = sharing.read(Document({"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}]}}))
    found = objects(None, facts(node()), namespace="default", sharing=shared,
                    monitoring=monitoring.read({"dashboards": True, "counters": "full"}))
    for name in ("nvidia-device-plugin-config", "nvidia-dcgm-exporter-dashboards", "nvidia-dcgm-exporter-counters"):
        one = found[f"ConfigMap/{name}"]
        assert client.apply(one)["data"] == one["data"]
        client.delete("v1", "ConfigMap", name, "default")


def test_a_cluster_without_the_prometheus_operator_has_no_rules(client: Client) -> None:
    assert read_cluster(client)["prometheus_rules"] is False
