# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook mig on a real API server, with hosts on this machine that have simulated GPUs."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, mig_labels, node_lock
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState

from lab.controlplane import cluster as clusters
from lab.nvml.build import build
from tests.integration import user
from tests.integration_cluster import plays
from tests.integration_cluster.conftest import Kubectl
from tests.integration_cluster.test_drain import GPU, Yard

Object = dict[str, Any]
D, CONFIG, STATE = "nvidia.com/gpu.deploy.", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
PLUGIN, GFD = f"{D}device-plugin", f"{D}gpu-feature-discovery"
# A host of its own by a view of /var/lib that nobody else has; all of its modules run in it. Before each of them runs
# the script that a test has put there. Ansible sends a module as one long line: a file is read at once, standard input
# in pieces that Python puts together again and again, which takes longer than the module.
PYTHON = """#!/bin/sh
[ ! -x {folder}/before ] || {folder}/before >&2 || exit 1
exec unshare --mount sh -c '
    set -e
    mount --bind /var/lib {folder}/lib
    mount -t tmpfs tmpfs /var/lib
    mkdir /var/lib/dpkg /var/lib/gpuops
    mount --bind {folder}/lib/dpkg /var/lib/dpkg
    mount --bind {folder}/state /var/lib/gpuops
    export GPUSIM_STATE={folder}/gpus LD_LIBRARY_PATH={library}
    exec {python} "${{@:-/dev/stdin}}"' sh "$@"
"""
BEFORE = """#!/bin/bash
node={node}
kubectl() {{ (exec -a kubectl {program} --kubeconfig {kubeconfig} "$@") }}
told() {{ {python} -I -S {told} "$1" "$2"; }}
"""
# Prints a label or an annotation of a Node, in a fifth of the time that kubectl takes.
TOLD = """
import http.client, json, ssl, sys
context = ssl.create_default_context(cafile="{pki}/ca.crt")
context.load_cert_chain("{pki}/admin.crt", "{pki}/admin.key")
server = http.client.HTTPSConnection("127.0.0.1", {port}, context=context)
server.request("GET", "/api/v1/nodes/{node}")
print(json.load(server.getresponse())["metadata"].get(sys.argv[1], {{}}).get(sys.argv[2], ""))
"""
# MIG alone, on hosts; one part in the cluster, so that one is meant.
PLACEMENT = {**dict.fromkeys(components.NAMES, "none"), "mig_manager": "host", "device_plugin": "cluster"}


class Site(Yard):
    """Nodes that are hosts of an inventory, with a device plugin that runs on Nodes with its label."""

    def __init__(self, made: clusters.Cluster, tool: Kubectl, client: Client, name: str, folder: Path) -> None:
        super().__init__(made, tool, client, name)
        self.folder, self.library = folder, build()
        for node in self.nodes:
            host = folder / node
            for part in ("lib", "state"):
                (host / part).mkdir(parents=True)
            python = host / "python"
            python.write_text(PYTHON.format(folder=host, library=self.library, python=user.PYTHON))
            python.chmod(0o755)
            self.gpusim(node, "init", "--driver", "595.91.07", "a100-80=2")
            self.label(node, **{PLUGIN: "true", GFD: "false"})
        app = f"{name}-plugin"
        self.client.apply({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": app, "namespace": name},
                           "spec": {"selector": {"matchLabels": {"app": app}}, "template": {
                               "metadata": {"labels": {"app": app}},
                               "spec": {"nodeSelector": {PLUGIN: "true", "kubernetes.io/os": "linux"},
                                        "tolerations": [{"operator": "Exists"}],
                                        "containers": [{"name": "x", "image": "example.org/x:1"}]}}}})
        self.until(lambda: all(self.plugin(node) for node in self.nodes))

    def gpusim(self, node: str, *words: str) -> str:
        """The simulated GPUs of a host."""
        return subprocess.run([str(self.library / "gpusim"), *words], check=True, capture_output=True, text=True,
                              env={**os.environ, "GPUSIM_STATE": str(self.folder / node / "gpus")}).stdout

    def instances(self, node: str) -> int:
        """How many MIG instances the host has."""
        return sum(line.startswith("gi ") for line in self.gpusim(node, "show").splitlines())

    def label(self, node: str, **labels: str | None) -> None:
        """Sets a label as a user does."""
        self.client.merge_patch("v1", "Node", node, None, {"metadata": {"labels": labels}}, field_manager="user")

    def metadata(self, node: str) -> Object:
        found = self.client.get("v1", "Node", node)
        assert found is not None
        meta: Object = found["metadata"]
        return meta

    def stands(self, node: str) -> tuple[str, str, list[str]]:
        """(state, reason, operands that are paused)."""
        found = mig_labels.read(NodeState.read({"metadata": self.metadata(node)}))
        return found.state, found.reason, list(found.paused)

    def plugin(self, node: str) -> str:
        """The uid of the running device plugin pod on a Node; empty if there is none."""
        pods = self.client.list("v1", "Pod", namespace=self.name, label_selector=f"app={self.name}-plugin",
                                field_selector=f"spec.nodeName={node}")
        return next((pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Running"), "")

    def before(self, node: str, script: str = "") -> None:
        """Sets a bash script that runs before each module on a host, with kubectl and a variable node; empty removes
        it."""
        path, told = (self.folder / node / name for name in ("before", "told.py"))
        told.write_text(TOLD.format(pki=self.made.folder / "pki", port=self.made.ports["api"], node=node))
        path.write_text(BEFORE.format(program=self.tool.program, kubeconfig=self.tool.kubeconfig, node=node, told=told,
                                      python=user.PYTHON) + script)
        path.chmod(0o755 if script else 0o644)

    def play(self, *words: str, disruption: str = "drain", hosts: tuple[str, ...] = (),
             only: dict[str, Object] | None = None, playbook: str = "mig", **variables: Any) -> user.Run:
        """Runs C(ansible-playbook gpuops.nvidia.mig) as a user does. only: maps hosts to variables of their own."""
        local = {"ansible_connection": "local", "ansible_become": False}
        inventory = {"all": {"vars": {"gpu_kubeconfig": str(self.made.kubeconfig), "gpu_placement": PLACEMENT,
                                      "gpu_disruption": disruption, "mig_manager_boot": False, **variables}},
                     "gpu_hosts": {"hosts": {node: {**local, "ansible_python_interpreter":
                                                    str(self.folder / node / "python"),
                                                    **(only or {}).get(node, {})}
                                             for node in hosts or self.nodes}},
                     "gpu_control": {"hosts": {"cluster": {**local, "ansible_python_interpreter": str(user.PYTHON)}}}}
        return plays.run(self.folder, playbook, inventory, *words)


@pytest.fixture
def site(cluster: clusters.Cluster, kubectl: Kubectl, client: Client, fresh: Callable[[], str],
         tmp_path: Path) -> Iterator[Site]:
    """Two hosts with MIG off."""
    made = Site(cluster, kubectl, client, fresh(), tmp_path)
    yield made
    made.close()


def ours(audit: Any) -> list[Object]:
    """The writes of the collection. A write that has lost a race (409) is repeated."""
    return [one for one in audit.writes if one["agent"] == "gpuops.nvidia" and one["code"] != 409]


def test_labels_are_served_and_then_nothing_more_is_done(site: Site, audit: Any) -> None:
    first, second = site.nodes
    site.deploy("trainer")
    for node in site.nodes:
        site.label(node, **{CONFIG: "all-1g.10gb"})
    former = site.plugin(first)
    audit.start()
    preview = site.play("--check", "--diff")
    assert preview.rc == 0, preview.output
    assert not ours(audit) and site.instances(first) == 0
    done = site.play("--diff")
    assert done.rc == 0, done.output

    def steps(run: user.Run) -> list[str]:
        return [line for line in run.output.splitlines() if line.startswith("+") and ": " in line]

    assert steps(done) == steps(preview) and f"+pause: device-plugin on Node {first}" in steps(done)
    assert "+evict: Pod" in done.output and f"+resume: device-plugin on Node {second}" in steps(done)
    for node in site.nodes:
        assert site.instances(node) == 14 and site.stands(node) == ("success", "", [])
        assert site.metadata(node)["labels"][GFD] == "false" and site.state(node) == (False, None)
        assert {key for key in site.metadata(node)["labels"] if key.startswith(D)} == {PLUGIN, GFD}
    site.until(lambda: site.plugin(first) not in ("", former))
    site.until(lambda: site.pods().count("trainer") == 1)
    audit.start()
    again = site.play("--diff")
    assert again.rc == 0 and not ours(audit) and again.output.count("changed=0") == 3, again.output


def test_a_failed_node_says_why_and_stops_further_ones(site: Site) -> None:
    first, second = site.nodes
    site.label(first, **{CONFIG: "all-9g.90gb"})
    site.label(second, **{CONFIG: "all-1g.10gb"})
    run = site.play()
    assert run.rc == 2 and f"Node {first} does not have the layout all-9g.90gb" in run.output
    state, reason, paused = site.stands(first)
    assert state == "failed" and reason.startswith("all-9g.90gb: ") and not paused
    assert site.stands(second) == ("", "", []) and site.instances(second) == 0
    assert f"Not begun: {first} failed before" in run.output
    run = site.play(gpu_max_fail_percentage=50)
    assert run.rc == 2 and site.stands(first)[0] == "failed", run.output
    assert site.stands(second) == ("success", "", []) and site.instances(second) == 14


def test_what_is_not_allowed_is_said_and_nothing_is_stopped(site: Site) -> None:
    first = site.nodes[0]
    site.label(first, **{CONFIG: "all-1g.10gb"})
    former = site.plugin(first)
    run = site.play(disruption="never", hosts=(first,))
    assert run.rc == 2
    state, reason, paused = site.stands(first)
    assert state == "failed" and "gpu_disruption is 'never', this needs 'idle'" in reason and not paused
    assert site.plugin(first) == former and site.state() == (False, None)


def test_a_pod_that_nobody_brings_back_stops_nothing_but_the_run(site: Site) -> None:
    first = site.nodes[0]
    site.client.apply({"apiVersion": "v1", "kind": "Pod",
                       "metadata": {"name": "alone", "namespace": site.name, "labels": {"app": "alone"}},
                       "spec": {"nodeName": first, "containers": [{
                           "name": "x", "image": "example.org/x:1", "resources": {"limits": {GPU: "1"}}}]}})
    site.label(first, **{CONFIG: "all-1g.10gb"})
    former = site.plugin(first)
    run = site.play(hosts=(first,))
    assert run.rc == 2
    state, reason, paused = site.stands(first)
    assert state == "failed" and "no controller creates it again" in reason and not paused
    assert site.plugin(first) == former and site.state() == (False, None) and site.instances(first) == 0
    # It has a GPU, though it does not use it now.
    run = site.play(disruption="idle", hosts=(first,))
    assert run.rc == 2 and "alone" in site.pods(), run.output
    state, reason, paused = site.stands(first)
    assert state == "failed" and "/alone: gpu_disruption is 'idle', this needs 'drain' or higher" in reason, reason
    assert site.plugin(first) == former and not paused and site.instances(first) == 0


def test_free_space_is_used_under_pods_and_the_operands_learn_of_it(site: Site, audit: Any) -> None:
    """Nothing is disturbed except operands that know only the instances that existed when they started."""
    first = site.nodes[0]
    site.label(first, **{CONFIG: "all-1g.10gb"})
    done = site.play(hosts=(first,))
    assert done.rc == 0 and site.instances(first) == 14, done.output
    state = site.folder / first / "half"
    state.write_text("".join(line + "\n" for line in site.gpusim(first, "show").splitlines()
                             if not line.startswith(("gi 1 ", "ci 1 "))))
    site.gpusim(first, "load", str(state))
    assert site.instances(first) == 7
    site.deploy("trainer")
    site.until(lambda: bool(site.plugin(first)))
    former = site.plugin(first)
    audit.start()
    done = site.play("--diff", disruption="never", hosts=(first,))
    assert done.rc == 0 and site.instances(first) == 14, done.output
    assert [(one["name"], one["code"]) for one in ours(audit)] == [(first, 200)] * 5, (
        "held, paused, pending, success, given back")
    assert site.stands(first) == ("success", "", []) and "trainer" in site.pods()
    assert node_lock.HELD not in (site.metadata(first).get("annotations") or {})
    site.until(lambda: site.plugin(first) not in ("", former))


def test_a_budget_that_stays_leaves_the_node_as_it_was(site: Site) -> None:
    first = site.nodes[0]
    site.deploy("server", budget=1)
    site.label(first, **{CONFIG: "all-1g.10gb"})
    run = site.play(hosts=(first,), maintenance_drain_timeout=3)
    assert run.rc == 2
    state, reason, paused = site.stands(first)
    assert state == "failed" and "The disruption budget server needs 1 healthy pods" in reason and not paused
    assert site.state() == (False, None) and site.instances(first) == 0 and "server" in site.pods()


@pytest.mark.parametrize("asked", [True, False])
def test_what_a_killed_run_left_is_put_right(site: Site, asked: bool) -> None:
    """The killed run had paused and cordoned the Node; the request can have been withdrawn since."""
    first = site.nodes[0]
    site.label(first, **{CONFIG: "all-disabled" if asked else None, STATE: "pending", PLUGIN: mig_labels.PAUSED})
    gone = node_lock.Holder.of_process(0)
    site.client.merge_patch("v1", "Node", first, None, {
        "metadata": {"annotations": {cordon.ANNOTATION: "false", node_lock.HELD: gone.text}},
        "spec": {"unschedulable": True}})
    site.until(lambda: not site.plugin(first))
    run = site.play(hosts=(first,))
    assert run.rc == 0, run.output
    state, reason, paused = site.stands(first)
    assert (state, bool(reason), paused) == (("success", False, []) if asked else ("failed", True, []))
    assert site.state() == (False, None)
    site.until(lambda: bool(site.plugin(first)))


# Somebody who changes his mind while the host is changed: between the state pending and the module that changes it.
MEANWHILE = r"""
[ "$(told labels nvidia.com/mig.config.state)" != pending ] ||
    kubectl label --overwrite node "$node" nvidia.com/mig.config=all-3g.40gb
"""


def test_a_wish_that_comes_meanwhile_stays_for_the_next_run(site: Site) -> None:
    first = site.nodes[0]
    site.label(first, **{CONFIG: "all-1g.10gb"})
    site.before(first, MEANWHILE)
    run = site.play(hosts=(first,))
    site.before(first)
    assert run.rc == 2 and f"Node {first} now requests all-3g.40gb" in run.output, run.output
    state, reason, paused = site.stands(first)
    assert (state, paused, site.metadata(first)["labels"][CONFIG]) == ("failed", [], "all-3g.40gb") and reason
    run = site.play(hosts=(first,))
    assert run.rc == 0 and site.stands(first) == ("success", "", []), run.output
    assert site.instances(first) == 4 and site.state(first) == (False, None)


class Manager:
    """Simulates the vendor's MIG manager on the Nodes of a site as users see it: a new request is pending, then
    completed.

    It cannot apply the layout C(bad) on one Node, and does not try again.
    """

    def __init__(self, site: Site, weak: str) -> None:
        self.site, self.weak, self.stop = site, weak, threading.Event()
        for node in site.nodes:
            site.label(node, **{f"{D}mig-manager": "true", CONFIG: "all-disabled", STATE: "success"})
        self.thread = threading.Thread(target=self.work)

    def work(self) -> None:
        while not self.stop.wait(0.3):
            for node in self.site.nodes:
                labels = self.site.metadata(node)["labels"]
                end = "failed" if (node, labels[CONFIG]) == (self.weak, "bad") else "success"
                state = {None: "pending", "pending": end}.get(labels.get(STATE))
                if state:
                    self.site.tool("label", "node", node, f"{STATE}={state}", "--overwrite")

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *exc: Any) -> None:
        self.stop.set()
        self.thread.join()


def test_where_the_cluster_has_a_manager_only_the_wish_is_written(site: Site, audit: Any) -> None:
    first, second = site.nodes
    placed = {"gpu_placement": {**PLACEMENT, "mig_manager": "cluster"}, "mig_manager_nodes": site.nodes}
    with Manager(site, first):
        audit.start()
        run = site.play(disruption="never", gpu_mig_layout="all-1g.10gb", **placed)
        assert run.rc == 2 and not ours(audit), run.output
        assert f"all-1g.10gb on Node {second}: gpu_disruption is 'never', this needs 'idle' or higher" in run.output
        for writes in (1, 0):
            audit.start()
            run = site.play(gpu_mig_layout="bad", **placed)
            assert run.rc == 2 and f"{first}: the MIG manager could not apply bad" in run.output
            assert "does not try again by itself" in run.output
            assert [one["name"] for one in ours(audit)] == [first] * writes
            assert site.metadata(second)["labels"][CONFIG] == "all-disabled"
        audit.start()
        run = site.play("--check", gpu_mig_layout="all-1g.10gb", **placed)
        assert run.rc == 0 and not ours(audit) and "changed=1" in run.output, run.output
        run = site.play(gpu_mig_layout="all-1g.10gb", **placed)
        assert run.rc == 0, run.output
        assert [one["name"] for one in ours(audit)] == site.nodes, "one after the other"
        assert {site.metadata(node)["labels"][CONFIG] for node in site.nodes} == {"all-1g.10gb"}
        assert {site.stands(node)[0] for node in site.nodes} == {"success"}
    assert site.instances(first) == site.instances(second) == 0


@pytest.mark.parametrize(("when", "stopped"), [("gpu_plan is defined", False),
                                               ("maintenance_changing.labels is defined", True)])
def test_a_host_that_cannot_be_reached_says_so_and_the_one_beside_it_is_finished(site: Site, when: str,
                                                                                 stopped: bool) -> None:
    """Two Nodes at a time: the first host becomes unreachable after its plan is made, or after its pods have ended."""
    first, second = site.nodes
    for node in site.nodes:
        site.label(node, **{CONFIG: "all-1g.10gb"})
    gone = {"ansible_connection": f"{{{{ 'ssh' if {when} else 'local' }}}}", "ansible_host": "127.0.0.1",
            "ansible_port": 9}
    run = site.play(only={first: gone}, gpu_max_unavailable=2)
    assert run.rc != 0, run.output
    state, reason, paused = site.stands(first)
    assert (state, paused) == ("failed", []) and "The host does not answer" in reason, run.output
    assert site.state(first) == ((True, False) if stopped else (False, None))
    assert site.stands(second) == ("success", "", []) and site.instances(second) == 14, run.output
    assert site.state(second) == (False, None)
    if stopped:
        run = site.play(hosts=(first,))
        assert run.rc == 0, run.output
        assert site.stands(first) == ("success", "", []) and site.state(first) == (False, None)
