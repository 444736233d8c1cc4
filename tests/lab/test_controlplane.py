# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The clusters of the lab: a real API server, simulated Nodes, faults, the audit log, and nothing left at the end."""

from __future__ import annotations

import contextlib
import io
import json
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lab import cli
from lab.controlplane import cluster, processes
from tests.waiting import until

NAME = "cptest"
INIT = ("driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation")


def lab(action: str, *words: str) -> str:
    """Runs C(python3 -m lab cluster ACTION --name cptest WORDS); returns its output."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert cli.main(["cluster", action, "--name", NAME, *words]) == 0
    return said.getvalue()


@pytest.fixture(scope="module")
def made() -> Iterator[cluster.Cluster]:
    """A cluster with two GPU nodes and one without, and DaemonSets on them."""
    said = lab("up", "--nodes", "plain", "--gpu", "2", "--cpu", "1", "--model", "h100-80")
    yielded = cluster.load(NAME)
    assert said.splitlines()[-1] == str(yielded.kubeconfig)
    try:
        manifests = [daemonset("nvidia-operator-validator", INIT), daemonset("plain-plugin", ())]
        (yielded.folder / "daemonsets.json").write_text(json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": manifests}))
        yielded.kubectl("create", "--filename", str(yielded.folder / "daemonsets.json"))
        until(lambda: len(yielded.kubectl("get", "pods", "--output", "name").splitlines()) == 6)
        yield yielded
    finally:
        lab("down")


def daemonset(name: str, init: tuple[str, ...]) -> dict[str, Any]:
    """A DaemonSet for all Nodes, including lost ones."""
    def container(title: str) -> dict[str, Any]:
        return {"name": title, "image": f"registry.test/{title}:1"}

    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "default"}, "spec": {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "tolerations": [{"operator": "Exists"}],
            "initContainers": [container(title) for title in init], "containers": [container(name)]}}}}


def get(made: cluster.Cluster, *words: str) -> Any:
    """Returns the object or the list that kubectl finds."""
    return json.loads(made.kubectl("get", *words, "--output", "json"))


def ready(made: cluster.Cluster, name: str) -> int:
    """How many pods of a DaemonSet are Ready."""
    return int(get(made, "daemonset", name)["status"]["numberReady"])


def pod(made: cluster.Cluster, app: str, node: str) -> dict[str, Any]:
    """The status of the pod of a DaemonSet on a Node."""
    found = get(made, "pods", "--selector", f"app={app}", "--field-selector", f"spec.nodeName={node}")["items"]
    assert len(found) == 1
    return dict(found[0]["status"])


def test_nodes_look_like_gpu_nodes(made: cluster.Cluster) -> None:
    nodes = {node["metadata"]["name"]: node for node in get(made, "nodes")["items"]}
    assert sorted(nodes) == ["cpu-1", "gpu-1", "gpu-2"]
    for node in nodes.values():
        assert {"type": "Ready", "status": "True"}.items() <= node["status"]["conditions"][0].items()
        assert "nvidia.com/gpu.product" not in node["metadata"]["labels"]
    info = nodes["gpu-1"]["status"]["nodeInfo"]
    assert (info["osImage"], info["containerRuntimeVersion"]) == ("Ubuntu 24.04.3 LTS", "containerd://1.7.28")
    labels = nodes["gpu-1"]["metadata"]["labels"]
    assert labels["feature.node.kubernetes.io/pci-10de.present"] == "true"
    assert labels["feature.node.kubernetes.io/system-os_release.VERSION_ID"] == "24.04"
    assert labels["feature.node.kubernetes.io/kernel-version.full"] == info["kernelVersion"]
    assert "feature.node.kubernetes.io/pci-10de.present" not in nodes["cpu-1"]["metadata"]["labels"]


def test_labels_of_nodes_come_and_go(made: cluster.Cluster) -> None:
    described = ("nodes", "plain", "--gpu", "1", "--model", "l40s", "--os", "ubuntu22.04")
    made.kubectl("label", "node", "gpu-1", "example.test/kept=yes")
    lab(*described, "--gfd", "--bare")
    labels = get(made, "node", "gpu-1")["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-L40S" and labels["nvidia.com/mig.capable"] == "false"
    assert not [key for key in labels if key.startswith("feature.node.kubernetes.io/")]
    lab(*described)
    found = get(made, "node", "gpu-1")
    labels = found["metadata"]["labels"]
    assert not [key for key in labels if key.startswith("nvidia.com/")] and labels["example.test/kept"] == "yes"
    assert labels["feature.node.kubernetes.io/pci-10de.present"] == "true"
    assert found["status"]["nodeInfo"]["osImage"] == "Ubuntu 22.04.5 LTS"


def test_validator_held_on_one_node(made: cluster.Cluster) -> None:
    until(lambda: ready(made, "nvidia-operator-validator") == 3)
    lab("stage", "validator", "on", "--node", "gpu-1")
    status = pod(made, "nvidia-operator-validator", "gpu-1")
    first, second, third, _fourth = status["initContainerStatuses"]
    assert first["state"]["terminated"]["exitCode"] == 0
    assert second["name"] == "toolkit-validation" and second["restartCount"] == 6
    assert second["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert second["state"]["waiting"]["message"].startswith("back-off 5m0s restarting failed container=toolkit-valid")
    assert "libnvidia-ml.so.1" in second["lastState"]["terminated"]["message"]
    assert third["state"]["waiting"]["reason"] == "PodInitializing" and status["phase"] == "Pending"
    shown = made.kubectl("get", "pods", "--selector", "app=nvidia-operator-validator")
    assert shown.count("Init:CrashLoopBackOff") == 1 and shown.count("Running") == 2
    until(lambda: ready(made, "nvidia-operator-validator") == 2)
    until(lambda: "BackOff" in made.kubectl("get", "events", "--output", "jsonpath={.items[*].reason}"))
    made.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
    until(lambda: ready(made, "plain-plugin") == 3)
    until(lambda: ready(made, "nvidia-operator-validator") == 2)  # new pods are held too
    lab("stage", "validator", "off")
    until(lambda: ready(made, "nvidia-operator-validator") == 3)


def test_validator_still_running(made: cluster.Cluster) -> None:
    lab("stage", "validator", "on", "--node", "gpu-2", "--running")
    assert "Init:1/4" in made.kubectl("get", "pods", "--selector", "app=nvidia-operator-validator")
    lab("stage", "validator", "off", "--node", "gpu-2")
    assert "Init:" not in made.kubectl("get", "pods")


@pytest.mark.parametrize(("fault", "shown", "phase"), [("crash", "CrashLoopBackOff", "Running"),
                                                       ("pull", "ImagePullBackOff", "Pending")])
def test_a_container_that_does_not_come_up(made: cluster.Cluster, fault: str, shown: str, phase: str) -> None:
    lab("stage", fault, "on", "--app", "plain-plugin", "--node", "gpu-2")
    status = pod(made, "plain-plugin", "gpu-2")
    assert (status["containerStatuses"][0]["state"]["waiting"]["reason"], status["phase"]) == (shown, phase)
    assert pod(made, "plain-plugin", "gpu-1")["containerStatuses"][0]["ready"]
    lab("stage", fault, "off")
    assert pod(made, "plain-plugin", "gpu-2")["containerStatuses"][0]["ready"]


def test_readiness_delayed(made: cluster.Cluster) -> None:
    lab("stage", "slow", "on", "--app", "plain-plugin", "--seconds", "3")
    until(lambda: ready(made, "plain-plugin") == 3)
    made.kubectl("delete", "pods", "--selector", "app=plain-plugin")
    until(lambda: len(took(made, "plain-plugin")) == 3)
    assert all(seconds > 2 for seconds in took(made, "plain-plugin"))
    lab("stage", "slow", "off")


def took(made: cluster.Cluster, app: str) -> list[float]:
    """For each Ready pod of a DaemonSet that is not being removed, the whole seconds from its creation until it was
    Ready."""
    found = []
    for item in get(made, "pods", "--selector", f"app={app}")["items"]:
        since = [one["lastTransitionTime"] for one in item["status"].get("conditions", ())
                 if (one["type"], one["status"]) == ("Ready", "True")]
        if since and "deletionTimestamp" not in item["metadata"]:
            made_at, ready_at = map(datetime.fromisoformat, (item["metadata"]["creationTimestamp"], since[0]))
            found.append((ready_at - made_at).total_seconds())
    return found


def states(made: cluster.Cluster) -> list[str]:
    """The Nodes and displayed statuses of the pods of a DaemonSet."""
    rows = made.kubectl("get", "pods", "--output", "wide", "--no-headers", "--selector", "app=plain-plugin")
    return sorted(f"{row.split()[6]} {row.split()[2]}" for row in rows.splitlines())


def test_node_lost(made: cluster.Cluster) -> None:
    lab("stage", "node-lost", "on", "--node", "gpu-1")
    assert "NotReady" in made.kubectl("get", "node", "gpu-1")
    until(lambda: ready(made, "plain-plugin") == 2)
    made.kubectl("delete", "pods", "--selector", "app=plain-plugin", "--wait=false")
    until(lambda: "gpu-1 Terminating" in states(made))
    until(lambda: states(made) == ["cpu-1 Running", "gpu-1 Terminating", "gpu-2 Running"])
    assert "NotReady" in made.kubectl("get", "node", "gpu-1")
    lab("stage", "node-lost", "off")
    assert "NotReady" not in made.kubectl("get", "node", "gpu-1")
    until(lambda: ready(made, "plain-plugin") == ready(made, "nvidia-operator-validator") == 3)


def test_faults_need_their_object(made: cluster.Cluster) -> None:
    for words, text in ((("crash", "on"), "--app"), (("slow", "on", "--app", "x"), "--seconds"),
                        (("node-lost", "on"), "--node"), (("node-lost", "on", "--node", "nowhere"), "404")):
        with pytest.raises(SystemExit, match=text):
            lab("stage", *words)


def test_audit_log_counts_requests_of_users_alone(made: cluster.Cluster) -> None:
    log = Path(lab("audit").strip())
    before = log.read_text().count("\n") if log.exists() else 0
    made.kubectl("get", "nodes")  # the lab's own
    assert (log.read_text().count("\n") if log.exists() else 0) == before
    program, words = made.client
    user = cluster.Cluster(NAME)
    assert user.kubeconfig != Path(words[2])
    with cluster.api.proxy(program, ["kubectl", "--kubeconfig", str(user.kubeconfig)]) as api:
        api.objects("/api/v1/nodes")
        where = "/api/v1/namespaces/default/configmaps/counted"
        for _ignored in range(2):
            api.apply(where, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "counted"},
                              "data": {"key": "value"}})
    rows = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert [(row["verb"], row["objectRef"]["resource"], row["user"]["username"]) for row in rows] == [
        ("list", "nodes", "admin"), ("patch", "configmaps", "admin"), ("patch", "configmaps", "admin")]
    assert rows[1]["requestObject"]["data"] == {"key": "value"} and "requestObject" not in rows[0]
    assert all(row["userAgent"] for row in rows)


def test_an_existing_cluster_is_registered(made: cluster.Cluster) -> None:
    other = f"{NAME}-other"
    path = str(made.kubeconfig)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["cluster", "up", "--name", other, "--kubeconfig", path, "--nodes", "plain", "--cpu", "1"])
        assert cluster.load(other).kubeconfig == made.kubeconfig and not cluster.load(other).marks
        with pytest.raises(SystemExit, match="audit log"):
            cli.main(["cluster", "audit", "--name", other])
        assert get(made, "node", "cpu-1")["metadata"]["labels"][cluster.MADE_BY] == other
        cli.main(["cluster", "down", "--name", other])
    assert "cpu-1" not in made.kubectl("get", "nodes") and made.runs
    assert not (cluster.folder() / other).exists()


def test_a_cluster_that_does_not_answer_is_not_registered(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"token": "none"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}))
    for file, text in ((path, "refused"), (tmp_path / "none", "no such file")):
        with pytest.raises(SystemExit, match=text):
            cli.main(["cluster", "up", "--name", f"{NAME}-none", "--kubeconfig", str(file)])
    assert not list(cluster.folder().glob(f"*{NAME}-none*"))


def test_a_stopped_part_is_started_again_with_the_data_and_free_ports(made: cluster.Cluster) -> None:
    """Another process has taken a port meanwhile."""
    before = cluster.load(NAME)
    processes.stop([before.marks["etcd"]])
    assert not cluster.load(NAME).runs
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.redirect_stdout(io.StringIO()):
        before.ports["api"] = taken.getsockname()[1]
        before.save()
        cluster.up(NAME)
    after = cluster.load(NAME)
    assert after.runs and after.ports["api"] != before.ports["api"]
    assert "nvidia-operator-validator" in made.kubectl("get", "daemonsets")


def test_down_leaves_nothing(made: cluster.Cluster) -> None:
    marks = list(cluster.load(NAME).marks.values())
    assert len(marks) == 5 and all(map(processes.runs, marks))
    folder = str(made.folder)
    lab("down")
    assert not any(map(processes.runs, marks)) and not made.folder.exists()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if reads(path, folder)]
    assert NAME not in cluster.names() and not list(cluster.folder().glob(f".{NAME}*"))


def reads(path: Path, words: str) -> bool:
    """Whether the command line of a process has these words."""
    with contextlib.suppress(OSError):
        return words in path.read_bytes().decode(errors="replace")
    return False
