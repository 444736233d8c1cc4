# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fact gpu_labels when a GPU cannot be read once: a play on this machine, with a simulated module for the GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

# The actions in a process of their own, because Ansible's plugin loader takes over imports; one process for all cases,
# as its start takes a second. What the module on the host said stands in its place.
RUN = """
import json, sys, types
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([])
from ansible_collections.gpuops.nvidia.plugins.action import gpu_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import label_nodes, node_feature

def fact(arguments, told, former):
    HostAction.run = lambda self, tmp, task_vars: told
    action = gpu_labels.ActionModule.__new__(gpu_labels.ActionModule)
    action._task = types.SimpleNamespace(args=arguments)
    return action.run(None, {"ansible_facts": {"gpu_labels": former} if former else {}})

def remove(given):
    tell = lambda arguments, check_mode, told, unread: {"nodes": arguments["nodes"], "told": told}
    label_nodes.label_nodes = node_feature.publish = tell
    HostVars = type("HostVars", (dict,), {"raw_get": dict.get})
    hosts = HostVars(a={"gpu_node_name": "node-a"}, b={"ansible_facts": {"gpu_labels": {"x": "8"}}}, c={})
    action = gpu_labels.ActionModule.__new__(gpu_labels.ActionModule)
    action._task = types.SimpleNamespace(check_mode=False)
    arguments = {"state": "absent", "kubeconfig": "/k", "hosts": None, "nodes": None, **given}
    return action._in_cluster(arguments, {"hostvars": hosts})

facts, removals = json.load(sys.stdin)
print(json.dumps([[fact(*case) for case in facts], [remove(case) for case in removals]]))
"""
WHOLE = {"nvidia.com/gpu.count": "56", "nvidia.com/mig.strategy": "single"}
LOST = {"nvidia.com/gpu.count": "49", "nvidia.com/mig.strategy": "single"}
# By name the arguments, the GPUs that were not read, what was said before, and what is said now.
FACTS: dict[str, tuple[dict[str, str], list[str], dict[str, str] | None, str]] = {
    "lost": ({"mig_strategy": "single"}, ["0000:07:00.0"], WHOLE, "56"),
    "read": ({"mig_strategy": "single"}, [], WHOLE, "49"),
    "first time": ({"mig_strategy": "single"}, ["0000:07:00.0"], None, "49"),
    "other strategy": ({"mig_strategy": "mixed"}, ["0000:07:00.0"], WHOLE, "49"),
    "a file keeps its own": ({"mig_strategy": "single", "target": "nfd_file"}, ["0000:07:00.0"], WHOLE, "49")}
# What is given, and the Nodes that lose their labels.
REMOVALS: list[tuple[dict[str, list[str]], list[str] | None]] = [
    ({}, None), ({"nodes": ["node-a"]}, ["node-a"]), ({"hosts": ["a", "b"]}, ["node-a", "b"]), ({"hosts": []}, []),
    ({"hosts": ["a", "b"], "nodes": ["b", "x"]}, ["b"]), ({"hosts": ["a"], "nodes": []}, [])]
TARGETS = ("node", "node_feature")


@pytest.fixture(scope="module")
def results() -> tuple[dict[str, Any], dict[tuple[str, int], Any]]:
    """The results of the actions: by name of FACTS, and by target and number of REMOVALS."""
    facts = [(arguments, {"labels": LOST, "ansible_facts": {"gpu_labels": LOST}, "unread": unread}, former)
             for arguments, unread, former, _count in FACTS.values()]
    removals = [{"target": target, **given} for target in TARGETS for given, _nodes in REMOVALS]
    done = subprocess.run([sys.executable, "-c", RUN], input=json.dumps([facts, removals]), capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, removed = json.loads(done.stdout)
    cases = [(target, number) for target in TARGETS for number in range(len(REMOVALS))]
    return dict(zip(FACTS, said, strict=True)), dict(zip(cases, removed, strict=True))


@pytest.mark.parametrize("name", FACTS)
def test_fact(results: tuple[dict[str, Any], dict[tuple[str, int], Any]], name: str) -> None:
    """While a GPU cannot be read, the former labels for the same strategy stay."""
    result = results[0][name]
    assert result["labels"] == result["ansible_facts"]["gpu_labels"]
    assert result["labels"]["nvidia.com/gpu.count"] == FACTS[name][-1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", range(len(REMOVALS)))
def test_removal_from_the_nodes_of_some_hosts(results: tuple[dict[str, Any], dict[tuple[str, int], Any]], target: str,
                                              number: int) -> None:
    """The labels of other Nodes stay, whether or not a host has reported labels."""
    assert results[1][target, number] == {"nodes": REMOVALS[number][1], "told": None}
