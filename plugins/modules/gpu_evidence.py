# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_evidence
short_description: Read what a host has logged about its GPUs
version_added: 0.1.0
description:
  - Reads the kernel log since the boot, the logs of services, the last build of kernel modules and C(nvidia-smi -q), as
    far as they are about GPUs. Each text has at most 64 KiB.
  - Explains known messages of the kernel, DKMS and nvidia-smi.
  - A log that does not exist or cannot be read is left out, and is never an error.
  - The playbook diagnose uses this module. M(gpuops.nvidia.gpu_diagnosis) ranks the causes.
options:
  dcgm_level:
    description:
      - The level of C(dcgmi diag) to run, V(0) for none. V(1) takes about a minute, V(3) half an hour or more.
      - The test uses the GPUs. It does not run if there are GPU clients, or if the program is not installed.
    type: int
    choices: [0, 1, 2, 3]
    default: 0
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
seealso:
  - module: gpuops.nvidia.gpu_diagnosis
  - module: gpuops.nvidia.gpu_info
"""

EXAMPLES = r"""
- name: Read what the host has logged about its GPUs
  gpuops.nvidia.gpu_evidence:
  register: gpu_logged

- name: Show what is known about the messages
  ansible.builtin.debug:
    msg: "{{ gpu_logged.explained }}"

- name: Also run the short test of DCGM if the GPUs are idle
  gpuops.nvidia.gpu_evidence:
    dcgm_level: 1
"""

RETURN = r"""
evidence:
  description: The texts by file name. They are not free of secrets.
  returned: success
  type: dict
  sample: {kernel.log: "2026-11-27T10:00:00+0000 gpu-1 kernel: NVRM: GPU 0000:3b:00.0 has fallen off the bus."}
explained:
  description: The known messages in these texts, the most specific first.
  returned: success
  type: list
  elements: dict
  contains:
    message:
      description: The line.
      type: str
    meaning:
      description: What it means.
      type: str
    action:
      description: What to do.
      type: str
dcgm:
  description: The test of DCGM.
  returned: success
  type: dict
  contains:
    ran:
      description: Whether it has run.
      type: bool
    passed:
      description: Its result, null if it has none.
      type: bool
    why:
      description: The tests that have failed, or why there is no result. Empty if the test was not requested.
      type: str
  sample: {ran: false, passed: null, why: the program dcgmi is not installed}
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.failures import explain
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import evidence
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run


def read(dcgm_level: int, check: bool) -> Result:
    """The result of the module. check: whether check mode is on, in which no test runs."""
    found = evidence.read_evidence(run)
    diag = evidence.Diag(False, None, "check mode runs no test" if dcgm_level else "")
    if dcgm_level and not check:
        clients = [str(one["name"]) for one in read_holders(Root())]
        diag, text = evidence.run_diag(run, clients, dcgm_level)
        found.update({evidence.DCGM: text} if text else {})
    logged = "\n".join(found.get(name, "") for name in (evidence.KERNEL_LOG, evidence.BUILD_LOG, evidence.SMI))
    return {"changed": False, "evidence": found, "explained": explain(logged), "dcgm": diag._asdict()}


def main() -> None:
    """Entry point."""
    module = _module_main.Module(
        argument_spec={"dcgm_level": {"type": "int", "choices": [0, 1, 2, 3], "default": 0}}, supports_check_mode=True)
    _module_main.finish(module, lambda: read(module.params["dcgm_level"], module.check_mode))


if __name__ == "__main__":
    main()
