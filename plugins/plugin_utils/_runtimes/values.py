# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and restores values of parsed TOML and JSON documents. PRIVATE to the collection."""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError

# Users write the documents, so each reader checks the types of values that it uses.
Value = t.Any
Table = t.Dict[str, Value]
# The keys on the path from the root of a document to a value.
Path = t.Tuple[str, ...]
BOM = "\ufeff"


class Document(t.Protocol):
    """A text that is edited value by value. An edit that would change other values raises HostError."""

    @property
    def data(self) -> Table:
        """The parsed data of the text."""

    def set(self, path: Path, value: Value) -> None:
        """Replaces a value, or adds it with its tables."""

    def remove(self, path: Path) -> None:
        """Removes a value, or a table with its content."""


def check_size(text: str, name: str, most: int) -> None:
    """Raises HostError if a file has more characters than allowed. name: its path."""
    if len(text) > most:
        raise HostError(f"{name} has {len(text):,} characters; at most {most:,} are read.",
                        "Make it shorter, then run again.", path=name)


def lookup(data: Value, path: Path) -> Value:
    """The value at path, or None."""
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def leaves(data: t.Mapping[str, Value], prefix: Path = ()) -> dict[Path, Value]:
    """Maps the path of each value, except tables, to this value."""
    found: dict[Path, Value] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found.update(leaves(value, (*prefix, key)))
        else:
            found[(*prefix, key)] = value
    return found


def merge(table: Table, other: t.Mapping[str, Value]) -> None:
    """Adds copies of the values of another table, and merges tables that both have."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            merge(table[key], value)
        else:
            table[key] = copy.deepcopy(value)


def restore_value(document: Document, former: t.Mapping[str, Value], path: Path) -> None:
    """Replaces the value at path, if it is set, by its former value. Removes it if there was no former value."""
    value, before = lookup(document.data, path), lookup(former, path)
    if value is None or value == before:
        return
    if before is None:
        document.remove(path)
    else:
        document.set(path, before)


def remove_empty(document: Document, former: t.Mapping[str, Value], path: Path) -> None:
    """Removes an empty table that the former document does not have."""
    if lookup(document.data, path) == {} and lookup(former, path) is None:
        document.remove(path)
