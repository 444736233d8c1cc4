# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ConfigMaps of components other than the driver: those that users create, and which are missing. Pure. PRIVATE.

Source: the ConfigMaps that the DaemonSets of GPU Operator 26.7 mount. A pod waits without end for a ConfigMap, or for a
key of it, that does not exist.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.driver_references import CONFIG_MAP, absent
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

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
    return (facts or {}).get("config_maps", {}).get(name_of(policy, section)) or {}


def missing(policy: Policy, section: str, facts: ClusterFacts | None, namespace: str) -> list[Refused]:
    """Refusals if the ConfigMap of a section does not exist in the cluster, or has not the key that pods read. Also if
    the values of the chart create it without this key."""
    key, pods = REFERENCES[section]
    config, name, needed = policy.get(section) or {}, name_of(policy, section), (key,) if key else ()
    data = config.get("data")
    if config.get("create") and isinstance(data, dict) and data and key not in ("", *data):
        return [Refused(f"{section}.data has no key {key}, which the pods of {pods} read", f"Add {key}: | to it.")]
    known = (facts or {}).get("config_maps", {}).get(name, ...)
    return list(absent(f"{section}.name", CONFIG_MAP, name, known, needed, namespace, pods)) if name else []
