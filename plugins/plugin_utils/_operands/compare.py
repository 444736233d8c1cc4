# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the differences between a live object and the wanted object. Pure. PRIVATE to the collection.

The comparison starts with the ownership of fields (L(field_owners)): a field that we own counts as unchanged. So it is
no drift if the server writes a value in another notation (C(1000m) as C(1)) or fills in defaults, or if a webhook
changes the object. Only fields that we no longer own are compared by value. The order of items has no owner, and is
compared if it has a meaning. Only the server can tell whether a field that we own still has our value: see L(plan).
"""

from __future__ import annotations

import re
import typing as t
from fractions import Fraction

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import field_owners

# The keys that identify an item of a list of objects. The first one that all items have is used.
_MERGE_KEYS = ("name", "mountPath", "containerPort", "port", "key", "topologyKey", "uid")
# The exponent has a limit: 10 to the power of millions takes all memory. The server's largest value is 2 ** 63 - 1.
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
                       r"(?:(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|[eE]([+-]?[0-9]{1,3}))?")
_QUANTITY_SIZE = 100  # characters
_FACTORS = {"": Fraction(1), "m": Fraction(1, 1000),
            **{unit: Fraction(1000 ** power) for power, unit in enumerate("kMGTPE", 1)},
            **{f"{unit}i": Fraction(1024 ** power) for power, unit in enumerate("KMGTPE", 1)}}
# Lists whose items have names and are processed in order: rules of a NodeFeatureRule build on the rules before them.
_ORDERED = ("initContainers", "rules")
# A reference in the value of a variable to another variable, which must come before it; C($$) is a plain dollar sign.
_VARIABLE = re.compile(r"(?<!\$)\$\(([^()]+)\)")
# Fields that identify the type of an object, and are not compared.
_IDENTITY = ("apiVersion", "kind")


def drifted(manifest: Live, live: Live) -> list[str]:
    """The paths of the manifest whose live value is no longer the value that we applied; empty if nothing differs.

    Only for a live object whose annotation shows that this manifest was applied; for other objects, use L(changed).
    """
    tree = field_owners.ours(live)
    found: list[str] = []
    for name, value in manifest.items():
        if name in _IDENTITY:
            continue
        if name == "metadata":
            for part in ("labels", "annotations"):
                below = ((tree or {}).get("f:metadata") or {}).get(f"f:{part}")
                found += _drift(value.get(part), (live["metadata"]).get(part), below, f"metadata.{part}")
        else:
            found += _drift(value, live.get(name), None if tree is None else tree.get(f"f:{name}"), name)
    return found


def changed(manifest: Live, live: Live) -> list[str]:
    """The paths at which the live value differs from the wanted value, including our annotation APPLIED."""
    return [path for name, value in manifest.items() if name not in _IDENTITY
            for path in differences(value, live.get(name), name)]


def unlike(manifest: Live, live: Live) -> list[str]:
    """The paths, except in metadata, at which a foreign object lacks a value of the manifest or has another value."""
    if manifest["kind"] == "CustomResourceDefinition":
        served = [one["name"] for one in live["spec"]["versions"] if one.get("served")]
        return [f"spec.versions[name={one['name']}]" for one in manifest["spec"]["versions"]
                if one.get("served") and one["name"] not in served]
    return [path for name, value in manifest.items() if name not in (*_IDENTITY, "metadata")
            for path in differences(value, live.get(name), name)]


def differences(want: t.Any, have: t.Any, path: str) -> list[str]:
    """The paths at which a live value is missing or differs from the wanted value. Lists must have the same items; a
    live mapping may have more keys."""
    if isinstance(want, dict) and isinstance(have, dict):
        return [place for name, value in want.items()
                for place in differences(value, have.get(name), _below(path, name))]
    if isinstance(want, list) and isinstance(have, list):
        return _lists(want, have, path)
    return [] if same(want, have) else [path]


def same(want: t.Any, have: t.Any) -> bool:
    """Whether two scalars are equivalent for the server. An empty value and a missing value are equivalent."""
    if want == have or (not want and not have):
        return True
    if isinstance(want, (dict, list)) or isinstance(have, (dict, list)) or want is None or have is None:
        # A mapping in which all values are empty is equivalent to a missing mapping.
        return isinstance(want, dict) and have is None and all(same(value, None) for value in want.values())
    if isinstance(want, bool) or isinstance(have, bool):
        return False
    if str(want) == str(have):
        return True
    one, other = quantity(want), quantity(have)
    return one is not None and one == other


def quantity(value: t.Any) -> Fraction | None:
    """A Kubernetes quantity (C(500m), C(1Gi), C(2e3)) as a number.

    None if it is not a quantity, or if no server would accept it: more than 100 characters, or an exponent of more than
    three digits.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    text = str(value) if isinstance(value, (str, float)) else ""
    match = _QUANTITY.fullmatch(text) if len(text) <= _QUANTITY_SIZE else None
    if not match:
        return None
    number, unit, exponent = match.groups()
    return Fraction(number) * _FACTORS[unit or ""] * Fraction(10) ** int(exponent or 0)


def partner(item: t.Any, among: t.Sequence[t.Any], index: int) -> t.Any:
    """The item of a live list that corresponds to a wanted item: by its merge key, otherwise by its index."""
    if isinstance(item, dict):
        for key in _MERGE_KEYS:
            if key in item and all(isinstance(other, dict) and key in other for other in among):
                same_key = [other for other in among if same(item[key], other[key])]
                # For example, containerPort 53 can be in the list for TCP and for UDP.
                exact = [other for other in same_key
                         if other.get("protocol", "TCP") == item.get("protocol", "TCP")]
                return (exact or same_key or [None])[0]
    return among[index] if index < len(among) else None


def out_of_order(want: t.Sequence[t.Any], have: t.Sequence[t.Any], path: str) -> bool:
    """Whether the items that are in both lists differ in their order, and this order has a meaning."""
    part = path.rpartition(".")[2]
    if part not in (*_ORDERED, "env"):
        return False
    wanted, there = _places(want), _places(have)
    both = [name for name in wanted if name in there]
    if part in _ORDERED:
        return both != sorted(both, key=lambda name: there[name])
    pairs = [(item["name"], name) for item in want if isinstance(item, dict) and item.get("name") in wanted
             for name in _VARIABLE.findall(str(item.get("value") or ""))]
    return any((wanted[user] < wanted[name]) != (there[user] < there[name])
               for user, name in pairs if user in both and name in both)


def _places(items: t.Sequence[t.Any]) -> dict[str, int]:
    return {item["name"]: index for index, item in enumerate(items) if isinstance(item, dict) and "name" in item}


def _lists(want: t.Sequence[t.Any], have: t.Sequence[t.Any], path: str) -> list[str]:
    if len(want) != len(have):
        return [path]
    moved = [path] if out_of_order(want, have, path) else []
    return moved + [place for index, item in enumerate(want)
                    for place in differences(item, partner(item, have, index), f"{path}[{index}]")]


def _drift(want: t.Any, have: t.Any, tree: field_owners.Tree | None, path: str) -> list[str]:
    if tree is None:
        return differences(want, have, path)
    if want is None:
        return []
    if not tree:
        # The mapping is owned as a whole, or others have become the owners of all our fields in it.
        return differences(want, have, path) if isinstance(want, dict) else []
    if isinstance(want, dict):
        return [place for name, value in want.items()
                for place in _drift(value, have.get(name) if isinstance(have, dict) else None,
                                    tree.get(f"f:{name}"), _below(path, name))]
    if isinstance(want, list):
        items = have if isinstance(have, list) else []
        found = [path] if out_of_order(want, items, path) else []
        for index, item in enumerate(want):
            below, _ignored = field_owners.item_of(tree, item)
            found += _drift(item, partner(item, items, index), below, f"{path}[{index}]")
        return found
    return differences(want, have, path)


def _below(path: str, name: str) -> str:
    return f"{path}[{name}]" if "." in name or "/" in name else f"{path}.{name}"
