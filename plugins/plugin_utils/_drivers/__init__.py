# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of drivers for hosts and Nodes, and the reasons why other drivers are excluded. PRIVATE."""

from __future__ import annotations
