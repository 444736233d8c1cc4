# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fixtures of tests that use a simulated API server."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.tests.unit.simulated.api import api, client, clock

__all__ = ["api", "client", "clock"]
