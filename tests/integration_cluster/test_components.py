# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of the components on an API server: accepted, stable at once, removed with their component."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import label_nodes, node_feature
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render

from lab.controlplane import cluster as clusters
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.definitions import crd, create, removed
from tests.integration_cluster.drifts import COMPONENTS, ON_COMPONENTS, repaired, title, together
from tests.integration_cluster.test_fleet import TOLD, two_hosts
from tests.integration_cluster.world import ROWS, Object, World
from tests.unit.operands.test_switching import CLIENTS, EVERYTHING, NAMES
from tests.unit.simulated.clusters import facts, node, plan
from tests.waiting import until

SPACE = COMPONENTS
MONITORS = [crd("monitoring.coreos.com", kind, f"{kind.lower()}s", "v1", "Namespaced")
            for kind in ("ServiceMonitor", "PrometheusRule")]
SEEN = {**facts(node(), monitors=True), "prometheus_rules": True}


@dataclass
class Whole(World):
    """All components of a plan."""

    cluster: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.objects = wanted(self.cluster)

    def run(self, check: bool = False) -> Object:
        """Runs operands with all components."""
        return deliver.present(self.client, self.objects, list(ORDER), check)


@pytest.fixture(scope="module")
def made(kubectl: Kubectl, kubeconfig: str) -> Iterator[Whole]:
    """Delivers the plan with everything enabled."""
    client = Client(kubeconfig)
    with removed(kubectl, client, *MONITORS):
        create(kubectl, *MONITORS)
        whole = Whole(kubectl, client, SPACE, cluster=plan(EVERYTHING, SEEN, namespace=SPACE, node_os=["ubuntu22.04"]))
        assert {action for action, count in whole.run()["counts"].items() if count} <= {"create", "update"}
        yield whole
        deliver.absent(client, list(ORDER), 180, False)
        kubectl("delete", "namespace", SPACE)
    until(lambda: not client.serves(ROWS["nodefeature"]), "NFD's kinds are no longer served")


@pytest.fixture
def whole(made: Whole, request: pytest.FixtureRequest) -> Iterator[Whole]:
    """The same; what a failed test has left is repaired for the next test."""
    failed = request.session.testsfailed
    yield made
    if request.session.testsfailed > failed:
        made.run()


def wanted(cluster: dict[str, Any]) -> list[objects.Wanted]:
    return objects.wanted({name: render(name, cluster) for name in ORDER})


def without(cluster: dict[str, Any], component: str) -> dict[str, Any]:
    places = {name: "none" if name == component else "cluster" for name in NAMES}
    return plan(EVERYTHING, SEEN, placement=places, namespace=cluster["namespace"],
                node_os=["ubuntu22.04"])


def test_nothing_is_written_twice(made: Whole, audit: Audit) -> None:
    audit.start()
    again = made.run()
    assert not again["changed"] and not audit.writes
    # A value that the server writes in its own way is known: nothing has to be asked.
    assert not audit.tries
    assert again["counts"]["keep"] >= 80


@pytest.mark.parametrize("component", NAMES)
def test_off_and_on_again(whole: Whole, client: Client, component: str) -> None:
    own = {objects.label_of(one) for one in render(component, whole.cluster)}
    others = wanted(without(whole.cluster, component))
    off = deliver.present(client, others, list(ORDER), False)
    done = {step["id"] for step in off["plan"]}
    clients = {f"update: {name.replace('gpu-operator', SPACE)}" for name in CLIENTS.get(component, ())}
    assert done == {f"delete: {label}" for label in own} | clients
    rows = [*(client.namespaced_kinds() or ()), *(row for row in kinds.KINDS.values() if not row.namespaced)]

    def gone() -> bool:
        """Waits until pods, and then the kinds of NFD with their definitions, are removed."""
        return not any(client.many(lambda row: client.list_row(
            row, label_selector=f"gpuops.nvidia/component={component}", metadata_only=True), rows))

    until(gone, f"nothing of {component} is left", pause=1)
    assert not deliver.present(client, others, list(ORDER), True)["changed"]
    assert whole.run()["counts"]["create"] == len(own)
    assert not whole.run(check=True)["changed"]


@pytest.mark.parametrize("names", together(ON_COMPONENTS), ids=title)
def test_drifts_are_repaired(whole: Whole, audit: Audit, names: tuple[str, ...]) -> None:
    repaired(whole, audit, [ON_COMPONENTS[name] for name in names])


def test_what_hosts_have_told(made: Whole, cluster: clusters.Cluster, client: Client, audit: Audit, tmp_path: Path,
                              fresh: Callable[[], str]) -> None:
    """One task for all Nodes and one for all NodeFeatures; the second run writes nothing, and the removal leaves
    nothing.

    The test is in this file because it needs the definitions of NFD, which no other test creates in this cluster.
    """
    with two_hosts(cluster, client, tmp_path, fresh()) as fleet:
        before = {name: fleet.node(name)["metadata"]["labels"] for name in fleet.names}
        hosts = [f"host-{name}" for name in fleet.names]
        features = {"target": "node_feature", "namespace": "default"}
        labels = {"target": "node", "nodes": fleet.names, "deploy": {"components": {"device_plugin": True}}}
        audit.start()
        assert fleet.play(*({**task, "state": "present", "hosts": hosts} for task in (features, labels))) == 2
        assert sorted(one["name"] for one in audit.writes if one["agent"] == "gpuops.nvidia") == sorted([
            *fleet.names, *(f"gpuops-{name}" for name in fleet.names)])
        for name in fleet.names:
            made = fleet.client.get(node_feature.API, node_feature.KIND, f"gpuops-{name}", "default")
            assert made is not None and made["spec"] == {"labels": TOLD}
            assert made["metadata"]["labels"][node_feature.NODE_LABEL] == name
            assert fleet.node(name)["metadata"]["labels"] == {
                **before[name], **TOLD, "nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.client": "true",
                "nvidia.com/gpu.deploy.device-plugin": "true"}
        told, given = dict.fromkeys(fleet.names, TOLD), {
            "kubeconfig": fleet.kubeconfig, "context": None, "adopt": [], "gone_after": 600, "wait_for_nfd": 0,
            "deploy": None, "nodes": fleet.names, "namespace": "default"}
        audit.start()
        assert not node_feature.publish({**given, "state": "present"}, False, told)["changed"]
        assert not label_nodes.label_nodes({**given, **labels, "state": "present"}, False, told)["changed"]
        assert not [one for one in audit.writes if one["agent"] == "gpuops.nvidia"]
        for take in (node_feature.publish, label_nodes.label_nodes):
            assert take({**given, "state": "absent"}, False, None)["counts"]["changed"] == 2
        assert {name: fleet.node(name)["metadata"]["labels"] for name in fleet.names} == before
        assert fleet.client.list(node_feature.API, node_feature.KIND) == []
