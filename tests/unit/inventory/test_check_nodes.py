# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On which Nodes gpu_check_pods and gpu_check_metrics check: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.check_nodes import count, note

NODES = [f"n{number}" for number in range(30)]


@pytest.mark.parametrize(("amount", "number"), [(0, 0), ("3", 3), ("10%", 3), ("1%", 1), ("100%", 30), ("0%", 0),
                                                (["n1"], ["n1"]), ([], [])])
def test_the_amount(amount: Any, number: Any) -> None:
    assert count(amount, NODES, "check_pods") == number


@pytest.mark.parametrize("option", ["check_pods", "check_metrics"])
@pytest.mark.parametrize("amount", [True, -1, "101%", "2 nodes", "many", "", None, 1.5, ["n99"], [7], [{}], {}])
def test_a_wrong_amount(amount: Any, option: str) -> None:
    with pytest.raises(InputError) as caught:
        count(amount, NODES, option)
    wrong = amount[0] if isinstance(amount, list) else amount
    assert caught.value.details["path"] == f"gpu_{option}" and repr(wrong) in caught.value.message
    assert caught.value.hint and caught.value.details["allowed"]


def test_without_a_cluster_names_are_not_known_and_anything_else_is_refused() -> None:
    for unknown in (None, []):  # before the first run, no Node has the labels of a GPU
        assert count(["n99"], unknown, "check_pods") == (["n99"] if unknown is None else [])
        assert count("100%", unknown, "check_pods") == 0
    for wrong in ("101%", [7], None):
        with pytest.raises(InputError):
            count(wrong, None, "check_pods")


def test_a_misspelt_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(InputError) as caught:
        count(["gpu-a1", "gpu_b1"], ["gpu-a1", "gpu-b1"], "check_metrics")
    assert "'gpu_b1' is no GPU Node" in caught.value.message and "gpu-b1" in caught.value.hint


@pytest.mark.parametrize("amount", [3, "3", "10%", ["n1"]])
def test_a_run_that_checks_nothing_says_so(amount: Any) -> None:
    assert note(amount, NODES, False, "check_pods") == []
    for nodes, rendered, why in (([], False, "no Node has the labels"), (NODES, True, "gpu_render_to is set"),
                                 (None, True, "gpu_render_to is set")):
        text, = note(amount, nodes, rendered, "check_pods")
        assert text.startswith(f"gpu_check_pods: nothing is checked in this run, because {why}")
        for nothing in (0, "0", "0%", []):
            assert note(nothing, nodes, rendered, "check_pods") == []
