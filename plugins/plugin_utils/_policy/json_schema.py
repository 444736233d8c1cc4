# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts the formats of a policy to JSON schemas (draft 2020-12), for editors. Pure. PRIVATE.

The folder C(schemas) has the results.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import TYPES, Needed, Schema, limits
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import format_schemas, translate

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", dict: "object", list: "array"}
# Maps paths below the spec to keys that are added to their schemas: description, deprecated.
Notes = t.Mapping[str, Data]


def of_format(kind: str) -> Data:
    """The JSON schema of a format, which accepts the same documents as L(schema.check)."""
    form = format_schemas.FORMS[kind]
    head = {"$schema": _DRAFT, "title": form.title}
    if not form.api_version:
        return {**head, **_json(form.schema, "", _notes(kind))}
    whole = _json({**format_schemas.ENVELOPE, "spec": Needed(form.schema)}, "", _notes(kind), below="spec")
    whole["properties"]["apiVersion"], whole["properties"]["kind"] = {"const": form.api_version}, {"const": form.kind}
    whole["required"] += ["apiVersion", "kind"]
    return {**head, **whole}


def of_any() -> Data:
    """The JSON schema of a document of any format. It refers to the schemas of the formats in the same folder."""
    resources = [kind for kind in format_schemas.FORMS if kind != "values"]
    choices = [{"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"$ref": f"{kind.lower()}.json"}} for kind in resources]
    values = {"if": {"not": {"required": ["kind"]}}, "then": {"$ref": "values.json"}}
    return {"$schema": _DRAFT, "title": "A policy of gpuops.nvidia", "type": "object",
            "properties": {"kind": {"enum": resources}}, "allOf": [*choices, values]}


def _notes(kind: str) -> Notes:
    notes: dict[str, Data] = {path: {"description": text} for path, text in format_schemas.ABOUT.items()}
    for path, (_since, text, _kept) in format_schemas.DEPRECATED.items():
        notes[path] = {"description": f"{path} {text}.", "deprecated": True}
    return {translate.own_key(kind, path): note for path, note in notes.items()}


def _json(schema: Schema, path: str, notes: Notes, below: str = "", null: bool = True) -> Data:
    """below: the beginning of the path that the paths in notes do not have; null: whether null is allowed."""
    if isinstance(schema, Needed):
        return _json(schema.schema, path, notes, below, null=False)
    note = dict(notes.get(path[len(below) + 1:] if below else path, {}))
    if isinstance(schema, t.Mapping):
        inner = {key: _json(one, f"{path}.{key}" if path else key, notes, below) for key, one in schema.items()}
        needed = [key for key, one in schema.items() if isinstance(one, Needed)]
        return {**note, "type": _or_null("object", null and bool(path)), "additionalProperties": False,
                "properties": inner, **({"required": needed} if needed or path == "" and below else {})}
    if isinstance(schema, list):
        return {**note, "type": _or_null("array", null), "items": _json(schema[0], path, {}, null=False)}
    if isinstance(schema, tuple):
        return {**note, "enum": [*schema, None] if null else [*schema]}
    return {**note, **_json_type(schema, null)}


def _json_type(schema: str, null: bool) -> Data:
    if schema == "any":
        return {}
    name, least, most = limits(schema)
    kind = TYPES[name]
    names = [*(_NAMES[one] for one in kind.classes), *["null"] * null]
    found: Data = {"type": names if len(names) > 1 else names[0]}
    if kind.pattern:
        found["pattern"] = kind.pattern
    if least is not None:
        found["minimum"] = least
    if most is not None:
        found["maximum"] = most
    if kind.items:
        key = "items" if list in kind.classes else "additionalProperties"
        found[key] = _json_type(kind.items, null=dict in kind.classes)
    return found


def _or_null(name: str, null: bool) -> str | list[str]:
    return [name, "null"] if null else name
