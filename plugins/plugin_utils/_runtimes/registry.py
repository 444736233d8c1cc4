# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runtimes that are known, in the order in which C(auto) prefers them. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Runtime
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.containerd import Containerd, serves_cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.crio import Crio
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.k0s import K0s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.microk8s import Microk8s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.podman import Podman
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.rancher import Rancher

# Distributions first: beside them a containerd of Docker's may run, which is not the one of the cluster. Docker comes
# before the containerd that it brings, unless a kubelet uses that.
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


def choose(name: str, seen: t.Mapping[str, t.Any], kubelet: bool = False) -> str | None:
    """The runtime to configure, None where C(auto) finds none. seen: runtime to what the host side read, or None.

    C(auto) takes the first that runs, else the first that is installed. kubelet: whether a kubelet is configured here.
    A containerd without CRI serves Docker alone: it comes last, whether it runs or not.
    """
    there = [one for one in (RUNTIMES if name == "auto" else [name]) if seen.get(one)]
    if kubelet:
        there.sort(key=lambda one: one == "docker")
    private = [one for one in there if one == "containerd" and not serves_cri(seen[one])]
    there.sort(key=lambda one: one in private)
    if there or name == "auto":
        running = [one for one in there if seen[one]["running"] and one not in private]
        return next(iter(running + there), None)
    raise HostError(f"{name} is not installed on this host.", "Install it first, or use runtime=auto.", runtime=name)


def check_paths(name: str, seen: t.Mapping[str, t.Any], drop_in: str | None) -> None:
    """Raises where a file of the chosen runtime cannot be told. seen: what the host side read of this one."""
    if drop_in and not drop_in.startswith("/"):
        raise InputError("it is no absolute path.", "Give the whole path.", path="drop_in_path", value=drop_in)
    if not seen["config"].startswith("/"):
        raise HostError(f"The configuration file of {name} is not known: '{seen['config']}' is no absolute path.",
                        "Give the whole path as config_path.", unit=seen["unit"])
