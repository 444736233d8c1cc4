# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reboots a host like ansible.builtin.reboot, whose errors show what the host prints as it is."""

from __future__ import annotations

from ansible.plugins.action import reboot
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.answers import AnswerError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import Asking
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data


class ActionModule(Asking, reboot.ActionModule):
    """See the documentation of the module host_reboot."""

    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS = frozenset(("reboot_timeout",))
    # The start time of systemd, because hosts that are containers share the boot id of the kernel.
    DEFAULT_BOOT_TIME_COMMAND = "systemctl show --property=UserspaceTimestamp --property=UserspaceTimestampMonotonic"

    def work(self, task_vars: Data) -> Data:
        """See Asking."""
        try:
            result: Data = reboot.ActionModule.run(self, None, task_vars)
        except AnswerError as error:
            result = {"failed": True, **error.as_result()}
        return dict(printable_data(result))
