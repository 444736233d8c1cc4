# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_labels
short_description: Compute the labels of GPU feature discovery on a host, and write deploy labels to Nodes
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
      - V(facts) sets the Ansible fact C(gpu_labels), a mapping of label to value.
      - V(nfd_file) is the feature file C(/etc/kubernetes/node-feature-discovery/features.d/gpuops), which Node Feature
        Discovery turns into labels of the node. While a GPU cannot be read, the file keeps what it says.
      - V(node) is another job, one task for all Nodes of a cluster. It runs on the controller with O(kubeconfig),
        connects to no host, and wants C(run_once). It writes the labels by which operands choose their Nodes, see the
        notes. O(mig_strategy) and O(sharing) do not go with it.
    type: str
    choices: [facts, nfd_file, node]
    default: facts
  kubeconfig:
    description:
      - The kubeconfig file on the controller, needed for O(target=node). No other is looked for.
      - A relative path is looked for beside the inventory, beside the playbook, and in the working directory.
    type: path
  context:
    description:
      - The context in O(kubeconfig), its current one without this option.
    type: str
  nodes:
    description:
      - The Nodes that O(target=node) is about, all of the cluster without this option.
    type: list
    elements: str
  deploy:
    description:
      - What is delivered where, needed to write V(present) to a Node. C(gpu_plan.cluster.deploy) of a resolved plan
        is meant to be given.
      - C(components) maps components to true where they are delivered in the cluster, else to false.
      - C(on_host) maps a Node to the list of components that its host has instead.
      - C(mig_default) is V(all-disabled) where a Node without C(nvidia.com/mig.config) is to get that one.
    type: dict
  wait_for_nfd:
    description:
      - Seconds to wait for Node Feature Discovery while no Node carries a label of it. Then the task fails.
      - With V(0), and in check mode, the task does not wait, and says in RV(notes) that no GPU is known.
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
notes:
  - A Node on which Node Feature Discovery sees an NVIDIA GPU gets C(nvidia.com/gpu.present=true),
    C(nvidia.com/gpu.deploy.client=true), and C(nvidia.com/gpu.deploy.*=true) for each component that is delivered in
    the cluster and not on this Node's host. The MIG manager's label follows once feature discovery has said that the
    GPUs can be cut; RV(undecided) names the Nodes where this is still open.
  - A value that is there is honoured. Set C(nvidia.com/gpu.deploy.<operand>=false) to keep an operand off a Node, and
    C(nvidia.com/gpu.deploy.operands=false) to keep all of them off; C(pre-installed) and C(paused-...) stay as the
    managers of driver and MIG wrote them. An empty value counts as none.
  - The annotation C(gpuops.nvidia/labels) of a Node lists the keys that were written, and O(state=absent) takes back
    these, also where a manager has rewritten their value. A key that had a value before stays, and so does a key to
    which a user has given C(false), or another C(nvidia.com/mig.config), since.
  - A deploy label of somebody else, such as one that a removed GPU Operator left, is taken from a Node only where that
    operand must not run, because the GPU is gone, operands are switched off there, or the host has the component.
  - When a GPU is gone, C(nvidia.com/gpu.present) becomes V(false) and the deploy labels go, though not while the Node
    is not Ready or has lost all labels of Node Feature Discovery, as happens for a while when that restarts.
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
  delegate_to: localhost
  run_once: true

- name: Look at the deploy labels of two Nodes
  gpuops.nvidia.gpu_labels:
    state: gathered
    target: node
    kubeconfig: ~/clusters/gpu.kubeconfig
    nodes: [gpu-a1, gpu-a2]
  delegate_to: localhost
  run_once: true
  register: deploy_labels
"""

RETURN = r"""
labels:
  description: The labels that the target has after this task, in check mode would have. For V(gathered), the host's.
  returned: when O(target) is not V(node)
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
  returned: when O(target) is not V(node)
  type: dict
changed_labels:
  description: Labels whose value differs, each with C(before) and C(after).
  returned: when O(target) is not V(node)
  type: dict
  sample: {nvidia.com/gpu.count: {before: "7", after: "8"}}
removed:
  description: Labels that the target had and has no longer.
  returned: when O(target) is not V(node)
  type: dict
unread:
  description: GPUs that could not be read whole, with the reason; labels then follow their PCI ids and their siblings.
  returned: when O(target) is not V(node)
  type: list
  elements: dict
  sample: [{gpu: "0000:07:00.0", error: "The GPU does not answer: GPU_IS_LOST."}]
plan:
  description: The steps that ran, in check mode would run, each with C(id), C(action), C(target) and C(reason).
  returned: when O(target) is not V(node)
  type: list
  elements: dict
pending:
  description: Always empty, as labels disturb nothing.
  returned: when O(target) is not V(node)
  type: list
  elements: dict
nodes:
  description:
    - By Node that differs, its labels as C(added) and C(removed), a mapping of label to value, and C(changed), a
      mapping of label to C(before) and C(after).
    - For V(gathered), by Node that has a GPU or such labels, C(gpu), the labels C(wanted) according to O(deploy), those
      C(present) that are this collection's, and C(foreign) ones of the same family.
  returned: when O(target=node)
  type: dict
  sample:
    gpu-a1:
      added: {nvidia.com/gpu.deploy.device-plugin: "true"}
      changed: {nvidia.com/gpu.present: {before: "false", after: "true"}}
      removed: {}
counts:
  description: Numbers of C(nodes), those with a C(gpu), C(without_nfd) labels, C(changed) and C(failed).
  returned: when O(target=node)
  type: dict
  sample: {nodes: 24, gpu: 20, without_nfd: 0, changed: 1, failed: 0}
failures:
  description: By Node that could not be written, the reason. The others are written all the same.
  returned: when O(target=node) and O(state) is not V(gathered)
  type: dict
undecided:
  description: Nodes of which feature discovery has not said yet whether the MIG manager belongs there.
  returned: when O(target=node)
  type: list
  elements: str
notes:
  description: What ought to be known beside the changes, as sentences.
  returned: when O(target=node)
  type: list
  elements: str
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._brief import collect_devices, nvml_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._glue import finish
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._gfd import STRATEGIES, compute_labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._nfd import (
    FeatureFile,
    compare,
    read_labels,
    render,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._sharing import parse_sharing
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._sources import node_from_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply, diff_entry, outcome


def gather(module: AnsibleModule) -> tuple[dict[str, str], list[dict[str, str]]]:
    """(labels of this host, GPUs that could not be read)."""
    sharing = parse_sharing(module.params["sharing"])
    node, unread = node_from_facts(collect_devices(Root(), nvml_snapshot(clients=False)))
    for gpu in unread:
        module.warn(f"GPU {gpu['gpu']} could not be read whole: {gpu['error']}")
    return compute_labels(node, module.params["mig_strategy"], sharing), unread


def work(module: AnsibleModule) -> dict[str, t.Any]:
    """Reads, compares, writes what differs."""
    state, target = module.params["state"], module.params["target"]
    if target == "node":
        raise InputError("Nodes are labelled from the controller, and this module runs on a host.",
                         "Use the task's own name, gpuops.nvidia.gpu_labels, so that its action is found.",
                         path="target", value=target, allowed=["facts", "nfd_file"])
    labels, unread = gather(module) if state != "absent" else ({}, [])
    if target == "facts":
        return outcome([], labels=labels, ansible_facts={"gpu_labels": labels}, added={}, changed_labels={},
                       removed={}, unread=unread)
    before = read_labels()
    with Journal("labels", readonly=module.check_mode or state == "gathered") as journal:
        feature_file = FeatureFile(journal)
        steps: list[Step] = []
        if state == "absent":
            labels, steps = feature_file.without_ours(), feature_file.plan_absent()
        elif state == "present":
            if unread and before:
                labels = before  # one lost reading must not move labels on which running work depends
            steps = feature_file.plan_present(labels)
        if not journal.readonly:
            apply(steps, feature_file.execute, journal)
            journal.unfinished = None  # a step that a killed run left has been done or is not needed any more
    differences = compare(before, labels)
    diff = [diff_entry(feature_file.path, render(before), render(labels))] if steps else []
    return outcome(steps, diff=diff, labels=labels, added=differences["added"], removed=differences["removed"],
                   changed_labels=differences["changed"], unread=unread)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["gathered", "present", "absent"], "default": "gathered"},
            "target": {"type": "str", "choices": ["facts", "nfd_file", "node"], "default": "facts"},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "nodes": {"type": "list", "elements": "str"},
            "deploy": {"type": "dict"},
            "wait_for_nfd": {"type": "int", "default": 0},
            "mig_strategy": {"type": "str", "choices": list(STRATEGIES), "default": "none"},
            "sharing": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    finish(module, lambda: work(module))


if __name__ == "__main__":
    main()
