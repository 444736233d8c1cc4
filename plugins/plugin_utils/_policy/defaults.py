# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The defaults of a policy (C(defaults.yml)), and access to values by paths such as C(driver.version). PRIVATE."""

from __future__ import annotations

import functools
import os

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import read_own


@functools.lru_cache(maxsize=None)
def _data() -> Data:
    return read_own(os.path.dirname(__file__), "defaults.yml")


def of_resource(release: Release) -> Data:
    """The defaults of a ClusterPolicy, in the structure of its spec."""
    return merge(_data()["resource"], {"cdi": {"enabled": release.defaults["cdi"]}})


def of_chart(release: Release) -> Data:
    """The defaults in a release's chart that differ from those of a ClusterPolicy, in the structure of the chart's
    values."""
    found: Data = {}
    for version, values in _data()["chart"].items():
        if version_key(version) <= version_key(release.version):
            found = merge(found, values)
    return found


def of_definition() -> Data:
    """The defaults that the API server or the operator sets, by path. They are used only for comparisons."""
    return dict(_data()["definition"])


def on_by_default(section: str) -> bool:
    """Whether a section such as C(devicePlugin) or C(driver.rdma) is enabled if its key C(enabled) is not set."""
    return section in _data()["on"]


def merge(base: Section, override: Section, drop_null: bool = False) -> Data:
    """Merges both mappings at all levels. The values in override take precedence.

    drop_null: whether null in override removes the key, as in Helm values.
    """
    result = dict(base)
    for key, value in override.items():
        former = result.get(key)
        if value is None and drop_null:
            result.pop(key, None)
        elif isinstance(former, dict) and isinstance(value, dict):
            result[key] = merge(former, value, drop_null)
        else:
            result[key] = value
    return result


def without_null(value: Value) -> Value:
    """A copy without the keys whose value is null, which means "not set"."""
    if isinstance(value, dict):
        return {key: without_null(item) for key, item in value.items() if item is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


def get_path(data: Value, path: str) -> Value:
    """The value at a path, None if it is not set."""
    for part in path.split("."):
        if not isinstance(data, dict):
            return None
        data = data.get(part)
    return data


def set_path(data: Data, path: str, value: Value) -> None:
    """Sets the value at a path. A parent that is not a mapping is replaced by a mapping."""
    *parents, last = path.split(".")
    for part in parents:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    data[last] = value


def pop_path(data: Data, path: str) -> Value:
    """Removes the value at a path and returns it. Returns None if it is not set."""
    parent, _dot, last = path.rpartition(".")
    mapping = get_path(data, parent) if parent else data
    return mapping.pop(last, None) if isinstance(mapping, dict) else None
