# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of clusters in the structure of read_cluster, and plans of them, in a compact notation."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.cluster import resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats

UBUNTU = ("ubuntu", "22.04")


def node(system: tuple[str, str] | None = UBUNTU, gpu: bool = True, runtime: str = "containerd",
         kubelet: str = "v1.36.3", **labels: str) -> dict[str, Any]:
    return {"labels": labels, "annotations": {}, "os": {"id": system[0], "version": system[1]} if system else None,
            "os_image": "", "kernel": "6.8.0", "arch": "amd64", "runtime": runtime, "runtime_version": "1.7.28",
            "kubelet": kubelet, "provider": None, "taints": [], "ready": True, "gpu": gpu}


def facts(*nodes: dict[str, Any], nfd: str = "none", monitors: bool = False, **named: dict[str, Any]) -> dict[str, Any]:
    return {"server": "https://10.0.0.1:6443", "version": "v1.36.3", "nfd": nfd, "service_monitors": monitors,
            "nodes": {**{f"n{index}": one for index, one in enumerate(nodes, 1)}, **named}}


def plan(policy: Any = None, cluster: dict[str, Any] | None = None, release: str = "26.7.0", placement: Any = "cluster",
         hosts: dict[str, str] | None = None, disruption: str = "never", **settings: Any) -> dict[str, Any]:
    """A plan; by default for a cluster with a single GPU Node."""
    chosen = releases.release(release)
    return resolve_cluster(
        formats.read(policy, chosen), chosen, cluster or facts(node()), components.placements(placement), hosts or {},
        {"placement": placement, **settings}, disruption)


def objects(policy: Any = None, cluster: dict[str, Any] | None = None, **more: Any) -> dict[str, dict[str, Any]]:
    """Maps C(Kind/name) to the rendered objects of the plan."""
    made = plan(policy, cluster, **more)
    return {f"{one['kind']}/{one['metadata']['name']}": one for name in ORDER for one in render(name, made)}


def pod(found: dict[str, dict[str, Any]], name: str) -> Any:
    return found[f"DaemonSet/{name}"]["spec"]["template"]["spec"]


def env(found: dict[str, dict[str, Any]], name: str, container: str = "") -> dict[str, str]:
    """The variables of a container that have plain values; without a name, those of the first container."""
    spec = pod(found, name)
    every = [*spec["containers"], *spec.get("initContainers", ())]
    chosen = next(one for one in every if container in ("", one["name"]))
    return {item["name"]: item["value"] for item in chosen.get("env", ()) if "value" in item}
