# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The section driver.upgradePolicy of a policy: how driver pods are replaced. Pure. PRIVATE.

Source of the defaults: the definitions of ClusterPolicy and NVIDIADriver, GPU Operator 26.7.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

_PATH = "driver.upgradePolicy"


class Evictions(t.TypedDict):
    """How pods are evicted. force, delete_emptydir_data: as in the module node_drain; timeout: in seconds, 0 for no
    limit."""

    force: bool
    delete_emptydir_data: bool
    timeout: int


class Drain(Evictions):
    """The drain of a Node whose GPU pods alone could not be evicted. enabled: whether it is done; selector: the label
    selector of the pods, empty for all pods."""

    enabled: bool
    selector: str


class Wait(t.TypedDict):
    """The pods to whose end an upgrade waits. selector: their label selector, empty for none; timeout: in seconds, 0
    for no limit."""

    selector: str
    timeout: int


class UpgradePolicy(t.TypedDict):
    """The plan of upgrades. automatic: whether running drivers may be replaced; max_parallel: how many Nodes are
    upgraded at the same time, 0 for no limit; max_unavailable: how many Nodes may be unavailable at the same time, as a
    number or a percentage."""

    automatic: bool
    max_parallel: int
    max_unavailable: str
    wait: Wait
    pods: Evictions
    drain: Drain


def read(policy: Policy) -> UpgradePolicy:
    """The section of the policy of a driver, with its defaults. A policy without the section allows upgrades."""
    section = policy.get(_PATH)
    given: t.Mapping[str, Value] = section if isinstance(section, dict) else {}
    wait, pods, drain = (given.get(key) or {} for key in ("waitForCompletion", "podDeletion", "drain"))
    return {
        "automatic": given.get("autoUpgrade") is not False,
        "max_parallel": _number(given.get("maxParallelUpgrades"), 1),
        "max_unavailable": "25%" if given.get("maxUnavailable") is None else str(given["maxUnavailable"]),
        "wait": {"selector": str(wait.get("podSelector") or ""), "timeout": _number(wait.get("timeoutSeconds"), 0)},
        "pods": _evictions(pods),
        "drain": {**_evictions(drain), "enabled": bool(drain.get("enable")),
                  "selector": str(drain.get("podSelector") or "")},
    }


def _evictions(given: t.Mapping[str, t.Any]) -> Evictions:
    return {"force": bool(given.get("force")), "delete_emptydir_data": bool(given.get("deleteEmptyDir")),
            "timeout": _number(given.get("timeoutSeconds"), 300)}


def _number(value: Value, default: int) -> int:
    return default if value is None else int(value)


def most_unavailable(asked: object, nodes: int, path: str = f"{_PATH}.maxUnavailable") -> int:
    """How many of the Nodes may be unavailable at the same time. A percentage is rounded up, as the operator does.

    asked: a number, or a percentage such as C(25%). Raises InputError with path for any other value.
    """
    found = re.fullmatch(r"(\d{1,6})(%?)", str(asked))
    if found is None or isinstance(asked, bool) or (found[2] and int(found[1]) > 100):
        raise InputError(f"{asked!r} is not a number of Nodes.", "Write a number, or a percentage such as 25%.",
                         path=path, value=asked)
    return -(-nodes * int(found[1]) // 100) if found[2] else int(found[1])
