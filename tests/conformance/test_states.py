# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layouts that were captured with the vendor's tools, recreated by NVML calls, and where the driver places instances by
default.

A file in states/ has the facts of a captured state: which GPUs have MIG enabled, the placement of each profile, and the
slices of its compute instances.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from ctypes import byref, c_uint, c_void_p
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance import nvml
from tests.conformance.conftest import Machine
from tests.conformance.tables import published

Make = Callable[..., Machine]
STATES = sorted((Path(__file__).parent / "states").glob("*.yaml"))
CI_ENUM = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
FILL = """
while True:
    try:
        library.handle("GpuInstanceCreateComputeInstance", library.create(gpus[0], 19), 0)
    except NvmlError as error:
        assert error.code == INSUFFICIENT_RESOURCES
        break
    print("made")
"""
# A change that another process's write undid would be missed or come back here.
TURN = """
mine = gpus[int(sys.argv[2])]
for turn in range(150):
    for start in 0, 4:
        library.create(mine, 9, start)
    found = library.instances(mine)
    assert sorted(info.placement.start for _ignored, info in found) == [0, 4], turn
    for handle, _ignored in found:
        library.call("GpuInstanceDestroy", handle)
    assert not library.instances(mine), turn
"""


def wanted_layout(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs of a state file, one entry for each."""
    gpus = []
    for entry in state["gpus"]:
        gpus += [{"mig": entry["mig"], "instances": entry.get("instances", [])}] * entry["count"]
    return gpus


def apply_layout(library: nvml.Nvml, layout: list[dict[str, Any]]) -> None:
    """Creates a layout on a fresh machine by NVML calls."""
    for gpu, wanted in zip(library.gpus(), layout):
        if not wanted["mig"]:
            continue
        assert library.set_mig_mode(gpu, 1) == 0
        ids = library.profile_ids(gpu)
        for row in wanted["instances"]:
            instance = library.create(gpu, ids[row["profile"]], row["start"])
            for slices in row["compute"]:
                library.handle("GpuInstanceCreateComputeInstance", instance, CI_ENUM[slices])


def read_layout(library: nvml.Nvml) -> list[dict[str, Any]]:
    """The current layout, in the form of L(wanted_layout)."""
    layout = []
    for gpu in library.gpus():
        current, pending = library.mig_mode(gpu)
        assert current == pending
        names = {number: name for name, number in library.profile_ids(gpu).items()}
        rows = []
        for handle, info in library.instances(gpu):
            slices = {value: key for key, value in CI_ENUM.items()}
            compute = [slices[ci.profileId] for _ignored, ci in library.compute_instances(handle)]
            rows.append({"profile": names[info.profileId], "start": info.placement.start, "compute": compute})
        layout.append({"mig": bool(current), "instances": sorted(rows, key=lambda row: row["start"])})
    return layout


def mig_devices(library: nvml.Nvml, gpu: c_void_p) -> list[c_void_p]:
    """The handles of the MIG devices of a GPU."""
    found = []
    for index in range(library.number("DeviceGetMaxMigDeviceCount", gpu)):
        try:
            found.append(library.handle("DeviceGetMigDeviceHandleByIndex", gpu, index))
        except nvml.NvmlError as error:
            assert error.code == nvml.NOT_FOUND
    return found


@pytest.mark.parametrize("path", STATES, ids=[path.stem for path in STATES])
def test_captured_states(path: Path, machine: Make) -> None:
    state = yaml.safe_load(path.read_text(encoding="utf-8"))
    layout = wanted_layout(state)
    host = machine("--driver", state["driver"], f"{state['model']}={len(layout)}")
    with host.nvml.session() as library:
        apply_layout(library, layout)
        assert read_layout(library) == layout
        assert library.text("SystemGetDriverVersion") == state["driver"]
        devices = [mig_devices(library, gpu) for gpu in library.gpus()]
        assert [len(row) for row in devices] == [sum(len(i["compute"]) for i in gpu["instances"]) for gpu in layout]
        uuids = [library.text("DeviceGetUUID", device) for row in devices for device in row]
        assert len(set(uuids)) == len(uuids)
        for uuid in uuids:
            device = library.handle("DeviceGetHandleByUUID", uuid.encode())
            assert library.number("DeviceIsMigDeviceHandle", device) == 1
            assert library.text("DeviceGetUUID", device) == uuid
    # Another process, and a machine made from the printed state, see the same.
    shown = host.sim("show")
    copy = host.state.with_name("copy")
    copy.write_text(shown, encoding="utf-8")
    host.sim("load", str(copy))
    assert shown.splitlines()[1:] == host.sim("show").splitlines()[1:]
    with host.nvml.session() as library:
        assert read_layout(library) == layout


def test_states_without_our_own_lines_load(machine: Make) -> None:
    """The captured files have only the lines driver, nvml, cuda, gpu, gi and ci; their profile is the enum."""
    host = machine("a30=1")
    text = (
        "driver 570.172.08\nnvml 12.570.172.08\ncuda 12080\n"
        "gpu 0|NVIDIA A100-SXM4-80GB|GPU-0|00000000:07:00.0|165|0|81920|1|1|1|0|0\ngi 0 1 2 0 4\nci 0 1 0 0 0 1\n"
    )
    path = host.state.with_name("plain")
    path.write_text(text, encoding="utf-8")
    host.sim("load", str(path))
    with host.nvml.session() as library:
        assert read_layout(library) == [
            {"mig": True, "instances": [{"profile": "3g.40gb", "start": 0, "compute": [1]}]}
        ]
        assert library.text("DeviceGetName", mig_devices(library, library.gpus()[0])[0]).endswith("MIG 1c.3g.40gb")


OBSERVED = published()["placements"]


@pytest.mark.parametrize("seen", OBSERVED, ids=[f"{i}-{row['board']}" for i, row in enumerate(OBSERVED)])
def test_observed_placements(seen: dict[str, Any], machine: Make) -> None:
    host = machine(f"{seen['board']}{':swapped' if seen['swapped'] else ''}=1")
    ids: list[Any] = []
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        library.set_mig_mode(gpu, 1)
        for profile in seen["create"]:
            try:
                ids.append(library.fill(nvml.GiInfo, "GpuInstanceGetInfo", library.create(gpu, profile)).id)
            except nvml.NvmlError as error:
                assert error.code == nvml.INSUFFICIENT_RESOURCES
                ids.append("none")
    assert ids == seen["ids"]


def test_compute_instance_tables(machine: Make) -> None:
    """Rows and placements by the slices of the GPU instance on an A100, and the wide 1-slice profile of Hopper."""
    rows = published()["compute_instances"]
    host = machine("a100-80=1", "h100-80=1")
    with host.nvml.session() as library:
        for gpu in library.gpus():
            library.set_mig_mode(gpu, 1)
        a100, h100 = sorted(library.gpus(), key=lambda gpu: library.text("DeviceGetName", gpu))
        for profile in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"):
            instance = library.create(a100, library.profile_ids(a100)[profile])
            assert compute_rows(library, instance) == rows[int(profile[0])]
            library.call("GpuInstanceDestroy", instance)
        wide = library.create(h100, 15)
        assert compute_rows(library, wide) == [*rows[1], "7 x1 0:1"]
        counts = [
            library.fill(
                nvml.CiProfileInfo, "GpuInstanceGetComputeInstanceProfileInfo", wide, profile, 0
            ).multiprocessorCount
            for profile in (0, 7)
        ]
        assert counts == [16, 26]


def compute_rows(library: nvml.Nvml, instance: c_void_p) -> list[str]:
    """The compute instance profiles of a GPU instance, in the form of published.yaml."""
    rows = []
    for profile in range(nvml.CI_PROFILES):
        try:
            info = library.fill(nvml.CiProfileInfo, "GpuInstanceGetComputeInstanceProfileInfo", instance, profile, 0)
        except nvml.NvmlError as error:
            assert error.code == nvml.NOT_SUPPORTED
            continue
        places = (nvml.Placement * 8)()
        count = c_uint(8)
        library.call("GpuInstanceGetComputeInstancePossiblePlacements", instance, profile, places, byref(count))
        starts = ",".join(str(place.start) for place in places[: count.value])
        rows.append(f"{info.id} x{info.instanceCount} {starts}:{places[0].size}")
    return rows


def at_once(host: Machine, script: str, count: int) -> list[str]:
    """Runs a script in several processes, which start together when the last one is ready; returns their outputs."""
    gate = host.state.with_name("gate")
    whole = f"""
import sys, time
from pathlib import Path
from tests.conformance.nvml import Nvml, NvmlError, INSUFFICIENT_RESOURCES
with Nvml(Path(sys.argv[1])).session() as library:
    gpus = library.gpus()
    print("ready", flush=True)
    while not Path({str(gate)!r}).exists():
        time.sleep(0.001)
{textwrap.indent(script, "    ")}"""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", whole, str(host.folder), str(number)],
            env=host.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    gate.touch()
    results = [process.communicate() for process in running]
    assert [error for _ignored, error in results if error] == []
    return [output for output, _ignored in results]


def test_processes_fill_one_gpu_and_never_overlap(machine: Make) -> None:
    host = machine("a100-80=1")
    with host.nvml.session() as library:
        library.set_mig_mode(library.gpus()[0], 1)
        assert sum(output.count("made") for output in at_once(host, FILL, 6)) == 7
        layout = read_layout(library)
    assert [(row["start"], row["compute"]) for row in layout[0]["instances"]] == [(start, [1]) for start in range(7)]


def test_processes_do_not_undo_each_other(machine: Make) -> None:
    host = machine("a100-80=4")
    with host.nvml.session() as library:
        for gpu in library.gpus():
            library.set_mig_mode(gpu, 1)
    at_once(host, TURN, 4)


MIG_BOARDS = [name for name, board in published()["boards"].items() if board["profiles"]]


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_each_profile_can_be_made_as_often_as_published(board: str, machine: Make) -> None:
    host = machine(f"{board}=1")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        library.set_mig_mode(gpu, 1)
        for name, row in published()["boards"][board]["profiles"].items():
            made = []
            for left in range(row["instances"], 0, -1):
                assert library.number("DeviceGetGpuInstanceRemainingCapacity", gpu, row["id"]) == left, name
                made.append(library.create(gpu, row["id"]))
            with pytest.raises(nvml.NvmlError) as error:
                library.create(gpu, row["id"])
            assert error.value.code == nvml.INSUFFICIENT_RESOURCES
            for instance in made:
                library.call("GpuInstanceDestroy", instance)


def test_media_engines_exclude_each_other(machine: Make) -> None:
    """According to nvml.h, an instance with all media engines fits only beside instances without any."""
    host = machine("rtxpro6000=1")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        library.set_mig_mode(gpu, 1)
        ids = library.profile_ids(gpu)
        library.create(gpu, ids["1g.24gb+me.all"])
        assert library.number("DeviceGetGpuInstanceRemainingCapacity", gpu, ids["1g.24gb"]) == 0
        assert library.number("DeviceGetGpuInstanceRemainingCapacity", gpu, ids["1g.24gb-me"]) == 3
        library.create(gpu, ids["1g.24gb-me"])
