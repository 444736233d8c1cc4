# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Products that overwrite the configuration of a runtime, and where to set the runtime instead. PRIVATE.

k3s, RKE2, k0s and MicroK8s are not among them: they have a file of their own in this folder.
Sources: documentation and code of the products (Kubespray's containerd role, Amazon EKS nodeadm, AKS AgentBaker,
Bottlerocket settings, Talos system extensions, GPU Operator).
"""

from __future__ import annotations

import json
import pathlib
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.containerd import cri_table
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Path, Table, Value


@dataclass(frozen=True)
class Owner:
    """A product that overwrites the configuration.

    markers: the product is present if one of these paths exists. advice: what to do instead. text: returns the text to
    set there, from the options and the effective table of the CRI plugin; only for containerd. below: the product only
    manages a configuration file in this folder.
    """

    name: str
    markers: tuple[str, ...]
    advice: str
    text: t.Callable[[Options, Table], str] | None = None
    below: str = "/"


def _inventory(options: Options, plugin: Table) -> str:
    """Variables of Kubespray. It adds containerd's folder to base_runtime_spec."""
    values = cri.desired(plugin, options, None)
    lines = ["containerd_additional_runtimes:"]
    for name in options.classes:
        table: Path = (*cri.RUNTIMES, name)
        lines += [f"  - name: {name}", f"    type: {cri.RUNC}", '    engine: ""', '    root: ""']
        if (*table, "base_runtime_spec") in values:
            base = pathlib.PurePosixPath(values[(*table, "base_runtime_spec")])
            lines.append(f"    base_runtime_spec: {base.name}")
        lines.append("    options:")
        lines += [f"      {path[-1]}: {_word(value)}" for path, value in values.items()
                  if path[:-1] == (*table, "options")]
    if options.set_as_default:
        lines.append("containerd_default_runtime: nvidia")
    if options.cdi:
        lines.append("enable_cdi: true")
    return "\n".join(lines) + "\n"


def _word(value: Value) -> str:
    """A value in YAML for Kubespray, which expects booleans as strings."""
    return json.dumps(str(value).lower() if isinstance(value, bool) else value)


def _node_config(options: Options, plugin: Table) -> str:
    """A NodeConfig of Amazon EKS."""
    values = cri.desired(plugin, options, None)
    toml = render({("version",): 3, **{cri.place(cri.V3, path): value for path, value in values.items()}})
    indented = "".join(f"      {line}".rstrip() + "\n" for line in toml.splitlines())
    return ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  containerd:\n    config: |\n" + indented)


OWNERS: tuple[Owner, ...] = (
    Owner("the NVIDIA GPU Operator", ("/usr/local/nvidia/toolkit/nvidia-container-runtime",),
          "Leave the runtime to the GPU Operator (placement 'cluster' or 'none' for container_toolkit), or remove its "
          "toolkit first"),
    Owner("Kubespray", ("/usr/local/bin/kubernetes-scripts", "/etc/kubernetes/kubeadm-client.conf"),
          "Set this in Kubespray's inventory and run its cluster.yml, which overwrites the file each time", _inventory),
    Owner("Amazon EKS nodeadm", ("/usr/bin/nodeadm", "/etc/eks/nodeadm.d"),
          "nodeadm overwrites the file at each boot, and declares the runtime itself if the toolkit is installed then; "
          "set anything else in the NodeConfig (user data or a file in /etc/eks/nodeadm.d; version = 2 and "
          f"{cri.V2} for an AMI with containerd 1.7)", _node_config),
    Owner("AKS", ("/opt/azure/containers/provision.sh",),
          "Choose a GPU node pool, for which AKS writes the file when it provisions the node, or a pool with driver "
          "'none' and the GPU Operator"),
    Owner("GKE", ("/home/kubernetes/kubelet-config.yaml",),
          "Set the GPU options of the node pool; GKE recreates its nodes"),
    Owner("Bottlerocket", ("/usr/share/bottlerocket",),
          "Use the settings API (settings.nvidia-container-runtime) of an NVIDIA variant, which has the toolkit"),
    Owner("Talos Linux", ("/etc/cri/containerd.toml",),
          "Add the NVIDIA system extensions to the image and patch the machine configuration"),
    Owner("Flatcar", ("/usr/share/flatcar",),
          "Copy the file to /etc/containerd/config.toml and point to it with Environment=CONTAINERD_CONFIG= in a "
          "drop-in of containerd.service, or use the NVIDIA system extension", below="/usr/"),
    Owner("OpenShift (RHCOS)", ("/etc/machine-config-daemon", "/run/machine-config-daemon"),
          "Use the GPU Operator: a MachineConfig manages the files in /etc"),
)


def markers() -> list[str]:
    """The paths whose existence the host side reports."""
    return [marker for owner in OWNERS for marker in owner.markers]


def refuse_foreign(found: t.Collection[str], runtime: str, state: RuntimeState, options: Options) -> str | None:
    """Instructions for the user if a product manages the configuration and takes the setting from a text of the user.

    found: the markers that exist; runtime, state: the one to configure. Raises HostError if there is no such text.
    """
    config = state.config
    for owner in OWNERS:
        if owner.text is not None and runtime != "containerd":
            continue
        marker = next((marker for marker in owner.markers if marker in found), None)
        if marker is not None and config.startswith(owner.below):
            what = f"{config} is not changed: {owner.name} manages the runtime here ({marker})."
            if owner.text is None:
                raise HostError(what, f"{owner.advice}.", owner=owner.name, marker=marker)
            return f"{what} {owner.advice}:\n{owner.text(options, cri_table(state))}"
    return None
