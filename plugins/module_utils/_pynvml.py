# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the library pynvml."""

from __future__ import annotations

import importlib
import os
import sys
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import MissingLibrary

# The folder into which the role driver installs pynvml, and the variable with the folder to which an action copied it.
PYTHON_PATH = "/usr/local/lib/gpuops/python"
PYNVML = f"{PYTHON_PATH}/pynvml.py"
PYTHON_PATH_VARIABLE = "GPUOPS_PYTHON_PATH"
# Names that older, unsuitable releases lack.
_NEEDED = ("NVMLError", "nvmlInit", "c_nvmlGpuFabricInfo_t", "nvmlDeviceGetMPSComputeRunningProcesses_v3")


def load() -> t.Any:
    """The first usable module pynvml: from the Python of the host, the role driver, or this task.

    A module that cannot be imported or is too old is not usable. Raises MissingLibrary.
    """
    for folder in (None, PYTHON_PATH, os.environ.get(PYTHON_PATH_VARIABLE)):
        found = _load_from(folder)
        if found is not None:
            return found
        sys.modules.pop("pynvml", None)
    raise MissingLibrary("pynvml", "Install nvidia-ml-py for the Python of the host. The action plugin can copy it.")


def source() -> str:
    """The path of pynvml.py: copied for this task, otherwise that of L(load). Raises MissingLibrary."""
    copied = os.path.join(os.environ.get(PYTHON_PATH_VARIABLE, "/nonexistent"), "pynvml.py")
    if os.path.isfile(copied):
        return copied
    path = str(getattr(load(), "__file__", ""))
    if os.path.basename(path) != "pynvml.py":
        raise MissingLibrary("pynvml")
    return path


def _load_from(folder: str | None) -> t.Any:
    """Imports the module from a folder, or from the path of Python. Returns None if it is not usable."""
    if folder:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    try:
        found = importlib.import_module("pynvml")
        return found if all(hasattr(found, name) for name in _NEEDED) else None
    except (Exception, SystemExit):  # a foreign file may raise anything
        return None
    finally:
        if folder:
            sys.path.remove(folder)
