# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the CDI specification is updated after a change of the driver."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import REFRESH, UNIT, UNIT_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cdi_refresh import CdiRefresh
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.device_nodes import MAKE, DeviceNodes
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import plan_present
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import RESTART, RESUME_CLIENT, START
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import AGAIN
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER, PERSISTENCED

STEP = f"serve/refresh CDI specification: {UNIT}"


def test_only_where_the_unit_is_and_the_driver_changes(made: t.Any) -> None:
    assert made.ids(CdiRefresh) == []
    made.put(UNIT_FILE)
    assert made.ids(CdiRefresh) == [STEP]
    made.works()
    assert made.ids(CdiRefresh) == []
    made.desired = replace(made.desired, reload="another version")
    assert made.ids(CdiRefresh) == [STEP]
    made.desired = replace(made.desired, offline=True)
    assert made.ids(CdiRefresh) == []


def test_removal(made: t.Any) -> None:
    made.put(UNIT_FILE)
    made.works()
    assert made.part(CdiRefresh).absent(made.now) == []
    made.journal.keep("package", "nvidia-open", {"state": "absent"})
    assert [step.id for _phase, step in made.part(CdiRefresh).absent(made.now)] == [STEP.partition("/")[2]]


def test_a_unit_that_fails_does_not_fail_the_driver(made: t.Any) -> None:
    made.put(UNIT_FILE)
    made.answers["systemctl start"] = (1, "")
    made.do(CdiRefresh)
    assert made.asked == [("systemctl", "start", UNIT)]


@pytest.mark.parametrize(("action", "refreshes"), [
    (MAKE, True), (START, True), (AGAIN, True), ("list modules for boot", False), (REFRESH, False),
    (RESUME_CLIENT, False)])
def test_after_what_a_specification_names_has_changed(made: t.Any, action: str, refreshes: bool) -> None:
    """A specification that was written while a device node or a socket was missing does not contain it."""
    made.works()
    steps = [Step("write file", "x"), Step(action, "x")]
    assert made.part(CdiRefresh).follow(steps, made.desired) == []
    made.put(UNIT_FILE)
    found = made.part(CdiRefresh).follow(steps, made.desired)
    assert [f"{phase}/{step.id}" for phase, step in found] == ([STEP] if refreshes else [])
    assert made.part(CdiRefresh).follow(steps, replace(made.desired, offline=True)) == []


@pytest.mark.parametrize(("unit", "refreshes"), [(PERSISTENCED, True), (FABRIC_MANAGER, False)])
def test_what_may_wait_for_its_level_refreshes_nothing(made: t.Any, unit: str, refreshes: bool) -> None:
    """The restart of the fabric manager is the last step, and is pending below its level."""
    made.works()
    made.put(UNIT_FILE)
    assert bool(made.part(CdiRefresh).follow([Step(RESTART, unit)], made.desired)) is refreshes


def test_the_refresh_is_a_step_of_the_plan(made: t.Any) -> None:
    made.works(persistenced="inactive")
    made.put(UNIT_FILE)
    made.now = replace(made.now, nodes={"/dev/nvidia0": "missing"})
    host = made.part(CdiRefresh).host
    parts = [CdiRefresh(host), DeviceNodes(host)]
    steps = plan_present(made.now, made.desired, parts, Initramfs(host), [], [])
    assert [step.action for step in steps] == [MAKE, REFRESH]
