# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When gpu_verify looks at a host once more: what the run saw at its beginning is no reason to fail."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action.gpu_verify import ActionModule
from ansible_collections.gpuops.nvidia.tests.unit import facts_sample
from ansible_collections.gpuops.nvidia.tests.unit.policy.test_gathered import task_vars

EXPECTED = {"driver": {"placement": "host", "state": "present", "version": "595.91.07", "branch": "595",
                       "kernel_module_type": "open"}}
BARE = facts_sample.facts()
GOOD = facts_sample.driven(copy.deepcopy(BARE), "595.91.07", "open")


def states(before: dict[str, Any] | None, now: dict[str, Any], given: dict[str, Any] | None = None,
           check: bool = False) -> tuple[list[str], int]:
    """(the states of the checks, how often the host was looked at)."""
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=check)
    looks: list[int] = []
    action._gather = lambda _vars: looks.append(1) or now  # type: ignore[method-assign]
    registered = {} if before is None else {"preflight_found": {"facts": before}}
    arguments = {"expected": EXPECTED, "facts": given, "pending": None, "components": None, "labels": None,
                 "samples": None}
    return [one["state"] for one in action._host(arguments, task_vars(a=registered))], len(looks)


@pytest.mark.parametrize(("before", "now", "given", "check", "expected"), [
    (GOOD, BARE, None, False, (["ok"], 0)),
    (BARE, GOOD, None, False, (["ok"], 1)),
    (BARE, BARE, None, False, (["absent"], 1)),
    (None, GOOD, None, False, (["ok"], 1)),
    (GOOD, GOOD, BARE, False, (["absent"], 0)),
    (BARE, GOOD, None, True, (["pending"], 0)),
])
def test_it_looks_again_before_it_fails(before: Any, now: Any, given: Any, check: bool, expected: Any) -> None:
    assert states(before, now, given, check) == expected
