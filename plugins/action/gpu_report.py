# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the plan of a run, or the state of hosts and cluster, and writes the page and the JSON of it."""

from __future__ import annotations

import json
import os

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import output_file, report_input
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import display, style
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts
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
        "health": {"type": "bool", "default": False},
        "html_path": {"type": "path"},
        "json_path": {"type": "path"},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Prints the report, and writes the requested files."""
        plan, ahead = arguments["plan"] or {}, arguments["show"] in ("plan", "preflight")
        report_shapes.check(plan, ahead, hosts=arguments["hosts"], cluster=arguments["cluster"])
        report = report_input.collect(task_vars, plan, ahead, arguments["hosts"], arguments["cluster"],
                                      arguments["health"])
        found = report["findings"]
        shown = Report.of(report)
        display.display(f"\n{_RENDER[arguments['show']](shown, style())}")
        result: Data = {"changed": False, "verdict": verdict(shown), "findings": found, "counts": counts(found)}
        files = {}
        if arguments["html_path"]:
            files["html_path"] = webpage.page(shown)
        if arguments["json_path"]:
            document = report_data.document(report, preflight.error_of(plan).get("refusals") or [])
            files["json_path"] = json.dumps(document, indent=2, default=str, skipkeys=True) + "\n"
        for option, text in files.items():
            result[option] = os.path.abspath(str(arguments[option]))
            result["changed"] |= output_file.write(option, result[option], text.encode(), bool(self._task.check_mode))
        return result
