# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Products that overwrite the configuration of a runtime, and their own settings for it. PRIVATE.

k3s, RKE2, k0s and MicroK8s are not included, because they are runtimes with their own file in this folder.
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

    markers: the product is present if one of these paths exists. advice: instructions for the user. text: computes the
    settings of the product from the options and the effective table of the CRI plugin; only for containerd. below: the
    product only manages configuration files in this folder.
    """

    name: str
    markers: tuple[str, ...]
    advice: str
    text: t.Callable[[Options, Table], str] | None = None
    below: str = "/"


def _kubespray_variables(options: Options, plugin: Table) -> str:
    """The variables for Kubespray, which prepends containerd's folder to base_runtime_spec."""
    values = cri.desired(plugin, options, None)
    lines = ["containerd_additional_runtimes:"]
    for name in options.classes:
        table: Path = (*cri.RUNTIMES, name)
        lines += [f"  - name: {name}", f"    type: {cri.RUNC}", '    engine: ""', '    root: ""']
        if (*table, "base_runtime_spec") in values:
            base = pathlib.PurePosixPath(values[(*table, "base_runtime_spec")])
            lines.append(f"    base_runtime_spec: {base.name}")
        lines.append("    options:")
        lines += [f"      {path[-1]}: {_yaml_value(value)}" for path, value in values.items()
                  if path[:-1] == (*table, "options")]
    if options.default:
        lines.append(f"containerd_default_runtime: {options.default}")
    if options.cdi:
        lines.append("enable_cdi: true")
    return "\n".join(lines) + "\n"


def _yaml_value(value: Value) -> str:
    """The value in YAML for Kubespray, which expects booleans as strings."""
    return json.dumps(str(value).lower() if isinstance(value, bool) else value)


def _node_config(options: Options, plugin: Table) -> str:
    """The NodeConfig for Amazon EKS."""
    values = cri.desired(plugin, options, None)
    toml = render({("version",): 3, **{cri.plugin_path(cri.V3, path): value for path, value in values.items()}})
    indented = "".join(f"      {line}".rstrip() + "\n" for line in toml.splitlines())
    return ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  containerd:\n    config: |\n" + indented)


OWNERS: tuple[Owner, ...] = (
    Owner("the NVIDIA GPU Operator", ("/usr/local/nvidia/toolkit/nvidia-container-runtime",),
          "Leave the runtime to the GPU Operator (placement 'cluster' or 'none' for container_toolkit), or remove its "
          "toolkit first"),
    Owner("Kubespray", ("/usr/local/bin/kubernetes-scripts", "/etc/kubernetes/kubeadm-client.conf"),
          "Set this in the inventory of Kubespray and run its cluster.yml, which overwrites the file",
          _kubespray_variables),
    Owner("Amazon EKS nodeadm", ("/usr/bin/nodeadm", "/etc/eks/nodeadm.d"),
          "nodeadm overwrites the file at each boot, and declares the runtime if the toolkit is installed. Set other "
          "values in the NodeConfig (user data or a file in /etc/eks/nodeadm.d; for an AMI with containerd 1.7, with "
          f"version = 2 and {cri.V2})", _node_config),
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
          "Copy the file to /etc/containerd/config.toml and set Environment=CONTAINERD_CONFIG= to it in a drop-in of "
          "containerd.service, or use the NVIDIA system extension", below="/usr/"),
    Owner("OpenShift (RHCOS)", ("/etc/machine-config-daemon", "/run/machine-config-daemon"),
          "Use the GPU Operator: a MachineConfig manages the files in /etc"),
)


def markers() -> list[str]:
    """The paths whose existence the host reports."""
    return [marker for owner in OWNERS for marker in owner.markers]


def check_owner(existing: t.Collection[str], runtime: str, state: RuntimeState, options: Options) -> str | None:
    """Instructions for the user if a product manages the configuration, None if there is no such product.

    found: the existing markers; runtime, state: the runtime to configure. Raises HostError if the product has no
    settings for the runtime.
    """
    config = state.config
    for owner in OWNERS:
        if owner.text is not None and runtime != "containerd":
            continue
        marker = next((marker for marker in owner.markers if marker in existing), None)
        if marker is not None and config.startswith(owner.below):
            message = f"{config} is not changed, because {owner.name} manages the runtime ({marker})."
            if owner.text is None:
                raise HostError(message, f"{owner.advice}.", owner=owner.name, marker=marker)
            return f"{message} {owner.advice}:\n{owner.text(options, cri_table(state))}"
    return None
