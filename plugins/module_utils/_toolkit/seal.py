# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encrypts the answer of a host, because Ansible prints it from `-vvv` on. PRIVATE to the collection."""

from __future__ import annotations

import hashlib


def mixed(data: bytes, key: str) -> bytes:
    """The encrypted data; for encrypted data, the data. Each key is used once."""
    stream = hashlib.shake_256(key.encode()).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
