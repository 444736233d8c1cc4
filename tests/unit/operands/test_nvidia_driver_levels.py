# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIADrivers that change below drain: no running driver pod is ended, neither by its DaemonSet nor by a label."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render
from ansible_collections.gpuops.nvidia.tests.unit.components.test_driver_containers import (
    UBUNTU22,
    UBUNTU24,
    driver,
    labelled,
    lets_in,
)
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, plan
from ansible_collections.gpuops.nvidia.tests.unit.simulated.nodes import patched
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer

SPACE = "/apis/apps/v1/namespaces/gpu-operator/daemonsets/"
LABEL = "nvidia.com/gpu.deploy.driver"
GPU = {"feature.node.kubernetes.io/pci-10de.present": "true"}
A, B, RACK = ({"nodeSelector": one} for one in ({"zone": "a"}, {"zone": "b"}, {"rack": "1"}))
BUILT = {"usePrecompiled": True, "version": "580"}
CLUSTER = {**facts(labelled(UBUNTU22, zone="a", rack="1", **GPU), labelled(UBUNTU22, zone="a", **GPU),
                   labelled(UBUNTU24, "6.8.0-45-generic", zone="b", x="y", **GPU)), "nfd": "foreign"}
Nodes = dict[str, deploy_labels.Node]


def resolved(given: Any, level: str) -> dict[str, Any]:
    return plan(given, CLUSTER, disruption=level, strict=False)


def delivered(client: Client, made: dict[str, Any]) -> dict[str, Any]:
    wanted = objects.wanted({name: render(name, made) for name in (objects.SHARED, "driver")
                             if name not in made["components"] or made["components"][name]["state"] == "present"})
    return deliver.present(client, wanted, None, False, level=made["disruption"],
                           kept=deliver.kept_daemon_sets(made))


def labels_of(nodes: Nodes, made: dict[str, Any]) -> Nodes:
    """The labels of the Nodes after gpu_labels."""
    asked = deploy_labels.parse_deploy(made["deploy"])
    changes = {name: deploy_labels.plan_present(one, asked, deploy_labels.Terms(0)) for name, one in nodes.items()}
    return {name: patched(nodes[name], change.patch()) if change else nodes[name] for name, change in changes.items()}


def runs(api: ApiServer, nodes: Nodes) -> set[tuple[str, str]]:
    """The DaemonSets whose pods the Nodes have, by the rules of their controller."""
    return {(path[len(SPACE):], name) for path, one in api.objects.items() if path.startswith(SPACE)
            for name, node in nodes.items() if lets_in(one["spec"]["template"]["spec"], dict(node.labels))}


# The default one has no selector.
BEFORE: dict[str, Any] = {
    "two": [driver("a", **A), driver("b", **B)],
    "one and the default": [driver("a", **A), driver("rest")],
    "precompiled": [driver("a", **A, **BUILT), driver("rest", **BUILT)],
}
AFTER: dict[str, Any] = {
    "selects no Node": [driver("a", nodeSelector={"zone": "nowhere"})],
    "tie": [driver("a", **A), driver("b", **B), driver("c", **RACK)],
    "tie on all Nodes that are selected": [driver("b", **B), driver("c", nodeSelector={"x": "y"})],
    "tie of a precompiled one": [driver("a", **A, **BUILT), driver("c", **RACK, **BUILT), driver("b", **B)],
    "precompiled": [driver("a", **A, **BUILT), driver("b", **B, **BUILT)],
    "built": [driver("a", **A), driver("b", **B)],
    "renamed": [driver("other", **A), driver("b", **B)],
    "another selector": [driver("a", nodeSelector={"zone": "a", "rack": "1"}), driver("b", **B)],
    "a rival of the default one": [driver("a", **A), driver("b", **B), driver("rest")],
    "cannot be followed": [driver("a", **A, version="123"), driver("b", **B)],
    "no NVIDIADriver": None,
    "no driver": {"driver": {"enabled": False}},
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("after", AFTER)
def test_no_driver_pod_ends_below_drain(api: ApiServer, client: Client, before: str, after: str) -> None:
    old = resolved(BEFORE[before], "drain")
    assert not delivered(client, old)["pending"]
    bare = {name: deploy_labels.Node(name, {key: value for key, value in one["labels"].items() if key != LABEL})
            for name, one in CLUSTER["nodes"].items()}
    nodes = labels_of(bare, old)
    there = runs(api, nodes)
    assert {node for _name, node in there} == set(nodes)
    for path, one in api.objects.items():
        if path.startswith(SPACE):
            one["status"] = {"currentNumberScheduled": 1}
    api.put(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(one.labels)}}
              for name, one in nodes.items()))
    for level in ("never", "idle"):
        made = resolved(AFTER[after], level)
        result = delivered(client, made)
        nodes = labels_of(nodes, made)
        assert there <= runs(api, nodes)
        assert bool(result["pending"]) == bool(result.get("warnings"))
    made = resolved(AFTER[after], "drain")
    assert not delivered(client, made)["pending"]
    # Now every Node has the pods of one DaemonSet at most, and those that are left out or not selected have none.
    now = runs(api, labels_of(nodes, made))
    assert len(now) == len({node for _name, node in now})
