# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of the health of a host's GPUs, which need no plan. Pure. PRIVATE.

An error means that the GPU cannot be used now. What only happened before, or may happen again, is a warning. Sources:
NVIDIA's Xid catalog; NVIDIA GPU Memory Error Management; NVML API reference; nvidia-smi(1).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver import REBOOT, lost
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import xids
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Gpu, Health, HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, Result

# Linux truncates the names of processes to 15 characters.
MANAGER = "nv-fabricmanage"
# A finding, and what of the host has it.
Located = t.Tuple[Result, str]
_802 = "CUDA fails with 'system not yet initialized' (802)"
_RESET = "nvidia-smi --gpu-reset -i ADDRESS"
_IDLE_RESET = f"When no program uses the GPU, reset it ({_RESET}) or reboot the host"
# Before what can be done by hand instead of the playbook, see L(remedies).
_REMEDIATE = "Run the playbook remediate. By hand: "
_WAITS = f"{_REMEDIATE}{_IDLE_RESET[0].lower()}{_IDLE_RESET[1:]}"
_REPLACE = f"{xids.SUPPORT[0].upper()}{xids.SUPPORT[1:]}"
# What the driver recommends: (what it is, what to do).
_RECOVERY = {
    "reset": ("a reset of the GPU", f"{_REMEDIATE}stop all programs on the GPU, then reset it ({_RESET})"),
    "reboot": ("a reboot of the host", f"{_REMEDIATE}reboot the host"),
    "drain_p2p": ("an end of the traffic between GPUs", "Stop all programs that use several GPUs, then look again: the "
                  "driver then recommends a next step"),
    "drain_and_reset": ("a reset of the GPU without traffic between GPUs", f"{_REMEDIATE}start no new program on this "
                        f"GPU. When the present ones have ended, reset it ({_RESET})"),
    "recover_imex_domain": ("a recovery of the IMEX domain", "Stop the programs that share memory between hosts, and "
                            "restart nvidia-imex on the hosts of the domain"),
    "bus_reset": ("a reset of the GPU's PCIe bus", f"{_REMEDIATE}stop all programs on the GPU and reboot the host"),
    "system_reboot": ("a reboot of the system", f"{_REMEDIATE}reboot the host"),
}
_SLOWDOWNS = {
    "hw_thermal": ("the hardware halves the clocks or more, because the GPU is too hot", "Check fans, air flow, liquid "
                   "cooling and the temperature of the room"),
    "hw_power_brake": ("the hardware halves the clocks or more, because the power supply of the host asks for it",
                       "Check the power supplies, their cables, and the power limits of host and rack"),
    "sw_thermal": ("the driver reduces the clocks, because the GPU or its memory is near its highest temperature",
                   "Check fans, air flow, liquid cooling and the temperature of the room"),
}


def of_host(name: str, facts: HostFacts) -> t.Iterator[Finding]:
    """The findings about the GPUs of a host. GPUs with the same problem are one finding."""
    for check, function in HEALTH_CHECKS.items():
        found: dict[Result, t.List[str]] = {}
        for result, detail in function(facts):
            found.setdefault(result, []).append(detail)
        for (severity, text, fix), details in found.items():
            yield Finding(name, check, severity, text, fix, some_of([one for one in details if one]))


def manager_runs(facts: HostFacts) -> bool:
    """Whether a fabric manager runs on the host."""
    return any(str(client["name"]).startswith(MANAGER) or "fabricmanager" in str(client.get("unit") or "")
               for client in facts["clients"])


def manager_failed(facts: HostFacts) -> bool:
    """Whether the service of the fabric manager has failed."""
    service = (facts["driver"]["services"] or {}).get(FABRIC_MANAGER)
    return service is not None and service["state"] == "failed"


def _healths(facts: HostFacts) -> t.Iterator[tuple[Gpu, Health]]:
    """The GPUs that answer, with their health."""
    for gpu in facts["gpus"]:
        if gpu["health"] is not None:
            yield gpu, gpu["health"]


def _gpu_lost(facts: HostFacts) -> t.Iterator[Located]:
    for gpu in facts["gpus"]:
        state = lost(gpu) if gpu["error"] else None
        if state:
            yield ("error", f"the GPU {state}", REBOOT), gpu["pci"]
    for pci in gone(facts):
        yield ("error", "the kernel log has Xids of a GPU that is no longer on the PCI bus", REBOOT), pci


def gone(facts: HostFacts) -> list[str]:
    """The PCI addresses of GPUs that have left the PCI bus since the boot, if the kernel log has Xids of them."""
    there = {gpu["pci"] for gpu in facts["gpus"]}
    return list(dict.fromkeys(xid["pci"] for xid in facts.get("xids") or () if xid["pci"] not in there))


def _recovery(facts: HostFacts) -> t.Iterator[Located]:
    for gpu, health in _healths(facts):
        action = _RECOVERY.get(health["recovery"] or "none")
        if action:
            # A GPU with this action still works, with reduced capacity.
            severity = "warning" if health["recovery"] == "drain_and_reset" else "error"
            yield (severity, f"the driver recommends {action[0]} after an error", action[1]), gpu["pci"]


def _xid(facts: HostFacts) -> t.Iterator[Located]:
    for one in facts["xids"] or ():
        meaning = xids.meaning_of(one["xid"])
        yield ((meaning.action.severity, f"Xid {one['xid']} since the boot: {meaning.text}", meaning.action.fix),
               f"{one['pci']}, {counted(one['count'], 'time')} until {one['last']}")


def _ecc(facts: HostFacts) -> t.Iterator[Located]:
    for gpu, health in _healths(facts):
        rows, ecc = health["remapped_rows"], health["ecc"]
        if rows and rows["failed"]:
            yield ("warning", "a faulty row of the memory could not be replaced (remapped)", _REPLACE), gpu["pci"]
        if rows and rows["pending"]:
            yield (("warning", "a faulty row of the memory is replaced (remapped) at the next reset", _WAITS),
                   gpu["pci"])
        if health["retired_pages_pending"]:
            yield ("warning", "a faulty page of the memory is retired at the next reset", _WAITS), gpu["pci"]
        if ecc["volatile"]:
            yield (("warning", "uncorrectable memory errors (ECC) have occurred since the driver was loaded",
                    f"{_IDLE_RESET}; if errors come again, {xids.SUPPORT}"),
                   f"{gpu['pci']}, {counted(ecc['volatile'], 'error')}")
        elif ecc["aggregate"]:
            yield (("info", "uncorrectable memory errors (ECC) have occurred before the driver was loaded", ""),
                   gpu["pci"])


def _nvlink(facts: HostFacts) -> t.Iterator[Located]:
    """NVLinks that are down while others are active.

    PCIe boards have links only where there is a bridge, so without switches a GPU is compared with others of its model.
    A GPU in MIG mode may have no active links (Fabric Manager user guide).
    """
    links = [(gpu, health["nvlink"]) for gpu, health in _healths(facts)
             if health["nvlink"] and not (gpu["mig"] and gpu["mig"]["enabled"])]
    switched = facts["nvlink"]["fabric"] != "none"
    for gpu, own in links:
        active = own["links"] - len(own["down"])
        best = max(one["links"] - len(one["down"]) for other, one in links
                   if switched or other["model"] == gpu["model"])
        if own["down"] and best and (switched or 0 < active < best):
            yield (("warning", "NVLinks are down while others of the host are active",
                    f"Look at nvidia-smi nvlink --status and at Xids. {_IDLE_RESET}; if the links stay down, "
                    f"{xids.SUPPORT}"),
                   f"{gpu['pci']}, {counted(len(own['down']), 'link')} of {own['links']}")


def _pcie_link(facts: HostFacts) -> t.Iterator[Located]:
    """A link that is slower than GPU and slot allow. An unused GPU may reduce generation and width (nvidia-smi(1)); in
    practice it reduces the generation, so a width that is reduced while the GPU is idle is at least worth a note."""
    for gpu, health in _healths(facts):
        link = health["pcie"]
        if link["width"] and link["width_max"] and link["width"] < link["width_max"]:
            yield (("info" if health["idle"] else "warning",
                    f"the PCIe link has {link['width']} of {link['width_max']} lanes"
                    f"{' while the GPU is idle' if health['idle'] else ''}",
                    "Look again while a program uses the GPU. If it stays so, reseat the board or its riser, and check "
                    "the slot"), gpu["pci"])
        if health["idle"] is False and link["generation"] and link["generation_max"] and (
                link["generation"] < link["generation_max"]):
            yield (("warning", f"the PCIe link has generation {link['generation']} of {link['generation_max']} while a "
                    "program uses the GPU",
                    "Check the settings of the slot in the firmware of the host, and reseat the board or its riser"),
                   gpu["pci"])


def _slowdown(facts: HostFacts) -> t.Iterator[Located]:
    for gpu, health in _healths(facts):
        for reason in health["slowdown"] or ():
            if reason in _SLOWDOWNS:
                yield ("warning", *_SLOWDOWNS[reason]), gpu["pci"]


def _fabric(facts: HostFacts) -> t.Iterator[Located]:
    """The registration of GPUs with the fabric. Without a fabric manager, the check of the host says so instead."""
    if manager_failed(facts):
        yield (("warning", f"{FABRIC_MANAGER} has failed: {_802}",
                f"Read journalctl --unit {FABRIC_MANAGER}; its version must be that of the driver"), "")
    if not manager_runs(facts) and facts["nvlink"]["fabric"] != "nvlink5_rack":
        return
    for gpu, health in _healths(facts):
        fabric = health["fabric"]
        if fabric and fabric["state"] == "in_progress":
            yield (("warning", f"the GPU is being registered with the NVLink fabric; until that has ended, {_802}",
                    f"If it takes more than some minutes, read journalctl --unit {FABRIC_MANAGER}"), gpu["pci"])
        elif fabric and (fabric["state"] != "completed" or fabric["status"]):
            why = f" (NVML error {fabric['status']})" if fabric["status"] else ""
            yield (("error", f"the GPU is not registered with the NVLink fabric{why}: {_802}",
                    f"Read journalctl --unit {FABRIC_MANAGER} and look for Xids and NVLinks that are down"), gpu["pci"])


HEALTH_CHECKS: t.Dict[str, t.Callable[[HostFacts], t.Iterator[Located]]] = {
    "gpu_lost": _gpu_lost, "gpu_recovery": _recovery, "xid": _xid, "ecc": _ecc, "nvlink": _nvlink,
    "pcie_link": _pcie_link, "slowdown": _slowdown, "fabric": _fabric,
}
