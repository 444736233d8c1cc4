# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are Nodes and forge the answers of mig_config, in one batch of mig.yml with a sound host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes
from tests.integration import user
from tests.integration.hostile import forged, local, sound
from tests.integration_cluster.conftest import Kubectl
from tests.integration_cluster.plays import LOCAL, run
from tests.integration_cluster.test_hostile import calm

LAYOUT = "all-1g.10gb"
# MIG alone, on hosts; one part in the cluster, so that one is meant.
PLACEMENT = {**dict.fromkeys(components.NAMES, "none"), "mig_manager": "host", "device_plugin": "cluster"}


@dataclass
class Batch:
    """hosts: the forging hosts in the order of the inventory, then the sound one; run: the run of mig.yml on all of
    them at once."""

    hosts: list[str]
    run: user.Run
    nodes: dict[str, dict[str, str]]


@pytest.fixture
def batch(cluster: clusters.Cluster, kubeconfig: str, kubectl: Kubectl, fresh: Callable[[], str],
          tmp_path: Path) -> Iterator[Batch]:
    """A Node for each host, with a label that requests a layout."""
    prefix, forging = fresh(), forged.in_batch(json.dumps(sound.answers(sound.facts())["mig_config"]))
    names = [f"{prefix}-{number}" for number in range(len(forging))] + [f"{prefix}-sound"]
    local.prepare(tmp_path / "hosts", sound.facts())
    variables = {name: local.host(tmp_path / "hosts", name, said) for name, said in zip(
        names, [*({"mig_config": output} for output in forging), {}], strict=True)}
    lab_nodes.create(cluster, [lab_nodes.Node(name, model="a100-80", gpus=1, address="192.0.2.7", on_host=True)
                               for name in names], lab_nodes.Labels())
    try:
        kubectl("label", "node", *names, f"{mig_labels.MIG_CONFIG}={LAYOUT}")
        done = run(tmp_path, "mig", {
            "all": {"vars": {"gpu_kubeconfig": kubeconfig, "gpu_placement": PLACEMENT, "gpu_disruption": "idle",
                             "mig_manager_boot": False}},
            "gpu_hosts": {"hosts": variables}, "gpu_control": {"hosts": {"cluster": LOCAL}}},
            "--forks", "20", "-e", json.dumps({"gpu_max_unavailable": "100%"}))
        listed = Client(kubeconfig).list("v1", "Node")
        found = {one["metadata"]["name"]: dict(one["metadata"]["labels"]) for one in listed}
        yield Batch(names, done, {name: found[name] for name in names})
    finally:
        kubectl("delete", "node", "--ignore-not-found", *names)


def test_a_forged_answer_stops_no_host_of_its_batch(batch: Batch) -> None:
    """The sound host gets its complete layout; the others are named, and the state of their Nodes is failed."""
    calm(batch.run.output)
    assert not Path(forged.CANARY).exists() and batch.run.rc != 0
    good = batch.hosts[-1]
    assert batch.nodes[good][mig_labels.STATE] == mig_labels.SUCCESS, batch.run.output[-6000:]
    assert batch.nodes[good][mig_labels.MIG_CONFIG] == LAYOUT
    assert not [key for key, value in batch.nodes[good].items() if value == mig_labels.PAUSED]
    failed = {line["host"] for line in batch.run.results if line["kind"] in ("failed", "unreachable")}
    assert good not in failed and len(failed) >= 8
    for name in failed:
        assert batch.nodes[name][mig_labels.STATE] in ("failed", "pending") and f"Node {name}" in batch.run.output, name
