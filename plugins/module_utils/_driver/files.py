# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of ours, restored at removal; and pynvml, which modules of this collection need."""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import HOLDS, owe
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYTHON_PATH, PYTHON_PATH_VARIABLE, source
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

PYNVML = f"{PYTHON_PATH}/pynvml.py"
SHIP = "install file"
RESTORE = "restore file"


def restores(paths: t.Iterable[str]) -> list[Phased]:
    """The steps that put files of ours back to what was there before."""
    return [("configure", Step(RESTORE, path, "as it was before",
                               data={HOLDS: True} if path.startswith("/etc/modprobe.d/") else {})) for path in paths]


class Files(Part):
    """Ships pynvml for good, and restores every file of ours."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        if self.host.stands(PYNVML):
            return []
        if not self.host.check:
            self._source()  # refuses before anything is changed
        return [("serve", Step(SHIP, PYNVML, "modules of this collection talk to NVML through it"))]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action == SHIP:
            source = self._source()
            data = read_bytes(source)
            if data is None:
                raise HostError(f"{source} has gone.", "Run again.")
            self.host.journal.write_file(step.target, data)
        elif step.action == RESTORE:
            if step.data.get(HOLDS):
                owe(self.host.journal)
            if step.target.endswith(".py"):
                # What Python compiled of it on first use.
                shutil.rmtree(os.path.join(os.path.dirname(step.target), "__pycache__"), ignore_errors=True)
            self.host.journal.restore_file(step.target)
            if step.target.startswith("/etc/systemd/"):
                self.host.run(["systemctl", "daemon-reload"])
        else:
            return False
        return True

    @staticmethod
    def _source() -> str:
        """The pynvml file of this run: shipped with the task, or the host's own. Raises MissingLibrary."""
        shipped = os.path.join(os.environ.get(PYTHON_PATH_VARIABLE, "/nonexistent"), "pynvml.py")
        return shipped if os.path.isfile(shipped) else source()
