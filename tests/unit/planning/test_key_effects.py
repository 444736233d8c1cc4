# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each key of each format is set to another value, and its effect is what the table says: another plan and other
objects, a note that names it, or a refusal."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import format_schemas, formats, key_effects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import set_path
from ansible_collections.gpuops.nvidia.tests import policy_keys
from ansible_collections.gpuops.nvidia.tests.unit.planning.key_probe import (
    KINDS,
    NVIDIA_DRIVER,
    Object,
    Probe,
    documents,
    leaves,
)
from ansible_collections.gpuops.nvidia.tests.unit.policy import test_charts
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters

RELEASE = "26.7.0"
PROBE = Probe(RELEASE)


@pytest.mark.parametrize("placement", ["hosts", "cluster"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_key_does_what_the_table_says(kind: str, placement: str) -> None:
    assert PROBE.differences(kind, placement) == []


@pytest.mark.parametrize("mapping", [
    {"driver": "cluster"}, {"dcgm_exporter": "cluster"}, {"device_plugin": "cluster"},
    {"mig_manager": "cluster", "nfd": "cluster"}, {"driver": "cluster", "container_toolkit": "cluster"}],
    ids=lambda one: "-".join(one))
def test_no_key_is_silent_with_a_mapping_of_gpu_placement(mapping: dict[str, str]) -> None:
    assert PROBE.silent(mapping) == []


def test_no_key_is_silent_on_hosts_in_the_oldest_release() -> None:
    assert Probe("24.6.0").differences("values", "hosts") == [
        "driver.kernelModuleType: the table says effect, a run says note",
        "driver.useOpenKernelModules: the table says noted, a run says effect",
        "cdi.default: the table says noted, a run says effect"]


def test_values_have_all_keys_of_a_cluster_policy() -> None:
    values = dict(leaves(format_schemas.VALUES))
    assert {path for path, _schema in leaves(format_schemas.CLUSTER_POLICY)} <= values.keys()


def test_each_key_of_the_common_format_has_a_row_and_each_row_has_a_key() -> None:
    paths = [path for path, _schema in leaves(format_schemas.COMMON)]
    for placement in key_effects.PLACEMENTS:
        assert {key_effects.of_key(path, placement).kind for path in paths} <= set(key_effects.KINDS)
    with pytest.raises(KeyError):
        key_effects.of_key("unknown.key", "hosts")
    patterns = [one for keys in key_effects.rows() for one in keys]
    first = {next(one for one in patterns if fnmatchcase(path, one)) for path in paths}
    assert set(patterns) - first <= {
        "node-feature-discovery.worker.tolerations", "node-feature-discovery.*", "global.*", "draDriver"}


def test_the_page_has_the_table() -> None:
    assert policy_keys.PAGE.read_text() == policy_keys.page(), "run python -m tests.policy_keys"


def cluster_policy(**spec: Any) -> Object:
    return documents("ClusterPolicy", spec)[0]


def nvidia_driver(name: str, **spec: Any) -> Object:
    return {**NVIDIA_DRIVER, "metadata": {"name": name}, "spec": {"version": "580.173.02", **spec}}


def notes_of(policy: Any, placement: str, places: Any = "", release: str = RELEASE) -> str:
    """The notes about the keys of a policy."""
    chosen = releases.release(release)
    read = formats.read(policy, chosen)
    return "\n".join([*read.warnings, *key_effects.notes(
        read, chosen, placement, components.placements(places or placement))])


@pytest.mark.parametrize("version", test_charts.FACTS)
def test_a_copy_of_the_charts_values_gets_few_notes(version: str) -> None:
    copied: Object = {}
    for path, value in test_charts.leaves(version).items():
        *parents, last = path.split(" ")
        functools.reduce(lambda section, key: section.setdefault(key, {}), parents, copied)[last] = value
    noted = notes_of(copied, "hosts", release=version).splitlines()
    assert [one.split(":")[0] for one in noted if "defaultRuntime" not in one and "upgradeCRD" not in one] == [
        "nfd.enabled", "devicePlugin.enabled", "migManager.config.default"]


@pytest.mark.parametrize("path, value", [
    ("daemonsets.tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
    ("driver.image", "driver"), ("driver.manager.version", "v0.12.0"), ("devicePlugin.version", "v0.20.0"),
    ("gds.repository", "nvcr.io/nvidia/cloud-native"), ("vfioManager.version", "v0.12.0"),
    ("dcgmExporter.serviceMonitor.enabled", True), ("vfioManager.enabled", False)])
def test_values_that_charts_write_are_not_noted(path: str, value: Any) -> None:
    values: Object = {}
    set_path(values, path, value)
    assert notes_of(values, "hosts") == ""


def test_many_keys_are_named_by_their_sections() -> None:
    resources = {"requests": {"cpu": "1m"}, "limits": {"cpu": "2m"}}
    sections = dict.fromkeys(("gfd", "dcgmExporter", "validator", "migManager"), {"resources": resources})
    policy = cluster_policy(**sections, toolkit={"resources": resources, "version": "v1.18.0"})
    assert sorted(notes_of(policy, "hosts").split(": no effect on hosts: ")[0].split(", ")) == [
        "dcgmExporter.resources", "gfd.resources", "migManager.resources", "toolkit.resources", "validator.resources"]


def test_keys_are_named_as_the_values_of_the_chart_have_them() -> None:
    eviction = {"deleteEmptyDir": True, "force": True}
    noted = notes_of({"driver": {"upgradePolicy": {"gpuPodDeletion": eviction}}}, "hosts")
    assert noted.startswith("driver.upgradePolicy.gpuPodDeletion.deleteEmptyDir, ")
    assert notes_of({"driver": {"upgradePolicy": {"podDeletion": eviction}}}, "hosts").startswith(
        "driver.upgradePolicy.podDeletion.deleteEmptyDir, ")
    assert "podDeletion" in notes_of(cluster_policy(driver={"upgradePolicy": {"podDeletion": eviction}}), "hosts")


def test_keys_of_dcgm_are_noted_on_hosts_whose_exporter_needs_it() -> None:
    values = {"dcgm": {"enabled": False, "repository": "registry.example"}}
    assert notes_of(values, "hosts").startswith("dcgm.repository: no effect on hosts: only pods use it")
    assert notes_of(values, "cluster") == notes_of({**values, "dcgmExporter": {"enabled": False}}, "hosts") == ""


@pytest.mark.parametrize("values, off", [
    ({"validator": {"plugin": {"env": [{"name": "WITH_WORKLOAD", "value": "true"}]}}}, ["devicePlugin"]),
    ({"mig": {"strategy": "mixed"}}, ["devicePlugin", "gfd"])])
def test_keys_that_only_disabled_components_use_are_noted(values: Object, off: list[str]) -> None:
    assert notes_of(values, "cluster") == ""
    disabled = {**values, **dict.fromkeys(off, {"enabled": False})}
    noted = notes_of(disabled, "cluster")
    assert noted.endswith(": no effect in the cluster: nothing that is delivered there uses it.")


def test_keys_that_apply_in_the_cluster_are_not_noted_for_its_hosts() -> None:
    policy = cluster_policy(daemonsets={"labels": {"a": "b"}}, devicePlugin={"image": "x"}, toolkit={"image": "y"},
                            operator={"labels": {"a": "b"}})
    assert notes_of(policy, "hosts", "hybrid").startswith("toolkit.image: no effect on hosts: ")
    assert notes_of(policy, "cluster", "hybrid").startswith("operator.labels: no effect in the cluster: ")


@pytest.mark.parametrize("placement", ["hosts", "cluster"])
def test_a_driver_section_that_nvidia_drivers_replace_is_noted(placement: str) -> None:
    spec = {"driver": {"useNvidiaDriverCRD": True, "enabled": True, "version": "570.86.15", "image": "x"},
            "gds": {"enabled": True}}
    noted = notes_of([cluster_policy(**spec), nvidia_driver("a")], placement)
    assert noted.startswith("driver.version, driver.image, gds.enabled: no effect ")
    assert noted.endswith(": NVIDIADriver a is used instead.")
    # The keys of the NVIDIADriver count as well.
    own = notes_of([cluster_policy(**spec), nvidia_driver("a", image="y")], "hosts")
    assert "driver.image: no effect on hosts: only pods use it" in own


def test_the_same_note_of_hosts_and_of_the_cluster_is_printed_once() -> None:
    both = [f"a, b: no effect {place}: why." for place in ("on hosts", "in the cluster")]
    assert key_effects.merged(["x.", *both, "c: no effect on hosts: why.", "x."]) == [
        "x.", "a, b: no effect on hosts and in the cluster: why.", "c: no effect on hosts: why."]


def test_the_default_driver_of_the_chart_is_noted_beside_others() -> None:
    crd: Object = {"driver": {"nvidiaDriverCRD": {"enabled": True}}, "extraObjects": [nvidia_driver("a")]}
    assert notes_of(crd, "cluster").startswith(
        "The NVIDIADriver that the chart creates from the section driver is not used, because extraObjects has "
        "NVIDIADriver a. If you need it, add it to extraObjects; otherwise set driver.nvidiaDriverCRD.deployDefaultCR")
    crd["driver"]["nvidiaDriverCRD"]["deployDefaultCR"] = False
    assert notes_of(crd, "cluster") == ""


CHART_DRIVER = {"driverType": "vgpu-host-manager", "deployDefaultCR": False, "nodeSelector": {"a": "b"}}


@pytest.mark.parametrize("placement", ["hosts", "cluster"])
def test_keys_of_the_charts_driver_are_noted_unless_it_is_enabled(placement: str) -> None:
    values: Object = {"driver": {"nvidiaDriverCRD": CHART_DRIVER}}
    assert notes_of(values, placement) == (
        "driver.nvidiaDriverCRD.driverType, driver.nvidiaDriverCRD.deployDefaultCR, "
        "driver.nvidiaDriverCRD.nodeSelector: no effect, because driver.nvidiaDriverCRD.enabled is not true.")
    values["driver"]["enabled"] = False
    assert notes_of(values, placement) == ""
    usual = {"nvidiaDriverCRD": {"enabled": False, "driverType": "gpu", "deployDefaultCR": True, "nodeSelector": {}}}
    assert notes_of({"driver": usual}, placement) == ""


@pytest.mark.parametrize("selector", [{}, {"nodeSelector": {"a": "b"}}, {"driverType": "gpu"}])
def test_keys_of_the_charts_driver_are_refused_beside_nvidia_drivers(selector: Object) -> None:
    values: Object = {"driver": {"nvidiaDriverCRD": {**CHART_DRIVER, "enabled": True}},
                      "extraObjects": [nvidia_driver("a", **selector)]}
    read = formats.read(values, releases.release(RELEASE))
    assert "driverType: 'vgpu-host-manager' is not supported on hosts" in formats.unsupported_on_hosts(read)[0]
    with pytest.raises(PolicyError) as caught:
        clusters.plan(values)
    reasons = [one["reason"] for one in caught.value.details["refusals"]]
    assert reasons == ["driver.nvidiaDriverCRD.driverType: 'vgpu-host-manager' is not supported in a cluster yet",
                       "driver.nvidiaDriverCRD.nodeSelector: {'a': 'b'} is not supported in a cluster"]
    values["driver"]["nvidiaDriverCRD"] = {"enabled": True, "deployDefaultCR": False, "driverType": "vgpu"}
    noted = "driver.nvidiaDriverCRD.driverType: no effect, because the driverType of each NVIDIADriver applies."
    assert noted in formats.read(values, releases.release(RELEASE)).warnings


@pytest.mark.parametrize("placement", ["hosts", "cluster"])
def test_nvidia_drivers_that_are_not_used_are_noted(placement: str) -> None:
    crd = {"driver": {"useNvidiaDriverCRD": True}}
    two = [cluster_policy(**crd), nvidia_driver("a", default=True, image="x"), nvidia_driver("b")]
    assert notes_of(two, placement).startswith("NVIDIADriver a is ignored, because NVIDIADriver b has no nodeSelector")
    off = [cluster_policy(driver={"useNvidiaDriverCRD": True, "enabled": False}), nvidia_driver("a")]
    assert "NVIDIADriver a is ignored, because driver.enabled is false." in notes_of(off, placement)
    off[1]["spec"]["gds"] = {"enabled": True}
    read = formats.read(off, releases.release(RELEASE))
    assert (read.driver_name, read.enabled("gds")) == ("", False)


def test_nvidia_drivers_with_a_selector_are_noted_on_hosts() -> None:
    policy = [cluster_policy(driver={"useNvidiaDriverCRD": True}), nvidia_driver("b", default=True),
              nvidia_driver("a", nodeSelector={"pool": "a"}, repository="registry.example")]
    assert notes_of(policy, "hosts") == (
        "NVIDIADriver a: no effect on hosts: hosts have no Node labels for its nodeSelector; set the variables of the "
        "role driver for groups of the inventory.")
    assert notes_of(policy, "cluster") == ""


@pytest.mark.parametrize("release", ["25.10.1", "26.7.0"])
@pytest.mark.parametrize("placement", ["hosts", "cluster"])
def test_keys_that_older_releases_have_are_noted(placement: str, release: str) -> None:
    policy = cluster_policy(kataManager={"enabled": True, "image": "x"}, operator={"initContainer": {"image": "y"}})
    noted = notes_of(policy, placement, release=release)
    assert "kataManager" in noted and "operator.initContainer" in noted
    off = cluster_policy(kataManager={"enabled": False, "image": "x"})
    assert notes_of(off, placement, release=release) == ""
