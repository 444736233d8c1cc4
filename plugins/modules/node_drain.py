# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_drain
short_description: Drain Nodes of a cluster within disruption budgets, and restore them
version_added: 0.1.0
description:
  - Cordons Nodes and evicts their pods through the Eviction API (C(policy/v1)), all Nodes at the same time. It evicts
    pods that use GPUs first, and the others when these have ended.
  - If a disruption budget forbids an eviction, the module retries after the time that the API server names, until
    O(timeout) is over. Then the task fails, names every pod that remains, and restores the Nodes of these pods. A Node
    that an earlier task has cordoned stays cordoned.
  - Before the first eviction on a Node, the module checks with a dry run whether all of its pods can be evicted, and
    waits for this in the same way. So no pod ends while a budget protects another pod of its Node. A budget that is
    exhausted later still protects the pods that remain.
  - The annotation C(gpuops.nvidia/cordoned-before) of a Node says whether it was cordoned before. The module writes it
    together with the cordon. Therefore O(state=uncordoned) leaves a Node cordoned that somebody else had cordoned, even
    if the run that drained it was killed.
  - Pods of DaemonSets, mirror pods and pods that have ended are not evicted, as with C(kubectl drain).
  - The module fails before it changes anything if a pod has no controller or has emptyDir volumes, unless O(force) and
    O(delete_emptydir_data) allow its eviction. Below O(disruption=drain) no pod is evicted, and RV(pending) names such
    pods, too.
  - O(state=drained) refuses a Node that another run holds by the annotation C(gpuops.nvidia/held-by).
  - If the API server is busy, a connection breaks, or another client writes at the same time, the module retries for
    some seconds.
  - Runs on the controller, connects to no host, and uses only the cluster of O(kubeconfig).
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.cluster
  - gpuops.nvidia._attributes.plan
requirements:
  - kubernetes (on the controller)
options:
  state:
    description:
      - V(drained) cordons the Nodes and evicts their pods. It needs O(disruption=drain).
      - V(uncordoned) removes the cordon of this module. A Node without its annotation is left as it is.
    type: str
    choices: [drained, uncordoned]
    default: drained
  nodes:
    description:
      - The names of the Nodes, as C(kubectl get nodes) shows them.
    type: list
    elements: str
    required: true
  pods:
    description:
      - V(gpu) evicts only pods that use a GPU or a part of one. These are pods that request a resource such as
        C(nvidia.com/gpu) or C(nvidia.com/mig-1g.10gb), for a container or for the pod; pods with a resource claim
        (C(resourceClaims)); and pods that get a GPU from the container runtime by C(NVIDIA_VISIBLE_DEVICES) or a CDI
        annotation.
      - V(all) then also evicts the other pods.
    type: str
    choices: [gpu, all]
    default: gpu
  grace_period:
    description:
      - The grace period of every pod, in seconds. If this is not set, each pod's own grace period applies.
    type: int
  timeout:
    description:
      - Seconds that all evictions on all Nodes may take together.
    type: int
    default: 300
  delete_emptydir_data:
    description:
      - Whether to evict pods with emptyDir volumes too. The data in these volumes are lost.
    type: bool
    default: false
  force:
    description:
      - Whether to evict pods without a controller too. Nothing starts these pods again.
    type: bool
    default: false
  cordoned:
    description:
      - What an earlier task of the same run returned as RV(cordoned). In check mode the module needs it to plan the
        steps of V(uncordoned); otherwise it is not used.
    type: list
    elements: str
    default: []
seealso:
  - module: gpuops.nvidia.node_mig
  - module: gpuops.nvidia.mig_config
"""

EXAMPLES = r"""
- name: Evict the pods that use GPUs from a Node
  gpuops.nvidia.node_drain:
    nodes: [gpu-a1]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    disruption: drain

- name: Drain two Nodes for a reboot, within ten minutes
  gpuops.nvidia.node_drain:
    nodes: [gpu-a1, gpu-a2]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    pods: all
    delete_emptydir_data: true
    timeout: 600
    disruption: drain

- name: Restore their former schedulability
  gpuops.nvidia.node_drain:
    state: uncordoned
    nodes: [gpu-a1, gpu-a2]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
"""

RETURN = r"""
cordoned:
  description:
    - The Nodes that were cordoned, or would be in check mode. A Node that was cordoned before only gets the annotation.
  returned: success
  type: list
  elements: str
  sample: [gpu-a1]
uncordoned:
  description: The Nodes that were put back as they were. After a failure, those whose pods could not be evicted.
  returned: success
  type: list
  elements: str
  sample: []
evicted:
  description: The pods that were evicted, each with C(node) and C(pod). Empty in check mode; see RV(plan) there.
  returned: success
  type: list
  elements: dict
  sample: [{node: gpu-a1, pod: training/worker-0}]
blocked:
  description:
    - The pods that still ran when O(timeout) was over, each with C(node), C(pod), C(reason), and C(budget), the
      disruption budget that forbids the eviction, empty if there is none.
  returned: success
  type: list
  elements: dict
  sample:
    - node: gpu-a1
      pod: inference/server-0
      budget: server
      reason: The disruption budget server needs 2 healthy pods and has 2 currently
staying:
  description: Pods that use a GPU and are left alone, each with C(node), C(pod) and C(reason).
  returned: success
  type: list
  elements: dict
  sample: []
plan:
  description:
    - The steps in order, or in check mode the steps that a run would take. Pods with GPUs come first on each Node.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "evict: Pod training/worker-0"
      action: evict
      target: Pod training/worker-0
      reason: it uses a GPU on gpu-a1
      needs: drain
      assumed: false
pending:
  description:
    - The same steps if O(disruption) forbids them, each with its C(pending_reason). Nothing is done then.
  returned: success
  type: list
  elements: dict
"""
