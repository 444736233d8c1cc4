# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ConfigMaps and Secrets of the user that a policy names: which they are, and what of them is not there. Pure. PRIVATE.

What a cluster has of them is C(config_maps: {NAME: {KEY: TEXT} or None}) and C(secrets: {NAME: bool}) in its facts;
None and False: it is not there; a name that is left out: nobody could look.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Facts = t.Mapping[str, t.Any]

CONFIG_MAP, SECRET = "ConfigMap", "Secret"
# path in the policy: (what it names, keys that must be there).
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
    """C({ConfigMap: [NAME], Secret: [NAME]}): what a policy and its NVIDIADrivers name, each once."""
    found: dict[str, dict[str, None]] = {CONFIG_MAP: {}, SECRET: {}}
    for mine in (policy, *(policy.for_pool(pool) for pool in policy.pools)):
        for path, (kind, _keys) in REFERENCES.items():
            if mine.get(path):
                found[kind][str(mine.get(path))] = None
    return {kind: list(names) for kind, names in found.items()}


def missing(policy: Policy, facts: Facts | None, namespace: str) -> list[Refused]:
    """What one policy names and its cluster does not have: pods would wait for it for ever."""
    return [one for path in REFERENCES if policy.get(path) for one in _missing(policy, path, facts or {}, namespace)]


def _missing(policy: Policy, path: str, facts: Facts, namespace: str) -> t.Iterator[Refused]:
    kind, needed = REFERENCES[path]
    name = str(policy.get(path))
    known = (facts.get("config_maps" if kind == CONFIG_MAP else "secrets") or {}).get(name, ...)
    where = f"{place(policy, path)}: {kind} {name!r}"
    if path.startswith("driver.licensingConfig.") and policy.get("driver.licensingConfig.nlsEnabled"):
        needed = (*needed, _TOKEN)
    if known is None or known is False:
        what = "configmap" if kind == CONFIG_MAP else "secret generic"
        files = " ".join(f"--from-file={key}" for key in needed or ("FILE",))
        if path == "driver.secretEnv":
            files = "--from-literal=NAME=VALUE"
        yield Refused(f"{where} is not in namespace {namespace}, and the driver's pods would wait for it for ever",
                      f"Create it (kubectl -n {namespace} create {what} {name} {files}), or leave {path} out.")
    elif isinstance(known, t.Mapping):
        lacking = [key for key in needed if key not in known]
        if lacking or not known:
            yield Refused(f"{where} in namespace {namespace} has no key {' and '.join(lacking)}" if lacking
                          else f"{where} in namespace {namespace} is empty",
                          f"Add {' and '.join(lacking) if lacking else 'a file'} to it, or leave {path} out.")


def keys(policy: Policy, path: str, facts: Facts | None) -> list[str]:
    """The keys of a ConfigMap that is there: of the cluster, else of the values' extraObjects. Raises Refused."""
    name = policy.get(path)
    found = ((facts or {}).get("config_maps") or {}).get(name)
    for one in policy.get("extraObjects") or () if found is None else ():
        if one.get("kind") == CONFIG_MAP and (one.get("metadata") or {}).get("name") == name:
            found = list(one.get("data") or {})
    if not found:
        raise Refused(f"{place(policy, path)}: the keys of ConfigMap {name!r} are not known, and each becomes a file "
                      "of its own", "Name the cluster that has it (gpu_kubeconfig), or carry it in extraObjects of the "
                      "chart's values.")
    return sorted(found)


def place(policy: Policy, path: str) -> str:
    """The path, with the NVIDIADriver where it is one's."""
    return f"NVIDIADriver {policy.driver_name}, {path}" if policy.driver_name else path
