# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(python3 -m lab.node) creates what a host needs to become a Node, unless it exists."""

from __future__ import annotations

from lab.host import needs
from lab.node import node

needs.ensure()
print(node.programs())
