# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkit on a host: its plan and its check. Pure. PRIVATE."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, software
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused

_LEVEL = re.compile(r"\d+(\.\d+(\.\d+\S*)?)?\Z")


class CudaPlan(component.HostPlan):
    """The plan on a host. version: a CUDA version such as C(13.0), None for the newest that the driver supports;
    profile: whether CUDA is added to the PATH of login shells."""

    state: str
    version: str | None
    profile: bool


def host_plan(host: component.Host) -> CudaPlan:
    """The plan on a host. The variable cuda_version takes precedence over the policy. Raises Refused."""
    version = str(host.variables.get("cuda_version") or host.inputs.policy.get("cuda.version") or "")
    if host.place == "host" and version and not _LEVEL.match(version):
        raise Refused(f"CUDA version {version!r} is not allowed",
                      "Set cuda.version, or cuda_version of the host, to a level such as 13.0.")
    profile = host.boolean_variable("cuda_profile", False)
    placement, because = software.placed(host, "the CUDA toolkit")
    return {"placement": placement, "state": "present", "version": version or None, "profile": profile,
            "because": because}


def check(want: CudaPlan, seen: component.HostState) -> component.Result:
    """Whether a toolkit of the planned CUDA version is installed."""
    have, wanted = seen.facts["software"]["cuda"], want.get("version") or ""
    found = [level for level, release in have.items()
             if not wanted or wanted in (level, release) or level.startswith(f"{wanted}.")]
    if found:
        return component.Result("ok", ", ".join(have[level] for level in sorted(found)))
    if not have:
        return component.Result("absent", "no CUDA toolkit is installed", "Run site.yml.")
    return component.Result("failed", f"CUDA {', '.join(have.values())} is installed, desired is {wanted}",
                            "Run site.yml.")


COMPONENT = component.Component(
    "cuda", host_plan, check,
    needed=lambda _inputs, variables, _places: "cuda_version is set" if variables.get("cuda_version") else "",
    needs_driver=lambda plan: not plan["version"], options=("version", "profile"))
