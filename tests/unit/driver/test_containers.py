# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the CDI specification is refreshed after the driver."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import UNIT, UNIT_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._containers import Containers

STEP = f"serve/refresh CDI specification: {UNIT}"


def test_only_where_the_unit_is_and_the_driver_changes(made: t.Any) -> None:
    assert made.ids(Containers) == []
    made.put(UNIT_FILE)
    assert made.ids(Containers) == [STEP]
    made.works()
    assert made.ids(Containers) == []
    made.aim = replace(made.aim, reload="another version")
    assert made.ids(Containers) == [STEP]
    made.aim = replace(made.aim, offline=True)
    assert made.ids(Containers) == []


def test_removal(made: t.Any) -> None:
    made.put(UNIT_FILE)
    made.works()
    assert made.part(Containers).absent(made.now) == []
    made.journal.keep("package", "nvidia-open", {"state": "absent"})
    assert [step.id for _phase, step in made.part(Containers).absent(made.now)] == [STEP.partition("/")[2]]


def test_a_unit_that_fails_does_not_fail_the_driver(made: t.Any) -> None:
    made.put(UNIT_FILE)
    made.answers["systemctl start"] = (1, "")
    made.do(Containers)
    assert made.asked == [("systemctl", "start", UNIT)]
