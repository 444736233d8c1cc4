# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_config
short_description: Partition GPUs by MIG as declared, destroying as little as possible
version_added: 0.1.0
author: The gpuops.nvidia maintainers (!UNKNOWN)
description:
  - Brings the MIG mode and the MIG instances of the host's GPUs to a configuration in the format of the vendor's
    mig-parted. What already fits is kept, with its UUIDs; on a GPU that fits nothing is called but what reads it.
  - Every instance gets an explicit placement, taken from what the GPU reports, so a layout that fits is found whatever
    the order of its parts. A layout that cannot be placed is refused before anything is changed.
  - Each GPU is planned and gated by itself. Instances on which a process runs are destroyed last of all, and only at
    O(disruption=drain). There the services that hold them are stopped and started again afterwards, also when the run
    fails; other processes get SIGTERM. When a step fails, its GPU gets its former layout back.
  - A process in a Kubernetes pod is never signalled, whatever O(disruption) says. Where one is in the way the steps of
    its GPU stay pending, with the pod named. M(gpuops.nvidia.node_drain) evicts it with respect for its disruption
    budget, and so does the playbook C(gpuops.nvidia.mig).
  - A GPU is reset only where its new mode is still pending after it was set, and no other GPU with it.
  - GPUs lose their instances at every boot, and from Hopper on their MIG mode too. So a unit of systemd brings back
    what was asked for last (O(boot)).
  - Where M(gpuops.nvidia.container_toolkit) has installed the unit that keeps the CDI specification, it is started
    after MIG has changed, so that containers get the devices that are there.
  - In check mode on a host without a driver the plan comes from device tables; its steps are marked C(assumed).
  - Where a GPU does not answer, or the loaded driver cannot be asked, its MIG state is not known. Then nothing is
    planned for it, a warning and RV(pending) name it, and the other GPUs are brought to their layouts.
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.plan
  - gpuops.nvidia._attributes.files_before
options:
  state:
    description:
      - V(present) brings the GPUs to the configuration.
      - V(absent) gives every GPU that this module has changed the mode and layout that it had before.
      - V(gathered) returns the present configuration as RV(config).
      - V(rendered) returns the plan for the models in O(devices), starting with MIG off, without touching a GPU.
    type: str
    choices: [present, absent, gathered, rendered]
    default: present
  config:
    description:
      - A document in mig-parted's format, version C(v1), or the ConfigMap in which the vendor's MIG manager keeps one.
      - C(devices) of an entry may also name GPUs by UUID, PCI address (in quotes, as YAML takes it for a number), PCI
        device id or model, mixed with indices. They must be there; C(device-filter) is for what may be missing.
      - Without O(config) and O(config_file) the configurations are generated from the GPUs as the vendor's MIG manager
        does, V(all-disabled), V(all-enabled), V(all-balanced), and V(all-PROFILE) with a dot for the plus sign.
    type: dict
  config_file:
    description:
      - A file on the controller with such a document. It is looked for beside the inventories, beside the playbook,
        and in the working directory. Of several YAML documents in it, those that are configurations count together.
    type: path
  checkpoint:
    description:
      - What RV(checkpoint) was, or what C(nvidia-mig-parted checkpoint) has written. Its GPUs get exactly these modes
        and instances with their placements back; others are left alone.
    type: dict
  selected:
    description: The name of the configuration. It can be left out where O(config) has one only.
    type: str
  devices:
    description:
      - The GPUs that this task may change, each by PCI address, index, UUID, PCI device id or model. The default is
        all of which the configuration speaks.
      - With O(state=rendered), the GPUs to plan for, by PCI device id or model. It does not go with O(state=absent).
    type: list
    elements: str
  boot:
    description:
      - Whether the layout is there again after a boot. It is kept in C(/etc/gpuops/mig.json) by GPU UUID, and the unit
        C(gpuops-mig.service) brings the GPUs to it before container runtimes, the kubelet and DCGM start.
      - What O(disruption) leaves pending is in it too, as nothing runs on the GPUs at boot. The unit destroys and
        resets only what is idle.
      - It is refused where the vendor's C(nvidia-mig-manager.service) is enabled, which applies a layout of its own.
      - A unit that somebody has masked is left alone, with a warning, and MIG is configured all the same.
      - V(false) takes unit and file out again. So does O(state=absent).
    type: bool
    default: true
  create:
    description:
      - Whether instances are created. With V(false) the steps of a GPU that would end with that are pending.
      - On a host that is a Node, the device plugin offers the new instances only after a restart. The playbooks
        therefore create them while M(gpuops.nvidia.node_maintenance) has paused the operands.
    type: bool
    default: true
  after_reload:
    description:
      - For check mode, whether the driver will have been reloaded before this task runs. A reload takes all instances
        and, except on Ampere, the MIG mode, so the plan starts from there; its steps are marked C(assumed).
      - Where it is not set, it is true where a task that has registered C(driver_result), as the role driver does,
        plans to unload the modules.
    type: bool
    default: false
seealso:
  - module: gpuops.nvidia.gpu_info
"""

EXAMPLES = r"""
- name: Seven small instances on each A100 80GB
  gpuops.nvidia.mig_config:
    selected: all-1g.10gb
    disruption: idle
  become: true

- name: A configuration of one's own
  gpuops.nvidia.mig_config:
    config:
      version: v1
      mig-configs:
        half:
          - devices: [0, 1, 2, 3]
            mig-enabled: false
          - devices: [4, 5, 6, 7]
            mig-enabled: true
            mig-devices:
              3g.40gb: 1
              2g.20gb: 1
              1g.10gb: 2
    disruption: idle
  become: true

- name: From a file next to the playbook
  gpuops.nvidia.mig_config:
    config_file: mig-parted.yaml
    selected: all-balanced
    disruption: idle
  become: true

- name: GPUs by UUID and by model
  gpuops.nvidia.mig_config:
    config:
      version: v1
      mig-configs:
        mine:
          - devices: [GPU-4d6f636b-0000-4000-8000-000000000000]
            mig-enabled: true
            mig-devices: {1c.3g.40gb: 6}
          - devices: [H100 80GB HBM3]
            mig-enabled: false
    disruption: drain
  become: true

- name: Ask what stands there
  gpuops.nvidia.mig_config:
    state: gathered
  become: true
  register: before

- name: Put exactly that back later
  gpuops.nvidia.mig_config:
    checkpoint: "{{ before.checkpoint }}"
    disruption: idle
  become: true

- name: See what a layout would be on another machine
  gpuops.nvidia.mig_config:
    state: rendered
    selected: all-balanced
    devices: [H200, "2901"]
"""

RETURN = r"""
plan:
  description: The steps that were executed, in check mode those that would be, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "create MIG instances: 0000:07:00.0 1g.10gb at 0,1,2,3,4,5,6"
      action: create MIG instances
      target: 0000:07:00.0 1g.10gb at 0,1,2,3,4,5,6
      reason: selected=all-1g.10gb
      needs: never
      assumed: false
pending:
  description: The steps that O(disruption) forbids, each with its C(pending_reason).
  returned: success
  type: list
  elements: dict
before:
  description:
    - Mode and instances by PCI address, as found. C(compute) lists slices and first slice of each compute instance.
  returned: success
  type: dict
  sample: {"0000:07:00.0": {"enabled": true, "instances": [{"profile": "3g.40gb", "start": 4, "compute": [[3, 0]]}]}}
after:
  description: The same at the end, in check mode as planned.
  returned: success
  type: dict
kept:
  description: The MIG devices that stayed, each with C(gpu), C(device) and C(start) of its GPU instance.
  returned: success
  type: list
  elements: dict
created:
  description: The MIG devices that were made.
  returned: success
  type: list
  elements: dict
destroyed:
  description: The MIG devices that were removed.
  returned: success
  type: list
  elements: dict
in_free_space:
  description:
    - The GPUs on which instances are only created, or would be without O(create=false), by PCI address. No instance of
      them is destroyed, and their MIG mode stays.
  returned: success
  type: list
  elements: str
  sample: []
touched:
  description:
    - The GPUs that RV(plan) and RV(pending) are about, by PCI address. Where it is empty, only what is kept for boots
      changes, and no GPU notices.
  returned: success
  type: list
  elements: str
reset_required:
  description: The GPUs whose mode waits for a reset that O(disruption) forbids, by PCI address.
  returned: success
  type: list
  elements: str
boot:
  description:
    - Whether the unit for boots is C(enabled), and by UUID what it will put back (C(gpus), V(null) where nothing is
      kept). C(vendor) names the vendor's unit if that is enabled.
  returned: O(state=gathered)
  type: dict
config:
  description: The present configuration in mig-parted's format, under the name C(current).
  returned: O(state=gathered)
  type: dict
checkpoint:
  description: The present placements by GPU UUID, as C(nvidia-mig-parted checkpoint) writes them.
  returned: O(state=gathered)
  type: dict
holders:
  description:
    - The processes on GPUs from which something would be taken away, each with C(pid), C(name), C(gpu), C(instance)
      (GPU instance id), C(unit) and C(container).
  returned: success
  type: list
  elements: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils import _glue
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.boot import LastingWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.work import Request, Work
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "gathered", "rendered"], "default": "present"},
            "config": {"type": "dict"},
            "config_file": {"type": "path"},
            "checkpoint": {"type": "dict"},
            "selected": {"type": "str"},
            "devices": {"type": "list", "elements": "str"},
            "boot": {"type": "bool", "default": True},
            "create": {"type": "bool", "default": True},
            "after_reload": {"type": "bool", "default": False},
            "files_before": {"type": "list", "elements": "str", "default": []},
            "disruption": _glue.DISRUPTION,
        },
        mutually_exclusive=[("config", "config_file", "checkpoint"), ("selected", "checkpoint")],
        supports_check_mode=True,
    )
    asked = module.params
    if asked["config_file"]:
        module.fail_json(msg="config_file is read on the controller: call this module as a task or by ansible -m.")

    def work() -> dict[str, t.Any]:
        request = Request(asked["state"], asked["config"], asked["selected"], asked["devices"], asked["disruption"],
                          module.check_mode, asked["checkpoint"], asked["after_reload"],
                          asked["files_before"] if module.check_mode else (), asked["create"])
        nvml = Nvml()
        if request.state in ("gathered", "rendered"):  # else not worth the time to compile it
            from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.shown import Shown

            job: Work = Shown(request, nvml)
        else:
            job = LastingWork(request, nvml, asked["boot"])
        if request.state != "rendered":
            nvml.open()
        try:
            result = job.run()
        finally:
            nvml.close()
        for warning in job.warnings:
            module.warn(warning)
        return result

    _glue.finish(module, work)


if __name__ == "__main__":
    main()
