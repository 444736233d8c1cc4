# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the device nodes of the loaded driver. PRIVATE to the collection.

Sources: NVIDIA/nvidia-modprobe for numbers and names; the driver's README for the module parameters with their owner
and mode, which are in C(/proc/driver/nvidia/params).
"""

from __future__ import annotations

import re
import stat
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

_PROC = "/proc/driver/nvidia"
# The numbers that the kernel reserves for NVIDIA. The nodes of unified memory are not checked, because the first
# program that uses CUDA creates them.
_MAJOR, _CONTROL = 195, 255
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,9})\b", re.MULTILINE)
_OWNER = ("DeviceFileUID", "DeviceFileGID", "DeviceFileMode")


class Ownership(t.NamedTuple):
    """Owner, group and permissions of a node."""

    uid: int
    gid: int
    mode: int


def ownership(root: Root) -> Ownership | None:
    """The desired owner and mode, from the module's parameters; None if unknown, or if nodes must not be changed."""
    values = dict(re.findall(r"^(\w+): (\d{1,10})$", root.text(f"{_PROC}/params") or "", re.MULTILINE))
    if values.get("ModifyDeviceFiles") != "1" or not set(_OWNER) <= set(values):
        return None
    return Ownership(*(int(values[name]) for name in _OWNER))


def required_nodes(root: Root) -> dict[str, tuple[int, int]]:
    """Maps the paths of the device nodes that the loaded driver needs to their major and minor numbers."""
    minors = [_MINOR.search(root.text(f"{_PROC}/gpus/{address}/information") or "")
              for address in root.names(f"{_PROC}/gpus")]
    found = {f"/dev/nvidia{match.group(1)}": (_MAJOR, int(match.group(1))) for match in minors if match}
    return {"/dev/nvidiactl": (_MAJOR, _CONTROL), **found} if found else {}


def node_faults(root: Root) -> dict[str, str] | None:
    """Maps the path of a faulty device node to its fault: C(missing), C(no device) or C(mode 0000); None if unknown."""
    owner = ownership(root)
    if owner is None:
        return None
    faults = {path: _fault(root, path, owner.mode) for path in required_nodes(root)}
    return {path: fault for path, fault in faults.items() if fault}


def _fault(root: Root, path: str, mode: int) -> str:
    status = root.stat(path)
    if status is None:
        return "missing"
    if not stat.S_ISCHR(status.st_mode):
        return "no device"
    # Further permissions are not a fault.
    return "" if status.st_mode & mode == mode else f"mode {stat.S_IMODE(status.st_mode):04o}"
