# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images of operands, from the policy, the release and the mirror. Pure. PRIVATE.

Source of repositories and names: the charts of GPU Operator 24.6 to 26.7 (values.yaml) and of NFD.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

VENDOR = "nvcr.io"
# The registries that a mirror (gpu_image_registry) replaces. Images in other registries are not changed.
_PUBLIC = (VENDOR, "registry.k8s.io")

# (path in the policy, default repository, default image name), by the name of the image in templates.
_IMAGES: dict[str, tuple[str, str, str]] = {
    "nfd": ("", "registry.k8s.io/nfd", "node-feature-discovery"),
    "driver": ("driver", "nvcr.io/nvidia", "driver"),
    "driver_manager": ("driver.manager", "nvcr.io/nvidia/cloud-native", "k8s-driver-manager"),
    "gds": ("gds", "nvcr.io/nvidia/cloud-native", "nvidia-fs"),
    "gdrcopy": ("gdrcopy", "nvcr.io/nvidia/cloud-native", "gdrdrv"),
    "container_toolkit": ("toolkit", "nvcr.io/nvidia/k8s", "container-toolkit"),
    "validator": ("validator", "nvcr.io/nvidia", "gpu-operator"),
    "device_plugin": ("devicePlugin", "nvcr.io/nvidia", "k8s-device-plugin"),
    "feature_discovery": ("gfd", "nvcr.io/nvidia", "k8s-device-plugin"),
    "dcgm": ("dcgm", "nvcr.io/nvidia/cloud-native", "dcgm"),
    "dcgm_exporter": ("dcgmExporter", "nvcr.io/nvidia/k8s", "dcgm-exporter"),
    "mig_manager": ("migManager", "nvcr.io/nvidia/cloud-native", "k8s-mig-manager"),
    "node_status_exporter": ("nodeStatusExporter", "nvcr.io/nvidia", "gpu-operator"),
}
# The keys of a reference, in the order of L(parts).
PARTS = ("repository", "image", "version")
# Sections that the operator reads only if they are enabled.
_OPTIONAL = ("gds", "gdrcopy")
_VERSIONS = {"nfd": "node_feature_discovery", "feature_discovery": "device_plugin",
             "node_status_exporter": "validator"}


def section(policy: Policy, name: str) -> Section:
    """The section of the policy that contains the keys of an image; empty if the policy does not set it."""
    value = policy.get(_IMAGES[name][0]) if _IMAGES[name][0] else None
    return value if isinstance(value, dict) else {}


def image(policy: Policy, release: Release, name: str, mirror: str, version: str = "") -> str:
    """The reference of an image, C(REPOSITORY/IMAGE:VERSION) or C(REPOSITORY/IMAGE@DIGEST).

    version: replaces the version in the policy. Parts that the policy does not set come from the release. If the policy
    sets only C(image), and its value contains a slash, this is the complete reference, as for the operator.
    """
    settings = section(policy, name)
    image_name = str(settings.get("image") or "")
    if "/" in image_name and not version and not settings.get("repository") and not settings.get("version"):
        return mirrored(image_name, mirror)
    repository, default, default_tag = parts(release, name)
    tag = version or str(settings.get("version") or default_tag)
    path = f"{settings.get('repository') or repository}/{image_name or default}"
    return mirrored(f"{path}{'@' if tag.startswith('sha256:') else ':'}{tag}", mirror)


def parts(release: Release, name: str) -> tuple[str, str, str]:
    """The default repository, name and version of an image."""
    _section, repository, image_name = _IMAGES[name]
    if image_name == "gpu-operator" and version_key(release.version) < (25, 10):
        repository, image_name = "nvcr.io/nvidia/cloud-native", "gpu-operator-validator"
    return repository, image_name, release.components[_VERSIONS.get(name, name)]


def stated(policy: Policy, release: Release, mirror: str) -> dict[str, str]:
    """C(repository), C(image) and C(version) of each image that the GPU Operator needs, by path, such as
    C(toolkit.image). Parts that the policy sets are kept, except registries that the mirror replaces. An image that is
    a complete reference is left out."""
    found: dict[str, str] = {}
    for name, (path, _repository, _image) in _IMAGES.items():
        own = section(policy, name)
        if not path or path in _OPTIONAL and not own.get("enabled") or (
                "/" in str(own.get("image") or "") and not own.get("repository")):
            continue
        made = {key: str(own.get(key) or default) for key, default in zip(PARTS, parts(release, name))}
        made["repository"] = mirrored(made["repository"], mirror)
        found.update({f"{path}.{key}": value for key, value in made.items()})
    return found


def for_system(policy: Policy, release: Release, name: str, mirror: str, version: str, os_tag: str) -> str:
    """The reference of an image for one system. os_tag (C(ubuntu24.04)) is appended to the version, but not to a
    digest."""
    reference = image(policy, release, name, mirror, version)
    return reference if "sha256:" in reference else f"{reference}-{os_tag}"


def mirrored(reference: str, mirror: str) -> str:
    """The reference in the mirror if the mirror replaces the registry of the reference; otherwise the reference."""
    registry, _slash, path = reference.partition("/")
    return f"{mirror}/{path}" if registry in _PUBLIC and mirror != VENDOR else reference


def pull_policy(policy: Policy, name: str) -> str:
    """The pull policy of an image, C(IfNotPresent) if the policy does not set it."""
    return str(section(policy, name).get("imagePullPolicy") or "IfNotPresent")


def pull_secrets(policy: Policy, names: t.Iterable[str], common: t.Iterable[str]) -> list[str]:
    """The names of pull secrets without duplicates: first the common ones, then those of the images."""
    secrets = [*common]
    for name in names:
        secrets += section(policy, name).get("imagePullSecrets") or []
    return list(dict.fromkeys(secrets))


def every_pull_secret(policy: Policy, common: t.Iterable[str]) -> list[str]:
    """The names of all pull secrets of a policy and its NVIDIADrivers without duplicates, first the common ones."""
    return list(dict.fromkeys(name for one in (policy, *(policy.for_pool(pool) for pool in policy.pools))
                              for name in pull_secrets(one, _IMAGES, common)))


def old_default_versions(policy: Policy, release: Release) -> dict[str, str]:
    """The versions in the policy that are defaults of older releases, by path. A chart writes its defaults into the
    ClusterPolicy, which keeps them after an upgrade. The driver is omitted, because users choose its version."""
    stated = {name: str(section(policy, name).get("version") or "") for name in _IMAGES if name != "driver"}
    other = {name: version for name, version in stated.items()
             if version and version != release.components[_VERSIONS.get(name, name)]}
    older = [releases.release(number) for number in releases.available() if other and
             version_key(number) < version_key(release.version)]
    return {f"{_IMAGES[name][0]}.version": version for name, version in other.items()
            if any(old.components[_VERSIONS.get(name, name)] == version for old in older)}


def default_version(path: str, release: Release) -> str | None:
    """The version that an image has by default in a release, without the driver. path: such as C(toolkit.version).
    None for other paths."""
    name = next((name for name, (section, _repository, _image) in _IMAGES.items()
                 if section and section != "driver" and path == f"{section}.version"), None)
    return None if name is None else release.components[_VERSIONS.get(name, name)]
