# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_drain
short_description: Empty Nodes of a cluster within their disruption budgets, and give them back as they were
version_added: 0.1.0
description:
  - Cordons Nodes and evicts their pods by the Eviction API (C(policy/v1)), all Nodes at the same time. Pods that use
    GPUs are asked to go first; the others follow when the last of these has ended.
  - A disruption budget is waited for. The pod is asked again when the API server says so, until O(timeout) is over.
    Then the task fails with everything that stands in its way, and the Nodes concerned get back what they were.
  - Whether a Node was cordoned before is kept in its annotation C(gpuops.nvidia/cordoned-before), written together with
    the cordon. So O(state=uncordoned) leaves a Node cordoned that somebody else had cordoned, also where the run that
    drained it was killed.
  - Pods of DaemonSets, mirror pods and pods that have ended are left alone, as C(kubectl drain) does.
  - Pods without a controller and pods with emptyDir volumes are refused before anything is changed, unless O(force) and
    O(delete_emptydir_data) give them up. Below O(disruption=drain) nobody is evicted, so they do not count.
  - A busy server, broken connections and lost races are ridden through for some seconds.
  - Runs on the controller, connects to no host, and uses no cluster but the one of O(kubeconfig).
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
      - V(uncordoned) takes the cordon of this module back. A Node that does not carry its annotation is left as it is.
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
      - V(gpu) evicts only pods that use a GPU or a part of one. They ask for it, such as C(nvidia.com/gpu) or
        C(nvidia.com/mig-1g.10gb), for a container or for the pod; or they have a resource claim (C(resourceClaims)); or
        the container runtime gives them one by C(NVIDIA_VISIBLE_DEVICES) or a CDI annotation.
      - V(all) evicts the others after them.
    type: str
    choices: [gpu, all]
    default: gpu
  grace_period:
    description:
      - Seconds that every pod gets to end. Each has its own without this option.
    type: int
  timeout:
    description:
      - Seconds for all Nodes together.
    type: int
    default: 300
  delete_emptydir_data:
    description:
      - Whether pods with emptyDir volumes are evicted too, whose data are then lost.
    type: bool
    default: false
  force:
    description:
      - Whether pods without a controller are evicted too, which nobody starts again.
    type: bool
    default: false
  cordoned:
    description:
      - What an earlier task of the same run returned as RV(cordoned). In check mode V(uncordoned) then tells the steps
        that would follow; otherwise it does not count.
    type: list
    elements: str
    default: []
seealso:
  - module: gpuops.nvidia.node_mig
  - module: gpuops.nvidia.mig_config
"""

EXAMPLES = r"""
- name: Free the GPUs of a Node
  gpuops.nvidia.node_drain:
    nodes: [gpu-a1]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    disruption: drain

- name: Empty two Nodes for a reboot, within ten minutes
  gpuops.nvidia.node_drain:
    nodes: [gpu-a1, gpu-a2]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    pods: all
    delete_emptydir_data: true
    timeout: 600
    disruption: drain

- name: Give them back as they were
  gpuops.nvidia.node_drain:
    state: uncordoned
    nodes: [gpu-a1, gpu-a2]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
"""

RETURN = r"""
cordoned:
  description: The Nodes that were cordoned or marked, in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [gpu-a1]
uncordoned:
  description: The Nodes that got back what they were, at the end of a failure those that could not be emptied.
  returned: success
  type: list
  elements: str
  sample: []
evicted:
  description: The pods that were evicted, each with C(node) and C(pod). Empty in check mode; RV(plan) has them.
  returned: success
  type: list
  elements: dict
  sample: [{node: gpu-a1, pod: training/worker-0}]
blocked:
  description:
    - The pods that were still there when O(timeout) was over, each with C(node), C(pod), C(reason), and C(budget), the
      disruption budget that forbids it, empty where it is none.
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
  description: The steps in order, in check mode those that would be taken. Pods with GPUs come first on each Node.
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
  description: The same steps where O(disruption) forbids them, each with its C(pending_reason). Then nothing is done.
  returned: success
  type: list
  elements: dict
"""
