# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each key of each format is set to another value, and its effect is what the table says: another plan and other
objects, a note that names it, or a refusal."""

from __future__ import annotations

import copy
import functools
import re
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Needed, Schema, limits
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import (
    format_schemas,
    formats,
    key_effects,
    translate,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import merge, set_path
from ansible_collections.gpuops.nvidia.tests import policy_keys
from ansible_collections.gpuops.nvidia.tests.unit.policy import test_charts
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters, host_facts

Object = dict[str, Any]
RELEASE = releases.release("26.7.0")

SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
# Values of keys for which the value of their type has no meaning, or equals the default.
VALUES: Object = {
    "driver.version": "580.173.02", "driver.kernelModuleType": "proprietary", "driver.useNvidiaDriverCRD": True,
    "driver.nvidiaDriverCRD.driverType": "vgpu-host-manager", "driver.driverType": "vgpu-host-manager",
    "toolkit.version": "v1.18.0", "dcgm.version": "4.2.3-1-ubuntu22.04", "cuda.version": "12.9",
    "dcgmExporter.version": "4.2.3-4.1.3-ubuntu22.04", "daemonsets.updateStrategy": "OnDelete",
    "driver.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
    "migManager.config.data": {"config.yaml": "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n"},
    "devicePlugin.config.data": {"a": SHARED}, "devicePlugin.config.default": "b", "devicePlugin.config.name": "plugin",
    "dcgmExporter.config.data": "DCGM_FI_DEV_GPU_UTIL, gauge, x.\n",
    "node-feature-discovery": {"master": {"replicas": 3}}, "clusterPolicy.deployCR": False,
    "driver.nvidiaDriverCRD.deployDefaultCR": False,
    "operator.upgradeCRD": False, "driver.env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
    "toolkit.env": [{"name": "NVIDIA_CONTAINER_RUNTIME_MODE", "value": "legacy"}],
    "dcgmExporter.env": [{"name": "DCGM_EXPORTER_LISTEN", "value": ":9500"}],
    "sandboxWorkloads.defaultWorkload": "vm-vgpu", "sandboxWorkloads.mode": "kata",
    "ccManager.defaultMode": "devtools",
}
OF_TYPE: Object = {
    "str": "probe", "map": {"probe": "x"}, "strmap": {"probe": "x"}, "boolmap": {"probe": True},
    "quantities": {"cpu": "7m"}, "strs": ["probe"], "objects": [{"kind": "Probe"}], "image": "probe", "cuda": "12.9",
    "duration": "77s", "any": ["probe"], "amount": "7", "amount-or-int": 7, "int-or-str": 7, "int": 77}
IMAGE = {"repository": "registry.example", "image": "x", "version": "1"}
# Everything is on, so that keys of all components can have an effect.
ALL: Object = {
    "driver": {"rdma": {"enabled": True}, "upgradePolicy": {"autoUpgrade": True}}, "gds": {"enabled": True, **IMAGE},
    "gdrcopy": {"enabled": True, **IMAGE}, "nodeStatusExporter": {"enabled": True}, "dcgm": {"enabled": True},
    "dcgmExporter": {"serviceMonitor": {"enabled": True}}, "migManager": {"config": {"name": "layouts"}},
    "mig": {"strategy": "mixed"}, "cdi": {"enabled": True}, "psa": {"enabled": True}}
NVIDIA_DRIVER = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "a"},
                 "spec": {"version": "580.173.02"}}


def configured(section: str, data: Any) -> Object:
    """A ConfigMap of a component in the values of the chart."""
    return {section: {"config": {"name": "n", "create": True, "data": data}}}


# Sections that notes name as a whole.
WHOLE = ("kataManager", "psp", "extraObjects")
# Further policies in which a key has an effect, by the beginning of its path.
GIVEN: dict[str, list[Object]] = {
    "driver.usePrecompiled": [{"driver": {"version": "580"}}],
    "driver.upgradePolicy.autoUpgrade": [{"driver": {"upgradePolicy": {"autoUpgrade": False}}}],
    "driver.licensingConfig": [{"driver": {"licensingConfig": {"secretName": "n"}}}],
    "driver.nvidiaDriverCRD": [{"driver": {"nvidiaDriverCRD": {"enabled": True}}}],
    "devicePlugin.config": [merge(configured("devicePlugin", {"a": "version: v1\n", "b": SHARED}),
                                  {"devicePlugin": {"config": {"default": "a"}}})],
    "devicePlugin.config.default": [{"devicePlugin": {"config": {"name": "plugin", "default": "a"}}}],
    "devicePlugin.enabled": [{"devicePlugin": {"enabled": False}}],
    "dcgm.enabled": [{"dcgmExporter": {"enabled": False}}],
    "dcgmExporter.config": [configured("dcgmExporter", "DCGM_FI_DEV_SM_CLOCK, gauge, x.\n")],
    "dcgmExporter.hpcJobMapping": [{"dcgmExporter": {"hpcJobMapping": {"enabled": True}}}],
    "migManager.config": [configured("migManager", {
        "config.yaml": "version: v1\nmig-configs: {b: [{devices: all, mig-enabled: false}]}\n"})],
    "cuda": [{"cuda": {"enabled": True}}],
    "nfd.enabled": [{"nfd": {"enabled": False}}],
}


def leaves(schema: Mapping[str, Schema], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Schema]]:
    for key, one in schema.items():
        one = one.schema if isinstance(one, Needed) else one
        if isinstance(one, dict) and one:
            yield from leaves(one, (*path, key))
        else:
            yield ".".join((*path, key)), one


def another(path: str, schema: Schema, now: Any) -> Any:
    """Another value of a key than the one it has now."""
    if path in VALUES:
        return VALUES[path]
    if isinstance(schema, tuple):
        return next(one for one in schema if one not in ("", now))
    if isinstance(schema, list):
        item = schema[0]
        return [{key: another("", one.schema if isinstance(one, Needed) else one, None) for key, one in item.items()}
                if isinstance(item, dict) else "probe"]
    if isinstance(schema, dict):
        return {key: another("", one.schema if isinstance(one, Needed) else one, None) for key, one in schema.items()}
    assert isinstance(schema, str)
    word, _low, _high = limits(schema)
    return not now if word == "bool" else OF_TYPE[word]


def documents(kind: str, spec: Object, drivers: Sequence[Object] = ()) -> list[Object]:
    if kind == "values":
        return [{**spec, "extraObjects": [*spec.get("extraObjects", ()), *drivers]} if drivers else spec]
    head = {"apiVersion": format_schemas.FORMS[kind].api_version, "kind": kind, "metadata": {"name": "p"}}
    return [{**head, "spec": spec}, *drivers]


def without_reasons(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_reasons(one) for key, one in value.items() if key not in ("because", "notes", "preview")}
    return [without_reasons(one) for one in value] if isinstance(value, list) else value


def on_hosts(policy: list[Object]) -> tuple[Any, list[str]]:
    read, host = formats.read(policy, RELEASE), host_facts.facts(mellanox=True)
    if formats.unsupported_on_hosts(read):
        raise InputError("")
    made = resolve(read, RELEASE, {"a": host, "b": host}, {"b": {"mig_manager_selected": "all-disabled"}},
                   disruption="drain", strict=False)
    return without_reasons(made["hosts"]), made["notes"]


def in_cluster(policy: list[Object]) -> tuple[Any, list[str]]:
    capable = {**clusters.node(**{"nvidia.com/mig.capable": "true"}), "kernel": "6.8.0-45-generic"}
    maps = {"plugin": {"a": "version: v1\n", "b": SHARED}, "probe": dict.fromkeys((
        "gridd.conf", "client_configuration_token.tok", "nvidia-topologyd.conf", "nvidia.conf"), "x=1")}
    made = clusters.plan(policy, {**clusters.facts(capable, monitors=True), "config_maps": maps})
    return made, [*formats.read(policy, RELEASE).warnings, *made["notes"]]


RUNS = {"hosts": on_hosts, "cluster": in_cluster}


def differ(placement: str, now: Any, then: Any) -> bool:
    """Whether hosts get another plan, or the cluster other objects or labels. Objects depend only on the plan."""
    if without_reasons(now) == without_reasons(then):
        return False
    if placement == "hosts":
        return True
    return bool(now["deploy"] != then["deploy"]) or any(render(name, now) != render(name, then) for name in ORDER)


def own_spec(kind: str, spec: Object) -> Object:
    """The keys of a policy in the common format that a format has, in its structure."""
    spec = {key: value for key, value in spec.items() if key in format_schemas.FORMS[kind].schema or key == "driver"}
    if kind != "NVIDIADriver":
        return spec
    own = {**spec.pop("driver", {}), **spec}
    translate.rename(own, translate.DRIVER_PAIRS, back=True)
    return own


def common_path(kind: str, own: str) -> str:
    spec: Object = {}
    set_path(spec, own, "x")
    (path, _value), = key_effects.keys_of(format_schemas.COMMON, translate.to_common(kind, spec))
    return path


def classify(kind: str, own: str, schema: Schema, placement: str) -> set[str]:
    """What a run does if a key is set in the policies of L(GIVEN). own: its path in this format."""
    path, found = common_path(kind, own), set()
    section, run = path.removesuffix(".enabled"), RUNS[placement]
    more = [one for start, policies in GIVEN.items() if path.startswith(start) for one in policies]
    drivers = [NVIDIA_DRIVER] if path in ("driver.useNvidiaDriverCRD", "driver.default") else []
    # An upgradePolicy without autoUpgrade turns it off, whatever its other keys are.
    without = [] if path.startswith("driver.upgradePolicy") else [{}]
    for spec in [own_spec(kind, one) for one in (*more, ALL, *without)]:
        changed = copy.deepcopy(spec)
        former = base(kind, placement, repr((spec, drivers)))
        try:
            before = formats.read(documents(kind, spec, drivers), RELEASE) if former else None
            now = None if before is None else before.enabled(section) if path != section else before.get(path)
            value = another(path, schema, now)
            set_path(changed, own, value)
            after = run(documents(kind, changed, drivers))
        except GpuopsError:
            found.add("refused")
            continue
        if former is None or differ(placement, former[0], after[0]):
            found.add("effect")
            break
        notes = [one for one in after[1] if one not in former[1]]
        off = value is False and path.endswith(".enabled")
        found.add("note" if any(names(one, path) for one in notes) else "off" if off else "silent")
    return found


def names(note: str, path: str) -> bool:
    """Whether a note names a key, or the section that it is in."""
    parts = path.split(".")
    sections = [".".join(parts[:count]) for count in range(1 if parts[0] in WHOLE else 2, len(parts))]
    return any(re.search(rf"\b{re.escape(one)}[ :,]", note) for one in [path, *sections, f"{path}.master.replicas"])


@functools.lru_cache(maxsize=None)
def base(kind: str, placement: str, spec: str) -> tuple[Any, list[str]] | None:
    """The run of a policy without the key, None if it is refused. spec: the text of C((spec, NVIDIADrivers))."""
    try:
        return RUNS[placement](documents(kind, *literal_eval(spec)))
    except GpuopsError:
        return None


EXPECTED = {"effect": "effect", "note": "note", "noted": "note", "refused": "refused"}


# The keys of a ClusterPolicy are those of values; a GPUCluster is refused in a cluster, and on hosts.
@pytest.mark.parametrize("placement", RUNS)
@pytest.mark.parametrize("kind", ["values", "NVIDIADriver", "GPUClusterPolicy"])
def test_each_key_does_what_the_table_says(kind: str, placement: str) -> None:
    wrong = []
    for own, schema in leaves(format_schemas.FORMS[kind].schema):
        row = key_effects.of_key(common_path(kind, own), placement)
        found = classify(kind, own, schema, placement)
        effect = "effect" in found
        # A key that disables something needs no note.
        noted = EXPECTED[row.kind] in found or row.kind == "note" and found == {"off"}
        if not (noted or row.unless and effect) or (
                effect and row.kind != "effect" and not row.unless):
            wrong.append(f"{own}: the table says {row.kind}, a run says {', '.join(sorted(found))}")
    assert wrong == []


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
    assert set(patterns) - first <= {"node-feature-discovery.*", "global.*", "draDriver"}


def test_the_page_has_the_table() -> None:
    assert policy_keys.PAGE.read_text() == policy_keys.page(), "run python -m tests.policy_keys"


def cluster_policy(**spec: Any) -> Object:
    return documents("ClusterPolicy", spec)[0]


def nvidia_driver(name: str, **spec: Any) -> Object:
    return {**NVIDIA_DRIVER, "metadata": {"name": name}, "spec": {"version": "580.173.02", **spec}}


def notes_of(policy: Any, placement: str, places: Any = "", release: str = RELEASE.version) -> str:
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


def test_keys_that_apply_in_the_cluster_are_not_noted_for_its_hosts() -> None:
    policy = cluster_policy(daemonsets={"labels": {"a": "b"}}, devicePlugin={"image": "x"}, toolkit={"image": "y"},
                            operator={"labels": {"a": "b"}})
    assert notes_of(policy, "hosts", "hybrid").startswith("toolkit.image: no effect on hosts: ")
    assert notes_of(policy, "cluster", "hybrid").startswith("operator.labels: no effect in the cluster: ")


@pytest.mark.parametrize("placement", RUNS)
def test_a_driver_section_that_nvidia_drivers_replace_is_noted(placement: str) -> None:
    spec = {"driver": {"useNvidiaDriverCRD": True, "enabled": True, "version": "570.86.15", "image": "x"},
            "gds": {"enabled": True}}
    noted = notes_of([cluster_policy(**spec), nvidia_driver("a")], placement)
    assert noted.startswith("driver.version, driver.image, gds.enabled: no effect ")
    assert noted.endswith(": NVIDIADriver a is used instead.")
    # The keys of the NVIDIADriver count as well.
    own = notes_of([cluster_policy(**spec), nvidia_driver("a", image="y")], "hosts")
    assert "driver.image: no effect on hosts: only pods use it" in own


@pytest.mark.parametrize("placement", RUNS)
def test_nvidia_drivers_that_are_not_used_are_noted(placement: str) -> None:
    crd = {"driver": {"useNvidiaDriverCRD": True}}
    two = [cluster_policy(**crd), nvidia_driver("a", default=True, image="x"), nvidia_driver("b")]
    assert notes_of(two, placement).startswith("NVIDIADriver a is ignored, because NVIDIADriver b has no nodeSelector")
    off = [cluster_policy(driver={"useNvidiaDriverCRD": True, "enabled": False}), nvidia_driver("a")]
    assert "NVIDIADriver a is ignored, because driver.enabled is false." in notes_of(off, placement)


def test_nvidia_drivers_with_a_selector_are_noted_on_hosts() -> None:
    policy = [cluster_policy(driver={"useNvidiaDriverCRD": True}), nvidia_driver("b", default=True),
              nvidia_driver("a", nodeSelector={"pool": "a"}, repository="registry.example")]
    assert notes_of(policy, "hosts") == (
        "NVIDIADriver a: no effect on hosts: hosts have no Node labels for its nodeSelector; set the variables of the "
        "role driver for groups of the inventory.")
    assert notes_of(policy, "cluster") == ""


@pytest.mark.parametrize("release", ["25.10.1", "26.7.0"])
@pytest.mark.parametrize("placement", RUNS)
def test_keys_that_older_releases_have_are_noted(placement: str, release: str) -> None:
    policy = cluster_policy(kataManager={"enabled": True, "image": "x"}, operator={"initContainer": {"image": "y"}})
    noted = notes_of(policy, placement, release=release)
    assert "kataManager" in noted and "operator.initContainer" in noted
    off = cluster_policy(kataManager={"enabled": False, "image": "x"})
    assert notes_of(off, placement, release=release) == ""
