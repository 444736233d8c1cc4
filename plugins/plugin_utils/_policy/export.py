# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts a policy to another format. Pure. PRIVATE.

Only the keys that the documents set are exported, without the defaults. A default is exported only if the other format
has a different one. Therefore, a ClusterPolicy does not change when it is converted to values and back. L(unexported)
lists the keys that the other format does not support.
"""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import has_effect, split_known
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import (
    cluster_images,
    defaults,
    format_schemas,
    translate,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path, merge, pop_path, set_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy, Source

# Sections that the definition of the resource requires, even if they are empty.
_REQUIRED = ("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gfd", "nodeStatusExporter", "operator",
             "toolkit")
# Sections whose presence changes the defaults of a resource.
_WHOLE = ("driver.upgradePolicy",)
# Keys that the templates of the chart of GPU Operator 26.7 do not write to the ClusterPolicy.
_NOT_RENDERED = (
    "operator.labels", "operator.annotations", "operator.defaultRuntime", "operator.initContainer", "cdi.default",
    "daemonsets.podSecurityContext", "driver.useOpenKernelModules", "driver.manager.imagePullSecrets", "toolkit.args",
    "devicePlugin.mps", "dcgm.hostPort", "psp", "vfioManager.driverManager.imagePullSecrets",
    "vgpuManager.driverManager.imagePullSecrets",
)
# Sections of driver.upgradePolicy that the upgrade controller of GPU Operator 25.3.4 needs, with defaults of the chart.
_UPGRADE: t.Mapping[str, t.Mapping[str, bool | int]] = {
    "drain": {"enable": False}, "podDeletion": {"force": False, "timeoutSeconds": 300, "deleteEmptyDir": False}}
# Images with the version of the operator: their default in clusterpolicy.yaml of the chart is its appVersion.
_OF_CHART = ("validator", "nodeStatusExporter")
# Keys of the section daemonsets that also exist in an NVIDIADriver.
_SHARED = ("labels", "annotations", "tolerations", "priorityClassName", "podSecurityContext")
# Keys of the section driver that are not needed in an NVIDIADriver.
_SWITCHES = ("enabled", "useNvidiaDriverCRD", "useOpenKernelModules", "nvidiaDriverCRD")


def to_cluster_policy(policy: Policy) -> Data:
    """The policy as a ClusterPolicy object. Raises InputError if a single ClusterPolicy cannot express the policy."""
    spec, _left_out = _cluster_policy(policy)
    source = _of_kind(policy, "ClusterPolicy")
    for section in _REQUIRED:
        spec.setdefault(section, {})
    return _object("ClusterPolicy", source[0].name if source else "cluster-policy", spec)


def complete(resource: Data, policy: Policy, mirror: str) -> Data:
    """A ClusterPolicy with what the operator needs and the chart always writes: the references of all images, and
    sections of the upgrade policy without which its upgrade controller fails. A policy that is a ClusterPolicy itself
    is not changed. mirror: see L(cluster_images.image)."""
    if not _of_kind(policy, "ClusterPolicy"):
        spec = resource["spec"]
        for path, value in cluster_images.stated(policy, releases.release(policy.release), mirror).items():
            set_path(spec, path, value)
        upgrade = get_path(spec, "driver.upgradePolicy")
        if isinstance(upgrade, dict) and upgrade:
            for key, section in _UPGRADE.items():
                upgrade[key] = upgrade.get(key) or dict(section)
    return resource


def to_values(policy: Policy) -> Data:
    """Values of the Helm chart. Null removes a default of the chart that is not set in the policy."""
    values = _of_kind(policy, "values")
    if values:
        return copy.deepcopy(dict(values[0].spec))
    if not policy.sources:
        return {}
    spec, _left_out = _cluster_policy(policy)
    chart = defaults.of_chart(releases.release(policy.release))
    result = merge(_nulls(chart, spec, ""), spec)
    translate.rename(result, translate.VALUES_PAIRS, back=True)
    drivers = to_nvidia_driver(policy) if _of_kind(policy, "NVIDIADriver") else []
    if drivers and _of_kind(policy, "ClusterPolicy"):
        set_path(result, "driver.nvidiaDriverCRD.deployDefaultCR", False)
        result["extraObjects"] = drivers
    return result


def to_nvidia_driver(policy: Policy) -> t.List[Data]:
    """The NVIDIADriver objects of the policy, or a default object if it has none. Empty if the policy disables the
    driver."""
    sources = _of_kind(policy, "NVIDIADriver")
    if sources:
        return [_object("NVIDIADriver", source.name, copy.deepcopy(dict(source.spec))) for source in sources]
    if not policy.enabled("driver"):
        return []
    release = releases.release(policy.release)
    stated = _stated(policy)
    driver, _left_out = _nvidia_driver(stated)
    # An NVIDIADriver has no defaults for the parts of an image reference.
    for key, value in zip(cluster_images.PARTS, cluster_images.parts(release, "driver")):
        if not driver.get(key) and not (key != "image" and "/" in str(driver.get("image") or "")):
            driver[key] = value
    driver["driverType"] = get_path(stated, "driver.nvidiaDriverCRD.driverType") or "gpu"
    if version_key(release.version) >= version_key("26.7"):
        driver["default"] = True
        # The default of autoUpgrade is true in an NVIDIADriver, and false in a ClusterPolicy.
        driver["upgradePolicy"] = {"autoUpgrade": False, **driver.get("upgradePolicy", {})}
    else:
        driver.pop("upgradePolicy", None)
    return [_object("NVIDIADriver", "default", driver)]


def unexported(policy: Policy, form: str) -> t.List[str]:
    """The parts of a policy that a format (C(cluster_policy), C(values), C(nvidia_driver)) does not support, each as a
    sentence."""
    if form == "nvidia_driver":
        left = _not_of_drivers(policy)
        return [f"An NVIDIADriver does not have these sections and keys: {', '.join(left)}."] if left else []
    if form == "values" and (_of_kind(policy, "values") or not policy.sources):
        return []
    spec, lost = _cluster_policy(policy)
    notes = [f"A ClusterPolicy does not have these keys: {', '.join(lost)}."] if lost else []
    if form == "values":
        kept = [path for path in _NOT_RENDERED if has_effect(get_path(spec, path))]
        notes += [f"Only this collection uses these keys; the chart ignores them: {', '.join(kept)}."] if kept else []
    return notes


def _nvidia_driver(stated: Section) -> tuple[Data, list[str]]:
    """(spec of an NVIDIADriver, paths in it that an NVIDIADriver does not have) of a spec in the common format."""
    driver = {key: value for key, value in (stated.get("driver") or {}).items() if key not in _SWITCHES}
    driver.update({key: value for key, value in (stated.get("daemonsets") or {}).items() if key in _SHARED})
    driver.update({key: stated[key] for key in translate.BESIDE_DRIVER if key in stated})
    translate.rename(driver, translate.DRIVER_PAIRS, back=True)
    return split_known(driver, format_schemas.NVIDIA_DRIVER)


def _not_of_drivers(policy: Policy) -> list[str]:
    """The sections and keys with an effect that the policy sets beside its NVIDIADrivers, or that the NVIDIADriver made
    from it leaves out. Defaults of the chart are not named."""
    main = next((source for source in policy.sources if source.kind != "NVIDIADriver"), None)
    if main is None:
        return []
    spec = translate.to_common(main.kind, main.spec)
    sections = [key for key, value in spec.items() if has_effect(value) and key not in (
        "driver", "daemonsets", "extraObjects", *translate.BESIDE_DRIVER)]
    sections += [f"daemonsets.{key}" for key, value in (spec.get("daemonsets") or {}).items()
                 if has_effect(value) and (key not in _SHARED or _of_kind(policy, "NVIDIADriver"))]
    if _of_kind(policy, "NVIDIADriver") or not policy.enabled("driver"):
        return sections
    driver, lost = _nvidia_driver(spec)
    if version_key(policy.release) < version_key("26.7") and has_effect(driver.get("upgradePolicy")):
        lost.append("upgradePolicy")
    return [*(path if path.split(".")[0] in translate.BESIDE_DRIVER else f"driver.{path}" for path in lost), *sections]


def _object(kind: str, name: str, spec: Section) -> Data:
    metadata = {} if name == "without a name" else {"name": name}
    return {"apiVersion": format_schemas.FORMS[kind].api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _of_kind(policy: Policy, kind: str) -> list[Source]:
    return [source for source in policy.sources if source.kind == kind]


def _stated(policy: Policy) -> Data:
    """The keys that the main document sets, in the common format. For values, includes the defaults of the chart."""
    main = next((source for source in policy.sources if source.kind != "NVIDIADriver"), None)
    if main is not None and main.kind != "values":
        return translate.to_common(main.kind, main.spec)
    chart = defaults.of_chart(releases.release(policy.release))
    return translate.to_common("values", merge(chart, main.spec if main else {}, drop_null=True))


def _cluster_policy(policy: Policy) -> tuple[Data, list[str]]:
    """(spec of a ClusterPolicy, paths of the policy that a ClusterPolicy does not support). Raises InputError."""
    if policy.kind in ("GPUCluster", "GPUClusterPolicy"):
        raise InputError(f"{policy.origin}: a {policy.kind} cannot be converted, because no other format has its "
                         "keys.", "Export a ClusterPolicy, NVIDIADrivers or the chart's values.", path="export")
    if policy.kind != "NVIDIADriver":
        stated = _stated(policy)
        if not any(source.kind == "ClusterPolicy" for source in policy.sources):
            _add_versions(stated, policy.release)
        if not get_path(stated, "driver.useNvidiaDriverCRD"):
            pop_path(stated, "driver.nvidiaDriverCRD")
        return split_known(stated, format_schemas.CLUSTER_POLICY)
    if len(policy.sources) > 1 or policy.pools or policy.get("driver.nodeAffinity"):
        raise InputError(f"{policy.origin}: NVIDIADrivers with a selector cannot be converted to a ClusterPolicy, "
                         "which has one driver for all Nodes.",
                         "Export each NVIDIADriver by itself, without its selector.", path="export")
    if policy.get("driver.driverType") not in (None, "gpu"):
        raise InputError(f"{policy.origin}: driverType {policy.get('driver.driverType')!r} cannot be converted to "
                         "a ClusterPolicy.", "Set driverType to gpu.", path="export")
    spec = translate.to_common("NVIDIADriver", policy.sources[0].spec)
    shared = {key: pop_path(spec, f"driver.{key}") for key in _SHARED if get_path(spec, f"driver.{key}")}
    for key in ("default", "driverType", "nodeSelector"):
        pop_path(spec, f"driver.{key}")
    translate.add_implicit_defaults("NVIDIADriver", spec)
    spec, lost = split_known(spec, format_schemas.CLUSTER_POLICY)
    return ({**spec, "daemonsets": shared} if shared else spec), lost


def _add_versions(stated: Data, release: str) -> None:
    """Adds the versions that the chart's templates add, because the operator requires the version of an image."""
    for section in _OF_CHART:
        image = stated.get(section)
        if isinstance(image, dict) and image.get("image") and not image.get("version") and not (
                "/" in str(image["image"]) and not image.get("repository")):
            image["version"] = releases.release(release).components["validator"]


def _nulls(chart: Section, spec: Section, path: str) -> Data:
    """A mapping with null for each default of the chart that the resource does not set."""
    nulls: Data = {}
    for key, value in chart.items():
        full, own_value = f"{path}.{key}" if path else key, spec.get(key)
        if own_value is None and (full in _WHOLE or not isinstance(value, dict)):
            nulls[key] = None
        elif isinstance(value, dict):
            inner = _nulls(value, own_value if isinstance(own_value, dict) else {}, full)
            if inner:
                nulls[key] = inner
    return nulls
