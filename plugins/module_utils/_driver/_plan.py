# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a situation and what is wanted to steps, apart from those of packages. Pure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import (
    DENY_FILE,
    LOAD_ORDER,
    PERSISTENCED,
    PYNVML,
    Situation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, gate

BUILD = "build modules"
DENY = "deny nouveau"
INITRAMFS = "rebuild initramfs"
UNLOAD = "unload modules"
LOAD = "load module"
START = "enable and start service"
STOP = "disable and stop service"
SHIP = "install file"
RESTORE = "restore file"
UNLOAD_NOUVEAU = "unload rival module"

# Unit file states in which a unit starts at boot, or is started by udev as the distribution's own unit is.
_AT_BOOT = ("enabled", "enabled-runtime", "static", "indirect", "alias")

Holders = t.Sequence[t.Mapping[str, t.Any]]


def name_holders(holders: Holders) -> str:
    """C(python (pid 4711) on 0000:07:00.0, ...)."""
    return ", ".join(str(holder["name"]) + (f" (pid {holder['pid']})" if holder["pid"] else "")
                     + (f" on {holder['gpu']}" if holder["gpu"] else "") for holder in holders)


def must_reload(situation: Situation, version: str, flavour: str) -> str:
    """Why the loaded module has to go, empty when it does not: another version or another flavour than wanted."""
    if not situation.modules:
        return ""
    if situation.loaded is None:
        return "" if "nvidia" not in situation.modules else "the loaded module does not tell its version"
    if situation.loaded != version:
        return f"{situation.loaded} is loaded, {version} is wanted"
    if situation.flavour != flavour:
        return f"the {situation.flavour} module is loaded, the {flavour} one is wanted"
    return ""


def plan_unload(situation: Situation, reason: str, holders: Holders, needs: str) -> list[Step]:
    """One step for all modules of ours, and persistenced, which holds every GPU. None when nothing is loaded."""
    if not situation.modules:
        return []
    blocked = f"in use by {name_holders(holders)}" if holders else ""
    return [Step(UNLOAD, " ".join(situation.modules), f"{reason}; {blocked}" if blocked else reason, needs=needs,
                 data={"modules": situation.modules, "blocked": blocked})]


def plan_present(situation: Situation, version: str, flavour: str, packages: t.Sequence[Step], persistenced: bool,
                 holders: Holders, initramfs_owed: bool, has_initramfs: bool) -> list[Step]:
    """The whole plan in the order of execution. packages: the steps of the package part.

    A loaded module that has to go is unloaded before its packages change: libraries of another version than the loaded
    module break every new GPU process, so what may not be reloaded may not be upgraded either.
    """
    reload_reason = must_reload(situation, version, flavour)
    if not reload_reason and situation.library and situation.loaded and situation.library != situation.loaded:
        reload_reason = f"Driver/library version mismatch: {situation.loaded} is loaded, libraries {situation.library}"
    steps = plan_unload(situation, reload_reason, holders, "idle") if reload_reason else []
    steps += packages
    if packages_change(packages) or version not in situation.built:
        steps.append(Step(BUILD, f"{version} for kernel {situation.kernel}", "package scripts hide a skipped build",
                          data={"version": version}))
    steps += _plan_nouveau(situation, initramfs_owed, has_initramfs)
    loaded = set() if reload_reason else set(situation.modules)
    steps += [Step(LOAD, name.replace("_", "-"), "it is not loaded" if name not in situation.modules else "reload")
              for name in LOAD_ORDER if name not in loaded]
    if not situation.pynvml:
        steps.append(Step(SHIP, PYNVML, "modules of this collection talk to NVML through it"))
    steps += _plan_service(situation, persistenced, restarted=bool(reload_reason))
    return steps


def packages_change(steps: t.Sequence[Step]) -> bool:
    """Whether package steps touch kernel modules."""
    return any("dkms" in name for step in steps for name in step.data.get("packages", ()))


def _plan_nouveau(situation: Situation, owed: bool, has_initramfs: bool) -> list[Step]:
    steps = []
    deny = situation.nouveau is not None and not situation.nouveau_denied
    if deny:
        steps.append(Step(DENY, DENY_FILE, f"nouveau is {situation.nouveau}"))
    if has_initramfs and (owed or deny):
        steps.append(Step(INITRAMFS, situation.kernel, "nouveau must not be loaded from it at boot"))
    if situation.nouveau in ("loaded", "used"):
        blocked = "a console or display uses it: reboot the host, then run again" if situation.nouveau == "used" else ""
        steps.append(Step(UNLOAD_NOUVEAU, "nouveau", "it drives the GPUs", needs="reboot" if blocked else "never",
                          data={"blocked": blocked}))
    return steps


def _plan_service(situation: Situation, wanted: bool, restarted: bool) -> list[Step]:
    service = situation.service
    if wanted:
        if restarted or service.state != "active" or service.enabled not in _AT_BOOT:
            return [Step(START, PERSISTENCED, "it keeps the GPUs initialised")]
    elif service.state == "active" or service.enabled == "enabled":
        return [Step(STOP, PERSISTENCED, "persistenced is false")]
    return []


def plan_absent(situation: Situation, packages: t.Sequence[Step], files: t.Sequence[str], service: t.Mapping[str, str],
                holders: Holders, initramfs_owed: bool, has_initramfs: bool) -> list[Step]:
    """Everything of ours away. packages: the package part; files: our other files; service: how persistenced was.

    Modules go first: a loaded module without its packages would be a driver that nobody can restart.
    """
    steps: list[Step] = []
    brought = any(step.data.get("packages") for step in packages)
    if brought:
        steps += plan_unload(situation, "its packages go", holders, "idle")
    if service and situation.service.enabled == "enabled" and service.get("enabled") != "enabled":
        steps.append(Step(STOP, PERSISTENCED, f"it was {service.get('enabled') or 'absent'} before"))
    steps += packages
    steps += [Step(RESTORE, path, "as it was before") for path in files]
    if has_initramfs and (initramfs_owed or DENY_FILE in files):
        steps.append(Step(INITRAMFS, situation.kernel, "the deny list has changed"))
    return steps


def gate_driver(steps: t.Sequence[Step], level: str) -> tuple[list[Step], list[dict[str, t.Any]]]:
    """As L(_result.gate); a step that is blocked (holders, a console) stays pending at every level."""
    blocked = next((index for index, step in enumerate(steps) if step.data.get("blocked")), len(steps))
    allowed, pending = gate(steps[:blocked], level)
    for step in steps[blocked:]:
        why = step.data.get("blocked") or f"it follows '{pending[-1]['id'] if pending else steps[blocked].id}'"
        pending.append({**step.as_dict(), "pending_reason": why})
    return allowed, pending
