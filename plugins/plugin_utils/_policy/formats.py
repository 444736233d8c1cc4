# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a policy: which format it is, whether it is well formed, and the same shape from all of them. PRIVATE."""

from __future__ import annotations

import copy
import os
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import fields
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.matrix import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.schema import check
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.yamltext import Document, Path, load_data, parse

SUPPORTED = ("ClusterPolicy (nvidia.com/v1), NVIDIADriver (nvidia.com/v1alpha1), GPUClusterPolicy (gpu.nvidia.com/v1), "
             "values of the GPU Operator's Helm chart")

# What holds where a document is silent. The operator treats an unset switch of these components as on.
_DEFAULTS: dict[str, t.Any] = {
    "driver": {"enabled": True, "kernelModuleType": "auto", "usePrecompiled": False, "rdma": {"enabled": False}},
    "toolkit": {"enabled": True},
    "devicePlugin": {"enabled": True},
    "gfd": {"enabled": True},
    "mig": {"strategy": "none"},
    "migManager": {"enabled": True},
    "gds": {"enabled": False},
    "gdrcopy": {"enabled": False},
    "cuda": {"enabled": False},
    "sandboxWorkloads": {"enabled": False},
}
# Where the chart's own defaults differ from those of the resource.
_CHART_DEFAULTS: dict[str, t.Any] = {"mig": {"strategy": "single"}, "driver": {"upgradePolicy": {"autoUpgrade": True}}}


@dataclass(frozen=True)
class Policy:
    """A policy, whatever its format was.

    kind: ClusterPolicy, values, NVIDIADriver, GPUClusterPolicy or defaults. origin: the file, or what stands for it.
    spec: in the shape of the ClusterPolicy's spec, defaults and versions of the release filled in.
    mig_config: the mig-parted document that the chart's values carry, or None. sharing: likewise of the device plugin.
    """

    kind: str
    origin: str
    spec: t.Mapping[str, t.Any]
    mig_config: t.Mapping[str, t.Any] | None
    sharing: t.Mapping[str, t.Any] | None
    warnings: t.Tuple[str, ...]

    def get(self, path: str) -> t.Any:
        """The value at C(driver.version), None where nothing is set."""
        value: t.Any = self.spec
        for part in path.split("."):
            if not isinstance(value, dict):
                return None
            value = value.get(part)
        return value


def read(source: str | t.Mapping[str, t.Any] | None, release: Release) -> Policy:
    """Reads a policy from a file (path), a mapping, or nothing (the release's defaults).

    Raises InputError that lists every fault with its path, line and nearest known key.
    """
    if source is None or source == "":
        return _policy("defaults", "defaults", {}, _CHART_DEFAULTS, release, [])
    if isinstance(source, str):
        document, origin = _from_file(source), source
    elif isinstance(source, dict):
        document, origin = Document(copy.deepcopy(source)), "gpu_policy"
    else:
        raise InputError(f"a path or a mapping is expected, {type(source).__name__} is given.", f"Give {SUPPORTED}.",
                         path="gpu_policy", value=source)
    if not isinstance(document.data, dict):
        raise InputError(f"{origin}: a mapping is expected, {type(document.data).__name__} stands there.",
                         f"Give {SUPPORTED}.")
    kind = _detect(document.data, origin)
    form = _FORMATS[kind]
    spec, faults = _spec(document, form)
    if faults:
        count = f"{len(faults)} faults" if len(faults) > 1 else "one fault"
        listed = "".join(f"\n  {fault}" for fault in faults)
        raise InputError(f"{origin} ({kind}) has {count}:{listed}\nNothing was changed.", faults=faults)
    return _policy(kind, origin, spec, form.defaults, release, _deprecations(spec, document, form.root))


def _from_file(path: str) -> Document:
    try:
        with open(path, encoding="utf-8") as handle:
            documents = parse(handle.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.",
                         "Give the path of the policy's file.", path="gpu_policy", value=path) from error
    if not documents:
        return Document({})
    if len(documents) > 1:
        kinds = ", ".join(str(one.data.get("kind", "?")) if isinstance(one.data, dict) else "?" for one in documents)
        raise InputError(f"{path} holds {len(documents)} documents ({kinds}), one is expected.",
                         "Keep the policy in a file of its own.", path="gpu_policy", value=path)
    return documents[0]


def _detect(data: t.Mapping[str, t.Any], origin: str) -> str:
    """The format, by content."""
    kind, version = data.get("kind"), data.get("apiVersion")
    if kind is None and version is None:
        return "values"
    expected = {"ClusterPolicy": "nvidia.com/v1", "NVIDIADriver": "nvidia.com/v1alpha1",
                "GPUClusterPolicy": "gpu.nvidia.com/v1"}.get(str(kind))
    if kind == "GPUCluster":
        raise InputError(f"{origin}: GPUCluster describes parts of a cluster only, hosts take nothing of it.",
                         f"Give one of {SUPPORTED}.")
    if expected is None:
        raise InputError(f"{origin}: {version} {kind} is not a policy.", f"Give one of {SUPPORTED}.")
    if version != expected:
        raise InputError(f"{origin}: {kind} has apiVersion {version!r}, expected is {expected!r}.", "Mend apiVersion.")
    return str(kind)


# -- one entry a format: its schema, whether the keys stand below spec, its defaults, its way to the common shape

def _cluster_policy(spec: dict[str, t.Any]) -> list[str]:
    # The API server fills this in where the section is there.
    upgrade = spec.get("driver", {}).get("upgradePolicy")
    if upgrade is not None:
        upgrade.setdefault("autoUpgrade", False)
    return []


def _nvidia_driver(spec: dict[str, t.Any]) -> list[str]:
    driver = dict(spec)
    spec.clear()
    spec.update({key: driver.pop(key) for key in ("gds", "gdrcopy") if key in driver}, driver=driver)
    if "upgradePolicy" in driver:
        driver["upgradePolicy"].setdefault("autoUpgrade", True)
    faults = []
    if driver.get("driverType", "gpu") != "gpu":
        faults.append(f"spec.driverType: {driver['driverType']!r} is not supported on hosts; allowed: 'gpu'")
    if driver.get("nodeSelector") or driver.get("nodeAffinity"):
        faults.append("spec.nodeSelector: hosts have no node labels; leave it out and use groups of the inventory")
    return faults


def _as_it_is(spec: dict[str, t.Any]) -> list[str]:
    return []


@dataclass(frozen=True)
class _Format:
    """schema: its keys; root: where they stand; defaults: its own; common: changes a spec into the common shape and
    returns what cannot be expressed in it."""

    schema: t.Mapping[str, t.Any]
    root: Path = ("spec",)
    defaults: t.Mapping[str, t.Any] = field(default_factory=dict)
    common: t.Callable[[dict[str, t.Any]], list[str]] = _as_it_is


_FORMATS: dict[str, _Format] = {
    "ClusterPolicy": _Format(fields.CLUSTER_POLICY, common=_cluster_policy),
    "values": _Format(fields.VALUES, root=(), defaults=_CHART_DEFAULTS),
    "NVIDIADriver": _Format(fields.NVIDIA_DRIVER, common=_nvidia_driver),
    "GPUClusterPolicy": _Format(fields.GPU_CLUSTER_POLICY),
}


def _spec(document: Document, form: _Format) -> tuple[dict[str, t.Any], list[str]]:
    """The spec in the common shape, and all faults."""
    spec = document.data
    if form.root:
        faults = check(document, fields.ENVELOPE)
        spec = spec.get("spec")
        if not isinstance(spec, dict):
            known = ", ".join(sorted(form.schema)[:12])
            return {}, [*faults, f"spec: a mapping is expected; known here: {known}"]
        faults += check(document, form.schema, form.root)
    else:
        faults = check(document, form.schema)
    if faults:
        return {}, faults
    result = _without_null(spec)
    return result, form.common(result)


def _without_null(value: t.Any) -> t.Any:
    """A copy in which everything null is left out: null is "not set"."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return value


def merge(below: t.Mapping[str, t.Any], above: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Both mappings; where both have a key, above wins, mappings are merged in depth."""
    result = dict(below)
    for key, value in above.items():
        former = result.get(key)
        result[key] = merge(former, value) if isinstance(former, dict) and isinstance(value, dict) else value
    return result


# -- the rest is the same for all formats

def _policy(kind: str, origin: str, spec: dict[str, t.Any], defaults: t.Mapping[str, t.Any], release: Release,
            warnings: list[str]) -> Policy:
    base = merge(merge(_DEFAULTS, {"cdi": {"enabled": release.defaults["cdi"]}}), defaults)
    mig_config = _embedded(spec, origin, "migManager", "config.yaml")
    sharing = _embedded(spec, origin, "devicePlugin", str(_config(spec, "devicePlugin").get("default") or ""))
    return Policy(kind, origin, merge(base, spec), mig_config, sharing, tuple(warnings))


def _config(spec: t.Mapping[str, t.Any], section: str) -> dict[str, t.Any]:
    config = (spec.get(section) or {}).get("config")
    return config if isinstance(config, dict) else {}


def _embedded(spec: t.Mapping[str, t.Any], origin: str, section: str, key: str) -> dict[str, t.Any] | None:
    """The document that the chart's values carry as the content of a ConfigMap."""
    data = _config(spec, section).get("data")
    text = data.get(key) if isinstance(data, dict) else None
    if not isinstance(text, str):
        return None
    where = f"{os.path.basename(origin)}, {section}.config.data[{key!r}]"
    content = load_data(text, where)
    if not isinstance(content, dict):
        raise InputError(f"{where}: a mapping is expected.", "Mend the policy.")
    return content


def _deprecations(spec: t.Mapping[str, t.Any], document: Document, root: Path) -> list[str]:
    found = []
    for path, text in fields.DEPRECATED.items():
        value: t.Any = spec
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        # An empty or switched-off section is how the chart and the samples carry old keys along.
        if value and not _switched_off(value):
            line = document.line((*root, *path.split(".")))
            found.append(f"{path}{f' (line {line})' if line else ''} {text}.")
    return found


def _switched_off(value: t.Any) -> bool:
    return isinstance(value, dict) and not value.get("enabled", True)
