# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_maintenance
short_description: Take a Node out of service while its host is changed, and put it back
version_added: 0.1.0
description:
  - O(state=started) holds the Node for this run of Ansible, pauses its GPU operands by their deploy labels, and waits
    until the pods of the operands have ended. With O(disruption=drain) or V(reboot) it then cordons the Node and evicts
    the pods that use a GPU, as M(gpuops.nvidia.node_drain) does.
  - O(state=ended) waits until the Node is Ready, if it was Ready before, then resumes the operands, gives the Node back
    its former schedulability, and releases it.
  - Everything that is needed to go on stands on the Node. The annotation C(gpuops.nvidia/held-by) names the run, the
    labels of paused operands have the value C(paused-for-driver-upgrade), and C(gpuops.nvidia/cordoned-before) says
    whether the Node was cordoned before. Where a run was killed, the next one goes on. A run on another machine waits
    one hour before it takes such a Node.
  - With O(disruption=idle) no pod is evicted. Where a pod or a process of the host uses a GPU, nothing is changed,
    RV(started) is false, and RV(pending) names what is in the way.
  - A pod that may not be evicted, a driver upgrade of the GPU Operator, a change of the MIG layout, and another run
    that holds the Node are refused before anything is changed. Where an eviction fails, the Node is put back as it was.
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
      - V(started) takes the Node out of service, V(ended) puts it back. V(ended) does nothing to a Node that does not
        carry an annotation of V(started).
    type: str
    choices: [started, ended]
    required: true
  node:
    description:
      - The name of the Node, as C(kubectl get nodes) shows it.
    type: str
    required: true
  clients:
    description:
      - What uses the GPUs of the host, as M(gpuops.nvidia.nvidia_driver) and M(gpuops.nvidia.mig_config) return it as
        C(holders). Below O(disruption=drain) a client that does not run in a container is in the way.
    type: list
    elements: dict
    default: []
  grace_period:
    description:
      - Seconds that every evicted pod gets to end. Each has its own without this option.
    type: int
  timeout:
    description:
      - Seconds to wait for the pods of the operands, again for the evicted pods, and with O(state=ended) for the Node.
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
  reason:
    description:
      - With O(state=ended), why the maintenance failed. It is written to the annotation
        C(gpuops.nvidia/maintenance-failed), and a Node that this collection has cordoned stays cordoned until a later
        run succeeds.
    type: str
    default: ''
  begun:
    description:
      - With O(state=ended), what the task with V(started) returned. In check mode the steps that would follow are told
        from it.
    type: dict
    default: {}
seealso:
  - module: gpuops.nvidia.node_drain
  - module: gpuops.nvidia.nvidia_driver
"""

EXAMPLES = r"""
- name: Change the driver of a host that is a Node
  block:
    - name: Take the Node out of service
      gpuops.nvidia.node_maintenance:
        state: started
        node: gpu-a1
        kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
        disruption: drain
      register: maintenance

    - name: Install the driver
      gpuops.nvidia.nvidia_driver:
        branch: '580'
        disruption: drain
      become: true

    - name: Put the Node back into service
      gpuops.nvidia.node_maintenance:
        state: ended
        node: gpu-a1
        kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
        begun: "{{ maintenance }}"
"""

RETURN = r"""
started:
  description: Whether the Node is out of service now, in check mode would be.
  returned: success
  type: bool
  sample: true
ready:
  description: Whether the Node is Ready.
  returned: success
  type: bool
  sample: true
paused:
  description: The labels of the operands that were paused, in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [nvidia.com/gpu.deploy.device-plugin]
cordoned:
  description: The Node, where it was cordoned.
  returned: success
  type: list
  elements: str
  sample: [gpu-a1]
evicted:
  description: The pods that were evicted, each with C(node) and C(pod). Empty in check mode; RV(plan) has them.
  returned: success
  type: list
  elements: dict
  sample: [{node: gpu-a1, pod: training/worker-0}]
blocked:
  description: The pods that were still there when O(timeout) was over, as M(gpuops.nvidia.node_drain) returns them.
  returned: when pods could not be evicted
  type: list
  elements: dict
staying:
  description: Pods that use a GPU and are left alone, each with C(node), C(pod) and C(reason).
  returned: success
  type: list
  elements: dict
  sample: []
plan:
  description: The steps in order, in check mode those that would be taken.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "pause: device-plugin on Node gpu-a1"
      action: pause
      target: device-plugin on Node gpu-a1
      reason: ''
      needs: never
      assumed: false
pending:
  description: What uses a GPU and may not be ended at O(disruption), each with its C(pending_reason).
  returned: success
  type: list
  elements: dict
"""
