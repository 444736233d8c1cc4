# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node status exporter: its plans on a host and in a cluster, and its check. Pure. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, software

# The folder from which Debian's package of the Prometheus node exporter reads metrics.
_FOLDER = "/var/lib/prometheus/node-exporter"


class NodeStatusPlan(component.HostPlan):
    """The plan on a host. folder: the folder for the file with the metrics; interval: in seconds. Both have the values
    that the user sets."""

    state: str
    folder: object
    interval: object


class NodeStatusPart(component.PresentPlan):
    """The plan in a cluster. service_monitor: whether a ServiceMonitor is delivered; rules: whether the alert for
    OpenShift's Prometheus is delivered."""

    service_monitor: bool
    rules: bool


def host_plan(host: component.Host) -> NodeStatusPlan:
    """The plan on a host. The exporter needs no packages."""
    return {"placement": host.place, "state": "present",
            "folder": host.variables.get("node_status_exporter_folder") or _FOLDER,
            "interval": host.variables.get("node_status_exporter_interval") or 60, "because": host.because}


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> NodeStatusPart:
    """The plan in a cluster. As with the operator, a ServiceMonitor is delivered if the cluster has this kind."""
    return {**shared, "service_monitor": bool(context.service_monitors),
            "rules": context.openshift and bool(context.prometheus_rules)}


COMPONENT = component.Component(
    "node_status_exporter", host_plan,
    lambda want, seen: software.check_service("node_status_exporter", want, seen, "folder"),
    options=("folder", "interval"), images=("node_status_exporter",), cluster_plan=cluster_plan)
