# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_upgrade
short_description: Replace outdated driver pods of a cluster, a few Nodes at a time
version_added: 0.1.0
description:
  - Driver pods are replaced only when they are deleted (update strategy C(OnDelete)). This module finds the Nodes whose
    driver pod is outdated, and upgrades them by the rules of C(driver.upgradePolicy) in the policy, or in the
    NVIDIADriver of the Node.
  - The label C(nvidia.com/gpu-driver-upgrade-state) of a Node has its state, with the values of the GPU Operator. For
    each Node, the module holds and cordons the Node (C(cordon-required)), waits for jobs
    (C(wait-for-jobs-required)), evicts the pods that use GPUs within their disruption budgets and pauses the operands
    (C(pod-deletion-required); C(drain-required) if C(drain.enable) allows to evict all pods), deletes the driver pod
    and waits until the new one is Ready (C(pod-restart-required)), resumes the operands and waits for the validator
    (C(validation-required)), and restores the former state of the Node (C(uncordon-required), C(upgrade-done)).
  - Until the first Node of a DaemonSet has been upgraded, its other Nodes wait. A Node that is cordoned or not Ready
    counts as unavailable. A Node that has failed in this run does not count, so it does not keep other Nodes waiting;
    see O(max_fail_percentage).
  - If pods cannot be evicted, the Node is skipped and is as before. If the new driver does not become Ready, or the
    validator does not pass, the Node has failed. It stays cordoned, its operands run, and the annotation
    C(gpuops.nvidia/maintenance-failed) says why. The task then fails and names the Nodes with the reasons. The next
    run finishes the Nodes whose driver is Ready meanwhile.
  - If a run is killed, the next run continues, on any controller. It also continues upgrades that a GPU Operator has
    started, if the operator no longer runs.
  - A Node with the label C(nvidia.com/gpu-driver-upgrade.skip=true) is not upgraded. If an upgrade has begun there, it
    is finished if the driver pod is the desired one, undone if no run has touched the driver pod, and named otherwise.
  - A pod with the label C(nvidia.com/gpu-driver-upgrade-drain.skip=true) is not evicted by C(drain-required).
  - Runs on the controller, connects to no host, and uses only the cluster of O(kubeconfig).
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.cluster
requirements:
  - kubernetes (on the controller)
options:
  cluster:
    description:
      - The plan of the cluster, the result C(cluster) of M(gpuops.nvidia.gpu_policy). Its C(disruption) says what may
        be disturbed.
      - V(never) upgrades no Node. V(idle) upgrades only Nodes without pods that use a GPU, and does not cordon them.
        V(drain) and V(reboot) evict pods.
    type: dict
    required: true
  nodes:
    description:
      - The Nodes that may be upgraded. If this is not set, all Nodes.
    type: list
    elements: str
    default: []
  first:
    description:
      - The Nodes that are upgraded before all others, which wait until these have ended. If this is not set, Nodes that
        are cordoned come first, and the others by name. A Node to which the policy delivers no driver is refused.
    type: list
    elements: str
    default: []
  max_parallel:
    description:
      - How many Nodes are upgraded at the same time, if this is less than C(maxParallelUpgrades).
    type: int
  max_unavailable:
    description:
      - How many Nodes of a driver may be unavailable at the same time, as a number or a percentage such as V(10%), if
        this is less than C(maxUnavailable).
    type: str
  max_fail_percentage:
    description:
      - The percentage of the Nodes that may fail before no further upgrade starts.
    type: int
    default: 0
  windows:
    description:
      - The maintenance windows in which upgrades may begin, in the form of C(gpu_maintenance_windows). If there is
        none, they may begin at any time.
      - While all windows are closed, only upgrades that an earlier run has begun are finished. After a Node has been
        upgraded, no further Node is begun for which the rest of the window is shorter than the longest upgrade of this
        run. An upgrade that has begun is finished, also after the window has closed.
      - Nodes that wait for a window are C(pending) and do not make the task fail.
    type: raw
seealso:
  - module: gpuops.nvidia.operands
  - module: gpuops.nvidia.node_maintenance
"""

EXAMPLES = r"""
- name: Upgrade all outdated drivers, first that of one Node
  gpuops.nvidia.node_upgrade:
    cluster: "{{ gpu_plan.cluster }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    first: [gpu-a1]

- name: Upgrade at most four Nodes at a time, and stop after more than a tenth of them has failed
  gpuops.nvidia.node_upgrade:
    cluster: "{{ gpu_plan.cluster }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    max_parallel: 4
    max_fail_percentage: 10

- name: Begin upgrades only in the nights of the weekend
  gpuops.nvidia.node_upgrade:
    cluster: "{{ gpu_plan.cluster }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    windows:
      - {days: [sat, sun], start: "22:00", hours: 6, timezone: Europe/Berlin}
"""

RETURN = r"""
nodes:
  description:
    - The Nodes that need an upgrade, in the order of their upgrade. C(driver) is the NVIDIADriver, empty for the
      section C(driver) of the policy; C(current) and C(desired) are the tags of the driver images; the Nodes of a
      C(batch) start at the same time, V(0) is for Nodes that do not start; C(seconds) is the duration of the upgrade.
    - C(state) is C(upgraded), C(failed), C(skipped), C(pending) if C(disruption), a GPU client or O(windows) forbids
      the upgrade, C(waiting) if it has not started, or C(gone) if the Node was deleted meanwhile. C(reason) says why.
  returned: always
  type: list
  elements: dict
  sample:
    - node: gpu-a1
      driver: ""
      current: 570.172.08-ubuntu22.04
      desired: 580.95.05-ubuntu22.04
      state: upgraded
      reason: ""
      batch: 1
      seconds: 214
next_opening:
  description: When the next of O(windows) opens, in UTC. Empty if no Node waits for one.
  returned: always
  type: str
  sample: "2026-11-28T21:00:00Z"
blocked:
  description: The pods that could not be evicted, each with C(node), C(pod) and C(reason).
  returned: failure
  type: list
  elements: dict
  sample: []
plan:
  description: The steps in order, or in check mode the steps that a run would take.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "replace: driver Pod of Node gpu-a1"
      action: replace
      target: driver Pod of Node gpu-a1
      reason: 570.172.08-ubuntu22.04 becomes 580.95.05-ubuntu22.04
      needs: idle
      assumed: false
pending:
  description: The steps that C(disruption) or a GPU client forbids, each with its C(pending_reason).
  returned: success
  type: list
  elements: dict
  sample: []
"""
