# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module, whose answer is checked data."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction


class ActionModule(HostAction):
    """Runs the module. Its result must contain the texts and their explanations."""

    NEEDED = ("evidence", "explained", "dcgm")
