# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_reboot
short_description: Reboot a host and wait until it is back
version_added: 0.1.0
description:
  - Reboots a host as M(ansible.builtin.reboot) does, and waits until systemd has started again and the host runs a
    command.
  - If the reboot fails, control characters in the words of the host are shown as escapes. With
    M(ansible.builtin.reboot), they reach the terminal.
  - Reboots the host at each run. The roles driver, mig_manager and maintenance use this module only at the level
    V(reboot), and only if M(gpuops.nvidia.nvidia_driver) returns
    RV(gpuops.nvidia.nvidia_driver#module:reboot_required), M(gpuops.nvidia.mig_config) returns
    RV(gpuops.nvidia.mig_config#module:reboot_required), or M(gpuops.nvidia.gpu_reset) returns
    RV(gpuops.nvidia.gpu_reset#module:reboot_required).
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
attributes:
  check_mode:
    details: Check mode only returns that the host would be rebooted.
  diff_mode:
    support: none
  idempotent:
    support: none
options:
  reboot_timeout:
    description:
      - Seconds to wait until systemd has started again, and the same time until the host runs a command.
    type: int
    default: 600
seealso:
  - module: ansible.builtin.reboot
  - module: gpuops.nvidia.nvidia_driver
  - module: gpuops.nvidia.mig_config
"""

EXAMPLES = r"""
- name: Reboot a host whose firmware takes long
  gpuops.nvidia.host_reboot:
    reboot_timeout: 1800
"""

RETURN = r"""
rebooted:
  description: Whether the host was rebooted, or in check mode would be.
  returned: success
  type: bool
  sample: true
elapsed:
  description: The seconds that the reboot took.
  returned: success
  type: int
  sample: 95
"""
