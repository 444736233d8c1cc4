# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_policy as a playbook calls it: compare, export, a policy from a cluster, errors. All tests use one run."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.action import gpu_policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import variable_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import maintenance
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts

SPEC = {"driver": {"version": "580.126.20"}, "mig": {"strategy": "mixed"}, "toolkit": {"args": ["x"]}}
CLUSTER_POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
                  "spec": SPEC}
LISTS = {"/apis/nvidia.com/v1/clusterpolicies": [{**CLUSTER_POLICY, "status": {"state": "ready"}}],
         "/apis/nvidia.com/v1alpha1/nvidiadrivers": [],
         "/api/v1/nodes": [{"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.present": "true"}}, "status": {
             "nodeInfo": {"osImage": "Ubuntu 24.04.3 LTS", "containerRuntimeVersion": "containerd://2.1.4",
                          "kernelVersion": "6.8.0-71-generic", "architecture": "amd64"}}},
                           {"metadata": {"name": "localhost", "annotations": {"gpuops.nvidia/held-by": "x"}}},
                           {"metadata": {"name": "n2", "annotations": {
                               "gpuops.nvidia/removing": "true",
                               "gpuops.nvidia/maintenance-failed": "it did not end"}}},
                           {"metadata": {"name": "n3", "annotations": {
                               "gpuops.nvidia/maintenance-failed": "it broke"}}},
                           {"metadata": {"name": "n4", "annotations": {"gpuops.nvidia/held-by": "x"}, "labels": {
                               "nvidia.com/gpu.deploy.driver": "true",
                               "nvidia.com/gpu-driver-upgrade-state": "validation-required"}}}]}
OBJECTS = {"/version": {"gitVersion": "v1.36.3"}, "/api/v1/namespaces/mine/secrets/pro": {"metadata": {"name": "pro"}},
           "/api/v1/namespaces/mine/configmaps/counters": {"metadata": {"name": "counters"}, "data": {
               "dcgm-metrics.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, x."}}}
NAMED = {"driver": {"secretEnv": "pro", "repoConfig": {"configMapName": "repos"}}}
BLUE = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "blue"},
        "spec": {"nodeSelector": {"pool": "blue"}}}

CLUSTER = {"placement": "cluster", "render_to": "manifests", "node_os": ["ubuntu24.04"]}
VALUES = {"export": "values", "resolve": False}
MARK = "pl4nted"


def secret(component: str, name: str, value: str) -> dict[str, Any]:
    """A policy with a variable of a component."""
    return {component: {"env": [{"name": name, "value": value}]}}


class Api(BaseHTTPRequestHandler):
    """An API server with a few objects."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = OBJECTS.get(path) or ({"metadata": {}, "items": LISTS[path]} if path in LISTS else None)
        body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


def tasks(host: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Maps names to the options of a call."""
    plain = {"facts": {}, "overrides": {}}
    return {
        "compare": {"policy": "policy.yml", "compare_with": {"driver": {"version": "595.91.07"}}, "resolve": False},
        "values": {"policy": "policy.yml", "export": "values", "resolve": False},
        "defaults": {"export": "cluster_policy", **plain},
        "driver": {"policy": {"driver": {"version": "580"}}, "export": "nvidia_driver", "resolve": False},
        "live": {"policy": "live", "kubeconfig": "kubeconfig", "export": "cluster_policy", **plain},
        "live_like_file": {"policy": "live", "kubeconfig": "kubeconfig", "compare_with": "policy.yml",
                           "resolve": False},
        "no_cluster": {"policy": "live"},
        "only_place": {"resolve": False, "policy": {"broken": 1}, "kubeconfig": "kubeconfig"},
        "rendered_place": {"resolve": False, "kubeconfig": "kubeconfig", "render_to": "manifests"},
        "broken": {"policy": {"driver": {"verison": "1"}}, "export": "values", "resolve": False},
        "impossible": {"policy": BLUE, "export": "cluster_policy", "resolve": False},
        "hosts_cannot": {"policy": BLUE, "facts": {"gpu01": host}, "overrides": {}},
        "sharing": {"sharing": "sharing.yml", **CLUSTER, **plain},
        "sharing_wrong": {"sharing": {"timeSlicing": {"replicas": 4}}, **plain},
        "taken_without": {"take_over": True, "kubeconfig": "kubeconfig", "placement": "cluster", **plain},
        "checks_too_many": {"check_pods": "101%", **plain},
        "checks_unknown": {"check_metrics": ["n1", "n7"], "policy": {"driver": {"enabled": False}},
                           "kubeconfig": "kubeconfig", "placement": "cluster", **plain},
        "checks": {"check_metrics": ["n1"], "check_pods": "100%", "policy": {"driver": {"enabled": False}},
                   "kubeconfig": "kubeconfig", "placement": "cluster", **plain},
        "checks_rendered": {"check_pods": ["n7"], **CLUSTER, **plain},
        "several": {"policy": [CLUSTER_POLICY, BLUE], **plain},
        "delivered": {"policy": {"driver": {"enabled": False}}, "kubeconfig": "kubeconfig", "placement": "cluster",
                      **plain},
        "address": {"policy": secret("driver", "HTTPS_PROXY", f"http://me:{MARK}-address@proxy.example.com:3128"),
                    **CLUSTER, **plain},
        "variable": {"policy": secret("toolkit", "NGC_API_KEY", f"{MARK}-key"), **CLUSTER, **plain},
        "exported": {"policy": secret("driver", "MY_PASSWORD", f"{MARK}-exported"), **VALUES},
        "compared": {"policy": "policy.yml", "compare_with": secret("driver", "MY_TOKEN", f"{MARK}-compared"),
                     "resolve": False},
        "registry": {"policy": secret("toolkit", "REGISTRY_AUTH", f"{MARK}-auth"), **VALUES},
        "query": {"policy": secret("driver", "MIRROR", f"https://m.example.com/x?sig={MARK}-query"), **VALUES},
        "block": {"policy": secret("driver", "PEM", f"-----BEGIN PRIVATE KEY-----\n{MARK}-block"), **VALUES},
        "harmless": {"policy": secret("driver", "SHOWN_AS_EVER", "sh0wn"), **CLUSTER, **plain},
        "keyring": {"policy": secret("driver", "KEYRING", "k3yring"), **VALUES},
        "of_hosts": {"policy": {"dcgmExporter": {"config": {"name": "counters"}}}, "kubeconfig": "kubeconfig",
                     "namespace": "mine", "facts": {"gpu01": host}, "overrides": {}},
        "named": {"policy": NAMED, "kubeconfig": "kubeconfig", "placement": "cluster", "namespace": "mine", **plain},
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], str]]:
    """Maps names to the results of the calls, and to what a user sees of them with maximum verbosity."""
    folder = tmp_path_factory.mktemp("action")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "policy.yml").write_text(yaml.safe_dump(CLUSTER_POLICY))
    (folder / "sharing.yml").write_text(
        "default: dense\nconfigs: {dense: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}, plain: {}}\n")
    (folder / "kubeconfig").write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}]}))
    calls = tasks(facts(("1eb8",)))
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [
        *({"gpuops.nvidia.gpu_policy": options, "register": name, "ignore_errors": True}
          for name, options in calls.items()),
        {"ansible.builtin.copy": {"dest": str(folder / "results.json"), "mode": "0600", "content":
                                  f"{{{{ {{{', '.join(f'{name!r}: {name}' for name in calls)}}} | to_json }}}}"}}]}]
    (folder / "play.yml").write_text(yaml.safe_dump(play))
    more = "gpu_polcy=x driver_verison=580 my_driver_version=1 gpu_rack=7 gpu_profile=none"
    done = subprocess.run([str(pathlib.Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c",
                           "local", "-e", f"ansible_python_interpreter={sys.executable} {more}",
                           "-vvvv", "--diff", str(folder / "play.yml")],
                          capture_output=True, text=True, check=False, timeout=300,
                          env={**os.environ, "NO_COLOR": "1"}, cwd=folder)
    server.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    yield json.loads((folder / "results.json").read_text()), done.stdout + done.stderr


@pytest.fixture
def results(run: tuple[dict[str, Any], str]) -> dict[str, Any]:
    """Maps names to the results of the calls."""
    return run[0]


def test_compare(results: dict[str, Any]) -> None:
    found = {one["path"]: one for one in results["compare"]["differences"]}
    assert found["driver.version"] == {"path": "driver.version", "before": "580.126.20", "after": "595.91.07",
                                       "text": "driver.version: '580.126.20' becomes '595.91.07'"}
    assert found["mig.strategy"]["after"] == "single" and not results["compare"]["changed"]
    assert "hosts" not in results["compare"] and results["compare"]["format"] == "ClusterPolicy"


def test_sharing(results: dict[str, Any]) -> None:
    config = results["sharing"]["cluster"]["components"]["device_plugin"]["config"]
    assert (config["default"], sorted(config["data"])) == ("dense", ["dense", "plain"])
    assert results["sharing_wrong"]["error"]["faults"] == [
        "sharing.timeSlicing.replicas: 4 has no effect here; it belongs in sharing.timeSlicing.resources[]",
        "sharing.timeSlicing.resources: is missing"]


def test_a_variable_that_looks_like_one_of_ours_is_named_once(results: dict[str, Any]) -> None:
    said = [note for note in results["defaults"]["notes"] if "Did you mean" in note]
    assert said == [f"{name} is not a variable of this collection and has no effect. Did you mean {nearest}?"
                    for name, nearest in (("driver_verison", "driver_version"), ("gpu_polcy", "gpu_policy"))]


@pytest.mark.parametrize(("name", "nearest"), [
    ("gpu_placment", "gpu_placement"), ("mig_manager_layuot", "mig_manager_layout"),
    ("container_toolkit_runtimes", "container_toolkit_runtime"), ("gpu_hosts", ""), ("gpu_labels", ""),
    ("gpu_node", ""), ("gpu_rack", ""), ("driver_result2", ""), ("verison_driver", "")])
def test_look_alikes(name: str, nearest: str) -> None:
    said = variable_names.look_alikes([name, name, *variable_names.NAMES])
    assert [f"Did you mean {nearest}?" in one for one in said] == ([True] if nearest else []), said


def test_export(results: dict[str, Any]) -> None:
    assert results["values"]["exported"]["mig"] == {"strategy": "mixed"}
    note, = results["values"]["notes"]
    assert note == "Only this collection uses these keys; the chart ignores them: toolkit.args."
    assert results["driver"]["exported"][0]["spec"]["version"] == "580"
    assert results["defaults"]["exported"]["spec"]["mig"] == {"strategy": "single"}
    assert results["defaults"]["hosts"] == {} and results["defaults"]["checks"] == []


def test_live(results: dict[str, Any]) -> None:
    live = results["live"]
    assert live["policy"].startswith("the policy in http://127.0.0.1:") and live["format"] == "ClusterPolicy"
    assert live["exported"]["spec"]["driver"] == {"version": "580.126.20"}
    assert "status" not in live["exported"]
    assert results["live_like_file"]["differences"] == []
    assert results["no_cluster"]["error"]["path"] == "gpu_kubeconfig"


@pytest.mark.parametrize(("name", "path", "value", "allowed"), [
    ("checks_too_many", "gpu_check_pods", "101%", "a percentage"), ("checks_unknown", "gpu_check_metrics", "n7", "n1")])
def test_where_to_check_is_refused_with_the_plan(results: dict[str, Any], name: str, path: str, value: str,
                                                 allowed: str) -> None:
    error = results[name]["error"]
    assert (error["path"], error["value"]) == (path, value) and any(allowed in one for one in (
        error["allowed"], *error["allowed"])) and "hosts" not in results[name]
    assert results[name]["msg"].startswith(f"{path}: {value!r} is no ")


def test_where_to_check_needs_a_cluster_for_names_only(results: dict[str, Any]) -> None:
    for name in ("checks", "checks_rendered"):
        assert "hosts" in results[name], results[name]
    note, = [note for note in results["checks_rendered"]["notes"] if note.startswith("gpu_check_pods")]
    assert "nothing is checked in this run, because gpu_render_to is set" in note
    assert not [note for note in results["checks"]["notes"] if note.startswith("gpu_check")]


def test_a_run_that_writes_manifests_has_no_cluster_to_change(results: dict[str, Any]) -> None:
    assert results["rendered_place"]["cluster"] is None
    assert results["rendered_place"]["hosts"] == {"localhost": {"node": {}}}


def test_a_take_over_needs_a_policy_that_later_runs_have_too(results: dict[str, Any]) -> None:
    assert results["taken_without"]["error"]["path"] == "gpu_policy"
    assert "gpu_policy: live" in results["taken_without"]["msg"]


def test_without_a_plan_only_the_nodes_are_read(results: dict[str, Any]) -> None:
    assert results["only_place"]["cluster"]["namespace"] == "gpu-operator"
    place = results["only_place"]
    assert set(place) == {"changed", "failed", "cluster", "disruption", "kubeconfig", "context", "batch", "hosts",
                          "host_nodes", "rejected", "warnings"}
    assert place["kubeconfig"] == place["cluster"]["kubeconfig"]
    assert (place["disruption"], place["batch"]) == ("never", 1)
    assert place["hosts"] == {"localhost": {"node": {"name": "localhost", "left": True}}}
    assert place["host_nodes"] == {"localhost": {"name": "localhost", "left": True}}


def test_errors(results: dict[str, Any]) -> None:
    assert "driver.verison: unknown key; did you mean 'version'?" in results["broken"]["msg"]
    assert "one driver for all" in results["impossible"]["msg"]
    assert "hosts have no Node labels" in results["hosts_cannot"]["msg"]
    assert results["hosts_cannot"]["error"]["checks"][0]["severity"] == "error"
    assert any("NVIDIADriver blue is ignored" in note for note in results["several"]["notes"])


def test_what_a_policy_names_is_looked_for(results: dict[str, Any]) -> None:
    """The Secret exists, but the ConfigMap does not; a preflight reports it with the same words."""
    error = results["named"]["error"]
    refusal, = error["refusals"]
    assert refusal["reason"].startswith("driver.repoConfig.configMapName: ConfigMap 'repos' is not in namespace mine")
    assert "kubectl -n mine create configmap repos --from-file=FILE" in refusal["remedy"]
    check, = [one for one in error["checks"] if "repos" in one["text"]]
    assert (check["severity"], check["host"]) == ("error", "cluster")


def test_config_maps_are_read_for_hosts(results: dict[str, Any]) -> None:
    assert results["of_hosts"]["hosts"]["gpu01"]["dcgm_exporter"]["counters"] == "DCGM_FI_DEV_GPU_TEMP, gauge, x."


def test_nodes_that_earlier_runs_have_left_are_named_and_go_into_the_plan(results: dict[str, Any]) -> None:
    """Only after a removal can a Node be put back into service without its host."""
    again = "The next run of site or remove that succeeds there puts it back into service."
    for name in ("only_place", "delivered"):
        removing, other, killed, upgrade = sorted(results[name]["warnings"])
        assert upgrade == ("An earlier run was killed while it worked on Node n4. The next run of the playbook upgrade "
                           "finishes its driver upgrade.")
        assert removing == "An earlier run has failed on Node n2: it did not end. " + again
        assert other.startswith("An earlier run has failed on Node n3: it broke. Add the host of the Node to the")
        assert killed.startswith("An earlier run was killed while it worked on Node localhost. ")
        assert killed.endswith(again) is (name == "only_place")
    assert results["delivered"]["cluster"]["unfinished"] == ["n2"]


@pytest.mark.parametrize(("marks", "planned", "host", "first"), [
    ({}, True, True, "The next run of site"), ({}, False, True, "The next run of remediate"),
    ({}, False, False, "Add the host"), ({upgrades.STATE: "upgrade-failed"}, True, True, "The next run of the play"),
    ({maintenance.REMOVING: "driver"}, False, False, "The next run of site")])
def test_what_puts_a_node_back_into_service(marks: dict[str, str], planned: bool, host: bool, first: str) -> None:
    assert gpu_policy._remedy(marks, planned, host).startswith(first)


def test_the_label_of_a_former_upgrade_counts_only_where_a_driver_pod_runs() -> None:
    labels = {upgrades.STATE: "upgrade-failed"}
    assert gpu_policy._marks({"a": "b"}, labels) == {"a": "b"}
    assert gpu_policy._marks({}, {**labels, "nvidia.com/gpu.deploy.driver": "true"}) == labels


def test_secrets_of_a_policy_are_not_printed(run: tuple[dict[str, Any], str]) -> None:
    """The next tasks get the secrets, because DaemonSets need them. A policy without secrets is printed as usual."""
    results, printed = run
    for name in ("address", "variable", "exported", "compared", "registry", "query", "block"):
        assert MARK in json.dumps(results[name]) and not results[name]["failed"], results[name]
    at = printed.find(MARK)
    assert at < 0, printed[max(0, at - 300):at + 100]
    assert "sh0wn" in printed and "k3yring" in printed
