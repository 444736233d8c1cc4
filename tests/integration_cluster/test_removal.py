# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A removal ends driver pods Node by Node, on a real API server with its own controllers and disruption budgets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import left_behind
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.node_by_node import Terms

from tests import processes
from tests.integration_cluster.test_drain import Yard, yard  # noqa: F401
from tests.integration_cluster.world import release

LABEL = "nvidia.com/gpu.deploy.driver"
POD = {"app": "own-driver", "app.kubernetes.io/component": "nvidia-driver"}


@pytest.fixture
def driven(yard: Yard) -> Iterator[Yard]:  # noqa: F811
    """The Nodes with a driver pod on each, and the objects that these need."""
    for node in yard.nodes:
        yard.mark(node, **{LABEL: "true"})
    yard.open(yard.nodes[1])
    marks = objects.marks("driver")
    pod = {"metadata": {"labels": POD}, "spec": {"nodeSelector": {LABEL: "true", "yard": yard.name}, "containers": [
        {"name": "x", "image": "example.org/x:1"}]}}
    for one in ({"apiVersion": "v1", "kind": "ServiceAccount"},
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {
                    "selector": {"matchLabels": POD}, "updateStrategy": {"type": "OnDelete"}, "template": pod}}):
        yard.client.apply({**one, "metadata": {"name": "driver", "namespace": yard.name, "labels": marks}})
    yard.until(lambda: yard.get("daemonset", "driver").get("status", {}).get("numberReady") == 2)
    yield yard
    yard.client.delete("v1", "Namespace", yard.name)  # what a test leaves in it is ours


def drivers(yard: Yard) -> list[str]:  # noqa: F811
    """The Nodes with a driver pod."""
    return sorted(one["spec"]["nodeName"] for one in yard.client.list("v1", "Pod", yard.name, "app=own-driver"))


def as_before(yard: Yard) -> bool:  # noqa: F811
    nodes = [yard.client.get("v1", "Node", name) or {} for name in yard.nodes]
    return not any(one["spec"].get("unschedulable") or left_behind(one["metadata"].get("annotations") or {})
                   for one in nodes)


def remove(yard: Yard, check: bool = False, **more: Any) -> dict[str, Any]:  # noqa: F811
    return deliver.absent(yard.client, ["driver"], 60, check, lambda line: None, Terms(
        Holder.of_run(), "drain", **{"timeout": 60, "evictions": EvictionOptions(), **more}))


def test_one_node_after_the_other(driven: Yard, audit: Any) -> None:
    """The workload has a pod on each Node, one of which must always be available."""
    driven.deploy("server", replicas=2, budget=1)
    preview = remove(driven, check=True)
    audit.start()
    done = remove(driven)
    assert drivers(driven) == [] and as_before(driven)
    assert driven.client.list("apps/v1", "ControllerRevision", driven.name, "app=own-driver") == []
    assert [one["id"] for one in done["plan"] if "evict" not in one["id"]] == [
        one["id"] for one in preview["plan"] if "evict" not in one["id"]]
    writes = [f"{one['verb']} {one['resource']} {one['name']}" for one in audit.writes
              if one["agent"] == "gpuops.nvidia" and one["code"] < 400]
    first, second = (one for one in writes if one.startswith("delete pods"))
    assert writes.index("delete daemonsets driver") == 0
    between = writes[writes.index(first) + 1:writes.index(second)]
    assert between[0] == f"patch nodes {driven.nodes[0]}" and between[1] == f"patch nodes {driven.nodes[1]}"
    assert writes[-1] == "delete serviceaccounts driver"
    assert writes[-2].startswith("delete controllerrevisions driver-")


def test_a_node_is_passed_over_and_the_next_run_finishes_it(driven: Yard) -> None:
    """The disruption budget requires the only pod of the workload."""
    driven.deploy("server", budget=1)
    (node,) = (name for name in driven.nodes if "server" in driven.pods(name))
    with pytest.raises(ClusterError, match="disruption budget server") as caught:
        remove(driven, timeout=2)
    assert list(caught.value.details["nodes"]) == [node] == drivers(driven) and as_before(driven)
    assert driven.client.get("apps/v1", "DaemonSet", "driver", driven.name) is None
    assert driven.get("serviceaccount", "driver")
    driven.tool("--namespace", driven.name, "delete", "poddisruptionbudget", "server")
    remove(driven)
    assert drivers(driven) == [] and as_before(driven)
    assert driven.client.get("v1", "ServiceAccount", "driver", driven.name) is None


def test_site_ends_a_driver_that_is_not_wanted_any_more_node_by_node(driven: Yard, audit: Any) -> None:
    driven.deploy("server", replicas=2, budget=1)
    wanted = objects.wanted({"other": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "other", "namespace": driven.name}}]})
    deliver.present(driven.client, wanted, ["other"], False)
    audit.start()
    done = deliver.present(driven.client, wanted, ["driver", "other"], False, level="drain")
    assert drivers(driven) == [] == done["pending"] and as_before(driven)
    assert driven.client.get("v1", "ServiceAccount", "driver", driven.name) is None
    writes = [f"{one['verb']} {one['resource']}" for one in audit.writes
              if one["agent"] == "gpuops.nvidia" and one["code"] < 400]
    first = writes.index("delete pods")
    assert writes[0] == "delete daemonsets" and writes[first + 1:first + 3] == ["patch nodes", "patch nodes"]


def test_a_killed_run_is_continued(driven: Yard) -> None:
    """The run waits for a disruption budget, with a Node out of service."""
    driven.deploy("server", budget=1)
    (node,) = (name for name in driven.nodes if "server" in driven.pods(name))

    def waits() -> bool:
        one = driven.client.get("v1", "Node", node) or {}
        return left_behind(one["metadata"].get("annotations") or {}) and bool(one["spec"].get("unschedulable"))

    given = {"state": "absent", "components": ["driver"], "kubeconfig": str(driven.made.kubeconfig),
             "disruption": "drain", "max_unavailable": "100%"}
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-m", "gpuops.nvidia.operands", "-a",
               json.dumps(given)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as run:
        try:
            driven.until(waits)
        finally:
            processes.kill(run.pid)
    assert not as_before(driven)
    assert driven.client.get("apps/v1", "DaemonSet", "driver", driven.name) is None
    driven.tool("--namespace", driven.name, "delete", "poddisruptionbudget", "server")
    remove(driven)
    assert drivers(driven) == [] and as_before(driven)
    assert driven.client.get("v1", "ServiceAccount", "driver", driven.name) is None


def test_a_driver_that_another_one_replaces_goes_node_by_node(driven: Yard, audit: Any) -> None:
    """The new DaemonSet selects the same pods, so it would adopt the former ones and end them at once."""
    driven.deploy("server", replicas=2, budget=1)
    former = driven.get("daemonset", "driver")["spec"]
    wanted = objects.wanted({"driver": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "driver", "namespace": driven.name}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "precompiled", "namespace": driven.name},
         "spec": {"selector": {"matchLabels": {"app": "own-driver"}}, "updateStrategy": {"type": "OnDelete"},
                  "template": {"metadata": {"labels": POD}, "spec": {
                      "nodeSelector": former["template"]["spec"]["nodeSelector"],
                      "containers": [{"name": "x", "image": "example.org/x:2"}]}}}}]})

    def run(**more: Any) -> dict[str, Any]:
        return deliver.present(driven.client, wanted, ["driver"], more.pop("check", False), level="drain",
                               terms=Terms(Holder.of_run(), "drain", timeout=60), **more)

    preview = run(check=True)
    audit.start()
    done = run()
    assert done["pending"] == [] and as_before(driven)
    assert [one["id"] for one in done["plan"] if "evict" not in one["id"]] == [
        one["id"] for one in preview["plan"] if "evict" not in one["id"]]
    pods = driven.client.list("v1", "Pod", driven.name, "app.kubernetes.io/component=nvidia-driver")
    assert sorted(one["spec"]["nodeName"] for one in pods) == driven.nodes
    assert {one["metadata"]["ownerReferences"][0]["name"] for one in pods} == {"precompiled"}
    writes = [f"{one['verb']} {one['resource']} {one['name']}" for one in audit.writes if one["code"] < 400]
    ours = [one for one in writes if one.startswith("delete pods driver-")]
    # Each former pod is deleted once, by the run, with its Node out of service.
    assert len(ours) == 2
    assert not run()["changed"]


def test_a_driver_ends_on_a_node_that_loses_its_label_and_its_daemon_set_stays(driven: Yard) -> None:
    """The controller ends the pod as soon as the label is paused, after the workload has ended."""
    driven.deploy("server", replicas=2, budget=1)
    live = driven.get("daemonset", "driver")["spec"]
    wanted = objects.wanted({"driver": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "driver", "namespace": driven.name}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "driver", "namespace": driven.name},
         "spec": {"selector": live["selector"], "updateStrategy": {"type": "OnDelete"}, "template": {
             "metadata": {"labels": POD}, "spec": {"nodeSelector": live["template"]["spec"]["nodeSelector"],
                                                   "containers": [{"name": "x", "image": "example.org/x:1"}]}}}}]})
    leaves, stays = driven.nodes

    def run(check: bool = False) -> dict[str, Any]:
        return deliver.present(driven.client, wanted, ["driver"], check, level="drain", leaving={"driver": [leaves]},
                               terms=Terms(Holder.of_run(), "drain", timeout=60))

    preview = run(check=True)
    done = run()
    assert done["ended_on"] == [leaves] == preview["ended_on"] and done["problems"] == [] and drivers(driven) == [stays]
    assert as_before(driven) and driven.get("daemonset", "driver")
    assert [one["id"] for one in done["plan"] if "evict" not in one["id"]] == [
        one["id"] for one in preview["plan"] if "evict" not in one["id"]]
    assert (driven.client.get("v1", "Node", leaves) or {})["metadata"]["labels"][LABEL] == "paused-for-driver-upgrade"
    assert not run()["changed"]


def test_an_mps_daemon_that_moves_goes_node_by_node(yard: Yard) -> None:  # noqa: F811
    """The new DaemonSet exists from the beginning, and no Node ever has two of its pods."""
    label, app = "nvidia.com/gpu.deploy.device-plugin", {"app": objects.MPS_DAEMON}
    for node in yard.nodes:
        yard.mark(node, **{label: "true"})
    yard.open(yard.nodes[1])
    yard.deploy("server", replicas=2, budget=1)

    def run(space: str, level: str = "drain") -> dict[str, Any]:
        wanted = objects.wanted({"device_plugin": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": objects.MPS_DAEMON, "namespace": space},
             "spec": {"selector": {"matchLabels": app}, "template": {"metadata": {"labels": app}, "spec": {
                 "nodeSelector": {label: "true", "yard": yard.name},
                 "containers": [{"name": "x", "image": "example.org/x:1"}]}}}}]})
        return deliver.present(yard.client, wanted, ["device_plugin"], False, level=level,
                               terms=Terms(Holder.of_run(), level, timeout=60))

    def daemons() -> list[tuple[str, str]]:
        pods = yard.client.list("v1", "Pod", label_selector=f"app={objects.MPS_DAEMON}")
        return sorted((one["spec"]["nodeName"], one["metadata"]["namespace"]) for one in pods)

    other = f"{yard.name}-other"
    run(yard.name)
    yard.until(lambda: yard.get("daemonset", objects.MPS_DAEMON).get("status", {}).get("numberReady") == 2)
    assert len(run(other, "idle")["pending"]) == 2 and daemons() == [(node, yard.name) for node in yard.nodes]
    done = run(other)
    assert done["pending"] == [] == done["problems"] and as_before(yard)
    assert daemons() == [(node, other) for node in yard.nodes]
    assert [(yard.client.get("v1", "Node", node) or {})["metadata"]["labels"][label] for node in yard.nodes] == [
        "true", "true"]
    for space in (yard.name, other):
        release(yard.client, space)  # what the test leaves in it is ours
