# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Formats: detection, line numbers, defaults, refusals."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases, yamltext
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path

NEWEST = releases.release()


def read(text: str, tmp_path: pathlib.Path) -> formats.Policy:
    path = tmp_path / "policy.yml"
    path.write_text(text)
    return formats.read(str(path), NEWEST)


CLUSTER_POLICY = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec:
  driver:
    version: "580.126.20"
    useOpenKernelModules: true
"""
NVIDIA_DRIVER = """\
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {name: one}
spec:
  driverType: gpu
  image: driver
  version: 580.126.20
  gds: {enabled: true}
"""
SEED = """\
apiVersion: gpu.nvidia.com/v1
kind: GPUClusterPolicy
metadata: {name: gpu-cluster-policy}
spec:
  driver: {enabled: true, version: "470.82.01"}
  cuda: {enabled: true, version: "11.4"}
  devicePlugin: {enabled: true}
  migManager: {enabled: false}
"""
VALUES = """\
driver:
  version: "580.126.20"
  upgradePolicy:
    gpuPodDeletion: {force: true}
toolkit:
  version: null
"""


@pytest.mark.parametrize(("text", "kind", "expected"), [
    (CLUSTER_POLICY, "ClusterPolicy", {"driver.version": "580.126.20", "mig.strategy": "none", "toolkit.enabled": True,
                                       "driver.upgradePolicy.autoUpgrade": None}),
    (NVIDIA_DRIVER, "NVIDIADriver", {"driver.version": "580.126.20", "gds.enabled": True, "driver.gds": None}),
    (SEED, "GPUClusterPolicy", {"driver.version": "470.82.01", "cuda.version": "11.4", "migManager.enabled": False}),
    (VALUES, "values", {"driver.version": "580.126.20", "mig.strategy": "single", "toolkit.version": None,
                        "driver.upgradePolicy.autoUpgrade": True}),
    ("", "values", {"driver.version": None, "driver.enabled": True}),
    ("spec: {}\napiVersion: nvidia.com/v1\nkind: ClusterPolicy\n", "ClusterPolicy", {"cdi.enabled": True}),
])
def test_formats(text: str, kind: str, expected: dict[str, Any], tmp_path: pathlib.Path) -> None:
    policy = read(text, tmp_path)
    assert policy.kind == kind
    assert {path: get_path(policy.spec, path) for path in expected} == expected


def test_nothing_is_the_defaults_of_the_release() -> None:
    policy = formats.read(None, NEWEST)
    assert (policy.kind, policy.get("mig.strategy"), policy.warnings) == ("defaults", "single", ())


def test_upgrade_policy_without_auto_upgrade_is_false_in_a_resource() -> None:
    spec = {"driver": {"upgradePolicy": {"maxParallelUpgrades": 2}}}
    policy = formats.read({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": spec}, NEWEST)
    assert policy.get("driver.upgradePolicy.autoUpgrade") is False
    assert spec == {"driver": {"upgradePolicy": {"maxParallelUpgrades": 2}}}, "the caller's mapping is left alone"


def test_cdi_was_off_before_25_10() -> None:
    assert formats.read(None, releases.release("25.3.4")).get("cdi.enabled") is False


def test_deprecated_key_is_said_with_its_line(tmp_path: pathlib.Path) -> None:
    assert read(CLUSTER_POLICY, tmp_path).warnings == (
        "driver.useOpenKernelModules (line 7) has no effect since 25.3; set driver.kernelModuleType instead.",)


@pytest.mark.parametrize(("text", "parts"), [
    ("driver:\n  verison: '1'\n", ["driver.verison (line 2): unknown key; did you mean 'version'?"]),
    ("tolkit: {}\ndriver:\n  enabled: 'yes'\n",
     ["has 2 faults", "tolkit (line 1)", "driver.enabled (line 3): true or false is expected, not 'yes'"]),
    ("driver:\n  version: 580.10\n", ["driver.version (line 2): a string is expected", "write it in quotes"]),
    ("ccManager:\n  defaultMode: off\n", ["(line 2): false is not allowed; allowed: 'on', 'off'", "in quotes"]),
    ("driver:\n  env:\n    - name: A\n      valueFrom: {}\n",
     ["driver.env[0].valueFrom (line 4): unknown key; did you mean 'value'?"]),
    ("driver: {}\ntoolkit: {}\ndriver: {}\n", ["policy.yml, line 3: driver is repeated, first on line 1"]),
    ("driver: [\n", ["policy.yml, line 2: not YAML"]),
    ("a: &a\n  b: *a\n", ["alias"]),
    ("- driver\n", ["a mapping is expected, not a list"]),
    ("just text\n", ["a mapping is expected, not text"]),
    ("{}\n---\n{kind: ConfigMap}\n", ["policy.yml: ConfigMap is not a policy"]),
    ("apiVersion: v1\nkind: Pod\n", ["v1 Pod is not a policy", "ClusterPolicy (nvidia.com/v1)"]),
    ("apiVersion: nvidia.com/v2\nkind: ClusterPolicy\n", ["apiVersion 'nvidia.com/v2'; allowed: 'nvidia.com/v1'"]),
    ("kind: ClusterPolicy\nspec: {}\n", ["ClusterPolicy has no apiVersion; allowed: 'nvidia.com/v1'"]),
    ("apiVersion: nvidia.com/v1\nspec: {}\n", ["policy.yml: kind is missing. Give one of ClusterPolicy"]),
    ("spec:\n  driver: {}\n", ["policy.yml: kind is missing. Give one of ClusterPolicy"]),
    ("driver:\n  version: {{ version }}\n", ["line 2: not YAML", "are not rendered", "lookup('template'"]),
    ("driver:\n\tversion: '595'\n", ["line 2: not YAML", "Use spaces; YAML does not allow tabs here"]),
    ("driver:\n  version: !vault |\n    61\n", ["line 2: not YAML", "Write encrypted values into variables"]),
    ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", ["policy.yml is encrypted. Write the policy as a mapping"]),
    ("driver:\n  maxParallelUpgrades: 5\n  use_ocp_driver_toolkit: true\n  nfd: {}\nruntimeClass: nvidia\n", [
        "driver.maxParallelUpgrades (line 2): unknown key; it belongs to driver.upgradePolicy\n",
        "driver.use_ocp_driver_toolkit (line 3): unknown key; it belongs to operator\n",
        "driver.nfd (line 4): unknown key; it belongs to the top level\n",
        "runtimeClass (line 5): unknown key; it belongs to operator\n"]),
    ("toolkit:\n  env: [{name: a, vaule: b}, {name: c, vaule: d}]\ndaemonsets: {vaule: 1}\n", [
        "has 2 faults", "  toolkit.env[0].vaule (line 2), toolkit.env[1].vaule (line 2): unknown key; did you mean "
        "'value'?\n", "daemonsets.vaule (line 3): unknown key; "]),
    ("driver.version: '595'\n", ["['driver.version'] (line 1): unknown key; write it nested, driver: {version: ...}"]),
    ("daemonsets:\n  updateStrategy.x: 1\n", ["unknown key; did you mean 'updateStrategy'?"]),
    ("operator:\n  upgradeCRD: 2026-01-01\n", ["true or false is expected, not 2026-01-01"]),
    ("driver:\n  version: 2026-01-01\n", ["a string is expected, not 2026-01-01; write it in quotes"]),
    ("apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\n", ["spec: a mapping is expected; allowed: daemonsets"]),
    ("apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nspec: {}\n", ["spec.draDriver (line 3): is missing"]),
    ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\n", ["spec: a mapping is expected"]),
    ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nspec:\n  driver: x\n", ["spec.driver (line 4): a mapping"]),
    ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nspce: {}\n", ["spec: a mapping is expected"]),
    ("migManager:\n  config:\n    create: true\n    data:\n      config.yaml: '[1'\n",
     ["migManager.config.data['config.yaml']"]),
])
def test_refused(text: str, parts: list[str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError) as error:
        read(text, tmp_path)
    for part in parts:
        assert part in str(error.value)


def test_json_may_be_indented_by_tabs(tmp_path: pathlib.Path) -> None:
    assert read('{\n\t"driver": {\n\t\t"version": "595"\n\t}\n}\n', tmp_path).get("driver.version") == "595"


def test_text_that_is_not_utf_8(tmp_path: pathlib.Path) -> None:
    (tmp_path / "policy.yml").write_bytes("driver: {}\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"policy.yml is not UTF-8 text: .* at byte 0. Save it as UTF-8"):
        formats.read(str(tmp_path / "policy.yml"), NEWEST)


def test_missing_file() -> None:
    with pytest.raises(InputError, match="/no/such/file cannot be read"):
        formats.read("/no/such/file", NEWEST)


def test_values_carry_layouts_and_sharing(tmp_path: pathlib.Path) -> None:
    policy = read("""\
migManager:
  config:
    create: true
    name: mine
    data:
      config.yaml: |-
        version: v1
        mig-configs: {one: [{devices: all, mig-enabled: false}]}
devicePlugin:
  config:
    create: true
    default: four
    data:
      four: |-
        version: v1
        sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
""", tmp_path)
    assert policy.mig_config is not None and list(policy.mig_config["mig-configs"]) == ["one"]
    assert policy.sharing is not None and "timeSlicing" in policy.sharing["sharing"]


def test_lines_of_nested_paths() -> None:
    document, = yamltext.parse("a:\n  - b: 1\n  - c:\n      d: 2\n", "x")
    assert document.line(("a", 1, "c", "d")) == 4
    assert document.line(("a", 1, "c", "missing")) == 3
    assert yamltext.dotted(("a", 1, "c")) == "a[1].c"


def resource(kind: str, name: str = "one", **spec: Any) -> dict[str, Any]:
    version = "v1" if kind == "ClusterPolicy" else "v1alpha1"
    return {"apiVersion": f"nvidia.com/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def affinity(*expressions: tuple[str, ...]) -> dict[str, Any]:
    """A required node affinity with one term of expressions, each (key, operator, values...)."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": key, "operator": operator, "values": values} for key, operator, *values in expressions]}]}}


MAIN = resource("ClusterPolicy", driver={"useNvidiaDriverCRD": True, "version": "595.91.07"})
GPU_CLUSTER = resource("GPUCluster", draDriver={"image": "dra", "featureGates": {"IMEX": True}})


# Their Nodes can be told apart from all others only by two labels each.
SEVERAL = [resource("NVIDIADriver", f"d{number}", nodeSelector={"x": str(number), f"y{number}": "1"})
           for number in range(9)]


def test_drivers_for_all_nodes_may_be_many(tmp_path: pathlib.Path) -> None:
    """No DaemonSet has to exclude the Nodes of the others."""
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": SEVERAL})
    assert len(read(text, tmp_path).pools) == 9 and not read(text, tmp_path).fallback
    own = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": [str(number)]}]} for number in range(300)]}}
    for beside in ([], [resource("NVIDIADriver", "one", nodeSelector={"x": "1"})]):
        items = [resource("NVIDIADriver", "rest", default=True, nodeAffinity=own), *beside]
        assert read(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}), tmp_path).fallback


def test_data_of_a_config_map_that_is_not_created_is_ignored(tmp_path: pathlib.Path) -> None:
    policy = read("migManager: {config: {name: n, data: {config.yaml: 'mig-configs: {}'}}}\n", tmp_path)
    assert policy.mig_config is None
    assert "migManager.config.data is ignored, because migManager.config.create is not true." in policy.warnings


def test_cluster_policy_with_drivers_in_one_file(tmp_path: pathlib.Path) -> None:
    policy = read("""\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec:
  driver: {useNvidiaDriverCRD: true}
  mig: {strategy: mixed}
---
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {name: rest}
spec: {default: true, version: "595.91.07", gds: {enabled: true}}
---
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {name: old}
spec:
  version: "580.173.02"
  nodeSelector: {pool: old}
  repoConfig: {name: repos}
""", tmp_path)
    assert (policy.kind, policy.documents) == ("ClusterPolicy", ("ClusterPolicy", "NVIDIADriver", "NVIDIADriver"))
    assert (policy.get("driver.version"), policy.get("gds.enabled")) == ("595.91.07", True), "the default counts"
    assert policy.get("driver.useNvidiaDriverCRD") and policy.get("mig.strategy") == "mixed" and policy.fallback
    pool, = policy.pools
    assert (pool.name, pool.node_selector) == ("old", {"pool": "old"})
    mine = policy.for_pool(pool)
    assert (mine.get("driver.version"), mine.get("driver.repoConfig.configMapName")) == ("580.173.02", "repos")
    assert (mine.get("gds.enabled"), mine.get("mig.strategy"), mine.pools) == (False, "mixed", ())
    assert formats.unsupported_on_hosts(policy) == []


def test_a_list_as_kubectl_writes_it(tmp_path: pathlib.Path) -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [MAIN, resource("NVIDIADriver")]})
    assert read(text, tmp_path).documents == ("ClusterPolicy", "NVIDIADriver")
    wrong = text.replace("version: 595.91.07", "verison: 595.91.07")
    line = wrong.splitlines().index("      verison: 595.91.07") + 1
    with pytest.raises(InputError, match=rf"ClusterPolicy one: spec.driver.verison \(line {line}\): unknown key"):
        read(wrong, tmp_path)


@pytest.mark.parametrize(("sources", "parts"), [
    ([MAIN, resource("ClusterPolicy", "two")], ["2 documents of kind ClusterPolicy"]),
    ([MAIN, GPU_CLUSTER], ["GPUCluster and ClusterPolicy exclude each other"]),
    ([GPU_CLUSTER, GPU_CLUSTER], ["2 documents of kind GPUCluster"]),
    ([MAIN, {"driver": {}}], ["values cannot be combined with other documents (ClusterPolicy, values)"]),
    ([MAIN, resource("NVIDIADriver", "a"), resource("NVIDIADriver", "a", nodeSelector={"a": "b"})],
     ["2 NVIDIADrivers have the name a"]),
    ([resource("NVIDIADriver", "a", default=True), resource("NVIDIADriver", "b", default=True)],
     ["NVIDIADrivers a, b all have default: true"]),
    ([resource("NVIDIADriver", "a", nodeSelector={"x": "1"}),
      resource("NVIDIADriver", "b", nodeSelector={"x": "1", "y": "2"})],
     ["NVIDIADrivers a (x=1) and b (x=1, y=2) select the same Nodes"]),
    ([resource("NVIDIADriver", "a"), resource("NVIDIADriver", "b", nodeSelector={"x": "1"})], ["a (all Nodes"]),
    ([resource("NVIDIADriver", "a"), resource("NVIDIADriver", "b", nodeAffinity=affinity(("x", "Exists")))],
     ["a (all Nodes with a GPU) and b (its nodeAffinity) select the same Nodes"]),
    ([resource("NVIDIADriver", "a", nodeAffinity=affinity(("x", "Exists"))),
      resource("NVIDIADriver", "b", nodeAffinity=affinity(("x", "Exists")), nodeSelector={"y": "2"})],
     ["a (its nodeAffinity) and b (y=2, its nodeAffinity) select the same Nodes"]),
    ([*SEVERAL, resource("NVIDIADriver", "rest", default=True)],
     ["would have 512 nodeSelectorTerms, because the Nodes that NVIDIADrivers d0, d1, d2, d3, d4, d5, d6, d7, d8 ",
      "d8 select are excluded from it; at most 256 are allowed. Give the Nodes"]),
    ([*SEVERAL[1:], resource("NVIDIADriver", "rest", default=True, nodeAffinity={
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in "ab"]}})],
     ["512 nodeSelectorTerms", "and its nodeAffinity has 2 terms; at most"]),
    ([resource("NVIDIADriver", "a", nodeAffinity=affinity(*((key, "Gt", "1") for key in "abcdefgh"))),
      resource("NVIDIADriver", "b", nodeSelector=dict.fromkeys("ijklmnopqrstuvwxyz", "1")),
      resource("NVIDIADriver", "rest", default=True)], ["NVIDIADrivers a, b select are", "288 nodeSelectorTerms"]),
    (resource("NVIDIADriver", nodeAffinity=affinity(
        ("a", "In"), ("b", "Exists", "1"), ("c", "Gt", "x"), ("d", "Lt", "1", "2"), ("e", "In", "1"))),
     ["has 4 faults", "spec.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]."
      "matchExpressions[0].values: the operator In needs one value or more",
      "[1].values: the operator Exists takes no values", "[2].values: the operator Gt needs one whole number",
      "[3].values: the operator Lt needs one whole number"]),
    (resource("NVIDIADriver", nodeAffinity=affinity()), ["nodeSelectorTerms[0]: a term without expressions"]),
    (resource("NVIDIADriver", nodeAffinity={"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": []}}), ["nodeSelectorTerms: a term is missing"]),
    (resource("NVIDIADriver", nodeAffinity=affinity(("a", "Is", "b"))), ["'Is' is not allowed; allowed: 'In'"]),
    (resource("NVIDIADriver", nodeAffinity={"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}]}}),
     ["matchFields[0].values: one value is needed, the name of a Node"]),
    (resource("NVIDIADriver", default=True, nodeSelector={"a": "b"}), ["spec.nodeSelector: the default NVIDIADriver"]),
    (resource("NVIDIADriver", nodeSelector={"nvidia.com/gpu-operator.driver.owner": "b"}), ["is reserved for"]),
    (resource("ClusterPolicy", driver={"usePrecompiled": True, "version": "sha256:1"}),
     ["spec.driver.version: a digest cannot be used with usePrecompiled"]),
    (resource("NVIDIADriver", usePrecompiled=True, version="sha256:1"), ["spec.version: a digest"]),
    ({"cdi": {"nriPluginEnabled": True, "enabled": False}, "toolkit": {"enabled": False}},
     ["has 2 faults", "the NRI plugin needs cdi.enabled", "the NRI plugin needs toolkit.enabled"]),
    ({"clusterPolicy": {"deployCR": True}, "gpuCluster": {"deployCR": True}}, ["gpuCluster.deployCR: GPUCluster and"]),
    (resource("GPUCluster", draDriver={"gpus": {"kubeletPlugin": {"healthcheck": {"port": 70000}}}}),
     ["port: 70000 is too large; the largest value is 65535"]),
    ([MAIN, "x"], ["a mapping is expected, not text"]), (7, ["a path or a mapping is expected, not 7"]),
    ({"apiVersion": "gpu.nvidia.com/v1", "kind": "GPUClusterPolicy", "spec": {"cuda": {"version": "newest"}}},
     ["spec.cuda.version: a version of CUDA such as '13.0' is expected, not 'newest'"]),
    ({"driver": {"startupProbe": {"periodSeconds": 0}}}, ["0 is too small; the smallest value is 1"]),
    ({"driver": {"env": [{"value": "x"}]}}, ["driver.env[0].name: is missing"]),
    ({"driver": {"env": [None]}}, ["driver.env[0]: an item is expected"]),
    ({"daemonsets": {"labels": {"a": 1}}}, ["daemonsets.labels.a: a string is expected", "write it in quotes"]),
    ({"toolkit": {"resources": {"limits": {"cpu": "a lot"}}}}, ["limits.cpu: a quantity such as 500m or 1Gi"]),
    ({"driver": {"image": ""}}, ["driver.image: the name of an image is expected"]), ({7: {}}, ["7: unknown key"]),
    ({"apiVersion": "v1", "kind": "List", "items": []}, ["contains an empty List"]),
    ({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolice"}, ["is not a policy; did you mean 'ClusterPolicy'?"]),
])
def test_what_documents_exclude(sources: Any, parts: list[str]) -> None:
    with pytest.raises(InputError) as error:
        formats.read(sources, NEWEST)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("text", ["", "\n\n", "# driver:\n#   version: 580\n", "---\n---\n", "{}\n"])
def test_a_file_that_says_nothing_is_said(tmp_path: pathlib.Path, text: str) -> None:
    """For example after a failed redirection: without an error, the policy would be the defaults."""
    file = tmp_path / "policy.yml"
    file.write_text(text)
    policy = formats.read(str(file), NEWEST)
    assert policy.warnings == (f"{file} is empty: the defaults of release {NEWEST.version} apply.",)
    file.write_text("driver: {}\n")
    assert formats.read(str(file), NEWEST).warnings == ()


def test_selectors_that_need_not_overlap_are_accepted() -> None:
    policy = formats.read([resource("NVIDIADriver", "a", nodeSelector={"x": "1"}),
                           resource("NVIDIADriver", "b", nodeSelector={"x": "2"})], NEWEST)
    assert [pool.name for pool in policy.pools] == ["a", "b"]
    said = formats.unsupported_on_hosts(policy)
    assert not policy.fallback and all("hosts have no Node labels" in one for one in said)
    assert [one.split(":")[0] for one in said] == [f"NVIDIADriver {pool.name}" for pool in policy.pools]


def test_an_affinity_selects_nodes_as_a_selector_does() -> None:
    """The default NVIDIADriver is used on hosts, and its own affinity would be refused there."""
    given = [resource("NVIDIADriver", "a", nodeAffinity=affinity(("pool", "In", "volta"))),
             resource("NVIDIADriver", "b", nodeAffinity=affinity(("pool", "In", "hopper")), nodeSelector={"x": "1"}),
             resource("NVIDIADriver", "c", default=True, version="595.91.07")]
    policy = formats.read(given, NEWEST)
    assert (policy.driver_name, policy.get("driver.version"), policy.warnings) == ("c", "595.91.07", ())
    assert [(pool.name, pool.keys) for pool in policy.pools] == [("a", "nodeAffinity"),
                                                                 ("b", "nodeSelector and nodeAffinity")]
    assert policy.fallback and formats.unsupported_on_hosts(policy) == []
    assert [one.split(": hosts")[0] for one in formats.unsupported_on_hosts(formats.read(given[:2], NEWEST))] == [
        "NVIDIADriver a: spec.nodeAffinity", "NVIDIADriver b: spec.nodeSelector and nodeAffinity"]
    given = [resource("NVIDIADriver", "c", default=True, nodeAffinity=affinity(("x", "Exists")))]
    limited = formats.read(given, NEWEST)
    assert not limited.pools and "NVIDIADriver c: spec.nodeAffinity" in formats.unsupported_on_hosts(limited)[0]


def test_drivers_count_only_where_the_cluster_policy_says_so() -> None:
    policy = formats.read([resource("ClusterPolicy", driver={"version": "595.91.07"}),
                           resource("NVIDIADriver", "a", version="580.173.02")], NEWEST)
    assert policy.get("driver.version") == "595.91.07" and policy.pools == ()
    assert policy.warnings == ("NVIDIADriver a is ignored, because driver.useNvidiaDriverCRD is "
                               "not true.",)
    assert "no NVIDIADriver is given" in formats.read(MAIN, NEWEST).warnings[0]


def test_gpu_cluster() -> None:
    policy = formats.read([GPU_CLUSTER, resource("NVIDIADriver", version="580.173.02")], NEWEST)
    assert (policy.kind, policy.get("gpuCluster.deployCR")) == ("GPUCluster", True)
    assert (policy.get("draDriver.featureGates.IMEX"), policy.get("driver.version")) == (True, "580.173.02")
    assert formats.unsupported_on_hosts(policy) == []
    assert "has no effect on hosts" in formats.unsupported_on_hosts(formats.read(GPU_CLUSTER, NEWEST))[0]


FLAT = """\
# Example
apiVersion: gpu.nvidia.com/v1
kind: GPUClusterPolicy
metadata:
name: gpu-cluster-policy
spec:
# what is managed
driver:
enabled: true
"""


@pytest.mark.parametrize("text", [FLAT, f"{FLAT}cuda:\nenabled: true\n"])
def test_lost_indentation_is_one_clear_error(text: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="the document has lost its indentation") as error:
        read(text, tmp_path)
    assert "\n" not in str(error.value)


# Source: what is in force without a word, by the code of GPU Operator 26.7; kataManager has no effect there.
ON = ("driver", "devicePlugin", "dcgm", "dcgmExporter", "gfd", "toolkit", "migManager", "cdi")
OFF = ("vfioManager", "vgpuManager", "vgpuDeviceManager", "sandboxWorkloads", "sandboxDevicePlugin", "psa",
       "kataSandboxDevicePlugin", "nodeStatusExporter", "driver.rdma", "gds", "gdrcopy", "dcgmExporter.serviceMonitor",
       "ccManager")


@pytest.mark.parametrize("section", [*ON, *OFF])
def test_what_silence_means_in_a_resource(section: str) -> None:
    def policy(value: Any) -> formats.Policy:
        spec: Any = {"enabled": value}
        for part in reversed(section.split(".")):
            spec = {part: spec}
        return formats.read({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": spec}, NEWEST)

    assert policy(None).enabled(section) is (section in ON)
    assert policy(section not in ON).enabled(section) is (section not in ON), "said, it counts"


# Source: values.yaml of the charts.
@pytest.mark.parametrize(("section", "since"), [
    ("dcgm", None), ("nodeStatusExporter", None), ("vgpuDeviceManager", "24.6.0"), ("vfioManager", "24.6.0"),
    ("sandboxDevicePlugin", "24.6.0"), ("kataSandboxDevicePlugin", "26.3.0"), ("ccManager", "26.3.0"),
    ("dcgmExporter.serviceMonitor", "26.7.0"), ("cdi", "25.10.0"),
])
def test_what_silence_means_to_the_chart(section: str, since: str | None) -> None:
    for version in ("24.6.0", "25.3.4", "25.10.1", "26.3.3", "26.7.0"):
        known = since is not None and releases.version_key(version) >= releases.version_key(since)
        assert formats.read({}, releases.release(version)).enabled(section) is known


@pytest.mark.parametrize("section", ["migManager", "devicePlugin", "dcgmExporter"])
def test_a_config_map_that_is_created_without_content_is_noted(section: str) -> None:
    said = (f"{section}.config.create has no effect, because {section}.config.data is empty. The ConfigMap x must "
            "exist in the cluster.")
    config = {"create": True, "name": "x"}
    assert said in formats.read({section: {"config": config}}, NEWEST).warnings
    for other in ({**config, "create": False}, {**config, "data": {"a": "version: v1\n"}}, {"name": "x"}):
        assert said not in formats.read({section: {"config": other}}, NEWEST).warnings


def test_null_removes_a_default_of_the_chart() -> None:
    assert formats.read({"mig": {"strategy": None}}, NEWEST).get("mig.strategy") == "none"
    assert formats.read({"driver": {"upgradePolicy": None}}, NEWEST).get("driver.upgradePolicy") is None


@pytest.mark.parametrize(("release", "spec", "path", "value", "said"), [
    ("24.9.2", {"driver": {"useOpenKernelModules": True}}, "driver.kernelModuleType", "open",
     "is read as driver.kernelModuleType: open"),
    ("24.9.2", {"driver": {"useOpenKernelModules": False}}, "driver.kernelModuleType", "proprietary", None),
    ("26.7.0", {"driver": {"useOpenKernelModules": True}}, "driver.useOpenKernelModules", None, "has no effect since"),
    ("26.7.0", {"driver": {"useOpenKernelModules": False}}, "driver.kernelModuleType", "auto", None),
    ("26.7.0", {"driver": {"licensingConfig": {"configMapName": "a"}}}, "driver.licensingConfig.configMapName", "a",
     "set licensingConfig.secretName instead"),
    ("25.3.4", {"driver": {"licensingConfig": {"configMapName": "a"}}}, "driver.licensingConfig.configMapName", "a",
     None),
    ("26.7.0", {"operator": {"defaultRuntime": "docker"}}, "operator.defaultRuntime", None, "is detected on each host"),
    ("26.7.0", {"operator": {"initContainer": {"version": "1"}}}, "operator.initContainer", None, "ignored since 26.3"),
    ("26.7.0", {"cdi": {"default": True}}, "cdi.default", None, "ignored since 25.10"),
    ("25.3.4", {"cdi": {"default": True}}, "cdi.default", True, None),
    ("26.7.0", {"dcgm": {"hostPort": 5555}}, "dcgm.hostPort", None, "is ignored"),
    ("26.7.0", {"psp": {"enabled": True}}, "psp", None, "no longer exist"),
    ("26.7.0", {"kataManager": {"enabled": True}}, "kataManager", None, "ignored since 26.3"),
    ("26.7.0", {"kataManager": {"enabled": False}}, "kataManager", None, None),
    ("24.9.2", {"driver": {"secretEnv": "a"}}, "driver.secretEnv", "a", "is new in 25.10.0; the operator of"),
])
def test_old_and_new_keys(release: str, spec: dict[str, Any], path: str, value: Any, said: str | None) -> None:
    policy = formats.read(resource("ClusterPolicy", **spec), releases.release(release))
    assert policy.get(path) == value
    assert len(policy.warnings) == (said is not None)
    assert said is None or said in policy.warnings[0]


def test_old_keys_have_their_line_in_every_format(tmp_path: pathlib.Path) -> None:
    driver = read(f"{NVIDIA_DRIVER}  licensingConfig:\n    name: grid\n", tmp_path)
    assert driver.warnings == ("driver.licensingConfig.configMapName (line 10) is deprecated; set "
                               "licensingConfig.secretName instead.",)
    values = read("driver:\n  upgradePolicy:\n    podDeletion: {force: true}\n", tmp_path)
    assert values.get("driver.upgradePolicy.podDeletion.force") is True


def test_depth_and_size_have_limits(tmp_path: pathlib.Path) -> None:
    inner: Any = {}
    for _level in range(3000):
        inner = {"a": inner}
    with pytest.raises(InputError, match="nested too deep"):
        formats.read({"node-feature-discovery": inner}, NEWEST)
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 9)]
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *levels]
    with pytest.raises(InputError, match="is too large"):
        read("\n".join(lines), tmp_path)


DOCUMENTATION = pathlib.Path(__file__).parents[3] / "docs" / "policy.md"


@pytest.mark.parametrize("text", [block for block in re.findall(r"```yaml\n(.*?)```", DOCUMENTATION.read_text(), re.S)
                                  if "kind:" in block])
def test_documents_of_the_documentation(text: str, tmp_path: pathlib.Path) -> None:
    assert read(text, tmp_path).kind == "ClusterPolicy"


@pytest.mark.parametrize("source", ["", {}, [], "file"])
def test_a_policy_that_is_given_and_empty_is_named(source: Any, tmp_path: Any) -> None:
    if source == "file":
        source = str(tmp_path / "policy.yml")
        (tmp_path / "policy.yml").write_text("# nothing yet\n")
    policy = formats.read(source, NEWEST)
    assert "is empty: the defaults of release" in policy.warnings[0]
    assert not [note for note in formats.read(None, NEWEST).warnings if "empty" in note]
