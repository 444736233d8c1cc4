# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's playbooks on a cluster, with inventories of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client

from tests.integration_cluster.conftest import Kubectl
from tests.integration_cluster.plays import LOCAL, playbook

NODE = "playbook-node"
DEPLOYED = {"nvidia.com/gpu.deploy.device-plugin": "true"}


@pytest.fixture
def delivered(client: Client, kubectl: Kubectl, kubeconfig: str, tmp_path: Path) -> Iterator[Path]:
    """A folder with the kubeconfig, and in the cluster what a removal is to take back."""
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
    """Whether the operand and the deploy label are there."""
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
