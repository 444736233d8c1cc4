# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parses the sharing configuration of the device plugin, on which labels depend. PRIVATE to the collection.

Source: configuration file `v1` of NVIDIA/k8s-device-plugin 0.20. Like the plugin, this file ignores `rename` and
`devices` of a resource, renames only by `renameByDefault`, and gives `mps` precedence over `timeSlicing`. The suffix
`SHARED` of a label is in C(gfd.py).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Sharing

_DOCUMENT_KEYS = ("version", "flags", "resources", "sharing", "imex")
_STRATEGIES = {"mps": "mps", "timeSlicing": "time-slicing"}
_STRATEGY_KEYS = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_RESOURCE_KEYS = ("name", "rename", "devices", "replicas")
_PREFIX = "nvidia.com/"


def parse_sharing(document: t.Mapping[str, object] | None) -> Sharing:
    """The sharing of a configuration file, or of its part `sharing`. Raises InputError with the path of the error."""
    if not document:
        return Sharing()
    sharing: object = document
    path = "sharing"
    if any(key in document for key in _DOCUMENT_KEYS):
        version = _mapping(document, _DOCUMENT_KEYS, path).get("version") or "v1"
        if version != "v1":
            raise InputError(f"the version '{version}' is unknown.", "Set version: v1.", path="sharing.version",
                             value=version, allowed=["v1"])
        sharing, path = document.get("sharing") or {}, "sharing.sharing"
    strategies = _mapping(sharing, tuple(_STRATEGIES), path)
    for key, strategy in _STRATEGIES.items():
        if strategies.get(key) is not None:
            return _parse_strategy(strategies[key], strategy, f"{path}.{key}")
    return Sharing()


def _parse_strategy(data: object, strategy: str, path: str) -> Sharing:
    options = _mapping(data, _STRATEGY_KEYS, path)
    resources = options.get("resources")
    if not isinstance(resources, list) or not resources:
        raise InputError("no resources are given.", "Set a list such as [{name: nvidia.com/gpu, replicas: 4}].",
                         path=f"{path}.resources", value=resources)
    replicas: dict[str, int] = {}
    for index, item in enumerate(resources):
        item_path = f"{path}.resources[{index}]"
        resource = _mapping(item, _RESOURCE_KEYS, item_path)
        name, count = resource.get("name"), resource.get("replicas")
        if not isinstance(name, str) or not name:
            raise InputError("a resource has no name.", "Set a name such as nvidia.com/gpu.", path=f"{item_path}.name",
                             value=name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 2:
            raise InputError(f"'{count}' is not a number of replicas.", "Set a whole number of 2 or more.",
                             path=f"{item_path}.replicas", value=count, allowed="2 or more")
        # The first of several entries for a resource is used.
        replicas.setdefault(name if name.startswith(_PREFIX) else _PREFIX + name, count)
    return Sharing(strategy, replicas, bool(options.get("renameByDefault", False)))


def _mapping(value: object, allowed: t.Sequence[str], path: str) -> t.Mapping[str, object]:
    """The value as a mapping. Raises InputError if it is no mapping or has other keys than the allowed ones."""
    if not isinstance(value, t.Mapping):
        raise InputError(f"a mapping is expected, this is a {type(value).__name__}.", path=path, value=value)
    for key in value:
        if key not in allowed:
            raise InputError(f"the key '{key}' is unknown here.", f"Known keys: {', '.join(allowed)}.",
                             path=f"{path}.{key}", value=key, allowed=list(allowed))
    return value
