# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ConfigMaps and Secrets of users that the driver part of a policy names, and which are missing. Pure. PRIVATE.

The facts of a cluster contain them in C(config_maps) and C(secrets), except objects that could not be read.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

CONFIG_MAP, SECRET = "ConfigMap", "Secret"
# (kind of the object, required keys), by path in the policy.
REFERENCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "driver.repoConfig.configMapName": (CONFIG_MAP, ()),
    "driver.certConfig.name": (CONFIG_MAP, ()),
    "driver.kernelModuleConfig.name": (CONFIG_MAP, ()),
    "driver.virtualTopology.config": (CONFIG_MAP, ("nvidia-topologyd.conf",)),
    "driver.licensingConfig.configMapName": (CONFIG_MAP, ("gridd.conf",)),
    "driver.licensingConfig.secretName": (SECRET, ("gridd.conf",)),
    "driver.secretEnv": (SECRET, ()),
}
_TOKEN = "client_configuration_token.tok"


def named(policy: Policy) -> dict[str, list[str]]:
    """The objects that a policy and its NVIDIADrivers reference, without duplicates:
    C({ConfigMap: [NAME], Secret: [NAME]})."""
    found: dict[str, dict[str, None]] = {CONFIG_MAP: {}, SECRET: {}}
    for own in (policy, *(policy.for_pool(pool) for pool in policy.pools)):
        for path, (kind, _keys) in REFERENCES.items():
            if own.get(path):
                found[kind][str(own.get(path))] = None
    return {kind: list(names) for kind, names in found.items()}


def missing(policy: Policy, facts: ClusterFacts | None, namespace: str) -> list[Refused]:
    """Refusals for objects and keys that a policy references and that do not exist in the cluster."""
    return [refused for path in REFERENCES if facts and policy.get(path)
            for refused in _missing(policy, path, facts, namespace)]


def _missing(policy: Policy, path: str, facts: ClusterFacts, namespace: str) -> t.Iterator[Refused]:
    kind, needed = REFERENCES[path]
    name = str(policy.get(path))
    objects = facts.get("config_maps") if kind == CONFIG_MAP else facts.get("secrets")
    if path.startswith("driver.licensingConfig.") and policy.get("driver.licensingConfig.nlsEnabled"):
        needed = (*needed, _TOKEN)
    return absent(path_text(policy, path), kind, name, (objects or {}).get(name, ...), needed, namespace,
                  "the pods of the driver cannot start",
                  "--from-literal=NAME=VALUE" if path == "driver.secretEnv" else "")


def absent(path: str, kind: str, name: str, known: Value, needed: t.Sequence[str], namespace: str, result: str,
           files: str = "") -> t.Iterator[Refused]:
    """Refusals if an object that a policy names does not exist, is empty, or has not the needed keys.

    path: where the policy names it; known: its data, or whether it exists, None if it does not, C(...) if that is
    unknown; result: what follows if it does not exist; files: the arguments for kubectl, by default the needed keys.
    """
    where, key = f"{path}: {kind} {name!r}", path.rpartition(", ")[2]
    if known is None or known is False:
        what = "configmap" if kind == CONFIG_MAP else "secret generic"
        files = files or " ".join(f"--from-file={one}" for one in needed or ("FILE",))
        yield Refused(f"{where} is not in namespace {namespace}, so {result}",
                      f"Create the object (kubectl -n {namespace} create {what} {name} {files}), or remove {key} "
                      "from the policy.")
    elif isinstance(known, t.Mapping):
        without = " and ".join(one for one in needed if one not in known)
        if without or not known:
            yield Refused(f"{where} in namespace {namespace} {f'has no key {without}' if without else 'is empty'}",
                          f"Add {without or 'a key'} to it, or remove {key} from the policy.")


def keys(policy: Policy, path: str, facts: ClusterFacts | None) -> list[str]:
    """The keys of a ConfigMap in the cluster or, if it is unknown there, in extraObjects of the chart's values, sorted.
    Raises Refused if neither contains it."""
    name = policy.get(path)
    data: t.Collection[str] | None = facts and facts.get("config_maps", {}).get(name)
    for item in policy.get("extraObjects") or () if data is None else ():
        if item.get("kind") == CONFIG_MAP and (item.get("metadata") or {}).get("name") == name:
            data = list(item.get("data") or {})
    if not data:
        raise Refused(f"{path_text(policy, path)}: the keys of ConfigMap {name!r} are not known, and each key becomes "
                      "a file", "Set gpu_kubeconfig to the cluster that has it, or add it to extraObjects in values of "
                      "the chart.")
    return sorted(data)


def path_text(policy: Policy, path: str) -> str:
    """A path as text for messages, with the name of the NVIDIADriver if the policy belongs to one."""
    return f"NVIDIADriver {policy.driver_name}, {path}" if policy.driver_name else path
