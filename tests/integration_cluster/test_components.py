# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The components' own objects on an API server: accepted, settled at once, gone with their component."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import deliver, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.render import ORDER, render

from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.test_operands import crd
from tests.unit.cluster.clusters import facts, node, plan
from tests.unit.cluster.test_switching import CLIENTS, EVERYTHING, NAMES

SPACE = "components"
MONITORS = crd("monitoring.coreos.com", "ServiceMonitor", "servicemonitors", "v1", "Namespaced")
# Most kinds, by which it is seen whether anything was left.
KINDS = "daemonset,deployment,service,serviceaccount,configmap,role,rolebinding,servicemonitor,clusterrole," \
        "clusterrolebinding,runtimeclass"


@pytest.fixture(scope="module")
def made(kubectl: Kubectl, kubeconfig: str) -> Iterator[dict[str, Any]]:
    """The plan with everything switched on, delivered."""
    client = Client(kubeconfig)
    kubectl("apply", "--server-side", "--filename", "-", stdin=MONITORS)
    kubectl("wait", "--for", "condition=Established", "crd/servicemonitors.monitoring.coreos.com")
    whole = plan(EVERYTHING, facts(node(), monitors=True), namespace=SPACE, node_os=["ubuntu22.04"])
    assert {action for action, count in run(client, whole)["counts"].items() if count} <= {"create", "update"}
    yield whole
    deliver.absent(client, list(ORDER), 60, False)
    kubectl("delete", "namespace", SPACE)
    kubectl("delete", "crd", "servicemonitors.monitoring.coreos.com")


def run(client: Client, cluster: dict[str, Any]) -> dict[str, Any]:
    wanted = objects.wanted({name: render(name, cluster) for name in ORDER})
    return deliver.present(client, wanted, list(ORDER), False)


def without(cluster: dict[str, Any], component: str) -> dict[str, Any]:
    places = {name: "none" if name == component else "cluster" for name in NAMES}
    return plan(EVERYTHING, facts(node(), monitors=True), placement=places, namespace=cluster["namespace"],
                node_os=["ubuntu22.04"])


def test_nothing_is_written_twice(made: dict[str, Any], client: Client, audit: Audit) -> None:
    audit.start()
    again = run(client, made)
    assert not again["changed"] and not audit.writes
    assert again["counts"]["keep"] >= 80


@pytest.mark.parametrize("component", NAMES)
def test_off_and_on_again(made: dict[str, Any], client: Client, kubectl: Kubectl, component: str) -> None:
    own = {objects.label_of(one) for one in render(component, made)}
    off = run(client, without(made, component))
    done = {step["id"] for step in off["plan"]}
    clients = {f"update: {name.replace('gpu-operator', SPACE)}" for name in CLIENTS.get(component, ())}
    assert done == {f"delete: {label}" for label in own} | clients
    mark = f"gpuops.nvidia/component={component}"
    for _try in range(60):  # those with pods go after them
        left = kubectl("get", KINDS, "--all-namespaces", "--selector", mark, "--output", "name")
        if not left:
            break
        time.sleep(0.5)
    assert left == ""
    assert not run(client, without(made, component))["changed"]
    on = run(client, made)
    assert on["counts"]["create"] == len(own)
    assert not run(client, made)["changed"]


@pytest.mark.parametrize(("kind", "name", "operation"), [
    ("daemonset", "nvidia-dcgm", {"op": "add", "path": "/spec/template/spec/hostPID", "value": True}),
    ("daemonset", "nvidia-dcgm", {
        "op": "replace", "path": "/spec/template/spec/containers/0/readinessProbe/tcpSocket/port", "value": 5556}),
    ("service", "nvidia-dcgm", {"op": "replace", "path": "/spec/internalTrafficPolicy", "value": "Cluster"}),
    ("daemonset", "nvidia-node-status-exporter", {"op": "add", "path": "/spec/template/spec/containers/0/env/-",
                                                  "value": {"name": "ADDED", "value": "1"}}),
    ("role", "nvidia-node-status-exporter", {"op": "add", "path": "/rules/0/verbs/-", "value": "delete"}),
    ("clusterrole", "nvidia-dcgm-exporter-read-pods", {
        "op": "add", "path": "/rules/0/resources/-", "value": "secrets"}),
    ("servicemonitor", "nvidia-dcgm-exporter", {"op": "replace", "path": "/spec/endpoints/0/interval", "value": "1h"}),
    ("nodefeaturerule", "nvidia-kernel-modules", {"op": "remove", "path": "/spec/rules/0"}),
])
def test_drift(made: dict[str, Any], client: Client, kubectl: Kubectl, kind: str, name: str,
               operation: dict[str, Any]) -> None:
    place = ("--namespace", SPACE) if kind not in ("clusterrole", "nodefeaturerule") else ()
    before = kubectl.get(*place, kind, name)
    kubectl(*place, "patch", kind, name, "--type", "json", "--patch", json.dumps([operation]))
    repaired = run(client, made)
    step, = repaired["plan"]
    assert step["action"] == "repair" and re.split("[ /]", step["target"])[-1] == name
    part = "rules" if "role" in kind else "spec"
    assert kubectl.get(*place, kind, name)[part] == before[part]
