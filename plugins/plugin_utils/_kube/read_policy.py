# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the policy of a cluster from the custom resources of a GPU Operator, which need not run. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object

_KINDS = (("nvidia.com/v1", "ClusterPolicy"), ("nvidia.com/v1alpha1", "GPUCluster"),
          ("nvidia.com/v1alpha1", "NVIDIADriver"))


def read_policy(client: Client) -> list[Object]:
    """The ClusterPolicy, GPUCluster and NVIDIADriver objects as a user would write them, sorted by kind and name.

    Raises ClusterError if there is none; its message says whether the kinds are missing.
    """
    found = [item for api_version, kind in _KINDS for item in client.list(api_version, kind)]
    if found:
        return [{"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": {"name": item["metadata"]["name"]},
                 "spec": item.get("spec") or {}}
                for item in sorted(found, key=lambda item: (item["kind"], item["metadata"]["name"]))]
    missing = [kind for api_version, kind in _KINDS if not client.knows(api_version, kind)]
    if len(missing) == len(_KINDS):
        message = (f"{client.server} has no ClusterPolicy and not even its CustomResourceDefinition: no GPU Operator "
                   "was installed in this cluster.")
    else:
        message = f"{client.server} has no ClusterPolicy, GPUCluster or NVIDIADriver."
    raise ClusterError(message, "Set the policy to a file or a mapping.", verb="list", object="ClusterPolicy",
                       reason="NotFound")
