# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_report
short_description: Print the plan before a run, and hosts and cluster by components after it
version_added: 0.1.0
description:
  - Prints a table to the terminal, in colours and with box drawing where it can. Writes a page on request.
  - Runs on the controller and changes no host. Use it once for the whole play, with C(run_once).
  - RV(ignore:changed) says whether a file has another content than before. Check mode writes none.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  show:
    description:
      - V(plan) prints what will be done, with the errors and warnings that were found, V(preflight) the same with all
        findings, also where the policy cannot be carried out, V(result) how every component of every host is compared
        with the plan, V(state) what is there and what is pending.
    type: str
    choices: [plan, preflight, result, state]
    required: true
  plan:
    description:
      - What M(gpuops.nvidia.gpu_policy) returned, also where it failed. Its RV(ignore:cluster) is shown too.
      - What is made by hand here, in O(hosts) or O(cluster), must have all that a report reads of it; other keys are
        ignored.
    type: dict
  hosts:
    description:
      - By host C(facts), C(checks), C(steps) and C(pending).
      - Without it they are taken from what the roles registered on the hosts of the play.
    type: dict
  cluster:
    description:
      - C(plan) of the cluster, C(operands) and C(labels) as M(gpuops.nvidia.operands) and M(gpuops.nvidia.gpu_labels)
        returned them, and the C(checks) of M(gpuops.nvidia.gpu_verify).
      - Without it they are taken from O(plan) and from C(operands_result), C(deploy_labels_result) and
        C(preflight_cluster), registered on a host of the play or of the group C(gpu_control).
    type: dict
  html_path:
    description: Write the report as one self-contained page to this file on the controller.
    type: path
  json_path:
    description: Write the report as JSON to this file on the controller; docs/preflight.md has its keys.
    type: path
"""

EXAMPLES = r"""
- name: Print hosts by components
  gpuops.nvidia.gpu_report:
    show: result
    html_path: gpu-report.html
  run_once: true

- name: Print everything that stands in the way, and leave it as JSON for other programs
  gpuops.nvidia.gpu_report:
    show: preflight
    plan: "{{ plan }}"
    json_path: preflight.json
  run_once: true
"""

RETURN = r"""
verdict:
  description: The end in one sentence.
  returned: success
  type: str
  sample: 12 of 12 checks are ok on 3 hosts.
html_path:
  description: The page that was written, or in check mode would be.
  returned: when O(html_path) is given
  type: str
  sample: /home/user/gpu-report.html
json_path:
  description: The JSON file that was written, or in check mode would be.
  returned: when O(json_path) is given
  type: str
  sample: /home/user/preflight.json
findings:
  description: What was found before anything is changed, errors first; empty where O(show) is V(result) or V(state).
  returned: success
  type: list
  elements: dict
  contains:
    host:
      description: The host, the Node, V(cluster) or V(policy).
      type: str
    check:
      description: Which check found it.
      type: str
    severity:
      description: V(error), V(warning) or V(info).
      type: str
    text:
      description: What was found.
      type: str
    fix:
      description: What to do about it; empty where nothing has to be done.
      type: str
  sample:
    - host: gpu-1
      check: nouveau
      severity: error
      text: nouveau drives the GPUs, so the NVIDIA driver cannot be loaded
      fix: >-
        Write 'blacklist nouveau' and 'options nouveau modeset=0' to /etc/modprobe.d, rebuild the initramfs, reboot
counts:
  description: How many different findings there are, by severity.
  returned: success
  type: dict
  sample: {error: 1, warning: 0, info: 2}
"""
