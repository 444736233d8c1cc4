# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads YAML and keeps the line of each key. Only this file of the policy imports PyYAML. PRIVATE."""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, MissingLibrary
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Value

try:
    import yaml  # type: ignore[import-untyped,unused-ignore]
except ImportError:
    HAS_YAML = False
else:
    HAS_YAML = True

Path = t.Tuple[t.Union[str, int], ...]

# Limits of a text. A policy with all keys has about 1,000 nodes; PyYAML reads 20,000 nodes in a second.
_CHARACTERS, _NODES, _DEPTH = 1_000_000, 50_000, 100
_LIMIT = 200_000  # nodes of a document after its aliases are expanded
_DIGITS = 1000  # characters of a number: the time to convert it grows with the square of its length
# What PyYAML raises, besides its own errors, for a scalar that does not match its tag.
_CONSTRUCTION = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Document:
    """One document: its data, and the line of each key and list item by path. Lines count from 1."""

    data: Value
    lines: t.Mapping[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """The line of a path, or of its nearest parent with a line; None if the data was not read from a text."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def part(self, *path: str | int) -> Document:
        """The value at a path as a document, with its lines."""
        data = self.data
        for one in path:
            data = data[one]
        lines = {inner[len(path):]: line for inner, line in self.lines.items() if inner[:len(path)] == path}
        return Document(data, lines)


def parse(text: str, origin: str, own: bool = False) -> list[Document]:
    """All documents of a YAML or JSON text, without the empty ones. origin: the file, for messages.

    own: the text was rendered from a template of this collection. It is read with libyaml, which is much faster. A text
    of a user is read with PyYAML's own parser, which is stricter about tabs and has better error messages.

    Raises InputError with the line if the text is not YAML, a key is repeated, a value does not match its tag, or the
    text is too large or nested too deep.
    """
    _need_yaml()
    if not own and len(text) > _CHARACTERS:
        raise InputError(f"{origin}: the text has {len(text):,} characters; at most {_CHARACTERS:,} are allowed.",
                         "Split the file.")
    try:
        # JSON may be indented with tabs, which PyYAML rejects. JSON has no tabs elsewhere.
        content = text.replace("\t", " ") if text.lstrip()[:1] == "{" else text
        loader = _fast_loader()(content) if own else _Loader(content, origin)
        documents = []
        while loader.check_node():
            node = t.cast("yaml.Node", loader.get_node())
            walk = _Walk(origin)
            walk.walk(node, ())
            data = loader.construct_document(node)
            if data is not None:
                documents.append(Document(data, walk.lines))
        return documents
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{origin}, line {mark.line + 1}" if mark else origin
        raise InputError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}.",
                         _hint(text, mark)) from error
    except (*_CONSTRUCTION, RecursionError) as error:
        raise InputError(f"{origin}: cannot be read as YAML: {error}.", "Correct the file.") from error


def _hint(text: str, mark: yaml.Mark | None) -> str:
    """The hint for a text that is not YAML. mark: where the parser stopped."""
    line = text.split("\n")[mark.line] if mark and mark.line < text.count("\n") + 1 else ""
    if "{{" in line or "{%" in line:
        return ("Templates in files are not rendered. Render the file in the variable: "
                "gpu_policy: \"{{ lookup('template', inventory_dir ~ '/FILE') | from_yaml }}\".")
    if "!vault" in text:
        return "Files are not decrypted. Write encrypted values into variables: gpu_policy can be a mapping."
    if "\t" in line:
        return "Use spaces; YAML does not allow tabs here."
    return "Correct the file; an editor with YAML support shows the place."


def load_documents(path: str, variable: str, value: str) -> list[Document]:
    """All documents of a user's file. variable, value: the variable that names the file, and its value. Raises
    InputError."""
    content = read_text(path)
    if content is None:
        raise InputError(f"{path} does not exist or cannot be read.", "Give the path of a file on the controller.",
                         path=variable, value=value)
    return parse(content, path)


def load_document(path: str, variable: str) -> Document:
    """The only document of a user's file. variable: the variable that names the file. Raises InputError."""
    return _only(load_documents(path, variable, path), path, path=variable, value=path)


def load_data(text: str, origin: str) -> Value:
    """The data of a text with exactly one document. Raises InputError."""
    return _only(parse(text, origin), origin).data


def _only(documents: list[Document], origin: str, **details: str) -> Document:
    if len(documents) != 1:
        raise InputError(f"{origin}: one document is expected, not {len(documents)}.", "Keep one.", **details)
    return documents[0]


def load_own(text: str) -> Value:
    """The data of a text of this collection, without lines and checks. Read with libyaml if PyYAML has it."""
    _need_yaml()
    return yaml.load(text, Loader=_fast_loader())


def read_own(*path: str) -> Data:
    """The mapping in a YAML file of this collection. path: joined as by os.path.join."""
    with open(os.path.join(*path), encoding="utf-8") as handle:
        data: Data = load_own(handle.read())
    return data


def _need_yaml() -> None:
    if not HAS_YAML:
        raise MissingLibrary("yaml", "Install it on the controller: pip install PyYAML.")


def _fast_loader() -> type[yaml.SafeLoader]:
    """The loader that uses libyaml, if PyYAML was built with it."""
    loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return loader


if HAS_YAML:
    class _Loader(yaml.SafeLoader):  # type: ignore[misc,unused-ignore]
        """PyYAML's own parser with limits. Raises InputError."""

        def __init__(self, text: str, origin: str) -> None:
            super().__init__(text)
            self._origin = origin
            self._nodes = self._depth = 0

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            self._nodes += 1
            self._depth += 1
            if self._nodes > _NODES or self._depth > _DEPTH:
                what = f"more than {_NODES:,} keys and values" if self._nodes > _NODES else f"more than {_DEPTH} levels"
                line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call,unused-ignore]
                raise InputError(f"{self._origin}, line {line}: the text has {what}.",
                                 "Split the file." if self._nodes > _NODES else "Use fewer levels.")
            node = super().compose_node(parent, index)
            self._depth -= 1
            return node

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Value:
            kind = node.tag.rpartition(":")[2]
            try:
                if kind in ("int", "float") and len(node.value) > _DIGITS:
                    raise ValueError(kind)
                return super().construct_object(node, deep)
            except _CONSTRUCTION as error:
                value = str(node.value)
                raise InputError(f"{self._origin}, line {node.start_mark.line + 1}: "
                                 f"{value if len(value) <= 60 else f'{value[:57]}...'!r} is not a value of YAML's type "
                                 f"{kind}.", "Correct it, or write it in quotes without a tag.") from error


class _Walk:
    """Collects the lines of a document. Raises InputError for repeated keys, loops, and too many nodes in aliases."""

    def __init__(self, origin: str) -> None:
        self.lines: dict[Path, int] = {}
        self._origin = origin
        self._count = 0

    def walk(self, node: yaml.Node, path: Path, above: frozenset[int] = frozenset()) -> None:
        """above: nodes that enclose this one."""
        self._count += 1
        where = f"{self._origin}, line {node.start_mark.line + 1}"
        if id(node) in above:
            raise InputError(f"{where}: an alias refers to a section that contains it.", "Write the content of the "
                             "section there instead of the alias.")
        if self._count > _LIMIT:
            raise InputError(f"{where}: the document is too large with its aliases written out.",
                             "Use fewer aliases, or split the file.")
        above = above | {id(node)}
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
                    self._merged(value, above)
                else:
                    self._key(key, value, path, above)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.lines[(*path, index)] = value.start_mark.line + 1
                self.walk(value, (*path, index), above)

    def _key(self, key: yaml.Node, value: yaml.Node, path: Path, above: frozenset[int]) -> None:
        inner, line = (*path, key.value), key.start_mark.line + 1
        if inner in self.lines:
            raise InputError(f"{self._origin}, line {line}: {dotted(inner)} is repeated, first on line "
                             f"{self.lines[inner]}.", "Keep one of them.")
        self.lines[inner] = line
        self.walk(value, inner, above)

    def _merged(self, value: yaml.Node, above: frozenset[int]) -> None:
        """Counts the nodes of a merged mapping, and finds loops in it. Its lines are not kept."""
        inner = _Walk(self._origin)
        inner._count = self._count
        inner.walk(value, (), above)
        self._count = inner._count


def dotted(path: Path) -> str:
    """A path as text, such as C(spec.driver.env[0].name) or C(labels['a.b'])."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "." in str(part):
            text += f"['{part}']"
        else:
            text += f".{part}" if text else str(part)
    return text
