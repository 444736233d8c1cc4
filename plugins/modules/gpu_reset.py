# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_reset
short_description: Reset GPUs that are not healthy, once
version_added: 0.1.0
author: The gpuops.nvidia maintainers (!UNKNOWN)
description:
  - Resets GPUs of the host with C(nvidia-smi --gpu-reset). The services that monitor GPUs are stopped meanwhile, and
    started again. The filter P(gpuops.nvidia.gpu_remedies#filter) chooses the GPUs, and the playbook
    C(gpuops.nvidia.remediate) takes a Node out of service before.
  - A GPU that no program uses is reset from O(disruption=idle) on. At O(disruption=drain), services that use it are
    stopped and started again afterwards, and other processes get SIGTERM. Services that run the work of users, such as
    slurmd and sshd, are not stopped; their processes that use the GPU get SIGTERM. A process in a Kubernetes pod never
    gets a signal. The steps for its GPU are RV(pending) and name the pod.
  - Services that a killed run has left stopped are started again, also if O(gpus) is empty.
  - A GPU is reset only once. C(/var/lib/gpuops/remedies.json) records the time. Afterwards, its steps are RV(pending)
    until a person sets O(again). The same applies to a reboot of the host. A reset that nvidia-smi refuses because the
    GPU is in use is not recorded.
  - If a GPU does not answer after its reset, a warning and RV(unanswered) name it, and the next GPU is reset.
  - A reset removes the MIG instances of a GPU, and from Hopper on also its MIG mode. Run
    M(gpuops.nvidia.mig_config) afterwards, as the playbook does. A reset also removes the settings of
    M(gpuops.nvidia.gpu_settings). If the unit that applies them at boot is enabled, the module starts it again.
    Otherwise run that module again, as the playbook does.
  - The module does not reboot. If O(reboot) is set, it records the reboot and returns RV(reboot_required).
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.plan
attributes:
  idempotent:
    support: none
    details: The GPUs in O(gpus) are reset once, see O(again).
options:
  gpus:
    description: The GPUs to reset.
    type: list
    elements: dict
    default: []
    suboptions:
      pci:
        description: The PCI address, as M(gpuops.nvidia.gpu_info) returns it.
        type: str
        required: true
      reason:
        description: The reason, which the plan shows.
        type: str
        default: ''
  reboot:
    description: The reason why the host has to be rebooted. If it is not empty, no GPU is reset.
    type: str
    default: ''
  again:
    description: Whether a GPU is reset, or the host rebooted, although a former run has done that.
    type: bool
    default: false
seealso:
  - plugin: gpuops.nvidia.gpu_remedies
    plugin_type: filter
  - module: gpuops.nvidia.gpu_info
  - module: gpuops.nvidia.host_reboot
"""

EXAMPLES = r"""
- name: Read the facts of the host
  gpuops.nvidia.gpu_info:
  become: true
  register: found

- name: Reset the GPUs that need it and that no program uses
  gpuops.nvidia.gpu_reset:
    gpus: "{{ (found.facts | gpuops.nvidia.gpu_remedies).gpus }}"
    disruption: idle
  become: true

- name: Reset a GPU a second time
  gpuops.nvidia.gpu_reset:
    gpus:
      - pci: 0000:47:00.0
        reason: a person has looked at it
    again: true
    disruption: drain
  become: true
"""

RETURN = r"""
plan:
  description: The steps that were executed, or in check mode would be executed, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "reset GPU: 0000:47:00.0"
      action: reset GPU
      target: 0000:47:00.0
      reason: the driver recommends the action reset
      needs: idle
      assumed: false
pending:
  description: The steps that are not executed, each with its C(pending_reason).
  returned: success
  type: list
  elements: dict
unanswered:
  description:
    - The PCI addresses of the GPUs that do not answer after their reset. Only a reboot of the host may help. Empty in
      check mode.
  returned: success
  type: list
  elements: str
  sample: []
reset:
  description: The PCI addresses of the GPUs that were reset, or in check mode would be.
  returned: success
  type: list
  elements: str
refused:
  description:
    - The targets of the steps in RV(pending) that wait for O(again). They are PCI addresses, or V(this host) for a
      reboot.
  returned: success
  type: list
  elements: str
reboot_required:
  description: Whether the host is to be rebooted now, because O(reboot) is set and O(disruption) allows it.
  returned: success
  type: bool
  sample: false
holders:
  description:
    - The processes that use the GPUs, each with C(pid), C(name), C(gpu), C(instance) (GPU instance id), C(unit) and
      C(container).
  returned: success
  type: list
  elements: dict
"""


from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._gpu_reset import Request, ResetRun
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result


def main() -> None:
    """Ansible's entry point."""
    module = _module_main.Module(
        argument_spec={
            "gpus": {"type": "list", "elements": "dict", "default": [], "options": {
                "pci": {"type": "str", "required": True}, "reason": {"type": "str", "default": ""}}},
            "reboot": {"type": "str", "default": ""},
            "again": {"type": "bool", "default": False},
            "disruption": _module_main.DISRUPTION,
        },
        supports_check_mode=True,
    )
    asked = module.params

    def work() -> Result:
        gpus = {one["pci"]: one["reason"] for one in asked["gpus"]}
        request = Request(gpus, asked["reboot"], asked["disruption"], module.check_mode, asked["again"])
        nvml = Nvml()
        if gpus and not request.reboot:
            nvml.open()
        job = ResetRun(request, nvml, Root())
        try:
            result = job.run()
        finally:
            nvml.close()
        for warning in job.warnings:
            module.warn(warning)
        return result

    _module_main.finish(module, work)


if __name__ == "__main__":
    main()
