# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An answer that nobody reads on its way: Ansible prints what a host answers from C(-vvv) on. PRIVATE.

The files of runtimes hold credentials of registries, and the controller needs these files whole. The key is new for
each question and goes to the host in an option that no log shows, so that each stream of bytes serves once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import typing as t


def seal(answer: t.Any, key: str) -> str:
    """The JSON of an answer as text that only the holder of the key can read."""
    return base64.b64encode(_mixed(json.dumps(answer).encode(), key)).decode()


def unseal(text: str, key: str) -> t.Any:
    """The answer. Raises ValueError or RecursionError for what was not sealed so."""
    return json.loads(_mixed(base64.b64decode(text, validate=True), key))


def _mixed(data: bytes, key: str) -> bytes:
    stream = hashlib.shake_256(key.encode()).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
