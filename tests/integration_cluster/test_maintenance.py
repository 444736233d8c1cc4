# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks site, mig and remove on hosts that are Nodes: a disruptive change takes the Node out of service."""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import maintenance, mig_labels

from lab.controlplane import cluster as clusters
from tests.integration import user
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.test_mig import CONFIG, PLUGIN, STATE, Site, ours, site  # noqa: F401 - a fixture

Object = dict[str, Any]
LAYOUT = {"mig_manager_selected": "all-1g.10gb"}


def run(site: Site, *words: str, disruption: str = "drain", **more: Any) -> user.Run:  # noqa: F811
    """Runs C(ansible-playbook gpuops.nvidia.site) for a MIG layout; nothing is delivered in the cluster."""
    placed = {"gpu_placement": {**dict.fromkeys(PARTS, "none"), "mig_manager": "host"}}
    return site.play(*words, disruption=disruption, playbook="site", **{**LAYOUT, **placed, **more})


PARTS = ("nfd", "driver", "container_toolkit", "validator", "device_plugin", "feature_discovery", "dcgm",
         "dcgm_exporter", "mig_manager", "node_status_exporter", "cuda")


class Watcher:
    """The writes of the collection to Nodes and pods in their order, from the audit log."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        audit.start()

    @property
    def record(self) -> list[str]:
        """C(evict) for each eviction, C(Node NAME) for each write of a Node that did not lose a race."""
        ours = [one for one in self.audit.writes if one["agent"] == "gpuops.nvidia" and one["code"] != 409]
        return ["evict" if one["uri"].endswith("/eviction") else f"Node {one['name']}" for one in ours]


# Table 8 of the design: whether a layout comes by level, with a GPU pod on the first Node and none on the second.
@pytest.mark.parametrize(("level", "first", "second", "evictions"), [
    ("never", 0, 0, 0), ("idle", 0, 14, 0), ("drain", 14, 14, 1)])
def test_what_each_level_does_to_nodes(site: Site, audit: Audit, level: str, first: int, second: int,  # noqa: F811
                                       evictions: int) -> None:
    site.deploy("trainer")
    busy, free = site.nodes
    plugins = {node: site.plugin(node) for node in site.nodes}
    watcher = Watcher(audit)
    preview = run(site, "--check", "--diff", disruption=level)
    assert preview.rc == 0, preview.output
    assert not watcher.record
    done = run(site, "--diff", disruption=level)
    assert done.rc == 0, done.output
    assert (site.instances(busy), site.instances(free)) == (first, second), done.output
    assert watcher.record.count("evict") == evictions
    for node, changed in ((busy, first), (free, second)):
        # Held, cordoned, paused, put back; who is not changed is not written.
        assert watcher.record.count(f"Node {node}") == (3 + (level == "drain") if changed else 0)
        assert site.state(node) == (False, None) and site.metadata(node)["labels"][PLUGIN] == "true"
        assert not maintenance.left_behind(site.metadata(node).get("annotations") or {})
        if not changed:
            assert site.plugin(node) == plugins[node]
    assert done.output.count("MIG") and steps(done) == steps(preview)
    # With nothing to do on any host; what another level leaves undone, it has left undone after its preview as well.
    if level != "drain":
        return
    watcher = Watcher(audit)
    again = run(site, disruption=level)
    assert again.rc == 0 and not watcher.record and again.output.count("changed=0") == 3, again.output


# Takes the first GPU when the operands of the Node are paused: after the preview, before the module changes the host.
LATE = r"""
[ "$(told labels nvidia.com/gpu.deploy.device-plugin)" = paused-for-driver-upgrade ] || exit 0
export GPUSIM_STATE={gpus}
{gpusim} client list || {gpusim} client add --pid 424242 --gpu 0 late-job
"""


def test_a_process_that_comes_when_the_operands_are_paused_leaves_its_gpu_pending(site: Site) -> None:  # noqa: F811
    """At the level idle, the other GPU gets its layout, the Node is put back into service, and the run does not
    fail."""
    first = site.nodes[0]
    site.before(first, LATE.format(gpus=site.folder / first / "gpus", gpusim=site.library / "gpusim"))
    done = run(site, disruption="idle", hosts=(first,))
    assert done.rc == 0 and site.instances(first) == 7, done.output
    waiting = done.result(first, "mig_config")["pending"]
    assert waiting[0]["target"].endswith("late-job (424242)") and "this needs 'drain'" in waiting[0]["pending_reason"]
    assert site.state(first) == (False, None) and site.metadata(first)["labels"][PLUGIN] == "true"
    assert not maintenance.left_behind(site.metadata(first).get("annotations") or {})


@pytest.fixture(scope="module")
def partitioned(cluster: clusters.Cluster, kubectl: Kubectl, kubeconfig: str,
                tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a host that has its layout from site.yml, with the journal of the former one."""
    made = Site(cluster, kubectl, Client(kubeconfig), "partitioned", tmp_path_factory.mktemp("partitioned"))
    first = made.nodes[0]
    try:
        done = run(made, hosts=(first,))
        assert done.rc == 0 and made.instances(first) == 14, done.output
    finally:
        made.close()
    return made.folder / first


def partition(site: Site, host: Path) -> None:  # noqa: F811
    """Gives both hosts the state of this one."""
    for node in site.nodes:
        shutil.copytree(host / "state", site.folder / node / "state", dirs_exist_ok=True)
        shutil.copy(host / "gpus", site.folder / node / "gpus")
    assert [site.instances(node) for node in site.nodes] == [14, 14]


@pytest.mark.parametrize(("level", "first", "second", "evictions"), [
    ("never", 14, 14, 0), ("idle", 14, 0, 0), ("drain", 0, 0, 1)])
def test_a_removal_goes_through_the_node(site: Site, audit: Audit, partitioned: Path, level: str,  # noqa: F811
                                         first: int, second: int, evictions: int) -> None:
    """The former layout is restored, with a GPU pod on the first Node and none on the second."""
    partition(site, partitioned)
    site.deploy("trainer")
    busy, free = site.nodes
    watcher = Watcher(audit)
    preview = remove(site, "--check", "--diff", disruption=level)
    assert preview.rc == 0 and not watcher.record, preview.output
    done = remove(site, "--diff", disruption=level)
    assert done.rc == 0, done.output
    assert (site.instances(busy), site.instances(free)) == (first, second), done.output
    assert watcher.record.count("evict") == evictions and steps(done) == steps(preview)
    for node, left in ((busy, first), (free, second)):
        # Held, cordoned, paused, put back.
        assert watcher.record.count(f"Node {node}") == (0 if left else 3 + (level == "drain"))
        assert site.state(node) == (False, None) and site.metadata(node)["labels"][PLUGIN] == "true"
        assert not maintenance.left_behind(site.metadata(node).get("annotations") or {})


@pytest.mark.parametrize("level", ["never", "drain"])
def test_instances_in_free_space_come_under_pods_and_the_operands_learn_of_them(  # noqa: F811
        site: Site, audit: Audit, partitioned: Path, level: str) -> None:  # noqa: F811
    """The device plugin offers the instances that existed when it started. No pod is evicted for instances in free
    space."""
    first = site.nodes[0]
    partition(site, partitioned)
    state = site.folder / first / "half"
    state.write_text("".join(line + "\n" for line in site.gpusim(first, "show").splitlines()
                             if not line.startswith(("gi 1 ", "ci 1 "))))
    site.gpusim(first, "load", str(state))
    site.deploy("trainer")
    site.until(lambda: bool(site.plugin(first)))
    former = site.plugin(first)
    watcher = Watcher(audit)
    preview = run(site, "--check", "--diff", disruption=level, hosts=(first,))
    assert preview.rc == 0 and not watcher.record and site.instances(first) == 7, preview.output
    done = run(site, "--diff", disruption=level, hosts=(first,))
    assert done.rc == 0 and site.instances(first) == 14, done.output
    assert steps(done) == steps(preview) and f"+pause: device-plugin on Node {first}" in steps(done)
    assert watcher.record == [f"Node {first}"] * 3 and "trainer" in site.pods(), "held, paused, put back"
    assert site.state(first) == (False, None)
    site.until(lambda: site.plugin(first) not in ("", former))
    watcher = Watcher(audit)
    again = run(site, disruption=level, hosts=(first,))
    assert again.rc == 0 and not watcher.record, again.output


def test_a_removal_that_fails_on_a_node_fails_the_run_and_stops_those_after_it(  # noqa: F811
        site: Site, partitioned: Path) -> None:  # noqa: F811
    """A disruption budget prevents the first Node from being drained."""
    partition(site, partitioned)
    site.deploy("server", budget=1)
    done = remove(site, maintenance_drain_timeout=10)
    first, second = site.nodes
    assert done.rc == 2 and "The disruption budget server needs 1" in done.output, done.output
    assert f"Not begun: {first} failed before" in done.output
    assert (site.instances(first), site.instances(second)) == (14, 14) and "server" in site.pods()
    assert site.state(first) == (False, None) and site.metadata(first)["labels"][PLUGIN] == "true"


def test_a_removal_serves_the_hosts_although_a_node_was_passed_over(  # noqa: F811
        site: Site, partitioned: Path) -> None:  # noqa: F811
    """A disruption budget prevents the first Node from being drained: its MPS daemon stays, and so does its layout."""
    partition(site, partitioned)
    site.deploy("server", budget=1)
    pod = {"metadata": {"labels": {"app": objects.MPS_DAEMON}}, "spec": {
        "nodeSelector": {PLUGIN: "true"}, "containers": [{"name": "x", "image": "example.org/x:1"}]}}
    metadata = {"name": objects.MPS_DAEMON, "namespace": site.name, "labels": objects.marks("device_plugin")}
    site.client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    site.client.apply({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata,
        "spec": {"selector": {"matchLabels": {"app": objects.MPS_DAEMON}}, "template": pod}})
    first, second = site.nodes
    site.until(lambda: all(objects.MPS_DAEMON in site.pods(node) for node in site.nodes))
    done = site.play("--tags", "mig_manager,device_plugin", playbook="remove", maintenance_drain_timeout=3,
                     gpu_max_fail_percentage=50, **LAYOUT)
    assert done.rc == 2 and site.instances(second) == 0, done.output
    assert objects.MPS_DAEMON in site.pods(first) and objects.MPS_DAEMON not in site.pods(second)
    assert f"The driver and MPS pods of {first} have not been removed. {first}: " in "".join(done.errors()[-2:])
    assert site.instances(first) == 14 and "server" in site.pods(first)
    assert site.state(first) == site.state(second) == (False, None)
    site.client.delete("policy/v1", "PodDisruptionBudget", "server", site.name)
    done = site.play("--tags", "mig_manager,device_plugin", playbook="remove", **LAYOUT)
    assert done.rc == 0 and objects.MPS_DAEMON not in site.pods(first) and site.instances(first) == 0, done.output


def remove(site: Site, *words: str, disruption: str = "drain", **more: Any) -> user.Run:  # noqa: F811
    """Runs C(ansible-playbook gpuops.nvidia.remove) for MIG only."""
    return site.play("--tags", "mig_manager", *words, disruption=disruption, playbook="remove", **{**LAYOUT, **more})


def steps(done: user.Run) -> list[str]:
    """The steps in the diff."""
    return [line for line in done.output.splitlines() if line.startswith("+") and ": " in line]


def test_a_node_that_was_left_behind_comes_back_where_nothing_may_be_disturbed(site: Site) -> None:  # noqa: F811
    """Its host still has another layout, which is no failure at this level."""
    first = site.nodes[0]
    site.client.merge_patch("v1", "Node", first, None, {
        "metadata": {"annotations": {maintenance.REASON: "it failed", maintenance.cordon.ANNOTATION: "false"},
                     "labels": {PLUGIN: maintenance.PAUSED}}, "spec": {"unschedulable": True}})
    done = run(site, disruption="never", hosts=(first,))
    assert done.rc == 0 and site.instances(first) == 0, done.output
    assert site.state(first) == (False, None) and site.metadata(first)["labels"][PLUGIN] == "true"
    assert not maintenance.left_behind(site.metadata(first).get("annotations") or {})


def test_a_node_that_fails_stops_those_after_it_and_nobody_else(site: Site, audit: Audit) -> None:  # noqa: F811
    """A disruption budget prevents the first Node from being drained."""
    site.deploy("server", budget=1)
    first, second = site.nodes
    plugin = site.plugin(first)
    watcher = Watcher(audit)
    done = run(site, maintenance_drain_timeout=3)
    assert done.rc == 2, done.output
    assert f"Not begun: {first} failed before" in done.output and "The disruption budget server needs 1" in done.output
    assert (site.instances(first), site.instances(second)) == (0, 0) and "server" in site.pods()
    assert site.state() == (False, None) and site.metadata(first)["labels"][PLUGIN] == "true"
    assert site.plugin(first) == plugin != "" and f"Node {second}" not in watcher.record
    done = run(site, maintenance_drain_timeout=3, gpu_max_fail_percentage=50)
    assert done.rc == 2 and (site.instances(first), site.instances(second)) == (0, 14), done.output


def test_a_host_that_cannot_be_reached_keeps_no_other_from_its_layout(site: Site) -> None:  # noqa: F811
    first, second = site.nodes
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    done = run(site, only={first: gone})
    assert done.rc != 0 and site.instances(second) == 14, done.output
    strict = run(site, only={first: gone}, gpu_strict=True, mig_manager_selected="all-disabled")
    assert strict.rc != 0 and f"gpu_strict is set, and {first} failed" in strict.output
    assert site.instances(second) == 14


def test_what_a_killed_run_leaves_is_gone_after_the_next(site: Site) -> None:  # noqa: F811
    """The run is killed while an eviction waits: the Node is held, paused and cordoned. While that run is still alive,
    the Node is skipped, the other one is served, and the run fails, as check mode reports. The disruption budget of
    another pod no longer hinders the next run."""
    site.deploy("server", budget=1)
    first, second = site.nodes
    child = subprocess.Popen(["sleep", "60"])
    held = maintenance.Holder.of_process(child.pid)
    site.client.merge_patch("v1", "Node", first, None, {
        "metadata": {"annotations": {maintenance.HELD: held.text, maintenance.cordon.ANNOTATION: "false"},
                     "labels": {PLUGIN: maintenance.PAUSED}}, "spec": {"unschedulable": True}})
    for words in (["--check"], []):
        done = run(site, *words, gpu_max_fail_percentage=50)
        assert done.rc == 2 and f"Node {first} is held by another run ({held.text})" in str(done.errors()), done.output
        assert (site.instances(first), site.instances(second)) == (0, 0 if words else 14)
    child.send_signal(signal.SIGKILL)
    child.wait()
    site.client.delete("policy/v1", "PodDisruptionBudget", "server", site.name)
    done = run(site, hosts=(first,))
    assert done.rc == 0 and site.instances(first) == 14, done.output
    assert site.state() == (False, None) and site.metadata(first)["labels"][PLUGIN] == "true"
    assert not maintenance.left_behind(site.metadata(first).get("annotations") or {})


# Ends the run that holds the Node in the middle of a change: right before the module that changes the host.
KILLED = r"""
[ "$(told labels nvidia.com/mig.config.state)" = pending ] || exit 0
IFS=/ read -r _controller pid _rest <<< "$(told annotations gpuops.nvidia/held-by)"
kill -KILL "$pid"
exit 1
"""


def test_a_run_of_mig_that_was_killed_is_resumed(site: Site, audit: Audit) -> None:  # noqa: F811
    """The run of site.yml also resumes it, but does not write success, because the label does not request the
    layout."""
    first, second = site.nodes
    site.deploy("server", replicas=2, budget=1)
    site.open(second)
    site.label(first, **{CONFIG: "all-1g.10gb"})
    site.before(first, KILLED)
    watcher = Watcher(audit)
    killed = site.play(hosts=(first,))
    site.before(first)
    assert killed.rc == -signal.SIGKILL, killed.output
    # One pod after the other, as the budget has room for.
    assert "server" not in site.pods() and site.ready("server") >= 1
    assert [one["code"] for one in ours(audit) if one["uri"].endswith("/eviction")].count(201) == 2
    labels, annotations = (site.metadata(first)[part] for part in ("labels", "annotations"))
    assert (labels[STATE], labels[PLUGIN]) == ("pending", maintenance.PAUSED) and maintenance.HELD in annotations
    assert site.state(first) == (True, False) and site.instances(first) == 0
    site.until(lambda: site.ready("server") == 2)
    site.label(first, **{PLUGIN: mig_labels.PAUSED})  # as node_mig pauses it
    left = Left(site, first)
    for playbook, state, reason in (("mig", "success", ""), ("site", "failed", "A run was killed.")):
        left.restore()
        watcher = Watcher(audit)
        resume = site.play if playbook == "mig" else functools.partial(run, site)
        preview = resume("--check", "--diff", hosts=(first,))
        assert preview.rc == 0 and not watcher.record, preview.output
        done = resume("--diff", hosts=(first,))
        assert steps(done) == steps(preview) and f"+pause: device-plugin on Node {first}" in steps(done)
        assert done.rc == 0 and site.instances(first) == 14 and "evict" not in watcher.record, done.output
        assert site.stands(first) == (state, reason, []) and site.metadata(first)["labels"][PLUGIN] == "true"
        assert site.state(first) == (False, None)
        assert not maintenance.left_behind(site.metadata(first).get("annotations") or {})


class Left:
    """Stores the current state of a Node and its host, so that two playbooks can start from it."""

    def __init__(self, site: Site, node: str) -> None:  # noqa: F811
        self.site, self.node, self.host = site, node, site.folder / node
        self.former = site.metadata(node)
        self.kept = site.folder / f"{node}-left"
        shutil.copytree(self.host / "state", self.kept / "state")
        shutil.copy(self.host / "gpus", self.kept / "gpus")

    def restore(self) -> None:
        """Restores both; the device plugin follows its label."""
        shutil.rmtree(self.host / "state")
        shutil.copytree(self.kept / "state", self.host / "state")
        shutil.copy(self.kept / "gpus", self.host / "gpus")
        now = self.site.metadata(self.node)
        back = {part: {**dict.fromkeys(now.get(part) or {}), **self.former[part]} for part in ("labels", "annotations")}
        self.site.client.merge_patch("v1", "Node", self.node, None, {"metadata": back, "spec": {"unschedulable": True}})
        self.site.until(lambda: not self.site.plugin(self.node))


def test_mig_resumes_what_a_run_of_site_has_left_unless_it_still_works(site: Site, audit: Audit) -> None:  # noqa: F811
    first = site.nodes[0]
    child = subprocess.Popen(["sleep", "60"])
    held = maintenance.Holder.of_process(child.pid)
    site.client.merge_patch("v1", "Node", first, None, {
        "metadata": {"annotations": {maintenance.HELD: held.text, maintenance.cordon.ANNOTATION: "false"},
                     "labels": {PLUGIN: maintenance.PAUSED, CONFIG: "all-1g.10gb"}}, "spec": {"unschedulable": True}})
    watcher = Watcher(audit)
    done = site.play(hosts=(first,))
    assert done.rc == 2 and f"Node {first} is held by another run ({held.text})" in done.output, done.output
    assert not watcher.record and site.instances(first) == 0
    child.kill()
    child.wait()
    done = site.play(hosts=(first,))
    assert done.rc == 0 and site.instances(first) == 14, done.output
    assert site.stands(first) == ("success", "", []) and site.metadata(first)["labels"][PLUGIN] == "true"
    assert site.state(first) == (False, None)
    assert not maintenance.left_behind(site.metadata(first).get("annotations") or {})
