# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking away exactly what this collection brought."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.attempt import Executor
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import removable
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Holders, Host, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import plan_absent, takes_modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation, read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply

# Kinds of journal entries that say how things were, and hold nothing to be restored by a step of its own.
_SETTLED = ("service", "initramfs", "paused", "restart", "resign", "extra", "former", "licence")


class Removal:
    """Planned when it is made; raises GpuopsError before anything is changed.

    Services of others that are stopped for it stay stopped: there is no driver that they could use.
    """

    def __init__(self, host: Host, now: Situation, parts: t.Sequence[t.Type[Part]]) -> None:
        self.journal = host.journal
        hands = [make(host) for make in parts]
        initramfs = Initramfs(host)
        self.deliveries = removable(host, now)
        displaced = [step for one in self.deliveries for step in one.absent()]
        own = {path for step in displaced for path in step.data.get("files", ())}
        files = [path for path in self.journal.of_kind("file") if path not in own]
        self.holders: Holders = read_holders(host.root) if takes_modules(displaced) and now.modules else []
        clients = stoppable(host.root, self.holders)
        loose = [holder for holder in self.holders if holder["unit"] not in clients]
        self.steps = plan_absent(now, hands, initramfs, displaced, files, loose, () if loose else clients)
        self.executor = Executor([*self.deliveries, *hands, initramfs])

    def carry_out(self, steps: t.Sequence[Step], whole: bool) -> None:
        """Executes steps of the plan. whole: they are all of it, so that the journal ends."""
        apply(steps, self.executor, self.journal)
        if not whole:
            return
        for one in self.deliveries:
            one.settle()
        for kind in _SETTLED:
            for key in self.journal.of_kind(kind):
                self.journal.forget(kind, key)
        self.journal.unfinished = None  # a step that a killed run left, and that has no trace any more

    def left(self) -> list[str]:
        """Sentences on what stays, and why."""
        return [text for one in self.deliveries for text in one.left()]
