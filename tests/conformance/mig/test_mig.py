# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""mig_config on simulated GPUs, through pynvml: tables, layouts of each board, calls, faults."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import _boards, _work
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml

from tests.conformance.conftest import ROOT, Machine

Make = Callable[..., Machine]
BOARDS = [board for board in json.loads((ROOT / "lab/nvml/boards.json").read_text())["boards"] if board["profiles"]]
MODELS = [board["model"] for board in BOARDS]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml_folder: Path) -> None:
    """A journal of the test's own, and the machine's nvidia-smi for resets."""
    monkeypatch.setattr(_work, "Journal", lambda concern, readonly: Journal(concern, str(tmp_path / "j"), readonly))
    monkeypatch.setenv("PATH", f"{nvml_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_folder))


def go(selected: str | None, state: str = "present", config: Any = None) -> dict[str, Any]:
    """One run of the module's work at gpu_disruption idle."""
    with Nvml() as nvml:
        return _work.Work(_work.Request(state, config, selected, None, "idle", False), nvml).run()


def devices(host: Machine) -> list[dict[str, int]]:
    """What the simulator itself says: by GPU, GPU instance profile enums by count; a dash for MIG off."""
    found: list[dict[str, int]] = []
    for line in host.sim("show").splitlines():
        if line.startswith("gpu "):
            found.append({} if line.split("|")[8] == "1" else {"-": 1})
        elif line.startswith("gi "):
            profile = line.split()[3]
            found[-1][profile] = found[-1].get(profile, 0) + 1
    return found


@pytest.mark.parametrize("model", MODELS)
def test_tables_are_what_the_device_reports(machine: Make, model: str) -> None:
    """Plans made before a driver name the same profiles, ids and placements as plans made with it."""
    machine(f"{model}=1")
    with Nvml() as nvml:
        device = nvml.devices()[0]
        reported = nvml.profiles(device)
    assert sorted(reported) == sorted(_boards.profiles_of(device.device_id) or [])


@pytest.mark.parametrize("board", BOARDS, ids=MODELS)
def test_each_layout_after_each_other(machine: Make, board: dict[str, Any]) -> None:
    host = machine(f"{board['model']}=1")
    for profile in [*board["profiles"], *reversed(board["profiles"])]:
        name = f"all-{profile['name'].replace('+', '.')}"
        go(name)
        assert devices(host) == [{str(profile["enum"]): profile["instances"]}], name
        assert go(name)["changed"] is False
        go("all-balanced")
        enums = collections.Counter(line.split()[3] for line in host.sim("show").splitlines() if line.startswith("gi "))
        assert enums == ({"0": 2, "1": 1, "2": 1} if board["units"] == 8 else {"0": 2, "1": 1})
    go(None, state="absent")
    assert devices(host) == [{"-": 1}]


def calls(path: Path) -> int:
    """Calls since the last time."""
    count = len(path.read_text().splitlines())
    path.write_text("")
    return count


def test_calls_are_few(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against mig-parted 0.15 on the same eight GPUs: 1575 and 5391 calls to apply, 885 to find nothing to do."""
    machine("a100-80=8")
    trace = tmp_path / "trace"
    monkeypatch.setenv("GPUSIM_TRACE", str(trace))
    go("all-1g.10gb")
    assert calls(trace) < 0.2 * 1575
    assert go("all-1g.10gb")["changed"] is False
    assert calls(trace) < 0.3 * 885
    go("all-disabled")
    calls(trace)
    go("all-balanced")
    assert calls(trace) < 0.2 * 5391


def test_a_gpu_that_fits_sees_no_write(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("a100-80=2")
    go("all-3g.40gb")
    trace = tmp_path / "trace"
    monkeypatch.setenv("GPUSIM_TRACE", str(trace))
    go("all-3g.40gb")
    assert not [line for line in trace.read_text().splitlines() if any(
        word in line for word in ("Create", "Destroy", "Set", "RunningProcesses"))]


def test_an_instance_destroyed_by_hand_comes_back_alone(machine: Make) -> None:
    host = machine("a100-80=2")
    before = go("all-1g.10gb")["after"]
    uuids = host.run("nvidia-smi", "-L").stdout
    for words in (("-dci", "-i", "1", "-gi", "9"), ("-dgi", "-i", "1", "-gi", "9")):
        assert host.run("nvidia-smi", "mig", *words).returncode == 0
    result = go("all-1g.10gb")
    assert [step["id"] for step in result["plan"]] == ["create MIG instances: 0000:0f:00.0 1g.10gb at 2"]
    assert (result["after"], host.run("nvidia-smi", "-L").stdout) == (before, uuids)


@pytest.mark.parametrize("fault, words", [
    (("create-fails-at", "0", "5"), "INSUFFICIENT_RESOURCES"),
    (("destroy-in-use", "0"), "IN_USE"),
    (("no-permission", "0"), "NO_PERMISSION. This needs root"),
    (("gpu-lost", "0"), "GPU_IS_LOST"),
])
def test_a_fault_is_named_and_nothing_is_half_done(machine: Make, fault: tuple[str, ...], words: str) -> None:
    host = machine("a100-80=2")
    go("all-3g.40gb")
    before = devices(host)
    host.sim("fault", "set", *fault)
    with pytest.raises(GpuopsError) as caught:
        go("all-1g.10gb")
    assert words in str(caught.value)
    assert devices(host) == before
    host.sim("fault", "clear")
    go("all-1g.10gb")
    assert devices(host) == [{"0": 7}, {"0": 7}]


def test_a_pending_mode_is_finished_by_a_reset(machine: Make) -> None:
    host = machine("a100-80=1")
    host.sim("fault", "set", "mode-pending", "0")
    go("all-3g.40gb")
    assert devices(host) == [{"2": 2}]


def test_a_refused_reset_leaves_no_pending_mode(machine: Make) -> None:
    host = machine("a100-80=1")
    host.sim("fault", "set", "mode-pending", "0")
    host.sim("fault", "set", "reset-fails", "0")
    with pytest.raises(GpuopsError, match="waits for a reset"):
        go("all-3g.40gb")
    with Nvml() as nvml:
        assert nvml.mode(nvml.devices()[0]) == (False, False)


def test_a_busy_instance_waits(machine: Make) -> None:
    host = machine("a100-80=1")
    go("all-1g.10gb")
    host.sim("client", "add", "--pid", "4242", "--gpu", "0", "--gi", "13", "--ci", "0", "job")
    result = go("all-balanced")
    assert result["pending"][0]["id"] == "stop GPU clients: 0000:07:00.0 job (4242)"
    assert devices(host) == [{"0": 7}]
    host.sim("client", "remove", "all")
    go("all-balanced")
    assert devices(host) == [{"0": 2, "1": 1, "2": 1}]
