# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify
short_description: Compare a GPU host with its plan, component by component
version_added: 0.1.0
description:
  - Says for each component whether the host is as its plan says, and if not, what differs and what to do.
  - The driver is compared by loaded module, libraries, NVML and GPUs seen; the container toolkit by version, runtimes
    and CDI specification; MIG by mode and instances; labels by whether they can be computed.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  components:
    description: The components to look at. All that the plan has without it.
    type: list
    elements: str
  expected:
    description: The plan of this host, by component, as M(gpuops.nvidia.gpu_policy) returns it in RV(ignore:hosts).
    type: dict
    required: true
  facts:
    description:
      - What M(gpuops.nvidia.gpu_info) returned as facts.
      - Without it the facts that the role preflight gathered in this run count, as long as no role has changed the host
        since; otherwise they are gathered now.
    type: dict
  labels:
    description: What M(gpuops.nvidia.gpu_labels) returned as labels, where it ran.
    type: dict
  pending:
    description:
      - By component the pending steps that its module returned. A difference that waits for a step that was not allowed
        is pending and no failure.
      - Without it they are taken from what the roles registered on this host in this run.
    type: dict
  enforce:
    description: Whether a failed or absent component fails the task.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Is the driver as it should be
  gpuops.nvidia.gpu_verify:
    components: [driver]
    expected:
      driver: {version: 595.91.07, kernel_module_type: open}
"""

RETURN = r"""
checks:
  description:
    - One entry a component. C(state) is V(ok), V(pending), V(failed) or V(absent); C(detail) says what was found,
      C(hint) what to do.
    - In check mode nothing has been done yet, so what differs is V(pending).
  returned: always
  type: list
  elements: dict
  sample:
    - component: driver
      ok: true
      state: ok
      detail: 595.91.07 open
      hint: ""
"""
