# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks of the collection on a cluster, with various inventories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes
from tests.integration_cluster.conftest import Kubectl
from tests.integration_cluster.plays import LOCAL, playbook, run
from tests.waiting import until

NODE = "playbook-node"
DEPLOYED = {"nvidia.com/gpu.deploy.device-plugin": "true"}


@pytest.fixture
def delivered(client: Client, kubectl: Kubectl, kubeconfig: str, tmp_path: Path) -> Iterator[Path]:
    """A folder with the kubeconfig, and objects in the cluster that a removal removes."""
    (tmp_path / "admin.conf").write_text(Path(kubeconfig).read_text())
    marks = {"app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": "device_plugin"}
    client.apply({"apiVersion": "v1", "kind": "ConfigMap", "data": {},
                  "metadata": {"name": "playbook", "namespace": "default", "labels": marks}})
    client.apply({"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": NODE, "labels": DEPLOYED,
        "annotations": {"gpuops.nvidia/labels": ",".join(DEPLOYED)}}})
    yield tmp_path
    kubectl("delete", "node", NODE)
    kubectl("--namespace", "default", "delete", "--ignore-not-found", "configmap", "playbook")


def there(client: Client) -> tuple[bool, bool]:
    """Whether the operand and the deploy label exist."""
    node = client.get("v1", "Node", NODE) or {"metadata": {}}
    return (client.get("v1", "ConfigMap", "playbook", "default") is not None,
            DEPLOYED.items() <= (node["metadata"].get("labels") or {}).items())


# Nothing listens there: no test may take anything from the machine that it runs on.
HOSTS = {"hosts": {"gpu-1": {"ansible_host": "127.0.0.1", "ansible_port": 1}}}
NAMED = {"gpu_kubeconfig": "admin.conf"}
CONTROL = {"hosts": {"cluster": LOCAL}}


@pytest.mark.parametrize(("inventory", "words", "left"), [
    ({"all": {"vars": NAMED}, "gpu_control": CONTROL}, (), (False, False)),
    # run_once is on the first host of the play, which need not be the one that has the variable.
    ({"gpu_hosts": HOSTS, "gpu_control": {**CONTROL, "vars": NAMED}}, (), (False, False)),
    ({"gpu_hosts": {**HOSTS, "vars": NAMED}, "gpu_control": CONTROL}, ("--limit", "gpu_control"), (False, False)),
    ({"all": {"vars": NAMED}, "gpu_hosts": HOSTS, "gpu_control": CONTROL}, ("--limit", "gpu_hosts"), (True, True)),
    # Labels are for all components together.
    ({"all": {"vars": NAMED}, "gpu_control": CONTROL}, ("--tags", "device_plugin"), (False, True)),
    ({"all": {"vars": NAMED}, "gpu_control": CONTROL}, ("--tags", "nfd"), (True, True)),
    # A skipped component must not keep the others.
    ({"all": {"vars": NAMED}, "gpu_control": CONTROL}, ("--skip-tags", "nfd"), (False, True)),
    ({"all": {"vars": NAMED}, "gpu_control": CONTROL}, ("--skip-tags", "device_plugin"), (True, True)),
    ({"all": {"vars": NAMED}, "gpu_control": CONTROL}, ("--check",), (True, True)),
])
def test_removal_finds_its_cluster(delivered: Path, client: Client, inventory: dict[str, Any],
                                   words: tuple[str, ...], left: tuple[bool, bool]) -> None:
    assert there(client) == (True, True)
    playbook(delivered, "remove", inventory, *words)
    assert there(client) == left


def test_labels_of_nodes_go_although_a_finalizer_holds_an_operand(delivered: Path, client: Client) -> None:
    """The run fails and names the object; the next one completes the removal."""
    def hold(*finalizers: str) -> None:
        client.merge_patch("v1", "ConfigMap", "playbook", "default", {"metadata": {"finalizers": [*finalizers]}})

    inventory = {"all": {"vars": {**NAMED, "gpu_remove_timeout": 2}}, "gpu_control": CONTROL}
    hold("example.com/wait")
    try:
        done = run(delivered, "remove", inventory)
        assert done.rc == 2 and "ConfigMap default/playbook" in done.output, done.output
        assert there(client) == (True, False)
    finally:
        hold()
    playbook(delivered, "remove", inventory)
    assert there(client) == (False, False)


DRIVER = {"nvidia.com/gpu.deploy.driver": "true"}


@pytest.fixture
def driven(cluster: clusters.Cluster, client: Client, kubectl: Kubectl, delivered: Path) -> Iterator[str]:
    """The same with a Node on which a driver pod runs; returns the name of the Node."""
    name, marks = "driver-node", {"app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": "driver"}
    nodes.create(cluster, [nodes.Node(name)], nodes.Labels())
    client.merge_patch("v1", "Node", name, None, {"metadata": {
        "labels": DRIVER, "annotations": {"gpuops.nvidia/labels": ",".join(DRIVER)}}})
    pod = {"metadata": {"labels": {"app": "driver"}},
           "spec": {"nodeSelector": DRIVER, "containers": [{"name": "x", "image": "example.org/x:1"}]}}
    for one in ({"apiVersion": "v1", "kind": "ServiceAccount"},
                {"apiVersion": "apps/v1", "kind": "DaemonSet",
                 "spec": {"selector": {"matchLabels": {"app": "driver"}}, "template": pod}}):
        client.apply({**one, "metadata": {"name": "driver", "namespace": "default", "labels": marks}})
    until(lambda: (client.get("apps/v1", "DaemonSet", "driver", "default") or {})["status"].get("numberReady"),
          "the driver's pod runs")
    yield name
    kubectl("--namespace", "default", "delete", "--ignore-not-found", "daemonset,serviceaccount", "driver")
    kubectl("delete", "node", name)


def test_removal_ends_no_driver_below_drain(driven: str, delivered: Path, client: Client) -> None:
    """The deploy label is not removed either, because its pods would end without it."""
    def left() -> tuple[bool, ...]:
        found = [client.get(*key, "driver", "default") for key in (("apps/v1", "DaemonSet"), ("v1", "ServiceAccount"))]
        labels = (client.get("v1", "Node", driven) or {})["metadata"]["labels"]
        return (*(one is not None for one in found), DRIVER.items() <= labels.items())

    def remove(level: str, *words: str) -> str:
        return playbook(delivered, "remove", {"all": {"vars": {**NAMED, "gpu_disruption": level}},
                                              "gpu_control": CONTROL}, *words)

    pod = [one["metadata"]["uid"] for one in client.list("v1", "Pod", "default", "app=driver")]
    for level, *words in (("drain", "--check"), ("never",), ("idle", "--tags", "driver")):
        said = " ".join(remove(level, *words).split())
        assert left() == (True, True, True), (level, words)
        assert ("Pending: delete: DaemonSet default/driver and 1 more" in said
                and "Set gpu_disruption: drain in a maintenance window" in said) == (level != "drain"), said
    assert there(client) == (False, True)
    assert [one["metadata"]["uid"] for one in client.list("v1", "Pod", "default", "app=driver")] == pod
    remove("drain")
    assert left() == (False, False, False) and there(client) == (False, False)
