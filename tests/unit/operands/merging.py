# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which manager owns which fields when a manifest is applied, for mappings only: a list counts as one field. Pure."""

from __future__ import annotations

import copy
from typing import Any, Dict

Object = Dict[str, Any]


def tree_of(value: Any) -> Object:
    """The fields of a manifest, in the form of managedFields."""
    return {f"f:{key}": tree_of(inner) for key, inner in value.items()} if isinstance(value, dict) else {}


def unlike(theirs: Object, mine: Object, live: Any, body: Any) -> Object:
    """The tree of a manager without the fields for which a manifest has another value."""
    left = {}
    for name, sub in theirs.items():
        here, want = (one.get(name[2:]) if isinstance(one, dict) else None for one in (live, body))
        if name not in mine:
            left[name] = sub
        elif sub and (below := unlike(sub, mine[name], here, want)):
            left[name] = below
        elif not sub and here == want:
            left[name] = sub
    return left


def pruned(live: Any, former: Object, keep: list[Object]) -> Any:
    """The object without fields that a manager had and that no manager has any more."""
    left = dict(live)
    for name, sub in former.items():
        key, having = name[2:], [tree[name] for tree in keep if name in tree]
        if sub and isinstance(left.get(key), dict):
            left[key] = pruned(left[key], sub, having)
        elif not having:
            left.pop(key, None)
    return left


def merged(below: Any, above: Any) -> Any:
    """A JSON merge patch: null removes."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return copy.deepcopy(above)
    both = {**below, **{key: merged(below.get(key) or {} if isinstance(value, dict) else None, value)
                        for key, value in above.items()}}
    return {key: value for key, value in both.items() if value is not None or key not in above}
