# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON schemas for editors: they agree with the reader, for valid and invalid documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests import schemas

FILES = {path.name: json.loads(path.read_text()) for path in schemas.FOLDER.glob("*.json")}
CLUSTER_POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
DRIVER = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "blue"}}
CLUSTER = {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster"}
ARTICLE = {"apiVersion": "gpu.nvidia.com/v1", "kind": "GPUClusterPolicy"}

GOOD: list[dict[str, Any]] = [
    {}, {"driver": {"version": "595.91.07", "upgradePolicy": {"gpuPodDeletion": {"force": True}}}},
    {"migManager": {"config": {"default": "", "create": True, "name": "m", "data": {"config.yaml": "version: v1"}}}},
    {"driver": {"upgradePolicy": {"maxUnavailable": "25%"}}}, {"driver": {"upgradePolicy": {"maxUnavailable": 3}}},
    {**CLUSTER_POLICY, "spec": {}},
    {**CLUSTER_POLICY, "spec": {"mig": {"strategy": None}}, "status": {"state": "ready"}},
    {**CLUSTER_POLICY, "spec": {"toolkit": {"env": [{"name": "A", "value": "1"}, {"name": "B"}],
                                            "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}}},
    {**DRIVER, "spec": {"driverType": "gpu", "nodeSelector": {"pool": "blue"}, "licensingConfig": {"name": "l"}}},
    {**DRIVER, "spec": {"driverType": "gpu", "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}}},
    {**CLUSTER, "spec": {"draDriver": {"featureGates": {"IMEX": True}, "gpus": {"kubeletPlugin": {
        "healthcheck": {"port": 65535}}}}}},
    {**ARTICLE, "spec": {"driver": {"enabled": True, "version": "470.82.01"}, "cuda": {"version": "11.4"}}},
]
BAD: list[dict[str, Any]] = [
    {"drivers": {}}, {"driver": {"verison": "1"}}, {"driver": {"version": 595}}, {"driver": {"enabled": "yes"}},
    {"driver": {"env": [{"value": "1"}]}}, {"driver": {"env": [{"name": "A", "value": True}]}},
    {"daemonsets": {"rollingUpdate": {"maxUnavailable": 1}}}, {"driver": {"upgradePolicy": {"maxUnavailable": "few"}}},
    {"driver": {"startupProbe": {"periodSeconds": 0}}}, {"dcgmExporter": {"serviceMonitor": {"interval": "15 s"}}},
    {"toolkit": {"resources": {"limits": {"cpu": "much"}}}}, {"ccManager": {"defaultMode": False}},
    {"kind": "Pod"}, {**CLUSTER_POLICY, "spec": {"nfd": {}}}, {**CLUSTER_POLICY}, {**CLUSTER_POLICY, "spec": None},
    {**CLUSTER_POLICY, "apiVersion": "nvidia.com/v2", "spec": {}}, {**CLUSTER, "spec": {}},
    {**CLUSTER_POLICY, "spec": {"mig": {"strategy": "several"}}}, {**DRIVER, "spec": {"driverType": "cpu"}},
    {**DRIVER, "spec": {"nodeSelector": {"pool": 1}}}, {**ARTICLE, "spec": {"toolkit": {}}},
    {**CLUSTER, "spec": {"draDriver": {"gpus": {"kubeletPlugin": {"healthcheck": {"port": 65536}}}}}},
    {**DRIVER, "spec": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "Is"}]}]}}}},
]
REGISTRY: Registry[Any] = Registry().with_resources(
    (name, Resource.from_contents(content)) for name, content in FILES.items())


def name_of(document: dict[str, Any]) -> str:
    return f"{str(document.get('kind', 'values')).lower()}.json"


def valid(document: dict[str, Any], name: str) -> bool:
    return bool(Draft202012Validator(FILES[name], registry=REGISTRY).is_valid(document))


def test_the_files_are_as_the_reader_has_it() -> None:
    wanted = {name: schemas.text(content) for name, content in schemas.wanted().items()}
    there = {path.name: path.read_text() for path in schemas.FOLDER.iterdir()}
    assert there == wanted, "write them anew: python -m tests.schemas"


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_is_a_json_schema(name: str) -> None:
    Draft202012Validator.check_schema(FILES[name])


@pytest.mark.parametrize("document", GOOD)
def test_good(document: dict[str, Any]) -> None:
    assert valid(document, name_of(document)) and valid(document, "policy.json")


@pytest.mark.parametrize("document", BAD)
def test_bad(document: dict[str, Any]) -> None:
    assert not valid(document, "policy.json")
    assert name_of(document) not in FILES or not valid(document, name_of(document))


def test_editors_tell_what_keys_mean() -> None:
    driver = FILES["clusterpolicy.json"]["properties"]["spec"]["properties"]["driver"]["properties"]
    assert "branch" in driver["version"]["description"]
    assert driver["useOpenKernelModules"]["deprecated"] is True
    assert FILES["values.json"]["properties"]["psp"]["deprecated"] is True
    own = FILES["nvidiadriver.json"]["properties"]["spec"]["properties"]
    assert "branch" in own["version"]["description"] and own["licensingConfig"]["properties"]["name"]["deprecated"]
