# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Formats: detection, lines, defaults, what is refused."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats, matrix, yamltext

NEWEST = matrix.release()


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
    assert {path: policy.get(path) for path in expected} == expected


def test_nothing_is_the_defaults_of_the_release() -> None:
    policy = formats.read(None, NEWEST)
    assert (policy.kind, policy.get("mig.strategy"), policy.warnings) == ("defaults", "single", ())


def test_upgrade_policy_without_auto_upgrade_is_false_in_a_resource() -> None:
    spec = {"driver": {"upgradePolicy": {"maxParallelUpgrades": 2}}}
    policy = formats.read({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": spec}, NEWEST)
    assert policy.get("driver.upgradePolicy.autoUpgrade") is False
    assert spec == {"driver": {"upgradePolicy": {"maxParallelUpgrades": 2}}}, "the caller's mapping is left alone"


def test_cdi_was_off_before_25_10() -> None:
    assert formats.read(None, matrix.release("25.3.4")).get("cdi.enabled") is False


def test_deprecated_key_is_said_with_its_line(tmp_path: pathlib.Path) -> None:
    assert read(CLUSTER_POLICY, tmp_path).warnings == (
        "driver.useOpenKernelModules (line 7) has no effect since 25.3; set driver.kernelModuleType instead.",)


@pytest.mark.parametrize(("text", "parts"), [
    ("driver:\n  verison: '1'\n", ["driver.verison (line 2): unknown key; did you mean 'version'?"]),
    ("tolkit: {}\ndriver:\n  enabled: 'yes'\n",
     ["has 2 faults", "tolkit (line 1)", "driver.enabled (line 3): true or false is expected, 'yes' stands"]),
    ("driver:\n  version: 580.10\n", ["driver.version (line 2): a string is expected", "write it in quotes"]),
    ("ccManager:\n  defaultMode: off\n", ["(line 2): false is not allowed; allowed: 'on', 'off'", "in quotes"]),
    ("driver:\n  env:\n    - name: A\n      valueFrom: {}\n",
     ["driver.env[0].valueFrom (line 4): unknown key; did you mean 'value'?"]),
    ("driver: {}\ntoolkit: {}\ndriver: {}\n", ["policy.yml, line 3: driver stands twice, first on line 1"]),
    ("driver: [\n", ["policy.yml, line 2: not YAML"]),
    ("a: &a\n  b: *a\n", ["alias"]),
    ("- driver\n", ["a mapping is expected, list stands there"]),
    ("just text\n", ["a mapping is expected, str stands there"]),
    ("{}\n---\n{kind: ConfigMap}\n", ["policy.yml: ConfigMap is not a policy"]),
    ("apiVersion: v1\nkind: Pod\n", ["v1 Pod is not a policy", "ClusterPolicy (nvidia.com/v1)"]),
    ("apiVersion: nvidia.com/v2\nkind: ClusterPolicy\n", ["apiVersion 'nvidia.com/v2', expected is 'nvidia.com/v1'"]),
    ("apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\n", ["spec: a mapping is expected; known here: daemonsets"]),
    ("apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nspec: {}\n", ["spec.draDriver (line 3): is missing"]),
    ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\n", ["spec: a mapping is expected"]),
    ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nspec:\n  driver: x\n", ["spec.driver (line 4): a mapping"]),
    ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nspce: {}\n", ["spec: a mapping is expected"]),
    ("migManager:\n  config:\n    data:\n      config.yaml: '[1'\n", ["migManager.config.data['config.yaml']"]),
])
def test_refused(text: str, parts: list[str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError) as error:
        read(text, tmp_path)
    for part in parts:
        assert part in str(error.value)


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
