# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The supported runtimes, and the choice of those to configure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import CHOOSING
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import OF_USER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Runtime
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.containerd import Containerd, serves_cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.crio import Crio
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.k0s import K0s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.k3s_rke2 import Rancher
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.microk8s import Microk8s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.podman import Podman
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value

# In the order of `auto`, with the names in options.py. Distributions of Kubernetes come first, because their cluster
# does not use the containerd of Docker, which can run on the same host. Docker precedes the containerd that it uses,
# unless a kubelet uses it.
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


def of(key: str) -> Runtime:
    """The runtime of a key of `HostState.runtimes`, such as `docker` or `docker of NAME`."""
    return RUNTIMES[key.partition(OF_USER)[0]]


def choose(wanted: t.Sequence[str], states: t.Mapping[str, RuntimeState], kubelet: bool = False) -> list[str]:
    """The runtimes to configure. wanted: names, `auto` or `all`; kubelet: as in L(runtime_names.choose). Raises
    HostError if a named runtime is not installed."""
    if not set(wanted) & set(CHOOSING):
        missing = [name for name in wanted if name not in states]
        if missing:
            are = "is" if len(missing) == 1 else "are"
            raise HostError(f"{' and '.join(missing)} {are} not installed on this host.",
                            "Install it first, or set runtime to auto." if len(wanted) == 1
                            else "Install what is missing, or omit it from runtime.", runtime=missing[0])
        return list(wanted)
    only_docker = "containerd" in states and not serves_cri(states["containerd"])
    return runtime_names.choose(wanted, {name: state.running for name, state in states.items()}, only_docker, kubelet)


def named(names: t.Sequence[str], states: t.Mapping[str, RuntimeState]) -> dict[str, Value]:
    """The keys of the result that name the configured runtimes. states: without runtimes that no longer exist."""
    paths = {name: states[name].config for name in names if name in states}
    first = names[0] if names else None
    return {"runtime": first, "config_path": paths.get(first or ""), "runtime_names": list(names),
            "config_paths": paths}


def check_paths(name: str, state: RuntimeState, drop_in: str | None) -> None:
    """Raises InputError or HostError if the path of a file is not absolute."""
    if drop_in and not drop_in.startswith("/"):
        raise InputError("the path is not absolute.", "Set an absolute path.", path="drop_in_path", value=drop_in)
    if not state.config.startswith("/"):
        raise HostError(f"The configuration file of {name} is unknown: '{state.config}' is not an absolute path.",
                        "Set config_path to an absolute path.", unit=state.unit)
