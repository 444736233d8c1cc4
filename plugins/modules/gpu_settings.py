# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_settings
short_description: Set power limits, clocks, ECC, the compute mode and the persistence mode of GPUs
version_added: 0.1.0
author: The gpuops.nvidia maintainers (!UNKNOWN)
description:
  - Sets the declared settings of the GPUs of the host, keeps them over reboots, and restores the former values of
    settings that are not declared any more.
  - All values are compared with what the GPUs support, on all GPUs, before the first one is set. An error names the
    entry, the value and the allowed range.
  - A setting that already has its value is not set again. Changed GPUs are read again. If another program has changed
    a setting meanwhile, the module fails.
  - NVML cannot read locked clocks. The module counts them as set as long as the driver is loaded that was loaded when
    they were set, and no module of this collection has reset the GPU. After a reset by another program, run
    C(systemctl restart gpuops-settings.service), which always locks them again.
  - A new ECC mode is only prepared. It takes effect with the next reset of the GPU or reboot of the host, and
    RV(reset_required) names the GPU until then. The module neither resets GPUs nor reboots.
  - Running programs go on with every setting, but limits of power and clocks change how fast they are. A compute mode
    that forbids the programs that use the GPU at present is set only at O(disruption=drain) or higher. No process is
    stopped. At lower levels this step is RV(pending) and names the processes.
  - The driver forgets all settings except the ECC mode when it is loaded again, and with the persistence mode off also
    when the last program closes the GPU. A systemd unit therefore applies the settings at boot (O(boot)), and a warning
    names GPUs whose persistence mode is off.
  - While the driver is not installed or does not answer, such as before a reboot, all steps are RV(pending), and a
    warning names the reason. O(state=absent) and O(state=gathered) then fail.
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.plan
  - gpuops.nvidia._attributes.files_before
options:
  state:
    description:
      - V(present) makes the GPUs as declared. A setting that an earlier run has set and that O(entries) does not
        declare any more gets its former value.
      - V(absent) restores the former values of all settings, and removes the unit for boot.
      - V(gathered) returns the current settings as RV(entries), and what the GPUs support as RV(limits).
    type: str
    choices: [present, absent, gathered]
    default: present
  entries:
    description:
      - The declaration. Needed with O(state=present). An empty list is the same as O(state=absent).
      - If several entries declare a setting of a GPU, the one with the most specific selector applies. A single GPU
        comes before a model, and a model before V(all). Each setting is decided by itself. Two entries of the same kind
        with different values for one GPU are an error.
    type: list
    elements: dict
    suboptions:
      gpus:
        description:
          - Needed. V(all), or the GPUs by UUID, index, PCI address (in quotes, because YAML reads it as a number),
            model or PCI device id.
          - A UUID, an index and a PCI address must exist on the host. A model that the host does not have is ignored,
            so that one declaration can serve hosts with different GPUs.
          - If a GPU does not have a setting, an entry that names the GPU or its model is an error. An entry for V(all)
            then applies to the other GPUs, and a warning names those that are left out.
        type: list
        elements: str
      persistence:
        description:
          - Whether the persistence mode is on, which keeps the driver initialized while no program uses the GPU.
          - The service C(nvidia-persistenced), which the role driver starts, also switches it on. The unit of this
            module runs after that service.
        type: bool
      ecc:
        description: Whether ECC is on after the next reset of the GPU. The GPU keeps the mode over reboots.
        type: bool
      compute_mode:
        description:
          - V(default) allows several processes on the GPU, V(exclusive_process) one, and V(prohibited) none.
          - While the MIG mode of a GPU is on, the GPU does not have this setting.
        type: str
        choices: [default, exclusive_process, prohibited]
      power_limit:
        description: The limit of power in watts.
        type: float
      application_clocks:
        description:
          - The clocks at which programs run. Newer GPUs do not have this setting, and NVIDIA recommends locked clocks
            instead.
        type: dict
        suboptions:
          memory:
            description: The memory clock in MHz.
            type: int
          graphics:
            description: The graphics clock in MHz.
            type: int
      locked_graphics_clocks:
        description:
          - The range within which the graphics clock stays. Equal numbers fix it. GPUs from Volta on have this setting.
          - It cannot be combined with O(entries[].application_clocks) on one GPU, which locked clocks replace.
        type: dict
        suboptions: &range
          min:
            description: The lowest clock in MHz.
            type: int
          max:
            description: The highest clock in MHz.
            type: int
      locked_memory_clocks:
        description:
          - As O(entries[].locked_graphics_clocks), for the memory clock. GPUs from Ampere on have this setting.
        type: dict
        suboptions: *range
  boot:
    description:
      - Whether the settings are applied at boot. C(/etc/gpuops/settings.json) contains them by the UUID of each GPU,
        and the unit C(gpuops-settings.service) applies them after C(nvidia-persistenced) and C(gpuops-mig.service), and
        before container runtimes, the kubelet and DCGM start.
      - If the unit is masked, it stays masked. The settings are applied nevertheless, with a warning.
      - V(false) removes the unit and the file.
    type: bool
    default: true
seealso:
  - module: gpuops.nvidia.mig_config
  - module: gpuops.nvidia.gpu_info
"""

EXAMPLES = r"""
- name: Limit the power of all GPUs, and keep the driver initialized
  gpuops.nvidia.gpu_settings:
    entries:
      - gpus: all
        persistence: true
        power_limit: 300
  become: true

- name: Declare settings for models and for one GPU
  gpuops.nvidia.gpu_settings:
    entries:
      - gpus: all
        persistence: true
      - gpus: [H100 80GB HBM3]
        power_limit: 500
        locked_graphics_clocks: {min: 1200, max: 1800}
      - gpus: [A100-SXM4-80GB]
        application_clocks: {memory: 1593, graphics: 1305}
      - gpus: [GPU-4d6f636b-0000-4000-8000-000000000000]
        power_limit: 400
        compute_mode: exclusive_process
    disruption: drain
  become: true

- name: Prepare ECC to be off after the next reset or reboot
  gpuops.nvidia.gpu_settings:
    entries:
      - gpus: [Tesla T4]
        ecc: false
  become: true
  register: settings

- name: Read the current settings and what the GPUs support
  gpuops.nvidia.gpu_settings:
    state: gathered
  become: true
  register: current

- name: Restore the former values of all settings
  gpuops.nvidia.gpu_settings:
    state: absent
  become: true
"""

RETURN = r"""
plan:
  description: The steps that were executed, or in check mode would be executed, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "set power limit: 0000:07:00.0 300 W"
      action: set power limit
      target: 0000:07:00.0 300 W
      reason: it is 400 W
      needs: never
      assumed: false
pending:
  description:
    - The steps that O(disruption) forbids or that wait for the driver, each with its C(pending_reason).
  returned: success
  type: list
  elements: dict
changes:
  description:
    - The changes of RV(plan) as data. C(effect) is C(now), or C(reset) if the change takes effect with the next reset
      of the GPU or reboot of the host. C(from) is null for clocks that were not locked.
  returned: success
  type: list
  elements: dict
  sample:
    - gpu: 0000:07:00.0
      uuid: GPU-4d6f636b-0000-4000-8000-000000000000
      setting: power_limit
      from: 400
      to: 300
      effect: now
before:
  description: The former settings by PCI address, in the form of O(entries). C(ecc) is the mode after the next reset.
  returned: success
  type: dict
  sample: {"0000:07:00.0": {"persistence": true, "ecc": true, "compute_mode": "default", "power_limit": 400}}
after:
  description: The settings after the task, in check mode as planned.
  returned: success
  type: dict
reset_required:
  description:
    - The PCI addresses of the GPUs whose ECC mode changes with the next reset of the GPU or reboot of the host.
  returned: success
  type: list
  elements: str
  sample: []
entries:
  description: The current settings, one entry for each GPU, which O(entries) accepts.
  returned: O(state=gathered)
  type: list
  elements: dict
limits:
  description:
    - What the GPUs support, by PCI address. C(power_limit) is the lowest and the highest limit in watts,
      C(memory_clocks) are the supported clocks in MHz, and C(graphics_clocks) the lowest and the highest one.
  returned: O(state=gathered)
  type: dict
  sample: {"0000:07:00.0": {"power_limit": [100, 400], "memory_clocks": [1593], "graphics_clocks": [210, 1410]}}
"""


from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.boot import PersistentSettingsRun
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.device import SettingsNvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.work import Request


def _clocks(*names: str) -> dict[str, object]:
    return {"type": "dict", "options": {name: {"type": "int"} for name in names}}


def main() -> None:
    """Ansible's entry point."""
    module = _module_main.Module(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "gathered"], "default": "present"},
            "entries": {"type": "list", "elements": "dict", "options": {
                "gpus": {"type": "list", "elements": "str"},
                "persistence": {"type": "bool"},
                "ecc": {"type": "bool"},
                "compute_mode": {"type": "str", "choices": ["default", "exclusive_process", "prohibited"]},
                "power_limit": {"type": "float"},
                "application_clocks": _clocks("memory", "graphics"),
                "locked_graphics_clocks": _clocks("min", "max"),
                "locked_memory_clocks": _clocks("min", "max"),
            }},
            "boot": {"type": "bool", "default": True},
            "files_before": {"type": "list", "elements": "str", "default": []},
            "disruption": _module_main.DISRUPTION,
        },
        supports_check_mode=True,
    )
    asked = module.params

    def work() -> Result:
        request = Request(asked["state"], asked["entries"], asked["disruption"], module.check_mode,
                          asked["files_before"] if module.check_mode else ())
        nvml = SettingsNvml()
        job = PersistentSettingsRun(request, nvml, asked["boot"])
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
