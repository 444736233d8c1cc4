# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy labels on the Nodes of a real API server. Each test has Nodes of its own and names only them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import wire
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import ANNOTATION, GONE, GONE_AFTER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import label_nodes

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes
from tests.integration import user
from tests.integration_cluster.plays import play
from tests.integration_cluster.proxy import Flaky
from tests.waiting import until

D = "nvidia.com/gpu.deploy."
NFD = "feature.node.kubernetes.io/"
COMPONENTS = dict.fromkeys(("nfd", "driver", "container_toolkit", "validator", "device_plugin", "feature_discovery",
                            "dcgm_exporter", "mig_manager"), True)
WORDS = ("client", "container-toolkit", "dcgm-exporter", "device-plugin", "driver", "gpu-feature-discovery",
         "mig-manager", "operator-validator")
WANTED = {**{D + word: "true" for word in WORDS}, "nvidia.com/gpu.present": "true",
          "nvidia.com/mig.config": "all-disabled"}
OTHER, TTL = "somebody-else", "node.alpha.kubernetes.io/ttl"


class Fleet:
    """The Nodes of one test: two with A100, one without GPUs."""

    def __init__(self, made: clusters.Cluster, client: Client, prefix: str) -> None:
        self.made, self.client = made, client
        wanted = [lab_nodes.Node(f"{prefix}-{name}", model=model, gpus=8 if model else 0)
                  for name, model in (("a", "a100-80"), ("b", "a100-80"), ("cpu", ""))]
        lab_nodes.create(made, wanted, lab_nodes.Labels(described=True))
        self.names = [node.name for node in wanted]
        self.a, self.b, self.cpu = self.names
        self.deploy = {"components": COMPONENTS, "on_host": {}, "mig_default": "all-disabled"}
        # A controller annotates each new Node, maybe after kwok has made it Ready.
        until(lambda: all(TTL in one["annotations"] for one in self.all_metadata().values()), f"{TTL} comes")
        self.start = self.all_metadata()

    def run(self, state: str = "present", check: bool = False, told: dict[str, dict[str, str]] | None = None,
            **options: Any) -> dict[str, Any]:
        """Runs the task on these Nodes."""
        given = {"state": state, "kubeconfig": str(self.made.kubeconfig), "context": None, "nodes": self.names,
                 "deploy": self.deploy, "wait_for_nfd": 0, "adopt": [], "gone_after": GONE_AFTER, **options}
        return label_nodes(given, check, told)

    def metadata(self, name: str) -> dict[str, Any]:
        """The labels and annotations of a Node."""
        found = self.client.get("v1", "Node", name)
        assert found is not None
        return {part: found["metadata"].get(part, {}) for part in ("labels", "annotations")}

    def all_metadata(self) -> dict[str, Any]:
        """The metadata of all of them."""
        return {name: self.metadata(name) for name in self.names}

    def write(self, name: str, **patch: dict[str, str | None]) -> None:
        """Writes as another client would: labels=..., annotations=..."""
        self.client.merge_patch("v1", "Node", name, None, {"metadata": patch}, field_manager=OTHER)


@contextmanager
def three_nodes(made: clusters.Cluster, client: Client, prefix: str) -> Iterator[Fleet]:
    """Fresh Nodes."""
    found = Fleet(made, client, prefix)
    try:
        yield found
    finally:
        for name in found.names:
            client.delete("v1", "Node", name)


@pytest.fixture
def fleet(cluster: clusters.Cluster, client: Client, fresh: Callable[[], str]) -> Iterator[Fleet]:
    with three_nodes(cluster, client, fresh()) as found:
        yield found


def test_once_and_not_again(fleet: Fleet, audit: Any) -> None:
    """The changes that check mode names are done with one PATCH for each Node and a field manager of ours; the second
    run only reads."""
    named = fleet.run(check=True)
    assert fleet.all_metadata() == fleet.start
    audit.start()
    assert fleet.run() == named and sorted(named["nodes"]) == [fleet.a, fleet.b]
    assert named["nodes"][fleet.a] == {"added": WANTED, "changed": {}, "removed": {}}
    assert sorted(one["name"] for one in audit.writes if one["agent"] == "gpuops.nvidia") == [fleet.a, fleet.b]
    found = fleet.client.get("v1", "Node", fleet.a)
    assert found is not None
    assert [one["operation"] for one in found["metadata"]["managedFields"]
            if one["manager"] == "gpuops.nvidia"] == ["Update"]
    now = fleet.all_metadata()
    assert now[fleet.a]["labels"] == {**fleet.start[fleet.a]["labels"], **WANTED}
    assert now[fleet.cpu] == fleet.start[fleet.cpu]
    audit.start()
    assert not fleet.run()["changed"]
    ours = [one for one in audit.requests if one["agent"] == "gpuops.nvidia"]
    assert {one["verb"] for one in ours} == {"list"} and not audit.writes
    assert len([one for one in ours if one["resource"] == "nodes"]) == 1  # one page: there are less than 500 Nodes


def test_removal_leaves_exactly_what_was_there(fleet: Fleet) -> None:
    """Although other managers rewrote our values, and other clients have keys beside ours."""
    theirs = {f"{D}driver": "true", f"{D}nvsm": "true", "example.com/rack": "7"}
    fleet.write(fleet.b, labels=theirs, annotations={"example.com/note": "mine"})
    before = fleet.all_metadata()
    fleet.run()
    assert fleet.metadata(fleet.b)["annotations"][ANNOTATION] == ",".join(sorted(set(WANTED) - {f"{D}driver"}))
    paused = {f"{D}driver": "paused-for-driver-upgrade", f"{D}device-plugin": "paused-for-mig-change"}
    fleet.write(fleet.a, labels=paused)
    assert not fleet.run()["changed"]
    gone = fleet.run("absent", deploy=None)
    assert gone["nodes"][fleet.a]["removed"] == {**WANTED, **paused}
    assert fleet.all_metadata() == before
    assert not fleet.run("absent", deploy=None)["changed"]


def test_what_users_say_wins(fleet: Fleet) -> None:
    """An operand that is off, all operands off, and a layout: each setting still exists after the removal."""
    fleet.run()
    fleet.write(fleet.a, labels={f"{D}dcgm-exporter": "false", "nvidia.com/mig.config": "all-1g.10gb"})
    fleet.write(fleet.b, labels={f"{D}operands": "false"})
    fleet.run()
    assert not fleet.run()["changed"]
    labels = fleet.metadata(fleet.b)["labels"]
    assert {key for key in labels if key.startswith(D)} == {f"{D}operands"}
    fleet.run("absent", deploy=None)
    assert fleet.metadata(fleet.a)["labels"] == {**fleet.start[fleet.a]["labels"], f"{D}dcgm-exporter": "false",
                                                 "nvidia.com/mig.config": "all-1g.10gb"}
    assert fleet.metadata(fleet.b)["labels"] == {**fleet.start[fleet.b]["labels"], f"{D}operands": "false"}


def test_one_writer_on_a_node_that_is_a_host(fleet: Fleet) -> None:
    """A component that moves to the host loses its label, and a label that a former operator left is removed, too."""
    fleet.run()
    fleet.write(fleet.b, labels={f"{D}driver": None}, annotations={ANNOTATION: None})
    fleet.write(fleet.b, labels={f"{D}driver": "true"})
    fleet.deploy["on_host"] = {fleet.a: ["driver", "container_toolkit", "mig_manager"], fleet.b: ["driver"]}
    result = fleet.run()
    assert sorted(result["nodes"][fleet.a]["removed"]) == [
        f"{D}container-toolkit", f"{D}driver", f"{D}mig-manager", "nvidia.com/mig.config"]
    assert sorted(result["nodes"][fleet.b]["removed"]) == [f"{D}driver"]
    assert not fleet.run()["changed"]


def test_a_gpu_that_vanishes_and_returns(fleet: Fleet) -> None:
    """The Node is Ready and NFD still describes it; the time of the first observation is stored, and the labels change
    when it is old enough."""
    fleet.run()
    full = fleet.metadata(fleet.a)
    fleet.write(fleet.a, labels={f"{NFD}pci-10de.present": None})
    assert fleet.run()["changed"] and not fleet.run()["changed"]
    seen = fleet.metadata(fleet.a)
    assert seen["labels"].items() >= WANTED.items() and GONE in seen["annotations"]
    fleet.write(fleet.a, annotations={GONE: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 700))})
    fleet.run()
    gone = fleet.metadata(fleet.a)
    assert {key: value for key, value in gone["labels"].items() if key in WANTED} == {
        "nvidia.com/gpu.present": "false"}
    assert GONE not in gone["annotations"] and not fleet.run()["changed"]
    fleet.write(fleet.a, labels={f"{NFD}pci-10de.present": "true"})
    fleet.run()
    assert fleet.metadata(fleet.a) == full


def test_what_hosts_tell_goes_with_the_rest(fleet: Fleet, audit: Any) -> None:
    """One PATCH for each Node. Labels of other clients stay, are named, and are adopted on request."""
    told = dict.fromkeys((fleet.a, fleet.b), {
        "nvidia.com/gpu.product": "told", "nvidia.com/gpu.clique": "", "nvidia.com/mig.capable": "true",
        "gpuops.nvidia/Tesla-T4.count": "1"})
    before = fleet.metadata(fleet.a)["labels"]
    audit.start()
    result = fleet.run(told=told)
    assert sorted(one["name"] for one in audit.writes if one["agent"] == "gpuops.nvidia") == [fleet.a, fleet.b]
    assert result["foreign"] == [{"labels": ["nvidia.com/gpu.product", "nvidia.com/mig.capable"],
                                  "nodes": [fleet.a, fleet.b]}]
    now = fleet.metadata(fleet.a)["labels"]
    assert now == {**before, **WANTED, "nvidia.com/gpu.clique": "", "gpuops.nvidia/Tesla-T4.count": "1"}
    fleet.run(told=told, adopt=["nvidia.com/gpu.product"], deploy=None)
    assert fleet.metadata(fleet.a)["labels"]["nvidia.com/gpu.product"] == "told"
    fleet.write(fleet.b, labels={"gpuops.nvidia/Tesla-T4.count": None})
    mended = fleet.run(told=told)
    assert mended["nodes"] == {fleet.b: {"added": {"gpuops.nvidia/Tesla-T4.count": "1"}, "changed": {}, "removed": {}}}
    fleet.run("absent", deploy=None)
    assert fleet.metadata(fleet.a)["labels"] == {key: value for key, value in before.items()
                                                 if key != "nvidia.com/gpu.product"}


FAULTS = (429, "drop", 500, "lose", 503, 409)  # the last one in writing only


def test_faults_are_ridden_through(fleet: Fleet, tmp_path: Path) -> None:
    """Every second request of a kind fails, each time in another way, and the result is the same."""
    met: Counter[str] = Counter()

    def fault(number: int, method: str, path: str) -> int | str | None:
        met[method] += 1
        return None if met[method] % 2 else FAULTS[met[method] // 2 % (6 if method == "PATCH" else 5)]

    with Flaky(str(fleet.made.kubeconfig), fault) as server:
        for _number in range(4):
            assert fleet.run(kubeconfig=server.kubeconfig(tmp_path))["counts"]["failed"] == 0
            assert not fleet.run()["changed"]
            fleet.run("absent", deploy=None, kubeconfig=server.kubeconfig(tmp_path))
            assert fleet.all_metadata() == fleet.start
    assert {fault for method, _path, fault in server.seen if method == "PATCH"} == {None, *FAULTS}


def test_a_run_that_was_cut_off_is_gone_on_with(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server becomes unreachable after the first Node; the next run writes only the other one."""
    monkeypatch.setattr(wire, "FIRST_PAUSE", 0.001)
    written: list[str] = []

    def away(number: int, method: str, path: str) -> int | None:
        if method == "PATCH" and path not in written:
            written.append(path)
        return 503 if method == "PATCH" and path != written[0] else None

    with Flaky(str(fleet.made.kubeconfig), away) as server:
        result = fleet.run(kubeconfig=server.kubeconfig(tmp_path))
    assert result["failed"] and len(result["nodes"]) == 1 and len(result["failures"]) == 1
    assert list(fleet.run()["nodes"]) == list(result["failures"])


def test_another_writer_at_the_same_time_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """Single keys are patched without a resourceVersion: in the end, the keys of both clients exist."""
    count = 0

    def other(number: int, method: str, path: str) -> None:
        """Writes the Node between our read and our write."""
        nonlocal count
        if method == "PATCH" and path.partition("?")[0].endswith(f"/{fleet.a}"):
            count += 1
            fleet.write(fleet.a, labels={"example.com/n": str(count)})

    with Flaky(str(fleet.made.kubeconfig), other) as server:
        kubeconfig = server.kubeconfig(tmp_path)
        assert fleet.run(kubeconfig=kubeconfig)["changed"]
        assert fleet.run("absent", deploy=None, kubeconfig=kubeconfig)["changed"]
        assert fleet.run(kubeconfig=kubeconfig)["changed"]
    assert count == 3
    assert fleet.metadata(fleet.a)["labels"] == {
        **fleet.start[fleet.a]["labels"], **WANTED, "example.com/n": str(count)}


def test_a_name_that_is_no_node_changes_nothing(fleet: Fleet) -> None:
    with pytest.raises(InputError, match="no-such-node"):
        fleet.run(nodes=[fleet.a, "no-such-node"])
    assert fleet.all_metadata() == fleet.start


def test_from_a_playbook_without_a_connection(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of the play is unreachable and is not contacted; a kubeconfig of the environment is not used."""
    options = {"state": "present", "target": "node", "nodes": fleet.names, "deploy": fleet.deploy}

    def label(*words: str, **more: str) -> user.Run:
        task = {"name": "Label", "gpuops.nvidia.gpu_labels": {**options, **more}}
        return play(tmp_path, [task], "-i", "192.0.2.1,", *words, hosts="all")

    kubeconfig = str(fleet.made.kubeconfig)
    with monkeypatch.context() as patch:
        patch.setenv("KUBECONFIG", kubeconfig)
        refused = label()
    assert refused.rc and "kubeconfig" in refused.output and fleet.all_metadata() == fleet.start
    shown = label("--check", "--diff", kubeconfig=kubeconfig)
    assert shown.rc == 0, shown.output
    assert f"+label {D}driver=true" in shown.output and "changed=1" in shown.output
    assert fleet.all_metadata() == fleet.start
    assert [f"changed={count}" in label(kubeconfig=kubeconfig).output for count in (1, 0)] == [True, True]
