# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every key of every format, transcribed from the vendor's definitions, is accepted with its type and no other."""

from __future__ import annotations

import os
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats

GOOD: dict[str, Any] = {"bool": True, "str": "x", "int": 7, "object": {}, "map": {"a": "b"}, "strs": ["x"],
                        "objects": [{}], "list": [], "int-or-str": "25%", "amount": "25%", "duration": "1m30s"}
BAD: dict[str, Any] = {"bool": "yes", "str": 1.5, "int": "7", "object": "x", "map": "x", "strs": "x", "objects": "x",
                       "list": "x", "int-or-str": [], "amount": "many", "duration": "15 s"}
ENVELOPE = {"ClusterPolicy": "nvidia.com/v1", "NVIDIADriver": "nvidia.com/v1alpha1",
            "GPUCluster": "nvidia.com/v1alpha1"}


def keys(name: str) -> list[tuple[str, str]]:
    """(path, type) for each line of a file of keys."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as handle:
        text = handle.read().replace("\n  ", " ")
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            parent, _sep, rest = line.partition(": ")
            found += [(key if parent == "." else f"{parent}.{key}", kind)
                      for key, _sep, kind in (item.partition(":") for item in rest.split())]
    return found


CASES = [(kind, path, type_) for kind, name in (
    ("ClusterPolicy", "cluster_policy_keys.txt"), ("NVIDIADriver", "nvidia_driver_keys.txt"),
    ("GPUCluster", "gpu_cluster_keys.txt"), ("values", "cluster_policy_keys.txt"),
    ("values", "values_keys.txt")) for path, type_ in keys(name)]
# Well-formed values that hosts cannot follow.
TERMS: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}
REFUSED_ON_HOSTS = [("NVIDIADriver", "nodeSelector", {"a": "b"}), ("NVIDIADriver", "nodeAffinity", TERMS),
                    ("NVIDIADriver", "driverType", "vgpu-host-manager")]


def document(kind: str, path: str, value: Any) -> dict[str, Any]:
    spec: Any = value
    for part in reversed(path.split(".")):
        spec = {part: spec}
    if kind == "GPUCluster":
        spec = {"draDriver": {}, **spec}  # it must be there
    return dict(spec) if kind == "values" else {"apiVersion": ENVELOPE[kind], "kind": kind, "spec": spec}


def read(data: dict[str, Any]) -> formats.Policy:
    return formats.read(data, releases.release("26.7.0"))


def good_values(type_: str) -> list[Any]:
    if type_.startswith("="):
        return type_[1:].split("|")
    name, _sep, limit = type_.partition(">=")
    return [int(limit)] if limit else [GOOD[name]]


def bad_values(type_: str) -> list[Any]:
    if type_.startswith("="):
        return ["no-such-value", False]
    name, _sep, limit = type_.partition(">=")
    return [int(limit) - 1, "7"] if limit else [BAD[name]]


def test_the_keys_were_read() -> None:
    assert len(keys("cluster_policy_keys.txt")) == 205
    assert ("driver.upgradePolicy.drain.timeoutSeconds", "int>=0") in keys("cluster_policy_keys.txt")


@pytest.mark.parametrize(("kind", "path", "type_"), CASES)
def test_known_key(kind: str, path: str, type_: str) -> None:
    for value in [*good_values(type_), *([None] if (kind, path) != ("GPUCluster", "draDriver") else [])]:
        policy = read(document(kind, path, value))
        refused = kind == "GPUCluster" or (kind, path, value) in REFUSED_ON_HOSTS
        assert bool(formats.unsupported_on_hosts(policy)) == refused


@pytest.mark.parametrize(("kind", "path", "type_"), CASES)
def test_wrong_type(kind: str, path: str, type_: str) -> None:
    for value in bad_values(type_):
        with pytest.raises(InputError) as error:
            read(document(kind, path, value))
        assert path in str(error.value)


@pytest.mark.parametrize(("kind", "path", "type_"), CASES)
def test_misspelt_key_names_the_right_one(kind: str, path: str, type_: str) -> None:
    parent, _sep, key = path.rpartition(".")
    wrong = f"{key}{key[-1]}"
    with pytest.raises(InputError) as error:
        read(document(kind, f"{parent}.{wrong}" if parent else wrong, GOOD.get(type_, "x")))
    assert f"{wrong}: unknown key; did you mean '{key}'?" in str(error.value)


@pytest.mark.parametrize(("kind", "path", "value"), REFUSED_ON_HOSTS)
def test_what_hosts_cannot_do_is_refused(kind: str, path: str, value: Any) -> None:
    said, = formats.unsupported_on_hosts(read(document(kind, path, value)))
    assert "not supported on hosts" in said or "hosts have no Node labels" in said
