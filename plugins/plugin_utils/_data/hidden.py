# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds and hides possible secrets in data and texts, in linear time. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t

# A user, with or without a password, in an address.
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET = re.compile(r"passw|secret|token|api[_-]?key|credential", re.IGNORECASE)
# A name and its separator. It starts at the beginning of a word, as other starts would take quadratic time.
_NAME = re.compile(r"(?<![\w-])([\w-]+)[\"']?\s*[=:]\s*")
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s,;]+")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_HIDDEN = "********"


def is_secret(name: object) -> bool:
    """Whether a variable of this name may hold a secret."""
    return bool(_SECRET.search(str(name)))


def without_users(text: str, replacement: str = _HIDDEN) -> str:
    """A text with the users in its addresses replaced: C(https://********@mirror.example)."""
    return _USER.sub(f"{replacement}@", text)


def without_secrets(text: str) -> str:
    """A text in which users in addresses, tokens, and values of names that L(is_secret) finds are replaced."""
    text = _BEARER.sub(rf"\1 {_HIDDEN}", without_users(text))
    parts, end = [], 0
    for name in _NAME.finditer(text):
        value = _VALUE.match(text, name.end()) if name.start() >= end and is_secret(name[1]) else None
        if value:
            parts += [text[end:name.end()], _HIDDEN]
            end = value.end()
    return "".join([*parts, text[end:]])


def holds_secret(data: object) -> bool:
    """Whether data has an address with a user, or a variable C({name, value}) for whose name L(is_secret) is true."""
    if isinstance(data, t.Mapping):
        return (bool(data.get("value")) and is_secret(data.get("name"))) or any(map(holds_secret, data.values()))
    if isinstance(data, (list, tuple)):
        return any(map(holds_secret, data))
    return isinstance(data, str) and bool(_USER.search(data))
