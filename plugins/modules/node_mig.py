# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_mig
short_description: Process the labels that request a MIG layout for a Node
version_added: 0.1.0
description:
  - The label C(nvidia.com/mig.config) of a Node requests a layout, and C(nvidia.com/mig.config.state) shows the
    progress, as with the GPU Operator. This module reads and writes these labels, pauses the operands that use GPUs
    while a host is changed, and resumes them. It does not change the GPUs themselves; that is the task of
    M(gpuops.nvidia.mig_config).
  - The playbook C(gpuops.nvidia.mig) uses both modules together, and M(gpuops.nvidia.node_maintenance) where a change
    disturbs the Node.
  - An operand is paused by the value C(paused-for-mig-change) of its label C(nvidia.com/gpu.deploy.*). The module does
    not create a label that does not exist. It keeps V(false) and values that other managers wrote.
  - If the cluster's own MIG manager serves a Node, this module only writes the label that requests the layout, and
    waits until the manager has finished.
  - V(changing) holds a Node for this run of Ansible by the annotation C(gpuops.nvidia/held-by), and V(settled) releases
    it. All states but V(gathered) refuse a Node that another run holds. If O(nodes) is empty, V(requested) leaves
    such a Node out, serves the others, and fails at the end.
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
      - V(gathered) returns the state of the Nodes.
      - V(changing) holds the Nodes, sets the state C(pending), pauses the operands, and waits until their pods have
        ended.
      - V(settled) sets the state to O(outcome), writes O(reason) to the annotation C(gpuops.nvidia/mig-reason), and
        resumes every paused operand, even if a killed run or another manager left it paused.
      - V(recovered) does what V(settled) does with O(outcome=failed), only on Nodes that a killed run has left
        unfinished (C(unfinished) of RV(nodes)) and that the cluster's MIG manager does not serve.
      - V(requested) requests O(layout) from the cluster's MIG manager, or waits for the layout that the labels already
        request. A request for another layout needs O(disruption=idle); the other states do not use O(disruption).
        The layouts of O(at_once) Nodes are requested at the same time. If more than O(max_fail_percentage) fail, no
        further layouts are requested. The manager does not try a failed layout again; the error then says what to do.
    type: str
    choices: [gathered, changing, settled, recovered, requested]
    default: gathered
  nodes:
    description:
      - The names of the Nodes. If this is empty, V(gathered) and V(requested) use all Nodes that the cluster's MIG
        manager serves.
    type: list
    elements: str
    default: []
  namespace:
    description:
      - The namespace of the operands. The module uses it in messages about their pods, and to look up the layouts of
        the MIG manager.
    type: str
    default: gpu-operator
  layout:
    description:
      - The layout, which is written to C(nvidia.com/mig.config). If this is empty, the layout that the label already
        names applies.
      - With V(requested) a layout that is not in the ConfigMap of the cluster's MIG manager is refused before a label
        is written, because the manager would fail.
    type: str
    default: ''
  expected_layout:
    description:
      - The layout that the label of the Node requested when this run gathered its state, C(layout) of RV(nodes). If the
        label now requests neither this layout nor O(layout), the module keeps the label.
      - V(changing), and V(settled) with V(success), fail in this case.
    type: str
  outcome:
    description:
      - How the change ended, for V(settled).
    type: str
    choices: [success, failed]
    default: success
  reason:
    description:
      - Why the change failed, for V(settled) and V(recovered). It is kept on the Node as one line of at most 1,000
        characters until a change succeeds.
    type: str
    default: ''
  labels:
    description:
      - What an earlier task of the same run returned as RV(labels), or by Node the labels that
        M(gpuops.nvidia.node_maintenance) would have written. In check mode the module derives from it the steps
        that would follow; otherwise it is not used.
    type: dict
    default: {}
  release:
    description:
      - Whether V(settled) and V(recovered) release the Nodes that this run holds. V(false) leaves that to
        M(gpuops.nvidia.node_maintenance) with V(ignore:ended).
    type: bool
    default: true
  pause:
    description:
      - Whether V(changing) pauses the operands. V(false) leaves that to M(gpuops.nvidia.node_maintenance), which spares
        an MPS daemon that must not be ended.
    type: bool
    default: true
  at_once:
    description:
      - For how many Nodes V(requested) requests a layout at the same time, a number or a percentage such as V(25%).
    type: str
    default: '1'
  max_fail_percentage:
    description:
      - The percentage of the Nodes that may fail before V(requested) requests no further layout.
    type: int
    default: 0
  timeout:
    description:
      - Seconds to wait for the pods of operands to end, or for the MIG manager to finish the Nodes whose layouts were
        requested at the same time.
    type: int
    default: 300
seealso:
  - module: gpuops.nvidia.mig_config
  - module: gpuops.nvidia.node_drain
  - module: gpuops.nvidia.node_maintenance
"""

EXAMPLES = r"""
- name: Read the requested layout of a Node
  gpuops.nvidia.node_mig:
    nodes: [gpu-a1]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Set the state pending, and pause the operands that use its GPUs
  gpuops.nvidia.node_mig:
    state: changing
    nodes: [gpu-a1]
    layout: all-1g.10gb
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Set the state success, and resume the operands
  gpuops.nvidia.node_mig:
    state: settled
    nodes: [gpu-a1]
    outcome: success
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Request a layout from the MIG manager of the cluster, two Nodes at a time
  gpuops.nvidia.node_mig:
    state: requested
    layout: all-balanced
    disruption: idle
    at_once: 2
    timeout: 900
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
"""

RETURN = r"""
nodes:
  description:
    - For each Node C(layout), the requested layout, the C(state), the C(paused) operands, the C(reason) of the last
      failure, C(unfinished), whether a killed run or a MIG manager that gave up left the Node unfinished, and
      C(managed), whether the cluster's MIG manager serves the Node.
  returned: O(state=gathered)
  type: dict
  sample:
    gpu-a1: {layout: all-1g.10gb, state: success, paused: [], reason: "", unfinished: false, managed: false}
labels:
  description: For each Node the labels that were written, or would be in check mode.
  returned: O(state=changing), O(state=settled) and O(state=recovered)
  type: dict
  sample: {gpu-a1: {nvidia.com/mig.config.state: pending, nvidia.com/gpu.deploy.device-plugin: paused-for-mig-change}}
done:
  description: The Nodes whose layout was changed successfully.
  returned: O(state=requested)
  type: list
  elements: str
failed_nodes:
  description:
    - The Nodes whose layout failed or was not finished in time, and those that were left out because another run holds
      them. The error message says why and what to do.
  returned: O(state=requested)
  type: list
  elements: str
left:
  description: The Nodes whose layouts were not requested, because others failed.
  returned: O(state=requested)
  type: list
  elements: str
plan:
  description: The steps that were taken, or in check mode the steps that a run would take.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "pause: device-plugin on Node gpu-a1"
      action: pause
      target: device-plugin on Node gpu-a1
      reason: ""
      needs: never
      assumed: false
pending:
  description:
    - With O(state=requested), the requests that O(disruption) does not allow, each with its C(pending_reason).
      Otherwise empty, because M(gpuops.nvidia.mig_config) decides whether a change of the GPUs is allowed.
  returned: success
  type: list
  elements: dict
"""
