# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The initial RAM file system, which holds module options and deny lists of its own. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._parts import Host, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

INITRAMFS = "rebuild initramfs"
# In the data of a step that changes what an initramfs holds.
HOLDS = "initramfs"
_PROGRAM = "/usr/sbin/update-initramfs"
# Seconds.
_LIMIT = 1800


def owe(journal: Journal) -> None:
    """Notes, before a file changes that it holds, that it has to be built again: a killed run does not forget it."""
    journal.keep("initramfs", "rebuild", None)
    journal.note("initramfs", "rebuild", "owed")


class Initramfs:
    """Debian's; the driver's packages of other families keep the driver out of theirs."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def plan(self, kernel: str, phased: t.Iterable[Phased]) -> list[Phased]:
        """One rebuild where steps of this plan, or a run that was killed, ask for it, and the host has one."""
        owed = self.host.journal.get("initramfs", "rebuild") is not None
        due = owed or any(step.data.get(HOLDS) for _phase, step in phased)
        has_one = self.host.root.exists(_PROGRAM) and self.host.root.exists(f"/boot/initrd.img-{kernel}")
        return [("initramfs", Step(INITRAMFS, kernel, "nouveau and module options must not differ in it"))] \
            if due and has_one else []

    def execute(self, step: Step) -> bool:
        """Runs the step; False when it is another's."""
        if step.action != INITRAMFS:
            return False
        self.host.run([_PROGRAM, "-u", "-k", step.target], timeout=_LIMIT)
        self.host.journal.forget("initramfs", "rebuild")
        return True
