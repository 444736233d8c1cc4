# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares the device tables with the published values, through the interface of the library."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.nvml.build import HERE, build
from tests.conformance import nvml
from tests.conformance.conftest import Machine
from tests.conformance.tables import Board, differences, published, read_ctypes

PUBLISHED = published()
BOARDS = list(PUBLISHED["boards"])
Make = Callable[..., Machine]


def by_model(boards: list[Board]) -> dict[str, Board]:
    """Maps models to boards."""
    models: dict[str, str] = {board["name"]: model for model, board in PUBLISHED["boards"].items()}
    return {models.get(str(board["name"]), "?"): board for board in boards}


def one_of_each(machine: Make, **options: Any) -> Machine:
    return machine(*[f"{model}=1" for model in BOARDS], **options)


def through_ctypes(host: Machine) -> dict[str, Board]:
    with host.nvml.session() as library:
        return by_model(read_ctypes(library))


def through_pynvml(host: Machine) -> dict[str, Board]:
    result = host.run(sys.executable, "-m", "tests.conformance.tables")
    assert result.returncode == 0, result.stderr
    return by_model(json.loads(result.stdout))


@pytest.mark.parametrize("read", [through_ctypes, through_pynvml])
def test_boards_are_as_published(machine: Make, read: Callable[[Machine], dict[str, Board]]) -> None:
    got = read(one_of_each(machine))
    assert sorted(got) == sorted(BOARDS)
    wrong = {model: differences(PUBLISHED["boards"][model], got[model]) for model in BOARDS}
    assert not any(wrong.values()), wrong


def test_what_is_not_published_is_plausible(machine: Make) -> None:
    """The few values that had to be assumed exist and are plausible, so that none reads as zero."""
    for board in through_ctypes(one_of_each(machine)).values():
        for name, row in board["profiles"].items():
            assert 0 < row["mib"] < board["memory_mib"] and row["sm"] > 0 and row["ce"] > 0, (board["name"], name, row)


# model: (row, key, wrong value, what the comparison must say)
MUTATIONS = {
    "a100-80": (4, "starts", [4, 0], "3g.40gb placements"),
    "a100-40": (0, "ce", 9, "1g.5gb ce"),
    "h100-80": (0, "id", 8, "1g.10gb id"),
    "b200": (3, "memory_mib", 45313, "2g.45gb mib"),
    "a30": (1, "instances", 3, "1g.6gb+me instances"),
    "h200": (4, "name", "3g.72gb", "profile 3g.72gb is not published"),
    "rtxpro6000": (5, "size", 5, "2g.48gb placements"),
}


def test_the_comparison_sees_a_changed_table(machine: Make, tmp_path: Path) -> None:
    tables = json.loads((HERE / "boards.json").read_text(encoding="utf-8"))
    for board in tables["boards"]:
        if board["model"] in MUTATIONS:
            number, key, value, _ignored = MUTATIONS[board["model"]]
            assert board["profiles"][number][key] != value
            board["profiles"][number][key] = value
    changed = tmp_path / "boards.json"
    changed.write_text(json.dumps(tables), encoding="utf-8")
    got = through_ctypes(one_of_each(machine, folder=build(changed)))
    for model in BOARDS:
        found = differences(PUBLISHED["boards"][model], got[model])
        if model in MUTATIONS:
            assert any(line.startswith(MUTATIONS[model][3]) for line in found), (model, found)
        else:
            assert found == []


def test_structure_sizes(tmp_path: Path) -> None:
    """Compares our structures in C and in ctypes with the published ones."""
    sizes: dict[str, int] = PUBLISHED["sizes"]
    prints = "\n".join(f'printf("%zu ", sizeof({name}));' for name in sizes)
    source = tmp_path / "sizes.c"
    source.write_text(f'#include <stdio.h>\n#include "abi.h"\nint main(void) {{ {prints} }}\n', encoding="utf-8")
    subprocess.run(["gcc", f"-I{HERE}", str(source), "-o", str(tmp_path / "sizes")], check=True)
    output = subprocess.run([str(tmp_path / "sizes")], capture_output=True, text=True, check=True).stdout
    assert dict(zip(sizes, map(int, output.split()))) == sizes
    assert {name: ctypes.sizeof(getattr(nvml, name)) for name in sizes} == sizes


@pytest.mark.parametrize(
    ("structure", "call", "version"),
    [
        (nvml.MemoryV2, "DeviceGetMemoryInfo_v2", 2),
        (nvml.PciInfoExt, "DeviceGetPciInfoExt", 1),
        (nvml.FabricInfoV2, "DeviceGetGpuFabricInfoV", 2),
        (nvml.FabricInfoV3, "DeviceGetGpuFabricInfoV", 3),
        (nvml.GiProfileInfoV2, "DeviceGetGpuInstanceProfileInfoV", 2),
        (nvml.GiProfileInfoV3, "DeviceGetGpuInstanceProfileInfoV", 3),
    ],
)
def test_version_words(structure: type[ctypes.Structure], call: str, version: int, machine: Make) -> None:
    host = machine("h100-80=8")
    with host.nvml.session() as library:
        profile = [0] if "Profile" in call else []
        gpu = library.gpus()[0]
        library.fill(structure, call, gpu, *profile, version=version)
        for wrong in (0, version + 7):
            with pytest.raises(nvml.NvmlError) as error:
                library.fill(structure, call, gpu, *profile, version=wrong)
            assert error.value.code == nvml.ARGUMENT_VERSION_MISMATCH


def test_every_symbol_of_pynvml_is_exported(nvml_folder: Path) -> None:
    import pynvml

    library = ctypes.CDLL(str(nvml_folder / "libnvidia-ml.so.1"))
    source = Path(pynvml.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source)) | set(
        (HERE / "symbols.txt").read_text().split()
    )
    assert len(names) >= 408
    assert [name for name in sorted(names) if not hasattr(library, name)] == []


def test_calls_that_are_not_simulated_say_so(machine: Make) -> None:
    host = machine("t4=1")
    assert host.nvml.library.nvmlDeviceGetFanSpeed_v2(None, 0, None) == nvml.UNINITIALIZED
    with host.nvml.session() as library, pytest.raises(nvml.NvmlError) as error:
        library.call("DeviceGetFanSpeed_v2", library.gpus()[0], 0, None)
    assert error.value.code == nvml.NOT_SUPPORTED
