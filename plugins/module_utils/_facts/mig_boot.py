# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads which unit restores the MIG layout of a host at boot, and the layout in its file. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root

Value = t.TypeVar("Value", str, bool, list)  # type: ignore[type-arg]

_UNITS = "/etc/systemd/system"
UNIT = "gpuops-mig.service"
UNIT_FILE = f"{_UNITS}/{UNIT}"
ENABLED = f"{_UNITS}/multi-user.target.wants/{UNIT}"
STATE = "/etc/gpuops/mig.json"
VERSION = 1
# NVIDIA's unit for the same purpose, of the package nvidia-mig-manager and of DeepOps.
_VENDORS = "nvidia-mig-manager.service"
_UUID = re.compile(r"[0-9a-z][0-9a-z./_-]{0,95}\Z", re.ASCII)


def read_mig_boot(root: Root) -> Fact:
    """C({enabled, masked, gpus, vendor}), the fact C(mig_boot) of gpu_info.

    enabled, masked: the state of the unit C(gpuops-mig.service); gpus: maps UUIDs to the layouts that this unit
    restores, C({pci, enabled, instances}), None without a valid file; vendor: the name of NVIDIA's unit if that unit is
    enabled, otherwise None.
    """
    try:
        document = json.loads(root.text(STATE) or "")
        gpus = _gpus(document["gpus"]) if document["version"] == VERSION else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        gpus = None
    vendors = any(root.link(f"{_UNITS}/{folder}/{_VENDORS}") is not None
                  for folder in root.names(_UNITS) if folder.endswith(".wants"))
    masked = root.link(UNIT_FILE) == os.devnull
    enabled = not masked and root.exists(UNIT_FILE) and root.link(ENABLED) is not None
    return {"enabled": enabled, "masked": masked, "gpus": gpus, "vendor": _VENDORS if vendors else None}


def _gpus(entries: Fact) -> Fact:
    """The known keys of the entries in the file. Raises an error for invalid entries, which a controller would reject.
    """
    if len(entries) > 256 or not all(_UUID.match(uuid.lower()) for uuid in entries):
        raise ValueError
    return {uuid.lower(): {
        "pci": _checked(str, entry["pci"]), "enabled": _checked(bool, entry["enabled"]), "instances": [
            {"profile": _checked(str, item["profile"]), "start": _number(item["start"], -1),
             "compute": [[_number(size), _number(start)] for size, start in _checked(list, item["compute"])]}
            for item in _checked(list, entry["instances"])]} for uuid, entry in entries.items()}


def _checked(kind: t.Type[Value], value: object) -> Value:
    if not isinstance(value, kind) or not isinstance(value, bool) and len(value) > 64:
        raise ValueError
    return value


def _number(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 99:
        raise ValueError
    return value
