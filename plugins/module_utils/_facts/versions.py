# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the versions of the driver's kernel module and library from files. PRIVATE."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._libraries import FOLDERS

_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
_LIBRARY = re.compile(r"^libnvidia-ml\.so\.(\d{3}\.[\d.]+)$")


def loaded_version(root: Root) -> str | None:
    """The version of the loaded kernel module, None if no module is loaded or its version is unknown."""
    if not root.exists("/sys/module/nvidia"):
        return None
    found = _VERSION.search(root.text("/sys/module/nvidia/version") or root.text("/proc/driver/nvidia/version") or "")
    return found.group(1) if found else None


def library_version(root: Root) -> str | None:
    """The version of the installed NVML library, None if it is not installed. The name of the library's file contains
    it."""
    for folder in FOLDERS:
        target = root.link(f"{folder}/libnvidia-ml.so.1")
        names = [target.rpartition("/")[2]] if target else []
        for name in [*names, *(root.names(folder) if target else [])]:
            found = _LIBRARY.match(name)
            if found:
                return found.group(1)
    return None


def reboot_pending(root: Root, loaded: str | None, library: str | None) -> bool:
    """Whether the loaded module has another version than the library, or the distribution requests a reboot."""
    requested = "nvidia" in (root.text("/run/reboot-required.pkgs") or "")
    return requested or bool(loaded and library and loaded != library)
