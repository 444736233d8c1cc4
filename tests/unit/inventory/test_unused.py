# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes about variables that have no effect because of gpu_placement."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import placements
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import unused, variable_names

PLAY: dict[str, dict[str, Any]] = {
    "a": {"gpu_settings": [], "gpu_render_to": "/tmp/x", "gpu_sharing": {"x": "y"}},
    "b": {"gpu_settings": [{"gpus": "all"}], "gpu_check_pods": True, "gpu_pull_secrets": []},
    "c": {}, "control": {"gpu_settings": [], "gpu_startup_taint": "t"}}
SETTINGS = "a, b: gpu_settings: no effect in site: nothing is delivered on hosts."
CLUSTER = "gpu_render_to, gpu_startup_taint, gpu_check_pods: no effect: nothing is delivered in a cluster."


@pytest.mark.parametrize(("placement", "expected"), [
    ("hosts", [CLUSTER]), ("cluster", [SETTINGS]), ("hybrid", []), ({"device_plugin": "cluster"}, []),
    (dict.fromkeys(placements("hosts"), "none"), [SETTINGS, CLUSTER])])
def test_variables_without_effect_are_named(placement: Any, expected: list[str]) -> None:
    assert unused.notes(PLAY, ["a", "b", "c", "unreachable"], placements(placement)) == expected
    assert unused.notes({"a": {}}, ["a"], placements(placement)) == []


def test_they_are_variables_of_the_collection() -> None:
    assert {*unused.OF_HOSTS, *unused.OF_CLUSTERS} <= variable_names.NAMES
