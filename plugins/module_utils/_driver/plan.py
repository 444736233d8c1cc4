# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the steps from the state of the host and the desired driver. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import restores
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import UNLOAD, unload
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import (
    IN_MEMORY,
    OFFLINE_PHASES,
    PHASES,
    DesiredDriver,
    Holders,
    Part,
    Phased,
    in_order,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import RESTART, STARTS, STOP, interrupts
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import PendingStep, Step, gate


def plan_present(now: DriverState, desired: DesiredDriver, parts: t.Sequence[Part], initramfs: Initramfs,
                 displaced: t.Sequence[Step], delivered: t.Sequence[Step]) -> list[Step]:
    """The steps to install a driver, in the order of execution.

    displaced: steps of other deliveries that remove their driver. delivered: steps of the delivery. Their phase is
    C(deliver), unless their data contains another phase in C(phase).
    """
    phased: list[Phased] = [*(("displace", step) for step in displaced),
                            *((step.data.get("phase", "deliver"), step) for step in delivered)]
    for part in parts:
        phased += part.plan(now, desired)
    steps = [step for _phase, step in phased]
    for part in parts:
        phased += part.follow(steps, desired)
    if desired.image:
        phased = [(phase, step) for phase, step in phased if phase not in IN_MEMORY]
    return in_order([*phased, *initramfs.plan(now, phased)], OFFLINE_PHASES if desired.offline else PHASES)


def plan_absent(now: DriverState, parts: t.Iterable[Part], initramfs: Initramfs, displaced: t.Sequence[Step],
                files: t.Iterable[str], holders: Holders, clients: t.Sequence[str] = ()) -> list[Step]:
    """The steps to remove everything that this collection has installed, in the order of execution.

    displaced: steps of the deliveries. files: the other files to restore. holders, clients: see L(modules.unload).
    Modules are unloaded first, because they could not be loaded again without their files.
    """
    phased: list[Phased] = [("displace", step) for step in displaced]
    if changes_driver(displaced):
        phased += unload(now, "its files are removed", holders, clients)
    for part in parts:
        phased += part.absent(now)
    stopped = {step.target for _phase, step in phased if step.action == STOP}
    unloads = any(step.action == UNLOAD for _phase, step in phased)
    phased = [one for one in phased if one[1].action != RESTART or not unloads and one[1].target not in stopped]
    own = {path for _phase, step in phased for path in step.data.get("files", ())}
    phased += restores(path for path in files if path not in own)
    return in_order([*phased, *initramfs.plan(now, phased)])


def changes_driver(displaced: t.Iterable[Step]) -> bool:
    """Whether any steps of deliveries remove or replace packages or kernel modules."""
    return any(step.data.get("packages") or step.data.get("modules") for step in displaced)


def needs_unload(now: DriverState, steps: t.Iterable[Step]) -> str:
    """The reason to unload modules before the steps of deliveries; empty if this is not necessary."""
    return next((step.data["unload"] for step in steps if step.data.get("unload")), "") if now.modules else ""


def changes_modules(delivered: t.Iterable[Step]) -> bool:
    """Whether steps of a delivery change kernel modules on the disk. For packages, their names determine this."""
    return any(step.data.get("modules") or any(word in name for word in ("dkms", "linux-modules", "-driver-G0"))
               for step in delivered for name in (
                   *step.data.get("packages", ()), *(str(change[0]) for change in step.data.get("changes", ())), ""))


def gate_driver(steps: t.Sequence[Step], level: str,
                paused: t.Collection[str] = ()) -> tuple[list[Step], list[PendingStep]]:
    """C((allowed steps, pending steps)), as L(_result.gate), except that a blocked step is pending at every level.

    GPU clients or a console can block a step. paused: services that a killed run has stopped. Steps that start them are
    allowed even if an earlier step that unloads modules or interrupts jobs is pending.
    """
    blocked = next((index for index, step in enumerate(steps) if step.data.get("blocked")), len(steps))
    allowed, pending = gate(steps[:blocked], level)
    for step in steps[blocked:]:
        pending.append(step.pending(step.data.get("blocked") or f"it follows '{pending[0].id}'"))
    if pending and pending[0].data.get("held"):
        pending[0] = pending[0].pending(f"{pending[0].data['held']}; {pending[0].pending_reason}")
    if any(step.action == UNLOAD for step in pending) or pending and interrupts(steps[len(allowed)]):
        starts = [step for step in steps[len(allowed):] if step.action in STARTS and step.target in paused]
        allowed = [*allowed, *starts]
        pending = [step for step in pending if step.id not in {start.id for start in starts}]
    return allowed, pending
