# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet with Ansible on a real API server: labels that hosts have reported, startup taints, the inventory."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes
from tests.integration_cluster.conftest import Kubectl
from tests.integration_cluster.plays import play
from tests.integration_cluster.world import retire

TAINT = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/gpu", "value": "true", "effect": "NoSchedule"}
OTHER = {"key": "example.com/team", "value": "a", "effect": "PreferNoSchedule"}
TOLD = {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.count": "4", "nvidia.com/mig.capable": "false"}
Object = dict[str, Any]


class Fleet:
    """Two Nodes with GPUs but without labels of feature discovery, and their hosts, to which nobody connects."""

    def __init__(self, made: clusters.Cluster, client: Client, folder: Path, prefix: str) -> None:
        self.kubeconfig, self.client, self.folder, self.said = str(made.kubeconfig), client, folder, ""
        # kwok's own address is one of the controller.
        wanted = [lab_nodes.Node(f"{prefix}-{name}", model="l40s", gpus=4, address=f"192.0.2.{number}")
                  for number, name in enumerate("ab", 1)]
        lab_nodes.create(made, wanted, lab_nodes.Labels())
        self.a, self.b = self.names = [node.name for node in wanted]
        hosts = {f"host-{name}": {"gpu_node_name": "{{ inventory_hostname | replace('host-', '') }}"}
                 for name in self.names}
        (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))

    def node(self, name: str) -> Object:
        """A Node."""
        found = self.client.get("v1", "Node", name)
        assert found is not None
        return found

    def play(self, *tasks: Object, limit: str = "all") -> int:
        """How many tasks changed something after each host has reported its labels. tasks: options of gpu_labels."""
        tell = {"name": "Tell", "ansible.builtin.set_fact": {"gpu_labels": TOLD, "cacheable": True}}
        asked = [{"name": "Do", "run_once": True, "gpuops.nvidia.gpu_labels": {
            "kubeconfig": self.kubeconfig, **task}} for task in tasks]
        ran = play(self.folder, [tell, *asked], "-i", str(self.folder / "hosts.yml"), "--limit", limit, hosts="all")
        assert ran.rc == 0, ran.output
        self.said = ran.output
        return sum(int(count) for count in re.findall(r"changed=(\d+)", ran.output))


@contextmanager
def two_hosts(made: clusters.Cluster, client: Client, folder: Path, prefix: str) -> Iterator[Fleet]:
    """Fresh Nodes."""
    found = Fleet(made, client, folder, prefix)
    try:
        yield found
    finally:
        retire(made, *found.names)


@pytest.fixture
def fleet(cluster: clusters.Cluster, client: Client, tmp_path: Path, fresh: Callable[[], str]) -> Iterator[Fleet]:
    with two_hosts(cluster, client, tmp_path, fresh()) as found:
        yield found


def test_hosts_that_a_limit_leaves_out(fleet: Fleet) -> None:
    """The Nodes of these hosts keep their labels, with a note; a removal needs no report of these hosts."""
    hosts = [f"host-{name}" for name in fleet.names]
    task = {"target": "node", "state": "present", "hosts": hosts}
    assert fleet.play(task) == 1 and fleet.play(task) == 0
    full = fleet.node(fleet.b)["metadata"]
    assert fleet.play(task, limit=hosts[0]) == 0
    assert f"{hosts[1]}: gpu_labels did not run" in re.sub(r"\s+", " ", fleet.said)
    assert fleet.node(fleet.b)["metadata"]["labels"] == full["labels"]
    assert fleet.play({"target": "node", "state": "absent", "hosts": hosts[1:]}, limit=hosts[0]) == 1
    assert not set(TOLD) & set(fleet.node(fleet.b)["metadata"]["labels"])
    assert set(TOLD) <= set(fleet.node(fleet.a)["metadata"]["labels"])


def test_labels_that_a_removed_nfd_has_left(fleet: Fleet) -> None:
    """After the labels are adopted, the lists of the removed NFD no longer count; other names in them stay."""
    listed = "nfd.node.kubernetes.io/feature-labels"
    fleet.client.merge_patch("v1", "Node", fleet.a, None, {"metadata": {
        "labels": {"nvidia.com/gpu.count": "9"}, "annotations": {listed: "cpu-model.id,nvidia.com/gpu.count"}}},
        field_manager="nfd-master")
    task = {"target": "node", "state": "present", "hosts": [f"host-{fleet.a}"]}
    fleet.play(task)
    assert fleet.node(fleet.a)["metadata"]["labels"]["nvidia.com/gpu.count"] == "9"
    assert fleet.play({**task, "adopt": ["nvidia.com/gpu.count"]}) == 1
    now = fleet.node(fleet.a)["metadata"]
    assert now["labels"].items() >= TOLD.items() and now["annotations"][listed] == "cpu-model.id"
    assert fleet.play(task) == 0


def test_a_startup_taint(fleet: Fleet, kubectl: Kubectl) -> None:
    """The taint is removed if the Node is verified and its kubelet offers GPUs; other taints stay."""
    for name in fleet.names:
        fleet.client.merge_patch("v1", "Node", name, None, {"spec": {"taints": [OTHER, TAINT]}})
    size = {"nvidia.com/gpu": "4"}
    kubectl("patch", "node", fleet.a, "--subresource", "status", "--type", "merge", "--patch",
            json.dumps({"status": {"capacity": size, "allocatable": size}}))
    task = {"target": "startup_taint", "state": "absent", "taint": TAINT["key"], "nodes": fleet.names}
    assert fleet.play(task) == 1
    assert [taint["key"] for taint in fleet.node(fleet.a)["spec"]["taints"]] == [OTHER["key"]]
    assert [taint["key"] for taint in fleet.node(fleet.b)["spec"]["taints"]] == [OTHER["key"], TAINT["key"]]


def test_the_inventory(fleet: Fleet) -> None:
    """The output of ansible-inventory, with groups of users in addition to ours."""
    fleet.client.merge_patch("v1", "Node", fleet.a, None, {"metadata": {"labels": TOLD}}, field_manager="somebody")
    path = fleet.folder / "fleet.gpu_nodes.yml"
    path.write_text(yaml.safe_dump({
        "plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": fleet.kubeconfig, "address_types": ["InternalIP"],
        "groups": {"mine": f"gpu_node_name in {fleet.names}"}, "keyed_groups": [
            {"key": "gpu_node.family", "prefix": "family", "default_value": "none"}]}))
    ran = subprocess.run(["ansible-inventory", "-i", str(path), "--list"], check=False, capture_output=True, text=True,
                         timeout=120, env={**os.environ, "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"})
    assert ran.returncode == 0, ran.stderr
    # How ansible-inventory shows that a string is no template.
    shown = json.loads(ran.stdout, object_hook=lambda one: one.get("__ansible_unsafe", one))
    assert sorted(shown["mine"]["hosts"]) == fleet.names
    assert fleet.a in shown["gpu_model_nvidia_l40s"]["hosts"] and fleet.b in shown["gpu_model_unknown"]["hosts"]
    assert set(fleet.names) <= {*shown["gpu_state_no_resources"]["hosts"]} & {*shown["family_none"]["hosts"]}
    seen = shown["_meta"]["hostvars"][fleet.a]
    address = next(one["address"] for one in fleet.node(fleet.a)["status"]["addresses"] if one["type"] == "InternalIP")
    assert seen["ansible_host"] == address and seen["gpu_node"]["count"] == 4
