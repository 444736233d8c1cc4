# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DCGM: its plan on a host and its check. Pure. PRIVATE."""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import dcgm
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, software
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path

# Options of nv-hostengine in pods that the unit of a host has as well.
_OF_UNIT = ("-n", "--no-daemon", "--service-account")


class DcgmPlan(component.HostPlan):
    """The plan on a host. version: the version of the package, None for the newest; profiling: whether the profiling
    module is installed; args, env: further arguments and variables of nv-hostengine."""

    state: str
    version: str | None
    profiling: bool
    args: t.List[str]
    env: t.Dict[str, str]


def host_plan(host: component.Host) -> DcgmPlan:
    """The plan on a host. DCGM is also installed if its exporter is delivered. Raises Refused for arguments in
    dcgm_args with which its service does not work."""
    version = host.variables.get("dcgm_version") or software.packaged(host, "dcgm", r"v?(\d+\.\d+\.\d+)")
    profiling = host.boolean_variable("dcgm_profiling", True)
    placement, because = software.placed(host, "DCGM")
    policy = host.inputs.policy
    if placement == "host" and host.why:
        because.append(host.why)
        if any(get_path(source.spec, "dcgm.enabled") is False for source in policy.sources):
            host.notes.append("dcgm.enabled is false in the policy, but DCGM is delivered, because the DCGM exporter "
                              "of hosts needs it; to deliver neither, set dcgmExporter.enabled to false.")
    environment = component.environment(policy.get("dcgm.env"))
    usable = {name: value for name, value in environment.items() if not name.startswith("NVIDIA_")}
    if placement == "host":
        host.notes += component.only_in_pods("dcgm.env", environment, usable)
    own_env, own_args = host.variables.get("dcgm_env"), host.variables.get("dcgm_args")
    args = [str(one) for one in own_args] if isinstance(own_args, list) else _usable_arguments(host, placement)
    if placement == "host":
        try:
            dcgm.check_arguments(args, "dcgm_args")
        except InputError as error:
            raise Refused(error.message.rstrip("."), error.hint) from error
        host.notes += [f"dcgm_args: {dcgm.OPEN}"] if dcgm.is_open(args) else []
    return {"placement": placement, "state": "present", "version": str(version) if version else None,
            "profiling": profiling, "args": args,
            "env": {**usable, **(own_env if isinstance(own_env, dict) else {})}, "because": because}


def _usable_arguments(host: component.Host, placement: str) -> list[str]:
    """dcgm.args without the program and the options that the unit of a host sets, and without those that are for pods:
    addresses and files in the container. Adds a note about the latter."""
    usable: list[str] = []
    left: list[str] = []
    given = [str(one) for one in host.inputs.policy.get("dcgm.args") or ()]
    if given and given[0].rpartition("/")[2] == "nv-hostengine":
        del given[0]
    for name, texts in dcgm.options_of(given):
        if name in _OF_UNIT:
            continue
        try:
            if name in dcgm.BIND:
                raise InputError("")
            dcgm.check_arguments([*usable, *texts])
            usable += texts
        except InputError:
            left.append(" ".join(texts))
    if placement == "host":
        host.notes += component.only_in_pods("dcgm.args", left, (), dict.fromkeys(left, "dcgm_args"))
    return usable


COMPONENT = component.Component(
    "dcgm", host_plan, functools.partial(software.check_service, "dcgm"),
    needed=lambda inputs, _variables, places: ("the DCGM exporter needs it" if places["dcgm_exporter"] == "host"
                                               and inputs.policy.enabled("dcgmExporter") else ""),
    needs_driver=lambda _plan: True, options=("version", "profiling", "args", "env"), images=("dcgm", "validator"))
