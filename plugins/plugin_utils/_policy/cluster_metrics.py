# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the components of a cluster that serve metrics are made of. Pure. PRIVATE.

Source of the rules: GPU Operator 26.7, as for the other components.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.matrix import version_key

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_parts import Context, Plan

ENGINE = "DCGM_REMOTE_HOSTENGINE_INFO"
_METADATA = ("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID")


def dcgm_exporter(context: Context, plan: Plan) -> None:
    """The exporter, which runs an engine of its own where there is none beside it."""
    get, env = context.get, plan["env"]
    plan["engine"] = "nvidia-dcgm:5555" if "dcgm" in context.present else ""
    plan["service"] = {"type": str(get("dcgmExporter.service.type") or "ClusterIP"),
                       "internal_traffic_policy": str(get("dcgmExporter.service.internalTrafficPolicy") or "Cluster")}
    plan["annotations"] = dict(get("dcgmExporter.annotations") or {})
    plan["host_pid"] = bool(get("dcgmExporter.hostPID"))
    plan["job_mapping"] = (str(get("dcgmExporter.hpcJobMapping.directory") or "/var/lib/dcgm-exporter/job-mapping")
                           if context.on("dcgmExporter.hpcJobMapping") else "")
    plan["pod_labels"] = bool(get("dcgmExporter.enablePodLabels"))
    plan["pod_uid"] = bool(get("dcgmExporter.enablePodUID"))
    plan["pod_label_allow"] = ",".join(get("dcgmExporter.podLabelAllowlistRegex") or [])
    by_env = any(env.get(name, "").lower() == "true" for name in _METADATA)
    plan["read_pods"] = plan["pod_labels"] or plan["pod_uid"] or by_env
    # The exporter asks the API server for nothing else.
    plan["api_access"] = plan["read_pods"] or env.get("DCGM_EXPORTER_CONFIGMAP_DATA", "none") not in ("", "none")
    # An engine of the Node itself is reached from the Node's own network only.
    if env.get(ENGINE, plan["engine"]).startswith("localhost"):
        plan["host_network"] = True
    plan["service_monitor"] = _service_monitor(context)


def node_status_exporter(context: Context, plan: Plan) -> None:
    """Prometheus is told of it wherever there is one, as the operator does."""
    plan["service_monitor"] = bool(context.service_monitors)


def _service_monitor(context: Context) -> Plan:
    """Empty where none is made. The chart's own default has it on from 26.7."""
    wanted = context.get("dcgmExporter.serviceMonitor")
    monitor = dict(wanted) if isinstance(wanted, dict) else {}
    default = context.policy.kind in ("values", "defaults") and version_key(context.release.version) >= (26, 7)
    if not monitor.get("enabled", default):
        return {}
    if not context.service_monitors:
        why = ("the cluster has no ServiceMonitor (monitoring.coreos.com)" if context.service_monitors is False
               else "no cluster was asked whether it knows ServiceMonitor")
        context.said.append(f"dcgmExporter.serviceMonitor: {why}; it is left out.")
        return {}
    # Without a time limit Prometheus takes its own, or the interval where that is shorter.
    return {"interval": monitor.get("interval") or "15s", "scrape_timeout": monitor.get("scrapeTimeout") or "",
            "honor_labels": bool(monitor.get("honorLabels")), "labels": dict(monitor.get("additionalLabels") or {}),
            "relabelings": list(monitor.get("relabelings") or [])}
