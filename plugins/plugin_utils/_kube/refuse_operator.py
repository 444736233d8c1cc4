# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a GPU Operator owns the cluster already: two writers of the same operands would undo each other. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import operator, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError


def refuse_operator(client: Client) -> None:
    """Raises ClusterError where a ClusterPolicy is there and an operator runs, or operands belong to the policy.

    One request where the cluster has no ClusterPolicy.
    """
    with rights.named(client):
        policies = client.list("nvidia.com/v1", "ClusterPolicy", metadata_only=True)
    if not policies:
        return
    running = [one for one in operator.deployments(client) if operator.replicas(one) > 0]
    operands = [one for one in client.list("apps/v1", "DaemonSet", metadata_only=True) if operator.owns(one)]
    if not running and not operands:
        return
    policy = policies[0]["metadata"]["name"]
    signs = [f"Deployment {_name(one)}" for one in running] + [f"DaemonSet {_name(one)}" for one in operands]
    raise ClusterError(
        f"A GPU Operator owns this cluster: ClusterPolicy {policy}, {', '.join(signs[:3])}"
        f"{f' and {len(signs) - 3} more' if len(signs) > 3 else ''}.",
        "Take it over with the playbook gpuops.nvidia.adopt, which restarts no driver; or keep it and take the cluster "
        "out of gpu_placement; or remove it first: helm uninstall its release, "
        f"then kubectl delete clusterpolicy {policy}.", verb="plan", object=f"ClusterPolicy {policy}",
        reason="Owned", found=signs)


def _name(item: t.Mapping[str, t.Any]) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"
