# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every field of a ClusterPolicy that is for container workloads: what it changes in the objects, and nothing else.

The rows are in fields.yml, transcribed from GPU Operator 26.7.0 (its resource definition and what its controllers do
with it). Those of the section driver are elsewhere.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.tests.unit.policy.test_format_schemas import keys
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, plan

with open(os.path.join(os.path.dirname(__file__), "fields.yml"), encoding="utf-8") as handle:
    TABLE: dict[str, Any] = yaml.safe_load(handle)
# What is the same for every component (the shape that the definition repeats): type, value.
COMMON: dict[str, Any] = {
    "repository": "quay.io/me", "version": "v1", "imagePullPolicy": "Always", "imagePullSecrets": ["mine"],
    "args": ["--mine"], "env": [{"name": "MINE", "value": "1"}], "resources": {"limits": {"cpu": "1"}},
    "hostNetwork": True,
}
ELSEWHERE = ("driver",)
SANDBOX = ("ccManager", "kataManager", "kataSandboxDevicePlugin", "sandboxDevicePlugin", "sandboxWorkloads",
           "vfioManager", "vgpuDeviceManager", "vgpuManager", "validator.vfioPCI", "validator.vgpuDevices",
           "validator.vgpuManager")
Flat = dict[str, Any]


def under(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def merged(*policies: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for policy in policies:
        for key, value in policy.items():
            old = found.get(key)
            found[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of all leaves; list items with a C(name) or C(mountPath) are identified by it."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        for one in value:
            name = one["mountPath"] if "mountPath" in one else one["name"]
            yield from leaves({key: inner for key, inner in one.items() if key != "name" or "mountPath" in one}
                              or "", f"{path}({name})")
    else:
        yield path, value


@functools.lru_cache(maxsize=None)
def rendered(name: str, cluster: str) -> Flat:
    """The leaves of the objects of a component. cluster: the part of the plan that it depends on, as JSON."""
    every = {f"{one['kind']}/{one['metadata']['name']} {path.replace('spec.template.spec.', '')}": value
             for one in render(name, json.loads(cluster)) for path, value in leaves(one)}
    return {path: value for path, value in every.items() if "DRIVER_CONFIG_DIGEST" not in path}


def flat(policy: dict[str, Any], runtime: str = "containerd") -> Flat:
    """Maps C(KIND/NAME PATH) to all leaves; paths of pods without their common prefix. The digest of the driver
    settings is left out, because it follows from them."""
    made = plan(policy, facts(node(runtime=runtime), monitors=True))
    shared = {key: made[key] for key in ("namespace", "psa", "common")}
    found: Flat = {}
    for name in ORDER:
        mine = {name: made["components"][name]} if name in made["components"] else {}
        found.update(rendered(name, json.dumps({**shared, "components": mine})))
    return found


@functools.lru_cache(maxsize=None)
def usual() -> Flat:
    return flat(TABLE["base"])


_PLACES = re.compile(r"(?:\S+ )(?:containers|initContainers|volumes)\([^)]*\)(?:\.volumeMounts\([^)]*\))?")


def wholes(path: str) -> list[str]:
    """The wholes that contain a leaf, from the outermost: object, container or volume, mount."""
    names = [path.split(" ")[0]]
    match = _PLACES.match(path)
    if match:
        names += [match[0].partition(".volumeMounts")[0], match[0]]
    return names


def difference(before: Flat, after: Flat) -> Flat:
    """Maps paths to new values, None for a removed one. A new object or container is one entry, and so is everything
    that is removed as a whole."""
    there, then = ({whole for path in one for whole in wholes(path)} for one in (before, after))
    found: Flat = {}
    for path in {*before, *after}:
        if path in before and path in after and before[path] == after[path]:
            continue
        parts = wholes(path)
        gone = next((whole for whole in parts if whole not in then), None)
        new = next((whole for whole in parts[:2] if whole not in there and "volumes(" not in whole), None)
        if gone or new:
            found[str(gone or new)] = None if gone else "new"
        else:
            found[path] = after.get(path)
    return found


def expected(row: dict[str, Any], value: Any) -> Flat:
    """The expectation of a row: C(sets) maps a path, or a list of paths, to one value, in which C($) is that of the
    field."""
    found = {path: value if new == "$" else new for path, new in (row.get("sets") or {}).items()}
    for group in row.get("also") or ():
        found.update({path.replace("*", name): value if new == "$" else new
                      for name in group["each"] for path, new in group["sets"].items()})
    return found


def rows() -> list[Any]:
    return [pytest.param(row, id=row["field"] + (f"={row['value']}" if str(row["value"]) in ("True", "False") else ""))
            for row in TABLE["fields"]]


@pytest.mark.parametrize("row", rows())
def test_field(row: dict[str, Any]) -> None:
    base = merged(TABLE["base"], row.get("with") or {})
    runtime = row.get("runtime", "containerd")
    before, after = (flat(policy, runtime) for policy in (base, merged(base, under(row["field"], row["value"]))))
    assert difference(before, after) == expected(row, row["value"])


def common() -> list[Any]:
    return [pytest.param(section, one, key, id=f"{section}.{key}") for section, one in TABLE["components"].items()
            for key in (*COMMON, "image") if key not in one.get("lacks", ())]


@pytest.mark.parametrize(("section", "one", "key"), common())
def test_field_that_all_components_have(section: str, one: dict[str, Any], key: str) -> None:
    value = COMMON.get(key, "mine")
    before, after = usual(), flat(merged(TABLE["base"], under(f"{section}.{key}", value)))
    assert difference(before, after) == shared_effect(one, key, value)


def shared_effect(one: dict[str, Any], key: str, value: Any) -> Flat:
    """The effect of a common field, from the tables of containers.

    main: the container that the user's variables and arguments are for. images: every container that runs the image,
    named: where else it is named. resources: containers that take the resources.
    """
    repository, name, version = one["image"]
    pods = sorted({path.split(" ")[0] for path in one["images"]})
    found: Flat = {}
    if key in ("repository", "image", "version"):
        text = {"repository": f"quay.io/me/{name}:{version}", "image": f"{repository}/mine:{version}",
                "version": f"{repository}/{name}:v1"}[key] + one.get("suffix", "")
        found = {f"{path}.image": text for path in one["images"]}
        found.update(dict.fromkeys(one.get("named", ()), text))
    elif key == "imagePullPolicy":
        found = {f"{path}.imagePullPolicy": value for path in one["images"]}
        found.update({path.replace("VALIDATOR_IMAGE", "VALIDATOR_IMAGE_PULL_POLICY"): value
                      for path in one.get("named", ())})
    elif key == "imagePullSecrets":
        found = {f"{pod} imagePullSecrets(mine)": "" for pod in pods}
        found.update({path.replace("VALIDATOR_IMAGE", "VALIDATOR_IMAGE_PULL_SECRETS"): "mine"
                      for path in one.get("named", ())})
    elif key == "args":
        found = {f"{one['main']}.args": value}
    elif key == "env":
        found = {f"{one['main']}.env(MINE).value": "1"}
    elif key == "resources":
        found = {f"{path}.resources.limits.cpu": "1" for path in one.get("resources", one["images"])}
    elif key == "hostNetwork":
        for pod in one.get("pods", pods):
            found.update({f"{pod} hostNetwork": True, f"{pod} dnsPolicy": "ClusterFirstWithHostNet"})
    return found


@pytest.mark.parametrize("row", [pytest.param(row, id=row["field"]) for row in TABLE["without"]])
def test_field_without_effect_is_said(row: dict[str, Any]) -> None:
    """For a field of a policy without effect, a note tells the user why."""
    policy = merged(TABLE["base"], under(row["field"], row["value"]))
    assert difference(usual(), flat(policy)) == {}
    said = [*plan(policy)["notes"], *formats.read(policy, releases.release("26.7.0")).warnings]
    assert any(row["said"] in text and row.get("told", row["field"]) in text for text in said), said


def covered() -> set[str]:
    return {row["field"] for row in (*TABLE["fields"], *TABLE["without"], *TABLE["labels"])} | {
        f"{section}.{key}" for section, one in TABLE["components"].items()
        for key in (*COMMON, "image") if key not in one.get("lacks", ())}


def test_every_field_has_a_row() -> None:
    """The list of keys comes from the definition and the shape of components that it repeats."""
    wanted = {path for path, kind in keys("cluster_policy_keys.txt") if kind != "object"}
    wanted |= {f"{section}.{key}" for section, one in TABLE["components"].items() for key in COMMON
               if key not in one.get("lacks", ())}
    wanted |= {f"validator.{check}.env" for check in ("cuda", "driver", "plugin", "toolkit")}
    mine = {path for path in wanted if not path.startswith(tuple(f"{name}." for name in (*ELSEWHERE, *SANDBOX)))
            and path not in SANDBOX}
    assert sorted(mine - covered()) == []
    assert len(mine) > 130


@pytest.mark.parametrize("row", [pytest.param(row, id=row["field"]) for row in TABLE["labels"]])
def test_field_of_labels(row: dict[str, Any]) -> None:
    """The effect of a field on Nodes: the operands for which they get labels."""
    before, after = ({**deploy["components"], "mig_default": deploy["mig_default"]} for deploy in (
        plan(policy)["deploy"] for policy in (TABLE["base"],
                                              merged(TABLE["base"], under(row["field"], row["value"])))))
    assert {name: value for name, value in after.items() if before[name] != value} == row["deploy"]


def test_a_gpu_cluster_is_refused_by_name() -> None:
    """Dynamic resource allocation has these fields in this resource."""
    with pytest.raises(Exception, match="gpuCluster.deployCR"):
        plan({"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "spec": {"draDriver": {}}})


def test_the_table_sees_what_a_field_does_beside() -> None:
    """An unexpected change fails the test."""
    before = usual()
    for path in ("DaemonSet/nvidia-dcgm containers(nvidia-dcgm-ctr).image", "Service/nvidia-dcgm spec.type"):
        assert difference(before, {**before, path: "other"}) == {path: "other"}
    assert difference(before, {**before, "ConfigMap/x data.a": "1"}) == {"ConfigMap/x": "new"}
