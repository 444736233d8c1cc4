# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ships pynvml where the host needs it, then runs the module."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction


class ActionModule(HostAction):
    """Runs the module, whose facts everybody relies on."""

    NEEDED = ("facts",)
