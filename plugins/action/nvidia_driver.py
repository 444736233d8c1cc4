# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies pynvml to the host, where the module installs it permanently, then runs the module."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction as ActionModule

__all__ = ["ActionModule"]
