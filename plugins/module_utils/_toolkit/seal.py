# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encrypts the response of a host, because Ansible prints it with `-vvv` and above. PRIVATE to the collection."""

from __future__ import annotations

import hashlib


def encrypt(data: bytes, key: str) -> bytes:
    """Encrypts data; decrypts encrypted data. Each key must be used only once."""
    stream = hashlib.shake_256(key.encode()).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
