# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets each key of each format of a policy to another value, and compares what a run does with the table of keys.

C(python -m tests.unit.planning.key_probe [RELEASE ...]) does this for releases of the GPU Operator, by default for all
of them, which takes about six minutes.
"""

from __future__ import annotations

import copy
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Needed, Schema, limits
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import (
    config_maps,
    format_schemas,
    formats,
    key_effects,
    translate,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import merge, set_path
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters, host_facts

Object = dict[str, Any]
Run = Callable[[list[Object]], tuple[Any, list[str]]]

SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
# Values of keys for which the value of their type has no meaning, or equals the default.
VALUES: Object = {
    "driver.version": "580.173.02", "driver.kernelModuleType": "proprietary", "driver.useNvidiaDriverCRD": True,
    "driver.nvidiaDriverCRD.driverType": "vgpu-host-manager", "driver.driverType": "vgpu-host-manager",
    "toolkit.version": "v1.17.6", "dcgm.version": "4.2.1-1-ubuntu22.04", "cuda.version": "12.9",
    "dcgmExporter.version": "4.2.1-4.1.1-ubuntu22.04", "daemonsets.updateStrategy": "OnDelete",
    "driver.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
    "migManager.config.data": {"config.yaml": "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n"},
    "devicePlugin.config.data": {"a": SHARED}, "devicePlugin.config.default": "b", "devicePlugin.config.name": "plugin",
    "dcgmExporter.config.data": "DCGM_FI_DEV_GPU_UTIL, gauge, x.\n",
    "node-feature-discovery": {"master": {"replicas": 3}}, "clusterPolicy.deployCR": False,
    "driver.nvidiaDriverCRD.deployDefaultCR": False,
    "operator.upgradeCRD": False, "driver.env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
    "toolkit.env": [{"name": "NVIDIA_CONTAINER_RUNTIME_MODE", "value": "legacy"}],
    "validator.cuda.env": [{"name": "WITH_WORKLOAD", "value": "false"}], "dcgm.args": ["--log-level", "DEBUG"],
    "dcgmExporter.env": [{"name": "DCGM_EXPORTER_LISTEN", "value": ":9500"}],
    "sandboxWorkloads.defaultWorkload": "vm-vgpu", "sandboxWorkloads.mode": "kata",
    "ccManager.defaultMode": "devtools", "gds.version": "2.16.1",
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


# ConfigMaps that exist, for hosts.
MIG_DATA = "version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}], %s: [%s]}\n"
HOST_MAPS: dict[str, dict[str, str]] = {
    "layouts": {"config.yaml": MIG_DATA % ("b", "{devices: all, mig-enabled: false}")},
    "plugin": {"a": "version: v1\n", "b": SHARED},
    "probe": {"config.yaml": MIG_DATA % ("c", "{devices: all, mig-enabled: false}"),
              "dcgm-metrics.csv": "DCGM_FI_DEV_FB_USED, gauge, x.\n"}}


# ConfigMaps that exist, for hosts and the cluster.
MIXED_MAPS: dict[str, dict[str, str]] = {**HOST_MAPS, "probe": {**HOST_MAPS["probe"], **dict.fromkeys((
    "clients.yaml", "gridd.conf", "client_configuration_token.tok", "nvidia-topologyd.conf", "nvidia.conf"), "x=1")}}
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
    "devicePlugin.config.name": [{"devicePlugin": {"config": {"default": "b"}}}],
    "devicePlugin.config.default": [{"devicePlugin": {"config": {"name": "plugin", "default": "a"}}}],
    "devicePlugin.enabled": [{"devicePlugin": {"enabled": False}}],
    "dcgm.enabled": [{"dcgmExporter": {"enabled": False}}],
    "dcgmExporter.config": [configured("dcgmExporter", "DCGM_FI_DEV_SM_CLOCK, gauge, x.\n")],
    "dcgmExporter.hpcJobMapping": [{"dcgmExporter": {"hpcJobMapping": {"enabled": True}}}],
    "migManager.config": [configured("migManager", {
        "config.yaml": "version: v1\nmig-configs: {b: [{devices: all, mig-enabled: false}]}\n"})],
    "cuda": [{"cuda": {"enabled": True}}],
    # Refused with a version that needs open kernel modules.
    "gds.version": [{"driver": {"kernelModuleType": "proprietary"},
                     "gds": {"enabled": True, **IMAGE, "version": "2.26.6"}}],
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


def differ(placement: str, now: Any, then: Any) -> bool:
    """Whether hosts get another plan, or the cluster other objects, labels or upgrades. Objects depend only on the
    plan."""
    if without_reasons(now) == without_reasons(then):
        return False
    if placement == "hosts":
        return True
    return (bool(now["deploy"] != then["deploy"]) or upgrades(now) != upgrades(then)
            or any(render(name, now) != render(name, then) for name in ORDER))


def upgrades(plan: Any) -> list[Any]:
    """How the driver pods of each DaemonSet are replaced."""
    return [pool["upgrade"] for pool in plan["components"].get("driver", {}).get("pools", ())]


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


def names(note: str, path: str) -> bool:
    """Whether a note names a key, or the section that it is in."""
    parts = path.split(".")
    sections = [".".join(parts[:count]) for count in range(1 if parts[0] in WHOLE else 2, len(parts))]
    return any(re.search(rf"\b{re.escape(one)}[ :,]", note) for one in [path, *sections, f"{path}.master.replicas"])


class Probe:
    """Sets keys of policies for a release of the GPU Operator, and says what a run does with them."""

    def __init__(self, version: str) -> None:
        self.release = releases.release(version)
        self.runs: dict[str, Run] = {"hosts": self._on_hosts, "cluster": self._in_cluster}
        self._bases: dict[str, tuple[Any, list[str]] | None] = {}

    def _on_hosts(self, policy: list[Object]) -> tuple[Any, list[str]]:
        read, host = formats.read(policy, self.release), host_facts.facts(mellanox=True)
        if formats.unsupported_on_hosts(read):
            raise InputError("")
        made = resolve(read, self.release, {"a": host, "b": host}, {"b": {"mig_manager_selected": "all-disabled"}},
                       disruption="drain", strict=False, seen=config_maps.Seen("ours", HOST_MAPS))
        return without_reasons(made["hosts"]), made["notes"]

    def _in_cluster(self, policy: list[Object]) -> tuple[Any, list[str]]:
        capable = {**clusters.node(**{"nvidia.com/mig.capable": "true"}), "kernel": "6.8.0-45-generic"}
        maps = {"plugin": {"a": "version: v1\n", "b": SHARED}, "probe": dict.fromkeys((
            "config.yaml", "clients.yaml", "dcgm-metrics.csv",
            "gridd.conf", "client_configuration_token.tok", "nvidia-topologyd.conf", "nvidia.conf"), "x=1")}
        made = clusters.plan(policy, {**clusters.facts(capable, monitors=True), "config_maps": maps},
                             self.release.version)
        return made, [*formats.read(policy, self.release).warnings, *made["notes"]]

    def _mixed(self, policy: list[Object], mapping: Mapping[str, str]) -> tuple[Any, list[str]]:
        """The plans of a host and of the cluster with a mapping of gpu_placement."""
        read, host = formats.read(policy, self.release), host_facts.driven(host_facts.facts(mellanox=True), "595.91.07")
        if formats.unsupported_on_hosts(read):
            raise InputError("")
        made = resolve(read, self.release, {"a": host}, {"a": {"mig_manager_selected": "all-disabled"}}, mapping,
                       disruption="drain", strict=False, seen=config_maps.Seen("ours", MIXED_MAPS))
        node = {**clusters.node(**{"nvidia.com/mig.capable": "true"}), "kernel": "6.8.0-45-generic"}
        cluster = clusters.plan(policy, {**clusters.facts(node, monitors=True, b=node), "config_maps": MIXED_MAPS},
                                self.release.version, placement=mapping, hosts={"a": "n1"}, disruption="drain")
        objects = [render(name, cluster) for name in ORDER]
        return ([without_reasons(made["hosts"]), objects, cluster["deploy"], upgrades(cluster)],
                [*read.warnings, *made["notes"], *cluster["notes"]])

    def silent(self, mapping: Mapping[str, str]) -> list[str]:
        """The keys of values that have no effect, no note and no refusal with a mapping of gpu_placement."""
        bases: dict[str, tuple[Any, list[str]] | None] = {}

        def run(spec: Object, drivers: Sequence[Object]) -> tuple[Any, list[str]] | None:
            try:
                return self._mixed(documents("values", spec, drivers), mapping)
            except GpuopsError:
                return None

        def does_something(own: str, schema: Schema, spec: Object) -> bool:
            path, changed = common_path("values", own), copy.deepcopy(spec)
            drivers = [NVIDIA_DRIVER] if path in ("driver.useNvidiaDriverCRD", "driver.default") else []
            key = repr((spec, drivers))
            if key not in bases:
                bases[key] = run(spec, drivers)
            former = bases[key]
            before = formats.read(documents("values", spec, drivers), self.release)
            section = path.removesuffix(".enabled")
            now = before.get(path) if path == section else before.enabled(section)
            set_path(changed, own, value := another(path, schema, now))
            after = run(changed, drivers)
            if former is None or after is None or former[0] != after[0]:
                return True
            return value is False and path.endswith(".enabled") or any(
                names(one, own) for one in after[1] if one not in former[1])

        return [own for own, schema in leaves(format_schemas.VALUES) if not any(
            does_something(own, schema, spec) for spec in (ALL, *(
                one for start, policies in GIVEN.items() if common_path("values", own).startswith(start)
                for one in policies), {}))]

    def _base(self, kind: str, placement: str, spec: Object, drivers: Sequence[Object]
              ) -> tuple[Any, list[str]] | None:
        """The run of a policy without the key, None if it is refused."""
        key = repr((kind, placement, spec, drivers))
        if key not in self._bases:
            try:
                self._bases[key] = self.runs[placement](documents(kind, spec, drivers))
            except GpuopsError:
                self._bases[key] = None
        return self._bases[key]

    def classify(self, kind: str, own: str, schema: Schema, placement: str) -> set[str]:
        """What a run does if a key is set in the policies of L(GIVEN). own: its path in this format."""
        path, found = common_path(kind, own), set()
        section, run = path.removesuffix(".enabled"), self.runs[placement]
        more = [one for start, policies in GIVEN.items() if path.startswith(start) for one in policies]
        drivers = [NVIDIA_DRIVER] if path in ("driver.useNvidiaDriverCRD", "driver.default") else []
        # An upgradePolicy without autoUpgrade turns it off, whatever its other keys are.
        without = [] if path.startswith("driver.upgradePolicy") else [{}]
        for spec in [own_spec(kind, one) for one in (*more, ALL, *without)]:
            changed = copy.deepcopy(spec)
            former = self._base(kind, placement, spec, drivers)
            try:
                before = formats.read(documents(kind, spec, drivers), self.release) if former else None
                now = None if before is None else before.enabled(section) if path != section else before.get(path)
                set_path(changed, own, value := another(path, schema, now))
                after = run(documents(kind, changed, drivers))
            except GpuopsError:
                found.add("refused")
                continue
            if former is None or differ(placement, former[0], after[0]):
                found.add("effect")
                break
            notes = [one for one in after[1] if one not in former[1]]
            off = value is False and path.endswith(".enabled")
            written = own if kind == "values" else path
            found.add("note" if any(names(one, written) for one in notes) else "off" if off else "silent")
        return found

    def differences(self, kind: str, placement: str) -> list[str]:
        """A sentence for each key of a format with which a run does something else than the table says."""
        wrong = []
        for own, schema in leaves(format_schemas.FORMS[kind].schema):
            row = key_effects.of_key(common_path(kind, own), placement)
            found = self.classify(kind, own, schema, placement)
            effect = "effect" in found
            # A key that disables something needs no note.
            noted = EXPECTED[row.kind] in found or row.kind == "note" and found == {"off"}
            if not noted or effect and row.kind != "effect":
                wrong.append(f"{own}: the table says {row.kind}, a run says {', '.join(sorted(found))}")
        return wrong


EXPECTED = {"effect": "effect", "note": "note", "noted": "note", "refused": "refused"}
# The keys of a ClusterPolicy are those of values; a GPUCluster is refused in a cluster, and on hosts.
KINDS = ("values", "NVIDIADriver", "GPUClusterPolicy")


def main() -> int:
    """Prints what differs from the table, for the releases of the command line or for all of them. The table is that of
    the newest release: in older ones, some keys are refused, noted, or have an effect instead. A silent key is an
    error."""
    silent = False
    for version in sys.argv[1:] or releases.available():
        probe = Probe(version)
        for kind, placement in itertools.product(KINDS, probe.runs):
            for line in probe.differences(kind, placement):
                print(f"{version}, {kind}, {placement}: {line}", flush=True)
                silent = silent or "silent" in line
        print(f"{version}: done", flush=True)
    return int(silent)


if __name__ == "__main__":
    sys.exit(main())
