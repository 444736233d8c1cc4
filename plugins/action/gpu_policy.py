# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import _deploy
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._controller_action import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats, gathered, matrix, settings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster import resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.resolve import resolve

Data = t.Dict[str, t.Any]


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_policy."""

    ARGUMENTS = {
        "policy": {"type": "raw"},
        "release": {"type": "str"},
        "placement": {"type": "raw"},
        "disruption": {"type": "str", "choices": [*LEVELS, ""]},
        "kubeconfig": {"type": "str"},
        "context": {"type": "str"},
        "namespace": {"type": "str"},
        "image_registry": {"type": "str"},
        "pull_secrets": {"type": "list", "elements": "str"},
        "node_os": {"type": "list", "elements": "str"},
        "render_to": {"type": "str"},
        "facts": {"type": "dict"},
        "cluster_facts": {"type": "dict"},
        "overrides": {"type": "dict"},
        "resolve": {"type": "bool", "default": True},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Reads, resolves, returns the plan."""
        wanted = settings.settle(arguments, gathered.variables(task_vars), gathered.left_out(task_vars))
        for file in ("policy", "kubeconfig"):
            if isinstance(wanted[file], str):
                wanted[file] = find_file(task_vars, wanted[file])
        if not arguments["resolve"]:
            place = {name: wanted[name] for name in ("kubeconfig", "context", "namespace")}
            meant = wanted["kubeconfig"] and not gathered.cluster_is_left_out(task_vars)
            return {"changed": False, "cluster": place if meant else None}
        release = matrix.release(wanted["release"])
        policy = formats.read(wanted["policy"], release)
        facts = gathered.facts(task_vars) if arguments["facts"] is None else arguments["facts"]
        overrides = gathered.overrides(task_vars) if arguments["overrides"] is None else arguments["overrides"]
        overrides = {host: _with_layouts(mine, task_vars) for host, mine in overrides.items()}
        plan = resolve(policy, release, facts, overrides, wanted["placement"], wanted["disruption"])
        plan["cluster"] = None
        if {"cluster", "hybrid"} & set(plan["placement"].values()):
            self._cluster(plan, policy, release, wanted, arguments, task_vars)
        return {"changed": False, **plan}

    def _cluster(self, plan: Data, policy: formats.Policy, release: matrix.Release, wanted: Data, arguments: Data,
                 task_vars: Data) -> None:
        """Completes the plan by the part of the cluster."""
        if gathered.cluster_is_left_out(task_vars):
            plan["notes"].append("the cluster is left out by --limit: no host of the group gpu_control is in this run.")
            return
        seen = arguments["cluster_facts"]
        if seen is None and wanted["kubeconfig"]:
            seen = _look(wanted["kubeconfig"], wanted["context"])
        elif seen is None and not wanted["render_to"]:
            raise InputError("it is not set, and a cluster is never taken from the environment.",
                             "Name the file of the cluster that is meant, or set gpu_render_to to write manifests.",
                             path="gpu_kubeconfig")
        cluster = resolve_cluster(policy, release, seen, plan["placement"], gathered.node_names(task_vars), wanted,
                                  wanted["disruption"])
        plan["notes"] += cluster.pop("notes")
        cluster["deploy"]["mig_default"] = policy.get("migManager.config.default") or ""
        cluster["deploy"]["differs"] = _labels_differ(seen, cluster["deploy"])
        plan["cluster"] = {**cluster, "kubeconfig": wanted["kubeconfig"], "context": wanted["context"],
                           "render_to": wanted["render_to"]}


def _look(kubeconfig: str, context: str | None) -> Data:
    """What is in the cluster; refused where a GPU Operator owns it."""
    # Here, as the library costs half a second, which a run without a cluster need not pay.
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import client, guard, read

    server = client.Client(kubeconfig, context)
    guard.refuse_operator(server)
    return read.read_cluster(server)


def _labels_differ(seen: Data | None, deploy: Data) -> bool:
    """Whether any Node, as it was read for the plan, lacks a label; if none does, nobody has to read them again."""
    nodes = [_deploy.Node(name, node["labels"], node["annotations"], node["ready"])
             for name, node in (seen or {"nodes": {}})["nodes"].items()]
    return _deploy.differs(nodes, _deploy.parse_deploy(deploy))


def _with_layouts(mine: Data, task_vars: Data) -> Data:
    """The variables of a host with the content of its MIG file, so that its layout is checked before anything runs."""
    name = mine.get("mig_manager_config_file")
    if not name:
        return mine
    return {**mine, "mig_manager_config": gathered.mig_document(task_vars, str(name))}
