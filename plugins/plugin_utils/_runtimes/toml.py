# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edits TOML files statement by statement. PRIVATE to the collection. Only this file imports tomlkit and tomllib.

A file is split into statements: headers, keys with their values, blank lines and comments. tomlkit rewrites only the
changed statement and keeps its spacing, quotes and comment. The rest of the text is not changed. After each edit, the
text is parsed again and compared with the expected data. An edit that is not supported raises HostError.
"""

from __future__ import annotations

import copy
import re
import typing as t
from dataclasses import dataclass

import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, MissingLibrary
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import (
    BOM,
    Path,
    Table,
    Value,
    check_size,
    lookup,
)

try:
    import tomlkit
except ImportError:
    tomlkit = None  # type: ignore[assignment]

# Limits of a file. The default configuration of containerd has 10,000 characters and 7 levels.
_MAX_CHARACTERS, _MAX_DEPTH = 256 * 1024, 50
_MAX_STATEMENT = 16 * 1024  # characters of a changed statement, because tomlkit is slow for long statements
# Matches strings with three quotation marks or one, comments, and punctuation. A quotation mark that matches alone
# opens an unterminated string. The alternatives exclude each other, so each character is read once.
TOKEN = re.compile(r"""
    \"{3} [^"\\]* (?: (?: \\. | "{1,2}(?!") ) [^"\\]* )* "{3,5}
  | '{3} [^']* (?: '{1,2}(?!') [^']* )* '{3,5}
  | "(?!"") [^"\\\n]* (?: \\. [^"\\\n]* )* "
  | '(?!'') [^'\n]* '
  | \#[^\n]*
  | ["'\[\]{}=.,\n]""", re.DOTALL | re.VERBOSE)


def load(text: str, name: str) -> Table:
    """The data of a TOML text with or without a byte order mark. name: the path of the file, for messages.

    Raises HostError if the text is invalid, too large or nested too deep.
    """
    body = text.removeprefix(BOM)
    check_size(body, name, _MAX_CHARACTERS)
    # Checked before parsing, because tomllib has no depth limit and needs quadratic time for a key with many parts.
    for line in _logical_lines(body):
        if line.depth > _MAX_DEPTH:
            number = body.count("\n", 0, line.start) + 1
            raise HostError(f"{name}, line {number}: nested more than {_MAX_DEPTH} deep.",
                            "Correct it, then run again.", path=name)
    try:
        data = tomllib.loads(body)
    except tomllib.TOMLDecodeError as error:
        raise HostError(f"{name} is not valid TOML: {error}.", "Correct it, then run again.", path=name) from error
    except ValueError as error:  # a number with thousands of digits
        raise HostError(f"{name} is not valid TOML: a number in it is too long.", "Correct it, then run again.",
                        path=name) from error
    if _is_deep(data):
        raise HostError(f"{name} is nested more than {_MAX_DEPTH} deep.", "Correct it, then run again.", path=name)
    return data


class _Line(t.NamedTuple):
    """A logical line, which can contain line ends in strings and brackets.

    start, end: offsets in the text; equals: the offset of the equals sign after the key, -1 if there is none; depth:
    the depth of brackets or the number of dots in a key, whichever is greater.
    """

    start: int
    end: int
    equals: int
    depth: int


def _logical_lines(body: str) -> t.Iterator[_Line]:
    """The logical lines of a text, up to the first unterminated string. Needs linear time."""
    start = depth = max_depth = parts = 0
    equals = -1
    for match in TOKEN.finditer(body):
        token = match.group()
        if token == "\n" and depth <= 0:
            yield _Line(start, match.end(), equals, max_depth)
            start, equals, depth, max_depth, parts = match.end(), -1, 0, 0, 0
        elif token == ".":
            parts += 1
        elif token in ("'", '"'):
            break
        elif token[0] not in "'\"":
            parts = 0
            depth += 1 if token in "[{" else -1 if token in "]}" else 0
            if token == "=" and equals < 0:
                equals = match.start()
        max_depth = max(max_depth, depth, parts)
    if start < len(body):
        yield _Line(start, len(body), equals, max_depth)


def _is_deep(data: Table) -> bool:
    """Whether the data has too many levels."""
    stack: list[tuple[Value, int]] = [(data, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > _MAX_DEPTH:
            return True
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack += [(item, depth + 1) for item in children if isinstance(item, (dict, list))]
    return False


def dotted(path: Path) -> str:
    """The path as a dotted key of TOML, such as `plugins."io.containerd.grpc.v1.cri".containerd`."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _literal(key) for key in path)


def render(values: t.Mapping[Path, Value]) -> str:
    """A new TOML text with these values, in their order. Values of the same table must follow each other."""
    lines: list[str] = []
    table: Path = ()
    for path, value in values.items():
        if path[:-1] != table:
            table = path[:-1]
            lines += ["", f"[{dotted(table)}]"]
        lines.append(f"{dotted(path[-1:])} = {_literal(value)}")
    return "\n".join(lines) + "\n"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{dotted((key,))} = {_literal(item)}" for key, item in value.items()) + " }"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char >= " " and char != "\x7f" else f"\\u{ord(char):04x}" for char in escaped) + '"'


@dataclass
class _Statement:
    """A statement of the file. kind: `header`, `key` or `other`; table: the path of its table; path: the path of the
    table or value that it defines; array: whether it is the header of an array of tables."""

    lines: list[str]
    kind: str
    table: Path
    path: Path = ()
    array: bool = False


class Document:
    """An editable TOML text, see values.Document. name: the path of the file. Raises HostError like load()."""

    def __init__(self, text: str, name: str) -> None:
        if tomlkit is None:
            raise MissingLibrary("tomlkit", "Install it on the controller: pip install tomlkit.")
        self.name = name
        self.data = load(text, name)
        self._bom = BOM if text.startswith(BOM) else ""
        body = text.removeprefix(BOM)
        self._eol = "\r\n" if body.count("\r\n") * 2 > body.count("\n") else "\n"
        self._statements = self._split(body)

    @property
    def text(self) -> str:
        """The text with all edits."""
        return self._bom + "".join(line for statement in self._statements for line in statement.lines)

    # -- edits

    def set(self, path: Path, value: Value) -> None:
        """Replaces the value at path, or adds it to its table or to a new table at the end of the file."""
        expected = copy.deepcopy(self.data)
        target = expected
        for key in path[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise self._edit_error(path)
        target[path[-1]] = copy.deepcopy(value)
        statement = self._key_statement(path)
        if statement is not None:
            self._rewrite(statement, path, value)
        else:
            self._insert(path, value)
        self._verify(expected, path)

    def remove(self, path: Path) -> None:
        """Removes a value or a table with its content. Comments between tables are kept."""
        if lookup(self.data, path) is None:
            return
        expected = copy.deepcopy(self.data)
        parents = [expected]
        for key in path[:-1]:
            parents.append(parents[-1][key])
        del parents[-1][path[-1]]
        statement = self._key_statement(path)
        if statement is not None and statement.path != path:
            self._rewrite(statement, path, None)
        else:
            self._remove_statements(path)
        # A table that only the removed headers have defined does not exist any more.
        data = load(self.text, self.name)
        for depth in range(len(path) - 1, 0, -1):
            if not parents[depth] and lookup(data, path[:depth]) is None:
                del parents[depth - 1][path[depth - 1]]
        self._verify(expected, path)

    @property
    def headers(self) -> frozenset[Path]:
        """The paths of the tables that have a header."""
        return frozenset(statement.path for statement in self._statements if statement.kind == "header")

    def remove_bare_headers(self, keep: t.Collection[Path]) -> None:
        """Removes headers without keys, if this does not change the data. keep: the headers to keep."""
        used = {statement.table for statement in self._statements if statement.kind == "key"}
        # An empty table is defined only by its header. A table with subtables is also defined by their headers.
        bare = {path for path in self.headers - used - frozenset(keep) if isinstance(lookup(self.data, path), dict)
                and lookup(self.data, path)}
        former = self._statements
        self._statements = self._without_headers(bare)
        if tomllib.loads(self.text.removeprefix(BOM)) != self.data:
            self._statements = former

    def _without_headers(self, paths: t.Collection[Path]) -> list[_Statement]:
        kept: list[_Statement] = []
        for statement in self._statements:
            if statement.kind != "header" or statement.path not in paths:
                kept.append(statement)
            elif kept and not "".join(kept[-1].lines).strip():
                kept.pop()
        return kept

    # -- statements

    def _split(self, body: str) -> list[_Statement]:
        statements: list[_Statement] = []
        table: Path = ()
        for line in _logical_lines(body):
            source = body[line.start:line.end]
            plain = source.strip()
            if not plain or plain.startswith("#"):
                statements.append(_Statement([source], "other", table))
            elif plain.startswith("["):
                table = self._path_of(tomllib.loads(plain))
                statements.append(_Statement([source], "header", table, table, plain.startswith("[[")))
            else:
                path = table + self._path_of(tomllib.loads(f"{body[line.start:line.equals]}= 0"))
                statements.append(_Statement([source], "key", table, path))
        return statements

    @staticmethod
    def _path_of(data: Value) -> Path:
        path: list[str] = []
        while isinstance(data, dict) and data or isinstance(data, list) and data:
            if isinstance(data, list):
                data = data[0]
            else:
                key, data = next(iter(data.items()))
                path.append(key)
        return tuple(path)

    def _key_statement(self, path: Path) -> _Statement | None:
        """The key statement that contains the value at path or its inline table."""
        for statement in self._statements:
            if statement.kind == "key" and path[:len(statement.path)] == statement.path:
                return statement
        return None

    def _rewrite(self, statement: _Statement, path: Path, value: Value) -> None:
        """Changes a key statement. The value None removes the path from an inline table."""
        source = "".join(statement.lines)
        plain = source.rstrip("\r\n")
        if len(plain) > _MAX_STATEMENT:
            raise HostError(f"{self.name}: {dotted(statement.path)} has {len(plain):,} characters; the maximum for "
                            f"an edit is {_MAX_STATEMENT:,}.", "Make it shorter, then run again.", path=self.name)
        try:
            document = tomlkit.parse(plain.replace("\r\n", "\n"))
        except (tomlkit.exceptions.TOMLKitError, RecursionError) as error:
            raise self._edit_error(path) from error
        container: Value = document
        keys = path[len(statement.table):]
        for key in keys[:-1]:
            if key not in container:
                container[key] = tomlkit.inline_table()
            container = container[key]
        if value is None:
            del container[keys[-1]]
        else:
            old = container.get(keys[-1])
            if isinstance(old, list) and isinstance(value, list):
                for item in [item for item in old if item not in value]:
                    old.remove(item)
                for item in value:
                    if item not in old:
                        old.append(item)
                if list(old) != value:  # another order
                    container[keys[-1]] = value
            elif isinstance(value, str) and isinstance(old, str) and getattr(old, "as_string", str)().startswith("'"):
                container[keys[-1]] = tomlkit.string(value, literal=True)
            else:
                container[keys[-1]] = value
        text = document.as_string().replace("\n", self._eol)
        statement.lines = [text + source[len(plain):]]

    def _insert(self, path: Path, value: Value) -> None:
        table = path[:-1]
        line = f"{dotted(path[-1:])} = {_literal(value)}{self._eol}"
        position = self._end_of_table(table)
        if position is not None:
            index, indent = position
            self._close_line(index)
            self._statements.insert(index, _Statement([indent + line], "key", table, path))
            return
        for index in reversed(range(len(self._statements))):
            neighbor = self._statements[index]
            if neighbor.kind == "key" and len(neighbor.table) < len(table) and neighbor.path[:len(table)] == table:
                # Dotted keys define this table, so a header would define it twice.
                first = neighbor.lines[0]
                indent = first[:len(first) - len(first.lstrip())]
                line = f"{indent}{dotted(path[len(neighbor.table):])} = {_literal(value)}{self._eol}"
                self._close_line(index + 1)
                self._statements.insert(index + 1, _Statement([line], "key", neighbor.table, path))
                return
        if self._statements:
            self._close_line(len(self._statements))
            self._statements.append(_Statement([self._eol], "other", self._statements[-1].table))
        self._statements.append(_Statement([f"[{dotted(table)}]{self._eol}"], "header", table, table))
        self._statements.append(_Statement([line], "key", table, path))

    def _end_of_table(self, table: Path) -> tuple[int, str] | None:
        """The statement index and the indentation for a new key of a table. None if the table has no header."""
        position = None
        for index, statement in enumerate(self._statements):
            if statement.table == table and statement.kind != "other" and not statement.array:
                first = statement.lines[0]
                position = (index + 1, first[:len(first) - len(first.lstrip())])
        if position is not None or table:
            return position
        header = next((i for i, statement in enumerate(self._statements) if statement.kind == "header"), None)
        if header is None:
            return len(self._statements), ""
        # Comments directly above the first header belong to it, except at the beginning of the file.
        index = header
        while index and self._statements[index - 1].lines[0].lstrip().startswith("#"):
            index -= 1
        return (index if index else header), ""

    def _close_line(self, index: int) -> None:
        if index and not self._statements[index - 1].lines[-1].endswith("\n"):
            self._statements[index - 1].lines[-1] += self._eol

    def _remove_statements(self, path: Path) -> None:
        kept: list[_Statement] = []
        comments: list[_Statement] = []  # comments after removed statements; they are kept if another table follows
        dropping = False
        for statement in self._statements:
            if statement.kind != "other":
                is_removed = statement.path[:len(path)] == path
                if is_removed:
                    comments = []
                    if not dropping and statement.kind == "header" and kept and not "".join(kept[-1].lines).strip():
                        kept.pop()
                else:
                    kept += comments
                    comments = []
                    kept.append(statement)
                dropping = is_removed and statement.table[:len(path)] == path
            elif dropping:
                comments.append(statement)
            else:
                kept.append(statement)
        self._statements = kept + comments

    def _verify(self, expected: Table, path: Path) -> None:
        try:
            data = tomllib.loads(self.text.removeprefix(BOM))
        except tomllib.TOMLDecodeError:
            data = None
        if data != expected:
            raise self._edit_error(path)
        self.data = data

    def _edit_error(self, path: Path) -> HostError:
        return HostError(f"{self.name}: {dotted(path)} cannot be edited without rewriting other parts of the file.",
                         "Add a header ([table]) for this table, then run again.", path=self.name)
