# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a host's container toolkit. Pure. PRIVATE.

Source of the variables: NVIDIA/nvidia-container-toolkit, the installer that the operator's toolkit image runs.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.matrix import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.drivers import Asked, switched

Plan = t.Dict[str, t.Any]

# Distributions of Kubernetes with a containerd of their own, which the module knows by their names.
OWN_RUNTIME = ("k3s", "rke2", "k0s", "microk8s")
_MODE = "nvidia-container-runtime.mode"
_DEFAULT = ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT",
            "CRIO_SET_AS_DEFAULT")
# Variables of toolkit.env that are settings of the vendor's runtime on a host, too: the name there, and the type.
_SETTINGS: dict[str, tuple[str, type]] = {
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": ("accept-nvidia-visible-devices-as-volume-mounts", bool),
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": (
        "accept-nvidia-visible-devices-envvar-when-unprivileged", bool),
    "NVIDIA_CONTAINER_CLI_DEBUG": ("nvidia-container-cli.debug", str),
    "NVIDIA_CONTAINER_RUNTIME_DEBUG": ("nvidia-container-runtime.debug", str),
    "NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION": ("nvidia-container-runtime-hook.skip-mode-detection", bool),
    "NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL": ("nvidia-container-runtime.log-level", str),
    "NVIDIA_CONTAINER_RUNTIME_MODE": (_MODE, str),
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": (
        "nvidia-container-runtime.modes.cdi.annotation-prefixes", list),
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": ("nvidia-container-runtime.modes.cdi.default-kind", str),
    "NVIDIA_CONTAINER_RUNTIME_RUNTIMES": ("nvidia-container-runtime.runtimes", list),
}


def plan(asked: Asked, facts: t.Mapping[str, t.Any], mine: t.Mapping[str, t.Any], place: str, why: str,
         said: list[str]) -> Plan:
    """What C(gpu_plan.hosts[HOST].container_toolkit) holds; said: notes for the user. Raises Refused."""
    policy = asked.policy
    cdi = switched("container_toolkit_cdi", mine, policy.get("cdi.enabled"))
    environment = {str(item.get("name")): item.get("value") for item in policy.get("toolkit.env") or []}
    told = next((environment[name] for name in _DEFAULT if name in environment), None)
    # As the operator has it: with CDI nobody needs the nvidia runtime as default.
    default = (not cdi) if told is None else _true(told)
    text = str(_first(mine.get("container_toolkit_version") or None, policy.get("toolkit.version") or None,
                      asked.release.components["container_toolkit"]))
    match = re.fullmatch(r"v?(\d+\.\d+\.\d+(?:-rc\.\d+)?)(?:-[a-z].*)?", text)
    if match is None:
        raise Refused(f"toolkit version {text!r} is not a version", "Write a version such as 1.20.0 or v1.20.0.")
    if place == "host":
        if not any(facts["runtimes"].values()) and facts["host"]["markers"]["kubernetes"] not in OWN_RUNTIME:
            said.append("no container runtime is installed; the toolkit's configuration waits for one.")
        pods = sorted(name for name in environment if name not in _SETTINGS and name not in _DEFAULT)
        if pods:
            said.append(f"toolkit.env {', '.join(pods)}: of the operator's pod alone, without a meaning on a host.")
    settings = {name: _typed(environment[variable], kind) for variable, (name, kind) in _SETTINGS.items()
                if variable in environment}
    if cdi and policy.get("cdi.default") and version_key(asked.release.version) < (25, 10):
        settings.setdefault(_MODE, "cdi")
    return {"placement": place, "state": "present", "version": match[1],
            "runtime": mine.get("container_toolkit_runtime") or "auto",
            "set_as_default": switched("container_toolkit_set_as_default", mine, default), "cdi": cdi,
            "mode": mine.get("container_toolkit_mode"), "nri": bool(policy.get("cdi.nriPluginEnabled")),
            "settings": settings, "because": [] if place == "host" else [f"not delivered: {why}"]}


def _typed(value: t.Any, kind: type) -> t.Any:
    if kind is bool:
        return _true(value)
    return [part.strip() for part in str(value).split(",") if part.strip()] if kind is list else str(value)


def _true(value: t.Any) -> bool:
    return str(value).lower() in ("true", "1")


def _first(*values: t.Any) -> t.Any:
    """The first value that is set."""
    return next((value for value in values if value is not None), None)
