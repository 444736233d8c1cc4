# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host for the tests of runtimes, with both halves of container_toolkit."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.tests.unit.runtimes.conftest import host

__all__ = ["host"]
