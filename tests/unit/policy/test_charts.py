# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values of the charts of ten releases are accepted, and our defaults equal theirs."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import defaults, differences, export, formats

FACTS: dict[str, Any] = yaml.safe_load((pathlib.Path(__file__).parent / "charts.yml").read_text())
COMPONENTS = ("driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter", "gfd", "migManager", "gds", "gdrcopy",
              "nodeStatusExporter", "vgpuManager", "vgpuDeviceManager", "vfioManager", "sandboxDevicePlugin",
              "kataSandboxDevicePlugin", "ccManager", "psa", "cdi", "sandboxWorkloads")


def leaves(version: str) -> dict[str, Any]:
    """Maps paths to the values that the chart of a release sets."""
    found: dict[str, Any] = {}
    for release, facts in FACTS.items():
        for path in facts.get("gone", []):
            del found[path]
        found.update(facts["set"])
        if release == version:
            break
    return found


def values(version: str) -> dict[str, Any]:
    """The same as a document, including images."""
    document: dict[str, Any] = {}
    for path, value in leaves(version).items():
        *parents, last = path.split(" ")
        place = document
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = value
    for section in COMPONENTS:
        if "hostNetwork" in document.get(section, {}):
            document[section].update(repository="nvcr.io/nvidia", image=section.lower(), version="1",
                                     imagePullPolicy="IfNotPresent", imagePullSecrets=[])
    return document


def dotted(data: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(data, dict) or not data:
        return {path: data}
    return {inner: value for key, one in data.items()
            for inner, value in dotted(one, f"{path} {key}" if path else key).items()}


@pytest.mark.parametrize("version", FACTS)
def test_accepted(version: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values(version)))
    policy = formats.read(str(path), releases.release(version))
    assert policy.kind == "values"
    assert all("operator.defaultRuntime" in said for said in policy.warnings)


@pytest.mark.parametrize("version", FACTS)
def test_defaults_of_the_chart_are_those_of_the_chart(version: str) -> None:
    ours = dotted(defaults.of_chart(releases.release(version)))
    theirs = leaves(version)
    assert ours == {path: theirs[path] for path in ours}


@pytest.mark.parametrize("version", FACTS)
def test_silence_is_what_the_chart_says(version: str) -> None:
    release = releases.release(version)
    silent, said = formats.read({}, release), formats.read(values(version), release)
    assert {name: silent.enabled(name) for name in COMPONENTS} == {name: said.enabled(name) for name in COMPONENTS}
    for path in ("mig.strategy", "driver.upgradePolicy.autoUpgrade", "driver.licensingConfig.nlsEnabled"):
        assert silent.get(path) == said.get(path)


@pytest.mark.parametrize("version", FACTS)
def test_through_a_cluster_policy_and_back(version: str) -> None:
    release = releases.release(version)
    policy = formats.read(values(version), release)
    resource = formats.read(export.to_cluster_policy(policy), release)
    assert differences.compare(policy, resource) == []
    assert differences.compare(resource, formats.read(export.to_values(resource), release)) == []


# Source: the sample objects of GPU Operator 26.7 (config/samples), in short.
SAMPLES: list[dict[str, Any]] = [
    {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "gpu-cluster-policy"}, "spec": {
        "operator": {"runtimeClass": "nvidia", "initContainer": {}, "use_ocp_driver_toolkit": True},
        "psp": {"enabled": False}, "cdi": {}, "daemonsets": {}, "kataManager": {"enabled": False, "config": {}},
        "sandboxWorkloads": {"enabled": False, "defaultWorkload": "container"}, "mig": {"strategy": "single"},
        "validator": {"plugin": {"env": [{"name": "WITH_WORKLOAD", "value": "false"}]}},
        "devicePlugin": {"enabled": True, "config": {"name": "", "default": ""}}, "dcgm": {"enabled": True},
        "driver": {"manager": {}, "repoConfig": {"configMapName": ""}, "licensingConfig": {
            "secretName": "", "nlsEnabled": True}, "upgradePolicy": {"autoUpgrade": True, "drain": {"enable": False}}},
        "vgpuManager": {"enabled": True, "kernelModuleConfig": {"name": ""}}}},
    {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "sample"}, "spec": {
        "usePrecompiled": False, "driverType": "gpu", "repository": "nvcr.io/nvidia", "image": "driver",
        "version": "595.91.07", "imagePullSecrets": [], "nodeSelector": {}, "manager": {}, "gds": {"enabled": False},
        "upgradePolicy": {"autoUpgrade": True, "maxUnavailable": "25%", "waitForCompletion": {"podSelector": ""}},
        "repoConfig": {"name": ""}, "licensingConfig": {"secretName": ""}, "virtualTopologyConfig": {"name": ""}}},
    {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "gpu-cluster"}, "spec": {
        "draDriver": {"image": "dra-driver-nvidia-gpu", "version": "v0.4.0", "gpus": {"kubeletPlugin": {
            "env": [], "resources": {}}}, "computeDomains": {"enabled": True, "controller": {"resources": {}}}},
        "dcgm": {"enabled": False, "args": []}, "dcgmExporter": {"podLabelAllowlistRegex": [], "serviceMonitor": {
            "interval": "15s", "scrapeTimeout": "10s"}}, "hostPaths": {"rootFS": "/", "kubeletRootDir": "/x"},
        "daemonsets": {"updateStrategy": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "1"}}}},
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_samples(sample: dict[str, Any]) -> None:
    policy = formats.read(sample, releases.release("26.7.0"))
    assert (policy.kind, policy.warnings) == (sample["kind"], ())
