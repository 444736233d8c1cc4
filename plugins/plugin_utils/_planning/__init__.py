# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the plan for all hosts and the cluster, or its refusals, and the findings of a preflight. PRIVATE."""

from __future__ import annotations
