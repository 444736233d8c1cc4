# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Enables and starts the services of the driver, stops them for an unload, and restores their state at removal.

The journal records each service that an unload stops. If a run is killed, the next run starts these services again.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Host, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    SERVICES,
    DriverState,
    name_holders,
    read_holders,
    read_services,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InUse
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
ENABLE = "enable service"
STOP = "disable and stop service"
RESUME = "start service again"
RESUME_CLIENT = "start stopped service again"
RESTART = "restart service"
STARTS = (START, RESUME, RESUME_CLIENT)
# If these are stopped or restarted, jobs on several GPUs or hosts are aborted.
_FABRIC = (FABRIC_MANAGER, IMEX)
_RUNS = ("active", "activating", "reloading")
# Kinds of journal entries: for units that were stopped for an unload, and for units that must be restarted.
_PAUSED, _OWED = "paused", "restart"
_LIMIT = 120


def wanted_units(spec: Spec, fabric: str) -> dict[str, str]:
    """The units that must run, as C({unit: reason}). fabric: as in C(DesiredDriver)."""
    wanted = {PERSISTENCED: "it keeps the GPUs initialised"} if spec.persistenced else {}
    if fabric in ("nvswitch", "nvlink5"):
        wanted[FABRIC_MANAGER] = "the NVSwitches need it"
    if fabric.startswith("nvlink5") and spec.imex_nodes:
        wanted[IMEX] = "imex_nodes is set"
    if spec.licence:
        wanted[GRIDD] = "licence is set"
    return wanted


def request_restart(journal: Journal, unit: str) -> None:
    """Records, before a file of a unit changes, that the unit must be restarted."""
    journal.keep(_OWED, unit, None)


def owes_restart(journal: Journal, unit: str) -> bool:
    """Whether a unit must be restarted, see L(request_restart)."""
    return journal.get(_OWED, unit) is not None


def forget_restart(journal: Journal, unit: str) -> None:
    """Records that a unit need not be restarted, because it uses the present content of its files."""
    journal.forget(_OWED, unit)


def restart(host: Host, now: DriverState, desired: DesiredDriver, unit: str, changes: bool) -> list[Phased]:
    """The step that restarts a running unit whose files change in this run, or were changed by a killed run."""
    service = now.services[unit]
    starts = desired.reload or unit not in _FABRIC and service.enabled not in AT_BOOT
    return [] if starts else restart_running(host, now, unit, changes)


def restart_running(host: Host, now: DriverState, unit: str, changes: bool) -> list[Phased]:
    """The same for a unit that nothing else stops or starts in this run."""
    service = now.services[unit]
    if service.state != "active" or not (changes or owes_restart(host.journal, unit)):
        return []
    return [_interruption(host, service, Step(RESTART, unit, "its files have changed"))]


def _interruption(host: Host, service: Service, step: Step) -> Phased:
    """C((phase, step)) of a step that stops or restarts a service, with the level that the step needs.

    Steps that interrupt jobs run after the steps of all other services, because a pending step blocks later ones. As
    for an unload, services that use a GPU are stopped before the step and started again after it, which needs level
    drain. Other GPU clients block the step.
    """
    if not interrupts(step):
        return "serve", step
    if service.state not in _RUNS:
        return "interrupt", step
    holders = read_holders(host.root)
    clients = stoppable(host.root, holders)
    blocking = [holder for holder in holders if holder["unit"] not in clients]
    data = {**step.data, "clients": clients, "blocked": f"in use by {name_holders(blocking)}" if blocking else "",
            "held": f"held by {', '.join(clients)}" if clients else ""}
    return "interrupt", replace(step, needs="drain" if holders else "idle", data=data)


def interrupts(step: Step) -> bool:
    """Whether a step stops or restarts a service on which jobs on several GPUs or hosts depend."""
    return step.action in (STOP, RESTART) and step.target in _FABRIC


def pause(run: Runner, journal: Journal, units: t.Iterable[str]) -> None:
    """Stops these running units in the given order, and records them in the journal."""
    for unit in units:
        journal.keep(_PAUSED, unit, None)
        run(["systemctl", "stop", unit], timeout=_LIMIT)


def resume(run: Runner, journal: Journal, check: bool = True) -> None:
    """Starts the units that L(pause) has stopped, in reverse order."""
    for unit in reversed(paused(journal)):
        run(["systemctl", "start", unit], timeout=_LIMIT, check=check, hint=f"For the cause: journalctl -u {unit}")
        journal.forget(_PAUSED, unit)


def paused(journal: Journal) -> list[str]:
    """The units that L(pause) has stopped and that have not been started again, in the order in which they were
    stopped."""
    found = list(journal.of_kind(_PAUSED))
    return [unit for unit in found if unit not in SERVICES] + [unit for unit in SERVICES if unit in found]


def running(services: t.Mapping[str, Service]) -> list[str]:
    """The running units, in the order in which they must be stopped."""
    return [unit for unit in SERVICES if services[unit].state in _RUNS]


class Services(Part):
    """Starts the required units and the units that an unload stopped, and stops units that no option needs."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        journal = self.host.journal
        wanted = wanted_units(self.host.spec, desired.fabric)
        stopped = set(running(now.services)) if desired.reload else set()
        steps: list[Phased] = []
        for unit in reversed(SERVICES):
            service = now.services[unit]
            if unit in wanted and service.enabled == "masked":
                raise HostError(f"{unit} is masked, but must run: {wanted[unit]}.", f"Run systemctl unmask {unit}, or "
                                "change persistenced, fabric, imex_nodes or licence if it need not run.", unit=unit)
            if desired.image:
                steps += self._of_image(unit, service, desired, wanted.get(unit, ""))
                continue
            if unit in wanted:
                # Scripts of packages from another source stop the persistence daemon.
                if unit in stopped or desired.delivered or service.state != "active" or service.enabled not in AT_BOOT:
                    steps.append(("serve", Step(START, unit, wanted[unit], data=vars(service))))
            elif self._unwanted(unit, service):
                runs = Service("inactive", service.enabled) if unit in stopped else service
                steps.append(_interruption(self.host, runs, Step(STOP, unit, "no option needs it", data=vars(service))))
            elif unit in stopped or journal.get(_PAUSED, unit) is not None and service.state != "absent":
                steps.append(("serve", Step(RESUME, unit, "it ran before")))
        clients = [unit for unit in dict.fromkeys([*desired.clients, *paused(journal)]) if unit not in SERVICES]
        return steps + [("clients", Step(RESUME_CLIENT, unit, "it ran before")) for unit in reversed(clients)]

    def _of_image(self, unit: str, service: Service, desired: DesiredDriver, reason: str) -> list[Phased]:
        """The step for a unit in an image, which is only enabled or disabled. reason: why it must run, or empty."""
        if reason and (desired.delivered or service.enabled not in AT_BOOT):
            return [("configure", Step(ENABLE, unit, reason, data=vars(service)))]
        if not reason and self._unwanted(unit, service):
            return [("configure", Step(STOP, unit, "no option needs it", data=vars(service)))]
        return []

    def tidy(self) -> None:
        """See L(Part). The services of an image read their files when the image boots."""
        for unit in self.host.journal.of_kind(_OWED) if self.host.spec.image else ():
            self.host.journal.forget(_OWED, unit)

    def _unwanted(self, unit: str, service: Service) -> bool:
        """Whether a unit that is not needed must be stopped: the persistence daemon, or a unit that this collection
        enabled."""
        on = service.state == "active" or service.enabled == "enabled"
        return on and (unit == PERSISTENCED or self.host.journal.get("service", unit) is not None)

    def absent(self, now: DriverState) -> list[Phased]:
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
        commands = {START: ["enable", "--now"], ENABLE: ["enable"], STOP: ["disable", "--now"], RESUME: ["start"],
                    RESUME_CLIENT: ["start"], RESTART: ["restart"]}
        if step.action not in commands:
            return False
        clients = self._pause_clients(step) if interrupts(step) and self._runs(step) else []
        if step.action in (START, ENABLE, STOP):
            journal.keep("service", unit, {key: step.data[key] for key in ("state", "enabled")})
        if step.action == RESUME_CLIENT:
            journal.forget(_PAUSED, unit)  # another service: if it does not start, later runs do not try again
        hint = f"For the cause: journalctl -u {unit}"
        self.host.run(["systemctl", *commands[step.action], unit], timeout=_LIMIT, hint=hint)
        for client in reversed(clients):
            self.host.run(["systemctl", "start", client], timeout=_LIMIT, check=False)
            journal.forget(_PAUSED, client)
        ran = step.action == START and step.data["state"] == "active" and journal.get(_PAUSED, unit) is None
        owed = ran and owes_restart(journal, unit)
        if owed and unit not in _FABRIC:
            self.host.run(["systemctl", "restart", unit], timeout=_LIMIT, hint=hint)
        journal.forget(_PAUSED, unit)
        if not (owed and unit in _FABRIC):  # a separate step restarts it
            journal.forget(_OWED, unit)
        return True

    def _runs(self, step: Step) -> bool:
        """Whether the service of a step runs. It may have been started after the plan was made."""
        unit = step.target
        return step.needs != "never" or read_services(self.host.run, [unit])[unit].state in _RUNS

    def _pause_clients(self, step: Step) -> list[str]:
        """Stops the services that use a GPU. Returns their names.

        Raises InUse if other GPU clients have started since the plan was made, for example while packages were
        installed.
        """
        new = [holder for holder in read_holders(self.host.root) if holder["unit"] not in step.data.get("clients", ())]
        if new:
            raise InUse(f"{step.target} is in use by {name_holders(new)} since the plan was made; it was not stopped")
        # An unload may have stopped some of them already. These are started with the driver, or stay stopped after its
        # removal.
        clients = [unit for unit in step.data.get("clients", ()) if self.host.journal.get(_PAUSED, unit) is None]
        pause(self.host.run, self.host.journal, clients)
        return clients

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        services = {unit: now.services[unit] for unit in wanted_units(self.host.spec, desired.fabric)}
        if desired.image:
            return [f"{unit} is not enabled" for unit, service in services.items() if service.enabled not in AT_BOOT]
        return [f"{unit} is {service.state}" for unit, service in services.items() if service.state != "active"]
