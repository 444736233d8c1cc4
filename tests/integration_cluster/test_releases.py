# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml from one release of the GPU Operator to another in place, on a cluster with pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes
from tests.integration_cluster import plays
from tests.integration_cluster.conftest import Audit, occupied
from tests.waiting import until

SPACE = "gpu-operator"
OLD, NEW = "24.6.2", "26.7.0"


class Site:
    """A cluster with two GPU Nodes that site.yml manages."""

    def __init__(self, made: clusters.Cluster, folder: Path) -> None:
        self.client, self.audit = Client(str(made.kubeconfig)), Audit(made.audit_log)
        self.kubeconfig, self.folder = str(made.kubeconfig), folder

    def run(self, release: str, **more: Any) -> str:
        """Runs site.yml, which ends when all is ready; returns its output."""
        self.audit.start()
        return plays.playbook(self.folder, "site", self.inventory(release, **more))

    def inventory(self, release: str, **more: Any) -> dict[str, Any]:
        """An inventory with all components of a release in the cluster."""
        return {"gpu_control": {"hosts": {"cluster": plays.LOCAL}, "vars": {
            "gpu_placement": "cluster", "gpu_kubeconfig": self.kubeconfig, "gpu_release": release, **more}}}

    def annotate(self, node: str, **annotations: str | None) -> None:
        """Sets the annotation of another run."""
        self.client.merge_patch("v1", "Node", node, None, {"metadata": {"annotations": annotations}})

    def writes(self) -> set[tuple[str, str]]:
        """C((verb, resource/name)) of the changes of that run."""
        return {(one["verb"], f"{one['resource']}/{one['name']}") for one in self.audit.writes
                if one["agent"].startswith("gpuops.nvidia")}

    def pods(self) -> dict[str, dict[str, str]]:
        """Maps DaemonSets to C({Node: uid}) of their pods that are not being removed."""
        found: dict[str, dict[str, str]] = {}
        for pod in self.client.list("v1", "Pod", namespace=SPACE):
            owner = next(iter(pod["metadata"].get("ownerReferences", ())), {"kind": "none"})
            if owner["kind"] == "DaemonSet" and "deletionTimestamp" not in pod["metadata"]:
                found.setdefault(owner["name"], {})[pod["spec"]["nodeName"]] = pod["metadata"]["uid"]
        return found

    def images(self) -> dict[str, str]:
        """Maps DaemonSets to the image tag of their first container."""
        return {one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2]
                for one in self.client.list("apps/v1", "DaemonSet", namespace=SPACE)}

    def labels(self) -> dict[str, dict[str, str]]:
        """Maps Nodes to our labels."""
        return {one["metadata"]["name"]: {key: value for key, value in one["metadata"]["labels"].items()
                                          if key.startswith("nvidia.com/")}
                for one in self.client.list("v1", "Node", metadata_only=True)}

    def classes(self) -> set[str]:
        """The RuntimeClasses."""
        return {one["metadata"]["name"] for one in self.client.list("node.k8s.io/v1", "RuntimeClass")}


@pytest.fixture(scope="module")
def site(empty: clusters.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with occupied(empty, *nodes.plain(2, 0, "a100-80", "ubuntu22.04")) as made:
        yield Site(made, tmp_path_factory.mktemp("releases"))


DRIVER = "nvidia-driver-daemonset"
STATE = "nvidia.com/gpu-driver-upgrade-state"
# DaemonSets whose outdated pods stay at the level never.
STAY = (DRIVER, "nvidia-mig-manager")
# Tags of the charts v24.6.2 and v26.7.0 (values.yaml), and of the driver that each prefers.
TAGS = {OLD: {"nvidia-container-toolkit-daemonset": "v1.16.2-ubuntu20.04", "nvidia-mig-manager": "v0.8.0-ubuntu20.04",
              "nvidia-device-plugin-daemonset": "v0.16.2-ubi8", DRIVER: "550.90.07-ubuntu22.04"},
        NEW: {"nvidia-container-toolkit-daemonset": "v1.20.0", "nvidia-mig-manager": "v0.15.0",
              "nvidia-device-plugin-daemonset": "v0.20.0"}}


def test_a_release_is_changed_in_place_and_back(site: Site) -> None:
    site.run(OLD)
    before, labels = site.pods(), site.labels()
    assert TAGS[OLD].items() <= site.images().items() and site.classes() == {"nvidia"}
    assert before[DRIVER].keys() == {"gpu-1", "gpu-2"} == {name for name in labels if labels[name]}

    said = site.run(NEW)
    after = site.pods()
    assert TAGS[NEW].items() <= site.images().items()
    assert site.classes() == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert {verb for verb, _what in site.writes()} == {"patch"}, "something was deleted"
    assert after.keys() == before.keys() and all(after.get(name) == before.get(name) for name in STAY)
    assert not any(set(after[name].values()) & set(before[name].values()) for name in after if name not in STAY)
    assert site.labels() == labels
    told = " ".join(said.split())
    assert "gpu-[1-2]" in told and "the pod is outdated (current image: " in told

    site.run(NEW)
    assert not site.writes() and site.pods() == after

    said = site.run(OLD)
    assert {what for verb, what in site.writes() if verb == "delete"} == {
        "runtimeclasses/nvidia-cdi", "runtimeclasses/nvidia-legacy", "roles/nvidia-gpu-feature-discovery",
        "rolebindings/nvidia-gpu-feature-discovery"}
    assert site.pods()[DRIVER] == before[DRIVER] and TAGS[OLD].items() <= site.images().items()
    assert "the pod is outdated" not in said
    assert site.labels() == labels


def test_the_playbook_upgrade_replaces_drivers_node_by_node(site: Site) -> None:
    """Below the level drain and outside of the maintenance windows nothing happens; check mode names the steps of the
    run; the next run changes nothing."""
    site.run(OLD)
    former = site.pods()
    said = plays.playbook(site.folder, "upgrade", site.inventory(NEW))
    assert site.pods()[DRIVER] == former[DRIVER] and "the pod is outdated" in " ".join(said.split())

    # Three days from now, so the windows are closed for as long as the test takes.
    day = datetime.now(timezone.utc) + timedelta(days=3)
    opening = f"the maintenance windows are closed until {day:%a %Y-%m-%d} 12:00 (UTC)"
    closed = site.inventory(NEW, gpu_disruption="drain", gpu_maintenance_windows=[
        {"days": [f"{day:%a}".lower()], "start": "12:00", "hours": 1}])
    for words in (("--check",), (), ("--diff",)):
        site.audit.start()
        done = plays.run(site.folder, "upgrade", closed, *words)
        assert done.rc == 0 and f"gpu_maintenance_windows: {opening}" in " ".join(done.output.split()), done.output
        result = done.result("cluster", "node_upgrade")
        assert [(one["node"], one["state"]) for one in result["nodes"]] == [("gpu-1", "pending"), ("gpu-2", "pending")]
        assert all(opening in one["reason"] for one in result["nodes"]) and result["plan"] == []
        assert result["next_opening"] == f"{day:%Y-%m-%d}T12:00:00Z" and site.pods()[DRIVER] == former[DRIVER]
        # The level is in the DaemonSets of the driver and of the MIG manager.
        assert site.writes() == (set() if words else {("patch", f"daemonsets/{name}") for name in STAY})

    drained = site.inventory(NEW, gpu_disruption="drain", gpu_maintenance_windows=[{"start": "00:00", "hours": 24}])
    ahead = plays.run(site.folder, "upgrade", drained, "--check").result("cluster", "node_upgrade")
    site.audit.start()
    done = plays.run(site.folder, "upgrade", drained)
    assert done.rc == 0, done.output
    result = done.result("cluster", "node_upgrade")
    assert [one["id"] for one in result["plan"]] == [one["id"] for one in ahead["plan"]]
    assert [(one["node"], one["state"]) for one in result["nodes"]] == [("gpu-1", "upgraded"), ("gpu-2", "upgraded")]
    after = site.pods()
    assert after[DRIVER].keys() == {"gpu-1", "gpu-2"} and not set(after[DRIVER].values()) & set(former[DRIVER].values())
    # The second Node is taken out of service after the first one is back.
    writes = [one["name"] for one in site.audit.writes
              if one["resource"] == "nodes" and one["agent"].startswith("gpuops.nvidia")]
    assert set(writes) == {"gpu-1", "gpu-2"} and writes == sorted(writes)
    assert all(labels[STATE] == "upgrade-done" and "paused" not in str(labels) for labels in site.labels().values())

    site.audit.start()
    again = plays.run(site.folder, "upgrade", drained)
    assert again.rc == 0 and not site.writes() and site.pods() == after


def test_pods_follow_what_they_read_and_go_with_their_component(site: Site) -> None:
    """Only the exporter reads the counters; the device plugin and feature discovery read the sharing configuration."""
    counters = {"gpu_policy": metrics("DCGM_FI_DEV_GPU_TEMP, gauge, T")}
    site.run(OLD, gpu_sharing=shared(2), **counters)
    before = site.pods()
    counters["gpu_policy"] = metrics("DCGM_FI_DEV_SM_CLOCK, gauge, C")
    site.run(OLD, gpu_sharing=shared(2), **counters)
    counted = site.pods()
    assert restarted(before, counted) == {"nvidia-dcgm-exporter"}
    site.run(OLD, gpu_sharing=shared(4), **counters)
    here, labels = site.pods(), site.labels()
    assert restarted(counted, here) == {"nvidia-device-plugin-daemonset", "gpu-feature-discovery"}

    label = "nvidia.com/gpu.deploy.dcgm-exporter"
    assert labels["gpu-1"][label] == "true"
    site.run(OLD, gpu_sharing=shared(4), gpu_policy={"dcgmExporter": {"enabled": False}})
    # They go after the run: a garbage collector takes them.
    until(lambda: "nvidia-dcgm-exporter" not in site.pods(), "the exporter's pods go")
    assert site.pods() == {name: pods for name, pods in here.items() if name != "nvidia-dcgm-exporter"}
    assert site.labels() == {node: {key: value for key, value in mine.items() if key != label}
                             for node, mine in labels.items()}
    site.run(OLD, gpu_sharing=shared(4), **counters)
    assert site.labels() == labels
    assert restarted(here, site.pods()) == {"nvidia-dcgm-exporter"}


def test_a_node_that_cannot_be_taken_out_of_service_is_skipped_and_named(site: Site) -> None:
    """Another run holds the Node. The driver of the other Node changes, and so do the other operands; the run fails,
    and so does its preview."""
    if DRIVER not in site.pods():
        site.run(OLD)
    before = site.pods()[DRIVER]
    with subprocess.Popen(["sleep", "600"]) as other:
        held = Holder.of_process(other.pid).text
        site.annotate("gpu-1", **{HELD: held})
        try:
            ahead, done = (plays.run(site.folder, "site", site.inventory(
                OLD, gpu_disruption="drain", preflight_timeout=60,
                gpu_policy={"driver": {"usePrecompiled": True, "version": "535"}, "dcgmExporter": {"enabled": False}}
            ), *words) for words in (["--check"], []))
        finally:
            site.annotate("gpu-1", **{HELD: None})
            other.kill()
    assert done.rc == ahead.rc == 2, ahead.output + done.output
    (problem,), (expected,) = done.errors(), ahead.errors()
    assert problem.replace("have not been", "will not be").startswith(expected), expected
    assert problem.startswith("The driver and MPS pods of gpu-1 have not been removed or replaced. "
                              f"gpu-1: Node gpu-1 is held by another run ({held})."), problem
    (new,) = (pods for name, pods in site.pods().items() if name.startswith(f"{DRIVER}-"))
    assert new.keys() == {"gpu-2"} and not set(new.values()) & set(before.values())
    left = site.client.list("v1", "Pod", SPACE, field_selector="spec.nodeName=gpu-1")
    assert before["gpu-1"] in [pod["metadata"]["uid"] for pod in left if "deletionTimestamp" not in pod["metadata"]]
    until(lambda: "nvidia-dcgm-exporter" not in site.images(), "the exporter goes")


def metrics(line: str) -> dict[str, Any]:
    """A policy with its own counters."""
    return {"dcgmExporter": {"config": {"create": True, "name": "metrics", "data": f"{line}\n"}}}


def shared(replicas: int) -> dict[str, Any]:
    """Shares each GPU between this number of pods."""
    return {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}}


def restarted(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> set[str]:
    """The DaemonSets whose pods have all been replaced."""
    changed = {name for name in before if before[name] != after[name]}
    assert after.keys() == before.keys()
    assert not any(set(before[name].values()) & set(after[name].values()) for name in changed)
    return changed
