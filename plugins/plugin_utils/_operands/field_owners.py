# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who owns which field of a live object, by its managedFields. Pure. PRIVATE to the collection.

A tree is the server's own form (FieldsV1): C({"f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}}}), where an
empty mapping is a leaf and C(.) the container itself. A manager that changes the value of a field takes it out
of the others' trees. So a field that we named and that is still in our tree has our value, however the server writes
it; and what is in a foreign tree alone was added by that hand. Defaults of the server are in nobody's tree.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MANAGER_NAME

Tree = t.Dict[str, t.Any]
# What foreign hands may write in objects of ours: metadata (our own labels and annotations are compared by name),
# the status, and what controllers fill in.
_FREE = ("f:metadata", "f:status", "f:apiVersion", "f:kind")
_FREE_BY_KIND: t.Mapping[str, t.Tuple[str, ...]] = {
    "Namespace": ("f:spec",),
    "ServiceAccount": ("f:secrets", "f:imagePullSecrets"),
}
# `kubectl rollout restart` writes this into a pod template. To take it out would restart the pods once more.
_RESTARTED = ("f:spec", "f:template", "f:metadata", "f:annotations", "f:kubectl.kubernetes.io/restartedAt")


def ours(live: t.Mapping[str, t.Any]) -> Tree | None:
    """The tree of what we applied, None where we never did."""
    for entry in live["metadata"].get("managedFields") or []:
        if _is_ours(entry):
            return t.cast(Tree, entry.get("fieldsV1") or {})
    return None


def foreign(live: t.Mapping[str, t.Any]) -> dict[str, Tree]:
    """By manager the tree of what it added inside what is ours to decide. Empty where nobody did."""
    mine = ours(live) or {}
    found: dict[str, Tree] = {}
    for entry in live["metadata"].get("managedFields") or []:
        added = _added(live, entry, mine)
        if added:
            name = str(entry.get("manager", ""))
            found[name] = union(found.get(name, {}), added)
    return found


def taken_over(live: t.Mapping[str, t.Any]) -> list[t.Dict[str, t.Any]]:
    """The managedFields list in which what others added belongs to us, so that our next apply drops what it lacks."""
    mine = ours(live) or {}
    added: Tree = {}
    entries = []
    own: t.Dict[str, t.Any] = {"manager": MANAGER_NAME, "operation": "Apply", "apiVersion": live["apiVersion"],
                               "fieldsType": "FieldsV1"}
    for entry in live["metadata"].get("managedFields") or []:
        if _is_ours(entry):
            own = entry
            continue
        theirs = _added(live, entry, mine)
        added = union(added, theirs or {})
        rest = minus(entry.get("fieldsV1") or {}, theirs) if theirs else entry.get("fieldsV1")
        if rest:
            entries.append({**entry, "fieldsV1": rest})
    return [{**own, "fieldsV1": union(mine, added)}, *entries]


def repaired(manifest: t.Mapping[str, t.Any], live: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """What a live object is once L(taken_over) and an apply of the manifest have been written; its metadata apart.

    Fields that nobody owns stay, as the server has filled them in and may never change them.
    """
    added: Tree = {}
    for tree in foreign(live).values():
        added = union(added, tree)
    owned = ours(live) or {}
    for entry in live["metadata"].get("managedFields") or []:
        owned = union(owned, entry.get("fieldsV1") or {})
    left = {name: value for name, value in _pruned(live, added).items() if name != "metadata"}
    return t.cast("t.Dict[str, t.Any]", {**left, **_merged(
        {name: value for name, value in manifest.items() if name != "metadata"}, left, owned)})


def minus(tree: Tree, other: Tree) -> Tree:
    """What is in the first tree and not in the second."""
    left: Tree = {}
    for name, sub in tree.items():
        if name not in other:
            # The container itself counts as long as there is no such container in the other tree.
            if name != "." or not other:
                left[name] = sub
        elif sub:
            # Also below a mapping that is a leaf there: who applied it empty, or lost its fields, has nothing below.
            below = minus(sub, other[name])
            if below:
                left[name] = below
    return left


def union(tree: Tree, other: Tree) -> Tree:
    """What is in either."""
    return {name: union(tree.get(name, {}), other.get(name, {})) for name in {**tree, **other}}


def paths(tree: Tree, before: str = "") -> list[str]:
    """The leaves as a reader writes them: C(spec.template.spec.containers[name=a].env[name=B])."""
    found = []
    for name, sub in tree.items():
        if name == ".":
            continue
        here = before + _readable(name, before)
        # An item of a list that is there itself was added as a whole.
        whole = not sub or ("." in sub and name.startswith("k:"))
        found += [here] if whole else paths(sub, here)
    return found or ([before] if before else [])


def item_of(tree: Tree, item: t.Any) -> tuple[Tree | None, dict[str, t.Any]]:
    """The branch of a list's item, and the keys by which the server tells it from the others."""
    for name, sub in tree.items():
        if name.startswith("k:") and isinstance(item, dict):
            keys = json.loads(name[2:])
            # A key that the item lacks has the server's default (protocol: TCP).
            if all(key not in item or item[key] == value for key, value in keys.items()):
                return sub, keys
        if name.startswith("v:") and json.loads(name[2:]) == item:
            return {}, {}
    return None, {}


def _pruned(value: t.Any, tree: Tree) -> t.Any:
    """A value without the fields of a tree, and without mappings of which nothing is left by that."""
    if isinstance(value, dict):
        found = {name: _pruned(item, tree[f"f:{name}"]) if f"f:{name}" in tree else item
                 for name, item in value.items() if not _is_whole(tree.get(f"f:{name}"))}
        return {name: item for name, item in found.items() if item or item == value[name]}
    if isinstance(value, list):
        branches = [(item, item_of(tree, item)[0]) for item in value]
        return [item if branch is None else _pruned(item, branch) for item, branch in branches
                if not _is_whole(branch)]
    return value


def _is_whole(tree: Tree | None) -> bool:
    """Whether a branch is owned itself, and not only what is below it."""
    return tree is not None and (not tree or "." in tree)


def _merged(want: t.Any, have: t.Any, tree: Tree | None) -> t.Any:
    """A wanted value in place of a live one. tree: whoever owns what; a leaf has no parts."""
    if isinstance(want, dict) and isinstance(have, dict) and tree != {}:
        return {**have, **{name: _merged(value, have.get(name), (tree or {}).get(f"f:{name}"))
                           for name, value in want.items()}}
    if isinstance(want, list) and isinstance(have, list) and tree:
        return [_merged_item(item, have, tree) for item in want]
    return want


def _merged_item(item: t.Any, have: t.Sequence[t.Any], tree: Tree) -> t.Any:
    branch, keys = item_of(tree, item)
    other = next((one for one in have if keys and isinstance(one, dict) and keys.items() <= one.items()), None)
    return item if other is None else _merged(item, other, branch)


def _is_ours(entry: t.Mapping[str, t.Any]) -> bool:
    return entry.get("manager") == MANAGER_NAME and entry.get("operation") == "Apply" and not entry.get("subresource")


def _added(live: t.Mapping[str, t.Any], entry: t.Mapping[str, t.Any], mine: Tree) -> Tree | None:
    if _is_ours(entry) or entry.get("subresource"):
        return None
    free = (*_FREE, *_FREE_BY_KIND.get(live["kind"], ()))
    tree = {name: sub for name, sub in (entry.get("fieldsV1") or {}).items() if name not in free}
    return _without(minus(tree, mine), _RESTARTED) or None


def _without(tree: Tree, path: t.Sequence[str]) -> Tree:
    """The tree without one leaf, and without the containers that only hold it."""
    first, rest = path[0], path[1:]
    if first not in tree or (rest and not tree[first]):
        return tree
    below = _without(tree[first], rest) if rest else {}
    left = {name: sub for name, sub in tree.items() if name != first}
    if set(below) - {"."}:
        left[first] = below
    return left


def _readable(name: str, before: str) -> str:
    if name.startswith("f:"):
        plain = name[2:]
        return f"[{plain}]" if "." in plain or "/" in plain else (f".{plain}" if before else plain)
    if name.startswith("k:"):
        return "[" + ",".join(f"{key}={value}" for key, value in json.loads(name[2:]).items()) + "]"
    return f"[{name[2:]}]"
