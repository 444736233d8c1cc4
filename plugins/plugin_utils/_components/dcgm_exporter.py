# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The DCGM exporter: its plans on a host and in a cluster, and whether it is there. Pure. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, monitoring, software
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import checksum

_METADATA = ("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID")


def host_plan(host: component.Host) -> component.Plan:
    """Its address is that of the policy's environment, its counters those of the policy's values."""
    policy, variables = host.asked.policy, host.variables
    version = variables.get("dcgm_exporter_version") or software.packaged(
        host, "dcgm_exporter", r"v?\d+\.\d+\.\d+-(\d+\.\d+\.\d+)")
    environment = component.environment(policy.get("dcgmExporter.env"))
    config = policy.get("dcgmExporter.config")
    config = config if isinstance(config, dict) else {}
    data = config.get("data")
    text = data.get("dcgm-metrics.csv") if isinstance(data, dict) else data
    counters = variables.get("dcgm_exporter_counters") or (text if isinstance(text, str) else None)
    if config.get("name") and not counters and host.place == "host":
        host.notes.append(f"dcgmExporter.config names the ConfigMap {config['name']}, which hosts cannot read: the "
                          "vendor's counters are shown; set dcgm_exporter_counters to change that.")
    listen = variables.get("dcgm_exporter_listen") or environment.get("DCGM_EXPORTER_LISTEN") or ":9400"
    placement, because = software.placed(host, "the DCGM exporter")
    return {"placement": placement, "state": "present", "version": str(version) if version else None,
            "listen": str(listen), "counters": counters, "because": because}


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> component.Plan:
    """Raises Refused."""
    get, env = context.get, shared["env"]
    config = component.config_map(context, "dcgmExporter", "dcgm-metrics.csv")
    monitor = _service_monitor(context)
    monitored = monitoring.plan(dict(context.monitoring or monitoring.read(None)), shared["images"]["dcgm_exporter"],
                                monitor, context.prometheus_rules, bool(config["name"]))
    if monitored["counters"] == "full":
        name, data = monitoring.config()
        config = {"name": name, "default": "", "data": data, "checksum": checksum(data)}
    pod_labels, pod_uid = bool(get("dcgmExporter.enablePodLabels")), bool(get("dcgmExporter.enablePodUID"))
    read_pods = pod_labels or pod_uid or any(component.is_true(env.get(name, "")) for name in _METADATA)
    return {
        **shared,
        # An engine of the Node itself is reached from the Node's own network only.
        "host_network": shared["host_network"] or env.get("DCGM_REMOTE_HOSTENGINE_INFO", "").startswith("localhost"),
        # It runs an engine of its own where there is none beside it.
        "engine": "nvidia-dcgm:5555" if "dcgm" in context.present else "",
        "config": config,
        "service": {"type": str(get("dcgmExporter.service.type") or "ClusterIP"),
                    "internal_traffic_policy": str(get("dcgmExporter.service.internalTrafficPolicy") or "Cluster")},
        "annotations": dict(get("dcgmExporter.annotations") or {}), "host_pid": bool(get("dcgmExporter.hostPID")),
        "job_mapping": (str(get("dcgmExporter.hpcJobMapping.directory") or "/var/lib/dcgm-exporter/job-mapping")
                        if context.enabled("dcgmExporter.hpcJobMapping") else ""),
        "pod_labels": pod_labels, "pod_uid": pod_uid,
        "pod_label_allow": ",".join(get("dcgmExporter.podLabelAllowlistRegex") or []), "read_pods": read_pods,
        # The exporter asks the API server for nothing else.
        "api_access": read_pods or env.get("DCGM_EXPORTER_CONFIGMAP_DATA", "none") not in ("", "none"),
        "service_monitor": monitor, "monitoring": monitored,
        "accelerators": context.openshift and bool(context.prometheus_rules),
    }


def _service_monitor(context: component.Context) -> component.Plan:
    """Empty where none is made. The chart's own default has it on from 26.7."""
    wanted = context.get("dcgmExporter.serviceMonitor")
    monitor = dict(wanted) if isinstance(wanted, dict) else {}
    default = context.policy.kind in ("values", "defaults") and version_key(context.release.version) >= (26, 7)
    if not monitor.get("enabled", default):
        return {}
    if not context.service_monitors:
        why = ("the cluster has no ServiceMonitor (monitoring.coreos.com)" if context.service_monitors is False
               else "no cluster was asked whether it knows ServiceMonitor")
        context.notes.append(f"dcgmExporter.serviceMonitor: {why}; it is left out.")
        return {}
    # Without a time limit Prometheus takes its own, or the interval where that is shorter.
    return {"interval": monitor.get("interval") or "15s", "scrape_timeout": monitor.get("scrapeTimeout") or "",
            "honor_labels": bool(monitor.get("honorLabels")), "labels": dict(monitor.get("additionalLabels") or {}),
            "relabelings": list(monitor.get("relabelings") or [])}


COMPONENT = component.Component(
    "dcgm_exporter", host_plan, lambda want, seen: software.check_service("dcgm_exporter", want, seen, "listen"),
    needs_driver=lambda _plan: True, options=("version", "listen", "counters"), images=("dcgm_exporter", "validator"),
    cluster_plan=cluster_plan)
