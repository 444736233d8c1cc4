# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_maintenance
short_description: Take a Node out of service while its host is changed, and put it back
version_added: 0.1.0
description:
  - O(state=started) holds the Node for this run of Ansible. With O(disruption=drain) or V(reboot) it cordons the Node
    and evicts the pods that use a GPU, as M(gpuops.nvidia.node_drain) does. Then it pauses the GPU operands by their
    deploy labels, and waits until the pods of the operands have ended.
  - O(state=ended) waits until the Node is Ready, if it was Ready before. It then resumes the operands, uncordons the
    Node unless it was cordoned before, and releases it.
  - The state of the maintenance is kept on the Node, so that another run can continue if a run was killed. The
    annotation C(gpuops.nvidia/held-by) names the run, the labels of paused operands have the value
    C(paused-for-driver-upgrade), and C(gpuops.nvidia/cordoned-before) says whether the Node was cordoned before.
  - A Node that another run holds is refused. A run on the same controller holds it until its process ends, a run on
    another controller for one hour.
  - Below O(disruption=drain) no pod is evicted. If a pod or a process of the host uses a GPU, nothing is changed,
    RV(started) is false, and RV(pending) names what uses the GPU. Because the Node is not cordoned, the module checks
    again for such pods when the operands have ended. If a pod has started meanwhile, it resumes the operands.
  - The module fails before it changes anything if a pod may not be evicted, if the GPU Operator upgrades the driver, or
    if its MIG manager changes the layout. If an eviction fails, it restores the Node.
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
      - V(started) takes the Node out of service, V(ended) puts it back. V(ended) does nothing to a Node that has none
        of the annotations of this module.
      - If the label C(nvidia.com/gpu-driver-upgrade-state) says that an upgrade of the driver pod is not finished or
        has failed, its driver may not work. Then V(ended) leaves a Node that O(begun) has not taken out of service as
        it is, and a Node that was cordoned when the upgrade failed stays cordoned. RV(pending) and a warning say so.
    type: str
    choices: [started, ended]
    required: true
  node:
    description:
      - The name of the Node, as C(kubectl get nodes) shows it.
    type: str
    required: true
  evict:
    description:
      - Whether the change disturbs what uses the GPUs. V(false) if it only creates MIG instances in free space. Then,
        at every level, no pod is evicted, no pod prevents the change, and only the operands are paused that read the
        MIG instances at their start.
      - The MPS daemon has the same label as the device plugin, and its clients end with it. If the Node has an MPS
        daemon, V(false) counts as V(true), and at O(disruption=never) the daemon keeps the Node in service.
    type: bool
    default: true
  creates:
    description:
      - Whether the change creates MIG instances in free space. If O(disruption) forbids the rest of the change, the
        module continues for them as with O(evict=false), and RV(level) is V(never).
    type: bool
    default: false
  clients:
    description:
      - What uses the GPUs of the host, as M(gpuops.nvidia.nvidia_driver) and M(gpuops.nvidia.mig_config) return it in
        C(holders). Below O(disruption=drain) a client that does not run in a container keeps the Node in service.
    type: list
    elements: dict
    default: []
  grace_period:
    description:
      - The grace period of every evicted pod, in seconds. If this is not set, each pod's own grace period applies.
    type: int
  timeout:
    description:
      - Seconds to wait for the pods of the operands to end, and again for the evicted pods. With O(state=ended),
        seconds to wait for the Node to become Ready.
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
  reason:
    description:
      - With O(state=ended), why the maintenance failed. The module writes it to the annotation
        C(gpuops.nvidia/maintenance-failed). A Node that this collection has cordoned then stays cordoned until a later
        run succeeds.
    type: str
    default: ''
  begun:
    description:
      - With O(state=ended), what the task with V(started) returned. It says whether the Node was Ready before. In check
        mode the module also derives from it the steps that a run would take.
    type: dict
    default: {}
  labels:
    description:
      - What an earlier task of the same run returned as C(labels), as M(gpuops.nvidia.node_mig) does. In check mode the
        module derives from it the steps that would follow; otherwise it is not used.
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
  description: Whether the Node is out of service now, or would be in check mode.
  returned: success
  type: bool
  sample: true
level:
  description: The level at which the host may be changed now. V(never) if the Node stays in service, or if only the
    operands are paused that read the MIG instances at their start.
  returned: with O(state=started)
  type: str
  sample: drain
ready:
  description: Whether the Node is Ready.
  returned: success
  type: bool
  sample: true
paused:
  description: The labels of the operands that were paused, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [nvidia.com/gpu.deploy.device-plugin]
cordoned:
  description: The Node, if it was cordoned, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [gpu-a1]
evicted:
  description: The pods that were evicted, each with C(node) and C(pod). Empty in check mode; see RV(plan) there.
  returned: success
  type: list
  elements: dict
  sample: [{node: gpu-a1, pod: training/worker-0}]
blocked:
  description: The pods that still ran when O(timeout) was over, as M(gpuops.nvidia.node_drain) returns them.
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
  description: The steps in order, or in check mode the steps that a run would take.
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
  description: What uses a GPU and must not be ended at the level O(disruption), each with its C(pending_reason). With
    O(state=ended), what only the upgrade of the driver pod does.
  returned: success
  type: list
  elements: dict
"""
