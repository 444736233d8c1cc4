# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_labels
short_description: Compute the labels of GPU feature discovery on a host, and publish them
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
      - V(node) is the host's Node object. It is not part of this version and is refused.
    type: str
    choices: [facts, nfd_file, node]
    default: facts
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

- name: Take them back
  gpuops.nvidia.gpu_labels:
    state: absent
    target: nfd_file
"""

RETURN = r"""
labels:
  description: The labels that the target has after this task, in check mode would have. For V(gathered), the host's.
  returned: success
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
  returned: success
  type: dict
changed_labels:
  description: Labels whose value differs, each with C(before) and C(after).
  returned: success
  type: dict
  sample: {nvidia.com/gpu.count: {before: "7", after: "8"}}
removed:
  description: Labels that the target had and has no longer.
  returned: success
  type: dict
unread:
  description: GPUs that could not be read whole, with the reason; labels then follow their PCI ids and their siblings.
  returned: success
  type: list
  elements: dict
  sample: [{gpu: "0000:07:00.0", error: "The GPU does not answer: GPU_IS_LOST."}]
plan:
  description: The steps that ran, in check mode would run, each with C(id), C(action), C(target) and C(reason).
  returned: success
  type: list
  elements: dict
pending:
  description: Always empty, as labels disturb nothing.
  returned: success
  type: list
  elements: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._collect import collect_devices, nvml_snapshot
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
        raise InputError("labels of Node objects are not part of this version.",
                         "Use target: nfd_file, or target: facts and label the Node from them.", path="target",
                         value=target, allowed=["facts", "nfd_file"])
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
            "mig_strategy": {"type": "str", "choices": list(STRATEGIES), "default": "none"},
            "sharing": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    finish(module, lambda: work(module))


if __name__ == "__main__":
    main()
