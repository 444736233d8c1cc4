# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify
short_description: Compare a GPU host or a cluster with its plan, component by component
version_added: 0.1.0
description:
  - Says for each component whether the host is as its plan says, and if not, what differs and what to do.
  - The driver is compared by loaded module, libraries, NVML and GPUs seen; the container toolkit by version, runtimes
    and CDI specification; MIG by mode and instances; labels by whether they can be computed; the software beside the
    driver by version and service; CUDA by what M(gpuops.nvidia.gpu_info) found.
  - With O(cluster) it runs on the controller, waits until the components that the plan has in the cluster are ready,
    prints a line whenever one has come further, and says where and why one does not come up. Of components that wait
    for each other on a Node the first is named as the cause, with the last lines of its log. Of many pods that stand
    alike a few logs are read; one that cannot be read fails nothing.
  - The objects of these components, and the labels of Nodes by which operands find them, are compared with the plan of
    O(cluster) as M(gpuops.nvidia.operands) and M(gpuops.nvidia.gpu_labels) would in a run; what they would write is
    V(failed), what O(cluster) has pending as its C(gpu_disruption) forbids it is V(pending). Nothing is written.
  - Pods of Nodes that are NotReady, and pods of a driver that wait for their restart, are V(pending) and not waited
    for.
  - Where the cluster's MIG manager serves Nodes, the layouts that their labels C(nvidia.com/mig.config) ask for are
    waited for, too. One that has failed is named with its Node and what to do, as that manager does not try it again by
    itself; one that is under way when the time is over is V(pending). MIG off that nobody has confirmed yet is what a
    GPU has by itself, and is not waited for.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  components:
    description: The components to look at. All that the plan has without it.
    type: list
    elements: str
  expected:
    description:
      - The plan of this host, by component, as M(gpuops.nvidia.gpu_policy) returns it in RV(ignore:hosts).
      - Either this or O(cluster) is needed.
    type: dict
  facts:
    description:
      - What M(gpuops.nvidia.gpu_info) returned as facts.
      - Without it the facts that the role preflight gathered in this run count, as long as no role has changed the host
        since; otherwise they are gathered now.
    type: dict
  labels:
    description: What M(gpuops.nvidia.gpu_labels) returned as labels, where it ran.
    type: dict
  samples:
    description:
      - What M(gpuops.nvidia.gpu_info) returned as samples. Without it those of the role preflight in this run count;
        where there are none, CUDA is not judged.
    type: list
    elements: dict
  pending:
    description:
      - By component the pending steps that its module returned. A difference that waits for a step that was not allowed
        is pending and no failure.
      - Without it they are taken from what the roles registered on this host in this run.
    type: dict
  asked:
    description:
      - Whether the modules of the components were asked in check mode earlier in this run, and registered by the roles
        of this collection. Then a step that they plan is a difference, also where the facts do not tell of it, and an
        error of a module is a failure.
    type: bool
    default: false
  cluster:
    description:
      - The plan of a cluster, as M(gpuops.nvidia.gpu_policy) returns it in RV(ignore:cluster).
      - In check mode nothing is waited for, and what is not there yet is pending.
    type: dict
  kubeconfig:
    description:
      - Path of the file that names the cluster. The one in O(cluster) without it.
      - No cluster is ever taken from the environment.
    type: str
  context:
    description: A context of that file. The one in O(cluster), else the file's current one without it.
    type: str
  workloads:
    description:
      - RV(gpuops.nvidia.operands#module:workloads) of a task just before, so that a cluster in which all is ready is
        not asked again.
    type: list
    elements: dict
    default: []
  compare:
    description:
      - Whether the objects of the cluster and the labels of its Nodes are compared with O(cluster), too.
      - A run that has just delivered them need not ask again.
      - With O(components) labels are left out, as they are for all components together.
    type: bool
    default: true
  timeout:
    description:
      - Seconds to wait for the components of a cluster. V(0) only looks.
      - It ends earlier where waiting cannot help, such as for an image that its registry does not have.
    type: int
    default: 900
  enforce:
    description: Whether a failed or absent component fails the task.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Is the driver as it should be
  gpuops.nvidia.gpu_verify:
    components: [driver]
    expected:
      driver: {version: 595.91.07, kernel_module_type: open}

- name: Resolve what the cluster shall have
  gpuops.nvidia.gpu_policy:
    placement: cluster
    kubeconfig: ~/clusters/gpu.kubeconfig
  register: plan

- name: Wait until it is there
  gpuops.nvidia.gpu_verify:
    cluster: "{{ plan.cluster }}"
    timeout: 600
"""

RETURN = r"""
checks:
  description:
    - One entry a component. C(state) is V(ok), V(pending), V(failed) or V(absent); C(detail) says what was found,
      C(hint) what to do.
    - In check mode nothing has been done yet, so what differs is V(pending).
    - Of a cluster, what differs and belongs to no component has an entry of its own, C(cluster) for objects that all
      share, C(nodes) for the labels of Nodes.
  returned: always
  type: list
  elements: dict
  sample:
    - component: driver
      ok: true
      state: ok
      detail: 595.91.07 open
      hint: ""
  contains:
    desired:
      description: Pods that are wanted. Only of a cluster, like all below.
      type: int
    ready:
      description: Pods that are ready.
      type: int
    updated:
      description: Pods of the newest revision.
      type: int
    nodes:
      description:
        - Where the component is not ready. C(container) is the container or init container that it stands at, C(state)
          and C(reason) how, C(message) what was said, C(cause) the likely cause, C(hint) what to do.
        - C(waits_for) names the component that must be ready there first, C(level) is V(failed) or V(pending).
      type: list
      elements: dict
    causes:
      description:
        - The same once for all Nodes that stand alike, in C(nodes). C(text) has it in one line, C(pod) is an example,
          C(log) its last lines, C(log_problem) why there are none, C(since) from when on it is not ready, C(do)
          commands that tell more or mend it, C(holds_up) by component how many pods wait for these.
      type: list
      elements: dict
verified:
  description:
    - The GPU Nodes on which nothing is lacking, by O(components) or all. None where a pod is lacking of which nobody
      says on which Node.
    - M(gpuops.nvidia.gpu_labels) takes startup taints from them.
  returned: when O(cluster) is given
  type: list
  elements: str
problems:
  description: One sentence for each component that is V(failed) or V(absent), as it stands in the error message.
  returned: always
  type: list
  elements: str
  sample: []
"""
