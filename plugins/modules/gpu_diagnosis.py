# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_diagnosis
short_description: Say why hosts and Nodes do not work, and write a support bundle
version_added: 0.1.0
description:
  - Ranks the causes of the faults of each host and Node. The first cause explains the others. Without a driver, for
    example, the container toolkit does not work. A host and its Node are one machine, and machines with the same
    causes are one entry.
  - The causes are those of the preflight, of M(gpuops.nvidia.gpu_verify), of the pods of a cluster, and of the messages
    that M(gpuops.nvidia.gpu_evidence) explains. Messages count only while the driver does not work.
  - Runs on the controller, and reads the variables that the role preflight registers on the hosts of the play. Use it
    once for the whole play, with C(run_once). The playbook diagnose does all of it.
options:
  plan:
    description: The result of M(gpuops.nvidia.gpu_policy), even if it failed.
    type: dict
  bundle_path:
    description:
      - A file on the controller for the support bundle, a C(.tar.gz) archive with the diagnoses, the report as JSON,
        the facts and the logs of hosts, and the Nodes, pods, events and DaemonSets of the cluster.
      - Values that are named like secrets, and secrets with a known form, are replaced. Environment variables, command
        lines and annotations of others are left out. This does not find every secret. Look through the archive before
        you send it to somebody. Only its owner can read it.
      - Check mode does not write it.
    type: path
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
attributes:
  diff_mode:
    support: none
seealso:
  - module: gpuops.nvidia.gpu_evidence
  - module: gpuops.nvidia.gpu_report
"""

EXAMPLES = r"""
- name: Print why hosts do not work, and collect all evidence
  gpuops.nvidia.gpu_diagnosis:
    plan: "{{ preflight_plan }}"
    bundle_path: gpu-support.tar.gz
  run_once: true
"""

RETURN = r"""
diagnoses:
  description: The diagnoses, the worst first.
  returned: success
  type: list
  elements: dict
  contains:
    machines:
      description: The hosts and Nodes with these causes.
      type: list
      elements: str
    state:
      description:
        - V(failed) if something does not work, V(warned) if there are only warnings about the hardware, V(waiting) if
          steps are only pending, V(unknown) if the machine was not compared with a plan, and V(fine) otherwise.
      type: str
    causes:
      description: The causes. The first one explains the others.
      type: list
      elements: dict
      contains:
        concern:
          description: What does not work, such as C(driver) or C(hardware).
          type: str
        cause:
          description: Why it does not work.
          type: str
        fix:
          description: What to do, empty if this is not known.
          type: str
        evidence:
          description: Lines of logs.
          type: list
          elements: str
        waits:
          description: Whether it is no fault, because a step only waits.
          type: bool
        warns:
          description: Whether it may explain other faults, but is none itself.
          type: bool
  sample:
    - machines: [gpu-1]
      state: failed
      causes:
        - concern: driver
          cause: nouveau uses the GPUs
          fix: Blacklist nouveau, rebuild the initramfs, reboot
          evidence: []
          waits: false
          warns: false
bundle_path:
  description: The archive that was written, or in check mode would be written.
  returned: when O(bundle_path) is given
  type: str
  sample: /home/builder/gpu-support.tar.gz
"""
