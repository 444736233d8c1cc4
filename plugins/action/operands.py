# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders the objects of a cluster and delivers, adopts, removes or hands them back, or writes them to files."""

from __future__ import annotations

import time
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import tell
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import windows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects, ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.refuse_operator import refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver, files
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.node_by_node import Terms


class ActionModule(ControllerAction):
    """See the documentation of the module operands."""

    ARGUMENTS = {
        "state": {"type": "str", "choices": ["present", "absent", "handed_back"], "default": "present"},
        "components": {"type": "list", "elements": "str"},
        "cluster": {"type": "dict"},
        "manifests": {"type": "list", "elements": "dict"},
        "component": {"type": "str"},
        "kubeconfig": {"type": "path"},
        "context": {"type": "str"},
        "render_to": {"type": "path"},
        "take_over": {"type": "bool", "default": False},
        "policy": {"type": "dict"},
        "disruption": {"type": "str", "choices": list(LEVELS), "default": LEVELS[0]},
        "wait": {"type": "bool", "default": False},
        "wait_timeout": {"type": "int", "default": 300},
        "max_unavailable": {"type": "str", "default": "1"},
        "max_fail_percentage": {"type": "int", "default": 0},
        "drain_timeout": {"type": "int", "default": 600},
        "force": {"type": "bool", "default": False},
        "delete_emptydir_data": {"type": "bool", "default": False},
        "windows": {"type": "raw"},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Renders the manifests, then writes files or changes the cluster."""
        check = bool(self._task.check_mode)
        if arguments["kubeconfig"]:
            arguments["kubeconfig"] = find_file(task_vars, arguments["kubeconfig"])
        if arguments["state"] == "absent":
            return self._absent(arguments, check)
        if arguments["state"] == "handed_back":
            return _handed_back(arguments, check)
        wanted, components = _wanted(arguments)
        if arguments["render_to"]:
            whole = arguments["cluster"] is not None and not arguments["components"]
            return files.write(arguments["render_to"], wanted, check, None if whole else components)
        client = Client(arguments["kubeconfig"] or "", arguments["context"])
        # Your own manifests are not operands, so they do not conflict with a GPU Operator.
        cluster = arguments["cluster"]
        level = LEVELS[-1] if cluster is None else cluster.get("disruption", LEVELS[0])
        guard: Data = {} if cluster is None else {
            "guard": refuse_operator, "labels": bool((cluster.get("deploy") or {}).get("differs"))}
        given = windows.parse(arguments["windows"], "windows")
        terms = _terms(arguments, level)
        kept: t.Collection[str] = () if cluster is None else deliver.kept_daemon_sets(cluster)
        leaving: Data = ((cluster or {}).get("deploy") or {}).get("leaving") or {}
        if arguments["take_over"]:
            result = deliver.adopted(client, wanted, components, check, level, kept, terms, tell, leaving)
        else:
            terms = replace(terms, closed=lambda: windows.closed(given, time.time()))
            result = deliver.present(client, wanted, components, check, level=level, kept=kept, terms=terms,
                                     tell=tell, unfinished=(cluster or {}).get("unfinished"), leaving=leaving, **guard)
        if arguments["wait"] and not check:
            ready.wait(client, wanted, arguments["wait_timeout"])
        return result

    def _absent(self, arguments: Data, check: bool) -> Data:
        components = arguments["components"] or ([arguments["component"]] if arguments["component"] else None)
        if arguments["render_to"]:
            return files.write(arguments["render_to"], [], check, components)
        client = Client(arguments["kubeconfig"] or "", arguments["context"])
        terms = _terms(arguments, arguments["disruption"])
        return deliver.absent(client, components, arguments["wait_timeout"], check, tell, terms)


def _terms(arguments: Data, level: str) -> Terms:
    evictions = EvictionOptions(True, arguments["force"], arguments["delete_emptydir_data"])
    return Terms(Holder.of_run(), level, arguments["max_unavailable"], arguments["drain_timeout"], evictions,
                 arguments["max_fail_percentage"])


def _handed_back(arguments: Data, check: bool) -> Data:
    policy = arguments["policy"] or {}
    if policy.get("kind") != "ClusterPolicy" or not isinstance(policy.get("spec"), dict):
        raise InputError("A ClusterPolicy is required with this state.",
                         "Set it to the result exported of gpu_policy with export: cluster_policy.", path="policy")
    client = Client(arguments["kubeconfig"] or "", arguments["context"])
    return deliver.handed_back(client, objects.copied(policy, "policy"), check)


def _wanted(arguments: Data) -> tuple[list[objects.Wanted], list[str]]:
    """Returns the desired objects, and the components whose other objects are pruned."""
    cluster, manifests = arguments["cluster"], arguments["manifests"]
    if (cluster is None) == (manifests is None):
        raise InputError("exactly one of these options is required.",
                         "Set cluster to the result cluster of gpu_policy, or set manifests.",
                         path="cluster, manifests")
    if manifests is not None:
        if not arguments["component"]:
            raise InputError("It is required with manifests: later runs find the objects by this name.",
                             "Set the name of the component to which the manifests belong.", path="component")
        return objects.wanted({arguments["component"]: manifests}), [arguments["component"]]
    if arguments["take_over"] and arguments["components"]:
        raise InputError("The operator is stopped, so all its operands are adopted in one run.",
                         "Omit components (tags).", path="components", value=arguments["components"])
    return deliver.of_plan(cluster, arguments["components"])
