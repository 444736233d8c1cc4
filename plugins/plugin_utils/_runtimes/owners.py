# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else writes the runtime's configuration, and where the setting then belongs. PRIVATE to the collection.

Only those whose file this collection cannot make survive; k3s, RKE2, k0s and MicroK8s have a runtime file of their own.
Facts: documentation and sources of the products named (Kubespray's containerd role, Amazon EKS nodeadm, AKS AgentBaker,
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
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Path, render


@dataclass(frozen=True)
class Owner:
    """A product that rewrites the configuration.

    markers: paths of which one is there. advice: what to do instead. text: makes the very text to set there, of
    L(base.Options) and the effective table of containerd's CRI plugin; there is one for containerd alone. below: the
    folder in which the runtime's file must lie for this to count, such as one that cannot be written.
    """

    name: str
    markers: t.Tuple[str, ...]
    advice: str
    text: t.Callable[[Options, t.Mapping[str, t.Any]], str] | None = None
    below: str = "/"


def _inventory(options: Options, own: t.Mapping[str, t.Any]) -> str:
    """Variables of Kubespray, which puts containerd's folder before the name of a base specification."""
    values = cri.wanted(own, options, None)
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


def _word(value: t.Any) -> str:
    """A value in YAML as Kubespray wants it: truth as text."""
    return json.dumps(str(value).lower() if isinstance(value, bool) else value)


def _node_config(options: Options, own: t.Mapping[str, t.Any]) -> str:
    """A NodeConfig of Amazon EKS."""
    values = cri.wanted(own, options, None)
    toml = render({("version",): 3, **{cri.place(cri.V3, rel): value for rel, value in values.items()}})
    indented = "".join(f"      {line}".rstrip() + "\n" for line in toml.splitlines())
    return ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  containerd:\n    config: |\n" + indented)


OWNERS: t.Tuple[Owner, ...] = (
    Owner("the NVIDIA GPU Operator", ("/usr/local/nvidia/toolkit/nvidia-container-runtime",),
          "Let the operator go on (placement 'cluster' or 'none' for container_toolkit), or remove its toolkit first"),
    Owner("Kubespray", ("/usr/local/bin/kubernetes-scripts", "/etc/kubernetes/kubeadm-client.conf"),
          "Set this in Kubespray's inventory and run its cluster.yml, which rewrites the file at each run", _inventory),
    Owner("Amazon EKS nodeadm", ("/usr/bin/nodeadm", "/etc/eks/nodeadm.d"),
          "nodeadm rewrites the file at each boot, and declares the runtime by itself when it finds the toolkit then; "
          "anything else belongs into the NodeConfig (user data or a file in /etc/eks/nodeadm.d; version = 2 and "
          f"{cri.V2} for an AMI with containerd 1.7)", _node_config),
    Owner("AKS", ("/opt/azure/containers/provision.sh",),
          "Choose a GPU node pool, for which AKS writes the file when it provisions the node, or a pool with driver "
          "'none' and the GPU Operator"),
    Owner("GKE", ("/home/kubernetes/kubelet-config.yaml",),
          "Set the GPU options of the node pool; GKE makes its nodes anew"),
    Owner("Bottlerocket", ("/usr/share/bottlerocket",),
          "Use the settings API (settings.nvidia-container-runtime) of an NVIDIA variant, which has the toolkit"),
    Owner("Talos Linux", ("/etc/cri/containerd.toml",),
          "Put the NVIDIA system extensions into the image and patch the machine configuration"),
    Owner("Flatcar", ("/usr/share/flatcar",),
          "Copy the file to /etc/containerd/config.toml and point to it with Environment=CONTAINERD_CONFIG= in a "
          "drop-in of containerd.service, or use the NVIDIA system extension", below="/usr/"),
    Owner("OpenShift (RHCOS)", ("/etc/machine-config-daemon", "/run/machine-config-daemon"),
          "Use the GPU Operator: a MachineConfig owns the files below /etc"),
)


def markers() -> list[str]:
    """The paths that the host side looks for."""
    return [marker for owner in OWNERS for marker in owner.markers]


def refuse_foreign(found: t.Collection[str], runtime: str, seen: t.Mapping[str, t.Any], options: Options) -> str | None:
    """Raises one HostError where somebody else owns the configuration. found: those markers that are there.

    runtime, seen: the one to configure, and what the host side read of it.

    Where the owner takes the setting from a text of the user's, that text with its place is returned instead: packages
    and CDI are still ours to bring.
    """
    config = seen["config"]
    for owner in OWNERS:
        if owner.text is not None and runtime != "containerd":
            continue
        marker = next((marker for marker in owner.markers if marker in found), None)
        if marker is not None and config.startswith(owner.below):
            what = f"{config} is not ours to change: {owner.name} manages the runtime here ({marker})."
            if owner.text is None:
                raise HostError(what, f"{owner.advice}.", owner=owner.name, marker=marker)
            return f"{what} {owner.advice}:\n{owner.text(options, cri_table(seen))}"
    return None
