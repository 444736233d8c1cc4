# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In what two policies differ, whatever their formats: what they mean is compared, not how it is written. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import known, shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import defaults, format_schemas
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Data = t.Dict[str, t.Any]
# Beside the sections of a spec: what stands for documents within it.
_OF_CHART = ("values", "defaults")
_COMMON: Data = {**format_schemas.CLUSTER_POLICY, "cuda": format_schemas.GPU_CLUSTER_POLICY["cuda"]}
_BY_CLAIMS: Data = {**_COMMON, "draDriver": "any", "gpuCluster": "any"}
_EMPTY_COUNTS = ("migManager.config.default",)
_MIG, _SHARING, _POOL = "migManager layouts", "devicePlugin sharing", "NVIDIADriver"


def compare(one: Policy, other: Policy) -> t.List[Data]:
    """C([{path, before, after}]) in the order of paths; null for what is not set.

    Effective specs are compared, with defaults filled in. Variables are compared by name (C(toolkit.env[NAME])), other
    lists as a whole, drivers for some nodes by the name of their NVIDIADriver (C(NVIDIADriver blue.driver.version)).
    """
    # What only the chart can say (how NFD and the operator run) is no difference to a format that cannot.
    alike = (one.kind in _OF_CHART) == (other.kind in _OF_CHART)
    before, after = ({**defaults.of_definition(), **dict(_leaves(_whole(policy, alike), ""))}
                     for policy in (one, other))
    return [{"path": path, "before": before.get(path), "after": after.get(path)}
            for path in sorted({*before, *after}) if _differ(before.get(path), after.get(path))]


def told(differences: t.Iterable[t.Mapping[str, t.Any]]) -> t.List[str]:
    """The same for people: C(driver.version: '580.126.20' becomes '595.91.07')."""
    return [_told(one) for one in differences]


def _told(one: t.Mapping[str, t.Any]) -> str:
    if one["before"] is None:
        return f"{one['path']}: {shown(one['after'])} is new"
    if one["after"] is None:
        return f"{one['path']}: {shown(one['before'])} is gone"
    return f"{one['path']}: {shown(one['before'])} becomes {shown(one['after'])}"


def _differ(before: t.Any, after: t.Any) -> bool:
    # 1 and True are equal to Python.
    return bool(before != after) or isinstance(before, bool) != isinstance(after, bool)


def _whole(policy: Policy, everything: bool) -> Data:
    pools = {f"{_POOL} {pool.name}": pool.spec for pool in policy.pools}
    spec = {**policy.spec, "extraObjects": [one for one in policy.get("extraObjects") or []
                                            if one.get("kind") != "NVIDIADriver"]}
    for section, schema in format_schemas.CLUSTER_POLICY.items():
        if "enabled" in schema:  # what is in force without a word is told as it is
            spec[section] = {**(spec.get(section) or {}), "enabled": policy.enabled(section)}
    if policy.mig_config is not None:  # its layouts are compared, not their text
        config = {key: value for key, value in spec["migManager"]["config"].items() if key != "data"}
        spec["migManager"] = {**spec["migManager"], "config": config}
    if not everything:
        spec = known(spec, _BY_CLAIMS if policy.get("gpuCluster.deployCR") else _COMMON)[0]
    return {**spec, _MIG: policy.mig_config, _SHARING: policy.sharing, **pools}


def _leaves(value: t.Any, path: str) -> t.Iterator[tuple[str, t.Any]]:
    """Path and value of everything that is set; what is empty says nothing."""
    if isinstance(value, t.Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and path.endswith(".env"):
        for item in value:
            yield f"{path}[{item.get('name')}]", item.get("value") or ""
    elif value is not None and (value not in ("", []) or path in _EMPTY_COUNTS):
        yield path, value
