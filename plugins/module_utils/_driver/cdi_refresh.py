# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refreshes the CDI specification, which lists the files and devices of the driver for container runtimes."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import REFRESH, UNIT, UNIT_FILE, refresh
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.device_nodes import MAKE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import RESTART, RESUME, START, interrupts
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import AGAIN, INSTALL
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

# The actions of steps that change files, device nodes or sockets which a specification contains.
_CAUSES = (INSTALL, AGAIN, MAKE, START, RESUME, RESTART)


class CdiRefresh(Part):
    """Starts the unit that refreshes the specification, if container_toolkit has installed it."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part). The unit also starts at boot."""
        loads = bool(desired.reload) or now.loaded is None
        return self._step("the driver changes") if loads and not desired.offline else []

    def follow(self, steps: t.Sequence[Step], desired: DesiredDriver) -> list[Phased]:
        """See L(Part). Files, device nodes or sockets may have been missing when the specification was last written."""
        if desired.offline or any(step.action == REFRESH for step in steps):
            return []
        # Restarts that interrupt jobs come after the refresh and may remain pending, so the refresh cannot run after
        # them.
        return next((self._step(f"after '{step.action}'") for step in steps
                     if step.action in _CAUSES and not interrupts(step)), [])

    def absent(self, now: DriverState) -> list[Phased]:
        """See L(Part)."""
        return self._step("the driver is removed") if now.loaded and self.host.journal.entries else []

    def _step(self, reason: str) -> list[Phased]:
        return [("serve", Step(REFRESH, UNIT, reason))] if self.host.root.exists(UNIT_FILE) else []

    def execute(self, step: Step) -> bool:
        """See L(Part). A failed refresh does not cause a rollback; gpu_verify reports it."""
        if step.action != REFRESH:
            return False
        refresh(self.host.run)
        return True
