# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ConfigMaps of components other than the driver that users create: which are missing, and their content for hosts.
Pure. PRIVATE.

Source: the ConfigMaps that the DaemonSets of GPU Operator 26.7 mount. A pod waits without end for a ConfigMap, or for a
key of it, that does not exist.
"""

from __future__ import annotations

import functools
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import config_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import NO_CLUSTER, ClusterFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import parse
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.driver_references import CONFIG_MAP, absent
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import Sharing

LAYOUTS, CLIENTS = "migManager.config", "migManager.gpuClientsConfig"
COUNTERS, SHARING = "dcgmExporter.config", "devicePlugin.config"
# (the key that pods read, empty for any; whose pods read it), by section of the policy.
REFERENCES: dict[str, tuple[str, str]] = {
    LAYOUTS: ("config.yaml", "the MIG manager"), CLIENTS: ("clients.yaml", "the MIG manager"),
    SHARING: ("", "the device plugin"), COUNTERS: ("dcgm-metrics.csv", "the DCGM exporter"),
}
# The ConfigMaps that the GPU Operator creates itself. This collection delivers its own in their place.
_OF_OPERATOR = ("default-mig-parted-config", "default-gpu-clients")


def name_of(policy: Policy, section: str) -> str:
    """The name of the ConfigMap that a section of the policy names and the user creates, empty if there is none."""
    config = policy.get(section) or {}
    name = str(config.get("name") or "")
    return "" if name in _OF_OPERATOR or config.get("create") and config.get("data") else name


def named(policy: Policy) -> list[str]:
    """The names of all ConfigMaps that the enabled components of a policy need and the user creates."""
    return list(dict.fromkeys(name for section in REFERENCES if policy.enabled(section.partition(".")[0])
                              and (name := name_of(policy, section))))


def data_of(policy: Policy, section: str, facts: ClusterFacts | None) -> t.Mapping[str, str]:
    """The data of the ConfigMap that a section of the policy names, empty if it is unknown."""
    return (facts or NO_CLUSTER).get("config_maps", {}).get(name_of(policy, section)) or {}


def faults(policy: Policy, section: str) -> list[Refused]:
    """Refusals of the ConfigMap that the values of the chart create for a section: it has no name, its data is not a
    mapping of names to texts, or it has not the key that pods read."""
    key, pods = REFERENCES[section]
    config = policy.get(section) or {}
    data = config.get("data")
    if not config.get("create"):
        return []
    if not config.get("name"):
        return [Refused(f"{section}.create is true, but the ConfigMap has no name", f"Set {section}.name.")]
    if not data or isinstance(data, str):
        return []
    if not isinstance(data, dict):
        return [Refused(f"{section}.data: a mapping of keys to texts is expected, not {shown(data)}",
                        f"Write {key or 'NAME'}: | below it.")]
    if key not in ("", *data):
        return [Refused(f"{section}.data has no key {key}, which the pods of {pods} read", f"Add {key}: | to it.")]
    # The configurations of the device plugin are validated where they are read.
    return [Refused(f"{section}.data[{one!r}]: a string is expected, not {shown(text)}",
                    f"Write {one}: | and indent the lines below it.")
            for one, text in data.items() if not isinstance(text, str)] if section != SHARING else []


def missing(policy: Policy, section: str, facts: ClusterFacts | None, namespace: str) -> list[Refused]:
    """Refusals if the ConfigMap of a section does not exist in the cluster, or has not the key that pods read. Also
    those of L(faults)."""
    key, pods = REFERENCES[section]
    name, needed = name_of(policy, section), (key,) if key else ()
    found = faults(policy, section)
    if found:
        return found
    known = (facts or NO_CLUSTER).get("config_maps", {}).get(name, ...)
    return list(absent(f"{section}.name", CONFIG_MAP, name, known, needed, namespace,
                       f"the pods of {pods} cannot start")) if name else []


@dataclass(frozen=True)
class Seen:
    """The ConfigMaps in the namespace of the operands, for hosts. data: the data of each by name, None for those that
    do not exist; a name that is absent is unknown, because there is no cluster, or its user may not read it. sharing:
    the variable gpu_sharing, which takes precedence over the ConfigMap of the device plugin."""

    namespace: str = ""
    data: t.Mapping[str, t.Mapping[str, str] | None] = field(default_factory=dict)
    sharing: Sharing | None = None

    def content(self, policy: Policy, section: str) -> t.Mapping[str, str] | None:
        """The data of the ConfigMap that a section of the policy names; None if it names none, or if it is unknown.
        Raises Refused if it does not exist, or has not the key that hosts need."""
        name, key = name_of(policy, section), REFERENCES[section][0]
        if not name or name not in self.data:
            return None
        for one in absent(f"{section}.name", CONFIG_MAP, name, self.data[name], (key,) if key else (), self.namespace,
                          "hosts cannot use it"):
            raise one
        return self.data[name]

    def layouts(self, policy: Policy) -> Data | None:
        """The document of mig-parted in the ConfigMap of the MIG manager, None if it is unknown. Raises Refused."""
        data = self.content(policy, LAYOUTS)
        where = f"{LAYOUTS}.name: ConfigMap {name_of(policy, LAYOUTS)!r} in namespace {self.namespace}, config.yaml"
        return None if data is None else _layouts(data["config.yaml"], where)


@functools.lru_cache(maxsize=8)
def _layouts(text: str, where: str) -> Data:
    try:
        documents = [one.data for one in parse(text, where)]
    except InputError as error:
        raise Refused(error.message.rstrip("."), error.hint) from error
    if len(documents) != 1:
        raise Refused(f"{where}: one document in mig-parted's format is expected, not {len(documents)}",
                      "Correct the ConfigMap.")
    try:
        config_file.parse(documents[0])
    except InputError as error:
        raise Refused(f"{where}, {error.message.rstrip('.')}", error.hint) from error
    return t.cast("Data", documents[0])
