# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a run may reset, and which hosts it may reboot."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.nvidia.plugins.filter.gpu_remedies import gpu_remedies
from ansible_collections.gpuops.nvidia.tests.unit.planning.test_health import host

ROWS = {"correctable": 0, "uncorrectable": 1, "pending": True, "failed": False}


@pytest.mark.parametrize(("given", "remedy"), [
    ({}, ""), ({"recovery": "none"}, ""), ({"recovery": "reset"}, "reset"), ({"recovery": "drain_and_reset"}, "reset"),
    ({"recovery": "drain_p2p"}, ""), ({"recovery": "recover_imex_domain"}, ""), ({"recovery": "reboot"}, "reboot"),
    ({"recovery": "bus_reset"}, "reboot"), ({"recovery": "system_reboot"}, "reboot"),
    ({"remapped_rows": ROWS}, "reset"), ({"remapped_rows": {**ROWS, "failed": True}}, ""),
    ({"retired_pages_pending": True}, "reset"), ({"error": "GPU_IS_LOST"}, "reboot"),
    ({"error": "RESET_REQUIRED"}, "reset"), ({"error": "UNKNOWN"}, ""),
])
def test_the_remedy_of_a_gpu(given: dict[str, t.Any], remedy: str) -> None:
    found = gpu_remedies(t.cast(t.Any, host(given)))
    assert ("reboot" if found["reboot"] else "reset" if found["gpus"] else "") == remedy
    assert not (found["reboot"] and found["gpus"])
    assert not found["gpus"] or found["gpus"][0]["reason"]


def test_a_gpu_that_has_left_the_bus_needs_a_reboot() -> None:
    facts = t.cast(t.Any, host({}))
    facts["xids"] = [{"pci": "0000:99:00.0", "xid": 79}]
    assert gpu_remedies(facts) == {"gpus": [], "reboot": "GPU 0000:99:00.0: it is no longer on the PCI bus"}
    facts["xids"] = [{"pci": facts["gpus"][0]["pci"], "xid": 79}]
    assert gpu_remedies(facts) == {"gpus": [], "reboot": ""}


def test_other_data_are_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="no facts of gpu_info"):
        gpu_remedies({})
