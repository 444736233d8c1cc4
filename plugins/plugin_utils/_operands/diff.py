# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shows an object before and after a change, for Ansible's diff. Pure. PRIVATE to the collection.

Both sides omit the fields that neither we have written nor others have added to our objects: defaults, identity,
status. The values of a Secret are never shown. Other secrets that L(hidden) detects, such as users and queries in URLs
and variables whose names denote a secret, are not shown either, because others may have written them into an object.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import MissingLibrary
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import hidden
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import compare, field_owners

try:
    import yaml
except ImportError:
    HAS_YAML = False
else:
    HAS_YAML = True

    class _Dumper(yaml.SafeDumper):
        """Writes texts of several lines as block scalars."""

    _Dumper.add_representer(str, lambda dumper, value: dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None))

_NOISE = ("apiVersion", "kind", "metadata", "status")
# The defaults of the server. A client that writes whole objects also owns these fields. They keep their values when the
# client is no longer their owner, so the diff omits them.
_DEFAULTS: Live = {
    "apiVersion": "v1", "defaultMode": 420, "dnsPolicy": "ClusterFirst", "failureThreshold": 3,
    "internalTrafficPolicy": "Cluster", "maxSurge": 0, "periodSeconds": 10, "protocol": "TCP",
    "restartPolicy": "Always", "revisionHistoryLimit": 10, "schedulerName": "default-scheduler", "scheme": "HTTP",
    "securityContext": {}, "sessionAffinity": "None", "successThreshold": 1, "terminationGracePeriodSeconds": 30,
    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "timeoutSeconds": 1,
    "type": "ClusterIP",
}
# The annotation in which kubectl keeps a copy of the object that was applied, as JSON.
_COPY = "kubectl.kubernetes.io/last-applied-configuration"
_METADATA = ("name", "namespace", "labels", "annotations")


def pair(manifest: Live | None, live: Live | None) -> tuple[Object, Object]:
    """(the object before the change, the object after the change). Empty if the object does not exist at that time."""
    before: Object = {}
    after: Object = {}
    if live is not None:
        added: field_owners.Tree = {}
        for tree in field_owners.foreign(live).values():
            added = field_owners.union(added, tree)
        have = {**_without_noise(live), **_identity(live)}
        want = _without_noise(manifest) if manifest is not None else {"metadata": _name(live)}
        before = _shown(have, {**_identity(live), **want}, field_owners.ours(live), added)
    if manifest is not None:
        after = {**_identity(manifest), **_without_noise(manifest)}
    return masked(before, after)


def masked(before: Object, after: Object) -> tuple[Object, Object]:
    """Both sides of an object with hidden secrets. Only whether a secret differs is shown."""
    return _masked(before, after), _masked(after, before)


def text(item: Object) -> str:
    """An object as YAML, with scripts as block scalars. Empty for an object that does not exist."""
    if not item:
        return ""
    if not HAS_YAML:
        raise MissingLibrary("yaml", "Install it on the controller: pip install PyYAML.")
    return str(yaml.dump(item, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=4096))


def _identity(item: Live) -> Object:
    return {"apiVersion": item["apiVersion"], "kind": item["kind"]}


def _name(item: Live) -> Object:
    return {name: item["metadata"][name] for name in ("name", "namespace") if item["metadata"].get(name)}


def _without_noise(item: Live) -> Object:
    metadata = {name: item["metadata"][name] for name in _METADATA if item["metadata"].get(name)}
    return {"metadata": metadata, **{name: value for name, value in item.items() if name not in _NOISE}}


def _shown(have: t.Any, want: t.Any, mine: field_owners.Tree | None, added: field_owners.Tree | None) -> t.Any:
    """The part of a live value that is in the manifest, that we own, or that others have added. It has the order of the
    manifest, and the spelling of the manifest if both values are equivalent.

    mine, added: the branches for this value in the trees of our and of added fields, None if it is not in the tree.
    """
    if not isinstance(have, (dict, list)):
        return want if want is not None and compare.same(want, have) else have
    if mine == {} or added == {}:  # the value is owned as a whole
        return want if added is None and want is not None and not compare.differences(want, have, "") else have
    if isinstance(have, list):
        return _shown_items(have, want if isinstance(want, list) else [], mine, added)
    wish = want if isinstance(want, dict) else {}
    found = {name: _shown(have[name], wish.get(name), (mine or {}).get(f"f:{name}"), (added or {}).get(f"f:{name}"))
             for name in have if name in wish or f"f:{name}" in (mine or {})
             or (f"f:{name}" in (added or {}) and not (name in _DEFAULTS and _DEFAULTS[name] == have[name]))}
    # An empty value in the manifest is equivalent to a missing live value.
    found.update({name: value for name, value in wish.items() if name not in have and compare.same(value, None)})
    return {name: found[name] for name in {**wish, **found} if name in found}


def _shown_items(have: t.Sequence[t.Any], want: t.Sequence[t.Any], mine: field_owners.Tree | None,
                 added: field_owners.Tree | None) -> list[t.Any]:
    kept = []
    for index, item in enumerate(have):
        wish = compare.partner(item, want, index)
        ours, _ignored = field_owners.item_of(mine or {}, item)
        theirs, _ignored = field_owners.item_of(added or {}, item)
        if wish is not None or ours is not None or theirs is not None:
            kept.append(_shown(item, wish, ours, theirs))
    return kept


def _masked(item: Object, other: Object) -> Object:
    """The object with hidden secrets. Only whether they differ from the other side is shown."""
    if item.get("kind") != "Secret":
        return t.cast(Object, _covered(item, {*_texts(other)}))
    former = other.get("data") or {}
    rest = {name: _covered(value, {*_texts(other)}, True) for name, value in item.items() if name != "data"}
    return {**item, **rest, "data": {name: _hidden("(hidden)", not other or former.get(name) == value)
                                     for name, value in (item.get("data") or {}).items()}}


def _covered(value: t.Any, others: t.AbstractSet[str], of_secret: bool = False) -> t.Any:
    """A part of an object without secrets. others: all texts of the other side, empty if that object does not exist.
    of_secret: whether the object is a Secret, of which kubectl may keep a copy."""
    if isinstance(value, dict):
        secret = isinstance(value.get("value"), str) and hidden.is_secret_variable(value)
        return {name: _hidden("(hidden)", not others or one in others)
                if (secret and name == "value") or (name == _COPY and (of_secret or _copy_holds_secret(one)))
                else _covered(one, others, of_secret) for name, one in value.items()}
    if isinstance(value, list):
        return [_covered(one, others, of_secret) for one in value]
    if isinstance(value, str):
        shown = hidden.without_parts(value, "(hidden)")
        return value if shown == value else _hidden(shown, not others or value in others)
    return value


def _copy_holds_secret(text: t.Any) -> bool:
    """Whether the copy of an object, as JSON, holds a secret or cannot be read."""
    try:
        return hidden.holds_secret(json.loads(text))
    except (TypeError, ValueError, RecursionError):
        return True


def _hidden(shown: str, same: bool) -> str:
    return shown if same else shown.replace("(hidden)", "(hidden, it differs)")


def _texts(value: t.Any) -> t.Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
