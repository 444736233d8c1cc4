# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_labels
short_description: Compute the labels of GPU feature discovery on a host, and write labels to Nodes
version_added: 0.1.0
description:
  - Computes every label that NVIDIA's GPU feature discovery (GFD) would write for this host, from one reading of NVML
    and the PCI bus. There is no timestamp label, since it would change on every run.
  - Before a driver runs, product, family, count and MIG capability come from the PCI ids.
  - On a host with several GPU models GFD's labels describe one of them, here that of the first GPU. Each model then
    also has labels of its own under C(gpuops.nvidia/), such as C(gpuops.nvidia/Tesla-V100-SXM2-32GB.count).
options:
  state:
    description:
      - V(gathered) returns the labels and writes nothing.
      - V(present) publishes them to O(target).
      - V(absent) takes back what this collection published there.
    type: str
    choices: [gathered, present, absent]
    default: gathered
  target:
    description:
      - V(facts) sets the Ansible fact C(gpu_labels), a mapping of label to value. While a GPU cannot be read, the fact
        keeps what it says, from run to run where facts are cached.
      - V(nfd_file) is the feature file C(/etc/kubernetes/node-feature-discovery/features.d/gpuops), which Node Feature
        Discovery turns into labels of the node.
      - V(slurm) is the file C(gpuops-gres.conf) in O(slurm_folder) and a line in C(gres.conf) that includes it. Each
        GPU, or each MIG device of a GPU in MIG mode, is one resource C(gpu); O(mig_strategy) and O(sharing) do not
        count there. What C(slurm.conf), the same on all nodes, ought to say of this one is returned as RV(slurm). Slurm
        reads them at C(scontrol reconfigure); drain the node first when the number of devices has changed.
      - Both files keep what they say while a GPU cannot be read. With fewer GPUs on the PCI bus than before, they
        change when a second run sees the same.
      - V(node), V(node_feature) and V(startup_taint) are other jobs, each one task for all Nodes of a cluster. They run
        on the controller with O(kubeconfig), connect to no host, and want C(run_once).
      - V(node) writes labels to Nodes. With O(deploy) these are the labels by which operands choose their Nodes, with
        O(hosts) those that hosts have computed; with both, a Node that differs gets all by one request. A task with one
        of them leaves the other's labels as they are.
      - V(node_feature) writes the labels of O(hosts) as one object C(NodeFeature) for each Node, of which Node Feature
        Discovery (0.14 or newer) makes labels.
      - V(startup_taint) with V(absent) takes O(taint) from those O(nodes) that are Ready and offer GPUs, but not from
        one whose host M(gpuops.nvidia.gpu_verify) has found otherwise than planned in this run. V(gathered) returns
        the Nodes that carry it.
    type: str
    choices: [facts, nfd_file, slurm, node, node_feature, startup_taint]
    default: facts
  kubeconfig:
    description:
      - The kubeconfig file on the controller, needed for a target in a cluster. No other is looked for.
      - A relative path is looked for beside the inventory, beside the playbook, and in the working directory.
    type: path
  context:
    description:
      - The context in O(kubeconfig), its current one without this option.
    type: str
  nodes:
    description:
      - The Nodes that a target in a cluster is about, all without this option.
      - For O(target=startup_taint) the Nodes that are ready, RV(gpuops.nvidia.gpu_verify#module:verified). Needed with
        V(absent).
    type: list
    elements: str
  hosts:
    description:
      - The hosts of the inventory whose fact C(gpu_labels) their Nodes are to have, see O(target=facts). A host's Node
        is called as its variable C(gpu_node_name) in the inventory says, else as the host.
      - With O(state=absent) only their Nodes are meant, whatever they have told.
      - The Node of a host that has no such fact, as it was not reached or is left out by C(--limit), keeps what it has.
      - A host is believed about its GPUs only. With any other label among those that it tells its Node counts as failed
        and gets none of them.
    type: list
    elements: str
  adopt:
    description:
      - Labels that count as this collection's own where Nodes carry them, whoever wrote them. They are then put right,
        taken where they do not belong, and taken back by O(state=absent).
      - RV(foreign) names those that can be given here. What a user wishes, such as V(false) of a deploy label, and what
        Node Feature Discovery keeps up stays theirs, the latter as long as the cluster has one.
    type: list
    elements: str
    default: []
  take_over:
    description:
      - For target V(node), whether the deploy labels that a GPU Operator wrote are adopted, and an operator that runs
        is no reason to refuse. Give it where M(gpuops.nvidia.operands) takes the cluster over.
    type: bool
    default: false
  gone_after:
    description:
      - Seconds that a GPU has to stay away before the labels that speak of it go. The first sighting is kept in an
        annotation, for a week; a GPU that is seen again ends it.
      - V(0) takes the labels at once.
    type: int
    default: 600
  namespace:
    description:
      - Where O(target=node_feature) makes its objects. It has to be there.
    type: str
    default: gpu-operator
  taint:
    description:
      - The key of O(target=startup_taint), needed there. Its value and effect do not count, and no other taint is
        touched.
      - Cluster Autoscaler knows taints that begin with C(startup-taint.cluster-autoscaler.kubernetes.io/), Karpenter
        those that a NodePool has under C(startupTaints).
    type: str
  deploy:
    description:
      - What is delivered where. This or O(hosts) is needed to write V(present) to a Node. C(gpu_plan.cluster.deploy) of
        a resolved plan is meant to be given.
      - C(components) maps components to true where they are delivered in the cluster, else to false.
      - C(on_host) maps a Node to the list of components that its host has instead.
      - C(mig_default) is V(all-disabled) where a Node without C(nvidia.com/mig.config) is to get that one.
        Where C(mig_changes) is false, as it is with V(never) as C(gpu_disruption), none gets it.
      - Where C(pods_may_end) is false, as it is with a C(gpu_disruption) below V(drain), the label of a driver stays
        even if no driver is planned there any more or the GPU is gone, because its pod would end. This is true for
        labels that the module wrote and for labels of others that it would remove. So does the label of the device
        plugin on a Node that shares by MPS. RV(notes) has their names.
      - C(without_driver) lists Nodes for which no driver is planned. They get no label of a driver.
      - C(plugin_configs) maps a Node to its configuration of the device plugin, C(nvidia.com/device-plugin.config).
        What was written follows it, one of somebody else stays.
    type: dict
  wait_for_nfd:
    description:
      - Seconds to wait for Node Feature Discovery while no Node carries a label of it. Then the task fails.
      - With V(0), and in check mode, the task says in RV(notes) that no GPU is known instead.
    type: int
    default: 0
  mig_strategy:
    description:
      - How MIG devices appear. V(none) ignores them.
      - V(single) describes them as GPUs and wants all GPUs of the host cut into one same profile.
      - V(mixed) gives each profile its own labels.
    type: str
    choices: [none, single, mixed]
    default: none
  sharing:
    description:
      - The device plugin's configuration (version v1) as a mapping, or only its C(sharing) part. Nothing else of it is
        used here.
      - Sharing by MPS excludes GPUs in MIG mode.
    type: dict
    default: {}
  node_name:
    description:
      - What Slurm calls this host, needed where that is not its host name up to the first dot.
    type: str
  slurm_folder:
    description:
      - The folder of C(slurm.conf) on this host. What was written in another one before goes.
    type: path
    default: /etc/slurm
notes:
  - A Node on which Node Feature Discovery sees an NVIDIA GPU gets C(nvidia.com/gpu.present=true),
    C(nvidia.com/gpu.deploy.client=true), and C(nvidia.com/gpu.deploy.*=true) for each component that is delivered in
    the cluster and not on this Node's host. The MIG manager's label follows once feature discovery has said that the
    GPUs can be cut; RV(undecided) names the Nodes where this is still open.
  - A value that is there is honoured. Set C(nvidia.com/gpu.deploy.<operand>=false) to keep an operand off a Node, and
    C(nvidia.com/gpu.deploy.operands=false) to keep all of them off; C(pre-installed) and C(paused-...) stay as the
    managers of driver and MIG wrote them. An empty value counts as none, but for the label of the MIG manager.
  - The annotation C(gpuops.nvidia/labels) of a Node lists the keys that were written, and O(state=absent) takes back
    these, also where a manager has rewritten their value. A key that had a value before stays, and so does a key to
    which a user has given C(false), or another C(nvidia.com/mig.config), since. A deploy label of somebody else is
    taken only where that operand must not run.
  - Where that annotation is gone, the keys count that the API server has on record as written by this collection
    (C(managedFields)). Deploy labels that O(state=absent) leaves on a Node are named in a warning.
  - When a GPU has been gone for O(gone_after) seconds, C(nvidia.com/gpu.present) becomes V(false) and the deploy labels
    go, though not while the Node is not Ready or has lost all labels of Node Feature Discovery. What a host of O(hosts)
    tells counts more, and such a Node needs no Node Feature Discovery.
  - Where GPU feature discovery runs on a Node, it publishes through Node Feature Discovery. The labels of the host are
    left out there then, and RV(foreign) says so.
  - A busy server, broken connections and lost races are ridden through for some seconds; what a run that was cut off
    has not written, the next one writes.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
"""

EXAMPLES = r"""
- name: Look at the labels of a host
  gpuops.nvidia.gpu_labels:
    state: gathered
    mig_strategy: mixed
  register: labels

- name: Publish them through Node Feature Discovery, with four shares of each GPU
  gpuops.nvidia.gpu_labels:
    state: present
    target: nfd_file
    mig_strategy: single
    sharing:
      timeSlicing:
        resources:
          - name: nvidia.com/gpu
            replicas: 4

- name: Take them back from the host
  gpuops.nvidia.gpu_labels:
    state: absent
    target: nfd_file

- name: Let Slurm hand out the GPUs of its nodes
  gpuops.nvidia.gpu_labels:
    state: present
    target: slurm
  register: gpus  # gpus.slurm.gres and gpus.slurm.features belong into the node's line in slurm.conf

- name: Put hosts into a group for each model
  ansible.builtin.group_by:
    key: "gpu_{{ gpu_labels['nvidia.com/gpu.product'] | default('none') | lower }}"

- name: Say on every Node of a cluster what it gets
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

- name: Ask each host for its labels
  gpuops.nvidia.gpu_labels:
    state: gathered
    target: facts
    mig_strategy: mixed

- name: Write them to all their Nodes, in place of what a removed GPU feature discovery has left
  gpuops.nvidia.gpu_labels:
    state: present
    target: node
    kubeconfig: ~/clusters/gpu.kubeconfig
    hosts: "{{ ansible_play_hosts_all }}"
    adopt: [nvidia.com/gpu.product, nvidia.com/gpu.count]
  run_once: true

- name: Let Node Feature Discovery write them instead
  gpuops.nvidia.gpu_labels:
    state: present
    target: node_feature
    kubeconfig: ~/clusters/gpu.kubeconfig
    namespace: gpu-operator
    hosts: "{{ groups.gpu_hosts }}"
  run_once: true

- name: Let pods come to the Nodes on which nothing is lacking
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
  description: The labels that the target has after this task, for V(gathered) those of the host.
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
      description: Label to value.
      type: dict
      returned: when O(target=facts)
added:
  description: Labels that the target did not have. Empty for O(target=facts), as facts keep nothing between runs.
  returned: when O(target) is not in a cluster
  type: dict
changed_labels:
  description: Labels whose value differs, each with C(before) and C(after).
  returned: when O(target) is not in a cluster
  type: dict
  sample: {nvidia.com/gpu.count: {before: "7", after: "8"}}
removed:
  description: Labels that the target had and has no longer.
  returned: when O(target) is not in a cluster
  type: dict
slurm:
  description:
    - C(node), what Slurm calls this host. C(lines), what C(gpuops-gres.conf) says after this task. C(gres) and
      C(features), what the line of this node in C(slurm.conf) ought to have as C(Gres) and C(Feature).
  returned: when O(target=slurm)
  type: dict
  sample:
    node: gpu-a1
    lines: ["NodeName=gpu-a1 AutoDetect=off Name=gpu Type=nvidia_l40s File=/dev/nvidia0"]
    gres: "gpu:nvidia_l40s:1"
    features: [nvidia_l40s, ada-lovelace, cc8.9, driver580, cuda13.0]
unread:
  description: GPUs that could not be read whole, with the reason; labels then follow their PCI ids and their siblings.
  returned: when O(target) is not in a cluster
  type: list
  elements: dict
  sample: [{gpu: "0000:07:00.0", error: "The GPU does not answer: GPU_IS_LOST."}]
plan:
  description: The steps that ran, in check mode would run, each with C(id), C(action), C(target) and C(reason).
  returned: when O(target) is not in a cluster
  type: list
  elements: dict
pending:
  description: Always empty, as labels disturb nothing.
  returned: when O(target) is not in a cluster
  type: list
  elements: dict
nodes:
  description:
    - By Node that differs, its labels as C(added) and C(removed), a mapping of label to value, and C(changed), a
      mapping of label to C(before) and C(after).
    - For V(gathered), by Node that has a GPU or such labels, C(gpu), the labels C(wanted) according to O(deploy) and
      O(hosts), those C(present) that are this collection's, and C(foreign) ones of the same families; with
      O(target=node_feature) C(present) alone.
  returned: when O(target) is V(node) or V(node_feature)
  type: dict
  sample:
    gpu-a1:
      added: {nvidia.com/gpu.deploy.device-plugin: "true"}
      changed: {nvidia.com/gpu.present: {before: "false", after: "true"}}
      removed: {}
foreign:
  description:
    - Labels that this task would write and that somebody else keeps, as C(labels) and the C(nodes) where it is so.
  returned: when O(target) is V(node) or V(node_feature)
  type: list
  elements: dict
  sample: [{labels: [nvidia.com/gpu.count], nodes: [gpu-a1, gpu-a2]}]
counts:
  description:
    - Numbers of C(nodes), those with a C(gpu), C(changed) and C(failed); with O(target=node) also of those
      C(without_nfd) labels.
  returned: when O(target) is V(node) or V(node_feature)
  type: dict
  sample: {nodes: 24, gpu: 20, without_nfd: 0, changed: 1, failed: 0}
failures:
  description: By Node that could not be written, the reason. The others are written all the same.
  returned: when O(target) is in a cluster and O(state) is not V(gathered)
  type: dict
undecided:
  description: Nodes of which nobody has said yet whether the MIG manager belongs there.
  returned: when O(target=node)
  type: list
  elements: str
untainted:
  description: Nodes that have lost O(taint), in check mode would lose it.
  returned: when O(target=startup_taint)
  type: list
  elements: str
tainted:
  description: Nodes that carry it still.
  returned: when O(target=startup_taint)
  type: list
  elements: str
notes:
  description: What ought to be known beside the changes, as sentences.
  returned: when O(target) is in a cluster
  type: list
  elements: str
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils import _glue
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.brief import collect_devices, nvml_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gfd import STRATEGIES, compute_labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Reading
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sources import node_from_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import outcome

ON_HOSTS = ["facts", "nfd_file", "slurm"]


def gather(module: AnsibleModule) -> Reading:
    """Reads the host, unless its labels are not needed."""
    if module.params["state"] == "absent":
        return Reading({"gpus": []}, {}, [])
    sharing = None
    if module.params["sharing"]:
        from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing import parse_sharing

        sharing = parse_sharing(module.params["sharing"])
    facts = collect_devices(Root(), nvml_snapshot(clients=False))
    node, unread = node_from_facts(facts)
    by_error: dict[str, list[str]] = {}
    for gpu in unread:
        by_error.setdefault(gpu["error"], []).append(gpu["gpu"])
    for error, gpus in by_error.items():
        module.warn(f"GPU {', '.join(gpus)} could not be read whole: {error}")
    return Reading(facts, compute_labels(node, module.params["mig_strategy"], sharing), unread)


def work(module: AnsibleModule) -> dict[str, t.Any]:
    """Reads, compares, writes what differs."""
    target = module.params["target"]
    if target not in ON_HOSTS:
        raise InputError("Nodes are labelled from the controller, and this module runs on a host.",
                         "Use the task's own name, gpuops.nvidia.gpu_labels, so that its action is found.",
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
    module = AnsibleModule(
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
    _glue.finish(module, lambda: work(module))


if __name__ == "__main__":
    main()
