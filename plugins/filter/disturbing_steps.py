# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter disturbing_steps: the steps for which a host has to be taken out of service."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS, allows

Data = t.Mapping[str, t.Any]


def disturbing_steps(results: t.Iterable[Data], level: str, refused: t.Collection[str] = ()) -> list[Data]:
    """The steps of results, planned or pending, that disturb GPU clients and that a level allows.

    A pending step that needs a higher level stays pending when the host is out of service. results: those of modules of
    this collection; refused: targets whose steps are left out. Raises AnsibleFilterError if the level is no level.
    """
    if level not in LEVELS:
        raise AnsibleFilterError(f"{level!r} is not a level of disruption. It must be one of {', '.join(LEVELS)}.")
    return [step for result in results for step in (*(result.get("plan") or ()), *(result.get("pending") or ()))
            if step["needs"] != LEVELS[0] and allows(level, step["needs"]) and step.get("target") not in refused]


class FilterModule:
    """How Ansible finds the filter."""

    def filters(self) -> dict[str, t.Callable[..., list[Data]]]:
        """Maps the names of the filters to their functions."""
        return {"disturbing_steps": disturbing_steps}
