# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_mig
short_description: Serve the labels by which a Node is asked for a MIG layout
version_added: 0.1.0
description:
  - The label C(nvidia.com/mig.config) of a Node names the layout that is asked for, and C(nvidia.com/mig.config.state)
    says how it goes, as with the GPU Operator. This module reads and writes these labels, stops the operands that hold
    GPUs while a host is changed, and starts them again. The GPUs themselves are M(gpuops.nvidia.mig_config)'s.
  - The playbook C(gpuops.nvidia.mig) puts both together.
  - Operands stop by the value C(paused-for-mig-change) of their label C(nvidia.com/gpu.deploy.*). A label that is not
    there is not made, V(false) and what other managers wrote stay.
  - Where the cluster's own MIG manager serves a Node, this module only writes the wish and waits for the end.
  - Runs on the controller, connects to no host, and uses no cluster but the one of O(kubeconfig).
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.cluster
requirements:
  - kubernetes (on the controller)
options:
  state:
    description:
      - V(gathered) returns where the Nodes stand.
      - V(changing) says C(pending), pauses the operands, and waits until their pods have ended.
      - V(settled) says what O(outcome) is, with O(reason) in the annotation C(gpuops.nvidia/mig-reason), and resumes
        every operand that is paused, also where a run that was killed or another manager has left it so.
      - V(requested) asks the cluster's MIG manager for O(layout), or sees to its end what the labels ask for already.
        Some Nodes follow the others by O(at_once); where one fails, the next are not asked. A layout that has failed is
        not tried again by that manager, which is said with what to do.
    type: str
    choices: [gathered, changing, settled, requested]
    default: gathered
  nodes:
    description:
      - The names of the Nodes. Without it, for V(gathered) and V(requested), all that the cluster's MIG manager serves.
    type: list
    elements: str
    default: []
  namespace:
    description:
      - The namespace of the operands, for what is said about their pods.
    type: str
    default: gpu-operator
  layout:
    description:
      - The layout, written to C(nvidia.com/mig.config). Without it the one that stands there counts.
      - With V(requested) one that the ConfigMap of the cluster's MIG manager does not have is refused before a label is
        written, as that manager would fail.
    type: str
    default: ''
  asked:
    description:
      - What RV(nodes) said that a Node is asked for when this run looked. Where its label names neither that nor
        O(layout) any more, the new wish stays. V(changing), and V(settled) with V(success), then fail.
    type: str
  outcome:
    description:
      - How the change ended, for V(settled).
    type: str
    choices: [success, failed]
    default: success
  reason:
    description:
      - Why it failed. Kept on the Node as one line of at most 1,000 characters until it succeeds.
    type: str
    default: ''
  labels:
    description:
      - What an earlier task of the same run returned as RV(labels). In check mode the steps then are those that would
        follow; otherwise it does not count.
    type: dict
    default: {}
  at_once:
    description:
      - How many Nodes V(requested) asks at the same time.
    type: int
    default: 1
  timeout:
    description:
      - Seconds that operands have to end, or the MIG manager has for the Nodes that are asked at the same time.
    type: int
    default: 300
seealso:
  - module: gpuops.nvidia.mig_config
  - module: gpuops.nvidia.node_drain
"""

EXAMPLES = r"""
- name: See what the Node is asked for
  gpuops.nvidia.node_mig:
    nodes: [gpu-a1]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Say that its layout is about to change, and stop what holds its GPUs
  gpuops.nvidia.node_mig:
    state: changing
    nodes: [gpu-a1]
    layout: all-1g.10gb
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Say that it has, and start everything again
  gpuops.nvidia.node_mig:
    state: settled
    nodes: [gpu-a1]
    outcome: success
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Have the cluster's MIG manager bring all its Nodes to a layout, two at a time
  gpuops.nvidia.node_mig:
    state: requested
    layout: all-balanced
    at_once: 2
    timeout: 900
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
"""

RETURN = r"""
nodes:
  description:
    - By Node the layout that is C(asked), the C(state), the operands that are C(paused), the C(reason) of the last
      failure, C(left) where a run was killed or has given up, and C(managed) where the cluster's MIG manager serves it.
  returned: O(state=gathered)
  type: dict
  sample:
    gpu-a1: {asked: all-1g.10gb, state: success, paused: [], reason: "", left: false, managed: false}
labels:
  description: By Node the labels that were written, in check mode would be.
  returned: O(state=changing) and O(state=settled)
  type: dict
  sample: {gpu-a1: {nvidia.com/mig.config.state: pending, nvidia.com/gpu.deploy.device-plugin: paused-for-mig-change}}
done:
  description: The Nodes whose layout has come to a good end.
  returned: O(state=requested)
  type: list
  elements: str
failed_nodes:
  description: The Nodes whose layout has failed or was not done in time; the message says why and what to do.
  returned: O(state=requested)
  type: list
  elements: str
left:
  description: The Nodes that were not asked any more after that.
  returned: O(state=requested)
  type: list
  elements: str
plan:
  description: The steps that were taken, in check mode those that would be.
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
  description: Always empty; whether a change is allowed is decided where it happens.
  returned: success
  type: list
  elements: dict
"""
