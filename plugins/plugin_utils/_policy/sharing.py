# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads configurations of the device plugin in all supported formats, and reports their faults. Pure. PRIVATE.

Source: configuration file C(v1) of NVIDIA/k8s-device-plugin 0.20 and its config-manager. The plugin ignores unknown
keys, C(timeSlicing) if C(mps) is also set, and the second of two entries for one resource; here these are errors. Keys
that the plugin ignores with a warning (C(rename), C(devices), C(resources)) cause notes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import (
    Keys,
    Needed,
    Schema,
    check,
    fault_at,
    faults_error,
    shown,
    suggestion,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import (
    Document,
    Path,
    dotted,
    load_data,
    parse,
)

CONFIG_MAP = "nvidia-device-plugin-config"
# The name that a single configuration without a name gets.
ONLY = "default"
# The maximum number of MPS clients of one GPU, for Volta and later, and for older GPUs.
MPS_CLIENTS, OLD_MPS_CLIENTS = 48, 16

_GROUP: Keys = {"renameByDefault": "bool", "failRequestsGreaterThanOne": "bool", "resources": Needed([
    {"name": Needed("str"), "rename": "str", "devices": "any", "replicas": Needed("int")}])}
_RESOURCE: Keys = {"pattern": Needed("str"), "name": Needed("str")}
SCHEMA: Keys = {
    "version": ("v1",),
    "flags": {
        **dict.fromkeys(("failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled"), "bool"),
        **dict.fromkeys(("mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot"), "str"),
        "useNodeFeatureAPI": "bool",
        "migStrategy": ("none", "single", "mixed"), "deviceDiscoveryStrategy": ("auto", "nvml", "tegra"),
        "plugin": {"passDeviceSpecs": "bool", "deviceListStrategy": "any", "deviceIDStrategy": ("uuid", "index"),
                   "cdiAnnotationPrefix": "str", "nvidiaCTKPath": "str", "containerDriverRoot": "str",
                   "sharedDevicesAllocationPolicy": ("distributed", "packed")},
        "gfd": {"oneshot": "bool", "noTimestamp": "bool", "sleepInterval": "any", "outputFile": "str",
                "machineTypeFile": "str"},
    },
    "resources": {"gpus": [_RESOURCE], "mig": [_RESOURCE]},
    "sharing": {"timeSlicing": _GROUP, "mps": _GROUP},
    "imex": {"channelIDs": ["int"], "required": "bool"},
}
# The maximum depth and number of values. A configuration with all keys has about 100 values.
_DEPTH, _VALUES = 30, 50_000
_GROUPS = ("timeSlicing", "mps")
_NAMED = ("default", "configs")

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_MAP_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SHARED = re.compile(r"(nvidia\.com/)?(gpu|mig-([0-9]+c\.)?[0-9]+g\.[0-9]+gb(\.[a-z]+)*)")
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_DEVICE = re.compile(rf"[0-9]+(:[0-9]+)?|GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+")


@dataclass(frozen=True)
class Sharing:
    """The configurations of the device plugin. name: the name of their ConfigMap, empty if not set; default: the name
    of the configuration for Nodes that select none, empty for none; texts: the texts in the ConfigMap, by the name of
    the configuration; documents: the parsed texts, by name."""

    origin: str
    name: str
    default: str
    texts: t.Mapping[str, str]
    documents: t.Mapping[str, Document]

    def strategy(self, config: str) -> str:
        """How a configuration shares GPUs: C(mps), C(timeSlicing), or empty if it does not share them or is unknown."""
        document = self.documents.get(config)
        groups = ((document.data if document else None) or {}).get("sharing") or {}
        return next((name for name in ("mps", "timeSlicing") if groups.get(name)), "")

    def mps_replicas(self, config: str) -> int:
        """The largest number of replicas for which a configuration uses MPS, 0 if it does not use MPS."""
        document = self.documents.get(config)
        group = (((document.data if document else None) or {}).get("sharing") or {}).get("mps") or {}
        return max((int(one["replicas"]) for one in group.get("resources") or ()), default=0)


def checksum(texts: t.Mapping[str, str]) -> str:
    """The checksum of the texts of a ConfigMap, empty if there are none. It becomes an annotation of pods."""
    return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()[:16] if texts else ""


# -- reading

def read(document: Document, origin: str = "gpu_sharing") -> Sharing:
    """The configurations in gpu_sharing: a ConfigMap, C({default, configs}), one configuration, or only its section
    C(sharing).

    A single configuration becomes the default. Raises InputError with all faults.
    """
    found = _read(document, origin)
    return found if found.default or len(found.texts) > 1 else replace(found, default=next(iter(found.texts)))


def _read(document: Document, origin: str) -> Sharing:
    data = document.data
    if not isinstance(data, dict):
        raise InputError(f"a mapping is expected, not {shown(data)}.", "Write {timeSlicing: {resources: [{name: "
                         "nvidia.com/gpu, replicas: 4}]}}, or the path of a file with a ConfigMap.",
                         path=origin, value=data)
    if data.get("kind") == "ConfigMap":
        return _of_config_map(document, origin)
    if "configs" in data:
        return _of_named(document, origin)
    if not any(key in data for key in (*_GROUPS, *SCHEMA)):
        keys = [*_NAMED, *_GROUPS, *SCHEMA]
        unknown = [fault_at(document, (key,), f"unknown key{suggestion(str(key), keys)}") for key in data]
        raise faults_error(origin, unknown or ["it is empty; remove it, or write {timeSlicing: {resources: [...]}}"])
    return _from_data(origin, ONLY, {ONLY: document})


def of_texts(name: str, default: str, texts: Value, origin: str) -> Sharing:
    """The configurations in the data of a ConfigMap (texts). Raises InputError with all faults."""
    if not isinstance(texts, dict) or not texts:
        raise faults_error(origin, ["it has no configuration, but pods wait for one; write data: {NAME: "
                                    "'version: v1 ...'}"])
    faults = [f"{dotted((str(key),))}: a string is expected, not {shown(text)}; write {key}: | and indent the "
              "lines below it" for key, text in texts.items() if not isinstance(text, str)]
    texts = {key: text for key, text in texts.items() if isinstance(text, str)}
    documents: dict[str, Document] = {}
    for key, text in texts.items():
        found = parse(text, f"{origin}, {key}")
        if len(found) > 1:
            faults.append(f"{key}: one document is expected, not {len(found)}; keep one")
        documents[str(key)] = found[0] if found else Document({})
    texts = {str(key): text for key, text in texts.items()}
    return _validated(Sharing(origin, name, default, texts, documents), faults)


def _of_config_map(document: Document, origin: str) -> Sharing:
    data = document.data
    metadata = data.get("metadata")
    name = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
    misplaced = [key for key in data if key in SCHEMA or key in _GROUPS]
    if misplaced:
        raise faults_error(origin, [f"{misplaced[0]} is at the top level, because the document has lost its "
                                    "indentation; indent it below the name of its configuration, data: {NAME: | ...}"])
    return of_texts(name, "", data.get("data"), f"{origin} (ConfigMap {name})" if name else origin)


def _of_named(document: Document, origin: str) -> Sharing:
    data = document.data
    faults = [fault_at(document, (key,), f"unknown key{suggestion(str(key), _NAMED)}")
              for key in data if key not in _NAMED]
    configs, default = data["configs"], data.get("default") or ""
    if not isinstance(configs, dict) or not configs:
        faults.append(fault_at(document, ("configs",), "a mapping of names to configurations is expected, not "
                               f"{shown(configs)}; write " "{dense: {timeSlicing: {resources: [...]}}}"))
    if not isinstance(default, str):
        faults.append(fault_at(document, ("default",), f"a name is expected, not {shown(default)}"))
    if not isinstance(configs, dict):
        raise faults_error(origin, faults)
    inner = {str(key): document.part("configs", key) for key in configs}
    return _from_data(origin, default if isinstance(default, str) else "", inner, faults)


def _from_data(origin: str, default: str, given: t.Mapping[str, Document], faults: t.Sequence[str] = ()) -> Sharing:
    """Completes configurations that are mappings, and adds their texts. faults: faults that are already known."""
    documents = {key: _complete(one) for key, one in given.items()}
    found = _validated(Sharing(origin, "", default, dict.fromkeys(documents, ""), documents), [*faults])
    return replace(found, texts={key: json.dumps(one.data, indent=2, sort_keys=True) + "\n"
                                 for key, one in documents.items()})


def _complete(document: Document) -> Document:
    """Returns a complete configuration from a text, a mapping, or only its section C(sharing)."""
    data = document.data
    if isinstance(data, str):
        return Document(load_data(data, "gpu_sharing"))
    if not isinstance(data, dict):
        return document if data is not None else Document({"version": "v1"})
    if any(key in data for key in _GROUPS) and not any(key in data for key in SCHEMA):
        return Document({"version": "v1", "sharing": data},
                        {("sharing", *path): line for path, line in document.lines.items()})
    return Document({"version": "v1", **data}, document.lines)


def _validated(sharing: Sharing, faults: list[str]) -> Sharing:
    """Returns the argument if it has no faults. faults: faults that are already known. Raises InputError with all
    faults."""
    default = sharing.default
    for name, document in sharing.documents.items():
        if not _LABEL.fullmatch(name):
            faults.append(f"{name!r} is not a valid name of a configuration: the name is the value of a label; use at "
                          "most 63 letters, digits, dashes, dots and underscores, with a letter or digit at both ends")
        place = "" if list(sharing.texts) == [ONLY] else f"{name}: "
        faults += [f"{place}{fault}" for fault in document_faults(document)]
    if sharing.name and not _MAP_NAME.fullmatch(sharing.name):
        faults.append(f"metadata.name: {sharing.name!r} is not valid: it is also the name of a volume of pods; use at "
                      "most 63 lowercase letters, digits and dashes")
    if default and default not in sharing.texts:
        faults.append(f"default: {shown(default)} is not one of the configurations"
                      f"{suggestion(default, list(sharing.texts))}")
    if faults:
        raise faults_error(sharing.origin, faults)
    return sharing


# -- the faults of one configuration

def document_faults(document: Document) -> list[str]:
    """All faults of a configuration, each with its path, line and value, and the remedy."""
    if document.data in (None, {}):
        return []
    if not isinstance(document.data, dict):
        return [f"a mapping is expected, not {shown(document.data)}; write version: v1, and sharing below it"]
    found = list(_json_faults(document))
    if found:
        return found
    rest = Document(_without_misplaced(document, copy.deepcopy(document.data), SCHEMA, (), found), document.lines)
    return [*found, *check(rest, SCHEMA), *_group_faults(document), *_imex_faults(document)]


def _json_faults(document: Document) -> t.Iterator[str]:
    """Faults for values that do not exist in JSON, which the plugin reads: dates, bytes, integers of more than 64 bits,
    and keys that are not strings. Also a fault for too many values or levels."""
    rest: list[tuple[Path, Value]] = [((), document.data)]
    count = 0
    while rest:
        path, value = rest.pop()
        count += 1
        if count > _VALUES or len(path) > _DEPTH:
            yield fault_at(document, path[:3], f"it has more than {_VALUES:,} values" if count > _VALUES else
                           f"it has more than {_DEPTH} levels")
            return
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    yield fault_at(document, (*path, shown(key)), "a string is expected as key; write it in quotes")
            rest += [((*path, key), inner) for key, inner in reversed(value.items()) if isinstance(key, str)]
        elif isinstance(value, list):
            rest += [((*path, index), value[index]) for index in reversed(range(len(value)))]
        elif isinstance(value, (int, float)):
            if value.bit_length() > 64 if isinstance(value, int) else not math.isfinite(value):
                yield fault_at(document, path, f"{shown(value)} is not a valid number")
        elif value is not None and not isinstance(value, str):
            yield fault_at(document, path, f"{shown(value)} is not a string; write it in quotes")


def _without_misplaced(document: Document, data: Value, schema: Schema, path: Path, found: list[str]) -> Value:
    """The data without known keys in wrong places. Adds the faults of these keys to found."""
    schema = schema.schema if isinstance(schema, Needed) else schema
    if isinstance(schema, t.Mapping) and isinstance(data, dict):
        for key in list(data):
            if key in schema:
                data[key] = _without_misplaced(document, data[key], schema[key], (*path, key), found)
            elif key in _PARENTS:
                near = [home for home in _PARENTS[key] if path[1:] and home.startswith(dotted(path[:2]))]
                found.append(fault_at(document, (*path, key), f"{shown(data.pop(key))} has no effect here; it belongs "
                                                              f"in {' or '.join(near or _PARENTS[key])}"))
    elif isinstance(schema, list) and isinstance(data, list):
        return [_without_misplaced(document, one, schema[0], (*path, index), found) for index, one in enumerate(data)]
    return data


def _parents_of_keys(schema: Schema, path: str, found: dict[str, list[str]]) -> dict[str, list[str]]:
    schema = schema.schema if isinstance(schema, Needed) else schema
    if isinstance(schema, list):
        _parents_of_keys(schema[0], f"{path}[]", found)
    elif isinstance(schema, t.Mapping):
        for key, inner in schema.items():
            found.setdefault(key, []).append(path or "the top level")
            _parents_of_keys(inner, f"{path}.{key}" if path else key, found)
    return found


# The parent keys of keys in the schema, except keys that exist in several places.
_PARENTS = {key: paths for key, paths in _parents_of_keys(SCHEMA, "", {}).items()
            if key not in ("name", "pattern", "rename", "resources", "devices", "gpus", "mig", "required")}


# The following functions skip values of wrong types, which the validation with the schema reports.

def _mapping(value: object) -> Section:
    return value if isinstance(value, dict) else {}


def _group_faults(document: Document) -> t.Iterator[str]:
    sharing = _mapping(document.data.get("sharing"))
    groups = {name: _mapping(sharing[name]) for name in _GROUPS if sharing.get(name) is not None}
    if len(groups) > 1:
        yield fault_at(document, ("sharing", "mps"), "mps and timeSlicing are both set, and the plugin then ignores "
                                                     "timeSlicing; keep one of them")
    for name, group in groups.items():
        path: Path = ("sharing", name, "resources")
        resources = group.get("resources")
        if resources == []:
            yield fault_at(document, path, "no resources are given; write [{name: nvidia.com/gpu, replicas: 4}]")
        first: dict[str, int] = {}
        for index, one in enumerate(resources if isinstance(resources, list) else ()):
            yield from _resource_faults(document, (*path, index), name, _mapping(one))
            if not isinstance(_mapping(one).get("name"), str):
                continue
            same = first.setdefault(one["name"].rpartition("/")[2], index)
            if same != index:
                yield fault_at(document, (*path, index, "name"), f"{one['name']!r} is also in resources[{same}], and "
                               "the plugin uses only the first; all GPUs of a Node have the same number of replicas, "
                               "so use another configuration for other Nodes")


def _resource_faults(document: Document, path: Path, group: str, one: Section) -> t.Iterator[str]:
    name, replicas, devices = one.get("name"), one.get("replicas"), one.get("devices", "all")
    if isinstance(name, str) and not _SHARED.fullmatch(name):
        yield fault_at(document, (*path, "name"), f"{name!r} is not a resource of the device plugin; allowed: "
                                                  "nvidia.com/gpu, and, with the MIG strategy mixed, names such as "
                                                  "nvidia.com/mig-1g.10gb")
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        pass
    elif replicas < 2:
        yield fault_at(document, (*path, "replicas"), f"{replicas} is too small; the smallest value is 2; to switch "
                                                      "sharing off, remove the entry")
    elif group == "mps" and replicas > MPS_CLIENTS:
        yield fault_at(document, (*path, "replicas"), f"{replicas} is too large; MPS has at most {MPS_CLIENTS} clients "
                                                      "on a GPU ({OLD_MPS_CLIENTS} before Volta)")
    if not _are_devices(devices):
        yield fault_at(document, (*path, "devices"), f"{shown(devices)} is not allowed; allowed: all, a number of "
                                                     "GPUs, or a list of indexes, MIG indexes such as '0:1', and UUIDs")


def _are_devices(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, (int, str)) and not isinstance(one, bool) and _DEVICE.fullmatch(str(one))
                   for one in value)
    return value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


def _imex_faults(document: Document) -> t.Iterator[str]:
    channels = _mapping(document.data.get("imex")).get("channelIDs") or []
    if channels not in ([], [0]) and isinstance(channels, list) and all(isinstance(one, int) for one in channels):
        yield fault_at(document, ("imex", "channelIDs"), f"{shown(channels)} is not allowed; allowed: [] and [0]")
