# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else writes the runtime's configuration, and where the setting then belongs. PRIVATE to the collection.

Facts: documentation of the products named (k3s and RKE2 advanced configuration, k0s runtime, MicroK8s, Amazon EKS
nodeadm, Bottlerocket settings, GPU Operator container toolkit).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError


@dataclass(frozen=True)
class Owner:
    """A product that rewrites the configuration. markers: paths of which one is there; advice: what to do instead."""

    name: str
    markers: t.Tuple[str, ...]
    advice: str


OWNERS: t.Tuple[Owner, ...] = (
    Owner("the NVIDIA GPU Operator or 'nvidia-ctk runtime configure'",
          ("/usr/local/nvidia/toolkit/nvidia-container-runtime", "/etc/containerd/conf.d/99-nvidia.toml",
           "/etc/containerd/config.d/99-nvidia.toml"),
          "Let the operator go on (placement 'cluster' or 'none' for container_toolkit), "
          "or remove that file and its import first"),
    Owner("k3s", ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml",),
          "k3s declares the runtime by itself when it finds the toolkit at its start: install the packages, restart "
          "k3s or k3s-agent, and set 'default-runtime: nvidia' in /etc/rancher/k3s/config.yaml where wanted"),
    Owner("RKE2", ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml",),
          "RKE2 declares the runtime by itself when it finds the toolkit at its start: install the packages, restart "
          "rke2-server or rke2-agent, and set 'default-runtime: nvidia' in /etc/rancher/rke2/config.yaml where wanted"),
    Owner("k0s", ("/etc/k0s/containerd.toml", "/var/lib/k0s/bin/containerd"),
          "Put a drop-in into /etc/k0s/containerd.d, which k0s merges and watches"),
    Owner("MicroK8s", ("/var/snap/microk8s/current/args/containerd-template.toml",),
          "Edit /var/snap/microk8s/current/args/containerd-template.toml and restart "
          "snap.microk8s.daemon-containerd"),
    Owner("Amazon EKS nodeadm", ("/usr/bin/nodeadm", "/etc/eks/nodeadm.d"),
          "Set spec.containerd.config of the NodeConfig (user data or /etc/eks/nodeadm.d): nodeadm rewrites the file "
          "at each boot and declares the runtime when the toolkit is installed"),
    Owner("AKS", ("/opt/azure/containers/provision.sh",),
          "Choose the driver and runtime in the node pool; AKS writes the file when it provisions the node"),
    Owner("Bottlerocket", ("/usr/share/bottlerocket",),
          "Use the settings API (settings.nvidia-container-runtime)"),
    Owner("OpenShift (RHCOS)", ("/run/ostree-booted", ),
          "Use the GPU Operator: the MachineConfig owns the files below /etc"),
)


def markers() -> list[str]:
    """The paths that the host side looks for."""
    return [marker for owner in OWNERS for marker in owner.markers]


def refuse_foreign(found: t.Collection[str], config: str) -> None:
    """Raises one HostError where somebody else owns the configuration. found: those markers that are there."""
    for owner in OWNERS:
        marker = next((marker for marker in owner.markers if marker in found), None)
        if marker is not None:
            raise HostError(f"{config} is not ours to change: {owner.name} manages the runtime here ({marker}).",
                            f"{owner.advice}.", owner=owner.name, marker=marker)
