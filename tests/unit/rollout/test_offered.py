# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs that Nodes offer are as many as their labels or their hosts say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action import gpu_verify
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import offered
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Request

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
DEPLOY = "nvidia.com/gpu.deploy.device-plugin"


def node(labels: dict[str, str], allocatable: dict[str, str], capacity: dict[str, str] | None = None,
         name: str = "n1", ready: str = "True") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {DEPLOY: "true", **labels}},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": allocatable,
                       "capacity": allocatable if capacity is None else capacity}}


def counts(count: str = "8", replicas: str = "1", resource: str = GPU, **more: str) -> dict[str, str]:
    return {f"{resource}.count": count, f"{resource}.replicas": replicas, **more}


MIXED = {"nvidia.com/mig.strategy": "mixed"}
SINGLE = {"nvidia.com/mig.strategy": "single"}


@pytest.mark.parametrize(("labels", "allocatable", "gpus"), [
    (counts(), {GPU: "8"}, None),
    (counts(replicas="4"), {GPU: "32"}, None),
    (counts(replicas="4"), {f"{GPU}.shared": "32"}, 8),
    (counts("56", **SINGLE), {GPU: "56"}, None),
    (counts("0", "0", **SINGLE), {GPU: "0"}, None),  # a layout that the strategy single does not allow
    ({**counts(replicas="0"), **counts("56", resource=MIG), **MIXED}, {MIG: "56", GPU: "0"}, None),
    ({**counts(), **counts("7", resource=MIG), **MIXED}, {MIG: "7", GPU: "7"}, None),  # one of eight in MIG mode
    ({**counts(), **counts("7", "2", MIG), **MIXED}, {f"{MIG}.shared": "14", GPU: "7"}, None),
    (counts(), {GPU: "10"}, None),  # GPUs of a second model, which the labels do not count
    (counts(), {}, None),  # never registered: the validator waits for it
    ({}, {GPU: "3"}, None),
    (counts("many"), {GPU: "3"}, None),
    (counts(replicas="\x1b[2J"), {GPU: "3"}, None),
    (counts(), {GPU: "8", "nvidia.com/hostdev": "2"}, 8),
])
def test_as_many_as_expected(labels: dict[str, str], allocatable: dict[str, str], gpus: int | None) -> None:
    assert offered.differing(node(labels, allocatable), gpus) == []


@pytest.mark.parametrize(("labels", "allocatable", "capacity", "gpus", "expected", "why"), [
    (counts(), {GPU: "7"}, {GPU: "8"}, None, (GPU, 8, 7, 8), "unhealthy"),
    (counts(), {GPU: "0"}, {GPU: "8"}, None, (GPU, 8, 0, 8), "unhealthy"),
    (counts(), {GPU: "7"}, {GPU: "7"}, None, (GPU, 8, 7, 7), "did not find"),
    (counts(), {GPU: "0"}, {GPU: "0"}, None, (GPU, 8, 0, 0), "did not find"),
    (counts(replicas="4"), {GPU: "8"}, {GPU: "8"}, None, (GPU, 32, 8, 8), "did not find"),
    (counts("7"), {GPU: "7"}, {GPU: "7"}, 8, (GPU, 8, 7, 7), "did not find"),
    ({}, {GPU: "4"}, {GPU: "4"}, 8, (GPU, 8, 4, 4), "did not find"),
    (counts(), {GPU: "8"}, {GPU: "8"}, 7, (GPU, 7, 8, 8), "older"),
    ({**counts(), **counts("7", resource=MIG), **MIXED}, {MIG: "6"}, {MIG: "7"}, None, (MIG, 7, 6, 7), "unhealthy"),
    ({**counts(), **counts("7", resource=MIG), **MIXED}, {MIG: "8"}, {MIG: "8"}, None, (MIG, 7, 8, 8), "older"),
    (counts("56", **SINGLE), {GPU: "49"}, {GPU: "49"}, None, (GPU, 56, 49, 49), "did not find"),
])
def test_a_difference_has_numbers_and_a_cause(labels: dict[str, str], allocatable: dict[str, str], why: str,
                                              capacity: dict[str, str], gpus: int | None, expected: Any) -> None:
    found, = offered.differing(node(labels, allocatable, capacity), gpus)
    assert found == expected
    difference = offered._difference(found, ["n2", "n1"])
    assert difference.component == "device_plugin" and difference.nodes == ("n1", "n2")
    assert f"offers {found.offered} {found.resource}, {found.expected} expected" in difference.cause
    assert why in difference.cause and difference.hint


def test_it_waits_for_a_device_plugin_that_registers_late(api: ApiServer, client: Client) -> None:
    api.put(node(counts(), {GPU: "0"}, {GPU: "0"}))
    clock = Clock()

    def before(request: Request) -> None:
        if clock.now - begin > 10:
            api.objects["/api/v1/nodes/n1"]["status"]["allocatable"] = {GPU: "8"}

    begin, api.before = clock.now, before
    assert offered.differences(client, ["n1"], {}, 900, clock, clock.sleep) == []
    assert 10 < clock.now - begin < 20


def test_it_waits_only_a_minute_for_gpus_that_do_not_come(api: ApiServer, client: Client) -> None:
    api.put(node(counts(), {GPU: "7"}), node(counts(), {GPU: "7"}, name="n2"),
            node(counts(), {GPU: "6"}, name="n3"), node(counts(), {GPU: "1"}, name="lost", ready="False"),
            node(counts(), {GPU: "1"}, name="other"))
    clock = Clock()
    begin = clock.now
    found = offered.differences(client, ["n1", "n2", "n3", "lost"], {}, 900, clock, clock.sleep)
    assert [one.nodes for one in found] == [("n3",), ("n1", "n2")] and 59 < clock.now - begin < 65
    begin = clock.now
    assert len(offered.differences(client, ["n1"], {}, 0, clock, clock.sleep)) == 1 and clock.now == begin
    api.requests.clear()
    assert offered.differences(client, [], {}, 0) == [] and api.requests == []


@pytest.mark.parametrize("check", [False, True])
def test_gpu_verify_fails_for_a_missing_gpu(api: ApiServer, monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    monkeypatch.setattr(gpu_verify, "display", SimpleNamespace(display=lambda line: None))
    plan = {**clusters.plan({}, clusters.facts(clusters.node(), clusters.node())), "kubeconfig": str(api.kubeconfig)}
    for part in [name for name in plan["components"] if name != "device_plugin"]:
        del plan["components"][part]
    plan["nodes"]["by_host"] = {"n2": "host-2"}
    api.put(node(counts(), {GPU: "8"}), node(counts(), {GPU: "8"}, name="n2"), {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
            "name": "nvidia-device-plugin-daemonset", "namespace": "gpu-operator", "labels": {
                "app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": "device_plugin"}},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": {"spec": {}}, "updateStrategy": {}},
        "status": {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2}})

    def verified(*gpus: dict[str, Any]) -> dict[str, Any]:
        known = task_vars(**{"localhost": {}, "host-2": {"preflight_found": {"facts": {"gpus": [*gpus]}}}})
        return act(gpu_verify.ActionModule, {"cluster": plan, "timeout": 0, "compare": False}, known, check)

    gpu = {"kernel_driver": "nvidia", "mig": {"enabled": False}}
    passed_through = {"kernel_driver": "vfio-pci", "mig": None}
    same = verified(*[gpu] * 8, passed_through)
    assert same["verified"] == ["n1", "n2"] and not same.get("failed"), same
    assert not verified(*[gpu] * 9, {"kernel_driver": "nvidia", "mig": {"enabled": True}}).get("failed")
    found = verified(*[gpu] * 9)
    assert found["verified"] == ["n1"] and found["checks"][0]["state"] == ("pending" if check else "failed")
    assert found["checks"][0]["detail"].startswith("2/2 ready; n2: the kubelet offers 8 nvidia.com/gpu, 9 expected")
    assert bool(found.get("failed")) != check
