# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy in other formats: nothing is lost or invented, and a note names keys that a format does not have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Needed, limits
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import differences, export, format_schemas, formats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import fuzz

NEWEST = releases.release("26.7.0")
OLDER = releases.release("24.9.2")


def cluster_policy(spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "cluster-policy"}
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": metadata, "spec": spec}


def nvidia_driver(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}, "spec": spec}


def read(source: Any, release: releases.Release = NEWEST) -> formats.Policy:
    return formats.read(source, release)


WORD = st.text("ab1.-/", min_size=1, max_size=6)
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.one_of(st.just(""), WORD), "bool": st.booleans(), "int": st.integers(1, 65535),
    "int-or-str": st.one_of(st.integers(0, 9), WORD), "map": st.dictionaries(WORD, WORD, max_size=2),
    "objects": st.lists(st.just({"a": 1}), max_size=2),
    "strmap": st.dictionaries(WORD, WORD, max_size=2), "strs": st.lists(WORD, max_size=2),
    "quantities": st.dictionaries(WORD, st.sampled_from(["1Gi", 1]), max_size=2), "image": st.just("image"),
    "duration": st.just("15s"), "amount": st.sampled_from(["1", "25%"]), "amount-or-int": st.sampled_from([1, "25%"]),
}


def strategy(schema: Any) -> st.SearchStrategy[Any]:
    """Random values that conform to a schema."""
    if isinstance(schema, Needed):
        return strategy(schema.schema)
    if isinstance(schema, dict):
        needed = {key: strategy(one) for key, one in schema.items() if isinstance(one, Needed)}
        return st.fixed_dictionaries(needed, optional={key: strategy(one) for key, one in schema.items()
                                                       if key not in needed})
    if isinstance(schema, list):
        return st.lists(strategy(schema[0]), max_size=2)
    if schema == "any":
        return st.just([1])
    return st.sampled_from(schema) if isinstance(schema, tuple) else TYPES[limits(schema)[0]]


SPECS = strategy(format_schemas.CLUSTER_POLICY)
DRIVERS = strategy(format_schemas.NVIDIA_DRIVER)
RELEASES = st.sampled_from(["26.7.0", "26.3.3", "25.3.4", "24.9.2"])
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def bare(value: Any, path: str = "") -> Any:
    """The value without empty sections, which have no meaning, except for those whose presence has one."""
    if not isinstance(value, dict):
        return value
    inner = {key: bare(one, f"{path}.{key}") for key, one in value.items()}
    return {key: one for key, one in inner.items() if one != {} or f"{path}.{key}" == ".driver.upgradePolicy"}


def acceptable(spec: dict[str, Any]) -> bool:
    """Whether all rules between keys accept a spec."""
    try:
        read(cluster_policy(spec))
    except InputError:
        return False
    return True


def there_and_back(spec: dict[str, Any], version: str = "26.7.0") -> None:
    """ClusterPolicy, values, ClusterPolicy."""
    release = releases.release(version)
    first = read(cluster_policy(spec), release)
    values = read(export.to_values(first), release)
    assert values.kind == "values"
    assert differences.compare(first, values) == [], "the values mean the same"
    back = export.to_cluster_policy(values)
    assert bare(back["spec"]) == bare(_with_chart_versions(spec, version)), "what was written comes back"


def _with_chart_versions(spec: dict[str, Any], version: str) -> dict[str, Any]:
    """Completed as by a chart: images that belong to the operator get its version, unless they have one."""
    found = copy.deepcopy(spec)
    for section in ("validator", "nodeStatusExporter"):
        said = found.get(section) or {}
        if said.get("image") and not said.get("version") and ("/" not in said["image"] or said.get("repository")):
            said["version"] = f"v{version}"
    return found


def driver_there_and_back(spec: dict[str, Any]) -> None:
    """NVIDIADriver, ClusterPolicy, NVIDIADriver."""
    first = read(nvidia_driver("default", **spec))
    back = read(export.to_nvidia_driver(read(export.to_cluster_policy(first))))
    ignored = ("driver.default", "driver.driverType")
    found = [one for one in differences.compare(first, back) if one["path"] not in ignored and not _completed(one)]
    assert found == []


def _completed(one: dict[str, Any]) -> bool:
    """Adds the part of the image that an NVIDIADriver requires."""
    return one["before"] is None and one["path"] in ("driver.image", "driver.repository", "driver.version")


@MANY
@given(SPECS.filter(acceptable), RELEASES)
def test_cluster_policy_to_values_and_back(spec: dict[str, Any], version: str) -> None:
    there_and_back(spec, version)


def for_all_nodes(spec: dict[str, Any]) -> bool:
    return not spec.get("nodeSelector") and not spec.get("nodeAffinity") and spec.get("driverType", "gpu") == "gpu"


@MANY
@given(DRIVERS.filter(for_all_nodes))
def test_driver_to_cluster_policy_and_back(spec: dict[str, Any]) -> None:
    driver_there_and_back(spec)


def alone(schema: Any) -> list[Any]:
    """Maps each key of a schema to a document with only this key."""
    if isinstance(schema, Needed):
        return alone(schema.schema)
    if isinstance(schema, dict):
        needed = {key: alone(inner)[0] for key, inner in schema.items() if isinstance(inner, Needed)}
        return [{**needed, key: one} for key, inner in schema.items() for one in alone(inner)]
    if isinstance(schema, tuple):
        return [schema[-1]]
    if isinstance(schema, list):
        return [[one] for one in alone(schema[0])]
    if schema == "any":
        return [[1]]
    return [fuzz.GOOD[limits(schema)[0]][-1]]


def test_every_key_of_a_cluster_policy_alone() -> None:
    documents = alone(format_schemas.CLUSTER_POLICY)
    assert len(documents) > 300
    for spec in documents:
        there_and_back(spec)


def test_every_key_of_a_driver_alone() -> None:
    documents = [spec for spec in alone(format_schemas.NVIDIA_DRIVER) if for_all_nodes(spec)]
    assert len(documents) > 70
    for spec in documents:
        driver_there_and_back(spec)


def test_a_cluster_policy_says_what_the_chart_would_decide_otherwise() -> None:
    values = export.to_values(read(cluster_policy({"driver": {"version": "595.91.07"}})))
    assert values["driver"] == {"version": "595.91.07", "upgradePolicy": None, "licensingConfig": {"nlsEnabled": None}}
    assert values["mig"] == {"strategy": None} and values["dcgm"] == {"enabled": None}
    assert values["ccManager"] == {"enabled": None, "defaultMode": None}
    assert "ccManager" not in export.to_values(read(cluster_policy({}), OLDER)), "this chart has no such default"


def test_values_become_a_cluster_policy_with_the_charts_defaults() -> None:
    policy = read({"nfd": {"enabled": False}, "operator": {"resources": {"limits": {"cpu": 1}}}, "driver": {
        "upgradePolicy": {"gpuPodDeletion": {"force": True}}, "nvidiaDriverCRD": {"enabled": True}}})
    made = export.to_cluster_policy(policy)
    assert made["spec"]["mig"] == {"strategy": "single"} and made["spec"]["dcgm"] == {"enabled": False}
    assert made["spec"]["driver"]["upgradePolicy"] == {"autoUpgrade": True, "podDeletion": {"force": True}}
    assert made["spec"]["driver"]["useNvidiaDriverCRD"] is True
    values = export.to_values(read(made))
    assert values["driver"]["upgradePolicy"] == {"autoUpgrade": True, "gpuPodDeletion": {"force": True}}
    assert {"operator", "daemonsets", "nodeStatusExporter"} <= set(made["spec"]), "the API server wants these"
    said, = export.unexported(policy, "cluster_policy")
    assert said == "A ClusterPolicy does not have these keys: operator.resources."


@pytest.mark.parametrize(("release", "version"), [("26.7.0", "v26.7.0"), ("24.6.2", "v24.6.2")])
def test_images_of_the_operator_itself_get_the_charts_version(release: str, version: str) -> None:
    """values.yaml of the chart has no version for them, and its templates add it; an operator refuses an image without
    one."""
    image = {"repository": "nvcr.io/nvidia", "image": "gpu-operator"}
    source = {"validator": image, "nodeStatusExporter": {**image, "enabled": False}}
    spec = export.to_cluster_policy(read(source, releases.release(release)))["spec"]
    assert spec["validator"]["version"] == spec["nodeStatusExporter"]["version"] == version


def test_images_that_the_policy_names_stay() -> None:
    spec = export.to_cluster_policy(read({"validator": {"version": "v1"}, "nodeStatusExporter": {
        "repository": "", "image": "example.org/exporter@sha256:1"}}))["spec"]
    assert spec["validator"]["version"] == "v1" and "version" not in spec["nodeStatusExporter"]
    theirs = export.to_cluster_policy(read(cluster_policy({"validator": {"image": "gpu-operator"}})))["spec"]
    assert theirs["validator"] == {"image": "gpu-operator"}


def test_what_the_chart_does_not_pass_on_is_said() -> None:
    policy = read(cluster_policy({"daemonsets": {"podSecurityContext": {"runAsUser": 0}}, "toolkit": {"args": ["-v"]}}))
    said, = export.unexported(policy, "values")
    assert said.endswith("daemonsets.podSecurityContext, toolkit.args.")


def test_what_an_nvidia_driver_does_not_have_is_said() -> None:
    spec = {"toolkit": {"args": ["-v"]}, "mig": {"strategy": "mixed"}, "dcgm": {"enabled": False},
            "gds": {"enabled": True}, "daemonsets": {"labels": {"a": "b"}, "updateStrategy": "OnDelete"},
            "driver": {"version": "580.173.02", "upgradePolicy": {"maxParallelUpgrades": 2}, "secretEnv": "s"}}
    for release, upgrade in (("26.7.0", ""), ("26.3.3", "driver.upgradePolicy, ")):
        said, = export.unexported(read(cluster_policy(spec), releases.release(release)), "nvidia_driver")
        assert said == ("An NVIDIADriver does not have these sections and keys: "
                        f"{upgrade}toolkit, mig, daemonsets.updateStrategy.")
    beside = cluster_policy({**spec, "driver": {**spec["driver"], "useNvidiaDriverCRD": True}})  # type: ignore[dict-item]
    said, = export.unexported(read([beside, nvidia_driver("one", default=True)]), "nvidia_driver")
    assert said.endswith("keys: toolkit, mig, daemonsets.labels, daemonsets.updateStrategy.")
    for source in (None, nvidia_driver("one", default=True), {"driver": {"version": "580.173.02"}}):
        assert export.unexported(read(source), "nvidia_driver") == []


def test_drivers_for_some_nodes_travel_with_the_values() -> None:
    sources = [cluster_policy({"driver": {"useNvidiaDriverCRD": True}}), nvidia_driver("fallback", default=True),
               nvidia_driver("blue", nodeSelector={"pool": "blue"}, version="580.173.02")]
    first = read(sources)
    values = export.to_values(first)
    assert values["driver"]["nvidiaDriverCRD"] == {"enabled": True, "deployDefaultCR": False}
    assert [one["metadata"]["name"] for one in values["extraObjects"]] == ["fallback", "blue"]
    second = read(values)
    assert second.pools == first.pools and differences.compare(first, second) == []
    assert export.to_nvidia_driver(second) == sources[1:]


def test_a_cluster_policy_becomes_the_default_driver() -> None:
    spec = {"driver": {"version": "580.173.02", "licensingConfig": {"configMapName": "grid"}, "repoConfig": {},
                       "virtualTopology": {"config": "topology"}, "useOpenKernelModules": True},
            "gds": {"enabled": True}, "daemonsets": {"labels": {"a": "b"}, "updateStrategy": "OnDelete"}}
    made, = export.to_nvidia_driver(read(cluster_policy(spec)))
    assert made == nvidia_driver(
        "default", version="580.173.02", repository="nvcr.io/nvidia", image="driver", driverType="gpu", default=True,
        licensingConfig={"name": "grid"}, repoConfig={}, virtualTopologyConfig={"name": "topology"},
        gds={"enabled": True}, labels={"a": "b"}, upgradePolicy={"autoUpgrade": False})


def test_drivers_before_26_7_have_neither_default_nor_upgrade_policy() -> None:
    made, = export.to_nvidia_driver(read({"driver": {"usePrecompiled": True, "version": "550"}}, OLDER))
    assert made["spec"] == {"version": "550", "repository": "nvcr.io/nvidia", "image": "driver", "driverType": "gpu",
                            "usePrecompiled": True, "licensingConfig": {"nlsEnabled": True}}


def test_an_image_that_is_a_path_stands_alone() -> None:
    made, = export.to_nvidia_driver(read(cluster_policy({"driver": {"image": "mirror/driver:1"}})))
    assert {"repository", "version"}.isdisjoint(made["spec"]) and made["spec"]["image"] == "mirror/driver:1"


@pytest.mark.parametrize(("source", "expected"), [
    ({"driver": {"enabled": False}}, []), (cluster_policy({"driver": {"enabled": False}}), []),
])
def test_no_driver(source: Any, expected: list[Any]) -> None:
    assert export.to_nvidia_driver(read(source)) == expected


@pytest.mark.parametrize(("source", "part"), [
    (nvidia_driver("a", nodeSelector={"a": "b"}), "one driver for all"),
    ([nvidia_driver("a", default=True), nvidia_driver("b", nodeSelector={"a": "b"})], "one driver for all"),
    (nvidia_driver("a", driverType="vgpu"), "driverType 'vgpu'"),
    ({"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "spec": {"draDriver": {}}}, "a GPUCluster cannot"),
    ({"apiVersion": "gpu.nvidia.com/v1", "kind": "GPUClusterPolicy", "spec": {}}, "a GPUClusterPolicy cannot"),
])
def test_what_cannot_become_a_cluster_policy(source: Any, part: str) -> None:
    for make in (export.to_cluster_policy, export.to_values):
        with pytest.raises(InputError, match=part):
            make(read(source))


def test_defaults_are_empty_values() -> None:
    policy = read(None)
    assert export.to_values(policy) == {}
    assert differences.compare(policy, read(export.to_cluster_policy(policy))) == []


@pytest.mark.parametrize("release", ["24.9.2", "25.3.4", "26.7.0"])
def test_a_cluster_policy_for_the_operator_has_all_images(release: str) -> None:
    """The operator has no defaults for them, and fails without two sections of the upgrade policy."""
    given = {"driver": {"version": "580", "upgradePolicy": {"maxUnavailable": 1, "drain": {"enable": True}}},
             "toolkit": {"image": "registry.example.com/toolkit@sha256:" + "a" * 64}, "gdrcopy": {"enabled": True},
             "devicePlugin": {"repository": "registry.example.com/mine"}}
    policy = read(given, releases.release(release))
    spec = export.complete(export.to_cluster_policy(policy), policy, "mirror.example.com")["spec"]
    assert (spec["driver"]["repository"], spec["driver"]["image"], spec["driver"]["version"]) == (
        "mirror.example.com/nvidia", "driver", "580")
    assert spec["driver"]["manager"]["image"] == "k8s-driver-manager" and spec["driver"]["manager"]["version"]
    assert spec["devicePlugin"]["repository"] == "registry.example.com/mine" and spec["devicePlugin"]["version"]
    assert {"repository", "version"} & {*spec["toolkit"]} == set(), "a complete reference"
    assert spec["gdrcopy"]["image"] == "gdrdrv" and "gds" not in spec
    upgrade = spec["driver"]["upgradePolicy"]
    assert upgrade["drain"] == {"enable": True} and upgrade["podDeletion"]["timeoutSeconds"] == 300
    assert read({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "x"}, "spec": spec},
                releases.release(release)).get("driver.version") == "580"
    own = read(cluster_policy({"driver": {"version": "580"}}), releases.release(release))
    assert export.complete(export.to_cluster_policy(own), own, "nvcr.io") == export.to_cluster_policy(own)
