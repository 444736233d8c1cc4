# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds where a policy is silent, from C(defaults.yml), and how it is put below what a policy says. PRIVATE."""

from __future__ import annotations

import functools
import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import load_own

Data = t.Dict[str, t.Any]


@functools.lru_cache(maxsize=None)
def _data() -> Data:
    with open(os.path.join(os.path.dirname(__file__), "defaults.yml"), encoding="utf-8") as handle:
        return t.cast("Data", load_own(handle.read()))


def of_resource(release: Release) -> Data:
    """In the shape of a ClusterPolicy's spec."""
    return merge(_data()["resource"], {"cdi": {"enabled": release.defaults["cdi"]}})


def of_chart(release: Release) -> Data:
    """Where the chart of a release says something else; in the shape of its values."""
    found: Data = {}
    for version, values in _data()["chart"].items():
        if version_key(version) <= version_key(release.version):
            found = merge(found, values)
    return found


def of_definition() -> Data:
    """By path what counts where a resource is silent and nothing else fills it in; for comparing."""
    return t.cast("Data", _data()["definition"])


def on_when_silent(section: str) -> bool:
    """Whether C(devicePlugin) or C(driver.rdma) is on where its C(enabled) is not set."""
    return section in _data()["on"]


def merge(below: t.Mapping[str, t.Any], above: t.Mapping[str, t.Any], drop_null: bool = False) -> Data:
    """Both mappings; where both have a key, above wins, mappings are merged in depth.

    drop_null: null in above removes the key, as Helm has it for values.
    """
    result = dict(below)
    for key, value in above.items():
        former = result.get(key)
        if value is None and drop_null:
            result.pop(key, None)
        elif isinstance(former, dict) and isinstance(value, dict):
            result[key] = merge(former, value, drop_null)
        else:
            result[key] = value
    return result


def without_null(value: t.Any) -> t.Any:
    """A copy in which every key that is null is left out: null is "not set"."""
    if isinstance(value, dict):
        return {key: without_null(item) for key, item in value.items() if item is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


def look(data: t.Any, path: str) -> t.Any:
    """The value at C(driver.version), None where nothing is set."""
    for part in path.split("."):
        if not isinstance(data, dict):
            return None
        data = data.get(part)
    return data


def put(data: Data, path: str, value: t.Any) -> None:
    """Sets the value at C(driver.version); what is above it and no mapping becomes one."""
    *parents, last = path.split(".")
    for part in parents:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    data[last] = value


def take(data: Data, path: str) -> t.Any:
    """Removes the value at C(driver.version) and returns it, None where nothing is set."""
    parent, _dot, last = path.rpartition(".")
    holder = look(data, parent) if parent else data
    return holder.pop(last, None) if isinstance(holder, dict) else None
