# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._controller_action import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats, gathered, matrix
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.resolve import resolve


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_policy."""

    ARGUMENTS = {
        "policy": {"type": "raw"},
        "release": {"type": "str"},
        "placement": {"type": "raw", "default": "hosts"},
        "disruption": {"type": "str", "choices": list(LEVELS), "default": "never"},
        "facts": {"type": "dict"},
        "overrides": {"type": "dict"},
    }

    def work(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Reads, resolves, returns the plan."""
        source = arguments["policy"]
        if isinstance(source, str) and source:
            source = find_file(task_vars, source)
        release = matrix.release(arguments["release"] or None)
        policy = formats.read(source, release)
        facts = gathered.facts(task_vars) if arguments["facts"] is None else arguments["facts"]
        overrides = gathered.overrides(task_vars) if arguments["overrides"] is None else arguments["overrides"]
        overrides = {host: _with_layouts(mine, task_vars) for host, mine in overrides.items()}
        plan = resolve(policy, release, facts, overrides, arguments["placement"], arguments["disruption"])
        return {"changed": False, **plan}


def _with_layouts(mine: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
    """The variables of a host with the content of its MIG file, so that its layout is checked before anything runs."""
    name = mine.get("mig_manager_config_file")
    if not name:
        return mine
    return {**mine, "mig_manager_config": gathered.mig_document(task_vars, str(name))}
