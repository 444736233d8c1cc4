# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each act of gpu_settings at each level, on a GPU that two processes use."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.device import SettingsNvml
from ansible_collections.gpuops.nvidia.tests.unit.levels import TABLE, YES, cases, on_page
from ansible_collections.gpuops.nvidia.tests.unit.settings.test_run import (
    H100,
    Host,
    host,  # noqa: F401
    ids,
    pytestmark,  # noqa: F401
)


class Act(t.NamedTuple):
    """The declared settings, the step that they need, and how many processes of which kind use the GPU."""

    settings: dict[str, t.Any]
    step: str
    processes: str = "CC"


ACTS = {
    "set the persistence mode": Act({"persistence": True}, f"set persistence mode: {H100} on"),
    "prepare another ECC mode": Act({"ecc": False}, f"set ECC mode: {H100} off"),
    "set a limit of power or clocks": Act({"power_limit": 300}, f"set power limit: {H100} 300 W"),
    "allow more processes on a GPU": Act({"compute_mode": "default"}, f"set compute mode: {H100} default"),
    "allow only as many processes as use the GPU": Act(
        {"compute_mode": "exclusive_process"}, f"set compute mode: {H100} exclusive_process", "CM"),
    "forbid more processes while the GPU is idle": Act(
        {"compute_mode": "prohibited"}, f"set compute mode: {H100} prohibited", ""),
    "forbid processes that use the GPU to open it again": Act(
        {"compute_mode": "exclusive_process"}, f"set compute mode: {H100} exclusive_process"),
}


@pytest.mark.parametrize(("act", "level", "said"), cases("settings"))
def test_the_level_allows_what_the_table_says(host: Host, act: str, level: str, said: str) -> None:  # noqa: F811
    what = ACTS[act]
    if act.startswith("allow more"):
        with SettingsNvml() as nvml:
            nvml.write(nvml.devices()[2], "compute_mode", "prohibited")
    for number, kind in enumerate(what.processes):
        host.gpus.sim("client", "add", "--gpu", "2", "--pid", str(4000 + number), "--kind", kind, "python3")
    done = host.go({"gpus": [H100], **what.settings}, level=level)
    assert (ids(done) == [what.step]) is (said == YES)
    assert [step["id"] for step in done["pending"]] == ([] if said == YES else [what.step])
    if said != YES:
        assert done["pending"][0]["pending_reason"] == (
            f"python3 (4000), python3 (4001) could not open the GPU again; gpu_disruption is '{level}', this needs "
            "'drain' or higher")
    clients = [line for line in host.gpus.state.read_text().splitlines() if line.startswith("client ")]
    assert len(clients) == len(what.processes)  # none is ever stopped
    host.writes()
    assert not host.go({"gpus": [H100], **what.settings}, level=level)["changed"] and host.writes() == []


def test_every_act_has_a_test_and_is_on_the_page() -> None:
    assert list(ACTS) == list(TABLE["settings"])
    assert on_page("gpu_settings.md") == TABLE["settings"]
