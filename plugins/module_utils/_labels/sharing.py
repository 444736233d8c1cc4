# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device plugin's sharing configuration, as far as labels depend on it. Pure. PRIVATE to the collection.

Source: configuration file C(v1) of NVIDIA/k8s-device-plugin 0.20. C(rename) and C(devices) of a resource are ignored
there too; only C(renameByDefault) renames. Where both C(mps) and C(timeSlicing) stand, C(mps) wins.
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


def parse_sharing(document: t.Mapping[str, t.Any] | None) -> Sharing:
    """L(Sharing) of a whole configuration file or of its C(sharing) part. Raises InputError at the wrong place."""
    if not document:
        return Sharing()
    path = "sharing"
    if any(key in document for key in _DOCUMENT):
        _known(document, _DOCUMENT, path)
        version = document.get("version") or "v1"
        if version != "v1":
            raise InputError(f"the version '{version}' is not known.", "Write version: v1.", path="sharing.version",
                             value=version, allowed=["v1"])
        document, path = document.get("sharing") or {}, "sharing.sharing"
    _mapping(document, path)
    _known(document, tuple(_STRATEGIES), path)
    for key, strategy in _STRATEGIES.items():
        if document.get(key) is not None:
            return _group(document[key], strategy, f"{path}.{key}")
    return Sharing()


def _group(group: t.Any, strategy: str, path: str) -> Sharing:
    _mapping(group, path)
    _known(group, _GROUP, path)
    resources = group.get("resources")
    if not isinstance(resources, list) or not resources:
        raise InputError("no resources are given.", "Give a list such as [{name: nvidia.com/gpu, replicas: 4}].",
                         path=f"{path}.resources", value=resources)
    replicas: dict[str, int] = {}
    for index, resource in enumerate(resources):
        where = f"{path}.resources[{index}]"
        _mapping(resource, where)
        _known(resource, _RESOURCE, where)
        name, count = resource.get("name"), resource.get("replicas")
        if not isinstance(name, str) or not name:
            raise InputError("a resource has no name.", "Write for example nvidia.com/gpu.", path=f"{where}.name",
                             value=name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 2:
            raise InputError(f"'{count}' is not a number of replicas.", "Give a whole number of 2 or more.",
                             path=f"{where}.replicas", value=count, allowed="2 or more")
        # The first of several entries for one resource counts.
        replicas.setdefault(name if name.startswith(_PREFIX) else _PREFIX + name, count)
    return Sharing(strategy, replicas, bool(group.get("renameByDefault", False)))


def _mapping(value: t.Any, path: str) -> None:
    if not isinstance(value, t.Mapping):
        raise InputError(f"a mapping is expected, this is a {type(value).__name__}.", path=path, value=value)


def _known(mapping: t.Mapping[str, t.Any], allowed: t.Sequence[str], path: str) -> None:
    for key in mapping:
        if key not in allowed:
            raise InputError(f"the key '{key}' is not known here.", f"Known are {', '.join(allowed)}.",
                             path=f"{path}.{key}", value=key, allowed=list(allowed))
