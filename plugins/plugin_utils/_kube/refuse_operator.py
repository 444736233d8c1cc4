# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses a cluster with a running GPU Operator, because the operator would undo the changes of a run. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects, operator, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError


def refuse_operator(client: Client) -> None:
    """Raises ClusterError if the cluster has a ClusterPolicy and an operator runs, or the policy owns operands.

    Costs one request if the cluster has no ClusterPolicy.
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
    signs = [objects.label_of(one) for one in (*running, *operands)]
    raise ClusterError(
        f"A GPU Operator owns this cluster: ClusterPolicy {policy}, {some_of(signs)}.",
        "Adopt its objects with the playbook gpuops.nvidia.adopt, which restarts no driver; or keep the operator and "
        "remove the cluster from gpu_placement; or remove the operator first: helm uninstall its release, "
        f"then kubectl delete clusterpolicy {policy}.", verb="plan", object=f"ClusterPolicy {policy}",
        reason="Owned", found=signs)
