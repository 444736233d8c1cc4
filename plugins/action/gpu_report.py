# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the plan of a run, or the state of hosts and cluster, and writes the page and the JSON of it."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes, write_atomic
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import display, style
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.preflight_cluster import CLUSTER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_data, report_shapes, webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report import (
    render_plan,
    render_preflight,
    render_result,
    render_state,
    verdict,
)

_RENDER = {"plan": render_plan, "preflight": render_preflight, "result": render_result, "state": render_state}


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_report."""

    ARGUMENTS = {
        "show": {"type": "str", "choices": [*_RENDER], "required": True},
        "plan": {"type": "dict"},
        "hosts": {"type": "dict"},
        "cluster": {"type": "dict"},
        "html_path": {"type": "path"},
        "json_path": {"type": "path"},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Prints the report, and writes the requested files."""
        plan, ahead = arguments["plan"] or {}, arguments["show"] in ("plan", "preflight")
        report_shapes.check(plan, ahead, hosts=arguments["hosts"], cluster=arguments["cluster"])
        error = preflight.error_of(plan)
        cluster = arguments["cluster"]
        if cluster is None:
            cluster = inventory_vars.cluster(task_vars, plan.get("cluster"))
        hosts = _hosts(task_vars, bool(cluster)) if arguments["hosts"] is None else arguments["hosts"]
        found = preflight.with_failures(
            preflight.of_result(plan, {host: entry["facts"] for host, entry in hosts.items()}),
            _failures(task_vars, hosts, plan) if arguments["hosts"] is None else {}) if ahead else []
        report = {"plan": plan if "hosts" in plan else None, "problem": error.get("message"), "hosts": hosts,
                  # Answers of hosts were made printable when they were received. Those of a cluster were not.
                  "cluster": printable_data(cluster) or None, "findings": found}
        shown = Report.of(report)
        display.display(f"\n{_RENDER[arguments['show']](shown, style())}")
        result: Data = {"changed": False, "verdict": verdict(shown), "findings": found, "counts": counts(found)}
        files = {}
        if arguments["html_path"]:
            files["html_path"] = webpage.page(shown)
        if arguments["json_path"]:
            document = report_data.document(report, error.get("refusals") or [])
            files["json_path"] = json.dumps(document, indent=2, default=str, skipkeys=True) + "\n"
        for option, text in files.items():
            result[option] = os.path.abspath(str(arguments[option]))
            result["changed"] |= _write(option, result[option], text.encode(), bool(self._task.check_mode))
        return result


def _write(option: str, path: str, content: bytes, check: bool) -> bool:
    """Whether the content of the file changes. Raises InputError if the file cannot be written."""
    try:
        differs = read_bytes(path) != content
        if check:
            display.display(f"Report: {path} (not written in check mode)")
            return differs
        made = not os.path.isdir(os.path.dirname(path))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if differs:
            write_atomic(path, content)
    except (OSError, HostError) as error:
        why = error.message if isinstance(error, HostError) else f"{path} cannot be written: {error.strerror}."
        raise InputError(why, "Name a file in a folder that can be written.", path=option, value=path) from error
    display.display(f"Report: {path}{' (its folder was created)' if made else ''}")
    return differs


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
