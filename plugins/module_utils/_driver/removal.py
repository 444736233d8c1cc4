# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and executes the removal of what this collection has installed."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.attempt import Executor
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import removable
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Holders, Host, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import changes_driver, plan_absent
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState, read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
from ansible_collections.gpuops.nvidia.plugins.module_utils._former_driver import FORMER, PREVIOUS
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply

# Kinds of journal entries that no step deletes.
_FORGOTTEN = ("service", "initramfs", "paused", "restart", "resign", "extra", FORMER, PREVIOUS, "licence",
              "fabric_setting")


class Removal:
    """The removal of everything that this collection has installed. The constructor plans its steps and changes
    nothing.

    The constructor raises GpuopsError if the host does not allow the removal. Other services that are stopped for the
    removal are not started again, because there is no longer a driver.
    """

    def __init__(self, host: Host, now: DriverState, parts: t.Sequence[t.Type[Part]]) -> None:
        self.journal = host.journal
        planned = [make(host) for make in parts]
        initramfs = Initramfs(host)
        self.deliveries = removable(host, now)
        displaced = [step for delivery in self.deliveries for step in delivery.absent()]
        own = {path for step in displaced for path in step.data.get("files", ())}
        files = [path for path in self.journal.of_kind("file") if path not in own]
        self.holders: Holders = read_holders(host.root) if changes_driver(displaced) and now.modules else []
        clients = stoppable(host.root, self.holders)
        blocking = [holder for holder in self.holders if holder["unit"] not in clients]
        self.steps = plan_absent(now, planned, initramfs, displaced, files, blocking, () if blocking else clients)
        self.executor = Executor([*self.deliveries, *planned, initramfs])

    def execute(self, steps: t.Sequence[Step], complete: bool) -> None:
        """Executes steps. complete: whether these are all steps of the plan; if so, the journal entries are deleted.

        Raises GpuopsError.
        """
        apply(steps, self.executor, self.journal)
        if not complete:
            return
        for delivery in self.deliveries:
            delivery.forget_restored()
        for kind in _FORGOTTEN:
            for key in self.journal.of_kind(kind):
                self.journal.forget(kind, key)
        self.journal.unfinished = None  # a step of a killed run

    def remaining(self) -> list[str]:
        """One sentence for each package or driver that is kept."""
        return [text for delivery in self.deliveries for text in delivery.remaining()]
