# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sharing configuration of the device plugin, as far as labels depend on it. PRIVATE to the collection.

Source: configuration file `v1` of NVIDIA/k8s-device-plugin 0.20. As there, `rename` and `devices` of a resource are
ignored, only `renameByDefault` renames, and `mps` has precedence over `timeSlicing`.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Sharing

_DOCUMENT = ("version", "flags", "resources", "sharing", "imex")
_STRATEGIES = {"mps": "mps", "timeSlicing": "time-slicing"}
_GROUP = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_RESOURCE = ("name", "rename", "devices", "replicas")
_PREFIX = "nvidia.com/"


def parse_sharing(document: t.Mapping[str, object] | None) -> Sharing:
    """The sharing of a configuration file, or of its part `sharing`. Raises InputError with the path of the fault."""
    if not document:
        return Sharing()
    part: object = document
    path = "sharing"
    if any(key in document for key in _DOCUMENT):
        version = _mapping(document, _DOCUMENT, path).get("version") or "v1"
        if version != "v1":
            raise InputError(f"the version '{version}' is unknown.", "Write version: v1.", path="sharing.version",
                             value=version, allowed=["v1"])
        part, path = document.get("sharing") or {}, "sharing.sharing"
    groups = _mapping(part, tuple(_STRATEGIES), path)
    for key, strategy in _STRATEGIES.items():
        if groups.get(key) is not None:
            return _group(groups[key], strategy, f"{path}.{key}")
    return Sharing()


def _group(data: object, strategy: str, path: str) -> Sharing:
    group = _mapping(data, _GROUP, path)
    resources = group.get("resources")
    if not isinstance(resources, list) or not resources:
        raise InputError("no resources are given.", "Set a list such as [{name: nvidia.com/gpu, replicas: 4}].",
                         path=f"{path}.resources", value=resources)
    replicas: dict[str, int] = {}
    for index, item in enumerate(resources):
        where = f"{path}.resources[{index}]"
        resource = _mapping(item, _RESOURCE, where)
        name, count = resource.get("name"), resource.get("replicas")
        if not isinstance(name, str) or not name:
            raise InputError("a resource has no name.", "Write, for example, nvidia.com/gpu.", path=f"{where}.name",
                             value=name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 2:
            raise InputError(f"'{count}' is not a number of replicas.", "Set a whole number of 2 or more.",
                             path=f"{where}.replicas", value=count, allowed="2 or more")
        # The first of several entries for a resource is used.
        replicas.setdefault(name if name.startswith(_PREFIX) else _PREFIX + name, count)
    return Sharing(strategy, replicas, bool(group.get("renameByDefault", False)))


def _mapping(value: object, allowed: t.Sequence[str], path: str) -> t.Mapping[str, object]:
    """The value, a mapping with only these keys. Raises InputError."""
    if not isinstance(value, t.Mapping):
        raise InputError(f"a mapping is expected, this is a {type(value).__name__}.", path=path, value=value)
    for key in value:
        if key not in allowed:
            raise InputError(f"the key '{key}' is unknown here.", f"Known keys: {', '.join(allowed)}.",
                             path=f"{path}.{key}", value=key, allowed=list(allowed))
    return value
