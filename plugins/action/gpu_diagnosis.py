# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints why hosts and Nodes do not work, and writes the support bundle."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import output_file, report_input
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import display, style
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import (
    bundle,
    diagnosis,
    report_data,
    report_shapes,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_diagnosis."""

    ARGUMENTS = {"plan": {"type": "dict"}, "bundle_path": {"type": "path"}}

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Prints the diagnoses, and writes the requested file."""
        plan = arguments["plan"] or {}
        report_shapes.check(plan, True)
        document = report_input.collect(task_vars, plan, True)
        answers = {host: answer for host in document["hosts"]
                   if (answer := inventory_vars.evidence(task_vars, host)) is not None}
        found = diagnosis.diagnose(Report.of(document), {
            host: diagnosis.Logged(answer["explained"], str(answer["dcgm"]["why"])
                                   if answer["dcgm"]["passed"] is False else "") for host, answer in answers.items()})
        text = diagnosis.render(found, style())
        display.display(f"\n{text}")
        not_tested = {host: answer["dcgm"]["why"] for host, answer in answers.items()
                      if answer["dcgm"]["passed"] is None and answer["dcgm"]["why"]}
        for host, why in not_tested.items():
            display.display(f"{host}: dcgmi diag has no result: {why}")
        result: Data = {"changed": False, "diagnoses": [one.as_dict() for one in found]}
        if arguments["bundle_path"]:
            path = os.path.abspath(str(arguments["bundle_path"]))
            texts = {"diagnosis.txt": f"{text}\n", **_of_hosts(document, answers),
                     "report.json": bundle.document(report_data.document(
                         document, preflight.error_of(plan).get("refusals") or [])),
                     **_of_cluster(task_vars, plan.get("cluster") or {})}
            check = bool(self._task.check_mode)
            result["bundle_path"] = path
            result["changed"] = output_file.write("bundle_path", path, bundle.archive(texts), check,
                                                  "Support bundle", 0o600)
        return result


def _of_hosts(document: Data, answers: t.Mapping[str, Data]) -> dict[str, str]:
    """The texts of the bundle about hosts. Names that give the same part of a path get a number."""
    texts: dict[str, str] = {}
    for number, (host, one) in enumerate(document["hosts"].items()):
        folder = f"hosts/{bundle.part(host)}"
        if f"{folder}/facts.json" in texts:
            folder = f"{folder}-{number}"
        texts[f"{folder}/facts.json"] = bundle.document(one["facts"])
        texts.update({f"{folder}/{bundle.part(name)}": text
                      for name, text in (answers.get(host) or {"evidence": {}})["evidence"].items()})
    return texts


def _of_cluster(task_vars: Data, planned: Data) -> dict[str, str]:
    """The texts of the bundle about the cluster: its operands, their pods and events, and its Nodes."""
    if not planned.get("kubeconfig") or planned.get("render_to"):
        return {}
    # Imported here, because the library takes half a second to load, which a run without a cluster does not need.
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

    try:
        client = Client(find_file(task_vars, planned["kubeconfig"]), planned.get("context"))
    except GpuopsError as error:
        return {"cluster/error.txt": f"{error}\n"}
    namespace, texts = str(planned["namespace"]), {}
    for version, kind in (("v1", "Node"), ("v1", "Pod"), ("v1", "Event"), ("apps/v1", "DaemonSet")):
        try:
            listed = client.list(version, kind, namespace=None if kind == "Node" else namespace)
            texts[f"cluster/{kind.lower()}s.json"] = bundle.document(listed)
        except GpuopsError as error:
            texts[f"cluster/{kind.lower()}s.txt"] = f"{error}\n"
    return texts
