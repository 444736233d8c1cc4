# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the processes that use a GPU, and stops and starts services for a change. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import owner_of, pod_of, read_clients
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.gpus import minors
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.planning import Holder
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device, Instance
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import read_units

# Services that monitor all GPUs, in the order in which they are stopped (MIG User Guide: stop DCGM and NVSM before a
# reset).
WATCHERS = ("nvsm.service", "nvidia-dcgm-exporter.service", "nvidia-dcgm.service")
# The driver's own daemons, which use GPUs all the time and do not block a change.
_DAEMONS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-imex.service",
            "nvidia-gridd.service", "nvidia-topologyd.service")
_PAUSED = "paused"
_LIMIT = 120


def read_holders(root: Root, nvml: Nvml, device: Device, instances: t.Sequence[Instance],
                 files: bool = False) -> list[Holder]:
    """The processes that use a GPU, sorted by pid, without WATCHERS and the driver's own daemons.

    files: whether to include processes that only have the GPU open, which blocks a reset, but no change of instances.
    device: without device_id, it has no handle.
    """
    by_id = {instance.id: instance for instance in instances}
    found = [(process["pid"], process["name"], process["instance"], process["compute"])
             for process in (nvml.processes(device) if device.device_id else ())]
    listed = {pid for pid, _name, _instance, _compute in found}
    if files:
        table = minors(root, [{"pci": device.pci, "minor": None}])
        found += [(client["pid"], client["name"], client["instance"], None) for client in read_clients(root, table)
                  if client["gpu"] == device.pci and client["pid"] not in listed]
    holders = []
    for pid, name, ident, compute in sorted(found, key=str):
        owner = owner_of(root, pid)
        if owner["unit"] not in WATCHERS + _DAEMONS:
            start, compute = _place(by_id.get(ident), compute)
            holders.append(Holder(pid, name, device.pci, ident, owner["unit"], owner["container"], pod_of(root, pid),
                                  start, compute))
    return holders


def _place(instance: Instance | None, compute_id: int | None) -> tuple[int | None, int | None]:
    if instance is None:
        return None, None
    if len(instance.compute) == 1:
        return instance.start, instance.compute[0].start
    return instance.start, next((compute.start for compute in instance.compute if compute.id == compute_id), None)


class Pauses:
    """Stops services for a change, and starts them again. The journal records them, for the run after a killed run."""

    def __init__(self, run: Runner, journal: Journal) -> None:
        self.run = run
        self.journal = journal

    @property
    def units(self) -> list[str]:
        """The stopped services, in the order of stopping."""
        return list(self.journal.of_kind(_PAUSED))

    def stop(self, units: t.Iterable[str]) -> None:
        """Stops services. Raises CommandError."""
        for unit in units:
            self.journal.keep(_PAUSED, unit, None)
            self.run(["systemctl", "stop", unit], timeout=_LIMIT, hint=f"For the cause: journalctl -u {unit}")

    def stop_watchers(self) -> None:
        """Stops the running services of WATCHERS. Raises CommandError."""
        self.stop(unit for unit, service in read_units(self.run, WATCHERS).items() if service.state == "active")

    def start(self, unit: str, check: bool = True) -> None:
        """Starts a service again. If that fails, raises CommandError, and the next run does not try again."""
        try:
            self.run(["systemctl", "start", unit], timeout=_LIMIT, check=check,
                     hint=f"The service was stopped for the change of MIG. For the cause: journalctl -u {unit}")
        except CommandError:
            self.journal.forget(_PAUSED, unit)
            raise
        self.journal.forget(_PAUSED, unit)

    def start_all(self) -> None:
        """Starts the services that are still stopped. Ignores errors, which would hide an earlier error."""
        for unit in reversed(self.units):
            self.start(unit, check=False)
