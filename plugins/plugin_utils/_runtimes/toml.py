# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edits TOML files statement by statement. PRIVATE to the collection; the only file that imports tomlkit and tomllib.

A file is split into statements: headers, keys with their values, blank lines and comments. tomlkit rewrites only the
statement that changes, and keeps its spacing, quotes and comment; all other bytes stay as they are. After each edit the
text is parsed again and compared with the expected data. An edit that this code cannot do is refused with HostError.
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

# Limits of a file. containerd's default, with all its plugins, has 10,000 characters and 7 levels.
_CHARACTERS, _DEPTH = 256 * 1024, 50
_STATEMENT = 16 * 1024  # characters of a statement that is changed: tomlkit is slow for large ones
# Strings with three and with one quotation mark, comments, and punctuation. A quotation mark that matches alone opens a
# string that does not end. No alternative begins where another one has failed, so each character is read once.
TOKEN = re.compile(r"""
    \"{3} [^"\\]* (?: (?: \\. | "{1,2}(?!") ) [^"\\]* )* "{3,5}
  | '{3} [^']* (?: '{1,2}(?!') [^']* )* '{3,5}
  | "(?!"") [^"\\\n]* (?: \\. [^"\\\n]* )* "
  | '(?!'') [^'\n]* '
  | \#[^\n]*
  | ["'\[\]{}=.,\n]""", re.DOTALL | re.VERBOSE)


def load(text: str, name: str) -> Table:
    """The data of a TOML text; a byte order mark is skipped. name: the path of the file, for messages.

    Raises HostError for a text that is not valid, is too large or is nested too deep.
    """
    body = text.removeprefix(BOM)
    check_size(body, name, _CHARACTERS)
    # Before parsing, because tomllib has no limit of depth, and takes quadratic time for a key with many parts.
    for line in _logical_lines(body):
        if line.depth > _DEPTH:
            raise HostError(f"{name}, line {body.count(chr(10), 0, line.start) + 1}: nested more than {_DEPTH} deep.",
                            "Correct it, then run again.", path=name)
    try:
        data = tomllib.loads(body)
    except tomllib.TOMLDecodeError as error:
        raise HostError(f"{name} is not valid TOML: {error}.", "Correct it, then run again.", path=name) from error
    except ValueError as error:  # a number of thousands of digits
        raise HostError(f"{name} is not valid TOML: a number in it is too long.", "Correct it, then run again.",
                        path=name) from error
    if _is_deep(data):
        raise HostError(f"{name} is nested more than {_DEPTH} deep.", "Correct it, then run again.", path=name)
    return data


class _Line(t.NamedTuple):
    """A logical line: it includes line ends in strings and brackets.

    start, end: offsets in the text; equals: offset of the equals sign after the key, -1 if there is none; depth: that
    of its brackets, or the number of dots in a key, whichever is more.
    """

    start: int
    end: int
    equals: int
    depth: int


def _logical_lines(body: str) -> t.Iterator[_Line]:
    """The logical lines of a text, up to the first string that does not end. Takes linear time."""
    start = depth = deepest = parts = 0
    equals = -1
    for match in TOKEN.finditer(body):
        token = match.group()
        if token == "\n" and depth <= 0:
            yield _Line(start, match.end(), equals, deepest)
            start, equals, depth, deepest, parts = match.end(), -1, 0, 0, 0
        elif token == ".":
            parts += 1
        elif token in ("'", '"'):
            break
        elif token[0] not in "'\"":
            parts = 0
            depth += 1 if token in "[{" else -1 if token in "]}" else 0
            if token == "=" and equals < 0:
                equals = match.start()
        deepest = max(deepest, depth, parts)
    if start < len(body):
        yield _Line(start, len(body), equals, deepest)


def _is_deep(data: Table) -> bool:
    """Whether headers, keys and brackets together nest tables too deep."""
    rest: list[tuple[Value, int]] = [(data, 0)]
    while rest:
        value, depth = rest.pop()
        if depth > _DEPTH:
            return True
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        rest += [(one, depth + 1) for one in inner if isinstance(one, (dict, list))]
    return False


def dotted(path: Path) -> str:
    """The path in the notation of TOML: `plugins."io.containerd.grpc.v1.cri".containerd`."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _literal(key) for key in path)


def render(values: t.Mapping[Path, Value]) -> str:
    """A new TOML text with these values, in their order; each change of table writes a header."""
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
    """Lines of the file. kind: `header`, `key` or `other`; table: the one that they are in; path: what they define;
    array: whether it is the header of an array of tables."""

    lines: list[str]
    kind: str
    table: Path
    path: Path = ()
    array: bool = False


class Document:
    """A TOML text that is edited, see values.Document. name: the path of the file. Raises HostError as load does."""

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
                raise self._refusal(path)
        target[path[-1]] = copy.deepcopy(value)
        holder = self._holder(path)
        if holder is not None:
            self._rewrite(holder, path, value)
        else:
            self._insert(path, value)
        self._verify(expected, path)

    def remove(self, path: Path) -> None:
        """Removes a value or a table with everything in it. Comments between tables stay."""
        if lookup(self.data, path) is None:
            return
        expected = copy.deepcopy(self.data)
        parents = [expected]
        for key in path[:-1]:
            parents.append(parents[-1][key])
        del parents[-1][path[-1]]
        holder = self._holder(path)
        if holder is not None and holder.path != path:
            self._rewrite(holder, path, None)
        else:
            self._drop(path)
        # A table that only the removed headers have defined is gone, too.
        found = load(self.text, self.name)
        for depth in range(len(path) - 1, 0, -1):
            if not parents[depth] and lookup(found, path[:depth]) is None:
                del parents[depth - 1][path[depth - 1]]
        self._verify(expected, path)

    @property
    def headers(self) -> frozenset[Path]:
        """The paths of tables with a header."""
        return frozenset(statement.path for statement in self._statements if statement.kind == "header")

    def drop_bare_headers(self, keep: t.Collection[Path]) -> None:
        """Removes headers that have no keys and do not change the data, except those to keep."""
        used = {statement.table for statement in self._statements if statement.kind == "key"}
        # Only its header defines an empty table. A table with subtables is defined by their headers as well.
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

    def _holder(self, path: Path) -> _Statement | None:
        """The key statement with the value at path, or with the inline table that it belongs to."""
        for statement in self._statements:
            if statement.kind == "key" and path[:len(statement.path)] == statement.path:
                return statement
        return None

    def _rewrite(self, statement: _Statement, path: Path, value: Value) -> None:
        """Changes a key statement; value None removes the path from an inline table."""
        source = "".join(statement.lines)
        plain = source.rstrip("\r\n")
        if len(plain) > _STATEMENT:
            raise HostError(f"{self.name}: {dotted(statement.path)} has {len(plain):,} characters; values of at most "
                            f"{_STATEMENT:,} are changed.", "Make it shorter, then run again.", path=self.name)
        try:
            document = tomlkit.parse(plain.replace("\r\n", "\n"))
        except (tomlkit.exceptions.TOMLKitError, RecursionError) as error:
            raise self._refusal(path) from error
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
        place = self._end_of_table(table)
        if place is not None:
            index, indent = place
            self._close_line(index)
            self._statements.insert(index, _Statement([indent + line], "key", table, path))
            return
        for index in reversed(range(len(self._statements))):
            near = self._statements[index]
            if near.kind == "key" and len(near.table) < len(table) and near.path[:len(table)] == table:
                # Dotted keys define this table, so a header would define it a second time.
                first = near.lines[0]
                indent = first[:len(first) - len(first.lstrip())]
                line = f"{indent}{dotted(path[len(near.table):])} = {_literal(value)}{self._eol}"
                self._close_line(index + 1)
                self._statements.insert(index + 1, _Statement([line], "key", near.table, path))
                return
        if self._statements:
            self._close_line(len(self._statements))
            self._statements.append(_Statement([self._eol], "other", self._statements[-1].table))
        self._statements.append(_Statement([f"[{dotted(table)}]{self._eol}"], "header", table, table))
        self._statements.append(_Statement([line], "key", table, path))

    def _end_of_table(self, table: Path) -> tuple[int, str] | None:
        """The index for a new key of a table, and its indentation; None if the table has no header."""
        place = None
        for index, statement in enumerate(self._statements):
            if statement.table == table and statement.kind != "other" and not statement.array:
                first = statement.lines[0]
                place = (index + 1, first[:len(first) - len(first.lstrip())])
        if place is not None or table:
            return place
        header = next((i for i, statement in enumerate(self._statements) if statement.kind == "header"), None)
        if header is None:
            return len(self._statements), ""
        # Comments directly above the first header belong to it, unless they begin the file.
        index = header
        while index and self._statements[index - 1].lines[0].lstrip().startswith("#"):
            index -= 1
        return (index if index else header), ""

    def _close_line(self, index: int) -> None:
        if index and not self._statements[index - 1].lines[-1].endswith("\n"):
            self._statements[index - 1].lines[-1] += self._eol

    def _drop(self, path: Path) -> None:
        kept: list[_Statement] = []
        held: list[_Statement] = []  # comments after removed statements; they stay if another table follows
        dropping = False
        for statement in self._statements:
            if statement.kind != "other":
                own = statement.path[:len(path)] == path
                if own:
                    held = []
                    if not dropping and statement.kind == "header" and kept and not "".join(kept[-1].lines).strip():
                        kept.pop()
                else:
                    kept += held
                    held = []
                    kept.append(statement)
                dropping = own and statement.table[:len(path)] == path
            elif dropping:
                held.append(statement)
            else:
                kept.append(statement)
        self._statements = kept + held

    def _verify(self, expected: Table, path: Path) -> None:
        try:
            found = tomllib.loads(self.text.removeprefix(BOM))
        except tomllib.TOMLDecodeError:
            found = None
        if found != expected:
            raise self._refusal(path)
        self.data = found

    def _refusal(self, path: Path) -> HostError:
        return HostError(f"{self.name}: {dotted(path)} cannot be edited without rewriting other parts of the file.",
                         "Give that table a header of its own ([table]), then run again.", path=self.name)
