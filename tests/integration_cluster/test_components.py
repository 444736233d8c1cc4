# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The components' own objects on an API server: accepted, settled at once, gone with their component."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import deliver, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.render import ORDER, render

from lab.controlplane.cluster import wait_established
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.drifts import COMPONENTS, ON_COMPONENTS, repaired
from tests.integration_cluster.test_operands import crd
from tests.integration_cluster.world import Object, World
from tests.unit.cluster.clusters import facts, node, plan
from tests.unit.cluster.test_switching import CLIENTS, EVERYTHING, NAMES

SPACE = COMPONENTS
MONITORS = [crd("monitoring.coreos.com", kind, f"{kind.lower()}s", "v1", "Namespaced")
            for kind in ("ServiceMonitor", "PrometheusRule")]
SEEN = {**facts(node(), monitors=True), "prometheus_rules": True}


@dataclass
class Whole(World):
    """All components of a plan."""

    cluster: dict[str, Any] = field(default_factory=dict)

    def run(self, check: bool = False) -> Object:
        """What site.yml does."""
        return run(self.client, self.cluster, check)


@pytest.fixture(scope="module")
def made(kubectl: Kubectl, kubeconfig: str) -> Iterator[dict[str, Any]]:
    """The plan with everything switched on, delivered."""
    client = Client(kubeconfig)
    for one in MONITORS:
        kubectl("apply", "--server-side", "--filename", "-", stdin=one)
        wait_established(kubectl, one["metadata"]["name"])
    whole = plan(EVERYTHING, SEEN, namespace=SPACE, node_os=["ubuntu22.04"])
    assert {action for action, count in run(client, whole)["counts"].items() if count} <= {"create", "update"}
    yield whole
    deliver.absent(client, list(ORDER), 180, False)
    kubectl("delete", "namespace", SPACE)
    kubectl("delete", "crd", *(one["metadata"]["name"] for one in MONITORS))


def run(client: Client, cluster: dict[str, Any], check: bool = False) -> dict[str, Any]:
    wanted = objects.wanted({name: render(name, cluster) for name in ORDER})
    return deliver.present(client, wanted, list(ORDER), check)


def without(cluster: dict[str, Any], component: str) -> dict[str, Any]:
    places = {name: "none" if name == component else "cluster" for name in NAMES}
    return plan(EVERYTHING, SEEN, placement=places, namespace=cluster["namespace"],
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
    # Kinds of NFD's go with their definitions, while this looks.
    kinds = [kind for kind in kubectl("api-resources", "--verbs", "list", "--cached=false", "--output", "name").split()
             if component != "nfd" or not kind.endswith(".nfd.k8s-sigs.io")]
    for _try in range(240):  # those with pods go after them
        left = kubectl("get", ",".join(kinds), "--all-namespaces", "--output", "name", "--ignore-not-found",
                       "--selector", f"gpuops.nvidia/component={component}")
        if not left:
            break
        time.sleep(0.5)
    assert left == ""
    assert not run(client, without(made, component))["changed"]
    on = run(client, made)
    assert on["counts"]["create"] == len(own)
    assert not run(client, made)["changed"]


@pytest.mark.parametrize("drift", ON_COMPONENTS)
def test_a_drift_is_repaired(made: dict[str, Any], client: Client, kubectl: Kubectl, audit: Audit,
                             drift: str) -> None:
    repaired(Whole(kubectl, client, SPACE, cluster=made), audit, ON_COMPONENTS[drift])
