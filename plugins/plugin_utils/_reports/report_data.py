# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as data, for programs. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report import Report

Dict = t.Dict[str, t.Any]
SCHEMA = 1
_PLAN = ("release", "policy", "format", "disruption", "placement", "notes", "explanations")
# Of a component in a cluster. Its environment stays out: it may hold secrets of proxies and licences.
_PART = ("state", "because", "version", "images")


def document(report: Report, refusals: t.Sequence[t.Mapping[str, t.Any]]) -> Dict:
    """C({schema, plan, problem, refusals, findings, counts, hosts, cluster}); refusals: as L(resolve) has them.

    hosts: C({HOST: {plan, steps, pending, checks}}); plan, problem and cluster are None where there is none.
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
    }


def _cluster(cluster: t.Mapping[str, t.Any] | None) -> Dict | None:
    if not cluster or not cluster.get("plan"):
        return None
    plan = cluster["plan"]
    parts = {name: {key: part[key] for key in _PART if key in part} for name, part in plan["components"].items()}
    return {"server": plan["server"], "namespace": plan["namespace"], "components": parts,
            "nodes": plan["nodes"]["pools"], "pools": list(plan.get("pools") or ()), "checks": cluster.get("checks")}
