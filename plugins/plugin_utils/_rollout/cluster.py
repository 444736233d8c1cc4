# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a cluster's plan (C(gpu_plan.cluster)) that a rollout needs. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """The part of a cluster's plan that a rollout needs.

    namespace: the namespace of the operands; gpu_nodes: the names of the GPU Nodes; hosts: maps a Node to its host if
    the host has another name; on_host: maps a Node to the components that are delivered on its host; delivered: the
    components that are delivered in the cluster; driver_evicts: whether the driver manager of every pool evicts GPU
    pods; take_over: whether the run adopts the objects of a GPU Operator.
    """

    namespace: str
    gpu_nodes: t.Sequence[str]
    hosts: t.Mapping[str, str]
    on_host: t.Mapping[str, t.Collection[str]]
    delivered: t.AbstractSet[str]
    driver_evicts: bool
    take_over: bool

    @classmethod
    def of(cls, plan: t.Mapping[str, t.Any]) -> Cluster:
        """Reads the plan of a cluster."""
        components = plan.get("components") or {}
        pools = (components.get("driver") or {}).get("pools") or ()
        return cls(str(plan["namespace"]), plan["nodes"]["gpu"], plan["nodes"].get("by_host") or {},
                   plan["deploy"]["on_host"],
                   {name for name, part in components.items() if part.get("state") == "present"},
                   bool(pools) and all(pool["manager_env"].get("ENABLE_GPU_POD_EVICTION") == "true" for pool in pools),
                   bool(plan.get("take_over")))
