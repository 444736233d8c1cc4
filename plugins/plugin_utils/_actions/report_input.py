# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collects what a report shows from the variables that roles register on the hosts of a play. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.preflight_cluster import CLUSTER


def collect(task_vars: Data, plan: Data, with_findings: bool, hosts: dict[str, Data] | None = None,
            cluster: Data | None = None, with_health: bool = False) -> Data:
    """The document of a report, which L(Report.of) reads. plan: the result of gpu_policy; hosts, cluster: those that a
    user has written, None to collect them; with_health: whether the findings about the health of GPUs are shown even
    without the others."""
    if cluster is None:
        cluster = inventory_vars.cluster(task_vars, plan.get("cluster"))
    known = _hosts(task_vars, bool(cluster)) if hosts is None else hosts
    facts = {host: entry["facts"] for host, entry in known.items()}
    found = preflight.health(facts) if with_health else []
    if with_findings:
        found = preflight.with_failures(preflight.of_result(plan, facts),
                                        _failures(task_vars, known, plan) if hosts is None else {})
    return {"plan": plan if "hosts" in plan else None, "problem": preflight.error_of(plan).get("message"),
            "hosts": known,
            # Answers of hosts were made printable when they were received. Those of a cluster were not.
            "cluster": printable_data(cluster) or None, "findings": found}


def _failures(task_vars: Data, hosts: t.Iterable[str], plan: Data) -> dict[str, dict[str, Data]]:
    """Collects the results of modules that ran in check mode, for each host and for the cluster."""
    asked = {host: mine.get("preview") or () for host, mine in (plan.get("hosts") or {}).items()}
    return {CLUSTER: inventory_vars.cluster_errors(task_vars),
            **{host: inventory_vars.errors(task_vars, host, asked.get(host, ())) for host in hosts}}


def _hosts(task_vars: Data, with_cluster: bool) -> dict[str, Data]:
    facts = inventory_vars.facts(task_vars)
    # A host that stands for the cluster is not a GPU host, even if it is not in the group gpu_control.
    grouped = (task_vars.get("groups") or {}).get("gpu_hosts") or ()
    return {host: {"facts": facts[host], "checks": inventory_vars.checks(task_vars, host),
                   "steps": inventory_vars.steps_of(task_vars, host, "plan"),
                   "pending": inventory_vars.steps_of(task_vars, host, "pending")}
            for host in inventory_vars.hosts(task_vars)
            if facts[host] is not None or host in grouped or not with_cluster}
