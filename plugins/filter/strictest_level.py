# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter strictest_level: the level of gpu_disruption that allows the least."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS


def strictest_level(levels: t.Sequence[str]) -> str:
    """The level that allows the least. Raises AnsibleFilterError if there is none, or a value is no level."""
    wrong = [level for level in levels if level not in LEVELS]
    if wrong or not levels:
        raise AnsibleFilterError(f"A level of disruption is {wrong[0] if wrong else 'missing'}. "
                                 f"It must be one of {', '.join(LEVELS)}.")
    return min(levels, key=LEVELS.index)


class FilterModule:
    """How Ansible finds the filter."""

    def filters(self) -> dict[str, t.Callable[[t.Sequence[str]], str]]:
        """Maps the names of the filters to their functions."""
        return {"strictest_level": strictest_level}
