# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_maintenance
short_description: Drain a node of Slurm while its host is changed, and resume it
version_added: 0.1.0
description:
  - O(state=started) drains the node of a host with a reason, and waits for its jobs. It never ends a job.
  - O(state=ended) resumes the node, if this collection has drained it.
  - The reason of the node is the state of the maintenance. It begins with C(gpuops) and names the change and the run,
    so that another run can continue if a run was killed. A node that somebody else has drained stays drained, and keeps
    its reason. A node that was C(DOWN) before is drained, stays C(DOWN) afterwards, and gets its former reason back.
  - A node that another run holds is refused. A run on the same controller holds it until its process ends, a run on
    another controller for one hour. A failed change does not hold the node.
  - Runs C(scontrol), C(squeue) and C(sinfo) of Slurm 20.11 or newer on the host of the task. To run them on another
    host, delegate the task.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
attributes:
  check_mode:
    details: Check mode does not wait for jobs.
  diff_mode:
    support: none
options:
  state:
    description:
      - V(started) takes the node out of service, V(ended) puts it back. V(gathered) only reads the node.
    type: str
    choices: [started, ended, gathered]
    required: true
  node:
    description:
      - The C(NodeName) of the node, or else the C(NodeHostName) of its host. If there is none with this name, the part
        of the name up to the first dot counts.
    type: str
    required: true
  disruption:
    description:
      - With V(drain) or V(reboot), the node is drained, and the module waits for its jobs.
      - Below V(drain) the module waits for no job. If a job is on the node, the node stays in service or is put back,
        RV(started) is false, and RV(pending) names the jobs. Otherwise the node is drained, so that no job starts
        during the change.
    type: str
    choices: [never, idle, drain, reboot]
    default: never
  what:
    description:
      - What is changed, for the reason of the node. At most 400 characters are used.
    type: str
    default: a change of the host
  timeout:
    description:
      - With O(state=started), seconds to wait for the jobs of the node. If a job is on the node after that, the module
        resumes the node and fails.
      - With O(state=ended), seconds to wait until slurmd responds.
    type: int
    default: 3600
  reason:
    description:
      - With O(state=ended), why the change has failed. The node then stays drained with this reason until a later run
        succeeds.
    type: str
    default: ''
  begun:
    description:
      - With O(state=ended), what the task with V(started) returned. If slurmd responded then, the module waits until it
        responds again, before it resumes the node. In check mode the module also derives from it the step that a run
        would take.
    type: dict
    default: {}
  run:
    description:
      - This run of Ansible, in the reason of the node. The action of the module sets it.
    type: str
    default: ''
  from_run:
    description:
      - A run that has ended, whose nodes this run may take over. The action of the module sets it.
    type: str
    default: ''
seealso:
  - module: gpuops.nvidia.node_maintenance
  - module: gpuops.nvidia.nvidia_driver
"""

EXAMPLES = r"""
- name: Change the driver of a host that is a node of Slurm
  become: true
  block:
    - name: Drain the node
      gpuops.nvidia.slurm_maintenance:
        state: started
        node: "{{ inventory_hostname }}"
        disruption: drain
        what: driver 580
        timeout: 86400
      register: maintenance

    - name: Install the driver
      gpuops.nvidia.nvidia_driver:
        branch: '580'
        disruption: drain

    - name: Resume the node
      gpuops.nvidia.slurm_maintenance:
        state: ended
        node: "{{ inventory_hostname }}"
        begun: "{{ maintenance }}"
  rescue:
    - name: Keep the node drained, with the reason of the failure
      gpuops.nvidia.slurm_maintenance:
        state: ended
        node: "{{ inventory_hostname }}"
        reason: "{{ ansible_failed_result.msg }}"

- name: Read a node where scontrol works on another host only
  gpuops.nvidia.slurm_maintenance:
    state: gathered
    node: gpu-1
  delegate_to: slurm-control
"""

RETURN = r"""
started:
  description: Whether the host may be changed now - no job can start on the node, and none is there. In check mode,
    whether this is so or a run would wait for it.
  returned: success
  type: bool
  sample: true
slurm_node:
  description:
    - The node after the task. C(states) and C(reason) are those of C(scontrol show node), C(reason) without the user
      and the time.
    - C(jobs) names at most ten jobs that are on the node. C(responds) says whether slurmd responds.
    - C(left) says whether the node is drained by this collection, C(failed) whether this is because a change has
      failed.
    - C(held_by) is another run that holds the node. C(waits) is what the task waits for besides jobs.
  returned: success
  type: dict
  sample:
    name: gpu-1
    states: [DRAIN, IDLE]
    reason: 'gpuops: driver 595.91.07 (run control-1/4711/81@2026-11-27T20:00:00Z)'
    jobs: ''
    left: true
    failed: false
    responds: true
    held_by: ''
    waits: ''
plan:
  description: The steps in order, or in check mode the steps that a run would take.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "drain: node gpu-1 of Slurm"
      action: drain
      target: node gpu-1 of Slurm
      reason: driver 595.91.07
      needs: idle
      assumed: false
pending:
  description: The step that O(disruption) forbids, with the jobs as its C(pending_reason).
  returned: success
  type: list
  elements: dict
"""


from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run
from ansible_collections.gpuops.nvidia.plugins.module_utils._slurm.maintenance import Request, SlurmMaintenance


def main() -> None:
    """Ansible's entry point."""
    module = _module_main.Module(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "ended", "gathered"], "required": True},
            "node": {"type": "str", "required": True},
            "disruption": _module_main.DISRUPTION,
            "what": {"type": "str", "default": "a change of the host"},
            "timeout": {"type": "int", "default": 3600},
            "reason": {"type": "str", "default": ""},
            "begun": {"type": "dict", "default": {}},
            "run": {"type": "str", "default": ""},
            "from_run": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    asked = module.params
    begun = asked["begun"].get("slurm_node")
    request = Request(asked["state"], asked["node"], asked["run"], asked["what"], asked["disruption"],
                      asked["from_run"], asked["reason"],
                      isinstance(begun, dict) and begun.get("responds") is True,
                      asked["begun"].get("changed") is True, module.check_mode)
    _module_main.finish(module, lambda: SlurmMaintenance(request, run).work())


if __name__ == "__main__":
    main()
