# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every field of a policy for the driver, and all its changes in the objects. Expectations are transcribed from GPU
Operator 26.7: its ClusterPolicy controller and its templates of NVIDIADrivers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import defaults
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import format_schemas as keys_module
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, objects, plan

MAIN, MANAGER = "containers[nvidia-driver-ctr]", "initContainers[k8s-driver-manager]"
PEERMEM, GDS, GDRCOPY = (f"containers[nvidia-{name}-ctr]" for name in ("peermem", "fs", "gdrcopy"))
IMAGE = "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04"
KERNEL = "5.15.0-84-generic"
VARIABLE, LIMIT = [{"name": "A", "value": "1"}], {"limits": {"cpu": "1"}}
TOPOLOGY, LICENCE, TOKEN = "nvidia-topologyd.conf", "gridd.conf", "client_configuration_token.tok"
NEW = "(new)"


def cluster() -> dict[str, Any]:
    """One Node, and the ConfigMaps and Secrets to which the policies below refer."""
    one = {**node(**{"kubernetes.io/hostname": "n1"}), "kernel": KERNEL}
    return {**facts(one), "secrets": {"secret": True}, "config_maps": {
        "files": {"b.list": "", "a.list": ""}, "topology": {TOPOLOGY: ""}, "licence": {LICENCE: "", TOKEN: ""},
        "modules": {"nvidia.conf": ""}}}


def mounted(container: str, volume: str, folder: str, *keys: str) -> dict[str, Any]:
    """The facts of the files that a container gets from the keys of a volume."""
    found = {}
    for key in keys:
        place = f"{container}.volumeMounts[{folder}/{key}]"
        found.update({f"{place}.name": volume, f"{place}.subPath": key, f"{place}.readOnly": True})
    return found


def of_map(volume: str, name: str, *keys: str, kind: str = "configMap") -> dict[str, Any]:
    source = "secretName" if kind == "secret" else "name"
    return {f"volumes[{volume}].{kind}.{source}": name,
            **{f"volumes[{volume}].{kind}.items[{key}].path": key for key in keys}}


REPOSITORIES = of_map("files", "files", "a.list", "b.list")
CERTIFICATES = of_map("files", "files", "a.list", "b.list")
APT, CRT = "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"
LICENSED = mounted(MAIN, "licensing-config", "/drivers", LICENCE)
WITH_TOKEN = mounted(MAIN, "licensing-config", "/drivers/ClientConfigToken", TOKEN)

# (path, value, what is set besides, by path in the pod, or in the DaemonSet, what is there then; None: it is gone).
# The paths are those of ClusterPolicy; the same holds for an NVIDIADriver, whose names are in RENAMED.
SHARED: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("driver.repository", "quay.io/me", {}, {f"{MAIN}.image": "quay.io/me/driver:595.91.07-ubuntu22.04"}),
    ("driver.image", "mine", {}, {f"{MAIN}.image": "nvcr.io/nvidia/mine:595.91.07-ubuntu22.04"}),
    ("driver.version", "580.173.02", {}, {f"{MAIN}.image": "nvcr.io/nvidia/driver:580.173.02-ubuntu22.04"}),
    ("driver.imagePullPolicy", "Always", {}, {f"{MAIN}.imagePullPolicy": "Always"}),
    ("driver.imagePullSecrets", ["a"], {}, {"imagePullSecrets[a]": NEW}),
    ("driver.env", VARIABLE, {}, {f"{MAIN}.env[A].value": "1"}),
    ("driver.resources", LIMIT, {"driver.rdma.enabled": True, "gds.enabled": True, "gdrcopy.enabled": True}, {
        f"{name}.resources.limits.cpu": "1" for name in (MAIN, MANAGER, PEERMEM, GDS, GDRCOPY)}),
    ("driver.hostNetwork", True, {}, {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}),
    ("driver.kernelModuleType", "open", {}, {f"{MAIN}.env[KERNEL_MODULE_TYPE].value": "open",
                                             f"{MAIN}.env[OPEN_KERNEL_MODULES_ENABLED].value": "true"}),
    *((f"driver.startupProbe.{key}", 7, {}, {f"{MAIN}.startupProbe.{key}": 7}) for key in (
        "initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold")),
    ("driver.rdma.enabled", True, {}, {
        PEERMEM: NEW, f"{MAIN}.env[GPU_DIRECT_RDMA_ENABLED].value": "true",
        f"{MANAGER}.env[GPU_DIRECT_RDMA_ENABLED].value": "true"}),
    ("driver.rdma.useHostMofed", True, {"driver.rdma.enabled": True}, {
        **{f"{name}.env[USE_HOST_MOFED].value": "true" for name in (MAIN, MANAGER, PEERMEM)},
        "volumes[mlnx-ofed-usr-src].hostPath.path": "/usr/src"}),
    ("driver.manager.repository", "quay.io/me", {}, {f"{MANAGER}.image": "quay.io/me/k8s-driver-manager:v0.12.0"}),
    ("driver.manager.image", "mine", {}, {f"{MANAGER}.image": "nvcr.io/nvidia/cloud-native/mine:v0.12.0"}),
    ("driver.manager.version", "v1", {}, {f"{MANAGER}.image": "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v1"}),
    ("driver.manager.imagePullPolicy", "Always", {}, {f"{MANAGER}.imagePullPolicy": "Always"}),
    ("driver.manager.imagePullSecrets", ["a"], {}, {"imagePullSecrets[a]": NEW}),
    ("driver.manager.env", VARIABLE, {}, {f"{MANAGER}.env[A].value": "1"}),
    ("driver.repoConfig.configMapName", "files", {"gds.enabled": True, "gdrcopy.enabled": True}, {
        **REPOSITORIES, **{path: value for name in (MAIN, GDS, GDRCOPY)
                           for path, value in mounted(name, "files", APT, "a.list", "b.list").items()}}),
    ("driver.certConfig.name", "files", {"gds.enabled": True, "gdrcopy.enabled": True}, {
        **CERTIFICATES, **{path: value for name in (MAIN, GDS, GDRCOPY)
                           for path, value in mounted(name, "files", CRT, "a.list", "b.list").items()}}),
    ("driver.kernelModuleConfig.name", "modules", {"driver.rdma.enabled": True}, {
        **of_map("modules", "modules", "nvidia.conf"),
        **mounted(MAIN, "modules", "/drivers", "nvidia.conf"),
        **mounted(PEERMEM, "modules", "/drivers", "nvidia.conf")}),
    ("driver.virtualTopology.config", "topology", {}, {
        **of_map("topology-config", "topology", TOPOLOGY),
        **mounted(MAIN, "topology-config", "/etc/nvidia", TOPOLOGY)}),
    ("driver.licensingConfig.configMapName", "licence", {}, {
        **of_map("licensing-config", "licence", LICENCE), **LICENSED}),
    ("driver.licensingConfig.secretName", "secret", {}, {
        **of_map("licensing-config", "secret", LICENCE, kind="secret"), **LICENSED}),
    ("driver.licensingConfig.nlsEnabled", True, {"driver.licensingConfig.secretName": "secret"}, {
        f"volumes[licensing-config].secret.items[{TOKEN}].path": TOKEN, **WITH_TOKEN}),
    ("driver.secretEnv", "secret", {"gds.enabled": True, "gdrcopy.enabled": True}, {
        f"{name}.envFrom": [{"secretRef": {"name": "secret"}}] for name in (MAIN, GDS, GDRCOPY)}),
    ("gds.enabled", True, {}, {GDS: NEW, f"{MAIN}.env[GDS_ENABLED].value": "true"}),
    ("gdrcopy.enabled", True, {}, {GDRCOPY: NEW, f"{MAIN}.env[GDRCOPY_ENABLED].value": "true"}),
    *((f"{section}.{key}", value, {f"{section}.enabled": True}, {path.format(name): expected})
      for section, name, image, version in (("gds", GDS, "nvidia-fs", "2.29.4"), ("gdrcopy", GDRCOPY, "gdrdrv", "v2.6"))
      for key, value, path, expected in (
          ("repository", "quay.io/me", "{}.image", f"quay.io/me/{image}:{version}-ubuntu22.04"),
          ("image", "mine", "{}.image", f"nvcr.io/nvidia/cloud-native/mine:{version}-ubuntu22.04"),
          ("version", "v9", "{}.image", f"nvcr.io/nvidia/cloud-native/{image}:v9-ubuntu22.04"),
          ("imagePullPolicy", "Always", "{}.imagePullPolicy", "Always"),
          ("imagePullSecrets", ["a"], "imagePullSecrets[a]", NEW), ("args", ["x"], "{}.args", ["x"]),
          ("env", VARIABLE, "{}.env[A].value", "1"))),
]
NAMES = ("metadata.name", "metadata.labels.app", "selector.app", "pod.labels.app")
NAMED = "nvidia-driver-daemonset-5.15.0-84-generic-ubuntu22.04"
SECTION: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("driver.args", ["x"], {}, {f"{MAIN}.args": ["x"]}),
    ("driver.usePrecompiled", True, {"driver.version": "580"}, {
        "metadata.name": NAMED,
        **{f"{place}.labels.nvidia.com/precompiled": "true" for place in ("metadata", "pod")},
        "nodeSelector.feature.node.kubernetes.io/kernel-version.full": KERNEL,
        f"{MAIN}.image": f"nvcr.io/nvidia/driver:580-{KERNEL}-ubuntu22.04"}),
]
NODE_TERM = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
OF_NVIDIA_DRIVER: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("args", ["x"], {}, {f"{MAIN}.args": ["init", "x"]}),
    ("usePrecompiled", True, {"version": "580"}, {
        **dict.fromkeys(NAMES, f"nvidia-gpu-driver-mine-ubuntu22.04-{KERNEL}"),
        **{f"{place}.labels.nvidia.com/precompiled": "true" for place in ("metadata", "pod")},
        **{f"{place}.labels.nvidia.com/precompiled.kernel-version": KERNEL for place in ("metadata", "pod")},
        "nodeSelector.feature.node.kubernetes.io/kernel-version.full": KERNEL,
        f"{MAIN}.image": f"nvcr.io/nvidia/driver:580-{KERNEL}-ubuntu22.04",
        f"{MAIN}.startupProbe.initialDelaySeconds": 5}),
    ("driverType", "vgpu", {"repository": "quay.io/me"}, dict.fromkeys(NAMES, "nvidia-vgpu-driver-mine-ubuntu22.04")),
    ("nodeSelector", {"kubernetes.io/hostname": "n1"}, {}, {"nodeSelector.kubernetes.io/hostname": "n1"}),
    ("nodeAffinity", {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NODE_TERM]}}, {}, {
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": [NODE_TERM]}),
    ("tolerations", [{"key": "mine", "operator": "Exists"}], {}, {"tolerations[mine].operator": "Exists"}),
    ("labels", {"a": "b", "app": "x", "app.kubernetes.io/component": "x"}, {},
     {"metadata.labels.a": "b", "pod.labels.a": "b"}),
    ("annotations", {"a": "b"}, {}, {"metadata.annotations.a": "b", "pod.annotations.a": "b"}),
    ("priorityClassName", "high", {}, {"priorityClassName": "high"}),
    ("podSecurityContext", {"fsGroup": 7}, {}, {"securityContext.fsGroup": 7}),
]
# What an NVIDIADriver calls otherwise.
RENAMED = {"repoConfig.configMapName": "repoConfig.name", "virtualTopology.config": "virtualTopologyConfig.name",
           "licensingConfig.configMapName": "licensingConfig.name"}
# Fields that change no object, and why.
REASONS = {
    "driver.useNvidiaDriverCRD": "NVIDIADrivers then say what is delivered; without any the section counts",
    "driver.useOpenKernelModules": "has no effect in the operator from 25.3 on; the user is told",
    "driver.livenessProbe.": "the driver's container has none in the operator, which fails on it; the user is told",
    "driver.readinessProbe.": "the driver's container has none in the operator, which fails on it; the user is told",
    "driver.upgradePolicy.": "says how an upgrade goes from Node to Node, not what a DaemonSet is",
    "driver.default": "says which Nodes are taken: test_driver_containers.py",
}


def leaves(schema: Any, path: str) -> Iterator[str]:
    if isinstance(schema, dict) and path.rpartition(".")[2] not in ("nodeAffinity", "podSecurityContext", "resources"):
        for key, inner in schema.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path


def test_every_field_has_an_effect_or_a_reason() -> None:
    every = {path for section in ("driver", "gds", "gdrcopy")
             for path in leaves(keys_module.CLUSTER_POLICY[section], section)}
    shown = {path for path, *_rest in [*SHARED, *SECTION]}
    without = sorted(path for path in every - shown if not path.startswith(tuple(REASONS)))
    # Off, nothing of the driver is left.
    assert without == ["driver.enabled"]
    assert not any("DaemonSet/nvidia-driver" in name for name in objects({"driver": {"enabled": False}}))
    assert shown <= every
    mine = {path if path.startswith(("gds.", "gdrcopy.")) else f"driver.{path}"
            for path in leaves(keys_module.NVIDIA_DRIVER, "")}
    shown = {own_path(path) for path, *_rest in SHARED} | {f"driver.{path}" for path, *_rest in OF_NVIDIA_DRIVER}
    assert sorted(path for path in mine - shown if not path.startswith(tuple(REASONS))) == []


def test_no_reason_is_for_a_field_that_has_an_effect() -> None:
    for reason in REASONS:
        assert not [path for path, *_rest in [*SHARED, *SECTION] if path.startswith(reason)]
        assert any(path.startswith(reason) for schema in ({"driver": keys_module.CLUSTER_POLICY["driver"]},
                                                          {"driver": keys_module.NVIDIA_DRIVER})
                   for path in leaves(schema, ""))


@pytest.mark.parametrize(("path", "value", "besides", "expected"), [*SHARED, *SECTION])
def test_a_field_of_the_section(path: str, value: Any, besides: dict[str, Any], expected: dict[str, Any]) -> None:
    assert changes(policy(besides), policy({**besides, path: value})) == expected


@pytest.mark.parametrize(("path", "value", "besides", "expected"), [
    *SHARED, *OF_NVIDIA_DRIVER])
def test_a_field_of_an_nvidia_driver(path: str, value: Any, besides: dict[str, Any], expected: dict[str, Any]) -> None:
    assert changes(nvidia_driver(besides), nvidia_driver({**besides, path: value})) == expected


@pytest.mark.parametrize(("path", "value"), [
    ("driver.upgradePolicy.maxParallelUpgrades", 3), ("driver.upgradePolicy.drain.enable", True),
    ("driver.livenessProbe.periodSeconds", 3), ("driver.readinessProbe.failureThreshold", 3),
    ("driver.useNvidiaDriverCRD", True), ("driver.useOpenKernelModules", True),
])
def test_fields_with_a_reason_change_nothing(path: str, value: Any) -> None:
    assert changes(policy({}), policy({path: value})) == {}
    if "Probe" in path:
        assert any("only a startup probe" in note for note in plan(policy({path: value}), cluster())["notes"])


@pytest.mark.parametrize(("version", "said"), [
    ("999.99.99", ["driver.version 999.99.99: driver branch 999 is not known to this collection, so its support of the "
                   "GPUs is not checked."]), ("580.173.02", []), ("580.999.99", []), ("sha256:" + "0" * 64, [])])
def test_a_branch_that_nobody_knows_is_said(version: str, said: list[str]) -> None:
    notes = plan(policy({"driver.version": version}), cluster())["notes"]
    assert [note for note in notes if "branch" in note] == said


# -- policies, and what differs between their DaemonSets

def policy(values: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for path, value in values.items():
        defaults.set_path(spec, path, value)
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
            "spec": spec}


def own_path(path: str) -> str:
    """The path in an NVIDIADriver for a path of ClusterPolicy, again below C(driver.)."""
    section, _dot, rest = path.partition(".")
    return f"driver.{RENAMED.get(rest, rest)}" if section == "driver" else path


def nvidia_driver(values: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {"driverType": "gpu", "image": "driver", "default": False}
    for path, value in values.items():
        own = own_path(path)
        defaults.set_path(spec, own[len("driver."):] if own.startswith("driver.") else own, value)
    return {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "mine"}, "spec": spec}


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Maps paths to the values in the DaemonSet of the second policy that differ; a container that only it has is one
    entry."""
    old, new = dict(facts_of(before)), dict(facts_of(after))
    found: dict[str, Any] = {}
    for path in {*old, *new}:
        if old.get(path) == new.get(path) or "DRIVER_CONFIG_DIGEST" in path:
            continue
        container = path.partition("]")[0] + "]"
        if path.startswith("containers[") and not any(other.startswith(container) for other in old):
            found[container] = NEW
        else:
            found[path] = new.get(path)
    return found


def facts_of(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    made = copy.deepcopy([one for name, one in objects(given, cluster()).items() if one["kind"] == "DaemonSet"
                          and one["metadata"]["labels"].get("app.kubernetes.io/component") == "nvidia-driver"])
    one, = made
    template = one["spec"]["template"]
    yield from flat(one["metadata"], "metadata")
    yield from flat(one["spec"]["selector"]["matchLabels"], "selector")
    yield from flat(template["metadata"], "pod")
    yield from flat(template["spec"], "")


def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of every leaf; list items are identified by the key that distinguishes them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and path.rpartition(".")[2] in _KEYS:
        name = _KEYS[path.rpartition(".")[2]]
        for item in value:
            rest = {key: inner for key, inner in item.items() if key != name}
            place = f"{path}[{item[name]}]"
            yield from flat(rest, place) if rest else iter([(place, NEW)])
    else:
        yield path, value


_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath",
         "items": "key", "imagePullSecrets": "name", "tolerations": "key"}
