# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_check
short_description: Run a CUDA sample on each GPU of a host
version_added: 0.1.0
description:
  - Adds two vectors on each GPU by way of the driver's own library, as the GPU Operator's validator does, and compares
    the sums. It needs neither compiler nor CUDA toolkit, and 12 KiB of each GPU besides what the driver takes for a
    context.
  - A GPU on which a process computes is not touched; it counts as V(busy). Where MIG is on, the first MIG device of the
    GPU is taken; a GPU with MIG on and without devices is V(busy) too, as nothing can run there.
  - Changes nothing, and never fails because of a GPU; RV(samples) say what is wrong. M(gpuops.nvidia.gpu_verify) judges
    them.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  timeout:
    description:
      - Seconds for all GPUs together, which are asked at the same time. What has not ended by then is V(failed).
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Does CUDA work on every GPU
  gpuops.nvidia.cuda_check:
  register: cuda

- name: Name those on which it does not
  ansible.builtin.debug:
    msg: "{{ cuda.samples | selectattr('state', 'eq', 'failed') }}"
"""

RETURN = r"""
samples:
  description:
    - By GPU what came of it. C(state) is V(ok), V(busy) or V(failed), C(reason) says why, C(device) is the UUID of the
      GPU or MIG device, null where the GPU does not answer.
    - Where nothing can be tried on any GPU there is one entry without C(gpu).
  returned: success
  type: list
  elements: dict
  sample:
    - {gpu: "0000:07:00.0", device: GPU-5a9d3f9c-92ab-4f43-8f7a-1d7c6f3f2a10, state: ok, reason: ""}
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils._cuda import check
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._brief import nvml_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._glue import finish


def samples(snapshot: t.Mapping[str, t.Any], timeout: float) -> list[dict[str, t.Any]]:
    """See RV(samples). snapshot: of NVML."""
    if not snapshot["available"]:
        return [{"gpu": None, "device": None, "state": "failed",
                 "reason": snapshot["error"] or "no driver is installed"}]
    if not snapshot["gpus"]:
        return [{"gpu": None, "device": None, "state": "failed", "reason": "the driver has no GPU"}]
    used: dict[str, str] = {}
    for client in snapshot["clients"]:
        used.setdefault(client["gpu"], f"{client['name'] or 'a process'} (pid {client['pid']}) computes on it")
    rows = [_row(gpu, used.get(gpu["pci"], "")) for gpu in snapshot["gpus"]]
    told = check([row["device"] for row in rows if row["state"] is None], timeout)
    return [{**row, **(told[row["device"]] if row["state"] is None else {})} for row in rows]


def _row(gpu: t.Mapping[str, t.Any], used: str) -> dict[str, t.Any]:
    """A GPU as C({gpu, device, state, reason}); state is None where it is to be tried."""
    devices = [gpu["uuid"]]
    if gpu["mig"] and gpu["mig"]["enabled"]:
        devices = [uuid for instance in gpu["mig"]["instances"] for uuid in instance["uuids"]]
    row: dict[str, t.Any] = {"gpu": gpu["pci"], "device": devices[0] if devices else None, "state": None, "reason": ""}
    if gpu["error"] or gpu["uuid"] is None:
        row.update(device=None, state="failed", reason=f"the GPU does not answer: {gpu['error']}")
    elif used:
        row.update(state="busy", reason=used)
    elif not devices:
        row.update(state="busy", reason="MIG is on, and there is no MIG device")
    return row


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={"timeout": {"type": "int", "default": 60}}, supports_check_mode=True)
    finish(module, lambda: {"changed": False, "samples": samples(nvml_snapshot(), module.params["timeout"])})


if __name__ == "__main__":
    main()
