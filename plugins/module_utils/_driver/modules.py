# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unloads and loads kernel modules."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Holders, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import pause, resume, running
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    LOAD_ORDER,
    DriverState,
    name_holders,
    read_holders,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

UNLOAD = "unload modules"
LOAD = "load module"
SECURE_BOOT_HINT = ("Secure Boot refuses modules whose key is not enrolled: enrol the key of DKMS (mokutil --import "
                    "/var/lib/dkms/mok.pub, reboot, confirm at the console), or turn Secure Boot off.")


def must_reload(now: DriverState, version: str, flavour: str) -> str:
    """The reason to unload the loaded modules: another version or module type. Empty if they can remain loaded."""
    if not now.modules:
        return ""
    if now.loaded is None:
        return "" if "nvidia" not in now.modules else "the version of the loaded module is unknown"
    if now.loaded != version:
        mismatch = "Driver/library version mismatch: " if now.library == version else ""
        return f"{mismatch}{now.loaded} is loaded, but {version} is desired"
    if now.flavour != flavour:
        return f"the {now.flavour} module is loaded, but the {flavour} one is desired"
    return ""


def unload(now: DriverState, reason: str, holders: Holders, clients: t.Sequence[str] = ()) -> list[Phased]:
    """The step that stops the services of the driver and unloads all modules. Empty if no module is loaded.

    holders: GPU clients that cannot be stopped and so block the step. clients: other services that the step stops; this
    needs level drain.
    """
    if not now.modules:
        return []
    services = [*clients, *running(now.services)]
    blocked = f"in use by {name_holders(holders)}" if holders else ""
    held = f"held by {', '.join(clients)}" if clients and not blocked else ""
    why = "; ".join(filter(None, (reason, blocked, f"stops {', '.join(services)}" if services and not blocked else "")))
    return [("unload", Step(UNLOAD, " ".join(now.modules), why, needs="drain" if clients else "idle",
                            data={"modules": now.modules, "services": services, "blocked": blocked, "held": held}))]


class Modules(Part):
    """Loads the modules for compute work in the desired version."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        stay = set() if desired.reload else set(now.modules)
        return [*(unload(now, desired.reload, desired.holders, desired.clients) if desired.reload else []),
                *(("load", Step(LOAD, name.replace("_", "-"), "reload" if name in now.modules else "it is not loaded"))
                  for name in LOAD_ORDER if name not in stay)]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        act = {UNLOAD: self._unload, LOAD: self._load}.get(step.action)
        if act is not None:
            act(step)
        return act is not None

    def _unload(self, step: Step) -> None:
        # A GPU client may have started since the plan was made, for example during a download. The client needs the
        # services.
        new = [holder for holder in read_holders(self.host.root) if holder["unit"] not in step.data["services"]]
        if new:
            raise InUse(f"the modules are in use by {name_holders(new)} since the plan was made; nothing was stopped")
        pause(self.host.run, self.host.journal, step.data["services"])
        unloaded: list[str] = []
        for module in step.data["modules"]:
            done = self.host.run(["rmmod", module], check=False)
            if done.rc != 0 and module in self.host.root.names("/sys/module"):
                self._reload(unloaded)
                holders = name_holders(read_holders(self.host.root))
                restored = set(unloaded) <= set(self.host.root.names("/sys/module"))
                if holders and restored:
                    raise InUse(f"the modules are in use by {holders} since the plan was made; they are loaded again")
                raise HostError(f"{module} cannot be unloaded: {done.stderr.strip()}"
                                f"{f'; in use by {holders}' if holders else ''}."
                                f"{' All modules are loaded as before.' if restored else ''}",
                                f"Stop what uses {module}, then run again.")
            unloaded.append(module)

    def _reload(self, modules: t.Sequence[str]) -> None:
        """Loads modules and starts services again after a failed unload. modules: in the order in which they were
        unloaded."""
        for module in reversed(modules):
            self.host.run(["modprobe", module], check=False)
        resume(self.host.run, self.host.journal, check=False)

    def _load(self, step: Step) -> None:
        done = self.host.run(["modprobe", step.target], check=False)
        if done.rc == 0:
            return
        if "Key was rejected" in done.stderr:
            raise HostError(f"The kernel rejects the signature of {step.target}: {done.stderr.strip()}.",
                            SECURE_BOOT_HINT)
        raise CommandError(done.argv, done.rc, done.stdout, done.stderr,
                           "Read the reason in the kernel log: journalctl -k | grep -i nvrm.")
