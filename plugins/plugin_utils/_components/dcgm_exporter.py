# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The DCGM exporter: its plans on a host and in a cluster, and its check. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import EXPORTER_ADDRESS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, software
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refusals
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import config_maps, monitoring
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import checksum

_LISTEN = "DCGM_EXPORTER_LISTEN"
# Variables about pods, and about paths and addresses in the container, which have no effect on hosts.
_OF_PODS = ("DCGM_EXPORTER_KUBERNETES", "DCGM_EXPORTER_CONFIGMAP_DATA", "DCGM_EXPORTER_COLLECTORS",
            "DCGM_REMOTE_HOSTENGINE_INFO", "DCGM_POD_RESOURCES_KUBELET_SOCKET", "NVIDIA_")
# Arguments with a value that say the same. Hosts have variables for them.
_ARGUMENTS_OF_PODS = ("-a", "--address", "-f", "--collectors", "-r", "--remote-hostengine-info", "-k", "--kubernetes")
_JOB_MAPPING = "/var/lib/dcgm-exporter/job-mapping"
_METADATA = ("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID")


class DcgmExporterPlan(component.HostPlan):
    """The plan on a host. version: the version of the package, None for the newest; listen: the address on which the
    exporter listens; counters: the content of a CSV file, None for the vendor's file; args, env: further arguments and
    variables; job_mapping: the folder with a file for each GPU that lists its jobs, web_config: the file that
    configures TLS and authentication, None for none."""

    state: str
    version: str | None
    listen: str
    counters: str | None
    args: t.List[str]
    env: t.Dict[str, str]
    job_mapping: str | None
    web_config: str | None


class Monitor(t.TypedDict):
    """A ServiceMonitor. interval, scrape_timeout: durations in the format of Prometheus; an empty scrape_timeout means
    the default of Prometheus."""

    interval: str
    scrape_timeout: str
    honor_labels: bool
    labels: t.Dict[str, str]
    relabelings: t.List[Section]


class DcgmExporterPart(component.PresentPlan):
    """The plan in a cluster. engine: the address of DCGM's service, empty if the exporter uses its embedded engine;
    config: the ConfigMap with the counters; job_mapping: a folder of the Node, empty for none; read_pods: whether the
    exporter reads pods from the API server; api_access: whether it needs a token for the API server; service_monitor:
    empty for none; monitoring: the result of L(monitoring.plan); accelerators: whether a rule for OpenShift's dashboard
    is delivered."""

    engine: str
    config: component.Config
    service: t.Dict[str, str]
    annotations: t.Dict[str, str]
    host_pid: bool
    job_mapping: str
    pod_labels: bool
    pod_uid: bool
    pod_label_allow: str
    read_pods: bool
    api_access: bool
    service_monitor: Monitor | t.Dict[str, str]
    monitoring: monitoring.MonitoringPlan
    accelerators: bool


def host_plan(host: component.Host) -> DcgmExporterPlan:
    """The plan on a host. The variables of the host take precedence over the section dcgmExporter of the policy."""
    policy, variables = host.inputs.policy, host.variables
    version = variables.get("dcgm_exporter_version") or software.packaged(
        host, "dcgm_exporter", r"v?\d+\.\d+\.\d+-(\d+\.\d+\.\d+)")
    environment = component.environment(policy.get("dcgmExporter.env"))
    counters = str(variables.get("dcgm_exporter_counters") or _counters(host)) or None
    listen = variables.get("dcgm_exporter_listen") or environment.get(_LISTEN) or EXPORTER_ADDRESS
    usable = {name: value for name, value in environment.items() if name != _LISTEN and not name.startswith(_OF_PODS)}
    if host.place == "host":
        host.notes += component.only_in_pods("dcgmExporter.env", environment, (_LISTEN, *usable), {
            "DCGM_EXPORTER_COLLECTORS": "dcgm_exporter_counters"})
    own_env, own_args = variables.get("dcgm_exporter_env"), variables.get("dcgm_exporter_args")
    placement, because = software.placed(host, "the DCGM exporter")
    return {"placement": placement, "state": "present", "version": str(version) if version else None,
            "listen": str(listen), "counters": counters,
            "args": list(own_args) if isinstance(own_args, list) else _usable_arguments(host),
            "env": {**usable, **(own_env if isinstance(own_env, dict) else {})},
            "job_mapping": str(variables.get("dcgm_exporter_job_mapping") or _job_mapping(policy)) or None,
            "web_config": str(variables.get("dcgm_exporter_web_config") or "") or None, "because": because}


def _counters(host: component.Host) -> str:
    """The counters of the policy: those in the values of the chart, or in the ConfigMap that the policy names; empty
    for those of the vendor. Adds a note if they are not known. Raises Refused for a ConfigMap that does not exist, and
    Refusals for one that pods could not use."""
    policy, key = host.inputs.policy, "dcgm-metrics.csv"
    found = config_maps.faults(policy, config_maps.COUNTERS) if host.place == "host" else []
    if found:
        raise Refusals(found)
    config = policy.get(config_maps.COUNTERS) or {}
    name = config_maps.name_of(policy, config_maps.COUNTERS)
    data = host.inputs.seen.content(policy, config_maps.COUNTERS) if name and host.place == "host" else None
    if name and data is None and host.place == "host":
        host.notes.append(f"dcgmExporter.config.name: the counters of ConfigMap {name!r} are not known, so hosts use "
                          "those of the vendor. To use others, set gpu_kubeconfig to the cluster that has it, or set "
                          "dcgm_exporter_counters.")
    if not name and config.get("create"):
        data = config.get("data")
    text = data.get(key) if isinstance(data, dict) else data
    return text if isinstance(text, str) else ""


def _usable_arguments(host: component.Host) -> list[str]:
    """dcgmExporter.args without the arguments about pods, and about paths and addresses in the container. Adds a note
    that names these."""
    usable: list[str] = []
    left: list[str] = []
    given = [str(one) for one in host.inputs.policy.get("dcgmExporter.args") or ()]
    takes_value = False
    for text in given:
        name, equals, _value = text.partition("=")
        of_pods = takes_value and not text.startswith("-") or name in _ARGUMENTS_OF_PODS
        (left if of_pods else usable).append(text)
        takes_value = name in _ARGUMENTS_OF_PODS and not equals
    if host.place == "host":
        host.notes += component.only_in_pods("dcgmExporter.args", [" ".join(left)] if left else [], ())
    return usable


def _job_mapping(policy: Policy) -> str:
    """The folder with the jobs of each GPU, empty if the policy does not enable it."""
    enabled = policy.enabled("dcgmExporter.hpcJobMapping")
    return str(policy.get("dcgmExporter.hpcJobMapping.directory") or _JOB_MAPPING) if enabled else ""


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> DcgmExporterPart:
    """The plan in a cluster. Raises Refused, and Refusals for a ConfigMap that does not exist."""
    get, env = context.get, shared["env"]
    gone = config_maps.missing(context.policy, config_maps.COUNTERS, context.facts, context.namespace)
    if gone:
        raise Refusals(gone)
    config = component.config_map(context, "dcgmExporter", "dcgm-metrics.csv")
    monitor = _service_monitor(context)
    monitored = monitoring.plan(context.monitoring or monitoring.read(None), shared["images"]["dcgm_exporter"],
                                monitor, context.prometheus_rules, bool(config["name"]))
    if monitored["counters"] == "full":
        name, data = monitoring.config()
        config = {"name": name, "default": "", "data": data, "checksum": checksum(data)}
    pod_labels, pod_uid = bool(get("dcgmExporter.enablePodLabels")), bool(get("dcgmExporter.enablePodUID"))
    read_pods = pod_labels or pod_uid or any(component.is_true(env.get(name, "")) for name in _METADATA)
    return {
        **shared,
        # An engine on the Node can only be reached from the network namespace of the Node.
        "host_network": shared["host_network"] or env.get("DCGM_REMOTE_HOSTENGINE_INFO", "").startswith("localhost"),
        "engine": "nvidia-dcgm:5555" if "dcgm" in context.present else "",
        "config": config,
        "service": {"type": str(get("dcgmExporter.service.type") or "ClusterIP"),
                    "internal_traffic_policy": str(get("dcgmExporter.service.internalTrafficPolicy") or "Cluster")},
        "annotations": dict(get("dcgmExporter.annotations") or {}), "host_pid": bool(get("dcgmExporter.hostPID")),
        "job_mapping": _job_mapping(context.policy),
        "pod_labels": pod_labels, "pod_uid": pod_uid,
        "pod_label_allow": ",".join(get("dcgmExporter.podLabelAllowlistRegex") or []), "read_pods": read_pods,
        "api_access": read_pods or env.get("DCGM_EXPORTER_CONFIGMAP_DATA", "none") not in ("", "none"),
        "service_monitor": monitor, "monitoring": monitored,
        "accelerators": context.openshift and bool(context.prometheus_rules),
    }


def _service_monitor(context: component.Context) -> Monitor | dict[str, str]:
    """The ServiceMonitor, empty for none. The defaults of the chart enable it since 26.7."""
    monitor = context.get("dcgmExporter.serviceMonitor") or {}
    default = context.policy.kind in ("values", "defaults") and version_key(context.release.version) >= (26, 7)
    if not monitor.get("enabled", default):
        return {}
    if not context.service_monitors:
        why = ("the cluster has no ServiceMonitor (monitoring.coreos.com)" if context.service_monitors is False
               else "it is not known whether the cluster has ServiceMonitor")
        context.notes.append(f"dcgmExporter.serviceMonitor: {why}; it is left out.")
        return {}
    return {"interval": monitor.get("interval") or "15s", "scrape_timeout": monitor.get("scrapeTimeout") or "",
            "honor_labels": bool(monitor.get("honorLabels")), "labels": dict(monitor.get("additionalLabels") or {}),
            "relabelings": list(monitor.get("relabelings") or [])}


COMPONENT = component.Component(
    "dcgm_exporter", host_plan, lambda want, seen: software.check_service("dcgm_exporter", want, seen, "listen"),
    needs_driver=lambda _plan: True,
    options=("version", "listen", "counters", "args", "env", "job_mapping", "web_config"),
    images=("dcgm_exporter", "validator"), cluster_plan=cluster_plan)
