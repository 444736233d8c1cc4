# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""mig_config on simulated GPUs, through pynvml: tables, layouts of each board, calls, faults."""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, shown, work
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml

from tests.conformance.conftest import ROOT, Machine
from tests.conformance.tables import published

Make = Callable[..., Machine]
BOARDS = {model: board for model, board in published()["boards"].items() if board["mig"]}
NAMES = yaml.safe_load((ROOT / "tests/unit/mig/published_layouts.yml").read_text())["layouts"]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml_folder: Path) -> None:
    """Gives each test a journal of its own, and the nvidia-smi of the machine for resets."""
    monkeypatch.setattr(work, "Journal", lambda concern, readonly: Journal(concern, str(tmp_path / "j"), readonly))
    monkeypatch.setattr(work, "Root", lambda: Root(str(tmp_path)))
    monkeypatch.setenv("PATH", f"{nvml_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_folder))


def go(selected: str | None, state: str = "present", config: Any = None, checkpoint: Any = None,
       devices: list[str] | None = None, check: bool = False, level: str = "idle") -> dict[str, Any]:
    """One run of the module's work."""
    kind = shown.ReadOnlyRun if state == "gathered" else work.MigRun
    with Nvml() as nvml:
        return kind(work.Request(state, config, selected, devices, level, check, checkpoint), nvml).run()


def devices(host: Machine) -> list[dict[str, int]]:
    """The state according to the simulator: for each GPU, the counts of its GPU instance profile enums; a dash for MIG
    off."""
    found: list[dict[str, int]] = []
    for line in host.sim("show").splitlines():
        if line.startswith("gpu "):
            found.append({} if line.split("|")[8] == "1" else {"-": 1})
        elif line.startswith("gi "):
            profile = line.split()[3]
            found[-1][profile] = found[-1].get(profile, 0) + 1
    return found


@pytest.mark.parametrize("model", BOARDS)
def test_tables_are_what_the_device_reports(machine: Make, model: str) -> None:
    """Plans that are made without a driver have the same profiles, ids and placements as plans that are made with
    it."""
    machine(f"{model}=1")
    with Nvml() as nvml:
        device = nvml.devices()[0]
        reported = nvml.profiles(device, False)
    assert sorted(reported) == sorted(boards.profiles_of(device.device_id) or [])


def layouts_of(board: dict[str, Any]) -> dict[str, dict[str, int]]:
    """All layouts of a board that have a published name, and one instance of each profile, as counts by profile."""
    found = {f"all-{name.replace('+', '.')}": {name: row["instances"]} for name, row in board["profiles"].items()}
    for name, rows in NAMES.items():
        for devices, text in rows.items():
            counts = {one: int(count) for one, count in (row.split(" x ") for row in text.split(", ") if " x " in row)}
            if board["device"] in devices.split() or devices == "any" and counts and set(counts) <= set(
                    board["profiles"]):
                found[name] = counts
    return found


def lies(host: Machine) -> list[tuple[str, int, int]]:
    """The GPU instances of the only GPU as (profile enum, first unit, units), according to the simulator."""
    rows = [line.split() for line in host.sim("show").splitlines() if line.startswith("gi ")]
    return [(row[3], int(row[4]), int(row[5])) for row in rows]


@pytest.mark.parametrize("model", BOARDS)
def test_each_layout_after_each_other(machine: Make, model: str) -> None:
    """The placements of the instances are compared with the published placements of the board."""
    host, profiles = machine(f"{model}=1"), BOARDS[model]["profiles"]
    layouts = layouts_of(BOARDS[model])
    assert len(layouts) > len(profiles), "there is all-balanced too"
    for name in [*layouts, *reversed(layouts)]:
        go(name)
        found = lies(host)
        counts = collections.Counter(enum for enum, _start, _size in found)
        assert counts == {str(profiles[one]["enum"]): count for one, count in layouts[name].items()}, name
        cells = [cell for _enum, start, size in found for cell in range(start, start + size)]
        assert len(cells) == len(set(cells)), name
        for one, count in layouts[name].items():
            places = [tuple(place) for place in profiles[one]["placements"]]
            taken = [(start, size) for enum, start, size in found if enum == str(profiles[one]["enum"])]
            assert set(taken) <= set(places), (name, taken)
            if count == len(places):
                assert sorted(taken) == sorted(places), name
        with Nvml() as nvml:
            assert {(item.profile.enum, item.start) for item in nvml.instances(nvml.devices()[0])} == {
                (int(enum), start) for enum, start, _size in found}
        assert go(name)["changed"] is False
    go(None, state="absent")
    assert devices(host) == [{"-": 1}]


OLD, NEW = "535.309.01", "570.172.08"


def ids(result: dict[str, Any]) -> list[str]:
    return [step["id"] for step in result["plan"]]


@pytest.mark.parametrize("model", BOARDS)
def test_a_driver_before_r550_gives_the_same_layouts(machine: Make, model: str) -> None:
    """Each layout from MIG off, where this driver does not tell the profiles."""
    host = machine(f"{model}=1")
    for name in layouts_of(BOARDS[model]):
        host.sim("driver", NEW)
        planned = go(name, check=True)
        host.sim("driver", OLD)
        check, run = go(name, check=True), go(name)
        assert ids(planned) == ids(check) == ids(run) and check["plan"] == run["plan"], name
        assert planned["diff"] == check["diff"] == run["diff"] and run["diff"]
        assert planned["after"] == check["after"] == run["after"]
        assert go(name)["changed"] is False
        host.sim("driver", NEW)
        assert go(name)["changed"] is False
        host.sim("driver", OLD)
        assert go("all-disabled")["changed"] is True
    assert go(None, state="absent")["changed"] is False


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_some_gpus_of_a_host_are_cut_with_a_driver_before_r550(machine: Make, cut: int) -> None:
    host = machine("a100-80=3", "a30=1")  # the A30 is GPU 2
    host.sim("driver", OLD)
    go("all-1g.10gb", devices=[str(cut)])
    stand = [{"0": 7} if number == cut else {"-": 1} for number in range(4)]
    assert devices(host) == stand
    gathered = go(None, state="gathered")
    assert [entry["enabled"] for entry in gathered["before"].values()] == [number == cut for number in range(4)]
    assert go(None, config=gathered["config"])["changed"] is False
    run = go("all-balanced")
    large = {"0": 2, "1": 1, "2": 1}
    assert devices(host) == [large, large, {"0": 2, "1": 1}, large]
    assert len(run["kept"]) == 2 and go("all-balanced")["changed"] is False
    go("all-disabled", devices=["1"])
    assert go("all-disabled")["changed"] is True
    assert devices(host) == [{"-": 1}] * 4


@pytest.mark.parametrize("driver", [OLD, NEW])
@pytest.mark.parametrize("count", ["1", "7"])
def test_an_a30_whose_driver_miscounts_its_instances(machine: Make, driver: str, count: str) -> None:
    host, board = machine("a30=2"), BOARDS["a30"]
    host.sim("driver", driver)
    host.sim("fault", "set", "profile-counts", "all", count)
    for name, wanted in layouts_of(board).items():
        go(name)
        assert devices(host) == [{str(board["profiles"][one]["enum"]): many for one, many in wanted.items()}] * 2, name
        assert go(name)["changed"] is False


@pytest.mark.parametrize("driver", [OLD, NEW])
def test_a_mode_that_only_a_reboot_applies(machine: Make, driver: str) -> None:
    host = machine("a100-80=2")
    host.sim("driver", driver)
    host.sim("fault", "set", "reboot-only", "1")
    with pytest.raises(GpuopsError, match="Not Supported.*set disruption to reboot.*is restored"):
        go("all-1g.10gb")
    assert devices(host) == [{"0": 7}, {"-": 1}]
    run = go("all-1g.10gb", level="reboot")
    assert run["reboot_required"] and devices(host) == [{"0": 7}, {"-": 1}]
    assert go("all-1g.10gb", level="reboot")["changed"] is False
    host.sim("reload")
    assert go("all-1g.10gb", level="reboot")["reboot_required"] is False
    assert devices(host) == [{"0": 7}] * 2 and go("all-1g.10gb")["changed"] is False


@pytest.mark.parametrize("model", BOARDS)
def test_what_is_kept_keeps_its_uuid(machine: Make, model: str) -> None:
    host = machine(f"{model}=1")
    smallest = min(BOARDS[model]["profiles"].items(), key=lambda row: (row[1]["enum"], row[0]))[0]
    go(f"all-{smallest}")
    before = set(re.findall(r"MIG-[0-9a-f-]+", host.run("nvidia-smi", "-L").stdout))
    result = go("all-balanced")
    after = set(re.findall(r"MIG-[0-9a-f-]+", host.run("nvidia-smi", "-L").stdout))
    assert len(result["kept"]) == 2 and len(before & after) >= 2
    assert len(after) == 2 + len(result["created"])


@pytest.mark.parametrize("model", BOARDS)
def test_a_checkpoint_puts_back_what_stood_there(machine: Make, model: str) -> None:
    host = machine(f"{model}=2")
    go("all-balanced")
    host.run("nvidia-smi", "mig", "-dci", "-i", "1")
    before, uuids = host.sim("show"), host.run("nvidia-smi", "-L").stdout
    taken = json.loads(json.dumps(go(None, state="gathered")["checkpoint"]))
    assert go(None, checkpoint=taken)["changed"] is False
    go("all-disabled")
    go(None, checkpoint=taken)
    state = [line for line in before.splitlines() if not line.startswith("generation")]
    assert [line for line in host.sim("show").splitlines() if not line.startswith("generation")] == state
    assert host.run("nvidia-smi", "-L").stdout == uuids


# What mig-parted 0.15.0 was seen to reach on eight simulated A100 80GB, one command after the other: the command, what
# each GPU then had (None: MIG off), and what its export then said (None: not asked).
SEVEN = {"0": 7}
CAPTURED: list[tuple[str, list[dict[str, int] | None], Any]] = [
    ("all-disabled", [None] * 8, [{"devices": "all", "mig-enabled": False, "mig-devices": {}}]),
    ("all-1g.10gb", [SEVEN] * 8, [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]),
    ("half", [None] * 4 + [SEVEN] * 4, [
        {"devices": [0, 1, 2, 3], "mig-enabled": False, "mig-devices": {}},
        {"devices": [4, 5, 6, 7], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]),
    ("two-ci", [{"2": 2}] * 8, None),
    ("all-enabled", [{}] * 8, None),
    ("all-disabled", [None] * 8, None),
]
EVERY = {"devices": "all", "mig-enabled": True}
CONFIG = {"version": "v1", "mig-configs": {
    "all-disabled": [{"devices": "all", "mig-enabled": False}], "all-enabled": [{**EVERY, "mig-devices": {}}],
    "all-1g.10gb": [{**EVERY, "mig-devices": {"1g.10gb": 7}}], "two-ci": [{**EVERY, "mig-devices": {"1c.3g.40gb": 6}}],
    "half": [{"devices": [0, 1, 2, 3], "mig-enabled": False},
             {"devices": [4, 5, 6, 7], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}],
    "impossible": [{**EVERY, "mig-devices": {"4g.40gb": 2}}]}}


def test_captured_runs_of_mig_parted_end_alike(machine: Make) -> None:
    host = machine("a100-80=8")
    for name, expected, exported in CAPTURED:
        go(name, config=CONFIG)
        assert devices(host) == [{"-": 1} if one is None else one for one in expected], name
        assert go(name, config=CONFIG)["changed"] is False
        if exported is not None:
            assert go(None, state="gathered")["config"]["mig-configs"]["current"] == exported


def test_a_captured_run_of_the_mode_alone_ends_alike(machine: Make) -> None:
    """mig-parted had removed all instances of GPU 0 for a layout that does not fit; C(apply -m -c all-enabled) then
    changed nothing.

    Here the configuration names the GPUs whose mode is set, whether MIG is off or already on.
    """
    host = machine("a100-80=8")
    captured = [{}, *[{"2": 2}] * 7]
    go("two-ci", config=CONFIG)
    for former in ("all-disabled", "all-enabled"):
        go(former, devices=["0"])
        uuids = [line for line in host.run("nvidia-smi", "-L").stdout.splitlines() if "MIG-" in line]
        assert go("all-enabled", devices=["0"])["changed"] is (former == "all-disabled")
        assert devices(host) == captured and len(uuids) == 7 * 6
        assert [line for line in host.run("nvidia-smi", "-L").stdout.splitlines() if "MIG-" in line] == uuids


@pytest.mark.parametrize("name, words", [("nonesuch", "config has no configuration 'nonesuch'"),
                                         ("impossible", "2 x 4g.40gb do not fit together")])
def test_what_is_wrong_is_refused_before_any_change(machine: Make, name: str, words: str) -> None:
    """mig-parted removes the instances of the first GPU before it finds that a layout is impossible."""
    host = machine("a100-80=8")
    go("all-1g.10gb")
    before = host.sim("show")
    with pytest.raises(GpuopsError, match=words):
        go(name, config=CONFIG)
    assert host.sim("show") == before


def calls(path: Path) -> int:
    """The NVML calls since the last call of this function."""
    count = len(path.read_text().splitlines())
    path.write_text("")
    return count


def test_calls_are_few(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For comparison, mig-parted 0.15 needs 1575 and 5391 calls to apply the layouts on the same eight GPUs, and 885 if
    nothing is to do."""
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
    (("destroy-in-use", "0"), "IN_USE. No process is listed that uses GPU"),
    (("no-permission", "0"), "NO_PERMISSION. This needs root"),
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


def test_a_lost_gpu_waits_and_the_other_gets_its_layout(machine: Make) -> None:
    host = machine("a100-80=2")
    go("all-3g.40gb")
    host.sim("fault", "set", "gpu-lost", "0")
    waiting = go("all-1g.10gb")["pending"]
    assert len(waiting) == 1 and "GPU_IS_LOST" in waiting[0]["pending_reason"]
    host.sim("fault", "clear")
    assert devices(host)[1] == {"0": 7}
    go("all-1g.10gb")
    assert devices(host) == [{"0": 7}, {"0": 7}]


def test_a_gpu_lost_on_the_way_is_named_and_finished_later(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    host = machine("a100-80=2")
    create, made = Nvml.create, []

    def lose(self: Nvml, *what: Any) -> Any:
        made.append(what)
        if len(made) == 3:
            host.sim("fault", "set", "gpu-lost", "0")
        return create(self, *what)

    monkeypatch.setattr(Nvml, "create", lose)
    with pytest.raises(GpuopsError, match="GPU_IS_LOST.* has fallen off the bus.* could not be restored") as lost:
        go("all-1g.10gb")
    assert lost.value.details["gpu"] == "0000:07:00.0"
    assert devices(host)[1] == {"-": 1}, "the other one was not begun"
    host.sim("fault", "clear")
    go("all-1g.10gb")
    assert devices(host) == [SEVEN, SEVEN]


def test_a_pending_mode_of_somebody_else_is_taken_up(machine: Make) -> None:
    host = machine("a100-80=2")
    host.sim("fault", "set", "mode-pending", "all")
    host.run("nvidia-smi", "-mig", "1", "-i", "0")
    request = work.Request("present", None, "all-disabled", None, "never", False)
    with Nvml() as nvml:
        waiting = work.MigRun(request, nvml).run()
    assert waiting["reset_required"] == ["0000:07:00.0"]
    assert [step["id"] for step in waiting["pending"]] == ["disable MIG mode: 0000:07:00.0"]
    assert [step["id"] for step in go("all-disabled")["plan"]] == ["disable MIG mode: 0000:07:00.0"]
    with Nvml() as nvml:
        assert [nvml.mode(device) for device in nvml.devices()] == [(False, False)] * 2


def test_a_reset_is_of_that_gpu_alone(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    host, resets = machine("a100-80=4"), []
    run = work.run

    def watch(argv: list[str], **options: Any) -> Any:
        if argv[0] == "nvidia-smi":
            resets.append(argv)
        return run(argv, **options)

    monkeypatch.setattr(work, "run", watch)
    host.sim("fault", "set", "mode-pending", "2")
    go("all-3g.40gb")
    assert resets == [["nvidia-smi", "--gpu-reset", "-i", "0000:47:00.0"]]
    assert devices(host) == [{"2": 2}] * 4


def test_a_pending_mode_is_finished_by_a_reset(machine: Make) -> None:
    host = machine("a100-80=1")
    host.sim("fault", "set", "mode-pending", "0")
    go("all-3g.40gb")
    assert devices(host) == [{"2": 2}]


def test_a_refused_reset_leaves_no_pending_mode(machine: Make) -> None:
    host = machine("a100-80=1")
    host.sim("fault", "set", "mode-pending", "0")
    host.sim("fault", "set", "reset-fails", "0")
    with pytest.raises(GpuopsError, match="needs a reset, which failed"):
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
