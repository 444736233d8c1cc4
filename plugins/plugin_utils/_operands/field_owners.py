# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determines from managedFields which manager owns which field of a live object. Pure. PRIVATE to the collection.

A tree has the format of the server (FieldsV1): C({"f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}}}). An
empty mapping is a leaf, and C(.) stands for the container itself. If a manager changes the value of a field, the server
removes the field from the trees of all other managers. So a field that is still in our tree has the value that we have
applied, in whatever notation, and a field that is only in the tree of another manager was added by that manager.
Defaults of the server are in no tree.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MANAGER_NAME, Live, Object

Tree = t.Dict[str, "Tree"]
# The fields that others may write in our objects: metadata (our own labels and annotations are compared by name), the
# status, and the fields that controllers fill in.
_FREE = ("f:metadata", "f:status", "f:apiVersion", "f:kind")
_FREE_BY_KIND: t.Mapping[str, t.Tuple[str, ...]] = {
    "Namespace": ("f:spec",),
    "ServiceAccount": ("f:secrets", "f:imagePullSecrets"),
}
# `kubectl rollout restart` writes this into a pod template. To remove it would restart the pods again.
_RESTARTED = ("f:spec", "f:template", "f:metadata", "f:annotations", "f:kubectl.kubernetes.io/restartedAt")


def ours(live: Live) -> Tree | None:
    """The tree of the fields that we have applied, None if we have never applied the object."""
    for entry in live["metadata"].get("managedFields") or []:
        if _is_ours(entry):
            return t.cast(Tree, entry.get("fieldsV1") or {})
    return None


def foreign(live: Live) -> dict[str, Tree]:
    """Maps each foreign manager to the tree of the fields that it has added to parts of the object that only we may
    write. Empty if there are none."""
    mine = ours(live) or {}
    found: dict[str, Tree] = {}
    for entry in live["metadata"].get("managedFields") or []:
        added = _added(live, entry, mine)
        if added:
            name = str(entry.get("manager", ""))
            found[name] = union(found.get(name, {}), added)
    return found


def with_our_fields(live: Live) -> list[Object]:
    """The list managedFields in which we own the fields that others have added. Our next apply then removes the
    fields that are not in the manifest."""
    mine = ours(live) or {}
    added: Tree = {}
    entries = []
    own: Object = {"manager": MANAGER_NAME, "operation": "Apply", "apiVersion": live["apiVersion"],
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


def repaired(manifest: Live, live: Live) -> Object:
    """A live object, without its metadata, as it is after L(with_our_fields) and an apply of the manifest.

    Fields without an owner stay: the server has filled them in, and it may not allow a change of them.
    """
    added: Tree = {}
    for tree in foreign(live).values():
        added = union(added, tree)
    owned = ours(live) or {}
    for entry in live["metadata"].get("managedFields") or []:
        owned = union(owned, entry.get("fieldsV1") or {})
    left = {name: value for name, value in _pruned(live, added).items() if name != "metadata"}
    return t.cast(Object, {**left, **_merged(
        {name: value for name, value in manifest.items() if name != "metadata"}, left, owned)})


def minus(tree: Tree, other: Tree) -> Tree:
    """The part of the first tree that is not in the second."""
    left: Tree = {}
    for name, sub in tree.items():
        if name not in other:
            # The container itself counts only if the other tree does not have this container.
            if name != "." or not other:
                left[name] = sub
        elif sub:
            # This also holds if the mapping is a leaf in the other tree: then its manager owns no field in the mapping,
            # because it has applied an empty mapping or has lost all fields.
            below = minus(sub, other[name])
            if below:
                left[name] = below
    return left


def union(tree: Tree, other: Tree) -> Tree:
    """A tree with the fields of both."""
    return {name: union(tree.get(name, {}), other.get(name, {})) for name in {**tree, **other}}


def paths(tree: Tree, before: str = "") -> list[str]:
    """The leaves as paths such as C(spec.template.spec.containers[name=a].env[name=B])."""
    found = []
    for name, sub in tree.items():
        if name == ".":
            continue
        here = before + _readable(name, before)
        # If an item of a list is in the tree itself (C(.)), it was added as a whole.
        whole = not sub or ("." in sub and name.startswith("k:"))
        found += [here] if whole else paths(sub, here)
    return found or ([before] if before else [])


def item_of(tree: Tree, item: t.Any) -> tuple[Tree | None, dict[str, t.Any]]:
    """(the branch of an item of a list, the keys and values by which the server identifies the item)."""
    for name, sub in tree.items():
        if name.startswith("k:") and isinstance(item, dict):
            keys = json.loads(name[2:])
            # For a key that the item lacks, the server has filled in its default (protocol: TCP).
            if all(key not in item or item[key] == value for key, value in keys.items()):
                return sub, keys
        if name.startswith("v:") and json.loads(name[2:]) == item:
            return {}, {}
    return None, {}


def _pruned(value: t.Any, tree: Tree) -> t.Any:
    """A value without the fields of a tree, and without the mappings that become empty when these are removed."""
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
    """Whether the manager owns the branch itself, and not only fields below it."""
    return tree is not None and (not tree or "." in tree)


def _merged(want: t.Any, have: t.Any, tree: Tree | None) -> t.Any:
    """The live value after an apply of the wanted value. tree: the fields that have an owner; a leaf is replaced as a
    whole."""
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


def _is_ours(entry: Live) -> bool:
    return entry.get("manager") == MANAGER_NAME and entry.get("operation") == "Apply" and not entry.get("subresource")


def _added(live: Live, entry: Live, mine: Tree) -> Tree | None:
    if _is_ours(entry) or entry.get("subresource"):
        return None
    free = (*_FREE, *_FREE_BY_KIND.get(live["kind"], ()))
    tree = {name: sub for name, sub in (entry.get("fieldsV1") or {}).items() if name not in free}
    return _without(minus(tree, mine), _RESTARTED) or None


def _without(tree: Tree, path: t.Sequence[str]) -> Tree:
    """The tree without the leaf at this path, and without the containers that hold nothing else."""
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
