# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What container runtimes know of the driver: its CDI specification."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import REFRESH, UNIT, UNIT_FILE, refresh
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.nodes import MAKE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import RESTART, RESUME, START, interrupts
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import AGAIN, INSTALL
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

# Actions that change what a specification names: files, device nodes, sockets of services.
_NAMED = (INSTALL, AGAIN, MAKE, START, RESUME, RESTART)


class Containers(Part):
    """Where container_toolkit has installed the unit that refreshes it, it is started after the driver has changed."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part). After a reboot the unit starts by itself."""
        loads = bool(aim.reload) or now.loaded is None
        return self._step("the driver changes") if loads and not aim.offline else []

    def follow(self, steps: t.Sequence[Step], aim: Aim) -> list[Phased]:
        """See L(Part). A specification lacks the files, nodes and sockets that were missing when it was written."""
        if aim.offline or any(step.action == REFRESH for step in steps):
            return []
        # A restart that interrupts jobs comes after the refresh and may stay pending: each run would refresh anew.
        return next((self._step(f"after '{step.action}'") for step in steps
                     if step.action in _NAMED and not interrupts(step)), [])

    def absent(self, now: Situation) -> list[Phased]:
        """See L(Part)."""
        return self._step("the driver goes") if now.loaded and self.host.journal.entries else []

    def _step(self, reason: str) -> list[Phased]:
        return [("serve", Step(REFRESH, UNIT, reason))] if self.host.root.exists(UNIT_FILE) else []

    def execute(self, step: Step) -> bool:
        """See L(Part). A driver is not taken back because of it; gpu_verify says what is wrong with it."""
        if step.action != REFRESH:
            return False
        refresh(self.host.run)
        return True
