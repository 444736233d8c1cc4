# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of hosts as the page draws them, also if a host reports what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_gpus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Host
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import facts


def host(*instances: tuple[Any, Any, Any], model: str = "A100", **changes: Any) -> Host:
    """A host with one GPU with these MIG instances: (profile, start, size)."""
    made = facts(model, driver="595.91.07")
    made["gpus"][0]["mig"] = {"enabled": True, "pending": True, "instances": [
        {"gi": number, "profile": profile, "profile_id": 0, "start": start, "size": size, "uuids": []}
        for number, (profile, start, size) in enumerate(instances)]}
    made["gpus"][0].update(changes)
    return Host(made, None, {}, {})


def bar(one: Host) -> report_gpus.Bar:
    group, = report_gpus.groups({"a": one})
    drawn, = group.bars
    return drawn


def test_hosts_with_equal_gpus_are_one_row() -> None:
    plain, cut = Host(facts("A100", "A100"), None, {}, {}), host(("3g.40gb", 0, 4))
    found = report_gpus.groups({"b1": plain, "a": cut, "b2": plain, "none": Host(facts(), None, {}, {}),
                                "lost": Host(None, None, {}, {})})
    assert [(group.text, len(group.bars)) for group in found] == [("2: b[1-2]", 2), ("a", 1)]


@pytest.mark.parametrize(("model", "slices"), [("A100", 8), ("A30", 4), ("NEW", 8)])
def test_free_memory_slices_are_drawn(model: str, slices: int) -> None:
    drawn = bar(host(("1g.x", 1, 1), model=model, mig_capable=True))
    assert (drawn.state, drawn.slices) == ("mig", slices)
    assert [(part.text, part.start, part.size) for part in drawn.parts] == [
        ("", 0, 1), ("1g.x", 1, 1), ("", 2, slices - 2)]


@pytest.mark.parametrize("wrong", [("1g.10gb", None, 1), ("1g.10gb", 0, None), ("1g.10gb", -3, 1), ("1g.10gb", 0, 0),
                                   ("1g.10gb", 10**12, 1), ("1g.10gb", 7, 2)])
def test_places_that_cannot_be_are_not_drawn(wrong: tuple[Any, Any, Any]) -> None:
    for one in (host(wrong), host(wrong, ("1g.10gb", 2, 1))):
        assert (bar(one).state, bar(one).words) == ("unread", "not known")
    assert bar(host(("1g.10gb", 0, 2), ("1g.10gb", 1, 1))).state == "unread", "they overlap"


@pytest.mark.parametrize(("changes", "state", "words"), [
    ({"error": "The GPU does not answer: GPU_IS_LOST."}, "unread", "not read"),
    ({"mig": None}, "whole", "MIG not known"),
    ({"mig": {"enabled": False, "pending": False, "instances": []}}, "whole", "MIG off"),
    ({"mig_capable": False, "mig": None}, "whole", "no MIG")])
def test_a_gpu_without_instances(changes: dict[str, Any], state: str, words: str) -> None:
    drawn = bar(host(**changes))
    assert (drawn.state, drawn.words) == (state, words)


def test_a_gpu_has_the_number_that_nvml_gives_it() -> None:
    assert bar(host(index=3)).name == "3" and bar(host(index=None)).name.startswith("0000:")
