# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a document may hold: a small schema language, its checker, and the nearest known key. Pure. PRIVATE.

A schema is plain data. A C(dict) is a mapping with these keys and no others. A tuple lists the strings that are
allowed. A string names a type: C(str), C(bool), C(int) (with C(int>=1) a lower limit), C(int-or-str), C(map) (of free
content), C(strs), C(objects) (list of mappings), C(env) (list of name and value), C(any). C(null) is accepted
everywhere and means "not set", as the API server and Helm have it.
"""

from __future__ import annotations

import difflib
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.yamltext import Document, Path, dotted

Schema = t.Union[str, t.Tuple[str, ...], t.Mapping[str, t.Any]]

_TYPES: dict[str, tuple[t.Any, str]] = {
    "str": (str, "a string"),
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "int-or-str": ((int, str), "a whole number or a string such as 25%"),
    "map": (dict, "a mapping"),
    "strs": (list, "a list of strings"),
    "objects": (list, "a list of mappings"),
    "env": (list, "a list of {name, value}"),
}


def check(document: Document, schema: Schema, path: Path = ()) -> list[str]:
    """All faults of the part of a document at path, each one sentence with path, line, value and what is allowed."""
    data = document.data
    for part in path:
        data = data[part]
    return list(_faults(document, data, schema, path))


def _faults(document: Document, value: t.Any, schema: Schema, path: Path) -> t.Iterator[str]:
    if value is None or schema == "any":
        return
    if isinstance(schema, t.Mapping):
        yield from _mapping_faults(document, value, schema, path)
    elif isinstance(schema, tuple):
        if value not in schema or not isinstance(value, str):
            allowed = ", ".join(repr(item) for item in schema)
            yield _say(document, path, f"{_shown(value)} is not allowed; allowed: {allowed}{_quote_hint(value)}")
    else:
        yield from _type_faults(document, value, schema, path)


def _mapping_faults(document: Document, value: t.Any, schema: t.Mapping[str, t.Any], path: Path) -> t.Iterator[str]:
    if not isinstance(value, dict):
        yield _say(document, path, f"a mapping is expected, {_shown(value)} stands here")
        return
    for key, inner in value.items():
        if key in schema:
            yield from _faults(document, inner, schema[key], (*path, key))
        else:
            yield _say(document, (*path, str(key)), f"unknown key{nearest(str(key), schema)}")


def _type_faults(document: Document, value: t.Any, schema: str, path: Path) -> t.Iterator[str]:
    name, _sep, limit = schema.partition(">=")
    kind, text = _TYPES[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and name != "bool"):
        hint = _quote_hint(value) if name == "str" else ""
        yield _say(document, path, f"{text} is expected, {_shown(value)} stands here{hint}")
    elif limit and value < int(limit):
        yield _say(document, path, f"{value} is too small; the smallest value is {limit}")
    elif name == "strs":
        for index, item in enumerate(value):
            if not isinstance(item, str):
                yield _say(document, (*path, index), f"a string is expected, {_shown(item)} stands here")
    elif name in ("objects", "env"):
        for index, item in enumerate(value):
            if not isinstance(item, dict) or (name == "env" and not {"name"} <= set(item) <= {"name", "value"}):
                wanted = "{name, value}" if name == "env" else "a mapping"
                yield _say(document, (*path, index), f"{wanted} is expected, {_shown(item)} stands here")


def nearest(key: str, known: t.Iterable[str]) -> str:
    """C(; did you mean 'x'?) or the known keys where none is near."""
    names = [str(name) for name in known]
    folded = {name.lower(): name for name in names}
    found = difflib.get_close_matches(key.lower(), list(folded), n=1, cutoff=0.6)
    if found:
        return f"; did you mean '{folded[found[0]]}'?"
    shown = ", ".join(sorted(names)[:12]) + (", ..." if len(names) > 12 else "")
    return f"; known here: {shown}" if names else ""


def _say(document: Document, path: Path, text: str) -> str:
    line = document.line(path)
    return f"{dotted(path)}{f' (line {line})' if line else ''}: {text}"


def _shown(value: t.Any) -> str:
    """A value for a message, short."""
    text = {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _quote_hint(value: t.Any) -> str:
    return "; write it in quotes" if isinstance(value, (bool, int, float)) else ""


def paths(schema: Schema, path: str = "") -> t.Iterator[str]:
    """Every path that a schema knows, for tests and documentation."""
    if isinstance(schema, t.Mapping):
        for key, inner in schema.items():
            full = f"{path}.{key}" if path else key
            yield full
            yield from paths(inner, full)
