# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_labels
short_description: Compute the labels of GPU feature discovery on a host, and write labels to Nodes
version_added: 0.1.0
description:
  - Computes all labels that GPU feature discovery (GFD) would write for this host. It reads NVML and the PCI bus once.
    There is no timestamp label, because it would change in every run.
  - If no driver is loaded, product, family, count and MIG capability come from the PCI ids.
  - On a host with several GPU models the labels of GFD describe only one of them, here the model of the first GPU. Each
    model then also has its own labels with the prefix C(gpuops.nvidia/), such as
    C(gpuops.nvidia/Tesla-V100-SXM2-32GB.count).
options:
  state:
    description:
      - V(gathered) returns the labels and writes nothing.
      - V(present) writes them to O(target).
      - V(absent) removes the labels that this collection has written there.
    type: str
    choices: [gathered, present, absent]
    default: gathered
  target:
    description:
      - V(facts) sets the Ansible fact C(gpu_labels), a mapping of label to value. While a GPU cannot be read, the fact
        does not change. Between runs, this needs a fact cache.
      - V(nfd_file) is the feature file C(/etc/kubernetes/node-feature-discovery/features.d/gpuops), from which Node
        Feature Discovery creates labels of the Node.
      - V(slurm) is the file C(gpuops-gres.conf) in O(slurm_folder) and a line in C(gres.conf) that includes it. Each
        GPU, or each MIG device of a GPU in MIG mode, is one resource C(gpu). O(mig_strategy) and O(sharing) have no
        effect on it. C(slurm.conf) is the same on all nodes and is not changed; RV(slurm) has the values for the line
        of this node. Slurm reads the files when C(scontrol reconfigure) runs. If the number of devices has changed,
        drain the node first.
      - The files for V(nfd_file) and V(slurm) do not change while a GPU cannot be read. If the PCI bus has fewer GPUs
        than before, they change only when a second run finds the same number.
      - V(node), V(node_feature) and V(startup_taint) are tasks for all Nodes of a cluster. They run on the controller
        with O(kubeconfig) and connect to no host. Use them with C(run_once).
      - V(node) writes labels to Nodes. O(deploy) sets the labels that select the operands of a Node. O(hosts) sets the
        labels that hosts have computed. With both options, a Node that differs gets all labels in one request. A task
        with only one of these options does not change the labels of the other option.
      - V(node_feature) writes the labels of O(hosts) to one object C(NodeFeature) for each Node. Node Feature Discovery
        (0.14 or newer) creates labels from it.
      - V(startup_taint) with V(absent) removes O(taint) from those O(nodes) that are Ready and offer GPUs, unless
        M(gpuops.nvidia.gpu_verify) has found in this run that the host of the Node differs from the plan. V(gathered)
        returns the Nodes that have the taint.
    type: str
    choices: [facts, nfd_file, slurm, node, node_feature, startup_taint]
    default: facts
  kubeconfig:
    description:
      - The kubeconfig file on the controller, required for a target in a cluster. No other kubeconfig is used.
      - A relative path is looked up next to the inventory, next to the playbook, and in the working directory.
    type: path
  context:
    description:
      - A context in O(kubeconfig). The default is the current context.
    type: str
  nodes:
    description:
      - The Nodes for a target in a cluster. The default is all Nodes.
      - For O(target=startup_taint), the Nodes that are ready, RV(gpuops.nvidia.gpu_verify#module:verified). Required
        with V(absent).
    type: list
    elements: str
  hosts:
    description:
      - The hosts of the inventory whose fact C(gpu_labels) is written to their Nodes, see O(target=facts). The name of
        the Node is the inventory variable C(gpu_node_name) of the host, or else the name of the host.
      - With O(state=absent), labels are removed only from the Nodes of these hosts. Their facts are not used.
      - If a host has no such fact, because it is unreachable or C(--limit) excludes it, the labels of its Node do not
        change.
      - A host can only set labels that describe its GPUs. If it reports any other label, its Node fails and gets none
        of the labels.
    type: list
    elements: str
  adopt:
    description:
      - Foreign labels that become owned on all Nodes, whoever wrote them. They are then repaired, removed from Nodes
        that should not have them, and removed by O(state=absent).
      - RV(foreign) lists labels that can be adopted. Labels that only users set, such as a deploy label with V(false),
        cannot be adopted. Labels of Node Feature Discovery cannot be adopted as long as the cluster has it.
    type: list
    elements: str
    default: []
  take_over:
    description:
      - For target V(node), whether the deploy labels of a GPU Operator are adopted, and a running operator is allowed.
        Set it if M(gpuops.nvidia.operands) adopts the cluster.
    type: bool
    default: false
  gone_after:
    description:
      - Seconds that a GPU must be missing before its labels are removed. An annotation records when the GPU was first
        missing. It is ignored if it is older than O(gone_after) and eight days. If the GPU is found again, the
        annotation is removed.
      - V(0) removes the labels immediately.
    type: int
    default: 600
  namespace:
    description:
      - The namespace of the objects for O(target=node_feature). It must exist.
    type: str
    default: gpu-operator
  taint:
    description:
      - The key of the taint, required for O(target=startup_taint). Its value and effect are ignored. Other taints are
        not changed.
      - Cluster Autoscaler recognises taints that begin with C(startup-taint.cluster-autoscaler.kubernetes.io/),
        Karpenter those in C(startupTaints) of a NodePool.
    type: str
  deploy:
    description:
      - The deploy labels of the Nodes, C(gpu_plan.cluster.deploy) of a resolved plan. This or O(hosts) is required for
        O(target=node) with V(present).
      - C(components) maps each component to true if it is delivered in the cluster, otherwise to false.
      - C(on_host) maps a Node to the list of components that are delivered on its host instead.
      - C(mig_default) is V(all-disabled) if Nodes without the label C(nvidia.com/mig.config) get this value. If
        C(mig_changes) is false (C(gpu_disruption) is V(never)), no Node gets it, and a Node with this label does not
        get the deploy label of the MIG manager, which would apply the layout. RV(notes) names these Nodes.
      - If C(pods_may_end) is false (C(gpu_disruption) is below V(drain)), the deploy label of a driver is kept even if
        no driver is planned for the Node any more or its GPU is missing, because its removal would end the driver pod.
        This applies to owned labels and to foreign labels that the module would otherwise remove. It also applies to
        the label of the device plugin on a Node that shares GPUs by MPS. RV(notes) names these Nodes.
      - From V(drain) on, the same applies to the Nodes in C(leaving), except those in C(ended_on). Set C(ended_on) to
        the return value C(ended_on) of M(gpuops.nvidia.operands).
      - C(without_driver) lists Nodes for which no driver is planned. They get no deploy label of a driver.
      - C(plugin_configs) maps a Node to its configuration of the device plugin, C(nvidia.com/device-plugin.config). An
        owned label is changed accordingly, a foreign label is not changed.
    type: dict
  wait_for_nfd:
    description:
      - Seconds to wait until a Node has a label of Node Feature Discovery. After this time, the task fails.
      - With V(0), and in check mode, the task does not wait or fail, and RV(notes) reports that no GPU is known.
    type: int
    default: 0
  mig_strategy:
    description:
      - How MIG devices appear. V(none) ignores them.
      - V(single) describes them as GPUs. All GPUs of the host must have the same single profile.
      - V(mixed) gives each profile its own labels.
    type: str
    choices: [none, single, mixed]
    default: none
  sharing:
    description:
      - The configuration of the device plugin (version v1) as a mapping, or only its part C(sharing). Only this part is
        used.
      - Sharing by MPS is refused if GPUs are in MIG mode.
    type: dict
    default: {}
  node_name:
    description:
      - The name of this host in Slurm. The default is the host name up to the first dot.
    type: str
  slurm_folder:
    description:
      - The folder of C(slurm.conf) on this host. If it changes, the file and the line in the former folder are
        removed.
    type: path
    default: /etc/slurm
notes:
  - If Node Feature Discovery finds an NVIDIA GPU on a Node, the Node gets C(nvidia.com/gpu.present=true),
    C(nvidia.com/gpu.deploy.client=true), and C(nvidia.com/gpu.deploy.*=true) for each component that is delivered in
    the cluster and not on the host of this Node. The label of the MIG manager is added when feature discovery has
    reported that the GPUs are MIG-capable. RV(undecided) lists the Nodes for which this is not known yet.
  - Existing values are not changed. Set C(nvidia.com/gpu.deploy.<operand>=false) to keep an operand off a Node, and
    C(nvidia.com/gpu.deploy.operands=false) to keep all operands off. The values C(pre-installed) and C(paused-...) of
    the driver manager and the MIG manager are kept. An empty value is treated like a missing label, except for the MIG
    manager.
  - The annotation C(gpuops.nvidia/labels) of a Node lists the labels that were written. O(state=absent) removes them,
    even if a manager has changed their value since then. Foreign labels are labels that had a value before, deploy
    labels that a user has set to C(false) later, and a C(nvidia.com/mig.config) that a user has changed. A foreign
    deploy label is removed only if its operand must not run on the Node.
  - If this annotation is missing, the module uses C(managedFields), in which the API server records the labels that
    this collection has written. A warning names deploy labels that O(state=absent) leaves on a Node.
  - If a GPU has been missing for O(gone_after) seconds, C(nvidia.com/gpu.present) becomes V(false) and the deploy
    labels are removed. This does not happen while the Node is NotReady or has no labels of Node Feature Discovery. The
    labels that a host in O(hosts) reports take precedence. Its Node does not need Node Feature Discovery.
  - If GPU feature discovery runs on a Node, it publishes its labels through Node Feature Discovery. The labels of the
    host are then not written, and RV(foreign) lists them.
  - If the API server is busy, a connection breaks, or another client writes at the same time, the module retries for
    some seconds. If a run is killed, the next run writes the remaining labels.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
"""

EXAMPLES = r"""
- name: Compute the labels of a host
  gpuops.nvidia.gpu_labels:
    state: gathered
    mig_strategy: mixed
  register: labels

- name: Publish the labels through Node Feature Discovery, with four replicas of each GPU
  gpuops.nvidia.gpu_labels:
    state: present
    target: nfd_file
    mig_strategy: single
    sharing:
      timeSlicing:
        resources:
          - name: nvidia.com/gpu
            replicas: 4

- name: Remove the labels from the host
  gpuops.nvidia.gpu_labels:
    state: absent
    target: nfd_file

- name: Configure GPUs as resources of Slurm
  gpuops.nvidia.gpu_labels:
    state: present
    target: slurm
  register: gpus  # add gpus.slurm.gres and gpus.slurm.features to the line of the node in slurm.conf

- name: Put hosts into a group for each model
  ansible.builtin.group_by:
    key: "gpu_{{ gpu_labels['nvidia.com/gpu.product'] | default('none') | lower }}"

- name: Write the deploy labels of all Nodes
  gpuops.nvidia.gpu_labels:
    state: present
    target: node
    kubeconfig: ~/clusters/gpu.kubeconfig
    wait_for_nfd: 120
    deploy:
      components: {driver: true, container_toolkit: true, device_plugin: true, feature_discovery: true}
      on_host:
        gpu-a1: [driver, container_toolkit]
  run_once: true

- name: Compute the labels on each host
  gpuops.nvidia.gpu_labels:
    state: gathered
    target: facts
    mig_strategy: mixed

- name: Write the labels of hosts to their Nodes, and adopt labels that a removed GPU feature discovery has left
  gpuops.nvidia.gpu_labels:
    state: present
    target: node
    kubeconfig: ~/clusters/gpu.kubeconfig
    hosts: "{{ ansible_play_hosts_all }}"
    adopt: [nvidia.com/gpu.product, nvidia.com/gpu.count]
  run_once: true

- name: Write the labels of hosts to NodeFeature objects
  gpuops.nvidia.gpu_labels:
    state: present
    target: node_feature
    kubeconfig: ~/clusters/gpu.kubeconfig
    namespace: gpu-operator
    hosts: "{{ groups.gpu_hosts }}"
  run_once: true

- name: Remove the startup taint from verified Nodes
  gpuops.nvidia.gpu_labels:
    state: absent
    target: startup_taint
    taint: startup-taint.cluster-autoscaler.kubernetes.io/gpu
    kubeconfig: ~/clusters/gpu.kubeconfig
    nodes: "{{ verify_result.verified }}"
  run_once: true
"""

RETURN = r"""
labels:
  description: The labels of the target after this task. With V(gathered), the labels of the host.
  returned: when O(target) is not in a cluster
  type: dict
  sample:
    nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB
    nvidia.com/gpu.count: "8"
ansible_facts:
  description: The fact C(gpu_labels), the same as RV(labels).
  returned: when O(target=facts)
  type: dict
  contains:
    gpu_labels:
      description: A mapping of label to value.
      type: dict
      returned: when O(target=facts)
added:
  description: New labels of the target. Empty for O(target=facts), because facts are not kept between runs.
  returned: when O(target) is not in a cluster
  type: dict
changed_labels:
  description: Labels whose value differs, each with C(before) and C(after).
  returned: when O(target) is not in a cluster
  type: dict
  sample: {nvidia.com/gpu.count: {before: "7", after: "8"}}
removed:
  description: Labels that were removed from the target.
  returned: when O(target) is not in a cluster
  type: dict
slurm:
  description:
    - C(node) is the name of this host in Slurm. C(lines) is the content of C(gpuops-gres.conf) after this task. C(gres)
      and C(features) are the values of C(Gres) and C(Feature) for the line of this node in C(slurm.conf).
  returned: when O(target=slurm)
  type: dict
  sample:
    node: gpu-a1
    lines: ["NodeName=gpu-a1 AutoDetect=off Name=gpu Type=nvidia_l40s File=/dev/nvidia0"]
    gres: "gpu:nvidia_l40s:1"
    features: [nvidia_l40s, ada-lovelace, cc8.9, driver580, cuda13.0]
unread:
  description:
    - GPUs that could not be read completely, with the reason. Their labels come from their PCI ids and from other GPUs
      of the same model.
  returned: when O(target) is not in a cluster
  type: list
  elements: dict
  sample: [{gpu: "0000:07:00.0", error: "The GPU does not answer: GPU_IS_LOST."}]
plan:
  description:
    - The steps that were executed, or in check mode would be executed, each with C(id), C(action), C(target) and
      C(reason).
  returned: when O(target) is not in a cluster
  type: list
  elements: dict
pending:
  description: Always empty, because labels disturb nothing.
  returned: when O(target) is not in a cluster
  type: list
  elements: dict
nodes:
  description:
    - For each Node that differs, C(added) and C(removed), mappings of label to value, and C(changed), a mapping of
      label to C(before) and C(after).
    - With V(gathered), for each Node that has a GPU or such labels, C(gpu), whether it has a GPU, C(wanted), the labels
      according to O(deploy) and O(hosts), C(present), the owned labels, and C(foreign), the foreign labels of the same
      kinds. With O(target=node_feature), only C(present).
  returned: when O(target) is V(node) or V(node_feature)
  type: dict
  sample:
    gpu-a1:
      added: {nvidia.com/gpu.deploy.device-plugin: "true"}
      changed: {nvidia.com/gpu.present: {before: "false", after: "true"}}
      removed: {}
foreign:
  description:
    - Foreign labels that this task would otherwise write, as C(labels) and the C(nodes) that have them.
  returned: when O(target) is V(node) or V(node_feature)
  type: list
  elements: dict
  sample: [{labels: [nvidia.com/gpu.count], nodes: [gpu-a1, gpu-a2]}]
counts:
  description:
    - The numbers of all C(nodes), of Nodes with a C(gpu), of C(changed) and C(failed) Nodes, and with O(target=node) of
      Nodes C(without_nfd) labels.
  returned: when O(target) is V(node) or V(node_feature)
  type: dict
  sample: {nodes: 24, gpu: 20, without_nfd: 0, changed: 1, failed: 0}
failures:
  description: For each Node that could not be written, the reason. The task writes the other Nodes.
  returned: when O(target) is in a cluster and O(state) is not V(gathered)
  type: dict
undecided:
  description: Nodes for which it is not known yet whether they need the MIG manager.
  returned: when O(target=node)
  type: list
  elements: str
untainted:
  description: Nodes from which O(taint) was removed, or in check mode would be removed.
  returned: when O(target=startup_taint)
  type: list
  elements: str
tainted:
  description: Nodes that still have the taint.
  returned: when O(target=startup_taint)
  type: list
  elements: str
notes:
  description: Notes about the result, as sentences.
  returned: when O(target) is in a cluster
  type: list
  elements: str
"""


from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.label_facts import collect_devices, nvml_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.from_facts import node_from_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gfd import STRATEGIES, compute_labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Reading
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result, outcome

ON_HOSTS = ["facts", "nfd_file", "slurm"]


def gather(module: _module_main.Module) -> Reading:
    """The facts and labels of the host; empty for state absent."""
    if module.params["state"] == "absent":
        return Reading({"gpus": []}, {}, [])
    sharing = None
    if module.params["sharing"]:
        from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing_config import parse_sharing

        sharing = parse_sharing(module.params["sharing"])
    facts = collect_devices(Root(), nvml_snapshot(clients=False))
    node, unread = node_from_facts(facts)
    by_error: dict[str, list[str]] = {}
    for gpu in unread:
        by_error.setdefault(gpu["error"], []).append(gpu["gpu"])
    for error, gpus in by_error.items():
        module.warn(f"GPU {', '.join(gpus)} could not be read completely: {error}")
    return Reading(facts, compute_labels(node, module.params["mig_strategy"], sharing), unread)


def run_module(module: _module_main.Module) -> Result:
    """Writes the labels to the target if they differ. Returns the result of the module."""
    target = module.params["target"]
    if target not in ON_HOSTS:
        raise InputError("Nodes are labelled from the controller, but this module runs on a host.",
                         "Call gpuops.nvidia.gpu_labels by its full name, so that Ansible finds its action plugin.",
                         path="target", value=target, allowed=ON_HOSTS)
    reading = gather(module)
    if target == "facts":
        return outcome([], labels=reading.labels, added={}, changed_labels={}, removed={}, unread=reading.unread,
                       ansible_facts={"gpu_labels": reading.labels,
                                      "gpu_labels_unread": [gpu["gpu"] for gpu in reading.unread]})
    from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.publish import publish

    return publish(module.params, module.check_mode, reading, module.warn)


def main() -> None:
    """Entry point."""
    module = _module_main.Module(
        argument_spec={
            "state": {"type": "str", "choices": ["gathered", "present", "absent"], "default": "gathered"},
            "target": {"type": "str", "choices": [*ON_HOSTS, "node", "node_feature", "startup_taint"],
                       "default": "facts"},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "nodes": {"type": "list", "elements": "str"},
            "hosts": {"type": "list", "elements": "str"},
            "deploy": {"type": "dict"},
            "adopt": {"type": "list", "elements": "str", "default": []},
            "take_over": {"type": "bool", "default": False},
            "gone_after": {"type": "int", "default": 600},
            "namespace": {"type": "str", "default": "gpu-operator"},
            "taint": {"type": "str"},
            "wait_for_nfd": {"type": "int", "default": 0},
            "mig_strategy": {"type": "str", "choices": list(STRATEGIES), "default": "none"},
            "sharing": {"type": "dict", "default": {}},
            "node_name": {"type": "str"},
            "slurm_folder": {"type": "path", "default": "/etc/slurm"},
        },
        supports_check_mode=True,
    )
    _module_main.finish(module, lambda: run_module(module))


if __name__ == "__main__":
    main()
