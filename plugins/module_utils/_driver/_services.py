# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's services: enabled and running, and as they were before at removal. PRIVATE to the collection."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import PERSISTENCED, Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

START = "enable and start service"
STOP = "disable and stop service"
# Unit file states in which a unit starts at boot, or is started by udev as the distribution's own unit is.
_AT_BOOT = ("enabled", "enabled-runtime", "static", "indirect", "alias")


class Services(Part):
    """nvidia-persistenced."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        service = now.service
        if self.host.spec.persistenced:
            if aim.reload or service.state != "active" or service.enabled not in _AT_BOOT:
                return [("serve", Step(START, PERSISTENCED, "it keeps the GPUs initialised", data=vars(service)))]
        elif service.state == "active" or service.enabled == "enabled":
            return [("serve", Step(STOP, PERSISTENCED, "persistenced is false", data=vars(service)))]
        return []

    def absent(self, now: Situation) -> list[Phased]:
        """See L(Part)."""
        kept = self.host.journal.get("service", PERSISTENCED)
        if kept and now.service.enabled == "enabled" and kept["before"].get("enabled") != "enabled":
            return [("stop", Step(STOP, PERSISTENCED, f"it was {kept['before'].get('enabled') or 'absent'} before",
                                  data=vars(now.service)))]
        return []

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action not in (START, STOP):
            return False
        self.host.journal.keep("service", step.target, {key: step.data[key] for key in ("state", "enabled")})
        self.host.run(["systemctl", "enable" if step.action == START else "disable", "--now", step.target], timeout=120,
                      hint=f"Look at journalctl -u {step.target}.")
        return True
