# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edits JSON files member by member. PRIVATE to the collection.

The parser in this file records where each member of each object begins and ends. An edit replaces only this part of the
text, so that indentation, order, the notation of numbers, line ends and a byte order mark are kept. After each edit,
the text is parsed again and compared with the expected data.
"""

from __future__ import annotations

import copy
import json
import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import BOM, Path, Table, Value, check_size

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = {"true": True, "false": False, "null": None}
_MAX_DEPTH = 100  # Python's stack allows about 300 levels of this parser
_MAX_CHARACTERS = 1024 * 1024
_INDENT = "    "


@dataclass
class _Node:
    """A value in the text. start, end: its offsets; members: the members of an object, by key; key: for a member, the
    offset of its key."""

    start: int
    end: int
    data: Value
    members: dict[str, _Node] = field(default_factory=dict)
    key: int = 0


class _Invalid(Exception):
    """Raised if a text is not valid JSON. at: the offset of the error."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


class Document:
    """An editable JSON object, see values.Document. name: the path of the file. A blank text is an empty object.

    Raises HostError if the text is invalid or too large, or if a key occurs twice in an object.
    """

    def __init__(self, text: str, name: str) -> None:
        check_size(text, name, _MAX_CHARACTERS)
        self.name = name
        self.text = text
        self._bom = BOM if text.startswith(BOM) else ""
        body = text.removeprefix(BOM)
        self._eol = "\r\n" if body.count("\r\n") * 2 > body.count("\n") else "\n"
        self._body = body if body.strip(" \t\r\n") else "{}" + (body or self._eol)
        self._root = self._read(self._body)

    @property
    def data(self) -> Table:
        """See values.Document."""
        return t.cast(Table, self._root.data)

    def set(self, path: Path, value: Value) -> None:
        """Replaces the value at path, or adds it as the last member of its object."""
        expected = copy.deepcopy(self.data)
        target, parent, depth = expected, self._root, 0
        for depth, key in enumerate(path[:-1]):
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise HostError(f"{self.name}: {'.'.join(path[:depth + 1])} is not an object.", "Correct it, then run "
                                "again.", path=self.name)
        target[path[-1]] = copy.deepcopy(value)
        rest = list(path)
        while len(rest) > 1 and rest[0] in parent.members:
            parent = parent.members[rest.pop(0)]
        for key in reversed(rest[1:]):
            value = {key: value}
        if rest[0] in parent.members:
            current = parent.members[rest[0]]
            rendered = self._render(value, self._indent_at(current.start), self._is_flat(parent))
            self._splice(current.start, current.end, rendered, expected)
        else:
            self._add(parent, rest[0], value, expected)

    def remove(self, path: Path) -> None:
        """Removes the member at path. If set() has added it, the former text is restored."""
        expected = copy.deepcopy(self.data)
        target, parent = expected, self._root
        for key in path[:-1]:
            target, parent = target[key], parent.members[key]
        del target[path[-1]]
        members = list(parent.members.values())
        index = list(parent.members).index(path[-1])
        if len(members) == 1:
            start, end = parent.start + 1, parent.end - 1
        elif index:
            start, end = members[index - 1].end, members[index].end
        else:
            start, end = members[0].key, members[1].key
        self._splice(start, end, "", expected)

    # -- layout

    def _add(self, parent: _Node, key: str, value: Value, expected: Table) -> None:
        if not parent.members:
            flat = parent is not self._root and "\n" not in self._body[:parent.start]
            indent = self._indent_at(parent.start)
            inner = indent + self._unit()
            first, last = ("", "") if flat else (self._eol + inner, self._eol + indent)
            text = f"{first}{json.dumps(key)}: {self._render(value, inner, flat)}{last}"
            self._splice(parent.start + 1, parent.end - 1, text, expected)
            return
        last_member = list(parent.members.values())[-1]
        before = self._body[:last_member.key]
        separator = before[len(before.rstrip(" \t\r\n")):]
        colon = self._body[self._string(self._body, last_member.key):last_member.start]
        if not separator and len(parent.members) == 1 and colon.endswith(" "):
            separator = " "
        rendered = self._render(value, self._indent_at(last_member.key), "\n" not in separator)
        self._splice(last_member.end, last_member.end, f",{separator}{json.dumps(key)}{colon}{rendered}", expected)

    def _is_flat(self, parent: _Node) -> bool:
        return "\n" not in self._body[parent.start:next(iter(parent.members.values())).key]

    def _indent_at(self, offset: int) -> str:
        line = self._body[self._body.rfind("\n", 0, offset) + 1:]
        return line[:len(line) - len(line.lstrip(" \t"))]

    def _unit(self) -> str:
        """The indentation of one level, from the first member that begins a line."""
        match = re.match(r"\s*\{[ \t\r]*\n([ \t]+)\"", self._body)
        return match.group(1) if match else _INDENT

    def _render(self, value: Value, indent: str, flat: bool) -> str:
        if flat:
            return json.dumps(value)
        text = json.dumps(value, indent=self._unit())
        return text.replace("\n", self._eol + indent)

    def _splice(self, start: int, end: int, text: str, expected: Table) -> None:
        body = self._body[:start] + text + self._body[end:]
        root = self._read(body)
        if root.data != expected:
            raise HostError(f"{self.name} could not be edited.", "This is a bug. Report it with the file.",
                            path=self.name)
        self._body, self._root, self.text = body, root, self._bom + body

    # -- the parser

    def _read(self, body: str) -> _Node:
        try:
            root = self._value(body, self._skip(body, 0), 0)
            rest = self._skip(body, root.end)
            if rest < len(body):
                raise _Invalid(_unexpected(body, rest, "the end"), rest)
            if not isinstance(root.data, dict):
                raise _Invalid("an object in braces is expected", root.start)
        except _Invalid as error:
            line = body.count("\n", 0, error.at) + 1
            column = error.at - body.rfind("\n", 0, error.at)
            raise HostError(f"{self.name}, line {line}, column {column}: {error}.", "Correct it, then run again.",
                            path=self.name, line=line, column=column) from error
        return root

    def _value(self, body: str, at: int, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise _Invalid(f"nested more than {_MAX_DEPTH} deep", at)
        first = body[at:at + 1]
        if first in ("{", "["):
            return self._container(body, at, depth)
        if first == '"':
            end = self._string(body, at)
            return _Node(at, end, json.loads(body[at:end]))
        match = _NUMBER.match(body, at)
        if match:
            word = match.group()
            # Python refuses to convert integers with thousands of digits.
            is_integer = len(word) < 100 and word.lstrip("-").isdigit()
            return _Node(at, match.end(), int(word) if is_integer else float(word))
        for word, data in _LITERALS.items():
            if body.startswith(word, at):
                return _Node(at, at + len(word), data)
        raise _Invalid(_unexpected(body, at, "a value"), at)

    def _container(self, body: str, start: int, depth: int) -> _Node:
        """An object or an array."""
        data: dict[str, Value] | list[Value] = {} if body[start] == "{" else []
        node, closing = _Node(start, start, data), "}" if isinstance(data, dict) else "]"
        at = self._skip(body, start + 1)
        while body[at:at + 1] != closing or data:
            key_at = at
            if isinstance(data, dict):
                end = self._string(body, at)
                key = json.loads(body[at:end])
                if key in data:
                    raise _Invalid(f"the key {json.dumps(key)} occurs twice in one object", at)
                colon = self._skip(body, end)
                if body[colon:colon + 1] != ":":
                    raise _Invalid(_unexpected(body, colon, "a colon"), colon)
                value = self._value(body, self._skip(body, colon + 1), depth + 1)
                value.key = key_at
                node.members[key], data[key] = value, value.data
            else:
                value = self._value(body, at, depth + 1)
                data.append(value.data)
            comma = self._skip(body, value.end)
            at = self._skip(body, comma + 1)
            if body[comma:comma + 1] == closing:
                at = comma
                break
            if body[comma:comma + 1] != ",":
                raise _Invalid(_unexpected(body, comma, f"a comma or '{closing}'"), comma)
            if body[at:at + 1] == closing:
                raise _Invalid(f"JSON does not allow a comma before '{closing}'", comma)
        node.end = at + 1
        return node

    @staticmethod
    def _string(body: str, at: int) -> int:
        match = _STRING.match(body, at)
        if match is None:
            is_string = body[at:at + 1] == '"'
            raise _Invalid("the string is not closed or not valid" if is_string else _unexpected(body, at, "a string"),
                           at)
        return match.end()

    @staticmethod
    def _skip(body: str, at: int) -> int:
        match = _SPACE.match(body, at)
        return match.end() if match else at


def _unexpected(body: str, at: int, expected: str) -> str:
    rest = body[at:at + 2]
    if rest[:1] == "#" or rest in ("//", "/*"):
        return "JSON does not allow comments"
    found = json.dumps(rest[0], ensure_ascii=False) if rest else "the end of the file"
    return f"{expected} is expected, not {found}"
