# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The specification of the host's GPUs for container runtimes, and the unit that keeps it right.

container_toolkit installs the unit. The vendor's own units do not notice that MIG instances come and go, or that the
driver goes, and nothing below C(/proc) can be watched: so the modules that change these start the unit.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

UNIT = "gpuops-cdi-refresh.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
# The driver's step that starts it.
REFRESH = "refresh CDI specification"
# As nvidia-ctk writes them: one device a C(name); the library of every CUDA program has the driver's version
# (libcuda.so.1.1 on WSL and Jetson).
_NAME = re.compile(r"^\s*(?:- )?name: [\"']?([^\s\"']+)", re.MULTILINE)
_LIBRARY = re.compile(r"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)?)")


def refresh(run: Runner) -> bool:
    """Starts the unit; whether it went well. Where it did not, that is no reason to undo what came before."""
    return run(["systemctl", "start", UNIT], timeout=300, check=False).rc == 0


def parse(text: str) -> dict[str, t.Any]:
    """C({devices, driver}) of a specification, as JSON or as nvidia-ctk writes YAML: names, and the driver's version.

    The name C(all) is left out: it is made of the others. driver: None where no library names it.
    """
    found = _LIBRARY.search(text)
    try:
        names = [str(device["name"]) for device in json.loads(text)["devices"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        names = _NAME.findall(text)
    return {"devices": sorted(name for name in names if name != "all"), "driver": found.group(1) if found else None}
