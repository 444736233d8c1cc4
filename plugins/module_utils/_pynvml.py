# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pynvml a module uses: the first that works."""

from __future__ import annotations

import importlib
import os
import sys
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import MissingLibrary

# Where the driver role installs pynvml for good, and the variable that names where an action shipped it to.
PYTHON_PATH = "/usr/local/lib/gpuops/python"
PYTHON_PATH_VARIABLE = "GPUOPS_PYTHON_PATH"
# What the oldest release that will do has, and those before it lack.
_NEEDED = ("NVMLError", "nvmlInit", "c_nvmlGpuFabricInfo_t", "nvmlDeviceGetMPSComputeRunningProcesses_v3")


def load() -> t.Any:
    """The module pynvml: of the host's Python, of the driver role, or of this task, the first that works.

    One that cannot be imported, or is too old, is as one that is not there. Raises MissingLibrary.
    """
    for folder in (None, PYTHON_PATH, os.environ.get(PYTHON_PATH_VARIABLE)):
        found = _load_from(folder)
        if found is not None:
            return found
        sys.modules.pop("pynvml", None)
    raise MissingLibrary("pynvml", "Install nvidia-ml-py for the host's Python; the action plugin ships it.")


def source() -> str:
    """The path of its one file. Raises MissingLibrary where it has several, as releases have that are too old."""
    path = str(getattr(load(), "__file__", ""))
    if os.path.basename(path) != "pynvml.py":
        raise MissingLibrary("pynvml")
    return path


def _load_from(folder: str | None) -> t.Any:
    """From a folder, before all others; None: from where Python looks. None where it does not work."""
    if folder:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    try:
        found = importlib.import_module("pynvml")
        return found if all(hasattr(found, name) for name in _NEEDED) else None
    except (Exception, SystemExit):  # whatever a file of somebody else's does
        return None
    finally:
        if folder:
            sys.path.remove(folder)
