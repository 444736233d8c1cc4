# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declarations of settings: which are valid, and which entry applies to a GPU. No GPU is needed."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import Target
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import declared

H, H2, T4 = (Target("0000:1b:00.0", 0, "2330", "10de:16c1", "NVIDIA H100 80GB HBM3", (), "GPU-aa"),
             Target("0000:43:00.0", 1, "2330", "10de:16c1", "NVIDIA H100 80GB HBM3", (), "GPU-bb"),
             Target("0000:61:00.0", 2, "1eb8", "10de:12a2", "Tesla T4", (), "GPU-cc"))
HOST = [H, H2, T4]


def resolved(*entries: dict[str, t.Any], gpus: t.Sequence[Target] = HOST) -> dict[str, dict[str, t.Any]]:
    """C({index: {setting: value}}) of the GPUs with settings."""
    found = declared.resolve(declared.parse(list(entries)), gpus)
    return {str(gpu.number): {name: one.value for name, one in found[gpu.pci].items()}
            for gpu in gpus if gpu.pci in found}


def error(*entries: t.Any, gpus: t.Sequence[Target] = HOST) -> str:
    with pytest.raises(InputError) as caught:
        declared.resolve(declared.parse(list(entries)), gpus)
    return str(caught.value)


@pytest.mark.parametrize("word", ["0", "GPU-AA", "0000:1b:00.0", "00000000:1B:00.0", "1b:00.0"])
def test_a_gpu_has_several_names(word: str) -> None:
    assert resolved({"gpus": [word], "ecc": True}) == {"0": {"ecc": True}}


@pytest.mark.parametrize("word", ["H100 80GB HBM3", "nvidia h100 80gb hbm3", "2330"])
def test_a_model_selects_all_its_gpus(word: str) -> None:
    assert resolved({"gpus": word, "ecc": True}) == {"0": {"ecc": True}, "1": {"ecc": True}}


def test_the_most_specific_entry_applies_to_each_setting_whatever_the_order() -> None:
    entries = [{"gpus": ["all"], "persistence": True, "power_limit": 60},
               {"gpus": ["H100 80GB HBM3"], "power_limit": 500, "compute_mode": "exclusive_process"},
               {"gpus": ["GPU-bb"], "power_limit": 400}]
    expected = {"0": {"persistence": True, "compute_mode": "exclusive_process", "power_limit": 500},
                "1": {"persistence": True, "compute_mode": "exclusive_process", "power_limit": 400},
                "2": {"persistence": True, "power_limit": 60}}
    assert resolved(*entries) == resolved(*reversed(entries)) == expected


def test_a_gpu_that_an_entry_names_twice_counts_as_a_single_gpu() -> None:
    assert resolved({"gpus": ["2330", "GPU-aa"], "power_limit": 300}, {"gpus": ["2330"], "power_limit": 300},
                    {"gpus": ["1"], "power_limit": 200}) == {"0": {"power_limit": 300}, "1": {"power_limit": 200}}


def test_equal_values_of_equal_entries_are_no_contradiction() -> None:
    assert resolved({"gpus": ["0"], "power_limit": 300.0}, {"gpus": ["GPU-aa"], "power_limit": 300}) == {
        "0": {"power_limit": 300}}


@pytest.mark.parametrize(("first", "second", "kind"), [
    (["all"], ["all"], "all"), (["2330"], ["H100 80GB HBM3"], "a model"), (["0"], ["GPU-aa"], "a single GPU")])
def test_contradicting_entries_are_refused(first: list[str], second: list[str], kind: str) -> None:
    told = error({"gpus": first, "power_limit": 300}, {"gpus": second, "power_limit": 400})
    assert "entries[0] and entries[1] declare different values for GPU 0000:1b:00.0" in told
    assert f"both select it by {kind}: 300 W and 400 W" in told


def test_models_that_the_host_does_not_have_are_ignored_and_misspelt_ones_refused() -> None:
    assert resolved({"gpus": ["NVIDIA B200"], "ecc": True}, {"gpus": ["26b5"], "ecc": True}) == {}
    told = error({"gpus": ["H100 80G HBM3"], "ecc": True})
    assert "is not a model of GPUs (nearest: NVIDIA H100 80GB HBM3)" in told
    assert "YAML parses a PCI address" in error({"gpus": ["11580.0"], "ecc": True})


def test_the_name_of_another_model_is_a_note() -> None:
    entries = declared.parse([{"gpus": ["H100"], "ecc": True}, {"gpus": ["all"], "ecc": True},
                              {"gpus": ["NVIDIA B200"], "ecc": True}])
    note, = declared.near_misses(entries, HOST)
    assert "'H100' selects no GPU of this host" in note and "NVIDIA H100 80GB HBM3" in note


@pytest.mark.parametrize("word", ["3", "GPU-dd", "0000:99:00.0"])
def test_a_single_gpu_must_exist(word: str) -> None:
    told = error({"gpus": [word], "ecc": True})
    assert f"entries[0].gpus: this host has no GPU '{word}'" in told and "2 = 0000:61:00.0 (Tesla T4, GPU-cc)" in told


def test_a_uuid_may_be_unknown_while_the_driver_does_not_run() -> None:
    blind = [gpu._replace(uuid="") for gpu in HOST]
    assert resolved({"gpus": ["GPU-dd"], "ecc": True}, gpus=blind) == {}


@pytest.mark.parametrize(("entry", "told"), [
    ("all", "entries[0]: a mapping with gpus and settings is expected"),
    ({"gpus": "all"}, "entries[0]: the entry has no setting"),
    ({"gpus": "all", "ecc": None}, "the entry has no setting"),
    ({"gpus": "all", "power": 3}, "'power' is not a setting (nearest: power_limit)"),
    ({"ecc": True}, "entries[0].gpus: all, or a list of GPUs is expected"),
    ({"gpus": [], "ecc": True}, "entries[0].gpus: all, or a list"),
    ({"gpus": ["all", "0"], "ecc": True}, "all is combined with other GPUs"),
    ({"gpus": "all", "ecc": "yes"}, "entries[0].ecc: true or false is expected"),
    ({"gpus": "all", "compute_mode": "exclusive"}, "nearest: exclusive_process"),
    ({"gpus": "all", "power_limit": True}, "a number of watts is expected"),
    ({"gpus": "all", "power_limit": -1}, "a number of watts is expected"),
    ({"gpus": "all", "power_limit": float("nan")}, "a number of watts is expected"),
    ({"gpus": "all", "application_clocks": {"memory": 1}}, "a mapping with memory and graphics"),
    ({"gpus": "all", "locked_graphics_clocks": {"min": 1, "max": "x"}}, "locked_graphics_clocks.max: a clock in MHz"),
    ({"gpus": "all", "locked_graphics_clocks": {"min": 2, "max": 1}}, "min (2 MHz) is above max (1 MHz)"),
    ({"gpus": "all", "locked_graphics_clocks": {"min": 1, "max": 2},
      "application_clocks": {"memory": 1, "graphics": 1}}, "locked clocks replace application clocks"),
])
def test_errors_name_the_place(entry: t.Any, told: str) -> None:
    assert told in error(entry)


def test_locked_and_application_clocks_of_different_entries_are_refused_too() -> None:
    told = error({"gpus": "all", "locked_memory_clocks": {"min": 1, "max": 2}},
                 {"gpus": ["0"], "application_clocks": {"memory": 1, "graphics": 1}})
    assert told.startswith("entries[1]: application_clocks and locked clocks")


def test_not_a_list() -> None:
    for wrong in ({"gpus": "all"}, "all", [{"gpus": "all", "ecc": True}] * 257):
        with pytest.raises(InputError, match="a list of at most 256 entries"):
            declared.parse(wrong)
    with pytest.raises(InputError, match="entries: the declaration is missing"):
        declared.parse(None)
