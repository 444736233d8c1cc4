# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No act of nvidia_software needs a level: no GPU client depends on DCGM or an exporter."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import PackageState
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import gate
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import component_installer
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import Desired
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.manage import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import Service
from ansible_collections.gpuops.nvidia.tests.unit.levels import NO, TABLE, YES, cases

UNITS = {"restart DCGM or an exporter": [component.unit for component in COMPONENTS if component.unit]}


@pytest.mark.parametrize(("act", "level", "said"), cases("software"))
def test_an_act_needs_its_level(tmp_path: Path, act: str, level: str, said: str) -> None:
    for unit in UNITS[act]:
        with Journal(unit, str(tmp_path / "journal")) as journal:
            desired = Desired(files={str(tmp_path / unit): b"changed"}, unit=unit)
            work = component_installer.Installer(unit, desired, journal, run, Root(), None, None)
            allowed, pending = gate(work.plan(PackageState({}), Service("active", "enabled")), level)
        restarts = f"restart service: {unit}" in [step.id for step in allowed]
        assert restarts != bool(pending)
        assert (YES if restarts else NO) == said


def test_the_table_is_whole() -> None:
    assert UNITS.keys() == TABLE["software"].keys() and len(UNITS["restart DCGM or an exporter"]) == 3
