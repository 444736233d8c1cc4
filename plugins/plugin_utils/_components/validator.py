# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The validator: the CUDA sample on a host, and the checks of operands in a cluster. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted

_WORKLOAD = "WITH_WORKLOAD"


class ValidatorPart(component.PresentPlan):
    """The plan in a cluster. device_plugin: whether the validator checks the resources of GPUs; modules: the additional
    kernel modules that it checks."""

    device_plugin: bool
    modules: t.List[str]


def host_plan(host: component.Host) -> component.HostPlan:
    """The plan on a host. The verification runs the CUDA sample on each GPU that no client uses, unless the policy
    switches the workload of this check off."""
    env = component.environment(host.inputs.policy.get("validator.cuda.env"))
    if host.place == "host":
        host.notes += component.only_in_pods("validator.cuda.env", env, (_WORKLOAD,))
    if host.place == "host" and component.is_false(env.get(_WORKLOAD, "")):
        return {"placement": "none", "because": [f"not run: {_WORKLOAD} is false in validator.cuda.env"]}
    return {"placement": host.place, "because": host.because}


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> ValidatorPart:
    """The plan in a cluster. Without a device plugin, there are no GPU resources for which to wait."""
    release = version_key(context.release.version)
    # Since 26.3, the check of the driver includes these.
    checks = (("nvidia-fs", "gds", (24, 6)), ("gdrcopy", "gdrcopy", (25, 10)))
    return {**shared, "device_plugin": context.has_device_plugin,
            "modules": [name for name, section, first in checks
                        if context.enabled(section) and first <= release < (26, 3)]}


def check(_want: component.HostPlan, seen: component.HostState) -> component.Result | None:
    """The result of the CUDA samples, None if the samples did not run."""
    samples = seen.samples
    if samples is None:
        return None
    failed = [one for one in samples if one["state"] == "failed"]
    if failed:
        more = f" and {counted(len(failed) - 1, 'more GPU')}" if len(failed) > 1 else ""
        return component.Result("failed", f"{failed[0]['gpu'] or 'CUDA'}: {failed[0]['reason']}{more}",
                                "Search the kernel log (dmesg) for NVRM and Xid.")
    skipped = sum(1 for one in samples if one["state"] != "ok")
    busy = f", {skipped} in use" if skipped else ""
    return component.Result("ok", f"CUDA works on {counted(len(samples) - skipped, 'GPU')}{busy}")


COMPONENT = component.Component("validator", host_plan, check, images=("validator",), cluster_plan=cluster_plan)
