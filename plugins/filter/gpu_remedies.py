# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpu_remedies: what a run may do for the GPUs of a host that are not healthy."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import remedies


def gpu_remedies(facts: t.Mapping[str, t.Any]) -> remedies.Remedies:
    """See C(remedies.of_host). Raises AnsibleFilterError if these are no facts of gpu_info."""
    if not isinstance(facts.get("gpus"), list):
        raise AnsibleFilterError("These are no facts of gpu_info. Use its result, such as preflight_found.facts.")
    return remedies.of_host(t.cast(HostFacts, facts))


class FilterModule:
    """How Ansible finds the filter."""

    def filters(self) -> dict[str, t.Callable[[t.Mapping[str, t.Any]], remedies.Remedies]]:
        """Maps the names of the filters to their functions."""
        return {"gpu_remedies": gpu_remedies}
