# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fuzz targets for the readers of data from kubelets, pods and hosts. An API server guarantees the types of objects,
but not the values."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.answers import received
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import printable, refusals, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import choose_driver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes, cluster_nodes, node_facts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.wire import Wire
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, inventory_nodes, read_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import kernel_module_config, monitoring
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import terminal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import causes, logs, pods
from hypothesis import strategies as st

from tests.fuzz import spoil
from tests.fuzz.inputs import Target, data, fields, words
from tests.fuzz.on_hosts import folder, tree, written

FOREIGN = words("nvidia.com/", "gpu", "true", "false", "-oProxyCommand=x", "10.0.0.1", "{{ 1 }}", "\x1b[2J", "9", ".",
                "-", "\u202e", "\u00b2", "A100", "mig-1g.10gb", "containerd://", "Ubuntu 24.04", "v1.36.1+rke2r1")
KEYS = st.sampled_from([
    "nvidia.com/gpu.count", "nvidia.com/gpu.product", "nvidia.com/gpu.family", "nvidia.com/gpu.memory",
    "nvidia.com/mig.capable", "nvidia.com/mig.strategy", "nvidia.com/mig.config", "nvidia.com/mig.config.state",
    "nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.rev", "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.runtime-version.full", "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor",
    "nvidia.com/gpu.clique", "nvidia.com/gpu.machine", "nvidia.com/vgpu.host-driver-version", "nvidia.com/gpu.present",
    "nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.deploy.mig-manager", "nvidia.com/gpu.workload.config",
    "nvidia.com/gpu.deploy.operands", "feature.node.kubernetes.io/pci-10de.present", "kubernetes.io/hostname",
    "feature.node.kubernetes.io/system-os_release.ID", "feature.node.kubernetes.io/system-os_release.VERSION_ID",
    "feature.node.kubernetes.io/kernel-version.full", "feature.node.kubernetes.io/cpu-cpuid.HYPERVISOR"])
NOTES = st.sampled_from([deploy_labels.ANNOTATION, deploy_labels.GONE, deploy_labels.HOST_GONE,
                         "nfd.node.kubernetes.io/feature-labels", "nfd.node.kubernetes.io/extended-resources"])
TEXT = st.one_of(FOREIGN, st.sampled_from(["true", "false", "8", "2026-11-23T10:00:00Z", "mixed"]))
CONDITIONS = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["Ready", "PodScheduled", "x"]),
                                             "status": st.sampled_from(["True", "False", "Unknown"])},
                                            optional={"reason": TEXT, "message": TEXT, "lastTransitionTime": TEXT}),
                      max_size=2)
NODES = st.fixed_dictionaries({
    "metadata": st.fixed_dictionaries({"name": TEXT}, optional={
        "labels": st.dictionaries(KEYS, TEXT, max_size=8), "annotations": st.dictionaries(NOTES, TEXT, max_size=3),
        "deletionTimestamp": st.just("2026-11-23T10:00:00Z")})}, optional={
    "spec": st.fixed_dictionaries({}, optional={
        "providerID": TEXT, "unschedulable": st.booleans(),
        "taints": st.lists(st.fixed_dictionaries({"key": TEXT, "effect": TEXT}), max_size=2)}),
    "status": st.fixed_dictionaries({}, optional={
        "addresses": st.lists(st.fixed_dictionaries({
            "type": st.sampled_from(["InternalIP", "ExternalIP", "Hostname"]), "address": TEXT}), max_size=3),
        "allocatable": st.dictionaries(st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "cpu"]), st.one_of(
            words("1", "9", "k", "e", "-", "\u00b2", "\u0663"), st.just("8")), max_size=2),
        "conditions": CONDITIONS,
        "nodeInfo": st.fixed_dictionaries({}, optional=dict.fromkeys(
            ("osImage", "kernelVersion", "architecture", "containerRuntimeVersion", "kubeletVersion"), TEXT))})})
ENDED = st.fixed_dictionaries({"exitCode": st.integers(0, 255)}, optional={"reason": TEXT, "message": TEXT})
STATE = st.fixed_dictionaries({}, optional={
    "waiting": st.fixed_dictionaries({}, optional={"reason": TEXT, "message": TEXT}), "terminated": ENDED,
    "running": st.just({"startedAt": "2026-11-23T10:00:00Z"})})
STATUSES = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["a", "b"])}, optional={
    "ready": st.booleans(), "state": STATE, "lastState": STATE, "restartCount": st.integers(0, 2 ** 31)}), max_size=2)
CONTAINERS = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["a", "b", "driver-validation"])}, optional={
    "image": TEXT, "restartPolicy": st.sampled_from(["Always"])}), max_size=2)
PODS = st.fixed_dictionaries({
    "metadata": st.fixed_dictionaries({"name": TEXT}, optional={"creationTimestamp": TEXT}),
    "spec": st.fixed_dictionaries({"containers": CONTAINERS}, optional={
        "nodeName": TEXT, "initContainers": CONTAINERS}),
    "status": st.fixed_dictionaries({}, optional={
        "phase": st.sampled_from(["Failed", "Pending", "Running"]), "reason": TEXT, "message": TEXT,
        "conditions": CONDITIONS, "containerStatuses": STATUSES, "initContainerStatuses": STATUSES})})
CELLS = st.one_of(TEXT, words("4", " (", "2m", "3s", " ago)", "/", "Running", "<none>"), st.integers(0, 2 ** 62),
                  st.none())
COLUMNS = ("Name", "Ready", "Status", "Restarts", "Age", "IP", "Node")
TABLES = st.fixed_dictionaries({
    "columnDefinitions": st.just([{"name": name} for name in COLUMNS])},
    optional={"rows": st.lists(st.fixed_dictionaries({"cells": st.lists(CELLS, min_size=7, max_size=7)}), max_size=3)})
DEPLOY = deploy_labels.parse_deploy({"components": {"driver": True, "mig_manager": True, "device_plugin": True},
                                     "mig_default": "all-disabled", "plugin_configs": {"a": "b"}})
RELEASES = [releases.release(version) for version in releases.available()]
TERMS = deploy_labels.Terms(1_795_000_000.0)


def calm(text: str) -> None:
    """Checks that a text contains no control sequences for a terminal."""
    if printable.printable(text) != text:
        raise AssertionError(f"a terminal would obey {text!r:.200}")


def _inventory(node: Mapping[str, Any]) -> None:
    facts = inventory_nodes.describe(node)
    inventory_nodes.groups(facts["gpu_node"])
    calm(json.dumps(facts["gpu_node"], ensure_ascii=False))
    for address in facts["addresses"].values():
        wrong = address.startswith("-") or not address.isascii() or len(address.split()) != 1
        if inventory_nodes.is_address(address) and wrong:
            raise AssertionError(f"{address!r} would be an argument")


def _facts(node: Mapping[str, Any]) -> None:
    seen = read_cluster._node(node)
    facts = node_facts.facts_of_node("a", seen)
    json.dumps(facts)
    cluster_nodes.pools({"a": seen})
    for release in RELEASES if seen["os"] else ():
        suffix = cluster_nodes.tag((seen["os"]["id"], seen["os"]["version"]), release)
        if not re.fullmatch("[a-z0-9.-]+", suffix):
            raise AssertionError(f"{suffix!r} would be part of a name")


def _labels(node: Mapping[str, Any]) -> None:
    meta = node["metadata"]
    one = deploy_labels.Node("a", meta.get("labels") or {}, meta.get("annotations") or {}, True)
    change = deploy_labels.plan_present(one, DEPLOY, TERMS)
    deploy_labels.plan_absent(one)
    deploy_labels.undecided(one, DEPLOY)
    json.dumps(change.patch() if change else None)


def _stuck(given: tuple[Mapping[str, Any], list[str]]) -> None:
    pod, said = given
    for stuck in (pods.not_ready_pod(pod, "validator"), pods.restarted_pod(pod, "driver")):
        cause = causes.explain(stuck, said, "gpu", said)
        style = terminal.Style()
        calm(style.text(cause.cause))
        calm(style.text(stuck.message))


def _log(text: str) -> None:
    """Checks that the log of a pod is shown without secrets and limited to one screen."""
    for line in logs.readable(f"{text} HTTP_PASSWORD=hunter2, https://me:hunter2@mirror.example"):
        calm(line)
        if "hunter2" in line or len(line) > logs.WIDTH:
            raise AssertionError(line)


def _table(table: Mapping[str, Any]) -> None:
    pods.rows(table)
    pods.recently_restarted(table)


def _answer(answer: dict[str, Any]) -> None:
    """Checks that the answer of a host is accepted completely or not at all, and that it is only data."""
    told = received(answer, {}, ("gpu_labels",), ("facts",))
    calm(json.dumps(told, ensure_ascii=False, default=repr, skipkeys=True))  # all keys of JSON are texts
    if set(told.get("ansible_facts", {})) - {"gpu_labels"} or "add_host" in told:
        raise AssertionError(told)
    if told.get("failed") and told.get("error", {}).get("kind") == answer_shapes.KIND:
        raise GpuopsError(str(told["msg"]))


def _holder(text: str) -> None:
    holder = Holder.read(text)
    if holder:
        Holder.of_run().must_wait_for(holder)
        if Holder.read(holder.text) != holder:
            raise AssertionError(f"{holder.text!r} is another holder")


def _kubeconfig(document: Any) -> None:
    tree("/kubeconfig", written(document))
    for context in (None, "b"):
        Wire(f"{folder().name}/kubeconfig", context, 1)


def _versions(text: str) -> None:
    cluster_nodes.parse_tag(text)
    monitoring.node_label(text)
    choose_driver.parse_version(text, "x")


_ODD = data("name", "a", "https://[")
def _named(key: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    one = st.fixed_dictionaries({"name": st.sampled_from(["a", "a", "b"]), key: inner})
    return st.lists(one, min_size=1, max_size=2)


def _spoilt(given: tuple[Any, int, int]) -> Any:
    document, number, times = given
    for _time in range(times):
        document = spoil(random.Random(number), document)
    return document


# Without auth-provider and exec, which start programs and send requests.
KUBECONFIGS = st.tuples(st.fixed_dictionaries({
    "current-context": st.just("a"),
    "contexts": _named("context", st.fixed_dictionaries({"cluster": st.just("a")}, optional={"user": st.just("a")})),
    "clusters": _named("cluster", st.fixed_dictionaries({
        "server": st.sampled_from(["http://a", "http://[::1", "a", "http://a:x", "https://a:6443/"])}, optional={
            "certificate-authority-data": words("QQ", "=", "-----BEGIN CERTIFICATE-----\n"),
            "insecure-skip-tls-verify": st.booleans(), "tls-server-name": TEXT,
            "proxy-url": st.sampled_from(["http://b", "socks5://b", "b", "http://["])})),
    "users": _named("user", st.fixed_dictionaries({}, optional={
        "token": TEXT, "tokenFile": TEXT, "username": TEXT, "password": TEXT, "client-certificate": TEXT,
        "client-certificate-data": TEXT, "client-key-data": TEXT}))}),
    st.integers(0, 2 ** 60), st.integers(0, 2)).map(_spoilt)
TARGETS: dict[str, Target] = {
    "Nodes as hosts": Target(NODES, _inventory),
    "Nodes as facts": Target(NODES, _facts),
    "labels of Nodes": Target(NODES, _labels),
    "pods": Target(st.tuples(PODS, st.lists(TEXT, max_size=3)), _stuck),
    "tables of pods": Target(TABLES, _table),
    "logs": Target(words("a", "-", "://", "@", "/", " ", "\n", "\r", "token", "passw", "=", ": ", '"', "'", "bearer ",
                         "\x1b[", "9;"), _log),
    "answers": Target(st.dictionaries(st.sampled_from([*answer_shapes.ANSWER, "ansible_facts", "add_host", "x"]), data(
        "id", "action", "target", "reason", "needs", "never", "assumed", "gpu_labels", "gpu_disruption", "host", "gpus",
        "schema", "kind", "message", "\x1b[2J"), max_size=5), _answer),
    "monitoring": Target(data("rules", "dashboards", "counters", "vendor", "thresholds", "rule_labels", "temperature",
                              "idle_percent"), monitoring.read),
    "holders": Target(st.one_of(words("a", "-", "/", "9", "@"), st.tuples(
        words("a", "-", "."), st.integers(0, 10 ** 11), st.integers(0, 10 ** 21), st.integers(0, 9999), words("0", "1"),
        ).map(lambda one: f"{one[0]}/{one[1]}/{one[2]}@{one[3]:04}-11-{one[4]}T10:00:00Z")), _holder),
    "kubeconfigs": Target(st.one_of(KUBECONFIGS, st.lists(st.sampled_from(
        ["{", "}", "[", "]", "a", ": ", "\n", "- ", "&a ", "*a", "!!float ", "9"])).map("".join)), _kubeconfig),
    "module parameters by ConfigMap": Target(st.lists(fields({
        "kind": st.just("ConfigMap"), "metadata": fields({"name": st.just("a")}, _ODD),
        "data": st.dictionaries(st.sampled_from(["nvidia.conf", "nvidia-uvm.conf", "x"]), st.one_of(
            words("NVreg_A", "=", "1", "\n", " "), _ODD), max_size=2)}, _ODD), max_size=2),
        lambda objects: kernel_module_config.find(objects, "a")),
    "driver versions": Target(words("595", ".", "91", "R", "r", "-", "ubuntu24.04", "rhel9", ":26.7.0-4.8.3"),
                              _versions, refusals.Refused),
}
