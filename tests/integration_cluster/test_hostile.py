# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compromised kubelets: what they report about their Nodes and pods affects only these Nodes, and all others are
served.

A kubelet can write the status of its Node and its pods, events, and some labels and annotations. kwok does not manage
these Nodes, so what is written stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.inventory_nodes import is_address

from lab.controlplane import api, faults
from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes
from tests.integration import user
from tests.integration.hostile.forged import OBEYED
from tests.integration_cluster.conftest import Kubectl
from tests.integration_cluster.plays import LOCAL, play, run
from tests.waiting import until

Object = dict[str, Any]
NAMESPACE, SOUND, MARK = "hostile", "hostile-sound", "hostile.example/gpu"
CANARY = "/tmp/gpuops-kubelet-canary"
SHELL, TEMPLATE = f"$(touch {CANARY}); `touch {CANARY}`", f"{{{{ lookup('pipe', 'touch {CANARY}') }}}}"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\r\u202egnp\u2066\x08\x7f"
HUGE = f"{ESCAPE}serviceaccount " * 5000
WORDS = (ESCAPE, TEMPLATE, SHELL, f"-oProxyCommand=touch {CANARY}", HUGE, "../../../etc/passwd", "\ufeff\u200b")
# No address of a host: its Node is named once, and its host has no ansible_host.
ADDRESSES = (
    f"-oProxyCommand=touch {CANARY}", "-", "-p22", SHELL, f"10.0.0.1; touch {CANARY}", "10.0.0.1 -p 22", ESCAPE,
    TEMPLATE, f"10.0.0.1\n-oProxyCommand=touch {CANARY}", "fe80::1%eth0", f"::1%{SHELL}", "root@10.0.0.1",
    "ssh://10.0.0.1", "[::1]:22", "10.0.0.1:22", "\u0661\u0660.0.0.1", "10.0.0.1\u202e", "a" * 254, "..",
    "/etc/passwd", "host_name", "*", "~", "\\x", "'", '"', "|id", "&", "a,b", "a=b")
LABELS: tuple[dict[str, str], ...] = (
    {"nvidia.com/gpu.count": "9" * 63}, {"nvidia.com/gpu.count": "0x10"}, {"nvidia.com/gpu.count": "1e9"},
    {"nvidia.com/gpu.product": "gpu_hosts"}, {"nvidia.com/gpu.product": "A" * 63}, {"nvidia.com/mig.strategy": "all"},
    {"nvidia.com/mig.config": "no-such-layout"}, {"nvidia.com/mig.config.state": "ungrouped"},
    {"nvidia.com/gpu-driver-upgrade-state": "localhost"}, {"nvidia.com/cuda.driver-version.full": "None"},
    {"nvidia.com/cuda.driver.major": "true"}, {"nvidia.com/gpu.memory": "9" * 60},
    {"nvidia.com/mig.capable": "perhaps"}, {"nvidia.com/gpu.compute.major": "x"},
    {"feature.node.kubernetes.io/system-os_release.ID": "debian..evil"},
    {"feature.node.kubernetes.io/system-os_release.VERSION_ID": "x" * 63}, {"kubernetes.io/hostname": SOUND},
    {"nvidia.com/vgpu.host-driver-version": "x"}, {"nvidia.com/gpu.deploy.operands": "x"},
    {"nvidia.com/gpu.family": "volta"}, {"node.openshift.io/os_id": "rhel"},
    # as if a MIG manager served them
    *({"nvidia.com/mig.capable": "true", "nvidia.com/mig.config.state": state,
       "nvidia.com/gpu.deploy.mig-manager": "true"} for state in ("success", "failed", "rebooting", "x" * 63)))
NOTES = ("gpuops.nvidia/labels", "gpuops.nvidia/gpu-gone-since", "gpuops.nvidia/host-gpu-gone-since",
         "nfd.node.kubernetes.io/feature-labels", "nfd.node.kubernetes.io/extended-resources")
AMOUNTS = ("9223372036854775807", "1E", "1000000k", "18446744073709551616")
INFO = ("osImage", "kernelVersion", "containerRuntimeVersion", "kubeletVersion", "architecture")
# Names that mean something else to Ansible, and one at the limit.
NAMES = ("localhost", "127.0.0.1", "all", "ungrouped", ".".join(["h" * 63] * 3 + ["h" * 61]))
UNUSABLE = NAMES[:4]


@dataclass
class Hostile:
    """The Nodes, and what each of them reports. values: how many forged values the API server accepted."""

    kubeconfig: str
    nodes: dict[str, Object] = field(default_factory=dict)
    values: int = 0


def forged() -> dict[str, Object]:
    """Maps names to forged Nodes: C({labels, annotations, addresses, info, amounts})."""
    made: dict[str, Object] = {}
    for number in range(max(len(ADDRESSES), len(LABELS))):
        word = WORDS[number % len(WORDS)]
        made[f"hostile-{number}"] = {
            "address": ADDRESSES[number % len(ADDRESSES)], "labels": LABELS[number % len(LABELS)],
            "annotations": {NOTES[number % len(NOTES)]: word[:20_000]}, "info": dict.fromkeys(INFO, word[:20_000]),
            "amount": AMOUNTS[number % len(AMOUNTS)], "message": word}
    for name in NAMES:
        made[name] = {**made["hostile-0"], "address": "192.0.2.1"}
    return made


def write(server: api.Api, name: str, said: Object) -> int:
    """Writes a Node with these reports; returns how many forged values it has."""
    server.request("POST", lab_nodes.NODES, {"metadata": {
        "name": name, "annotations": said["annotations"], "labels": {
            "feature.node.kubernetes.io/pci-10de.present": "true", MARK: "true", **said["labels"]}}})
    zero = dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion", "operatingSystem"), "")
    status = {"addresses": [{"type": "InternalIP", "address": said["address"]}],
              "nodeInfo": {**zero, **said["info"]}, "capacity": {"nvidia.com/gpu": said["amount"], "pods": "110"},
              "allocatable": {"nvidia.com/gpu": said["amount"], "pods": "110"},
              "conditions": [{"type": "Ready", "status": "True", "reason": "Forged", "message": said["message"]}]}
    server.request("PATCH", f"{lab_nodes.NODES}/{name}/status", {"status": status}, faults.MERGE)
    return 4 + len(said["info"]) + len(said["labels"])


@pytest.fixture(scope="module")
def hostile(cluster: clusters.Cluster, kubeconfig: str, kubectl: Kubectl) -> Iterator[Hostile]:
    """All of these Nodes and one sound Node; they are removed at the end."""
    Path(CANARY).unlink(missing_ok=True)
    made = Hostile(kubeconfig)
    try:
        with cluster.api() as server:
            for name, said in forged().items():
                made.nodes[name] = said
                made.values += write(server, name, said)
        sound = lab_nodes.Node(SOUND, model="a100-80", gpus=8, address="192.0.2.9")
        lab_nodes.create(cluster, [sound], lab_nodes.Labels(described=True))
        kubectl("label", "node", SOUND, f"{MARK}=true")
        yield made
    finally:
        kubectl("delete", "node", "--ignore-not-found", SOUND, *made.nodes)


def calm(output: str) -> None:
    """Checks that the output has no control sequences for a terminal, and that nothing of it was executed."""
    found = OBEYED.search(output)
    assert found is None, repr(output[max(0, found.start() - 200):found.start() + 100])
    assert "Traceback" not in output and not Path(CANARY).exists()


def test_there_are_a_hundred_forged_values(hostile: Hostile) -> None:
    assert hostile.values + len(POD_WORDS) * 4 >= 100


def test_the_inventory_takes_no_argument_from_a_kubelet(hostile: Hostile, tmp_path: Path) -> None:
    """Each Node with an invalid address is named once and listed without an address; Nodes with names that Ansible
    reserves are left out."""
    path = tmp_path / "fleet.gpu_nodes.yml"
    path.write_text(json.dumps({"plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": hostile.kubeconfig,
                                "address_types": ["InternalIP"]}))
    user.install()
    ran = user.ansible("ansible-inventory", "-i", str(path), "--list", "--export")
    assert ran.rc == 0, ran.output
    calm(ran.output)
    told = " ".join(ran.output.split())
    start = ran.output.index("\n{") if not ran.output.startswith("{") else 0
    shown = json.JSONDecoder().raw_decode(ran.output[start:].strip())[0]
    hosts = shown["_meta"]["hostvars"]
    for name, said in hostile.nodes.items():
        bad = not is_address(said["address"])
        assert told.count(f"Node {name}: its InternalIP") == bad, name
        assert (name in hosts) == (name not in UNUSABLE), name
        assert "ansible_host" not in hosts.get(name, {}) or not bad
    assert told.count("is left out") == len(UNUSABLE)
    address = hosts[SOUND]["ansible_host"]
    assert is_address(address["__ansible_unsafe"] if isinstance(address, dict) else address)
    assert hosts[SOUND]["gpu_node"]["ready"]
    groups = {name for name in shown if name != "_meta"}
    assert not groups & {"gpu_hosts", "gpu_control", "localhost"}
    assert all(name in ("all", "ungrouped") or name.startswith("gpu_") for name in groups)


POD_WORDS = (ESCAPE, TEMPLATE, SHELL, HUGE, "\u202etxt.exe", "back-off \x1b[2J")
DRIVER = "hostile-driver"


@pytest.fixture
def pods(hostile: Hostile, cluster: clusters.Cluster, kubectl: Kubectl, client: Client) -> Iterator[list[Object]]:
    """The pods of an operand on six hostile Nodes and the sound one, with what the kubelets report about them."""
    kubectl("create", "namespace", NAMESPACE)
    chosen = [*[f"hostile-{number}" for number in range(len(POD_WORDS))], SOUND]
    kubectl("label", "node", *chosen, f"{MARK}.pods=true")
    kubectl("create", "--filename", "-", stdin={
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": DRIVER, "namespace": NAMESPACE, "labels": {
            "app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": "driver"}},
        "spec": {"selector": {"matchLabels": {"app": DRIVER}}, "template": {
            "metadata": {"labels": {"app": DRIVER}},
            "spec": {"nodeSelector": {f"{MARK}.pods": "true"}, "tolerations": [{"operator": "Exists"}],
                     "containers": [{"name": "nvidia-driver-ctr", "image": "example.org/x:1"}]}}}})

    def found() -> list[Object]:
        return [one for one in client.list("v1", "Pod", NAMESPACE) if one["spec"].get("nodeName")]

    until(lambda: len(found()) == len(chosen), "each Node has its pod")
    there = {one["spec"]["nodeName"]: one for one in found()}
    for number, word in enumerate(POD_WORDS):
        pod = there[f"hostile-{number}"]["metadata"]
        state = {"waiting": {"reason": "CrashLoopBackOff" if number % 2 else word[:200], "message": word}}
        with cluster.api() as server:
            server.request("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['name']}/status", {"status": {
                "phase": "Running", "containerStatuses": [{
                    "name": "nvidia-driver-ctr", "image": word[:200], "imageID": "", "ready": False,
                    "restartCount": 2147483647, "state": state, "lastState": {"terminated": {
                        "exitCode": 1, "reason": word[:200], "message": word}}}]}}, faults.MERGE)
            server.request("POST", f"/api/v1/namespaces/{NAMESPACE}/events", {
                "metadata": {"name": f"forged-{number}", "namespace": NAMESPACE},
                "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "namespace": NAMESPACE,
                                   "uid": pod["uid"]},
                "type": "Warning", "reason": "Forged", "message": word[:1000],
                "lastTimestamp": "2026-01-01T00:00:00Z"})
    yield list(there.values())
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_what_kubelets_say_of_pods(pods: list[Object], kubeconfig: str, tmp_path: Path) -> None:
    """The pod of the sound Node counts as ready. The others are named with a shortened and readable report."""
    names = [one["spec"]["nodeName"] for one in pods]
    plan = {"namespace": NAMESPACE, "server": Client(kubeconfig).server, "components": {"driver": {"state": "present"}},
            "nodes": {"gpu": names, "cpu": 0, "by_host": {}}, "deploy": {"components": {}, "on_host": {}}}
    labels = {"target": "node", "kubeconfig": kubeconfig, "nodes": names, "deploy": {
        "components": {"driver": True, "mig_manager": True}, "mig_default": "all-disabled"}}
    following = {"cluster": plan, "kubeconfig": kubeconfig, "timeout": 3, "compare": False}
    done = play(tmp_path, [
        {"name": "Look", "gpuops.nvidia.gpu_labels": {**labels, "state": "gathered"}},
        {"name": "Label", "gpuops.nvidia.gpu_labels": {**labels, "state": "present"}},
        {"name": "Take", "gpuops.nvidia.gpu_labels": {**labels, "deploy": None, "state": "absent"}},
        {"name": "Verify", "gpuops.nvidia.gpu_verify": following}], "-v")
    calm(done.output)
    assert done.rc == 2 and len(done.output) < 200_000, done.output[-3000:]
    check = done.result("localhost", "gpu_verify")["checks"][0]
    assert (check["ready"], check["desired"]) == (1, len(names))
    labelled = next(line["result"] for line in done.results if line["task"] == "Label")
    assert SOUND in labelled["nodes"] and not set(labelled["nodes"]) - set(names)


@pytest.mark.parametrize("playbook", ["preflight", "status", "site", "verify"])
def test_playbooks_over_them(hostile: Hostile, kubectl: Kubectl, tmp_path: Path, playbook: str) -> None:
    """The sound Node gets its plan. The others are named, and no object contains what they report."""
    ran = run(tmp_path, playbook, {"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": {
        "gpu_kubeconfig": hostile.kubeconfig, "gpu_placement": "cluster", "gpu_namespace": "hostile-plan"}}},
        *(["--check", "--diff"] if playbook == "site" else []))
    calm(ran.output)
    assert len(ran.output) < 2_000_000
    plan = next(line["result"] for line in ran.results if line["action"].endswith(".gpu_policy"))["cluster"]
    served = [name for pool in plan["pools"] for name in pool["nodes"]]
    assert SOUND in served and not set(served) & set(plan["rejected"])
    assert {name for name in hostile.nodes if name.startswith("hostile-")} <= {*served, *plan["rejected"]}
    assert len(set(plan["rejected"]) & set(hostile.nodes)) >= 10
    driver = json.dumps(plan["components"]["driver"]["pools"])
    assert not any(word[:40] in driver for word in WORDS) and "evil" not in driver
    assert ran.rc != 0 or playbook == "status"
    found = kubectl("get", "namespace", "hostile-plan", "--ignore-not-found")
    assert not str(found or "").strip()


BUILT = {"gpu_policy": {"driver": {"usePrecompiled": True, "version": "580", "repository": "registry.example/mine"}}}
SHARED = {"gpu_sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}


@pytest.mark.parametrize("asked", [BUILT, SHARED], ids=["precompiled", "mps"])
def test_policies_that_many_a_node_cannot_follow(hostile: Hostile, tmp_path: Path, asked: Object) -> None:
    """The sound Node is served as if it were alone; kernels and layouts of other Nodes do not prevent the plan."""
    ran = run(tmp_path, "preflight", {"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": {
        "gpu_kubeconfig": hostile.kubeconfig, "gpu_placement": "cluster", "gpu_namespace": "hostile-plan", **asked}}})
    calm(ran.output)
    plan = next(line["result"] for line in ran.results if line["action"].endswith(".gpu_policy"))["cluster"]
    assert SOUND in [name for pool in plan["pools"] for name in pool["nodes"]] and SOUND not in plan["rejected"]
    assert (plan["common"]["openshift"], plan["common"]["runtime"]) == (False, "containerd")
    driver = json.dumps(plan["components"]["driver"]["pools"])
    assert not any(word[:40] in driver for word in WORDS) and "evil" not in driver


RUNS = "hostile-runs"
# What acts on Nodes; the rest of the operands is as in the runs with --check.
PARTS = {**dict.fromkeys(components.NAMES, "none"),
         **dict.fromkeys(("driver", "container_toolkit", "device_plugin", "mig_manager"), "cluster")}
LAYOUT = "all-1g.10gb"
STUCK = ("hostile-0", "hostile-8")  # they have a driver pod that nobody ends; the second says that it is being upgraded


@dataclass
class Runs:
    """The playbooks that change a cluster, in order. after: maps playbooks to the labels of all Nodes after the run;
    drivers: the Nodes that have a driver pod at the end."""

    runs: dict[str, user.Run]
    before: dict[str, dict[str, str]]
    after: dict[str, dict[str, dict[str, str]]]
    operands: list[Object]
    drivers: set[str]


@pytest.fixture(scope="module")
def runs(hostile: Hostile, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs site.yml, mig.yml and remove.yml without --check."""
    client = Client(hostile.kubeconfig)

    def labels() -> dict[str, dict[str, str]]:
        return {one["metadata"]["name"]: dict(one["metadata"].get("labels") or {}) for one in client.list("v1", "Node")}

    def drivers() -> set[str]:
        found = client.list("v1", "Pod", RUNS, "app.kubernetes.io/component=nvidia-driver")
        return {str(one["spec"].get("nodeName")) for one in found}

    made = Runs({}, labels(), {}, [], set())
    inventory = {"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": {
        "gpu_kubeconfig": hostile.kubeconfig, "gpu_placement": PARTS, "gpu_namespace": RUNS, "gpu_disruption": "idle"}}}
    # Nobody looks after these Nodes, so that every wait for them ends by its limit.
    limits = {"preflight_timeout": 2, "gpu_remove_timeout": 2, "mig_manager_timeout": 2, "mig_manager_at_once": 100,
              "maintenance_drain_timeout": 1}
    try:
        for name, more in (("site", {}), ("mig", {"gpu_mig_layout": LAYOUT}), (
                "remove", {"gpu_disruption": "drain", "gpu_max_fail_percentage": 100})):
            made.runs[name] = run(tmp_path_factory.mktemp(name), name, inventory, "-e", json.dumps({**limits, **more}))
            made.after[name] = labels()
            if name == "site":
                made.operands = list(client.list("apps/v1", "DaemonSet", RUNS))
                kubectl("label", "node", "--overwrite", *STUCK, "nvidia.com/gpu.deploy.driver=true")
                until(lambda: drivers() >= {SOUND, *STUCK}, "the DaemonSet has its pods there")
        made.drivers = drivers()
        yield made
    finally:
        kubectl("delete", "namespace", RUNS, "--ignore-not-found", "--wait=false")


@pytest.mark.parametrize("playbook", ["site", "mig", "remove"])
def test_a_run_over_hostile_nodes_comes_to_its_end(runs: Runs, playbook: str) -> None:
    """Nodes that do not respond as expected are named, and the run has no other error."""
    done = runs.runs[playbook]
    calm(done.output)
    assert len(done.output) < 2_000_000 and {line["host"] for line in done.results} == {"cluster"}
    assert "PLAY RECAP" in done.output and "Unexpected failure" not in done.output, done.output[-3000:]


def test_site_serves_the_sound_node(runs: Runs, hostile: Hostile) -> None:
    plan = runs.runs["site"].result("cluster", "gpu_policy")["cluster"]
    labels = runs.after["site"]
    deploy = {key: value for key, value in labels[SOUND].items() if key.startswith("nvidia.com/gpu.deploy.")}
    parts = ("driver", "container-toolkit", "device-plugin")
    assert {deploy.get(f"nvidia.com/gpu.deploy.{name}") for name in parts} == {"true"}
    for name in plan["deploy"]["without_driver"]:
        assert labels[name].get("nvidia.com/gpu.deploy.driver") != "true", name
    assert len(plan["rejected"]) >= 10 and all(name in runs.runs["site"].output for name in plan["rejected"])
    text = json.dumps(runs.operands)
    assert {"nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset"} <= {
        one["metadata"]["name"] for one in runs.operands}
    assert not any(word[:40] in text for word in WORDS) and "evil" not in text


def test_mig_asks_the_sound_node_as_well(runs: Runs, hostile: Hostile) -> None:
    """Nodes that never complete the change are named; with one Node at a time, they would stop the others, as any
    failed Node does."""
    assert runs.after["mig"][SOUND]["nvidia.com/mig.config"] == LAYOUT
    result = runs.runs["mig"].result("cluster", "node_mig")
    assert runs.runs["mig"].rc != 0 and {name for name in result["failed_nodes"] if name in hostile.nodes}, result
    assert all(name in runs.runs["mig"].output for name in result["failed_nodes"])


def test_remove_takes_everything_back(runs: Runs, hostile: Hostile) -> None:
    """A kubelet that does not end its pods cannot keep a label or a driver on another Node, and its Node is named."""
    labels = runs.after["remove"]
    error = runs.runs["remove"].result("cluster", "operands")["error"]
    assert runs.drivers == set(STUCK) <= set(error["nodes"]) <= set(hostile.nodes) and error["reason"] == "Timeout"
    assert not [key for key in labels[SOUND] if key.startswith("nvidia.com/gpu.deploy.")
                and key not in runs.before[SOUND]]
    for name in hostile.nodes:
        forged_labels = {key: value for key, value in runs.before[name].items() if "nvidia.com/mig.config" not in key}
        assert forged_labels.items() <= labels[name].items(), name
