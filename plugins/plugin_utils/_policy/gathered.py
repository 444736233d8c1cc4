# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fleet's hosts have in their variables: the one place that knows the names. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.components import COMPONENTS, VARIABLES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.yamltext import load_data

# Registered by the role preflight: what gpu_info and gpu_verify returned.
FACTS = "preflight_found"
CHECKS = "preflight_checked"

TaskVars = t.Mapping[str, t.Any]


def hosts(task_vars: TaskVars) -> list[str]:
    """The hosts of the play, failed and unreachable ones included, in the inventory's order."""
    return [str(host) for host in task_vars.get("ansible_play_hosts_all") or [task_vars["inventory_hostname"]]]


def facts(task_vars: TaskVars) -> dict[str, t.Any]:
    """By host what gpu_info returned, None where it did not."""
    return {host: _registered(task_vars, host, FACTS).get("facts") for host in hosts(task_vars)}


def overrides(task_vars: TaskVars) -> dict[str, dict[str, t.Any]]:
    """By host the variables of roles that its inventory sets. Defaults of roles do not show up here."""
    found = {}
    for host in hosts(task_vars):
        mine = task_vars["hostvars"][host]
        found[host] = {name: mine[name] for name in VARIABLES if name in mine}
    return found


def checks(task_vars: TaskVars, host: str) -> list[dict[str, t.Any]] | None:
    """What gpu_verify found on a host, None where it did not come so far."""
    found = _registered(task_vars, host, CHECKS).get("checks")
    return found if isinstance(found, list) else None


def listed(task_vars: TaskVars, host: str, what: str) -> dict[str, list[dict[str, t.Any]]]:
    """By component the C(plan) or C(pending) that its module returned last on a host; empty ones left out."""
    found = {}
    for component in COMPONENTS:
        items = _registered(task_vars, host, component.result).get(what)
        if isinstance(items, list) and items:
            found[component.name] = items
    return found


def unchanged_facts(task_vars: TaskVars, host: str) -> dict[str, t.Any] | None:
    """The facts that were gathered in this run, None where there are none or a role has changed the host since."""
    if any(_registered(task_vars, host, component.result).get("changed") for component in COMPONENTS):
        return None
    found = _registered(task_vars, host, FACTS).get("facts")
    return found if isinstance(found, dict) else None


def mig_document(task_vars: TaskVars, name: str) -> dict[str, t.Any]:
    """The content of a file in mig-parted's format. Raises InputError where it is none."""
    path = find_file(task_vars, name)
    text = read_text(path)
    content = None if text is None else load_data(text, path)
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a MIG configuration.", "Give the path of a file in mig-parted's format.",
                         path="mig_manager_config_file", value=name)
    return content


def _registered(task_vars: TaskVars, host: str, name: str) -> dict[str, t.Any]:
    # Raw: what modules returned is data, and templating the whole fleet's would take its time.
    value = task_vars["hostvars"].raw_get(host).get(name)
    return value if isinstance(value, dict) else {}
