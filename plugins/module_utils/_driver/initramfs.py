# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rebuilds the initramfs of a kernel, which contains copies of module parameters and deny lists."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import kernels
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

INITRAMFS = "rebuild initramfs"
# The key in the data of a step which shows that the step changes a file that an initramfs contains.
IN_INITRAMFS = "initramfs"
# (program, path of the image, arguments), for Debian and Ubuntu and for others (update-initramfs(8), dracut(8)).
_PROGRAMS = (("/usr/sbin/update-initramfs", "/boot/initrd.img-{kernel}", ("-u", "-k", "{kernel}")),
             ("/usr/bin/dracut", "/boot/initramfs-{kernel}.img", ("--force", "--kver", "{kernel}")),
             ("/usr/bin/dracut", "/boot/initrd-{kernel}", ("--force", "--kver", "{kernel}")))
# Maximum seconds for one image.
_LIMIT = 1800


def request_rebuild(journal: Journal) -> None:
    """Records, before a file changes, that a rebuild is required. If the run is killed, the next run rebuilds the
    images."""
    journal.keep("initramfs", "rebuild", None)
    journal.note("initramfs", "rebuild", "owed")


class Initramfs:
    """Rebuilds the images of the running kernel and of the newest kernel."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def plan(self, now: DriverState, phased: t.Iterable[Phased]) -> list[Phased]:
        """The step that rebuilds the images, if a step of this plan, or of a killed run, requires it."""
        requested = self.host.journal.get("initramfs", "rebuild") is not None
        required = requested or any(step.data.get(IN_INITRAMFS) for _phase, step in phased)
        images = [kernel for kernel in kernels(self.host.root, now) if self._command(kernel)] if required else []
        if not images:
            return []
        return [("initramfs", Step(INITRAMFS, " ".join(images), "it contains copies of the changed files"))]

    def _command(self, kernel: str) -> list[str]:
        """The command that rebuilds the image of a kernel, empty if there is no image."""
        for program, image, words in _PROGRAMS:
            if self.host.root.exists(program) and self.host.root.exists(image.format(kernel=kernel)):
                return [program, *(word.format(kernel=kernel) for word in words)]
        return []

    def execute(self, step: Step) -> bool:
        """Executes the step. Returns False for other steps."""
        if step.action != INITRAMFS:
            return False
        for kernel in step.target.split():
            self.host.run(self._command(kernel), timeout=_LIMIT)
        self.host.journal.forget("initramfs", "rebuild")
        return True
