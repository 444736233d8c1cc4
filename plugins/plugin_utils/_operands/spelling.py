# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a wanted object in the spelling of the live object. Pure. PRIVATE to the collection.

Kubernetes replaces pods if any byte of their template changes. A template of a GPU Operator is often equivalent to the
wanted template, but has variables and volumes in another order, or prints other texts while it waits. Written in the
operator's spelling, the wanted template does not replace such pods.
"""

from __future__ import annotations

import copy
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import compare
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.variables import DRIVER_DIGEST

# Lists that keep the order of the manifest.
_KEPT_ORDER = ("containers", "initContainers")
_SAID = re.compile(r"\becho [^;&|<>$`]*;")


def like(manifest: Object, live: Live) -> Object:
    """The manifest of a workload, with the pod template in the live spelling. Other manifests do not change."""
    template = (manifest.get("spec") or {}).get("template")
    have = (live.get("spec") or {}).get("template")
    if not template or not have:
        return manifest
    spelt = _like(template, have, "template")
    return {**manifest, "spec": {**manifest["spec"], "template": _digested(spelt, have)}}


def _like(want: t.Any, have: t.Any, name: str) -> t.Any:
    if isinstance(want, dict) and isinstance(have, dict):
        return {key: _like(value, have[key], key) if key in have else value for key, value in want.items()}
    if isinstance(want, list) and isinstance(have, list):
        return _list(want, have, name)
    if isinstance(want, str) and isinstance(have, str) and _SAID.sub("echo;", want) == _SAID.sub("echo;", have):
        return have
    return have if want and compare.same(want, have) else want


def _list(want: t.Sequence[t.Any], have: t.Sequence[t.Any], name: str) -> list[t.Any]:
    pairs = [(compare.partner(item, have, index), item) for index, item in enumerate(want)]
    found = [item if other is None else _like(item, other, "") for other, item in pairs]
    others = [next((index for index, one in enumerate(have) if one is other), None) for other, _item in pairs]
    if name in _KEPT_ORDER or compare.out_of_order(want, have, name) or None in others or len(set(others)) != len(have):
        return found
    return [item for _place, item in sorted(zip(t.cast("list[int]", others), found), key=lambda pair: pair[0])]


def _digested(spelt: Object, have: Live) -> Object:
    """The template with the driver digest of the live template, if both templates install the same driver. The operator
    computes the digest in another way than we do, and a new digest makes the driver manager reinstall the driver."""
    known = [item.get("value") for item in _digests(have)]
    if not known:
        return spelt
    kept = copy.deepcopy(spelt)
    for item in _digests(kept):
        item["value"] = known[0]
    parts = ("containers", "volumes")
    differs = any(compare.differences(kept["spec"].get(part), have["spec"].get(part), part) for part in parts)
    return spelt if differs else kept


def _digests(template: Live) -> list[Object]:
    spec = template["spec"]
    return [item for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]
            for item in container.get("env") or () if item["name"] == DRIVER_DIGEST]
