# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML text to plain data with the line of every key. The only file of the policy that imports PyYAML. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, MissingLibrary

try:
    import yaml  # type: ignore[import-untyped,unused-ignore]
except ImportError:
    HAS_YAML = False
else:
    HAS_YAML = True

Path = t.Tuple[t.Union[str, int], ...]


@dataclass(frozen=True)
class Document:
    """One document: its data and the line (from 1) of each key and list item, by path."""

    data: t.Any
    lines: t.Mapping[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """The line of a path, or of the nearest part of it that has one; None for data that came without text."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def part(self, *path: str | int) -> Document:
        """What stands at a path, as a document of its own that keeps its lines."""
        data = self.data
        for one in path:
            data = data[one]
        lines = {inner[len(path):]: line for inner, line in self.lines.items() if inner[:len(path)] == path}
        return Document(data, lines)


def parse(text: str, origin: str) -> list[Document]:
    """All documents of a YAML (or JSON) text, empty ones left out. origin: the file, for messages.

    Raises InputError for text that is not YAML and for a key that stands twice, each with its line.
    """
    if not HAS_YAML:
        raise MissingLibrary("yaml", "Install it on the controller: pip install PyYAML.")
    try:
        loader = yaml.SafeLoader(text)
        documents = []
        while loader.check_node():
            node = loader.get_node()
            lines: dict[Path, int] = {}
            _walk(node, (), lines, origin, set())
            data = loader.construct_document(node)
            if data is not None:
                documents.append(Document(data, lines))
        return documents
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{origin}, line {mark.line + 1}" if mark else origin
        raise InputError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}.",
                         "Mend the file; an editor with YAML support shows the place.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{origin}: cannot be read as YAML: {error}.", "Mend the file.") from error


def load_data(text: str, origin: str) -> t.Any:
    """The data of a text with exactly one document."""
    documents = parse(text, origin)
    if len(documents) != 1:
        raise InputError(f"{origin}: one document is expected, {len(documents)} are there.", "Keep one.")
    return documents[0].data


def _walk(node: t.Any, path: Path, lines: dict[Path, int], origin: str, above: set[int]) -> None:
    """Collects lines and finds double keys. above: nodes that enclose this one (an alias can make a loop)."""
    if id(node) in above:
        raise InputError(f"{origin}, line {node.start_mark.line + 1}: an alias refers to what encloses it.",
                         "Write the section out.")
    above = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            inner = (*path, key.value)
            line = key.start_mark.line + 1
            if inner in lines:
                raise InputError(f"{origin}, line {line}: {dotted(inner)} stands twice, first on line {lines[inner]}.",
                                 "Keep one of them.")
            lines[inner] = line
            _walk(value, inner, lines, origin, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), lines, origin, above)


def dotted(path: Path) -> str:
    """C(spec.driver.env[0].name) of a path."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
