# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documented ClusterRole on a real API server: sufficient for a run, and for nothing else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import read_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import check_pods, drift, exporter_page
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.rollout import Rollout

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes as lab_nodes
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.world import retire
from tests.unit.kube.test_rights import documented
from tests.unit.simulated.clusters import facts, node, plan
from tests.waiting import until

SPACE, OPERANDS = "rights", "rights-operands"
USER = f"system:serviceaccount:{SPACE}:runner"


@pytest.fixture
def runner(kubectl: Kubectl, tmp_path: Path) -> Iterator[Client]:
    """A user who has only this role."""
    role = documented()
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": SPACE},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                           "name": role["metadata"]["name"]},
               "subjects": [{"kind": "ServiceAccount", "name": "runner", "namespace": SPACE}]}
    kubectl("create", "namespace", SPACE)
    kubectl("create", "serviceaccount", "runner", "--namespace", SPACE)
    kubectl("create", "--filename", "-", stdin={"apiVersion": "v1", "kind": "List", "items": [role, binding]})
    config = yaml.safe_load(Path(kubectl.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": kubectl("create", "token", "runner", "--namespace", SPACE).strip()}
    path = tmp_path / "runner.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield Client(str(path))
    kubectl("delete", "--ignore-not-found", "clusterrolebinding", SPACE)
    kubectl("delete", "clusterrole", role["metadata"]["name"])
    kubectl("delete", "--ignore-not-found", "namespace", SPACE, OPERANDS)


def can_i(cluster: clusters.Cluster, verb: str, resource: str, subresource: str = "") -> bool:
    """Whether kubectl auth can-i allows it for the user."""
    review = {"spec": {"user": USER, "groups": ["system:serviceaccounts", "system:authenticated"],
                       "resourceAttributes": {"verb": verb, "resource": resource, "subresource": subresource}}}
    with cluster.api() as server:
        answer = server.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def test_the_documented_role_serves_a_run(runner: Client, cluster: clusters.Cluster, kubectl: Kubectl,
                                          audit: Audit) -> None:
    until(lambda: can_i(cluster, "patch", "nodes"), "the server knows the role")
    for verb, resource in (("get", "secrets"), ("delete", "nodes"), ("create", "pods"), ("delete", "pods"),
                           ("impersonate", "users")):
        assert not can_i(cluster, verb, resource)
    whole: dict[str, Any] = plan({"nodeStatusExporter": {"enabled": True}}, facts(node()), namespace=OPERANDS)
    refuse_operator.refuse_operator(runner)
    assert read_cluster.read_cluster(runner)["nodes"]
    done = deliver.present(runner, *deliver.of_plan(whole, None), check=False, labels=True)
    assert done["counts"]["create"] > 50
    assert not deliver.present(runner, *deliver.of_plan(whole, None), check=True, labels=True)["changed"]
    assert [one.component for one in drift.differences(runner, whole, None) if one.component != "nodes"] == []
    assert Rollout(runner, whole, [*whole["components"]]).now()
    # What docs/cluster.md adds where a driver is not wanted any more.
    role = documented()
    role["rules"] += [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
                      {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
                      {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": ["delete"]}]
    kubectl("replace", "--filename", "-", stdin=role)
    until(lambda: can_i(cluster, "delete", "pods"), "the server knows the larger role")
    for part in whole["components"].values():
        part.update(state="absent", because=["not wanted"])
    deliver.present(runner, *deliver.of_plan(whole, None), check=False, labels=True)
    assert not [one for one in audit.requests if one["code"] == 403]


def test_a_pod_with_one_gpu_needs_the_documented_rights(runner: Client, cluster: clusters.Cluster, kubectl: Kubectl,
                                                        audit: Audit) -> None:
    """The scheduler of the cluster places the pod; kwok has no program that ends, so the test says how it ends."""
    until(lambda: can_i(cluster, "patch", "nodes"), "the server knows the role")
    name, gpus = "rights-gpu", {"nvidia.com/gpu": "1"}
    lab_nodes.create(cluster, [lab_nodes.Node(name, model="l40s", gpus=1)], lab_nodes.Labels())
    kubectl("create", "namespace", OPERANDS)
    until(lambda: runner.list("v1", "ServiceAccount", OPERANDS), "the namespace has its default service account")
    whole: dict[str, Any] = plan({}, facts(**{name: node()}), namespace=OPERANDS)
    whole["common"].update(pod_runtime_class="", tolerations=[{"operator": "Exists"}])

    def offer(amount: dict[str, str]) -> None:
        kubectl("patch", "node", name, "--subresource=status", "--type=merge", "--patch",
                json.dumps({"status": {"allocatable": amount, "capacity": amount}}))

    def pods() -> list[str]:
        return kubectl("get", "pods", "--namespace", OPERANDS, "--output", "name").split()

    def ended(phase: str) -> Callable[[float], None]:
        def end(seconds: float) -> None:
            for pod in pods():
                kubectl("patch", "--namespace", OPERANDS, pod, "--subresource=status", "--type=merge", "--patch",
                        json.dumps({"status": {"phase": phase}}))
        return end

    try:
        offer(gpus)
        refused, = check_pods.run(runner, whole, [name], 1)
        assert refused.state == "failed" and "pods" in refused.reason and not pods()
        role = documented()
        role["rules"] += [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "patch", "delete"]}]
        kubectl("replace", "--filename", "-", stdin=role)
        until(lambda: can_i(cluster, "delete", "pods"), "the server knows the larger role")
        audit.start()
        assert [one.state for one in check_pods.run(runner, whole, [name], 1, True)] == ["planned"]
        assert not [one for one in audit.writes if one["agent"] == "gpuops.nvidia"]
        assert check_pods.run(runner, whole, [name], 1, sleep=ended("Succeeded")) == [check_pods.Ran(name, "ok")]
        assert check_pods.run(runner, whole, [name], 1, sleep=ended("Failed"))[0].state == "failed"
        until(lambda: not pods(), "the pods are gone")
        offer({"nvidia.com/gpu": "0"})
        assert check_pods.run(runner, whole, [name], 1) == [check_pods.Ran(name, "skipped", check_pods.IN_USE)]
        assert not [one for one in audit.requests if one["code"] == 403]
    finally:
        retire(cluster, name)


def test_the_page_of_an_exporter_needs_the_documented_right(runner: Client, cluster: clusters.Cluster,
                                                            kubectl: Kubectl, audit: Audit) -> None:
    """The API server fetches the page from this machine, which is the pod: kwok runs no programs."""
    until(lambda: can_i(cluster, "patch", "nodes"), "the server knows the role")
    name, address = "rights-metrics", own_address()
    lab_nodes.create(cluster, [lab_nodes.Node(name, model="l40s", gpus=1)], lab_nodes.Labels())
    kubectl("label", "node", name, "nvidia.com/gpu.deploy.dcgm-exporter=true", "nvidia.com/gpu.count=1", "--overwrite")
    kubectl("create", "namespace", OPERANDS)
    until(lambda: runner.list("v1", "ServiceAccount", OPERANDS), "the namespace has its default service account")
    energy = iter(range(1, 100))

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name is that of the library
            labels = 'gpu="0",UUID="GPU-0000"'
            page = f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {next(energy)}\n".encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    with ThreadingHTTPServer((address, 0), Exporter) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        kubectl("create", "--filename", "-", stdin={"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "exporter", "namespace": OPERANDS, "labels": {"app": "nvidia-dcgm-exporter"}}, "spec": {
                "nodeName": name, "tolerations": [{"operator": "Exists"}], "containers": [{
                    "name": "exporter", "image": "none", "env": [
                        {"name": "DCGM_EXPORTER_LISTEN", "value": f":{exporter.server_port}"}]}]}})
        try:
            running = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}

            def check() -> list[drift.Difference]:
                # Each time, because kwok can write its own status of the pod.
                kubectl("patch", "--namespace", OPERANDS, "pod", "exporter", "--subresource=status", "--type=merge",
                        "--patch", json.dumps({"status": running}))
                return exporter_page.differences(runner, OPERANDS, [name], [name], {}, sleep=lambda seconds: None)

            refused, = check()
            assert refused.level == "pending" and "get pods/proxy" in refused.cause
            role = documented()
            role["rules"] += [{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}]
            kubectl("replace", "--filename", "-", stdin=role)
            until(lambda: can_i(cluster, "get", "pods", "proxy"), "the server knows the larger role")
            audit.start()
            assert check() == [] and next(energy) >= 3
            assert not [one for one in audit.requests if one["code"] == 403]
        finally:
            exporter.shutdown()
            retire(cluster, name)


def own_address() -> str:
    """The address of this machine. The API server does not connect to loopback addresses of pods."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # documentation (RFC 5737); no packet is sent
        return str(probe.getsockname()[0])


def test_one_right_less_is_named_before_the_first_write(runner: Client, cluster: clusters.Cluster, kubectl: Kubectl,
                                                        audit: Audit) -> None:
    until(lambda: can_i(cluster, "patch", "nodes"), "the server knows the role")
    role = documented()
    role["rules"] = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb not in ("escalate", "bind")]}
                     for rule in role["rules"] if rule["resources"] != ["nodes"] and {*rule["verbs"]} - {
                         "escalate", "bind"}] + [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]
    kubectl("replace", "--filename", "-", stdin=role)
    until(lambda: not can_i(cluster, "patch", "nodes"), "the server knows the smaller role")
    whole = plan({"nfd": {"enabled": False}}, facts(node()), namespace=OPERANDS)
    audit.start()
    with pytest.raises(ClusterError) as caught:
        deliver.present(runner, *deliver.of_plan(whole, None), check=False, labels=True)
    kinds = {one.partition(" in ")[0] for one in caught.value.details["missing"]}
    assert {"patch nodes", "escalate clusterroles.rbac.authorization.k8s.io",
            "bind clusterroles.rbac.authorization.k8s.io"} <= kinds
    assert not [one for one in audit.writes if one["agent"] == "gpuops.nvidia"]
