# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node status exporter: its plans on a host and in a cluster, and whether it is there. Pure. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, software

# Where Debian's package of Prometheus' node exporter looks.
_FOLDER = "/var/lib/prometheus/node-exporter"


def host_plan(host: component.Host) -> component.Plan:
    """Metrics on the state of the node, which need no packages."""
    return {"placement": host.place, "state": "present",
            "folder": host.variables.get("node_status_exporter_folder") or _FOLDER,
            "interval": host.variables.get("node_status_exporter_interval") or 60, "because": host.because}


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> component.Plan:
    """Prometheus is told of it wherever there is one, as the operator does."""
    return {**shared, "service_monitor": bool(context.service_monitors),
            "rules": context.openshift and bool(context.prometheus_rules)}


COMPONENT = component.Component(
    "node_status_exporter", host_plan,
    lambda want, seen: software.check_service("node_status_exporter", want, seen, "folder"),
    options=("folder", "interval"), images=("node_status_exporter",), cluster_plan=cluster_plan)
