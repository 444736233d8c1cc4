# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a situation and what is wanted to steps. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import restores
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import UNLOAD, unload
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import (
    OFFLINE_PHASES,
    PHASES,
    Aim,
    Holders,
    Part,
    Phased,
    in_order,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import STARTS, interrupts
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, gate


def plan_present(now: Situation, aim: Aim, parts: t.Sequence[Part], initramfs: Initramfs, displaced: t.Sequence[Step],
                 delivered: t.Sequence[Step]) -> list[Step]:
    """The whole plan in the order of execution. displaced, delivered: the steps of the deliveries.

    What a delivery can prepare before anything is taken away says so in its data (C(phase)).
    """
    phased: list[Phased] = [*(("displace", step) for step in displaced),
                            *((step.data.get("phase", "deliver"), step) for step in delivered)]
    for part in parts:
        phased += part.plan(now, aim)
    steps = [step for _phase, step in phased]
    for part in parts:
        phased += part.follow(steps, aim)
    return in_order([*phased, *initramfs.plan(now, phased)], OFFLINE_PHASES if aim.offline else PHASES)


def plan_absent(now: Situation, parts: t.Iterable[Part], initramfs: Initramfs, displaced: t.Sequence[Step],
                files: t.Iterable[str], holders: Holders, clients: t.Sequence[str] = ()) -> list[Step]:
    """Everything of ours away. displaced: the steps of the deliveries; files: our other files.

    Modules go first: a loaded module without its files would be a driver that nobody can restart.
    """
    phased: list[Phased] = [("displace", step) for step in displaced]
    if takes_modules(displaced):
        phased += unload(now, "its files go", holders, clients)
    for part in parts:
        phased += part.absent(now)
    own = {path for _phase, step in phased for path in step.data.get("files", ())}
    phased += restores(path for path in files if path not in own)
    return in_order([*phased, *initramfs.plan(now, phased)])


def takes_modules(displaced: t.Iterable[Step]) -> bool:
    """Whether steps of deliveries take kernel modules off the disk."""
    return any(step.data.get("packages") or step.data.get("modules") for step in displaced)


def needs_unload(now: Situation, steps: t.Iterable[Step]) -> str:
    """Why steps of deliveries cannot run beside loaded modules; empty where they can, or none is loaded."""
    return next((step.data["unload"] for step in steps if step.data.get("unload")), "") if now.modules else ""


def changes_modules(delivered: t.Iterable[Step]) -> bool:
    """Whether steps of a delivery touch kernel modules on the disk, by what packages with modules are called."""
    return any(step.data.get("modules") or any(word in name for word in ("dkms", "linux-modules", "-driver-G0"))
               for step in delivered for name in (*step.data.get("packages", ()), *_changed(step), ""))


def _changed(step: Step) -> list[str]:
    """The packages that come with those that are asked for: metas bring the modules of some distributions."""
    return [str(change[0]) for change in step.data.get("changes", ())]


def gate_driver(steps: t.Sequence[Step], level: str,
                paused: t.Collection[str] = ()) -> tuple[list[Step], list[dict[str, t.Any]]]:
    """As L(_result.gate); a step that is blocked (holders, a console) stays pending at every level.

    paused: services that a killed run has stopped; where the modules may not go, or another service may not be stopped,
    they are started again all the same.
    """
    blocked = next((index for index, step in enumerate(steps) if step.data.get("blocked")), len(steps))
    allowed, pending = gate(steps[:blocked], level)
    for step in steps[blocked:]:
        why = step.data.get("blocked") or f"it follows '{pending[0]['id']}'"
        pending.append({**step.as_dict(), "pending_reason": why})
    if pending and steps[len(allowed)].data.get("held"):
        pending[0]["pending_reason"] = f"{steps[len(allowed)].data['held']}; {pending[0]['pending_reason']}"
    if any(step["action"] == UNLOAD for step in pending) or pending and interrupts(steps[len(allowed)]):
        again = [step for step in steps[len(allowed):] if step.action in STARTS and step.target in paused]
        allowed = [*allowed, *again]
        pending = [step for step in pending if step["id"] not in {one.id for one in again}]
    return allowed, pending
