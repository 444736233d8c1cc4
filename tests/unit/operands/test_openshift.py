# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenShift, without its own APIs. Expectations are transcribed from GPU Operator 26.7: its assets, and what its
controllers do only on OpenShift. fields.yml has a row for the effect of the policy's own switch."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects as marked
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import env, facts, node, objects, plan, pod

KERNEL = "5.14.0-427.50.1.el9_4.x86_64"
COREOS = {**node(("rhcos", "4.18"), runtime="cri-o"), "kernel": KERNEL}
# From 4.19 on the id of its os-release is rhel; the Node says what it is.
LATER = {**node(("rhel", "9.6"), runtime="cri-o", **{"node.openshift.io/os_id": "rhel"}), "kernel": KERNEL,
         "os_image": "Red Hat Enterprise Linux CoreOS 9.6.20250715-0"}
PRECOMPILED = {"driver": {"usePrecompiled": True, "version": "580", "repository": "quay.io/me"}}
OWN = {"namespace": "nvidia-gpu-operator"}
RULES = {"prometheus_rules": True}


def without_driver(*nodes: dict[str, Any], **settings: Any) -> dict[str, dict[str, Any]]:
    return objects({"driver": {"enabled": False}, "psa": {"enabled": True}, "nodeStatusExporter": {"enabled": True}},
                   {**facts(*nodes, monitors=True), **RULES}, **settings)


@pytest.mark.parametrize("known", [COREOS, LATER], ids=["rhcos", "rhel"])
def test_it_is_known_by_its_nodes(known: dict[str, Any]) -> None:
    found = without_driver(known)
    assert env(found, "nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-ctr")["RUNTIME"] == "crio"
    assert env(found, "gpu-feature-discovery", "gpu-feature-discovery")["USE_NODE_FEATURE_API"] == "false"
    assert {"nvidia-device-plugin-daemonset", "nvidia-container-toolkit-daemonset"} <= {
        one["metadata"]["name"] for one in found.values()}


CLAIM = node(runtime="cri-o", **{"node.openshift.io/os_id": "rhel"})


@pytest.mark.parametrize("known", [{"openshift": False}, {"openshift": None}, {}])
def test_one_node_does_not_make_it_openshift(known: dict[str, Any]) -> None:
    """Nor does a CPU Node. If the server could not be queried, all Nodes must report it."""
    for claim in (CLAIM, {**CLAIM, "gpu": False}, {**node(gpu=False), "os_image": LATER["os_image"]}):
        plain, made = (plan({}, {**facts(*nodes, monitors=True), **RULES, **known}, **OWN)
                       for nodes in ([node(), node()], [node(), node(), claim]))
        for part in ("common", "psa", "components"):
            assert made[part] == plain[part]
    said = plan({"driver": {"enabled": False}}, {**facts(CLAIM, CLAIM), **known})["common"]["openshift"]
    assert said is (known.get("openshift") is not False)
    assert plan({"driver": {"enabled": False}}, {**facts(CLAIM, node()), "openshift": True})["common"]["openshift"]


def test_a_plain_cluster_has_none_of_it() -> None:
    text = str(objects({"nodeStatusExporter": {"enabled": True}}, {**facts(node(), monitors=True), **RULES}, **OWN))
    for word in ("openshift", "USE_NODE_FEATURE_API", "prometheus-k8s", "accelerator_", "GPUOperatorNodeDeployment"):
        assert word not in text, word


def test_every_pod_of_a_daemon_set_may_run_privileged() -> None:
    found = objects({**PRECOMPILED, "dcgm": {"enabled": True}, "nodeStatusExporter": {"enabled": True}}, facts(COREOS))
    bound = {(one["subjects"][0]["name"], one["roleRef"]["name"]) for one in found.values()
             if one["kind"] == "RoleBinding" and one["roleRef"]["kind"] == "Role"}
    rule = {"apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"], "verbs": ["use"],
            "resourceNames": ["privileged"]}
    allowed = {account for account, role in bound if rule in found[f"Role/{role}"]["rules"]}
    assert allowed == {one["spec"]["template"]["spec"]["serviceAccountName"] for one in found.values()
                       if one["kind"] == "DaemonSet"}
    assert "nvidia-driver" in allowed and "nvidia-dcgm-exporter" in allowed and len(allowed) > 7


@pytest.mark.parametrize(("settings", "labels"), [
    (OWN, {"openshift.io/cluster-monitoring": "true", **{f"pod-security.kubernetes.io/{mode}": "privileged"
                                                         for mode in ("enforce", "audit", "warn")}}),
    ({}, None),
])
def test_labels_are_for_a_namespace_of_its_own(settings: dict[str, Any], labels: dict[str, str] | None) -> None:
    found = without_driver(COREOS, **settings)
    name = settings.get("namespace", "gpu-operator")
    assert found[f"Namespace/{name}"]["metadata"].get("labels") == labels
    said = plan({"driver": {"enabled": False}, "psa": {"enabled": True}}, facts(COREOS), **settings)["notes"]
    assert any("nvidia-gpu-operator" in text for text in said) is (labels is None)


@pytest.mark.parametrize(("said", "stays"), [("false", "false"), (None, "true")])
def test_monitoring_that_a_user_switches_off_stays_off(said: str | None, stays: str) -> None:
    manifest = marked.namespace_manifest("nvidia-gpu-operator", True, True)
    one, = marked.wanted({marked.SHARED: [manifest]})
    live = {"metadata": {"labels": {"openshift.io/cluster-monitoring": said} if said else {}}}
    assert marked.for_namespace(one, live).manifest["metadata"]["labels"]["openshift.io/cluster-monitoring"] == stays


def test_its_prometheus_looks_and_has_rules() -> None:
    found = without_driver(COREOS, **OWN)
    assert found["Role/prometheus-k8s"]["rules"] == [
        {"apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"]}]
    assert found["RoleBinding/prometheus-k8s"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "openshift-monitoring"}]
    rules = found["PrometheusRule/nvidia-node-status-exporter-alerts"]["spec"]["groups"][0]["rules"]
    assert [(rule["alert"], rule["for"]) for rule in rules] == [
        (f"GPUOperatorNodeDeployment{part}Failed", "30m") for part in ("", "Driver", "Toolkit", "Cuda")]
    records = found["PrometheusRule/nvidia-dcgm-exporter-accelerators"]["spec"]["groups"][0]["rules"]
    assert [rule["record"] for rule in records] == [f"accelerator_{name}" for name in (
        "gpu_utilization", "memory_used_bytes", "memory_total_bytes", "power_usage_watts", "temperature_celsius",
        "sm_clock_hertz", "memory_clock_hertz")]
    assert {rule["labels"]["vendor"] for rule in records} == {"nvidia"}


def test_a_driver_with_built_modules() -> None:
    """One DaemonSet for each kernel; its container gets the version of OpenShift."""
    name = f"nvidia-driver-daemonset-{KERNEL.replace('_', '.').replace('.x86.64', '')}-rhcos4.18"
    found = objects(PRECOMPILED, facts(COREOS))
    assert pod(found, name)["containers"][0]["image"] == f"quay.io/me/driver:580-{KERNEL}-rhcos4.18"
    assert env(found, name, "nvidia-driver-ctr")["OPENSHIFT_VERSION"] == "4.18"


@pytest.mark.parametrize("known", [COREOS, LATER], ids=["rhcos", "rhel"])
def test_a_driver_that_is_built_there_is_refused_by_name(known: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="n1: on Red Hat Enterprise Linux CoreOS, .*driver toolkit") as caught:
        plan({}, facts(known))
    assert "driver.usePrecompiled" in str(caught.value) and "operator.use_ocp_driver_toolkit" in str(caught.value)
    with pytest.raises(PolicyError, match="rhcos4.18 of gpu_node_os"):
        plan({"platform": {"openshift": True}}, facts(), node_os=["rhcos4.18"])


def test_a_node_without_a_gpu_stops_no_driver() -> None:
    """As long as NFD has not labelled the Nodes, none is known to have a GPU."""
    claim, other = {**LATER, "gpu": False}, node(gpu=False)
    assert plan({}, facts(claim, other))["components"]["driver"]["state"] == "present"
    with pytest.raises(PolicyError, match="n1: on Red Hat Enterprise Linux CoreOS"):
        plan({}, facts(claim))


def test_the_toolkit_may_be_left_out() -> None:
    """Then the container is entitled to download its build dependencies, as with the GPU Operator."""
    policy = {"operator": {"use_ocp_driver_toolkit": False}, "driver": {"repoConfig": {"configMapName": "repos"}}}
    found = objects(policy, {**facts(COREOS), "config_maps": {"repos": {"own.repo": ""}}})
    container = pod(found, "nvidia-driver-daemonset")["containers"][0]
    assert container["image"] == "nvcr.io/nvidia/driver:595.91.07-rhcos4.18"
    assert "/etc/yum.repos.d/own.repo" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_a_node_that_brings_its_driver() -> None:
    made = plan({}, facts({**COREOS, "labels": {"nvidia.com/gpu.deploy.driver": "pre-installed"}}))
    assert made["components"]["driver"]["state"] == "absent"
    assert made["components"]["container_toolkit"]["state"] == "present"


def test_features_are_read_by_its_own_operator() -> None:
    made = plan({"driver": {"enabled": False}}, facts(COREOS))
    assert made["components"]["nfd"]["state"] == "absent"
    asked = plan({"driver": {"enabled": False}}, facts(COREOS),
                 placement={"nfd": "cluster", "container_toolkit": "cluster"})
    assert asked["components"]["nfd"]["state"] == "present"
