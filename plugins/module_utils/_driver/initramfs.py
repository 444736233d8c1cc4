# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The initial RAM file system, which holds module options and deny lists of its own."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import kernels
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

INITRAMFS = "rebuild initramfs"
# In the data of a step that changes what an initramfs holds.
HOLDS = "initramfs"
# Program, image, words; Debian and its like, then the others (update-initramfs(8), dracut(8)).
_PROGRAMS = (("/usr/sbin/update-initramfs", "/boot/initrd.img-{kernel}", ("-u", "-k", "{kernel}")),
             ("/usr/bin/dracut", "/boot/initramfs-{kernel}.img", ("--force", "--kver", "{kernel}")),
             ("/usr/bin/dracut", "/boot/initrd-{kernel}", ("--force", "--kver", "{kernel}")))
# Seconds.
_LIMIT = 1800


def owe(journal: Journal) -> None:
    """Notes, before a file changes that it holds, that it has to be built again: a killed run does not forget it."""
    journal.keep("initramfs", "rebuild", None)
    journal.note("initramfs", "rebuild", "owed")


class Initramfs:
    """Those of the running kernel and of the one that boots next, by the program that the host has."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def plan(self, now: Situation, phased: t.Iterable[Phased]) -> list[Phased]:
        """One step where steps of this plan, or a run that was killed, ask for it, and the host has such images."""
        owed = self.host.journal.get("initramfs", "rebuild") is not None
        due = owed or any(step.data.get(HOLDS) for _phase, step in phased)
        images = [kernel for kernel in kernels(self.host.root, now) if self._command(kernel)] if due else []
        return [("initramfs", Step(INITRAMFS, " ".join(images), "nouveau and module options must not differ in it"))
                for _one in images[:1]]

    def _command(self, kernel: str) -> list[str]:
        """What rebuilds the image of a kernel, empty where there is no image."""
        for program, image, words in _PROGRAMS:
            if self.host.root.exists(program) and self.host.root.exists(image.format(kernel=kernel)):
                return [program, *(word.format(kernel=kernel) for word in words)]
        return []

    def execute(self, step: Step) -> bool:
        """Runs the step; False when it is another's."""
        if step.action != INITRAMFS:
            return False
        for kernel in step.target.split():
            self.host.run(self._command(kernel), timeout=_LIMIT)
        self.host.journal.forget("initramfs", "rebuild")
        return True
