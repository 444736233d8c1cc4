# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares a host or the cluster with its plan; waits for the cluster, and fails if a check has failed."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import display, piped, style
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.verify import (
    verify,
    with_module_results,
    with_pending,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import check_nodes, inventory_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import mig_document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report_cluster import progress, title_of

# Seconds between two progress lines, on a terminal and in a file.
_OFTEN, _SELDOM = 5.0, 30.0


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_verify."""

    _requires_connection = True
    ARGUMENTS = {
        "components": {"type": "list", "elements": "str"},
        "expected": {"type": "dict"},
        "facts": {"type": "dict"},
        "labels": {"type": "dict"},
        "samples": {"type": "list", "elements": "dict"},
        "pending": {"type": "dict"},
        "previewed": {"type": "bool", "default": False},
        "cluster": {"type": "dict"},
        "kubeconfig": {"type": "str"},
        "context": {"type": "str"},
        "workloads": {"type": "list", "elements": "dict", "default": []},
        "compare": {"type": "bool", "default": True},
        "check_pods": {"type": "raw", "default": 0},
        "check_metrics": {"type": "raw", "default": 0},
        "startup_taint": {"type": "str", "default": ""},
        "observe": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 900},
        "enforce": {"type": "bool", "default": True},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Compares, and fails if a check has failed."""
        for name in arguments["components"] or ():
            components.by_name(name)
        if (arguments["expected"] is None) == (arguments["cluster"] is None):
            raise InputError("exactly one of these options is required.",
                             "Set expected for a host, or cluster for a cluster.", path="expected, cluster")
        of_host = arguments["cluster"] is None
        found = {"checks": self._host(arguments, task_vars)} if of_host else self._cluster(arguments, task_vars)
        problems = [problem for check in found["checks"] if _wrong(check) for problem in _problems(check)]
        result: Data = {"changed": False, "problems": problems, **found}
        if problems and arguments["enforce"]:
            result.update(failed=True, msg="\n".join(problems))
        return result

    def _host(self, arguments: Data, task_vars: Data) -> list[Data]:
        """The checks of this host."""
        host = task_vars["inventory_hostname"]
        known = arguments["facts"] or inventory_vars.unchanged_facts(task_vars, host)
        pending = arguments["pending"]
        if pending is None:
            pending = inventory_vars.steps_of(task_vars, host, "pending")
        expected = dict(arguments["expected"])
        mig = expected.get("mig_manager") or {}
        document = mig_document.from_options(task_vars, mig.get("config_file"), mig.get("config"))
        if document is not None:
            expected["mig_manager"] = {**mig, "config": document.data}
        samples = arguments["samples"]
        if samples is None:
            samples = inventory_vars.samples(task_vars, host)

        def judged(facts: Data) -> list[Data]:
            found = verify(expected, t.cast(HostFacts, facts), arguments["components"], arguments["labels"], samples)
            if arguments["previewed"]:
                found = with_module_results(found, inventory_vars.steps_of(task_vars, host, "plan"), pending,
                                            inventory_vars.errors(task_vars, host, expected.get("delivered") or ()))
            return [check.as_dict() for check in with_pending(found, pending, self._task.check_mode)]

        checks = judged(known or self._gather(task_vars))
        # Differences in facts from the beginning of the run are verified with new facts, because systemd units may have
        # repaired them.
        if known and not arguments["facts"] and any(map(_wrong, checks)):
            checks = judged(self._gather(task_vars))
        return checks

    def _cluster(self, arguments: Data, task_vars: Data) -> Data:
        """Returns C({checks, verified, pods}) of a cluster. Waits, and prints the progress."""
        # Imported here, because the library takes a third of a second to load, which the task of a host does not need.
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import rights
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import node_lock, node_status
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import check_pods, exporter_page, offered
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.checks import compared, verified
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import differences, startup_taint
        from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.rollout import Rollout

        cluster, only = arguments["cluster"], arguments["components"]
        path = arguments["kubeconfig"] or cluster.get("kubeconfig")
        if not path:
            raise InputError("it is not set, and a cluster is never taken from the environment.",
                             "Set it to the kubeconfig of the cluster.", path="kubeconfig")
        amount, read = (check_nodes.count(arguments[name], cluster["nodes"]["gpu"], name)
                        for name in check_nodes.OPTIONS)
        # A run that has delivered all components names all of them.
        whole = only is None or {*cluster["components"]} <= {*only}
        mine = [name for name in components.NAMES if (cluster["components"].get(name) or {}).get("state") == "present"
                and (only is None or name in only)]
        client = Client(find_file(task_vars, str(path)), arguments["context"] or cluster.get("context"))
        screen = style()
        seen = [Workload(**one) for one in arguments["workloads"]]
        rollout = Rollout(client, cluster, mine, lambda told: display.display(printable(progress(told, screen))),
                          seen=seen, every=_SELDOM if piped() else _OFTEN)
        check = self._task.check_mode
        with rights.named(client, str(cluster["namespace"])):
            checks = rollout.now(check_mode=True) if check else rollout.follow(arguments["timeout"])
        if arguments["compare"]:
            checks = compared(checks, differences(client, cluster, only, _with_gpus(cluster, task_vars)), check)
        ready = verified(cluster["nodes"]["gpu"], checks)
        if "device_plugin" in mine:
            checks = compared(checks, offered.differences(client, ready, _full_gpus(cluster, task_vars),
                                                          0 if check else arguments["timeout"]), check)
            ready = verified(cluster["nodes"]["gpu"], checks)
        if "dcgm_exporter" in mine:
            metrics = exporter_page.differences(client, str(cluster["namespace"]), ready, read,
                                                _uuids(cluster, task_vars), check)
        else:
            metrics = exporter_page.undelivered(ready, read) if whole else []
        checks = compared(checks, metrics, check)
        without = {name for one in metrics if one.level == "failed" for name in one.nodes}
        ready = [name for name in ready if name not in without]
        ran = check_pods.undeliverable(cluster, ready, amount) if whole else []
        if not ran and {*check_pods.NEEDS} <= {*mine}:
            ran = check_pods.run(client, cluster, ready, amount, check)
        if ran:
            checks = compared(checks, check_pods.differences(ran), check)
            ready = [name for name in ready if not any(one.node == name and one.state == "failed" for one in ran)]
        if arguments["startup_taint"]:
            checks = compared(checks, startup_taint(client, arguments["startup_taint"], ready), check)
        found: Data = {"checks": [one.as_dict() for one in checks], "verified": ready,
                       "pods": [one._asdict() for one in ran]}
        if arguments["observe"]:
            nodes = {*cluster["nodes"]["gpu"], *cluster["nodes"]["by_host"], *(cluster.get("rejected") or ())}
            observed = node_status.read(client, str(cluster["namespace"]), nodes, node_lock.Holder.of_run())
            found["observed"] = {name: one.as_dict() for name, one in observed.items()}
        return found

    def _gather(self, task_vars: Data) -> Data:
        """Gathers new facts with the action of gpu_info, which copies pynvml to the host if it is missing."""
        task = self._task.copy()
        task.action, task.args = "gpuops.nvidia.gpu_info", {}
        action = self._shared_loader_obj.action_loader.get(
            task.action, task=task, connection=self._connection, play_context=self._play_context,
            loader=self._loader, templar=self._templar, shared_loader_obj=self._shared_loader_obj)
        result = action.run(task_vars=task_vars)
        if result.get("failed"):
            raise HostError(str(result.get("msg", "gpu_info failed.")))
        return t.cast("Data", result["facts"])


def _with_gpus(cluster: Data, task_vars: Data) -> dict[str, int]:
    """Maps Nodes to the number of GPUs of their hosts, for hosts that compute the labels of their Nodes."""
    hosts = cluster["deploy"].get("hosts") or ()
    facts = inventory_vars.facts(task_vars) if hosts else {}
    return {node: len(facts[host]["gpus"]) for node, host in cluster["nodes"]["by_host"].items()
            if host in hosts and facts.get(host)}


def _gpus(cluster: Data, task_vars: Data) -> dict[str, list[Data]]:
    """Maps Nodes to the GPUs of their hosts, for hosts in the inventory with GPUs."""
    found = {node: (inventory_vars.unchanged_facts(task_vars, host) or {}).get("gpus") or []
             for node, host in cluster["nodes"]["by_host"].items()}
    return {node: gpus for node, gpus in found.items() if gpus}


def _uuids(cluster: Data, task_vars: Data) -> dict[str, list[str]]:
    """Maps Nodes to the UUIDs of the GPUs of their hosts, for hosts in the inventory whose driver runs."""
    return {node: [str(gpu["uuid"]) for gpu in gpus] for node, gpus in _gpus(cluster, task_vars).items()
            if all(gpu.get("uuid") for gpu in gpus)}


def _full_gpus(cluster: Data, task_vars: Data) -> dict[str, int]:
    """Maps Nodes to the number of GPUs of their hosts, for hosts in the inventory without a GPU in MIG mode."""
    return {node: sum(1 for gpu in gpus if gpu.get("kernel_driver") == "nvidia")
            for node, gpus in _gpus(cluster, task_vars).items()
            if not any((gpu.get("mig") or {}).get("enabled") for gpu in gpus)}


def _wrong(check: Data) -> bool:
    return check["state"] in ("failed", "absent")


def _problems(check: Data) -> list[str]:
    """The problem as one sentence, for a cluster one sentence for each cause."""
    title = title_of(check["component"])
    causes = [cause for cause in check.get("causes") or () if cause["level"] == "failed"]
    if not causes:
        return [f"{title}: {check['detail']}. {check['hint']}".strip()]
    counts = f"{check['ready']}/{check['desired']} ready; " if check["desired"] else ""
    return [f"{title}: {counts}{cause['text']}. {cause['hint']}".strip()
            for cause in causes]
