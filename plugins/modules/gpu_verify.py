# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify
short_description: Compare a GPU host or a cluster with its plan, component by component
version_added: 0.1.0
description:
  - Reports for each component whether the host is as planned. If not, it names the difference and what to do.
  - It compares the loaded module, the libraries, NVML and the GPUs of the driver; version, runtimes and CDI
    specification of the container toolkit; mode and instances of MIG; version and service of other software; and the
    CUDA samples of M(gpuops.nvidia.gpu_info). For labels it checks whether they can be computed.
  - With O(cluster) it runs on the controller and waits until the components in the cluster are ready. It prints a line
    when a component has made progress, and names the place and the reason if one does not become ready. If components
    wait for each other on a Node, the first of them is named as the cause, with the last lines of its log. If many pods
    have the same problem, only a few of their logs are read. A log that cannot be read is not a failure.
  - The objects of these components, and the labels of Nodes that the operands select, are compared with the plan of
    O(cluster) in the same way as M(gpuops.nvidia.operands) and M(gpuops.nvidia.gpu_labels) do it in a run. A difference
    that these modules would correct is V(failed). If the C(gpu_disruption) in O(cluster) forbids the correction, the
    difference is V(pending). The module writes nothing.
  - On Nodes where nothing is missing, the number of GPUs that the kubelet offers is compared with the labels of the
    Node, or with the facts of its host. The module waits up to a minute of O(timeout) for missing GPUs.
  - Pods on Nodes that are NotReady, and driver pods that must be restarted, are V(pending). The module does not wait
    for them.
  - If the cluster's MIG manager serves Nodes, the module also waits for the layouts that their labels
    C(nvidia.com/mig.config) request. A layout that failed is named with its Node and what to do, because the manager
    does not try it again by itself. A layout that is not finished when the time is over is V(pending). The module does
    not wait for the layout without MIG if no manager has confirmed it yet, because it is the default of a GPU.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  components:
    description: The components to verify. The default is all components of the plan.
    type: list
    elements: str
  expected:
    description:
      - The plan of this host, by component, as M(gpuops.nvidia.gpu_policy) returns it in RV(ignore:hosts).
      - Either this or O(cluster) is required.
    type: dict
  facts:
    description:
      - What M(gpuops.nvidia.gpu_info) returned as facts.
      - If this is not set, the module uses the facts that the role preflight gathered in this run, unless a role has
        changed the host since; then it gathers them again.
    type: dict
  labels:
    description: The labels that M(gpuops.nvidia.gpu_labels) returned, if it ran.
    type: dict
  samples:
    description:
      - What M(gpuops.nvidia.gpu_info) returned as samples. If this is not set, the module uses those of the role
        preflight in this run. If there are none, it does not check CUDA.
    type: list
    elements: dict
  pending:
    description:
      - For each component the pending steps that its module returned. A difference that such a step would repair is
        V(pending), not V(failed).
      - If this is not set, the module uses what the roles registered on this host in this run.
    type: dict
  previewed:
    description:
      - Whether the roles of this collection have run the modules of the components in check mode earlier in this run,
        and registered their results. Then a step that a module plans is a difference, even if the facts do not show it,
        and an error of a module is a failure.
    type: bool
    default: false
  cluster:
    description:
      - The plan of a cluster, as M(gpuops.nvidia.gpu_policy) returns it in RV(ignore:cluster).
      - In check mode the module does not wait, and a component that does not exist yet is V(pending).
    type: dict
  kubeconfig:
    description:
      - Path of the kubeconfig. If this is not set, the one in O(cluster) is used.
      - The environment is never used to find a cluster.
    type: str
  context:
    description: A context in O(kubeconfig). If this is not set, the one in O(cluster), or else the current context.
    type: str
  workloads:
    description:
      - RV(gpuops.nvidia.operands#module:workloads) of the previous task. If everything in it is ready, the cluster is
        not read again.
    type: list
    elements: dict
    default: []
  compare:
    description:
      - Whether to compare the objects of the cluster and the labels of its Nodes with O(cluster).
      - A run that has just delivered them detects in this way whether another run has overwritten them.
      - With O(components) the labels are not compared, because they belong to all components together.
    type: bool
    default: true
  startup_taint:
    description:
      - The key of a taint with which Nodes join the cluster. A Node of RV(verified) that is Ready, offers GPUs and
        still has this taint is V(pending), because site.yml removes the taint.
    type: str
    default: ''
  check_pods:
    description:
      - On how many GPU Nodes a pod with one GPU runs to its end, after everything else on the Node is as planned. A
        number, a percentage such as V(10%), or a list of names of Nodes. V(0) runs none. A number takes Nodes with
        different models of GPUs first.
      - The pod runs a CUDA program of the validator's image, without privileges. It is created only if a GPU of the
        Node is free, ends after at most two minutes, and is deleted in any case. If no GPU of a Node is free, the
        check is V(pending) there. A pod that fails is a failure of the component C(validator).
      - It runs at every level of C(gpu_disruption). If the cluster does not deliver C(validator) and C(device_plugin),
        the check is V(pending). If O(components) excludes one of them, no pod runs. In check mode the module only says
        what would run.
    type: raw
    default: 0
  check_metrics:
    description:
      - On how many GPU Nodes the page of the DCGM exporter is read, after everything else on the Node is as planned.
        The values are those of O(check_pods).
      - The page has to have samples of each GPU, and they have to be fresh. The samples of a GPU are fresh if its
        energy counter grows within 75 seconds. If the page does not have this counter, this is not checked.
      - The API server fetches the pages. If the user of the kubeconfig does not have the permission C(get) of
        C(pods/proxy), the check is V(pending).
      - In check mode, the page is read once, and the age of the samples is not checked.
      - On a named Node that cannot be checked, because it has another problem or no pod of the exporter runs there, the
        check is V(pending). If O(check_metrics) is a number and no Node can be checked, it is V(pending) on all of
        them, as in a cluster that does not deliver C(dcgm_exporter). Such Nodes stay in RV(verified).
    type: raw
    default: 0
  observe:
    description:
      - With O(cluster), whether to read RV(observed), on which the states of Nodes depend. This takes one list of Nodes
        and one of the validator's pods.
    type: bool
    default: false
  timeout:
    description:
      - Seconds to wait for the components of a cluster. V(0) checks them once and does not wait.
      - The module stops earlier if waiting cannot help, for example if a registry does not have an image.
    type: int
    default: 900
  enforce:
    description: Whether a failed or absent component fails the task.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Compare the driver with the plan
  gpuops.nvidia.gpu_verify:
    components: [driver]
    expected:
      driver: {version: 595.91.07, kernel_module_type: open}

- name: Resolve the plan of the cluster
  gpuops.nvidia.gpu_policy:
    placement: cluster
    kubeconfig: ~/clusters/gpu.kubeconfig
  register: plan

- name: Wait until the cluster is as planned
  gpuops.nvidia.gpu_verify:
    cluster: "{{ plan.cluster }}"
    timeout: 600

- name: Also run a pod with one GPU on a tenth of the Nodes
  gpuops.nvidia.gpu_verify:
    cluster: "{{ plan.cluster }}"
    check_pods: 10%
    check_metrics: 10%
"""

RETURN = r"""
checks:
  description:
    - One entry for each component. C(state) is V(ok), V(pending), V(failed) or V(absent); C(detail) says what was
      found, C(hint) what to do.
    - In check mode nothing has been changed yet, so a difference is V(pending).
    - For a cluster there are two more entries for differences that belong to no component, C(cluster) for objects that
      all components share, and C(nodes) for the labels of Nodes.
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
      description: The desired number of pods. This field and those below exist only for a cluster.
      type: int
    ready:
      description: Number of pods that are ready.
      type: int
    updated:
      description: Number of pods of the newest revision.
      type: int
    nodes:
      description:
        - The Nodes on which the component is not ready. C(container) is the container or init container that is not
          ready, C(state) and C(reason) are its status, C(message) the message in it, C(cause) the likely cause, C(hint)
          what to do.
        - C(waits_for) names the component that must be ready on the Node first. C(level) is V(failed) or V(pending).
      type: list
      elements: dict
    causes:
      description:
        - The same, with one entry for all Nodes that have the same problem, which C(nodes) lists. C(text) is a summary
          in one line, C(pod) an example, C(log) the last lines of its log, C(log_problem) why there are none, C(since)
          since when it is not ready, C(do) commands that show more or solve the problem, C(holds_up) for each component
          how many pods wait for these.
      type: list
      elements: dict
verified:
  description:
    - The GPU Nodes on which all components are ready, or those in O(components). Empty if a pod is missing and it is
      not known on which Node.
    - M(gpuops.nvidia.gpu_labels) removes startup taints from these Nodes.
  returned: when O(cluster) is given
  type: list
  elements: str
pods:
  description:
    - The Nodes of O(check_pods). C(state) is V(ok), V(failed), V(skipped) or V(planned), C(reason) why, with the last
      lines of the log, C(hint) what to do.
  returned: when O(cluster) is given
  type: list
  elements: dict
  sample: [{node: gpu-a1, state: ok, reason: "", hint: ""}]
observed:
  description:
    - What O(observe) has read about each GPU Node of the plan. A key is left out if its value is the usual one.
    - C(ready) and C(ready_since), the condition Ready; C(cordoned); C(upgrade) and C(upgrade_since), the state of the
      driver upgrade; C(held) and C(held_since), the controller of a run that holds the Node; C(left), why a killed or
      failed run has left it out of service; C(operands), whether the label C(nvidia.com/gpu.deploy.operands) allows
      operands; C(workload), if it is for virtual machines; C(labels), the deploy labels that are not C(true), by
      component; C(mig), the state of the MIG layout; C(driver), its version; C(capacity) and C(offered), the numbers of
      GPUs and MIG devices of the kubelet; C(gone_since), since when NFD sees no GPU; C(valid_since), since when the
      validator's pod is ready.
  returned: when O(observe) is true
  type: dict
  sample: {gpu-a1: {capacity: 8, offered: 8, driver: 595.91.07, valid_since: "2026-11-22T07:10:47Z"}}
problems:
  description: One sentence for each component that is V(failed) or V(absent), as in the error message.
  returned: always
  type: list
  elements: str
  sample: []
"""
