# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variable gpu_monitoring: alerts, dashboards and counters of the DCGM exporter in a cluster. Pure. PRIVATE."""

from __future__ import annotations

import functools
import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import check
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document

Plan = t.Dict[str, object]

# Degrees are Celsius, power is watts of one GPU and 0 for no alert; XIDs are those after which a GPU has to be reset.
THRESHOLDS: Plan = {
    "temperature": 85, "memory_temperature": 95, "power": 0, "idle_percent": 5, "idle_minutes": 120,
    "lost_hours": 6, "throttled_percent": 10, "fatal_xids": [48, 62, 64, 74, 79, 95, 119, 120, 140],
}
SCHEMA: dict[str, object] = {
    "rules": "bool", "dashboards": "bool", "counters": ("vendor", "full"), "rule_labels": "strmap",
    "dashboard_labels": "strmap",
    "thresholds": {"temperature": "int>=1<=150", "memory_temperature": "int>=1<=150", "power": "int>=0<=10000",
                   "idle_percent": "int>=1<=100", "idle_minutes": "int>=1<=100000", "lost_hours": "int>=1<=1000",
                   "throttled_percent": "int>=1<=100", "fatal_xids": ["int>=1<=10000"]},
}
# A target's own labels win over those of the Pods that hold GPUs, unless the monitor honours these. Where it does and
# nobody holds a GPU, labels are empty, or those of the exporter itself. pods: prefix of labels; held, free: which.
_EXPORTED: Plan = {"pods": "exported_", "held": 'exported_pod!=""', "free": 'exported_pod=""'}
_HONOURED: Plan = {"pods": "", "held": 'pod!="", container!="nvidia-dcgm-exporter"',
                   "free": 'container=~"|nvidia-dcgm-exporter"'}
_COUNTERS, _KEY = "nvidia-dcgm-exporter-counters", "dcgm-metrics.csv"


def read(given: t.Mapping[str, t.Any] | None) -> Plan:
    """gpu_monitoring with its defaults; C(rules) is None where nobody has said. Raises InputError with every fault."""
    faults = check(Document(given), SCHEMA)
    if faults:
        listed = "".join(f"\n  {fault}" for fault in faults)
        count = f"{len(faults)} faults" if len(faults) > 1 else "one fault"
        raise InputError(f"gpu_monitoring has {count}:{listed}\nNothing was changed.", faults=faults)
    said = {key: value for key, value in (given or {}).items() if value is not None}
    thresholds = {key: value for key, value in (said.get("thresholds") or {}).items() if value is not None}
    return {"rules": None, "dashboards": False, "counters": "vendor", "rule_labels": {},
            "dashboard_labels": {"grafana_dashboard": "1"}, **said, "thresholds": {**THRESHOLDS, **thresholds}}


def plan(wanted: Plan, image: str, monitor: Plan, known: bool | None,
         own_config: bool) -> Plan:
    """What templates need. Raises Refused.

    image: the exporter's; monitor: its ServiceMonitor, empty where none is made; known: whether the cluster knows
    PrometheusRule, None where nobody was asked; own_config: whether the policy names counters.
    """
    if wanted["rules"] and known is False:
        raise Refused("gpu_monitoring.rules is true, and the cluster has no PrometheusRule (monitoring.coreos.com)",
                      "Install the Prometheus operator first, or leave rules out.")
    if own_config and wanted["counters"] == "full":
        raise Refused("gpu_monitoring.counters is full, and dcgmExporter.config of the policy has counters",
                      "Keep one of them.")
    rules = bool(known and monitor) if wanted["rules"] is None else wanted["rules"]
    return {**wanted, "rules": rules, "full": own_config or wanted["counters"] == "full", "node": node_label(image),
            **(_HONOURED if monitor.get("honor_labels") else _EXPORTED)}


def node_label(image: str) -> str:
    """The label in which the exporter names its Node: 4.8.3 has renamed it (NVIDIA/dcgm-exporter 655)."""
    version = re.search(r":\d+\.\d+\.\d+-(\d+\.\d+\.\d+)", image)
    return "Hostname" if version and version_key(version[1]) < (4, 8, 3) else "hostname"


def config() -> tuple[str, dict[str, str]]:
    """(name, data) of the ConfigMap with all counters that rules and dashboards speak of."""
    return _COUNTERS, {_KEY: counters()}


@functools.lru_cache(maxsize=None)
def counters() -> str:
    """Those counters, in the exporter's format."""
    with open(os.path.join(os.path.dirname(__file__), "counters.csv"), encoding="utf-8") as handle:
        return handle.read()
