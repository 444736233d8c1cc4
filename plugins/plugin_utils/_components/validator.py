# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The validator: the CUDA sample on a host, the checks of operands in a cluster. Pure. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted


def host_plan(host: component.Host) -> component.Plan:
    """The CUDA sample, which verification runs on each GPU that nobody uses."""
    return {"placement": host.place, "because": host.because}


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> component.Plan:
    """Where no device plugin is delivered nobody must wait for its resources."""
    release = version_key(context.release.version)
    # From 26.3 the check of the driver has them.
    checks = (("nvidia-fs", "gds", (24, 6)), ("gdrcopy", "gdrcopy", (25, 10)))
    return {**shared, "device_plugin": context.has_device_plugin,
            "modules": [name for name, section, first in checks
                        if context.enabled(section) and first <= release < (26, 3)]}


def check(_want: component.Expected, seen: component.Seen) -> component.Result | None:
    """By the samples alone, C([{gpu, state, reason}]); None without them."""
    samples = seen.samples
    if samples is None:
        return None
    failed = [one for one in samples if one["state"] == "failed"]
    if failed:
        more = f" and {counted(len(failed) - 1, 'more GPU')}" if len(failed) > 1 else ""
        return component.Result("failed", f"{failed[0]['gpu'] or 'CUDA'}: {failed[0]['reason']}{more}",
                                "Look at dmesg for NVRM and Xid messages.")
    skipped = sum(1 for one in samples if one["state"] != "ok")
    busy = f", {skipped} in use" if skipped else ""
    return component.Result("ok", f"CUDA works on {counted(len(samples) - skipped, 'GPU')}{busy}")


COMPONENT = component.Component("validator", host_plan, check, images=("validator",), cluster_plan=cluster_plan)
