# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run may do for the GPUs of a host that are not healthy: reset them, or reboot the host. Pure. PRIVATE.

Only what the GPU, the driver or the PCI bus says now counts. An Xid stays in the kernel log after a reset, so an Xid
alone causes nothing.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver import lost
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight_health

# The actions that the driver recommends, see C(health.recovery).
_RESETS, _REBOOTS = ("reset", "drain_and_reset"), ("reboot", "bus_reset", "system_reboot")


class Reset(t.TypedDict):
    """A GPU to reset, by its PCI address."""

    pci: str
    reason: str


class Remedies(t.TypedDict):
    """gpus: the GPUs to reset; reboot: why the host has to be rebooted, empty if it has not."""

    gpus: t.List[Reset]
    reboot: str


def of_host(facts: HostFacts) -> Remedies:
    """The remedies for a host. If it has to be rebooted, no GPU is reset before."""
    for gpu in facts["gpus"]:
        why = _why_reboot(gpu)
        if why:
            return {"gpus": [], "reboot": f"GPU {gpu['pci']}: {why}"}
    for pci in preflight_health.gone(facts):
        return {"gpus": [], "reboot": f"GPU {pci}: it is no longer on the PCI bus"}
    return {"reboot": "", "gpus": [{"pci": gpu["pci"], "reason": why} for gpu in facts["gpus"]
                                   if (why := _why_reset(gpu))]}


def _why_reboot(gpu: Gpu) -> str:
    state = lost(gpu) if gpu["error"] else None
    if state:
        return f"it {state}"
    action = gpu["health"]["recovery"] if gpu["health"] else None
    return f"the driver recommends the action {action}" if action in _REBOOTS else ""


def _why_reset(gpu: Gpu) -> str:
    health = gpu["health"]
    if health is None:
        return "it needs a reset" if "RESET_REQUIRED" in str(gpu["error"]) else ""
    if health["recovery"] in _RESETS:
        return f"the driver recommends the action {health['recovery']}"
    rows = health["remapped_rows"]
    if rows and rows["pending"] and not rows["failed"]:
        return "a row of its memory is remapped at the next reset"
    return "a page of its memory is retired at the next reset" if health["retired_pages_pending"] else ""
