# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services around the driver: enabled and running, stopped for an unload, and as before at removal.

A stop for an unload is journalled, so that a run that was killed in between starts again exactly those that ran.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Host, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    SERVICES,
    InUse,
    Situation,
    name_holders,
    read_holders,
    read_services,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import (
    AT_BOOT,
    FABRIC_MANAGER,
    GRIDD,
    IMEX,
    PERSISTENCED,
    Service,
)

START = "enable and start service"
STOP = "disable and stop service"
RESUME = "start service again"
RESUME_CLIENT = "start stopped service again"
RESTART = "restart service"
STARTS = (START, RESUME, RESUME_CLIENT)
# A stop or a restart of these aborts jobs that use several GPUs or hosts.
_FABRIC = (FABRIC_MANAGER, IMEX)
_RUNS = ("active", "activating", "reloading")
# Kinds of journal entries: units that ran and were stopped for an unload; units whose files were changed.
_PAUSED, _OWED = "paused", "restart"
_LIMIT = 120


def wanted_units(spec: Spec, fabric: str) -> dict[str, str]:
    """C({unit: why}) of what has to run. fabric: of C(Aim)."""
    wanted = {PERSISTENCED: "it keeps the GPUs initialised"} if spec.persistenced else {}
    if fabric in ("nvswitch", "nvlink5"):
        wanted[FABRIC_MANAGER] = "without it the NVSwitches connect no GPUs"
    if fabric.startswith("nvlink5") and spec.imex_nodes:
        wanted[IMEX] = "the hosts of the domain share GPU memory through it"
    if spec.licence:
        wanted[GRIDD] = "it gets the licence"
    return wanted


def owe_restart(journal: Journal, unit: str) -> None:
    """Notes, before a file changes that it reads at its start, that a unit has to be restarted."""
    journal.keep(_OWED, unit, None)


def restart(host: Host, now: Situation, aim: Aim, unit: str, changes: bool) -> list[Phased]:
    """One restart of a running unit whose files change in this run, or changed in one that was killed."""
    owed = changes or host.journal.get(_OWED, unit) is not None
    service = now.services[unit]
    starts = aim.reload or service.state != "active" or unit not in _FABRIC and service.enabled not in AT_BOOT
    return [_interruption(host, service, Step(RESTART, unit, "its files have changed"))] if owed and not starts else []


def _interruption(host: Host, service: Service, step: Step) -> Phased:
    """A stop or a restart with its phase, and the level that it needs.

    What interrupts jobs comes after all other services, as it holds up what follows it. As for an unload, services that
    use a GPU are stopped for it and started again, which takes level drain; whatever else uses one blocks it.
    """
    if not interrupts(step):
        return "serve", step
    if service.state not in _RUNS:
        return "interrupt", step
    holders = read_holders(host.root)
    clients = stoppable(host.root, holders)
    loose = [holder for holder in holders if holder["unit"] not in clients]
    more = {"clients": clients, "blocked": f"in use by {name_holders(loose)}" if loose else "",
            "held": f"held by {', '.join(clients)}" if clients else ""}
    return "interrupt", replace(step, needs="drain" if holders else "idle", data={**step.data, **more})


def interrupts(step: Step) -> bool:
    """Whether a step stops or restarts what jobs on several GPUs or hosts depend on."""
    return step.action in (STOP, RESTART) and step.target in _FABRIC


def pause(run: Runner, journal: Journal, units: t.Iterable[str]) -> None:
    """Stops units that run, in this order, and remembers them."""
    for unit in units:
        journal.keep(_PAUSED, unit, None)
        run(["systemctl", "stop", unit], timeout=_LIMIT)


def resume(run: Runner, journal: Journal, check: bool = True) -> None:
    """Starts what L(pause) stopped, in the opposite order."""
    for unit in reversed(paused(journal)):
        run(["systemctl", "start", unit], timeout=_LIMIT, check=check, hint=f"Look at journalctl -u {unit}.")
        journal.forget(_PAUSED, unit)


def paused(journal: Journal) -> list[str]:
    """What L(pause) stopped and nobody has started again, in the order of stopping."""
    found = list(journal.of_kind(_PAUSED))
    return [unit for unit in found if unit not in SERVICES] + [unit for unit in SERVICES if unit in found]


def running(services: t.Mapping[str, Service]) -> list[str]:
    """The units that run, in the order in which they are stopped."""
    return [unit for unit in SERVICES if services[unit].state in _RUNS]


class Services(Part):
    """What has to run runs; what ran goes on; what this collection enabled and nobody wants any more goes."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        journal = self.host.journal
        wanted = wanted_units(self.host.spec, aim.fabric)
        stopped = set(running(now.services)) if aim.reload else set()
        steps: list[Phased] = []
        for unit in reversed(SERVICES):
            service = now.services[unit]
            if unit in wanted and service.enabled == "masked":
                raise HostError(f"{unit} is masked, and {wanted[unit]}.", f"systemctl unmask {unit}, or set "
                                "persistenced, fabric, imex_nodes or licence so that it is not wanted.", unit=unit)
            if unit in wanted:
                # Packages of another origin bring the same daemon anew, and their scripts stop the former one.
                if unit in stopped or aim.delivered or service.state != "active" or service.enabled not in AT_BOOT:
                    steps.append(("serve", Step(START, unit, wanted[unit], data=vars(service))))
            elif self._unwanted(unit, service):
                runs = Service("inactive", service.enabled) if unit in stopped else service
                steps.append(_interruption(self.host, runs, Step(STOP, unit, "it is not wanted", data=vars(service))))
            elif unit in stopped or journal.get(_PAUSED, unit) is not None and service.state != "absent":
                steps.append(("serve", Step(RESUME, unit, "it ran before")))
        clients = [unit for unit in dict.fromkeys([*aim.clients, *paused(journal)]) if unit not in SERVICES]
        return steps + [("clients", Step(RESUME_CLIENT, unit, "it ran before")) for unit in reversed(clients)]

    def _unwanted(self, unit: str, service: Service) -> bool:
        """Whether an option says no to a unit, or one of this collection's earlier wishes is no longer there."""
        on = service.state == "active" or service.enabled == "enabled"
        return on and (unit == PERSISTENCED or self.host.journal.get("service", unit) is not None)

    def absent(self, now: Situation) -> list[Phased]:
        """See L(Part)."""
        steps: list[Phased] = []
        for unit, kept in self.host.journal.of_kind("service").items():
            before, service = kept["before"].get("enabled"), now.services[unit]
            if service.enabled == "enabled" and before != "enabled":
                stop = Step(STOP, unit, f"it was {before or 'absent'} before", data=vars(service))
                steps.append(("stop", _interruption(self.host, service, stop)[1]))
        return steps

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        journal, unit = self.host.journal, step.target
        words = {START: ["enable", "--now"], STOP: ["disable", "--now"], RESUME: ["start"],
                 RESUME_CLIENT: ["start"], RESTART: ["restart"]}
        if step.action not in words:
            return False
        clients = self._pause_clients(step) if interrupts(step) and self._runs(step) else []
        if step.action in (START, STOP):
            journal.keep("service", unit, {key: step.data[key] for key in ("state", "enabled")})
        if step.action == RESUME_CLIENT:
            journal.forget(_PAUSED, unit)  # it is its owner's: where it does not start, that is said once
        hint = f"Look at journalctl -u {unit}."
        self.host.run(["systemctl", *words[step.action], unit], timeout=_LIMIT, hint=hint)
        for client in reversed(clients):
            self.host.run(["systemctl", "start", client], timeout=_LIMIT, check=False)
            journal.forget(_PAUSED, client)
        ran = step.action == START and step.data["state"] == "active" and journal.get(_PAUSED, unit) is None
        owed = ran and journal.get(_OWED, unit) is not None
        if owed and unit not in _FABRIC:
            self.host.run(["systemctl", "restart", unit], timeout=_LIMIT, hint=hint)
        journal.forget(_PAUSED, unit)
        if not (owed and unit in _FABRIC):  # that restart is a step of its own
            journal.forget(_OWED, unit)
        return True

    def _runs(self, step: Step) -> bool:
        """Whether the service runs: one that did not may have been started since the plan was made."""
        unit = step.target
        return step.needs != "never" or read_services(self.host.run, [unit])[unit].state in _RUNS

    def _pause_clients(self, step: Step) -> list[str]:
        """Stops the services that use a GPU; those that ran.

        Raises InUse where others have started since the plan was made: packages may have been installed meanwhile.
        """
        new = [holder for holder in read_holders(self.host.root) if holder["unit"] not in step.data.get("clients", ())]
        if new:
            raise InUse(f"{step.target} is in use by {name_holders(new)} since the plan was made. It was not stopped.",
                        "Run again when it has ended.", holders=new)
        # Those that an unload has stopped before start with the driver, or stay stopped where it is removed.
        clients = [unit for unit in step.data.get("clients", ()) if self.host.journal.get(_PAUSED, unit) is None]
        pause(self.host.run, self.host.journal, clients)
        return clients

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        return [f"{unit} is {now.services[unit].state}" for unit in wanted_units(self.host.spec, aim.fabric)
                if now.services[unit].state != "active"]
