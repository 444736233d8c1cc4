# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DCGM: its plan on a host and its check. Pure. PRIVATE."""

from __future__ import annotations

import functools

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, software
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path


class DcgmPlan(component.HostPlan):
    """The plan on a host. version: the version of the package, None for the newest; profiling: whether the profiling
    module is installed."""

    state: str
    version: str | None
    profiling: bool


def host_plan(host: component.Host) -> DcgmPlan:
    """The plan on a host. DCGM is also installed if its exporter is delivered."""
    version = host.variables.get("dcgm_version") or software.packaged(host, "dcgm", r"v?(\d+\.\d+\.\d+)")
    profiling = host.boolean_variable("dcgm_profiling", True)
    placement, because = software.placed(host, "DCGM")
    policy = host.inputs.policy
    if placement == "host" and not policy.enabled("dcgm"):
        because.append("the DCGM exporter needs it")
        if any(get_path(source.spec, "dcgm.enabled") is False for source in policy.sources):
            host.notes.append("dcgm.enabled is false in the policy, but DCGM is delivered, because the DCGM exporter "
                              "of hosts needs it; to deliver neither, set dcgmExporter.enabled to false.")
    return {"placement": placement, "state": "present", "version": str(version) if version else None,
            "profiling": profiling, "because": because}


COMPONENT = component.Component(
    "dcgm", host_plan, functools.partial(software.check_service, "dcgm"),
    needed=lambda inputs, _variables: inputs.policy.enabled("dcgmExporter"), needs_driver=lambda _plan: True,
    options=("version", "profiling"), images=("dcgm", "validator"))
