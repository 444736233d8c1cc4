# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of parsed TOML and JSON documents: how they are read and put back. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError

# The type of a value depends on who wrote the document, so each reader checks what it relies on.
Value = t.Any
Table = t.Dict[str, Value]
# The keys from the root of a document to a value.
Path = t.Tuple[str, ...]
BOM = "\ufeff"


class Document(t.Protocol):
    """A text that is edited value by value. Both edits raise HostError if they would change anything else."""

    @property
    def data(self) -> Table:
        """The values of the text."""

    def set(self, path: Path, value: Value) -> None:
        """Replaces or adds a value, with the tables that it needs."""

    def remove(self, path: Path) -> None:
        """Removes a value or a table with everything in it."""


def check_size(text: str, name: str, most: int) -> None:
    """Raises HostError if a file has too many characters. name: its path."""
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
    """Maps the path of each value that is not a table to this value."""
    found: dict[Path, Value] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found.update(leaves(value, (*prefix, key)))
        else:
            found[(*prefix, key)] = value
    return found


def put_back(document: Document, former: t.Mapping[str, Value], path: Path) -> None:
    """Restores the former value of a value that is set, or removes it if there was none."""
    value, before = lookup(document.data, path), lookup(former, path)
    if value is None or value == before:
        return
    if before is None:
        document.remove(path)
    else:
        document.set(path, before)


def remove_empty(document: Document, former: t.Mapping[str, Value], path: Path) -> None:
    """Removes a table that is empty, unless the former document has it."""
    if lookup(document.data, path) == {} and lookup(former, path) is None:
        document.remove(path)
