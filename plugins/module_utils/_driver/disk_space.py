# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the file systems take a driver, asked before anything is changed."""

from __future__ import annotations

import os

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

_MIB = 1 << 20
# Folder: MiB, and what for. Rounded up from what the packages of branch 580 for compute take: 900 MiB of libraries and
# firmware, 350 MiB to fetch, 450 MiB for a build of all modules.
_NEEDS = {
    "/usr": (1024, "libraries, firmware and sources of modules"),
    "/var/cache": (400, "the packages that are fetched"),
    "/var/lib/dkms": (500, "the build of the modules"),
    "/etc": (1, "configuration"),
}


def check_room(root: Root, kernel: str) -> None:
    """Raises HostError for the first file system that is read-only or too full. kernel: the running one."""
    needs = {**_NEEDS, "/boot": (_initramfs(root, kernel), "a new initramfs beside the old one")}
    total: dict[int, int] = {}
    for folder, (mib, what) in needs.items():
        place = folder
        while not os.path.isdir(root.at(place)) and place != "/":
            place = os.path.dirname(place)
        here = os.statvfs(root.at(place))
        if here.f_flag & os.ST_RDONLY:
            raise HostError(f"{place} is mounted read-only.", "Mount it writable, or bring the driver with the host's "
                            "image and use state adopted.", path=place)
        device = os.stat(root.at(place)).st_dev
        total[device] = total.get(device, 0) + mib
        free = here.f_bavail * here.f_frsize // _MIB
        if free < total[device]:
            raise HostError(f"The file system of {place} has {free} MiB left, the driver needs {total[device]} MiB "
                            f"there ({what}).", "Make room, then run again: nothing has been changed.", path=place,
                            free_mib=free, needed_mib=total[device])


def _initramfs(root: Root, kernel: str) -> int:
    """MiB; it grows where it takes up modules or firmware."""
    for path in (f"/boot/initrd.img-{kernel}", f"/boot/initramfs-{kernel}.img", f"/boot/initrd-{kernel}"):
        if root.exists(path):
            return os.stat(root.at(path)).st_size * 5 // 4 // _MIB + 1
    return 0
