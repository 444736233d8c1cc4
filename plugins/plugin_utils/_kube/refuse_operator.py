# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses a cluster that a GPU Operator manages, because the operator would undo the changes of a run. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects, operator, rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError


def refuse_operator(client: Client) -> None:
    """Raises ClusterError if the cluster has a ClusterPolicy, and an operator runs or the ClusterPolicy owns operands.

    Sends only one request if the cluster has no ClusterPolicy.
    """
    with rights.named(client):
        policies = client.list("nvidia.com/v1", "ClusterPolicy", metadata_only=True)
    if not policies:
        return
    running = [deployment for deployment in operator.deployments(client) if operator.replicas(deployment) > 0]
    operands = [item for item in client.list("apps/v1", "DaemonSet", metadata_only=True) if operator.owns(item)]
    if not running and not operands:
        return
    policy = policies[0]["metadata"]["name"]
    signs = [objects.label_of(item) for item in (*running, *operands)]
    raise ClusterError(
        f"A GPU Operator manages this cluster: ClusterPolicy {policy}, {some_of(signs)}.",
        "Adopt the operator's objects with the playbook gpuops.nvidia.adopt, which restarts no driver. Or keep the "
        "operator, and do not deliver components in the cluster (gpu_placement: hosts). Or remove the operator first: "
        f"uninstall its Helm release, then run: kubectl delete clusterpolicy {policy}", verb="plan",
        object=f"ClusterPolicy {policy}",
        reason="Owned", found=signs)
