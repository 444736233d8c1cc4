# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restores files, and installs pynvml, which modules of this collection need."""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import IN_INITRAMFS, request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYNVML, source
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

SHIP = "install file"
RESTORE = "restore file"


def restores(paths: t.Iterable[str]) -> list[Phased]:
    """The steps that restore files to their former content."""
    return [("configure", Step(RESTORE, path, "as it was before",
                               data={IN_INITRAMFS: True} if path.startswith("/etc/modprobe.d/") else {}))
            for path in paths]


def restore_kept(journal: Journal, paths: t.Iterable[str], phase: str, reason: str = "as it was before"
                 ) -> list[Phased]:
    """The steps that restore the files of a part to their former content. Files without a journal entry are not
    changed."""
    return [(phase, Step(RESTORE, path, reason, data={"files": [path]}))
            for path in paths if journal.get("file", path) is not None]


class Files(Part):
    """Installs pynvml, and restores files."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        if self.host.is_in_place(PYNVML):
            return []
        if not self.host.check:
            source()  # raises an error before any change
        return [("configure" if desired.image else "serve",
                 Step(SHIP, PYNVML, "modules of this collection need it for NVML"))]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action == SHIP:
            path = source()
            data = read_bytes(path)
            if data is None:
                raise HostError(f"{path} was deleted during the run.", "Run again.")
            self.host.journal.write_file(step.target, data)
        elif step.action == RESTORE:
            if step.data.get(IN_INITRAMFS):
                request_rebuild(self.host.journal)
            if step.target.endswith(".py"):
                # Python wrote a compiled copy when the file was first imported.
                shutil.rmtree(os.path.join(os.path.dirname(step.target), "__pycache__"), ignore_errors=True)
            self.host.journal.restore_file(step.target)
            if step.target.startswith("/etc/systemd/"):
                self.host.run(["systemctl", "daemon-reload"])
        else:
            return False
        return True
