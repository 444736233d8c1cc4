# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chart values for Node Feature Discovery: the effective ones, and notes about all others."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import plan

CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "operator": "Equal", "value": "",
                 "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TEAM, OTHER = ({"key": name, "operator": "Exists"} for name in ("team", "other"))


def notes(section: dict[str, Any]) -> list[str]:
    return [one for one in plan({"node-feature-discovery": section})["notes"] if "node-feature-discovery" in one]


def tolerations(policy: dict[str, Any]) -> list[dict[str, Any]]:
    worker, = (one for one in render("nfd", plan(policy)) if one["metadata"]["name"].endswith("worker")
               and one["kind"] == "DaemonSet")
    found: list[dict[str, Any]] = worker["spec"]["template"]["spec"]["tolerations"]
    return found


@pytest.mark.parametrize(("policy", "expected"), [
    ({}, [CONTROL_PLANE, GPU]),
    ({"daemonsets": {"tolerations": [TEAM]}}, [CONTROL_PLANE, GPU, TEAM]),
    ({"daemonsets": {"tolerations": [GPU]}}, [CONTROL_PLANE, GPU]),
    ({"node-feature-discovery": {"worker": {"tolerations": [CONTROL_PLANE, OTHER]}},
      "daemonsets": {"tolerations": [TEAM]}}, [CONTROL_PLANE, OTHER, TEAM]),
])
def test_the_worker_keeps_its_own_tolerations(policy: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert tolerations(policy) == expected


def test_values_without_effect_are_named() -> None:
    said, = notes({"image": {"tag": "v0.1"},
                   "worker": {"config": {"core": {"sleepInterval": "5s"}}, "tolerations": [TEAM],
                              "resources": {"limits": {"cpu": 1}}},
                   "master": {"replicaCount": 3, "config": {"extraLabelNs": ["nvidia.com", "example.org"]}}})
    for path in ("image.tag", "worker.config.core.sleepInterval", "worker.resources.limits.cpu", "master.replicaCount",
                 "master.config.extraLabelNs"):
        assert f"node-feature-discovery.{path}" in said
    assert "worker.tolerations" not in said and "ignored" in said


def test_the_charts_own_values_need_no_word() -> None:
    account = {"name": "node-feature-discovery", "create": False}
    assert notes({
        "priorityClassName": "system-node-critical",
        "gc": {"enable": True, "replicaCount": 1, "serviceAccount": account},
        "worker": {"serviceAccount": account, "tolerations": [CONTROL_PLANE, GPU], "config": {"sources": {"pci": {
            "deviceClassWhitelist": ["02", "0200", "0207", "0300", "0302"], "deviceLabelFields": ["vendor"]}}}},
        "master": {"serviceAccount": {**account, "create": True}, "config": {"extraLabelNs": ["nvidia.com"]}}}) == []
    assert notes({"worker": {"annotations": {}, "config": None}}) == []
