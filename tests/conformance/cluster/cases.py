# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A case: a release, a policy and Nodes, the objects that the GPU Operator created for them, and our objects."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.cluster import resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import merge

from tests.conformance.cluster.forms import facts_of, flat

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in (FOLDER / "policies").glob("*.yaml")))


def read(path: Path) -> Any:
    """Parses a file of this folder, with libyaml if it is installed."""
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def case(name: str) -> dict[str, Any]:
    """``{release, nodes, values, spec, drivers, config_maps, secrets, service_monitors, like, facts}``; most keys are
    optional. spec: fields that the values of the chart do not have, which are set in the ClusterPolicy itself.

    spec: what is not among the chart's values, set in the ClusterPolicy itself.
    """
    found: dict[str, Any] = read(FOLDER / "policies" / f"{name}.yaml")
    return found


@cache
def exceptions() -> list[dict[str, Any]]:
    """``[{paths, policies, reason}]``: patterns of the paths that may differ, for which policies, and why."""
    found: list[dict[str, Any]] = read(FOLDER / "exceptions.yaml")
    return found


def matching(pattern: str) -> list[str]:
    """The names of the policies that match a pattern."""
    return [name for name in NAMES if fnmatchcase(name, pattern)]


def seen(asked: dict[str, Any]) -> dict[str, Any]:
    """The Nodes as our reader of clusters returns them."""
    nodes = {}
    for name, node in asked["nodes"].items():
        system, version = node["os"].split()
        runtime, runtime_version = node.get("runtime", "containerd 2.1.0").split()
        nodes[name] = {"labels": dict(node.get("labels") or {}), "annotations": {},
                       "os": {"id": system, "version": version}, "os_image": "",
                       "kernel": node.get("kernel", "5.15.0-84-generic"), "arch": "amd64", "runtime": runtime,
                       "runtime_version": runtime_version, "kubelet": "v1.36.0", "provider": None, "taints": [],
                       "ready": True, "gpu": True}
    return {"server": "", "version": "v1.36.0", "nfd": "none", "nodes": nodes,
            "service_monitors": bool(asked.get("service_monitors")),
            "config_maps": asked.get("config_maps") or {}, "secrets": asked.get("secrets") or {}}


def documents(asked: dict[str, Any]) -> Any:
    """The policy as values of the chart, or as resources if it has NVIDIADrivers."""
    if "drivers" not in asked:
        return merge(asked.get("values") or {}, asked.get("spec") or {})
    main = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
            "spec": asked.get("spec") or {}}
    return [main, *asked["drivers"]]


def rendered(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Our manifests for the components of the operator, without NFD."""
    release = releases.release(asked["release"])
    policy = formats.read(documents(asked), release)
    # The operator has no levels: it may do all.
    plan = resolve_cluster(policy, release, seen(asked), components.placements("cluster"), {}, {}, "reboot")
    return [manifest for name in ORDER if name != "nfd" for manifest in render(name, plan)]


@cache
def ours(name: str) -> list[dict[str, Any]]:
    """Our facts of a case. Copy them before you change them."""
    return rendered(case(name))


def like(facts: dict[str, Any], others: dict[str, str]) -> dict[str, Any]:
    """Facts in which some objects are replaced by similar ones. others: C({KIND | OTHER: KIND | NAME})."""
    found = {path: value for path, value in facts.items() if " | ".join(path.split(" | ")[:2]) not in others.values()}
    return found | {other + path[len(one):]: value for other, one in others.items() for path, value in facts.items()
                    if path == one or path.startswith(f"{one} | ")}


@cache
def default_facts() -> dict[str, Any]:
    """The facts of the operator for the default policy."""
    return dict(flat(read(FOLDER / "default.yaml")))


def expected(name: str) -> dict[str, Any]:
    """The facts of the operator for a case: those of the default policy, with the differences of the case."""
    asked = case(name)
    facts = like(default_facts(), asked.get("like") or {})
    facts.update(asked["facts"])
    return {path: value for path, value in facts.items() if value is not None}


def differences(name: str, manifests: list[dict[str, Any]]) -> tuple[list[str], set[str]]:
    """(facts that differ without an exception, patterns of the exceptions that were needed)."""
    mine, theirs = dict(flat(facts_of(manifests))), expected(name)
    patterns = [pattern for one in exceptions() if any(fnmatchcase(name, which) for which in one["policies"])
                for pattern in one["paths"]]
    told, needed = [], set()
    for path in sorted({*mine, *theirs}):
        if mine.get(path) != theirs.get(path):
            fits = {pattern for pattern in patterns if fnmatchcase(path, pattern)}
            needed |= fits
            if not fits:
                told.append(f"{path}: ours {mine.get(path)!r}, the operator's {theirs.get(path)!r}")
    return told, needed


@cache
def compared(name: str) -> tuple[list[str], set[str]]:
    """The differences for one case."""
    return differences(name, ours(name))
