# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the free space for a driver before a change."""

from __future__ import annotations

import os

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

_MIB = 1 << 20
# (MiB, purpose) by folder. The values are those of the compute packages of branch 580, rounded up: 900 MiB for
# libraries and firmware, 350 MiB for downloads, 450 MiB for a build of all modules.
_NEEDS = {
    "/usr": (1024, "libraries, firmware and sources of modules"),
    "/var/cache": (400, "downloaded packages"),
    "/var/lib/dkms": (500, "the build of the modules"),
    "/etc": (1, "configuration"),
}


def check_free_space(root: Root, kernel: str) -> None:
    """Raises HostError for the first file system that is read-only or has too little space. kernel: the running kernel
    release."""
    needs = {**_NEEDS, "/boot": (_initramfs(root, kernel), "a second initramfs")}
    total: dict[int, int] = {}
    for folder, (mib, what) in needs.items():
        place = folder
        while not os.path.isdir(root.at(place)) and place != "/":
            place = os.path.dirname(place)
        system = os.statvfs(root.at(place))
        if system.f_flag & os.ST_RDONLY:
            raise HostError(f"{place} is mounted read-only.", "Mount it writable, or install the driver in the image "
                            "of the host and use state adopted.", path=place)
        device = os.stat(root.at(place)).st_dev
        total[device] = total.get(device, 0) + mib
        free = system.f_bavail * system.f_frsize // _MIB
        if free < total[device]:
            raise HostError(f"The file system of {place} has {free} MiB left, and the driver needs {total[device]} MiB "
                            f"there ({what}).", "Nothing was changed. Free some space, then run again.", path=place,
                            free_mib=free, needed_mib=total[device])


def _initramfs(root: Root, kernel: str) -> int:
    """The size of a new initramfs in MiB. With the modules and the firmware, it may be larger than the current one."""
    for path in (f"/boot/initrd.img-{kernel}", f"/boot/initramfs-{kernel}.img", f"/boot/initrd-{kernel}"):
        if root.exists(path):
            return os.stat(root.at(path)).st_size * 5 // 4 // _MIB + 1
    return 0
