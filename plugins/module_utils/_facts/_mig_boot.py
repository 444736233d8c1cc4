# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps the MIG layout of a host over a boot, as it stands. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root

_UNITS = "/etc/systemd/system"
UNIT = "gpuops-mig.service"
UNIT_FILE = f"{_UNITS}/{UNIT}"
ENABLED = f"{_UNITS}/multi-user.target.wants/{UNIT}"
STATE = "/etc/gpuops/mig.json"
VERSION = 1
# The vendor's own unit for the same, of its package nvidia-mig-manager and of DeepOps, where it is enabled.
_VENDORS = "nvidia-mig-manager.service"


def read_mig_boot(root: Root) -> dict[str, t.Any]:
    """C({enabled, masked, gpus, vendor}): whether our unit is enabled, and whether somebody has masked it, what it will
    put back, and the vendor's enabled unit.

    gpus: by UUID C({pci, enabled, instances}), None where there is no such file or it cannot be read; vendor: its
    name or None.
    """
    try:
        document = json.loads(root.text(STATE) or "")
        gpus = {uuid.lower(): _checked(entry) for uuid, entry in document["gpus"].items()
                } if document["version"] == VERSION else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        gpus = None
    vendors = any(root.link(f"{_UNITS}/{folder}/{_VENDORS}") is not None
                  for folder in root.names(_UNITS) if folder.endswith(".wants"))
    masked = root.link(UNIT_FILE) == os.devnull
    enabled = not masked and root.exists(UNIT_FILE) and root.link(ENABLED) is not None
    return {"enabled": enabled, "masked": masked, "gpus": gpus, "vendor": _VENDORS if vendors else None}


def _checked(entry: t.Any) -> dict[str, t.Any]:
    """An entry of the file. Raises ValueError, KeyError or TypeError where somebody has spoilt it."""
    right = isinstance(entry["pci"], str) and isinstance(entry["enabled"], bool) and all(
        isinstance(item["profile"], str) and isinstance(item["start"], int)
        and all(isinstance(number, int) for part in item["compute"] for number in part)
        for item in entry["instances"])
    if not right:
        raise ValueError(entry)
    found: dict[str, t.Any] = entry
    return found
