# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of the table of GPUs, compared with values transcribed from the sources that it names."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import (
    _GENERATIONS,
    MODELS,
    architecture_of,
    generation_of,
    model_of,
)


@pytest.mark.parametrize(
    ("device", "subsystem", "name", "architecture", "mig", "last_branch", "modules"),
    [
        ("102d", None, "Tesla K80", "kepler", False, 470, "no"),
        ("13f2", None, "Tesla M60", "maxwell", False, 580, "no"),
        ("15f8", None, "Tesla P100-PCIE-16GB", "pascal", False, 580, "no"),
        ("1db5", None, "Tesla V100-SXM2-32GB", "volta", False, 580, "no"),
        ("1EB8", "10de:12a2", "Tesla T4", "turing", False, None, "optional"),
        ("1e30", "1028:129e", "Quadro RTX 8000", "turing", False, None, "optional"),
        ("1e30", "10de:12ba", "Quadro RTX 6000", "turing", False, None, "optional"),
        ("25b6", "10de:14a9", "NVIDIA A16", "ampere", False, None, "optional"),
        ("25b6", "10de:157E", "NVIDIA A2", "ampere", False, None, "optional"),
        ("25b6", None, None, "ampere", False, None, "optional"),
        ("20b7", "10de:1532", "NVIDIA A30", "ampere", True, None, "optional"),
        ("20b0", None, "NVIDIA A100-SXM4-40GB", "ampere", True, None, "optional"),
        ("20b2", "10de:1463", "NVIDIA A100-SXM4-80GB", "ampere", True, None, "optional"),
        ("20b2", "10de:1625", "NVIDIA PG509-210", "ampere", True, None, "optional"),
        ("26b9", "10de:1851", "NVIDIA L40S", "ada-lovelace", False, None, "optional"),
        ("2330", "10de:16c1", "NVIDIA H100 80GB HBM3", "hopper", True, None, "optional"),
        ("2335", "10de:18be", "NVIDIA H200", "hopper", True, None, "optional"),
        ("2342", "10de:1809", "NVIDIA GH200 480GB", "hopper", True, None, "required"),
        ("2342", "10de:16eb", "NVIDIA GH200 120GB", "hopper", True, None, "required"),
        ("2901", "10de:1999", "NVIDIA B200", "blackwell", True, None, "required"),
        ("2bb3", "103c:227a", "NVIDIA RTX PRO 5000 72GB Blackwell", "blackwell", True, None, "required"),
        ("2bb3", "1234:227a", "NVIDIA RTX PRO 5000 Blackwell", "blackwell", True, None, "required"),
        ("2e12", "10de:21ec", "NVIDIA GB10", "blackwell", False, None, "required"),
    ],
)
def test_model(device: str, subsystem: str | None, name: str | None, architecture: str, mig: bool,
               last_branch: int | None, modules: str) -> None:
    """The name, the generation and the properties that follow from it."""
    model = model_of(device, subsystem)
    assert model is not None
    assert (model.name, model.architecture, model.mig_capable, model.last_branch, model.open_modules) == (
        name, architecture, mig, last_branch, modules)


@pytest.mark.parametrize(("device", "fabric", "coherent"), [
    ("1db5", "none", False), ("20b2", "nvswitch", False), ("20b5", "none", False), ("2330", "nvswitch", False),
    ("2331", "none", False), ("2329", "nvswitch", False), ("2342", "none", True), ("2348", "none", True),
    ("2920", "nvlink5", False), ("2901", "nvlink5", False), ("3182", "nvlink5", False),
    ("2941", "nvlink5_rack", True), ("31c2", "nvlink5_rack", True), ("31c3", "none", True), ("2bb5", "none", False),
])
def test_fabric(device: str, fabric: str, coherent: bool) -> None:
    """Which switches a board can have, and whether it shares memory with a CPU."""
    model = model_of(device)
    assert model is not None
    assert (model.fabric, model.coherent) == (fabric, coherent)
    assert not coherent or model.open_modules == "required"


@pytest.mark.parametrize(("device", "memory", "first"), [
    ("20b7", 24576, "460.73.01"), ("20b2", 81920, "450.80.02"), ("2330", 81559, "525.85.12"),
    ("2335", 143771, "550.90.07"), ("2901", 183359, "570.133.20"), ("3182", 275040, "580.95.05"),
    ("26b9", 46068, "535"), ("1db1", None, "384"), ("20b3", None, None),
])
def test_memory_and_first_driver(device: str, memory: int | None, first: str | None) -> None:
    """Total memory and minimum driver versions."""
    model = model_of(device)
    assert model is not None
    assert (model.memory_mib, model.first_driver) == (memory, first)


def test_unknown_id() -> None:
    """An id that is in no list is no model, whatever its subsystem id."""
    assert model_of("ffff") is None
    assert model_of("ffff", "10de:1463") is None


@pytest.mark.parametrize(("device", "generation"), [
    ("2206", "ampere"), ("1b06", "pascal"), ("1d81", "volta"), ("2702", "ada-lovelace"), ("2d04", "blackwell"),
    ("13c0", "maxwell"), ("1f02", "turing"), ("2336", "hopper"), ("20b2", "ampere"), ("3fff", None), ("06c0", None),
    ("", None),
])
def test_generation(device: str, generation: str | None) -> None:
    """GPUs that are in no table:"""
    assert generation_of(device) == generation


def test_table_and_ranges_agree() -> None:
    """The ranges give the same result for every device of the table."""
    for model in MODELS.values():
        number = int(model.device_id, 16)
        assert [name for first, last, name in _GENERATIONS if first <= number <= last] == [model.architecture]


@pytest.mark.parametrize(("capability", "name"), [
    ((3, 7), "kepler"), ((7, 0), "volta"), ((7, 5), "turing"), ((8, 0), "ampere"), ((8, 6), "ampere"),
    ((8, 9), "ada-lovelace"), ((9, 0), "hopper"), ((10, 3), "blackwell"), ((12, 1), "blackwell"),
    ((99, 0), "undefined"),
])
def test_architecture(capability: tuple[int, int], name: str) -> None:
    """Maps a compute capability to an architecture."""
    assert architecture_of(*capability) == name


def test_no_row_lost() -> None:
    """Every id of the sources exists once; exceptions belong to a device that also has a default."""
    devices = {key for key in MODELS if ":" not in key}
    assert len(devices) == 81
    assert {key[:4] for key in MODELS} == devices
    assert all(model.device_id in devices for model in MODELS.values())
