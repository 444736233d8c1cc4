# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the plan of a run, or the state of hosts and cluster, and writes the page and the JSON of it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import output_file, report_input
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import display, style
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import (
    metrics,
    report_data,
    report_shapes,
    report_states,
    states,
    webpage,
)
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
        "health": {"type": "bool", "default": False},
        "states": {"type": "bool", "default": False},
        "fail_on": {"type": "list", "elements": "str", "choices": [*states.STATES], "default": []},
        "html_path": {"type": "path"},
        "json_path": {"type": "path"},
        "metrics_path": {"type": "path"},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Prints the report, and writes the requested files."""
        plan, ahead = arguments["plan"] or {}, arguments["show"] in ("plan", "preflight")
        report_shapes.check(plan, ahead, hosts=arguments["hosts"], cluster=arguments["cluster"])
        report = report_input.collect(task_vars, plan, ahead, arguments["hosts"], arguments["cluster"],
                                      arguments["health"])
        found = report["findings"]
        shown = Report.of(report)
        standing = states.states(shown) if arguments["states"] and not ahead else None
        shown = replace(shown, states=standing)
        display.display(f"\n{_RENDER[arguments['show']](shown, style())}")
        result: Data = {"changed": False, "verdict": verdict(shown), "findings": found, "counts": counts(found)}
        if standing is not None:
            result.update(states={one.name: one.as_dict() for one in standing},
                          state_counts=report_states.numbers(standing))
        files = {}
        if arguments["html_path"]:
            files["html_path"] = webpage.page(shown)
        if arguments["json_path"]:
            document = report_data.document(report, preflight.error_of(plan).get("refusals") or [], standing)
            files["json_path"] = json.dumps(document, indent=2, default=str, skipkeys=True) + "\n"
        if arguments["metrics_path"] and standing is not None:
            files["metrics_path"] = metrics.text(standing, time.time())
        for option, text in files.items():
            result[option] = os.path.abspath(str(arguments[option]))
            title = "Metrics" if option == "metrics_path" else "Report"
            result["changed"] |= output_file.write(option, result[option], text.encode(), bool(self._task.check_mode),
                                                   title)
        problem = report_states.failing(standing or (), arguments["fail_on"])
        if problem:
            # Ansible prints the whole result of a task that has failed; the files have what is left out.
            result = {key: value for key, value in result.items() if key not in ("states", "findings")}
            return {**result, "failed": True, "msg": problem}
        return result
