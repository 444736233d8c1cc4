# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_config
short_description: Configure the MIG mode and MIG instances of GPUs, with the least destructive change
version_added: 0.1.0
author: The gpuops.nvidia maintainers (!UNKNOWN)
description:
  - Changes the MIG mode and the MIG instances of the GPUs of the host to a configuration in the format of mig-parted of
    the vendor. Instances that are part of the desired layout are kept, with their UUIDs. If a GPU already has its
    layout, the module only reads from it.
  - Every instance gets an explicit placement from those that the GPU reports, so a layout that fits is found whatever
    the order of its instances. A layout that cannot be placed is refused before anything is changed.
  - Each GPU is planned by itself, and O(disruption) applies to each GPU by itself. Instances that a process uses are
    destroyed only if there is no other way, and only at O(disruption=drain). The services that use them are then
    stopped, and started again afterwards, even if the run fails. Other processes get SIGTERM. If a step fails, the
    former layout of its GPU is restored.
  - If a process has started to use a GPU or an instance that a step needs since the plan was made, the former layout of
    this GPU is restored, and its steps are RV(pending) and name the process. The other GPUs get their layouts.
  - A process in a Kubernetes pod never gets a signal, whatever O(disruption) is. If such a process uses the GPU, the
    steps for this GPU are pending and name the pod. M(gpuops.nvidia.node_drain) and the playbook C(gpuops.nvidia.mig)
    evict pods within their disruption budgets.
  - A GPU is reset only if its new mode is still pending after it was set. Other GPUs are not reset with it.
  - Some GPUs cannot be reset, such as those of virtual machines. Only a reboot applies their new mode. At
    O(disruption=reboot), the mode is left pending, RV(reboot_required) is true, and the next run after the reboot
    continues. The module does not reboot; the role mig_manager does. At lower levels, the former mode is restored and
    the module fails.
  - GPUs lose their instances at every boot, and from Hopper on also their MIG mode. Therefore a systemd unit restores
    the last desired layout at boot (O(boot)).
  - If M(gpuops.nvidia.container_toolkit) has installed the unit that refreshes the CDI specification, the module starts
    it after a change of MIG, so that containers get the devices that exist.
  - In check mode on a host without a driver, the plan comes from tables of devices. Its steps are marked C(assumed).
  - Drivers before R550 tell the profiles of a GPU only while MIG is on. For a GPU with MIG off, the plan then has the
    profiles of an equal GPU with MIG on, or those of the table of its model. They are compared with the profiles that
    the GPU tells when MIG is on, before instances are created. A model without a table needs MIG on first
    (V(all-enabled)).
  - Nothing is planned for a GPU that does not answer, or whose driver does not answer. A warning and RV(pending) name
    it, and the other GPUs get their layouts. The same applies if no driver is loaded, except in check mode.
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.plan
  - gpuops.nvidia._attributes.files_before
options:
  state:
    description:
      - V(present) applies the configuration.
      - V(absent) restores the mode and layout that each GPU had before this module changed it.
      - V(gathered) returns the current configuration as RV(config).
      - V(rendered) returns the plan for the models in O(devices), starting with MIG mode off. It reads and changes no
        GPU.
    type: str
    choices: [present, absent, gathered, rendered]
    default: present
  config:
    description:
      - A document in the format of mig-parted, version C(v1), or a ConfigMap with such a document, as the MIG manager
        uses it.
      - C(devices) of an entry can also name GPUs by UUID, PCI address (in quotes, because YAML reads it as a number),
        PCI device id or model, together with indices. These GPUs must exist. Use C(device-filter) for GPUs that may be
        missing.
      - If neither O(config) nor O(config_file) is set, configurations are generated from the GPUs, as the MIG manager
        does. These are V(all-disabled), V(all-enabled), V(all-balanced), and V(all-PROFILE) with a dot instead of the
        plus sign.
    type: dict
  config_file:
    description:
      - A file on the controller with a document as in O(config). It is looked up next to the inventories, next to the
        playbook, and in the working directory. If the file has several YAML documents, all documents that are
        configurations are used together.
    type: path
  checkpoint:
    description:
      - A checkpoint from RV(checkpoint) or from C(nvidia-mig-parted checkpoint). Its GPUs get exactly these modes and
        instances, with their placements. Other GPUs are not changed.
    type: dict
  selected:
    description: The name of the configuration. It can be left out if O(config) has only one.
    type: str
  devices:
    description:
      - The GPUs that this task may change, each by PCI address, index, UUID, PCI device id or model. The default is all
        GPUs that the configuration matches.
      - With O(state=rendered), the GPUs to plan for, by PCI device id or model. It cannot be used with O(state=absent).
    type: list
    elements: str
  boot:
    description:
      - Whether the layout is restored at boot. C(/etc/gpuops/mig.json) contains it by the UUID of each GPU, and the
        unit C(gpuops-mig.service) applies it before container runtimes, the kubelet and DCGM start.
      - The file also contains what O(disruption) leaves pending, because nothing runs on the GPUs at boot. The unit
        destroys only idle instances and resets only idle GPUs.
      - It is refused if C(nvidia-mig-manager.service) of the vendor is enabled, because that unit applies its own
        layout.
      - If the unit is masked, it stays masked. The layout is applied nevertheless, with a warning.
      - V(false) removes the unit and the file. So does O(state=absent).
    type: bool
    default: true
  create:
    description:
      - Whether instances are created. With V(false), all steps for a GPU are pending if they would create instances.
      - On a host that is a Node, the device plugin offers the new instances only after a restart. The playbooks
        therefore create them while M(gpuops.nvidia.node_maintenance) has paused the operands.
    type: bool
    default: true
  after_reload:
    description:
      - For check mode, whether an earlier task would reload the driver. A reload removes all instances and, except on
        Ampere, the MIG mode, so the plan starts without them. Its steps are marked C(assumed).
      - If this is not set, it is true if the registered variable C(driver_result), which the role driver sets, contains
        a plan to unload the modules.
    type: bool
    default: false
seealso:
  - module: gpuops.nvidia.gpu_info
"""

EXAMPLES = r"""
- name: Create seven small instances on each A100 80GB
  gpuops.nvidia.mig_config:
    selected: all-1g.10gb
    disruption: idle
  become: true

- name: Apply your own configuration
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

- name: Apply a configuration from a file next to the playbook
  gpuops.nvidia.mig_config:
    config_file: mig-parted.yaml
    selected: all-balanced
    disruption: idle
  become: true

- name: Select GPUs by UUID and by model
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

- name: Read the current layout
  gpuops.nvidia.mig_config:
    state: gathered
  become: true
  register: before

- name: Restore this layout exactly
  gpuops.nvidia.mig_config:
    checkpoint: "{{ before.checkpoint }}"
    disruption: idle
  become: true

- name: Show the plan of a layout for other GPU models
  gpuops.nvidia.mig_config:
    state: rendered
    selected: all-balanced
    devices: [H200, "2901"]
"""

RETURN = r"""
plan:
  description: The steps that were executed, or in check mode would be executed, in order.
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
    - The former mode and instances by PCI address. C(compute) lists the number of slices and the first slice of each
      compute instance.
  returned: success
  type: dict
  sample: {"0000:07:00.0": {"enabled": true, "instances": [{"profile": "3g.40gb", "start": 4, "compute": [[3, 0]]}]}}
after:
  description: The mode and instances after the task, in check mode as planned.
  returned: success
  type: dict
kept:
  description: The MIG devices that were kept, each with C(gpu), C(device) and C(start) of its GPU instance.
  returned: success
  type: list
  elements: dict
created:
  description: The MIG devices that were created.
  returned: success
  type: list
  elements: dict
destroyed:
  description: The MIG devices that were destroyed.
  returned: success
  type: list
  elements: dict
in_free_space:
  description:
    - The PCI addresses of the GPUs on which instances are only created, or would be without O(create=false). No
      instance of them is destroyed, and their MIG mode stays.
  returned: success
  type: list
  elements: str
  sample: []
touched:
  description:
    - The PCI addresses of the GPUs in RV(plan) and RV(pending). If it is empty, only the files for the next boot
      change, and no GPU is touched.
  returned: success
  type: list
  elements: str
reset_required:
  description: The PCI addresses of the GPUs whose mode needs a reset that O(disruption) forbids, or a reboot.
  returned: success
  type: list
  elements: str
reboot_required:
  description:
    - Whether a new MIG mode is pending that only a reboot of the host applies. RV(pending) has the steps that follow.
    - Check mode cannot find out in advance whether a GPU can be reset. It returns true only after a run has left the
      mode pending.
  returned: O(state=present) and O(state=absent)
  type: bool
  sample: false
boot:
  description:
    - Whether the unit for boot is C(enabled), and by UUID the layout that it restores (C(gpus), V(null) if there is
      none). C(vendor) is the name of the unit of the vendor, if that is enabled.
  returned: O(state=gathered)
  type: dict
config:
  description: The current configuration in the format of mig-parted, with the name C(current).
  returned: O(state=gathered)
  type: dict
checkpoint:
  description: The current placements by GPU UUID, as C(nvidia-mig-parted checkpoint) writes them.
  returned: O(state=gathered)
  type: dict
holders:
  description:
    - The processes that use GPUs or instances which a step needs, each with C(pid), C(name), C(gpu), C(instance)
      (GPU instance id), C(unit) and C(container).
  returned: success
  type: list
  elements: dict
"""


from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.boot import PersistentMigRun
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.work import MigRun, Request
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result


def main() -> None:
    """Ansible's entry point."""
    module = _module_main.Module(
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
            "disruption": _module_main.DISRUPTION,
        },
        mutually_exclusive=[("config", "config_file", "checkpoint"), ("selected", "checkpoint")],
        supports_check_mode=True,
    )
    asked = module.params
    if asked["config_file"]:
        module.fail_json(msg="config_file is read on the controller: call this module as a task or by ansible -m.")

    def work() -> Result:
        request = Request(asked["state"], asked["config"], asked["selected"], asked["devices"], asked["disruption"],
                          module.check_mode, asked["checkpoint"], asked["after_reload"],
                          asked["files_before"] if module.check_mode else (), asked["create"])
        nvml = Nvml()
        if request.state in ("gathered", "rendered"):  # else not worth the time to compile it
            from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.shown import ReadOnlyRun

            job: MigRun = ReadOnlyRun(request, nvml)
        else:
            job = PersistentMigRun(request, nvml, asked["boot"])
        if request.state != "rendered":
            nvml.open()
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
