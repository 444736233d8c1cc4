# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The differences between two policies. Their meaning is compared, so that they can have different formats. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Keys, shown, split_known
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import defaults, format_schemas
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

_OF_CHART = ("values", "defaults")
_COMMON: Keys = {**format_schemas.CLUSTER_POLICY, "cuda": format_schemas.GPU_CLUSTER_POLICY["cuda"]}
_BY_CLAIMS: Keys = {**_COMMON, "draDriver": "any", "gpuCluster": "any"}
# Paths at which an empty value differs from a value that is not set.
_EMPTY_COUNTS = ("migManager.config.default",)
# Names of documents within a policy, as the result contains them.
_MIG, _SHARING, _POOL = "migManager layouts", "devicePlugin sharing", "NVIDIADriver"


def compare(one: Policy, other: Policy) -> t.List[Data]:
    """The differences as C([{path, before, after}]), sorted by path. None means that a value is not set.

    The specs are compared with their defaults. Environment variables are compared by name (C(toolkit.env[NAME])), other
    lists as a whole, and NVIDIADrivers with a selector by name (C(NVIDIADriver blue.driver.version)).
    """
    # Keys that only the chart has, such as those of NFD, are not compared with a format that does not support them.
    same_keys = (one.kind in _OF_CHART) == (other.kind in _OF_CHART)
    before, after = ({**defaults.of_definition(), **dict(_leaves(_comparable(policy, same_keys), ""))}
                     for policy in (one, other))
    return [{"path": path, "before": before.get(path), "after": after.get(path)}
            for path in sorted({*before, *after}) if _differ(before.get(path), after.get(path))]


def described(difference: Section) -> str:
    """A difference as text, such as C(driver.version: '580.126.20' becomes '595.91.07')."""
    path, before, after = difference["path"], difference["before"], difference["after"]
    if before is None:
        return f"{path}: {shown(after)} is added"
    return f"{path}: {shown(before)} {'is removed' if after is None else f'becomes {shown(after)}'}"


def _differ(before: object, after: object) -> bool:
    # In Python, 1 and True are equal.
    return bool(before != after) or isinstance(before, bool) != isinstance(after, bool)


def _comparable(policy: Policy, everything: bool) -> Data:
    pools = {f"{_POOL} {pool.name}": pool.spec for pool in policy.pools}
    spec = {**policy.spec, "extraObjects": [item for item in policy.get("extraObjects") or []
                                            if item.get("kind") != "NVIDIADriver"]}
    for section, schema in format_schemas.CLUSTER_POLICY.items():
        if isinstance(schema, t.Mapping) and "enabled" in schema:
            spec[section] = {**(spec.get(section) or {}), "enabled": policy.enabled(section)}
    if policy.mig_config is not None:  # the layouts are compared instead of their text
        config = {key: value for key, value in spec["migManager"]["config"].items() if key != "data"}
        spec["migManager"] = {**spec["migManager"], "config": config}
    if not everything:
        spec = split_known(spec, _BY_CLAIMS if policy.get("gpuCluster.deployCR") else _COMMON)[0]
    return {**spec, _MIG: policy.mig_config, _SHARING: policy.sharing, **pools}


def _leaves(value: Value, path: str) -> t.Iterator[tuple[str, Value]]:
    """The paths and values of all keys that are set. A key with an empty value is treated as not set."""
    if isinstance(value, t.Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and path.endswith(".env"):
        for item in value:
            yield f"{path}[{item.get('name')}]", item.get("value") or ""
    elif value is not None and (value not in ("", []) or path in _EMPTY_COUNTS):
        yield path, value
