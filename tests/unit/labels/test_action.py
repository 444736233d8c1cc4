# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fact gpu_labels over one lost reading: a play on this machine, whose GPUs a module of the test tells."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# The action in a process of its own, because Ansible's plugin loader takes over imports. What the module on the host
# said stands in its place.
RUN = """
import json, sys, types
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([])
from ansible_collections.gpuops.nvidia.plugins.action import gpu_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
arguments, told, former = json.loads(sys.argv[1])
HostAction.run = lambda self, tmp, task_vars: told
action = gpu_labels.ActionModule.__new__(gpu_labels.ActionModule)
action._task = types.SimpleNamespace(args=arguments)
print(json.dumps(action.run(None, {"ansible_facts": {"gpu_labels": former} if former else {}})))
"""
WHOLE = {"nvidia.com/gpu.count": "56", "nvidia.com/mig.strategy": "single"}
LOST = {"nvidia.com/gpu.count": "49", "nvidia.com/mig.strategy": "single"}


@pytest.mark.parametrize(("arguments", "unread", "former", "count"), [
    ({"mig_strategy": "single"}, ["0000:07:00.0"], WHOLE, "56"),
    ({"mig_strategy": "single"}, [], WHOLE, "49"),
    ({"mig_strategy": "single"}, ["0000:07:00.0"], None, "49"),
    ({"mig_strategy": "mixed"}, ["0000:07:00.0"], WHOLE, "49"),
    ({"mig_strategy": "single", "target": "nfd_file"}, ["0000:07:00.0"], WHOLE, "49"),
], ids=["lost", "read", "first time", "other strategy", "a file keeps its own"])
def test_fact(arguments: dict[str, str], unread: list[str], former: dict[str, str] | None, count: str) -> None:
    """What was said before for the same strategy stays while a GPU cannot be read."""
    told = {"labels": LOST, "ansible_facts": {"gpu_labels": LOST}, "unread": unread}
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps([arguments, told, former])], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["labels"] == result["ansible_facts"]["gpu_labels"]
    assert result["labels"]["nvidia.com/gpu.count"] == count


REMOVE = """
import json, sys, types
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([])
from ansible_collections.gpuops.nvidia.plugins.action import gpu_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy, node_feature
given = json.loads(sys.argv[1])
tell = lambda arguments, check_mode, told, unread: {"nodes": arguments["nodes"], "told": told}
deploy.label_nodes = node_feature.publish = tell
HostVars = type("HostVars", (dict,), {"raw_get": dict.get})
hosts = HostVars(a={"gpu_node_name": "node-a"}, b={"ansible_facts": {"gpu_labels": {"x": "8"}}}, c={})
action = gpu_labels.ActionModule.__new__(gpu_labels.ActionModule)
action._task = types.SimpleNamespace(check_mode=False)
arguments = {"state": "absent", "kubeconfig": "/k", "hosts": None, "nodes": None, **given}
print(json.dumps(action._in_cluster(arguments, {"hostvars": hosts})))
"""


@pytest.mark.parametrize("target", ["node", "node_feature"])
@pytest.mark.parametrize(("given", "nodes"), [
    ({}, None), ({"nodes": ["node-a"]}, ["node-a"]), ({"hosts": ["a", "b"]}, ["node-a", "b"]), ({"hosts": []}, []),
    ({"hosts": ["a", "b"], "nodes": ["b", "x"]}, ["b"]), ({"hosts": ["a"], "nodes": []}, [])])
def test_removal_from_the_nodes_of_some_hosts(target: str, given: dict[str, list[str]],
                                              nodes: list[str] | None) -> None:
    """And from no other; whether a host has told anything does not count."""
    done = subprocess.run([sys.executable, "-c", REMOVE, json.dumps({"target": target, **given})], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"nodes": nodes, "told": None}
