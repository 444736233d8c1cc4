# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._files import write_atomic
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._controller_action import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import gathered, webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.report import (
    render_plan,
    render_result,
    render_state,
    verdict,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._screen import display, style


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_report."""

    ARGUMENTS = {
        "show": {"type": "str", "choices": ["plan", "result", "state"], "required": True},
        "plan": {"type": "dict"},
        "hosts": {"type": "dict"},
        "cluster": {"type": "dict"},
        "html_path": {"type": "path"},
    }

    def work(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Prints, and writes the page where one is asked for."""
        # A policy that cannot be carried out has an error instead of hosts.
        plan = arguments["plan"] or {}
        problem = (plan.get("error") or {}).get("message")
        cluster = arguments["cluster"]
        if cluster is None:
            cluster = gathered.cluster(task_vars, plan.get("cluster"))
        hosts = _hosts(task_vars, bool(cluster)) if arguments["hosts"] is None else arguments["hosts"]
        report = {"plan": plan if "hosts" in plan else None, "problem": problem, "hosts": hosts,
                  "cluster": cluster or None}
        render = {"plan": render_plan, "result": render_result, "state": render_state}[arguments["show"]]
        display.display(f"\n{render(report, style())}")
        result: dict[str, t.Any] = {"changed": False, "verdict": verdict(report)}
        if arguments["html_path"]:
            path = os.path.abspath(arguments["html_path"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, webpage.page(report).encode())
            display.display(f"Report: {path}")
            result["html_path"] = path
        return result


def _hosts(task_vars: dict[str, t.Any], with_cluster: bool) -> dict[str, dict[str, t.Any]]:
    facts = gathered.facts(task_vars)
    # A host from which a cluster is served, without a group of its own, is no GPU host.
    grouped = (task_vars.get("groups") or {}).get("gpu_hosts") or ()
    return {host: {"facts": facts[host], "checks": gathered.checks(task_vars, host),
                   "steps": gathered.listed(task_vars, host, "plan"),
                   "pending": gathered.listed(task_vars, host, "pending")} for host in gathered.hosts(task_vars)
            if facts[host] is not None or host in grouped or not with_cluster}
