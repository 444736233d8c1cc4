# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small schema language for documents of users, its checker, and the nearest known key. Pure. PRIVATE.

A schema is plain data. A C(dict) allows a mapping with these keys and no others. A C(list) of one schema allows a list
whose items match it. A tuple lists the allowed strings. L(Needed) marks a required key. A string names a type of
L(TYPES); C(int) can have limits (C(int>=1), C(int>=1<=65535)), and C(any) allows everything. C(null) is allowed
everywhere else and means "not set", as for the API server and Helm.
"""

from __future__ import annotations

import datetime
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, brief, nearest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document, Path, dotted

UNKNOWN_KEY = "unknown key"
# A fault about an unknown key: its place, which is its path and line, and the rest.
_UNKNOWN = re.compile(rf"(?P<place>(?P<path>.+?)(?: \(line \d+\))?): (?P<text>{UNKNOWN_KEY}.*)", re.DOTALL)


@dataclass(frozen=True)
class Needed:
    """The schema of a required key, which must not be null."""

    schema: Schema


@dataclass(frozen=True)
class Type:
    """A type of a value. classes: the Python classes; text: its name in messages; pattern: a part of a string must
    match it; items: the type of the items of a list, or of the values of a mapping."""

    classes: t.Tuple[type, ...]
    text: str
    pattern: str = ""
    items: str = ""


@dataclass(frozen=True)
class Form:
    """A format of a policy. kind: its name in messages and results; api_version: empty if the keys are at the top of
    the document, otherwise they are below spec; schema: its keys; title: for editors."""

    kind: str
    api_version: str
    schema: Keys
    title: str


Schema = t.Union[str, Needed, t.Tuple[str, ...], t.List["Schema"], t.Mapping[str, "Schema"]]
Keys = t.Mapping[str, Schema]

TYPES: dict[str, Type] = {
    "str": Type((str,), "a string"),
    "bool": Type((bool,), "true or false"),
    "int": Type((int,), "a whole number"),
    "int-or-str": Type((int, str), "a whole number or a string"),
    "map": Type((dict,), "a mapping"),
    "strmap": Type((dict,), "a mapping of strings", items="str"),
    "boolmap": Type((dict,), "a mapping with the values true or false", items="bool"),
    "quantities": Type((dict,), "a mapping of quantities such as 500m or 1Gi", items="quantity"),
    "strs": Type((list,), "a list of strings", items="str"),
    "objects": Type((list,), "a list of mappings", items="map"),
    # Source of the patterns: the resource definitions of GPU Operator 26.7 and the quantities of Kubernetes.
    "image": Type((str,), "the name of an image", r"[a-zA-Z0-9-]"),
    "cuda": Type((str,), "a version of CUDA such as '13.0'", r"^([0-9]+(\.[0-9]+)*)?$"),
    "duration": Type((str,), "a duration such as 15s or 1m30s",
                     r"^(0|([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?)$"),
    "quantity": Type((int, str), "a quantity such as 500m or 1Gi",
                     r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+))?$"),
    "amount": Type((str,), "a number or a percentage in quotes such as '1' or '25%'", r"^[0-9]+%?$"),
    "amount-or-int": Type((int, str), "a whole number or a percentage such as 25%", r"^[0-9]+%?$"),
}


def limits(schema: str) -> tuple[str, int | None, int | None]:
    """(type, smallest, largest) of C(int>=1<=65535); None if there is no limit."""
    match = re.fullmatch(r"([a-z-]+)(?:>=(\d+))?(?:<=(\d+))?", schema)
    if match is None:
        raise ValueError(f"{schema!r} is not a type")
    return match[1], int(match[2]) if match[2] else None, int(match[3]) if match[3] else None


def check(document: Document, schema: Schema, path: Path = ()) -> list[str]:
    """All faults below a path of a document. Each is one line with the path, the line, the value and what is allowed.
    An unknown key that occurs several times is one fault."""
    data = document.data
    for part in path:
        data = data[part]
    return _once(_faults(document, data, schema, path, _Root(schema, path)))


def _once(faults: t.Iterable[str]) -> list[str]:
    """The faults, with one for all places of an unknown key with the same remedy."""
    found: dict[tuple[str, str], list[str]] = {}
    for fault in faults:
        match = _UNKNOWN.fullmatch(fault)
        key = (match["path"].rpartition(".")[2], match["text"]) if match else (fault, "")
        found.setdefault(key, []).append(match["place"] if match else "")
    return [f"{some_of(places)}: {text}" if text else fault for (fault, text), places in found.items()]


def faults_error(origin: str, faults: t.Sequence[str]) -> InputError:
    """The error that lists all faults. origin: the variable, file or object that has them."""
    count = f"{len(faults)} faults" if len(faults) > 1 else "one fault"
    listed = "".join(f"\n  {fault}" for fault in faults)
    return InputError(f"{origin} has {count}:{listed}\nNothing was changed.", faults=list(faults))


@dataclass(frozen=True)
class _Root:
    """The schema of the whole document, and its path there."""

    schema: Schema
    path: Path


def _faults(document: Document, value: object, schema: Schema, path: Path, root: _Root) -> t.Iterator[str]:
    if isinstance(schema, Needed):
        yield from _faults(document, value, schema.schema, path, root)
    elif value is None or schema == "any":
        return
    elif isinstance(schema, t.Mapping):
        yield from _mapping_faults(document, value, schema, path, root)
    elif isinstance(schema, list):
        yield from _list_faults(document, value, schema[0], path, root)
    elif isinstance(schema, tuple):
        if value not in schema or not isinstance(value, str):
            allowed = ", ".join(repr(item) for item in schema)
            yield fault_at(document, path, f"{shown(value)} is not allowed; allowed: {allowed}{_quote_hint(value)}")
    else:
        yield from _type_faults(document, value, schema, path)


def _mapping_faults(document: Document, value: object, schema: Keys, path: Path, root: _Root) -> t.Iterator[str]:
    if not isinstance(value, dict):
        yield fault_at(document, path, f"a mapping is expected, not {shown(value)}")
        return
    for key, inner in value.items():
        if isinstance(key, str) and key in schema:
            yield from _faults(document, inner, schema[key], (*path, key), root)
        else:
            yield fault_at(document, (*path, brief(key, str)),
                           f"{UNKNOWN_KEY}{_key_suggestion(str(key), schema, root)}")
    for key, inner in schema.items():
        if isinstance(inner, Needed) and value.get(key) is None:
            yield fault_at(document, (*path, key), "is missing")


def _list_faults(document: Document, value: object, schema: Schema, path: Path, root: _Root) -> t.Iterator[str]:
    if not isinstance(value, list):
        wanted = f"a list of {{{', '.join(schema)}}}" if isinstance(schema, t.Mapping) else "a list"
        yield fault_at(document, path, f"{wanted} is expected, not {shown(value)}")
        return
    for index, item in enumerate(value):
        if item is None:
            yield fault_at(document, (*path, index), "an item is expected, not null")
        yield from _faults(document, item, schema, (*path, index), root)


def _type_faults(document: Document, value: object, schema: str, path: Path) -> t.Iterator[str]:
    name, least, most = limits(schema)
    kind = TYPES[name]
    fits = isinstance(value, kind.classes) and (not isinstance(value, bool) or bool in kind.classes)
    if not fits:
        hint = _quote_hint(value) if str in kind.classes else ""
        yield fault_at(document, path, f"{kind.text} is expected, not {shown(value)}{hint}")
    elif kind.pattern and isinstance(value, str) and not re.search(kind.pattern, value):
        yield fault_at(document, path, f"{kind.text} is expected, not {shown(value)}")
    elif least is not None and isinstance(value, int) and value < least:
        yield fault_at(document, path, f"{shown(value)} is too small; the smallest value is {least}")
    elif most is not None and isinstance(value, int) and value > most:
        yield fault_at(document, path, f"{shown(value)} is too large; the largest value is {most}")
    elif kind.items and isinstance(value, (dict, list)):
        yield from _item_faults(document, value, kind.items, path)


def _item_faults(document: Document, value: dict[Value, Value] | list[Value], items: str,
                 path: Path) -> t.Iterator[str]:
    """The faults of the values of a mapping, which may be null, or of the items of a list. items: their type."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(key, str):
            yield fault_at(document, (*path, brief(key, str)), f"a string is expected as key{_quote_hint(key)}")
        elif item is None and isinstance(value, list):
            yield fault_at(document, (*path, key), f"{TYPES[items].text} is expected, not null")
        elif item is not None:
            yield from _type_faults(document, item, items, (*path, key))


def suggestion(key: str, known: t.Iterable[str]) -> str:
    """C(; did you mean 'x'?), or the known keys if no key is similar."""
    names = [str(name) for name in known]
    near = nearest(key, names)
    if near:
        return f"; did you mean '{near}'?"
    listed = ", ".join(sorted(names)[:12]) + (", ..." if len(names) > 12 else "")
    return f"; allowed: {listed}" if names else ""


def _key_suggestion(key: str, schema: Keys, root: _Root) -> str:
    """The text of L(suggestion), or where else the document may have the key, or for a key such as C(driver.version)
    (helm --set), how to write it in a document."""
    first, *rest = key.split(".")
    if not rest or not isinstance(schema.get(first), t.Mapping):
        places = [] if nearest(key, list(schema)) else list(_places(key, root.schema, root.path))
        if len(places) == 1:
            return f"; it belongs to {dotted(places[0]) or 'the top level'}"
        return suggestion(key, schema)
    return brief(f"; write it nested, {first}: {{{': {'.join(rest)}: ...", str) + "}" * len(rest)


def _places(key: str, schema: Schema, path: Path) -> t.Iterator[Path]:
    """The paths of the sections that have a key."""
    schema = schema.schema if isinstance(schema, Needed) else schema
    for name, inner in schema.items() if isinstance(schema, t.Mapping) else ():
        if name == key:
            yield path
        yield from _places(key, inner, (*path, name))


def fault_at(document: Document, path: Path, text: str) -> str:
    """A message about a path, such as C(spec.driver.version (line 7): TEXT)."""
    line = document.line(path)
    return f"{dotted(path)}{f' (line {line})' if line else ''}: {text}"


def shown(value: object) -> str:
    """A value for a message, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return brief(value, str if isinstance(value, datetime.date) else repr)


def _quote_hint(value: object) -> str:
    return "; write it in quotes" if isinstance(value, (bool, int, float, datetime.date)) else ""


def split_known(data: Section, schema: Keys, path: str = "") -> tuple[Data, list[str]]:
    """(the part of the data that the schema has, the paths of all other keys with an effect, see L(has_effect))."""
    kept: Data = {}
    lost: list[str] = []
    for key, value in data.items():
        full, inner = f"{path}.{key}" if path else key, schema.get(key)
        if inner is None:
            lost += [full] if has_effect(value) else []
        elif isinstance(inner, t.Mapping) and isinstance(value, dict):
            kept[key], more = split_known(value, inner, full)
            lost += more
        else:
            kept[key] = value
    return kept, lost


def has_effect(value: object) -> bool:
    """Whether a value, or anything in a mapping, is neither empty nor false."""
    if isinstance(value, dict):
        return any(has_effect(inner) for inner in value.values())
    return value if isinstance(value, bool) else value not in (None, "", [])
