# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocks and unloads the kernel module nouveau, which would use the GPUs instead of NVIDIA's driver."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import IN_INITRAMFS, request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

DENY_FILE = "/etc/modprobe.d/gpuops-nouveau.conf"
DENY = "deny nouveau"
UNLOAD_NOUVEAU = "unload conflicting module"
_TEXT = b"""\
# Written by gpuops.nvidia: nouveau would claim the GPUs before the NVIDIA driver.
blacklist nouveau
options nouveau modeset=0
"""


class Nouveau(Part):
    """Blocks nouveau with a separate file, because a file of a package is removed together with the package."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        steps: list[Phased] = []
        if now.nouveau is not None and not self.host.is_in_place(DENY_FILE):
            steps.append(("configure", Step(DENY, DENY_FILE, f"nouveau is {now.nouveau}", data={IN_INITRAMFS: True})))
        if now.nouveau in ("loaded", "used"):
            used = now.nouveau == "used"
            blocked = "a console or display uses nouveau: reboot the host, then run again" if used else ""
            steps.append(("load", Step(UNLOAD_NOUVEAU, "nouveau", "it uses the GPUs",
                                       needs="reboot" if blocked else "never", data={"blocked": blocked})))
        return steps

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action == DENY:
            request_rebuild(self.host.journal)
            self.host.journal.write_file(step.target, _TEXT)
        elif step.action == UNLOAD_NOUVEAU:
            self.host.run(["rmmod", step.target],
                          hint="A console or display may use nouveau: reboot the host, then run again.")
        else:
            return False
        return True
