# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Translates formats to the common format, L(format_schemas.COMMON), and deprecated keys to their replacements.

Source of the pairs: the templates of the chart of GPU Operator 26.7 and its resource definitions. Pure. PRIVATE.
"""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import format_schemas
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import (
    get_path,
    pop_path,
    set_path,
    without_null,
)

# (path in the values of the chart, path in the resource)
VALUES_PAIRS = (
    ("driver.upgradePolicy.gpuPodDeletion", "driver.upgradePolicy.podDeletion"),
    ("driver.nvidiaDriverCRD.enabled", "driver.useNvidiaDriverCRD"),
)
# (path in an NVIDIADriver, path in the section driver of a ClusterPolicy)
DRIVER_PAIRS = (
    ("repoConfig.name", "repoConfig.configMapName"),
    ("licensingConfig.name", "licensingConfig.configMapName"),
    ("virtualTopologyConfig.name", "virtualTopology.config"),
)
# Sections of a ClusterPolicy, besides driver, that also exist in an NVIDIADriver.
BESIDE_DRIVER = ("gds", "gdrcopy")


def to_common(kind: str, spec: Section) -> Data:
    """A copy of a spec in the common format, without defaults and nulls."""
    copied: Data = copy.deepcopy(without_null(spec))
    if kind == "values":
        rename(copied, VALUES_PAIRS)
    elif kind == "NVIDIADriver":
        copied = _of_driver(copied)
    elif kind == "GPUCluster":
        set_path(copied, "gpuCluster.deployCR", True)
    return copied


def rename(data: Data, pairs: t.Iterable[tuple[str, str]], back: bool = False) -> None:
    """Moves the value at the first path of each pair to the second path; back: in the opposite direction. Removes
    sections that become empty."""
    for one, other in pairs:
        source, target = (other, one) if back else (one, other)
        value = pop_path(data, source)
        if value is not None:
            set_path(data, target, value)
            parent = source.rpartition(".")[0]
            if get_path(data, parent) == {}:
                pop_path(data, parent)


def _of_driver(spec: Data) -> Data:
    beside = {key: spec.pop(key) for key in BESIDE_DRIVER if key in spec}
    rename(spec, DRIVER_PAIRS)
    return {**beside, "driver": spec}


def add_implicit_defaults(kind: str, spec: Data) -> None:
    """Sets the defaults that the API server or the operator adds to existing sections."""
    upgrade = get_path(spec, "driver.upgradePolicy")
    if kind == "NVIDIADriver" and upgrade is None:
        set_path(spec, "driver.upgradePolicy", {"autoUpgrade": True})
    elif isinstance(upgrade, dict):
        upgrade.setdefault("autoUpgrade", kind == "NVIDIADriver")


def translate_deprecated(kind: str, spec: Data, document: Document, root: tuple[str, ...],
                         release: Release) -> list[str]:
    """Replaces or removes deprecated keys of a spec in the common format. Returns warnings."""
    warnings = []
    for path, (since, text, kept) in format_schemas.DEPRECATED.items():
        value = get_path(spec, path)
        if value is None or version_key(release.version) < version_key(since):
            continue
        if not _switched_off(value):
            warnings.append(f"{path_with_line(kind, path, document, root)} {text}.")
        if not kept:
            pop_path(spec, path)
    switch = get_path(spec, "driver.useOpenKernelModules")
    if switch is not None and get_path(spec, "driver.kernelModuleType") is None:
        flavour = "open" if switch else "proprietary"
        set_path(spec, "driver.kernelModuleType", flavour)
        if switch:
            where = path_with_line(kind, "driver.useOpenKernelModules", document, root)
            warnings.append(f"{where} is read as driver.kernelModuleType: {flavour}; from 25.3 on it has no effect.")
    return warnings


def newer_keys(kind: str, spec: Data, document: Document, root: tuple[str, ...], release: Release) -> list[str]:
    """Warnings about keys that the operator of this release does not support."""
    return [f"{path_with_line(kind, path, document, root)} is new in {since}; the operator of release "
            f"{release.version} does not know it." for path, since in format_schemas.SINCE.items()
            if version_key(since) > version_key(release.version) and not _switched_off(get_path(spec, path))]


def _switched_off(value: Value) -> bool:
    # The chart and the vendor's samples contain deprecated sections that are empty or disabled.
    return not value or (isinstance(value, dict) and not value.get("enabled", True))


def path_with_line(kind: str, path: str, document: Document, root: tuple[str, ...]) -> str:
    """A path in the common format with its line, such as C(driver.licensingConfig.configMapName (line 7))."""
    line = document.line((*root, *own_key(kind, path).split(".")))
    return f"{path} (line {line})" if line else path


def own_key(kind: str, path: str) -> str:
    """The path in a format (kind) that corresponds to a path in the common format."""
    if kind == "NVIDIADriver":
        own = path[len("driver."):] if path.startswith("driver.") else path
        return {new: old for old, new in DRIVER_PAIRS}.get(own, own)
    return {new: old for old, new in VALUES_PAIRS}.get(path, path) if kind == "values" else path
