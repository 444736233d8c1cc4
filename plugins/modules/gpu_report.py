# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_report
short_description: Print the plan of a run, or the state of hosts and cluster
version_added: 0.1.0
description:
  - Prints a table to the terminal, with colours and box drawing characters if the terminal supports them. It can also
    write an HTML page and JSON.
  - Runs on the controller and changes no host. Use it once for the whole play, with C(run_once).
  - RV(ignore:changed) says whether the content of a file has changed. Check mode writes no file.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  show:
    description:
      - V(plan) prints the steps of the plan, with errors and warnings.
      - V(preflight) prints the plan with all findings, even if there is no plan.
      - V(result) prints every component of every host compared with the plan.
      - V(state) prints the current state and pending steps.
    type: str
    choices: [plan, preflight, result, state]
    required: true
  plan:
    description:
      - The result of M(gpuops.nvidia.gpu_policy), even if it failed. The plan of the cluster in it is shown, too.
      - If you write it, O(hosts) or O(cluster) yourself, it must have all keys that a report reads; other keys are
        ignored.
    type: dict
  hosts:
    description:
      - For each host C(facts), C(checks), C(steps) and C(pending).
      - If this is not set, they are taken from the variables that the roles register on the hosts of the play.
    type: dict
  cluster:
    description:
      - C(plan) of the cluster, C(operands) and C(labels) as M(gpuops.nvidia.operands) and M(gpuops.nvidia.gpu_labels)
        returned them, and the C(checks) of M(gpuops.nvidia.gpu_verify).
      - If this is not set, they are taken from O(plan) and from C(operands_result), C(deploy_labels_result) and
        C(preflight_cluster), registered on a host of the play or of the group C(gpu_control).
    type: dict
  health:
    description:
      - Whether V(result) and V(state) show the findings about the health of the GPUs, from the facts of the hosts.
        V(plan) and V(preflight) always show them.
    type: bool
    default: false
  states:
    description:
      - Whether V(result) and V(state) also show the state of each host and GPU Node, V(NotReady), V(Upgrading),
        V(Degraded), V(Disabled) or V(Ready). docs/states.md has the rules.
      - Of a cluster, RV(gpuops.nvidia.gpu_verify#module:observed) is needed. Without it only the pods are known.
    type: bool
    default: false
  fail_on:
    description:
      - States in which no host and no Node may be. If one is, the task fails and names it, after the report and the
        files were written. This needs O(states).
    type: list
    elements: str
    choices: [NotReady, Upgrading, Degraded, Disabled, Ready]
    default: []
  html_path:
    description:
      - A file on the controller for the report as one self-contained HTML page. Its tables can be searched and sorted,
        and it draws the GPUs of the hosts with their MIG instances.
    type: path
  json_path:
    description: A file on the controller for the report as JSON. docs/preflight.md describes its keys.
    type: path
  metrics_path:
    description:
      - A file on the controller for the states as metrics of Prometheus. It is replaced atomically. A name that ends
        with C(.prom), in the folder of the textfile collector of the node exporter, is scraped. This needs O(states).
    type: path
"""

EXAMPLES = r"""
- name: Print the components of all hosts
  gpuops.nvidia.gpu_report:
    show: result
    html_path: gpu-report.html
  run_once: true

- name: Print the current state and the health of the GPUs
  gpuops.nvidia.gpu_report:
    show: state
    health: true
  run_once: true

- name: Print the states, write them as metrics, and fail if a host or Node is not ready
  gpuops.nvidia.gpu_report:
    show: result
    plan: "{{ plan }}"
    states: true
    metrics_path: /var/lib/prometheus/node-exporter/gpuops.prom
    fail_on: [NotReady]
  run_once: true

- name: Print all findings, and write them as JSON
  gpuops.nvidia.gpu_report:
    show: preflight
    plan: "{{ plan }}"
    json_path: preflight.json
  run_once: true
"""

RETURN = r"""
verdict:
  description: The result in one sentence.
  returned: success
  type: str
  sample: 12 of 12 checks are ok on 3 hosts.
html_path:
  description: The page that was written, or in check mode would be written.
  returned: when O(html_path) is given
  type: str
  sample: /home/user/gpu-report.html
json_path:
  description: The JSON file that was written, or in check mode would be written.
  returned: when O(json_path) is given
  type: str
  sample: /home/user/preflight.json
metrics_path:
  description: The file with metrics that was written, or in check mode would be written.
  returned: when O(metrics_path) and O(states) are given
  type: str
  sample: /var/lib/prometheus/node-exporter/gpuops.prom
states:
  description:
    - The state of each host and GPU Node, by the name of the Node or, if it is no Node, of the host. C(reason) is one
      word, C(message) a sentence, C(since) a time if the cluster tells it. C(running) of C(driver), C(reboot_pending),
      C(drift) and C(cordoned) are null if they are not known.
  returned: when O(states) is true, O(show) is V(result) or V(state), and the task has not failed because of O(fail_on)
  type: dict
  sample:
    gpu-a1:
      state: Ready
      reason: AsPlanned
      message: everything is as planned
      since: "2026-11-22T07:10:47Z"
      host: gpu-a1
      driver: {desired: 595.91.07, running: 595.91.07}
      reboot_pending: false
      drift: false
      cordoned: false
state_counts:
  description: The number of hosts and Nodes in each state.
  returned: when O(states) is true, and O(show) is V(result) or V(state)
  type: dict
  sample: {NotReady: 0, Upgrading: 0, Degraded: 1, Disabled: 0, Ready: 7}
findings:
  description:
    - The findings of the preflight, errors first. If O(show) is V(result) or V(state), only those about the health of
      the GPUs, and only with O(health).
  returned: success
  type: list
  elements: dict
  contains:
    host:
      description: The host, the Node, V(cluster) or V(policy).
      type: str
    check:
      description: The name of the check.
      type: str
    severity:
      description: V(error), V(warning) or V(info).
      type: str
    text:
      description: The problem.
      type: str
    fix:
      description: What to do; empty if nothing has to be done.
      type: str
    detail:
      description: What of the host has the problem, such as the addresses of GPUs; empty for the whole host.
      type: str
  sample:
    - host: gpu-1
      check: nouveau
      severity: error
      text: the kernel module nouveau uses the GPUs, so the NVIDIA driver cannot be loaded
      fix: >-
        Write 'blacklist nouveau' and 'options nouveau modeset=0' to /etc/modprobe.d, rebuild the initramfs, reboot
      detail: ""
counts:
  description: The number of different findings, by severity.
  returned: success
  type: dict
  sample: {error: 1, warning: 0, info: 2}
"""
