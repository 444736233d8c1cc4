# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as JSON for programs. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import NodeState

SCHEMA = 1
_PLAN = ("release", "policy", "format", "disruption", "placement", "notes", "explanations")
# The keys of a component in a cluster. Its environment is left out: it may have secrets of proxies and licences.
_PART = ("state", "because", "version", "images")


def document(report: Document, refusals: t.Sequence[Document],
             states: t.Sequence[NodeState] | None = None) -> Document:
    """C({schema, plan, problem, refusals, findings, counts, hosts, cluster, states}).

    report: C({plan, problem, hosts, cluster, findings}); refusals: as gpu_policy returns them; states: None if they are
    not shown. hosts is C({HOST: {plan, steps, pending, checks}}), states C({NAME: STATE}) as L(NodeState.as_dict)
    returns it; plan, problem, cluster and states may be null.
    """
    plan = report.get("plan")
    planned = plan["hosts"] if plan else {}
    return {
        "schema": SCHEMA,
        "plan": {key: plan[key] for key in _PLAN} if plan else None,
        "problem": report.get("problem"), "refusals": list(refusals),
        "findings": list(report["findings"]), "counts": counts(report["findings"]),
        "hosts": {host: {"plan": planned.get(host), **{key: entry[key] for key in ("steps", "pending", "checks")}}
                  for host, entry in report["hosts"].items()},
        "cluster": _cluster(report.get("cluster")),
        "states": None if states is None else {one.name: one.as_dict() for one in states},
    }


def _cluster(cluster: Document | None) -> Document | None:
    if not cluster or not cluster.get("plan"):
        return None
    plan = cluster["plan"]
    parts = {name: {key: part[key] for key in _PART if key in part} for name, part in plan["components"].items()}
    return {"server": plan["server"], "namespace": plan["namespace"], "components": parts,
            "nodes": plan["nodes"]["pools"], "pools": list(plan.get("pools") or ()), "checks": cluster.get("checks")}
