# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run does with each key of a policy (C(key_effects.yml)): an effect, a note, or a refusal. PRIVATE."""

from __future__ import annotations

import functools
import os
import typing as t
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Needed, Schema
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import read_own
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import defaults, format_schemas, translate
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

# The placements of the table, and how messages name them.
PLACEMENTS = {"hosts": "on hosts", "cluster": "in the cluster"}
_PLACES = {"hosts": "host", "cluster": "cluster"}
KINDS = ("effect", "note", "noted", "refused")
_NAMED = 8  # the maximum number of keys that a note lists


@dataclass(frozen=True)
class KeyEffect:
    """What a run does with a key in a placement. kind: one of L(KINDS), as C(key_effects.yml) explains them; text: its
    text there; unless: the key that, if it is true, makes a note wrong."""

    kind: str
    text: str
    unless: str = ""


@functools.lru_cache(maxsize=None)
def _data() -> Data:
    return read_own(os.path.dirname(__file__), "key_effects.yml")


@functools.lru_cache(maxsize=None)
def of_key(path: str, placement: str) -> KeyEffect:
    """What a run does with a key. path: in the common format; placement: one of L(PLACEMENTS). Raises KeyError for a
    path without a row."""
    for row in _data()["rows"]:
        if any(fnmatchcase(path, pattern) for pattern in row["keys"]):
            (kind, text), = row[placement].items()
            return KeyEffect(kind, text, row.get("unless", ""))
    raise KeyError(path)


def rows() -> list[list[str]]:
    """The patterns of each row of the table, in their order."""
    return [row["keys"] for row in _data()["rows"]]


def keys_of(schema: Schema, data: Value, path: tuple[str, ...] = ()) -> t.Iterator[tuple[str, Value]]:
    """The keys of a document with their values: C((path, value)) for each key that a schema has no keys below."""
    schema = schema.schema if isinstance(schema, Needed) else schema
    if path and not (isinstance(schema, dict) and schema and isinstance(data, dict)):
        yield ".".join(path), data
        return
    for key, value in data.items():
        yield from keys_of(t.cast("dict[str, Schema]", schema).get(key, "any"), value, (*path, key))


def set_keys(policy: Policy, release: Release) -> list[str]:
    """The keys that the documents of a policy set to another value than their default, and components that they
    enable, in the common format."""
    of_resource = {**_flat(defaults.of_resource(release)), **defaults.of_definition(),
                   **dict.fromkeys(_data()["usually_true"], True)}
    of_chart = {**of_resource, **_flat(defaults.of_chart(release))}
    found: dict[str, None] = {}
    for source in policy.sources:
        usual = of_chart if source.kind == "values" else of_resource
        for path, value in keys_of(format_schemas.COMMON, translate.to_common(source.kind, source.spec)):
            explicit = value is True if path.endswith(".enabled") else path in _data()["explicit"]
            if explicit or value != usual.get(path, False) and value not in ("", [], {}):
                found[path] = None
    return list(found)


def _flat(data: Section) -> dict[str, Value]:
    return dict(keys_of(format_schemas.COMMON, data))


def notes(policy: Policy, release: Release, placement: str, places: t.Mapping[str, str]) -> list[str]:
    """Notes about the keys that a policy sets and that have no effect in a placement. Each names the keys with the same
    reason. places: the result of L(components.placements). Keys of components that are not delivered for another reason
    are left out: the plan names that reason."""
    by_text: dict[str, list[str]] = {}
    for path in set_keys(policy, release):
        effect = of_key(path, placement)
        if effect.kind == "note" and not (effect.unless and policy.get(effect.unless)) and _applies(
                policy, path.split(".")[0], placement, places):
            by_text.setdefault(effect.text, []).append(path)
    return [f"{some_of(paths, _NAMED)}: no effect {PLACEMENTS[placement]}: {text}." for text, paths in by_text.items()]


def _applies(policy: Policy, section: str, placement: str, places: t.Mapping[str, str]) -> bool:
    """Whether the component of a section is delivered in a placement, or can never be. A section without a component
    applies to all of them."""
    place = _PLACES[placement]
    delivered = [name for name, one in places.items() if one in (place, "hybrid")]
    entry = next((one for one in components.COMPONENTS if one.section == section), None)
    if entry is None:
        return bool(delivered)
    enabled = policy.enabled(section)
    return enabled and (entry.name in delivered or bool(delivered) and place not in entry.places)


def undelivered_kinds(policy: Policy, used: t.Container[str] = ()) -> list[str]:
    """The kinds of the objects in extraObjects that are neither NVIDIADrivers nor ConfigMaps with a name in used."""
    objects = [one for one in policy.get("extraObjects") or () if isinstance(one, dict)]
    return sorted({str(one.get("kind")) for one in objects if one.get("kind") != "NVIDIADriver" and not (
        one.get("kind") == "ConfigMap" and (one.get("metadata") or {}).get("name") in used)})
