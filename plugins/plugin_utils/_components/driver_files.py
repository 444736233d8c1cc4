# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a driver container that come from ConfigMaps, Secrets and the Node. Pure. PRIVATE.

Source: GPU Operator 26.7 (the paths for each distribution, and the containers that get the files). The operator names
volumes after ConfigMaps, which fails for names with dots, and for a ConfigMap that is used twice. In these cases, the
volume is named after its purpose here.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import driver_references as references
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy


class File(t.TypedDict):
    """A volume that is mounted read-only. volume: as in a pod; mounts: keys of the ConfigMap by their paths in the
    containers, an empty key for the whole volume; containers: the names of the containers."""

    volume: Data
    mounts: t.Dict[str, str]
    containers: t.List[str]


MAIN, PEERMEM, GDS, GDRCOPY = "nvidia-driver-ctr", "nvidia-peermem-ctr", "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"
# Containers that download packages.
_BUILDERS = (MAIN, GDS, GDRCOPY)
_YUM, _APT, _ZYPP = "/etc/yum.repos.d", "/etc/apt/sources.list.d", "/etc/zypp/repos.d"
_PEM, _CRT, _ANCHORS = "/etc/pki/ca-trust/extracted/pem", "/usr/local/share/ca-certificates", "/etc/pki/trust/anchors"
# The folders of package repositories and certificates, by the ID in os-release.
_FOLDERS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("ubuntu", "debian"), (_APT, _CRT)),
    **dict.fromkeys(("rhel", "rhcos", "rocky", "ol", "centos"), (_YUM, _PEM)),
    **dict.fromkeys(("sles", "sl-micro"), (_ZYPP, _ANCHORS)),
}
# The files of the host's subscription, by the ID in os-release. They map paths in the container to (path on the host,
# type).
_SUBSCRIPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "rhel": {"/run/secrets/etc-pki-entitlement": ("/etc/pki/entitlement", "Directory"),
             "/run/secrets/redhat.repo": ("/etc/yum.repos.d/redhat.repo", "File"),
             "/run/secrets/rhsm": ("/etc/rhsm", "Directory")},
    "sles": {"/etc/SUSEConnect": ("/etc/SUSEConnect", "FileOrCreate"),
             "/etc/zypp/credentials.d": ("/etc/zypp/credentials.d", "Directory")},
}
_SUBSCRIPTIONS["sl-micro"] = _SUBSCRIPTIONS["sles"]


_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OF_KEYS = ("kernel-module-config", "repo-config", "cert-config")


def files(policy: Policy, system: str, runtime: str, precompiled: bool, facts: ClusterFacts | None) -> list[File]:
    """The volumes of a driver DaemonSet. system: the ID in os-release; precompiled: whether modules are precompiled, so
    that no packages are downloaded. Raises Refused."""
    found: list[File] = []
    if policy.get("driver.virtualTopology.config"):
        found.append(_keyed("topology-config", {"/etc/nvidia/nvidia-topologyd.conf": "nvidia-topologyd.conf"},
                            config_map=policy.get("driver.virtualTopology.config")))
    found += _licence(policy)
    found += _each_key(policy, "driver.kernelModuleConfig.name", "kernel-module-config", "/drivers", facts,
                       (MAIN, PEERMEM))
    if precompiled:
        return _named(found + _modules_of_host(system))
    for number, (path, volume) in enumerate((("driver.repoConfig.configMapName", "repo-config"),
                                             ("driver.certConfig.name", "cert-config"))):
        if policy.get(path) and system not in _FOLDERS:
            raise Refused(f"{path} is set, but the folder of these files on {system} is not known",
                          f"Remove it; supported systems: {', '.join(sorted(_FOLDERS))}.")
        found += _each_key(policy, path, volume, _FOLDERS.get(system, ("", ""))[number], facts, _BUILDERS)
    return _named(found + _subscription(policy, system, runtime))


def _named(found: list[File]) -> list[File]:
    """The same files, with volumes named as by the operator, so that an adopted DaemonSet does not change."""
    taken = {one["volume"]["name"] for one in found}
    for one in found:
        volume = one["volume"]
        name = volume.get("configMap", {}).get("name", "")
        if volume["name"] in _OF_KEYS and name not in taken and _VOLUME.fullmatch(name):
            taken.add(name)
            volume["name"] = name
    return found


def _each_key(policy: Policy, path: str, volume: str, folder: str, facts: ClusterFacts | None,
              containers: t.Sequence[str]) -> list[File]:
    """The keys of a ConfigMap, mounted as single files, so that the other files in the folder remain visible."""
    if not policy.get(path):
        return []
    keys = references.keys(policy, path, facts)
    return [_keyed(volume, {posixpath.join(folder, key): key for key in keys}, containers,
                   config_map=policy.get(path))]


def _keyed(volume: str, mounts: t.Mapping[str, str], containers: t.Sequence[str] = (MAIN,), config_map: str = "",
           secret: str = "") -> File:
    source: t.Dict[str, object] = {"secretName": secret} if secret else {"name": config_map}
    source["items"] = [{"key": key, "path": key} for key in mounts.values()]
    return {"volume": {"name": volume, "secret" if secret else "configMap": source}, "mounts": dict(mounts),
            "containers": list(containers)}


def _licence(policy: Policy) -> list[File]:
    secret = str(policy.get("driver.licensingConfig.secretName") or "")
    config_map = str(policy.get("driver.licensingConfig.configMapName") or "")
    if not secret and not config_map:
        return []
    mounts = {"/drivers/gridd.conf": "gridd.conf"}
    if policy.get("driver.licensingConfig.nlsEnabled"):
        token = "client_configuration_token.tok"
        mounts[f"/drivers/ClientConfigToken/{token}"] = token
    return [_keyed("licensing-config", mounts, config_map=config_map, secret=secret)]


def _subscription(policy: Policy, system: str, runtime: str) -> list[File]:
    """The files of the host's subscription. On RHEL, they are omitted with CRI-O, which mounts them itself, and with
    package repositories of the user, for which they are not needed and may not exist."""
    if system == "rhel" and (runtime == "crio" or policy.get("driver.repoConfig.configMapName")):
        return []
    return [_of_host(f"subscription-config-{number}", path, source, kind)
            for number, (path, (source, kind)) in enumerate(_SUBSCRIPTIONS.get(system, {}).items())]


def _modules_of_host(system: str) -> list[File]:
    """The folder of the host's kernel modules, which SUSE's images with precompiled modules need."""
    if system not in ("sles", "sl-micro"):
        return []
    return [_of_host("lib-modules", "/run/host/lib/modules", "/lib/modules", "Directory")]


def _of_host(volume: str, path: str, source: str, kind: str) -> File:
    return {"volume": {"name": volume, "hostPath": {"path": source, "type": kind}}, "mounts": {path: ""},
            "containers": [MAIN]}
