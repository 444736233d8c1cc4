# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variable gpu_monitoring: alerts, dashboards and counters of the DCGM exporter in a cluster. PRIVATE."""

from __future__ import annotations

import functools
import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Keys, check, faults_error
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import without_null

# Temperatures in degrees Celsius; power in watts of one GPU, 0 for no alert; XIDs after which a GPU must be reset.
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


class Monitoring(t.TypedDict):
    """gpu_monitoring with its defaults, see L(SCHEMA). rules: None if not set."""

    rules: bool | None
    dashboards: bool
    counters: str
    rule_labels: t.Dict[str, str]
    dashboard_labels: t.Dict[str, str]
    thresholds: Data


class Selectors(t.TypedDict):
    """Labels that queries use to find pods. pods: the prefix of the labels of pods; used, free: label selectors for
    GPUs with and without a GPU client."""

    pods: str
    used: str
    free: str


class MonitoringPlan(Monitoring, Selectors):
    """The values for the templates. full: whether the exporter has all counters; node: the result of L(node_label)."""

    full: bool
    node: str


# Prometheus adds the prefix exported_ to pod labels from the exporter, unless the ServiceMonitor sets honorLabels. With
# honorLabels, the labels of a GPU without a client are empty, or are those of the exporter's own pod.
_EXPORTED: Selectors = {"pods": "exported_", "used": 'exported_pod!=""', "free": 'exported_pod=""'}
_HONOURED: Selectors = {"pods": "", "used": 'pod!="", container!="nvidia-dcgm-exporter"',
                        "free": 'container=~"|nvidia-dcgm-exporter"'}
_COUNTERS, _KEY = "nvidia-dcgm-exporter-counters", "dcgm-metrics.csv"


def read(given: Section | None) -> Monitoring:
    """The variable gpu_monitoring (given), completed with its defaults. Raises InputError with all faults."""
    faults = check(Document(given), SCHEMA)
    if faults:
        raise faults_error("gpu_monitoring", faults)
    known = without_null(given or {})
    return {"rules": known.get("rules"), "dashboards": known.get("dashboards", False),
            "counters": known.get("counters", "vendor"), "rule_labels": known.get("rule_labels", {}),
            "dashboard_labels": known.get("dashboard_labels", {"grafana_dashboard": "1"}),
            "thresholds": {**THRESHOLDS, **known.get("thresholds", {})}}


def plan(wanted: Monitoring, image: str, monitor: Section, known: bool | None, own_config: bool) -> MonitoringPlan:
    """The plan of rules and dashboards. Raises Refused.

    image: the image of the exporter; monitor: its ServiceMonitor, empty if it has none; known: whether the cluster has
    the kind PrometheusRule, None if unknown; own_config: whether the policy sets the counters.
    """
    if wanted["rules"] and known is False:
        raise Refused("gpu_monitoring.rules is true, but the cluster has no PrometheusRule (monitoring.coreos.com)",
                      "Install the Prometheus operator first, or remove rules from gpu_monitoring.")
    if own_config and wanted["counters"] == "full":
        raise Refused("gpu_monitoring.counters is full, but dcgmExporter.config of the policy also has counters",
                      "Keep one of them.")
    rules = bool(known and monitor) if wanted["rules"] is None else wanted["rules"]
    selectors = _HONOURED if monitor.get("honor_labels") else _EXPORTED
    return {**wanted, **selectors, "rules": rules, "full": own_config or wanted["counters"] == "full",
            "node": node_label(image)}


def node_label(image: str) -> str:
    """The label with the name of the exporter's Node. Version 4.8.3 of the exporter renamed it (NVIDIA/dcgm-exporter
    655)."""
    version = re.search(r":\d+\.\d+\.\d+-(\d+\.\d+\.\d+)", image)
    return "Hostname" if version and version_key(version[1]) < (4, 8, 3) else "hostname"


def config() -> tuple[str, dict[str, str]]:
    """(name, data) of the ConfigMap with all counters that the rules and dashboards use."""
    return _COUNTERS, {_KEY: counters()}


@functools.lru_cache(maxsize=None)
def counters() -> str:
    """The counters of L(config), in the format of the exporter's counters file."""
    with open(os.path.join(os.path.dirname(__file__), "counters.csv"), encoding="utf-8") as handle:
        return handle.read()
