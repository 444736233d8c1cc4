# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes text of hosts and clusters safe to print on a terminal. Pure. PRIVATE."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Value

# Control characters except tab and newline, invisible characters, marks of text direction, and surrogates, which cannot
# be encoded.
_UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
                     "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")


def printable(text: str) -> str:
    """The text with each unsafe character replaced by its escape, such as C(\\x1b)."""
    return _UNSAFE.sub(_escape, text) if _UNSAFE.search(text) else text


def _escape(found: t.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


def printable_data(data: Value) -> Value:
    """The same data with each text printable, including keys. Raises RecursionError for data that contains itself."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {printable(key) if isinstance(key, str) else key: printable_data(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return (tuple if isinstance(data, tuple) else list)(map(printable_data, data))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        # Warnings, deprecations and exceptions of modules since ansible-core 2.19.
        return dataclasses.replace(data, **{one.name: printable_data(getattr(data, one.name))
                                            for one in dataclasses.fields(data) if one.init})
    return data


# Keys of a result that Ansible prints if the task has not failed.
_PRINTED = ("msg", "warnings", "diff")


def printable_result(result: Data) -> Data:
    """A result in which all keys that Ansible prints by default are printable; for a failed task, these are all
    keys."""
    if result.get("failed"):
        return dict(printable_data(result))
    return {**result, **{name: printable_data(result[name]) for name in _PRINTED if name in result}}
