# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The supported runtimes, and the choice of the runtime to configure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Runtime
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.containerd import Containerd, serves_cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.crio import Crio
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.k0s import K0s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.k3s_rke2 import Rancher
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.microk8s import Microk8s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.podman import Podman

# In the order of `auto`. Distributions of Kubernetes come first, because their cluster does not use the containerd of
# Docker, which can run on the same host. Docker precedes the containerd that it uses, unless a kubelet uses it.
RUNTIMES: dict[str, Runtime] = {
    "k3s": Rancher("k3s", servers=("k3s.service",), agents=("k3s-agent.service",)),
    "rke2": Rancher("rke2", servers=("rke2-server.service",), agents=("rke2-agent.service",)),
    "k0s": K0s(),
    "microk8s": Microk8s(),
    "docker": Docker(),
    "containerd": Containerd(),
    "crio": Crio(),
    "podman": Podman(),
}
KUBELET = "/var/lib/kubelet/config.yaml"


def choose(name: str, states: t.Mapping[str, RuntimeState], kubelet: bool = False) -> str | None:
    """The runtime to configure, None if `auto` finds none. kubelet: whether a kubelet is configured on the host.

    `auto` chooses the first running runtime, otherwise the first installed one. A containerd without the CRI plugin
    only serves Docker and comes last, even if it is running. Raises HostError if the runtime is not installed.
    """
    installed = [runtime for runtime in (RUNTIMES if name == "auto" else [name]) if runtime in states]
    if kubelet:
        installed.sort(key=lambda runtime: runtime == "docker")
    docker_only = [runtime for runtime in installed if runtime == "containerd" and not serves_cri(states[runtime])]
    installed.sort(key=lambda runtime: runtime in docker_only)
    if installed or name == "auto":
        running = [runtime for runtime in installed if states[runtime].running and runtime not in docker_only]
        return next(iter(running + installed), None)
    raise HostError(f"{name} is not installed on this host.", "Install it first, or set runtime to auto.", runtime=name)


def check_paths(name: str, state: RuntimeState, drop_in: str | None) -> None:
    """Raises InputError or HostError if the path of a file is not absolute."""
    if drop_in and not drop_in.startswith("/"):
        raise InputError("the path is not absolute.", "Set an absolute path.", path="drop_in_path", value=drop_in)
    if not state.config.startswith("/"):
        raise HostError(f"The configuration file of {name} is unknown: '{state.config}' is not an absolute path.",
                        "Set config_path to an absolute path.", unit=state.unit)
