# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random documents for the reader of policies: valid, nearly valid, and invalid ones; each has a number that reproduces
it."""

from __future__ import annotations

import datetime
import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Needed, check, limits
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import differences, export, format_schemas, formats
from jsonschema import Draft202012Validator

WORDS = ("", "a", "nvidia.com/gpu.present", "true", "595", "595.91.07", "sha256:0f", "v1.20.0", "x" * 300, "ä\u2028",
         "0", "config.yaml", "[1", "a: {b: [", "25%", "on", "{{ x }}")
ODD: tuple[Any, ...] = (None, True, False, 0, -1, 7, 2 ** 70, 1.5, float("inf"), float("nan"), "", "x", "15s", [], {},
                        [None], [[]], {"a": None}, {"": {}}, datetime.date(2026, 1, 1), b"\xff", {1: 2}, {None: 1})
GOOD: dict[str, tuple[Any, ...]] = {
    "str": WORDS, "bool": (True, False), "int": (0, 1, 30, 65535), "int-or-str": (0, "info"), "any": ODD,
    "map": ({}, {"a": "b"}, {"a": {"b": [1, None]}}), "strmap": ({}, {"a": "b"}, {"nvidia.com/x": "y"}),
    "boolmap": ({"IMEX": True},), "quantities": ({"cpu": "500m", "memory": "1Gi"}, {"nvidia.com/gpu": 1}),
    "strs": ([], ["a", "b"]), "objects": ([], [{"kind": "ConfigMap"}], [{"kind": "NVIDIADriver"}]),
    "image": ("driver", "nvcr.io/nvidia/driver:1"), "duration": ("15s", "1m30s", "0"), "amount": ("1", "25%"),
    "amount-or-int": (1, "25%"), "quantity": (1, "1Gi"), "cuda": ("", "12", "13.0", "12.9.1"),
}
EXPORTS: dict[str, Callable[[formats.Policy], Any]] = {
    "cluster_policy": export.to_cluster_policy, "values": export.to_values, "nvidia_driver": export.to_nvidia_driver,
}
CHARACTERS = "\t\x00\x07:{}[]&*!|>'\"%@`#-?, \nä\ud800\u0085"


def good(rng: random.Random, schema: Any, depth: int = 0) -> Any:
    """A random value that conforms to a schema."""
    if isinstance(schema, Needed):
        return good(rng, schema.schema, depth)
    if isinstance(schema, dict):
        share = 0.5 if depth else 0.2
        return {key: good(rng, inner, depth + 1) for key, inner in schema.items()
                if isinstance(inner, Needed) or rng.random() < share}
    if isinstance(schema, list):
        return [good(rng, schema[0], depth + 1) for _item in range(rng.randrange(3))]
    if isinstance(schema, tuple):
        return rng.choice(schema)
    name, least, most = limits(schema) if schema != "any" else ("any", None, None)
    value = rng.choice(GOOD[name])
    return max(least or 0, min(value, most or 2 ** 40)) if name == "int" else value


def spoil(rng: random.Random, value: Any) -> Any:
    """The value with one random fault in it."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.8:
            return {**value, key: spoil(rng, value[key])}
        new = rng.choice((f"{key}s", str(key)[1:], str(key).upper(), 7, None, True, ""))
        return {(new if one == key else one): inner for one, inner in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], spoil(rng, value[at]), *value[at + 1:]]
    return rng.choice(ODD)


def document(rng: random.Random) -> Any:
    """A random document of any format; every second one has a fault."""
    form = rng.choice(tuple(format_schemas.FORMS.values()))
    spec = good(rng, form.schema)
    whole = spec if form.kind == "values" else {
        "apiVersion": form.api_version, "kind": form.kind, "metadata": {"name": rng.choice(("a", "b"))}, "spec": spec}
    for _time in range(rng.choice((0, 0, 0, 1, 1, 3))):
        whole = spoil(rng, whole)
    return whole


def text(rng: random.Random) -> bytes:
    """The text of random documents, damaged in most cases."""
    count = rng.choice((1, 1, 1, 2, 3))
    lines = "---\n".join(yaml.safe_dump(document(rng), sort_keys=False) for _item in range(count)).splitlines()
    for _time in range(rng.choice((0, 1, 2, 8))):
        at = rng.randrange(len(lines)) if lines else 0
        act = rng.randrange(7)
        if act == 0:
            lines[at:at + 1] = []
        elif act == 1:
            lines.insert(at, rng.choice(lines or ["a: 1"]))
        elif act == 2 and lines:
            lines[at] = lines[at].lstrip() if rng.random() < 0.5 else f"  {lines[at]}"
        elif act == 3 and lines:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + rng.choice(CHARACTERS) + lines[at][place:]
        elif act == 4:
            lines.insert(at, rng.choice(("a: &a [*a]", "<<: {a: 1}", "b: !vault x", "? [a]\n: b", "%YAML 9.9", "...",
                                         f"{'[' * 400}", "x: 0x" + "f" * 5000, "y: 2026-13-45", "z: !!binary '*'")))
        elif act == 5:
            lines = [line.lstrip() for line in lines]
    return "\n".join(lines).encode("utf-8", "surrogatepass")[:rng.choice((10 ** 6, 10 ** 6, 50))]


@functools.lru_cache(maxsize=None)
def validator(kind: str) -> Draft202012Validator:
    """A validator for the shipped JSON schema of a format."""
    folder = Path(__file__).resolve().parent.parent.parent / "schemas"
    return Draft202012Validator(json.loads((folder / f"{kind.lower()}.json").read_text()))


def _keys_are_strings(data: Any) -> bool:
    if isinstance(data, dict):
        return all(isinstance(key, str) and _keys_are_strings(one) for key, one in data.items())
    return not isinstance(data, list) or all(map(_keys_are_strings, data))


def agree(data: Any) -> bool:
    """Whether the checker of the reader and the JSON schema give the same result for a document of a known format."""
    if not isinstance(data, dict) or not _keys_are_strings(data):
        return True  # a schema knows no other keys
    kind = data.get("kind", "values")
    if not isinstance(kind, str) or kind not in format_schemas.FORMS or "kind" in data and kind == "values":
        return True
    form = format_schemas.FORMS[kind]
    if kind == "values":
        valid = not check(Document(data), form.schema)
    else:
        valid = data.get("apiVersion") == form.api_version and isinstance(data.get("spec"), dict)
        valid = valid and not check(Document(data), format_schemas.ENVELOPE)
        valid = valid and not check(Document(data), form.schema, ("spec",))
    return bool(valid == validator(kind).is_valid(data))


def once(number: int, folder: Path) -> str:
    """Reads, exports and compares one random source. Returns the result.

    Raises all errors except the expected ones, and an error if the reader and the JSON schema disagree.
    """
    rng = random.Random(number)
    release = releases.release(rng.choice(releases.available()))
    source: Any
    if rng.random() < 0.5:
        source = str(folder / "policy.yml")
        Path(source).write_bytes(text(rng))
    else:
        source = document(rng) if rng.random() < 0.7 else [document(rng) for _item in range(rng.randrange(4))]
        for one in source if isinstance(source, list) else [source]:
            if not agree(one):
                raise AssertionError(f"reader and JSON schema differ about {one!r}")
    try:
        policy = formats.read(source, release)
    except GpuopsError as error:
        return "refused" if str(error) and error.as_result()["msg"] else "silent"
    formats.unsupported_on_hosts(policy)
    for difference in differences.compare(formats.read(None, release), policy):
        differences.described(difference)
    for pool in policy.pools:
        policy.for_pool(pool).get("driver.version")
    for form, make in EXPORTS.items():
        try:
            formats.read(make(policy), release)
            export.unexported(policy, form)
        except GpuopsError as error:
            if "export" not in str(error):
                raise AssertionError(f"the exported {form} is refused: {error}") from error
    return "read"
