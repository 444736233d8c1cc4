# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CDI specification of the GPUs of a host, and the unit that refreshes it.

container_toolkit installs the unit. The modules that change MIG instances or the driver start it, because the units of
NVIDIA do not detect these changes, and systemd cannot watch files in C(/proc).
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

UNIT = "gpuops-cdi-refresh.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
# The action of the driver step that starts the unit.
REFRESH = "refresh CDI specification"
# In the YAML of nvidia-ctk: the name of each device, and the library that has the version of the driver in its name
# (libcuda.so.1.1 on WSL and Jetson).
_NAME = re.compile(r"^\s*(?:- )?name: [\"']?([^\s\"']+)", re.MULTILINE)
_LIBRARY = re.compile(r"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)?)")


class Specification(t.TypedDict):
    """The names of devices, and the version of the driver, None if it is not known."""

    devices: t.List[str]
    driver: str | None


def refresh(run: Runner) -> bool:
    """Starts the unit. Returns whether it succeeded; callers need not undo their changes if it did not."""
    return run(["systemctl", "start", UNIT], timeout=300, check=False).rc == 0


def parse(text: str) -> Specification:
    """C({devices, driver}): the device names and the driver version in a specification (JSON, or YAML of nvidia-ctk).

    The device C(all), which combines the others, is omitted. driver: None if no library has a version.
    """
    found = _LIBRARY.search(text)
    try:
        names = [str(device["name"]) for device in json.loads(text)["devices"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        names = _NAME.findall(text)
    return {"devices": sorted(name for name in names if name != "all"), "driver": found.group(1) if found else None}
