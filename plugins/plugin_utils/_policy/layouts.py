# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a selected MIG layout means for the GPUs of one host. Pure. PRIVATE.

The format is mig-parted's (version v1): a layout is a list of entries, each with C(devices) (C(all) or indexes by PCI
order), C(device-filter) (C(0xDDDDVVVV), one or several), C(mig-enabled) and C(mig-devices) (profile to count).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

Gpu = t.Mapping[str, t.Any]


def wanted(config: t.Mapping[str, t.Any] | None, selected: str,
           gpus: t.Sequence[Gpu]) -> dict[str, dict[str, int] | None]:
    """By PCI address the instances (profile to count) a GPU should have, None for MIG off; GPUs not named stay away.

    Without a config (the module has layouts of its own) only what holds for every layout is checked, and nothing is
    returned. Raises InputError for a layout that is not there and for MIG on GPUs without it.
    """
    if not any(gpu["mig_capable"] for gpu in gpus) and selected != "all-disabled":
        raise InputError(f"MIG layout {selected!r} is selected, and {_names(gpus)} has no MIG.",
                         "Remove mig_manager_selected for this host.")
    if config is None:
        return {}
    layouts = config.get("mig-configs")
    if not isinstance(layouts, dict) or not isinstance(layouts.get(selected), list):
        known = ", ".join(sorted(map(str, layouts))) if isinstance(layouts, dict) else "none"
        raise InputError(f"MIG layout {selected!r} is not in the MIG configuration.", f"Layouts there: {known}.")
    result: dict[str, dict[str, int] | None] = {}
    for entry in layouts[selected]:
        for index, gpu in enumerate(gpus):
            if not isinstance(entry, dict) or not _applies(entry, index, gpu):
                continue
            if not entry.get("mig-enabled"):
                if gpu["mig_capable"]:
                    result[gpu["pci"]] = None
            elif not gpu["mig_capable"]:
                raise InputError(f"MIG layout {selected!r} enables MIG on {gpu['pci']}; {_names([gpu])} has none.",
                                 "Choose another layout, or limit its entry by device-filter or devices.")
            else:
                result[gpu["pci"]] = {str(name): int(count) for name, count in (entry.get("mig-devices") or {}).items()}
    return result


def present(gpu: Gpu) -> dict[str, int] | None:
    """The instances a GPU of the facts has, in the shape of L(wanted)."""
    mig = gpu.get("mig")
    if not mig or not mig["enabled"]:
        return None
    counts: dict[str, int] = {}
    for instance in mig["instances"]:
        counts[instance["profile"]] = counts.get(instance["profile"], 0) + 1
    return counts


def text(instances: t.Mapping[str, int] | None) -> str:
    """C(7 x 1g.10gb), C(MIG off), C(MIG on, empty)."""
    if instances is None:
        return "MIG off"
    return ", ".join(f"{count} x {name}" for name, count in sorted(instances.items())) or "MIG on, empty"


def _applies(entry: t.Mapping[str, t.Any], index: int, gpu: Gpu) -> bool:
    filters = entry.get("device-filter")
    if filters:
        listed = [filters] if isinstance(filters, str) else filters
        # 0xDDDDVVVV, since mig-parted 0.15 also with :subsystem.
        if not any(str(item).lower().split(":")[0] == f"0x{gpu['device_id']}10de" for item in listed):
            return False
    devices = entry.get("devices")
    return devices == "all" or (isinstance(devices, list) and index in devices)


def _names(gpus: t.Sequence[Gpu]) -> str:
    return " and ".join(dict.fromkeys(str(gpu.get("model") or gpu["device_id"]) for gpu in gpus))
