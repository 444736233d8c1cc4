# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds, checks and loads the libraries of the driver."""

from __future__ import annotations

import ctypes
import os
import struct

FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
           "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current")
HEADER = 64  # bytes of an ELF header
_ELF64 = b"\x7fELF\x02\x01"  # little-endian, as on all hosts with these GPUs


def least_size(head: bytes) -> int:
    """The least size in bytes of a program, library or module that begins with head.

    For an ELF file this is the end of the section header table, which linkers write last.
    """
    if not head.startswith(_ELF64):
        return 1
    if len(head) < HEADER:
        return HEADER
    offset, = struct.unpack_from("<Q", head, 40)
    length, count = struct.unpack_from("<HH", head, 58)
    return int(offset + length * count)


def load(name: str) -> ctypes.CDLL:
    """Loads a library. Raises OSError if it is missing or truncated: reading a page behind its end causes a SIGBUS."""
    for folder in FOLDERS:
        try:
            with open(f"{folder}/{name}", "rb") as handle:
                if os.fstat(handle.fileno()).st_size < least_size(handle.read(HEADER)):
                    raise OSError(f"{folder}/{name} is truncated")
        except FileNotFoundError:
            continue
    return ctypes.CDLL(name)
