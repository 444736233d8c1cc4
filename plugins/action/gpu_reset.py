# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies pynvml to the host if it is missing there, then runs the module."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction


class ActionModule(HostAction):
    """See the documentation of the module gpu_reset."""

    NEEDED = ("plan", "pending", "reset", "refused", "unanswered")
