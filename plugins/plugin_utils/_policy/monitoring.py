# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variable gpu_monitoring: alerts, dashboards and counters of the DCGM exporter in a cluster. PRIVATE."""

from __future__ import annotations

import functools
import os
import re

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Keys, check, faulty
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import without_null

# Temperatures in degrees Celsius; power in watts of one GPU, 0 for no alert; XIDs after which a GPU needs a reset.
THRESHOLDS: Data = {
    "temperature": 85, "memory_temperature": 95, "power": 0, "idle_percent": 5, "idle_minutes": 120,
    "lost_hours": 6, "throttled_percent": 10, "fatal_xids": [48, 62, 64, 74, 79, 95, 119, 120, 140],
}
SCHEMA: Keys = {
    "rules": "bool", "dashboards": "bool", "counters": ("vendor", "full"), "rule_labels": "strmap",
    "dashboard_labels": "strmap",
    "thresholds": {"temperature": "int>=1<=150", "memory_temperature": "int>=1<=150", "power": "int>=0<=10000",
                   "idle_percent": "int>=1<=100", "idle_minutes": "int>=1<=100000", "lost_hours": "int>=1<=1000",
                   "throttled_percent": "int>=1<=100", "fatal_xids": ["int>=1<=10000"]},
}
# Prometheus renames the exporter's labels of pods to exported_..., unless the ServiceMonitor has honorLabels. Then the
# labels of a GPU without a client are empty, or those of the exporter's own pod. pods: the prefix of the labels; held,
# free: selectors of GPUs with and without a client.
_EXPORTED: Data = {"pods": "exported_", "held": 'exported_pod!=""', "free": 'exported_pod=""'}
_HONOURED: Data = {"pods": "", "held": 'pod!="", container!="nvidia-dcgm-exporter"',
                   "free": 'container=~"|nvidia-dcgm-exporter"'}
_COUNTERS, _KEY = "nvidia-dcgm-exporter-counters", "dcgm-metrics.csv"


def read(given: Section | None) -> Data:
    """gpu_monitoring (given) with its defaults, the keys of L(SCHEMA). C(rules) is None if it is not set. Raises
    InputError with all faults."""
    faults = check(Document(given), SCHEMA)
    if faults:
        raise faulty("gpu_monitoring", faults)
    known = without_null(given or {})
    return {"rules": None, "dashboards": False, "counters": "vendor", "rule_labels": {},
            "dashboard_labels": {"grafana_dashboard": "1"}, **known,
            "thresholds": {**THRESHOLDS, **known.get("thresholds", {})}}


def plan(wanted: Section, image: str, monitor: Section, known: bool | None, own_config: bool) -> Data:
    """What the templates need: wanted, which L(read) returns, and C({full, node, pods, held, free}). Raises Refused.

    image: of the exporter; monitor: its ServiceMonitor, empty if it has none; known: whether the cluster has
    PrometheusRule, None if no cluster was asked; own_config: whether the policy has counters.
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
    """The label with the name of the exporter's Node. Version 4.8.3 has renamed it (NVIDIA/dcgm-exporter 655)."""
    version = re.search(r":\d+\.\d+\.\d+-(\d+\.\d+\.\d+)", image)
    return "Hostname" if version and version_key(version[1]) < (4, 8, 3) else "hostname"


def config() -> tuple[str, dict[str, str]]:
    """(name, data) of the ConfigMap with all counters that the rules and dashboards use."""
    return _COUNTERS, {_KEY: counters()}


@functools.lru_cache(maxsize=None)
def counters() -> str:
    """These counters in the exporter's format."""
    with open(os.path.join(os.path.dirname(__file__), "counters.csv"), encoding="utf-8") as handle:
        return handle.read()
