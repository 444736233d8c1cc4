# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows, gate, outcome, plan_diff

STEPS = [Step("write file", "/etc/a"), Step("reload modules", "nvidia", needs="idle"), Step("start unit", "x")]


@pytest.mark.parametrize(("level", "needs", "expected"), [
    ("never", "never", True), ("never", "idle", False), ("idle", "idle", True), ("idle", "drain", False),
    ("drain", "idle", True), ("drain", "reboot", False), ("reboot", "reboot", True)])
def test_levels_are_ordered(level: str, needs: str, expected: bool) -> None:
    assert allows(level, needs) is expected


def test_what_follows_a_forbidden_step_waits_with_it() -> None:
    steps, pending = gate(STEPS, "never")
    assert [step.id for step in steps] == ["write file: /etc/a"]
    assert [item.id for item in pending] == ["reload modules: nvidia", "start unit: x"]
    assert "needs 'idle'" in pending[0].pending_reason
    assert "follows 'reload modules: nvidia'" in pending[1].pending_reason


def test_a_permitted_plan_is_whole() -> None:
    assert gate(STEPS, "idle") == (STEPS, [])


def test_nothing_to_do_is_no_change_and_no_diff() -> None:
    assert outcome([]) == {"changed": False, "plan": [], "pending": [], "diff": []}
    assert plan_diff("driver", []) == []


def test_a_plan_is_shown_by_its_steps() -> None:
    assert plan_diff("driver", [Step("load module", "nvidia", "it is not loaded")])[0]["after"] == \
        "load module: nvidia (it is not loaded)\n"
