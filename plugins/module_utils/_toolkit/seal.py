# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes unreadable what a host answers, as Ansible prints it from C(-vvv) on. PRIVATE."""

from __future__ import annotations

import hashlib


def mixed(data: bytes, key: str) -> bytes:
    """Sealed data, and of these the data again. A key serves once."""
    stream = hashlib.shake_256(key.encode()).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
