# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For a target in a cluster, works on the controller. Otherwise copies pynvml to the host and runs the module there."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable_result
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes, inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.host_labels import FACT, read_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import GONE_AFTER

IN_CLUSTER = ("node", "node_feature", "startup_taint")


class ActionModule(HostAction):
    """See the documentation of the module gpu_labels."""

    FACTS = tuple(answer_shapes.OWN_FACTS)
    CLUSTER_ARGUMENTS = {
        "state": {"type": "str", "choices": ["gathered", "present", "absent"], "default": "gathered"},
        "target": {"type": "str", "choices": list(IN_CLUSTER), "required": True},
        "kubeconfig": {"type": "path", "required": True},
        "context": {"type": "str"},
        "nodes": {"type": "list", "elements": "str"},
        "hosts": {"type": "list", "elements": "str"},
        "deploy": {"type": "dict"},
        "adopt": {"type": "list", "elements": "str", "default": []},
        "take_over": {"type": "bool", "default": False},
        "gone_after": {"type": "int", "default": GONE_AFTER},
        "wait_for_nfd": {"type": "int", "default": 0},
        "namespace": {"type": "str", "default": "gpu-operator"},
        "taint": {"type": "str"},
    }

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Entry point of Ansible. A target in a cluster needs no connection to a host."""
        target = self._task.args.get("target") or "facts"
        if target not in IN_CLUSTER:
            result: Data = super().run(tmp, task_vars)
            return self._with_former_labels(result, task_vars or {}) if target == "facts" else result
        result = ActionBase.run(self, tmp, task_vars)
        # Also without the nulls of options that only other targets have.
        self._task.args = self.options()
        _spec, arguments = self.validate_argument_spec(self.CLUSTER_ARGUMENTS)
        try:
            inventory_vars.refuse_forged(task_vars or {})
            result.update(self._in_cluster(arguments, task_vars or {}))
        except GpuopsError as error:
            result.update(error.as_result(), failed=True)
        return printable_result(result)

    def _in_cluster(self, arguments: Data, task_vars: Data) -> Data:
        """One task for all Nodes, on the controller."""
        # Imported here, because the Kubernetes library takes longer to load than the whole task on a host needs.
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold, label_nodes
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_feature import publish
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.startup_taints import release

        arguments["kubeconfig"] = find_file(task_vars, arguments["kubeconfig"])
        if arguments["target"] == "startup_taint":
            return release(arguments, self._task.check_mode, inventory_vars.unready_nodes(task_vars))
        found = None if arguments["hosts"] is None else read_labels(task_vars, arguments["hosts"])
        if found is not None and arguments["state"] == "absent":
            # A removal needs only the names of their Nodes, not their labels.
            named = found.nodes if arguments["nodes"] is None else arguments["nodes"]
            arguments["nodes"] = [name for name in found.nodes if name in named]
            found = None
        work = label_nodes if arguments["target"] == "node" else publish
        result = work(arguments, self._task.check_mode, None if found is None else found.labels,
                      () if found is None else found.unread)
        texts = [] if found is None else [f"{fold(names)}: {text}" for names, text in (
            (found.silent, "gpu_labels did not run on these hosts, so their Nodes keep their labels. Run it there with "
                           "target facts."),
            (found.refused, "their facts are invalid, so their Nodes keep their labels. The errors of these hosts say "
                            "why.")) if names]
        if texts:
            result = {**result, "notes": [*result["notes"], *texts], "warnings": [*result["warnings"], *texts]}
        return result

    def _with_former_labels(self, result: Data, task_vars: Data) -> Data:
        """Keeps the former fact of the same strategy while a GPU cannot be read."""
        former = (task_vars.get("ansible_facts") or {}).get(FACT) or {}
        strategy = self._task.args.get("mig_strategy") or "none"
        if answer_shapes.LABELS.fault(former) is not None or FACT not in result.get("ansible_facts", {}):
            return result
        if result.get("unread") and former and former.get("nvidia.com/mig.strategy", "none") == strategy:
            result["labels"] = result["ansible_facts"][FACT] = dict(former)
        return result
