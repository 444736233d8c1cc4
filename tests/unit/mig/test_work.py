# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole of mig_config on GPUs in memory: plan, gate, apply, journal, restore, fail."""

from __future__ import annotations

import copy
import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    CommandError,
    DeviceError,
    HostError,
    InputError,
    JournalError,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import pci as pci_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import Bus, Function
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, clients, planning, shown
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import work as work_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model

A, B, L = "0000:07:00.0", "0000:0f:00.0", "0000:17:00.0"
BALANCED = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}


@pytest.fixture(autouse=True)
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives each test its own journal and root."""
    root = tmp_path / "gpuops" / "journal"
    monkeypatch.setattr(work_module, "Journal",
                        lambda concern, readonly: Journal(concern, str(root), readonly, wait=0.3))
    monkeypatch.setattr(work_module, "Root", lambda: Root(str(tmp_path / "root")))
    return root


def hosts() -> Model:
    return Model((A, "20b2"), (B, "20b2"))


def go(model: Model, selected: str | None = None, level: str = "idle", check: bool = False, state: str = "present",
       config: t.Any = None, devices: list[str] | None = None, checkpoint: t.Any = None) -> dict[str, t.Any]:
    request = work_module.Request(state, config, selected, devices, level, check, checkpoint)
    kind = shown.ReadOnlyRun if state in ("gathered", "rendered") else work_module.MigRun
    return kind(request, model).run()  # type: ignore[arg-type]


def ids(result: dict[str, t.Any]) -> list[str]:
    return [step["id"] for step in result["plan"]]


def config(**devices: int) -> dict[str, t.Any]:
    return {"version": "v1", "mig-configs": {"one": [{"devices": "all", "mig-enabled": True, "mig-devices": devices}]}}


def test_from_nothing_and_again() -> None:
    model = hosts()
    before = go(model, "all-1g.10gb", check=True)
    assert model.writes == []
    result = go(model, "all-1g.10gb")
    assert ids(before) == ids(result) == [
        f"enable MIG mode: {A}", f"create MIG instances: {A} 1g.10gb at 0,1,2,3,4,5,6",
        f"enable MIG mode: {B}", f"create MIG instances: {B} 1g.10gb at 0,1,2,3,4,5,6"]
    assert before["after"] == result["after"]
    assert model.counts() == {A: {"1g.10gb": 7}, B: {"1g.10gb": 7}}
    model.writes.clear()
    again = go(model, "all-1g.10gb", level="never")
    assert (again["changed"], again["plan"], model.writes, len(again["kept"])) == (False, [], [], 14)


def test_steps_before_a_driver_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = tuple(Function(pci, "10de", "20b2", "10de:0000", "0302", None) for pci in (A, B))
    monkeypatch.setattr(pci_module, "read_bus", lambda _root: Bus(functions, (), False, None))
    bare = hosts()
    bare.available = False
    for wanted in ("all-1g.10gb", "all-balanced", "all-enabled"):
        offline = go(bare, wanted, check=True)
        assert all(step["assumed"] for step in offline["plan"])
        assert ids(offline) == ids(go(hosts(), wanted))
    result = go(bare, "all-balanced")
    assert (result["changed"], result["plan"], bare.writes) == (False, [], [])
    assert [(step["target"], step["pending_reason"]) for step in result["pending"]] == [
        (pci, "The NVIDIA driver is not installed.") for pci in (A, B)]
    # Which GPUs a UUID names is only known with the driver.
    named = go(bare, "all-1g.10gb", devices=["GPU-4d6f636b-0000-4000-8000-000000000000"])
    assert [step["target"] for step in named["pending"]] == [A, B] and not named["changed"]
    taken = go(hosts(), state="gathered")["checkpoint"]
    assert [step["reason"] for step in go(bare, checkpoint=taken)["pending"]] == ["checkpoint", "checkpoint"]
    for wrong in ({"selected": "all-nonsense"}, {"selected": None}, {"checkpoint": {"x": 1}}):
        with pytest.raises(InputError):
            go(bare, **wrong)


# As with a driver before R550, which tells the profiles only while MIG is on.
def hiding(*gpus: tuple[str, str]) -> Model:
    model = Model(*(gpus or ((A, "20b2"), (B, "20b2"))))
    model.hides = True
    return model


@pytest.mark.parametrize("selected", ["all-1g.10gb", "all-balanced", "all-enabled", "all-1g.10gb.me", "all-disabled"])
@pytest.mark.parametrize("before", [None, "all-3g.40gb"])
def test_profiles_that_are_hidden_while_mig_is_off_change_no_plan(selected: str, before: str | None) -> None:
    plain, model = hosts(), hiding()
    for one in (plain, model):
        if before:
            go(one, before, devices=[B])
    usual = go(plain, selected)
    check = go(model, selected, check=True)
    result = go(model, selected)
    assert ids(usual) == ids(check) == ids(result) and check["plan"] == result["plan"]
    assert (usual["after"], plain.counts()) == (result["after"], model.counts()) and check["diff"] == result["diff"]
    # A GPU that has MIG on tells the profiles for an equal one.
    assert {step["assumed"] for step in result["plan"] if step["action"] == planning.CREATE} <= {before is None}
    assert {step["assumed"] for step in result["plan"] if step["action"] != planning.CREATE} <= {False}
    model.writes.clear()
    again = go(model, selected, level="never")
    assert (again["changed"], again["plan"], again["pending"], model.writes) == (False, [], [], [])


def test_a_host_of_which_one_gpu_is_cut_is_read_right_while_others_hide_their_profiles() -> None:
    for cut in (A, B):
        model = hiding()
        go(model, "all-1g.10gb", devices=[cut])
        assert go(model, state="gathered")["before"][cut]["instances"]
        assert go(model, "all-disabled", check=True)["changed"]
        assert go(model, "all-disabled")["changed"]
        assert model.counts() == {A: None, B: None}


def test_the_way_back_is_open_while_profiles_are_hidden() -> None:
    model = hiding()
    go(model, "all-balanced")
    taken = go(model, state="gathered")["checkpoint"]
    assert go(model, state="absent")["changed"] and model.counts() == {A: None, B: None}
    assert go(model, checkpoint=taken)["changed"] and model.counts() == {A: BALANCED, B: BALANCED}
    assert go(model, checkpoint=taken)["changed"] is False


# A model without a table; its GPUs have the profiles of an A100 80GB here.
UNKNOWN = "20b3"


def untold(*more: tuple[str, str]) -> Model:
    model = hiding((A, UNKNOWN), *more)
    model.told[UNKNOWN] = boards.profiles_of("20b2") or []
    return model


@pytest.mark.parametrize("more", [(), ((B, "20b2"),)])
@pytest.mark.parametrize("wanted", [{"selected": "all-1g.10gb"}, {"selected": "all-balanced"},
                                    {"config": config(**{"1g.10gb": 2})}])
def test_a_model_without_a_table_needs_mig_on_first(wanted: t.Any, more: t.Any) -> None:
    model = untold(*more)
    for check in (True, False):
        with pytest.raises(InputError, match=f"profiles of GPU {A} .* are unknown.*selected all-enabled.*devices .0."):
            go(model, **wanted, check=check)
    assert model.writes == []
    assert go(model, "all-disabled")["changed"] is False
    gathered = go(model, state="gathered")
    assert gathered["before"][A] == {"enabled": False, "instances": []}
    assert go(model, config=gathered["config"])["changed"] is False
    assert ids(go(model, "all-enabled", devices=["0"])) == [f"enable MIG mode: {A}"]
    assert go(model, **wanted, devices=["0"])["created"]
    assert go(model, **wanted)["plan"] == [] or more
    taken = go(model, state="gathered", devices=["0"])["checkpoint"]
    assert ids(go(model, state="absent"))[-1].startswith("disable MIG mode")
    with pytest.raises(InputError, match="GpuInstances: the MIG profiles of GPU"):
        go(model, checkpoint=taken)


def test_a_layout_that_was_there_before_waits_for_mig_where_profiles_are_unknown() -> None:
    model = untold()
    go(model, "all-enabled")
    go(model, "all-1g.10gb")
    model.placed[A].clear()
    model.modes[A] = [False, False]
    gpu = work_module.MigRun(work_module.Request("present", None, None, None, "idle", True), model)._read()[0]  # type: ignore[arg-type]
    wanted = planning.layout_json(True, boards_layout())
    with pytest.raises(InputError, match="are unknown"):
        planning.goal_from_json(gpu, wanted, "file")
    assert planning.goal_from_json(gpu, planning.layout_json(False, ()), "file").enabled is False


def boards_layout() -> t.Any:
    return Board(boards.profiles_of("20b2") or []).target((), {("1g.10gb", 1): 7})


@pytest.mark.parametrize("changes", [{"name": "3g.39gb"}, {"size": 3}, {"starts": (0, 5)}, {"instances": 1}])
def test_what_a_gpu_tells_after_mig_is_on_must_be_what_was_planned(changes: dict[str, t.Any]) -> None:
    model = hiding()
    table = boards.profiles_of("20b2") or []
    model.told["20b2"] = [one._replace(**changes) if one.name == "3g.40gb" else one for one in table]
    with pytest.raises(HostError, match="The plan has 3g.40gb .2 of size 4 at 0,4. from an equal GPU or the table of "
                                        "the model, but "
                                        "GPU 0000:07:00.0 reports .*No instance was .*all-enabled.*is restored"):
        go(model, "all-balanced")
    assert not [write for write in model.writes if write[0] != "mode"] and model.counts() == {A: None, B: None}
    assert go(model, "all-1g.10gb")["changed"]  # the layout has no profile that differs


def test_ids_of_profiles_are_those_of_the_gpu() -> None:
    model = hiding()
    model.told["20b2"] = [one._replace(id=one.id + 50) for one in boards.profiles_of("20b2") or []]
    assert go(model, "all-balanced")["changed"] and model.counts() == {A: BALANCED, B: BALANCED}


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_wrong_counts_of_an_a30_are_not_believed(hides: bool, count: int) -> None:
    plain, model = Model((A, "20b7")), Model((A, "20b7"))
    model.hides = hides
    model.told["20b7"] = [one._replace(instances=count) for one in boards.profiles_of("20b7") or []]
    for layout in ("all-1g.6gb", "all-2g.12gb", "all-1g.6gb.me", "all-4g.24gb", "all-balanced"):
        assert ids(go(plain, layout)) == ids(go(model, layout, check=True)) == ids(go(model, layout))
        assert go(model, layout)["changed"] is False
        assert plain.counts() == model.counts()


FINISH = f"reboot to finish the MIG mode: {A}"


@pytest.fixture
def virtual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """GPUs of which the first one cannot be reset, as in a virtual machine."""
    def refuse(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        if argv[0] == "nvidia-smi":
            raise CommandError(list(argv), 3, "GPU Reset couldn't run because of: Not Supported", "")
        return Completed(tuple(argv), 0, "\n".join(["LoadState=not-found\n"] * 3), "")

    model = hosts()
    model.reboot_only.add(A)
    monkeypatch.setattr(work_module, "run", refuse)
    booted(tmp_path, "first")
    return model


def booted(tmp_path: Path, name: str) -> None:
    path = tmp_path / "root/proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n")


@pytest.mark.parametrize("level", ["idle", "drain"])
def test_below_reboot_a_mode_that_only_a_reboot_applies_is_put_back(virtual: Model, level: str) -> None:
    with pytest.raises(HostError, match="needs a reset, which failed.*Not Supported.*only a reboot applies the mode: "
                                        "set disruption to reboot.*is restored") as caught:
        go(virtual, "all-1g.10gb", level=level)
    assert caught.value.details["reset_required"] == [A] and virtual.modes == {A: [False, False], B: [False, False]}


@pytest.mark.parametrize("selected", ["all-1g.10gb", "all-enabled"])
def test_at_reboot_a_mode_waits_for_it_and_the_run_after_it_goes_on(
        virtual: Model, tmp_path: Path, selected: str) -> None:
    created = [f"create MIG instances: {A} 1g.10gb at 0,1,2,3,4,5,6"] if selected == "all-1g.10gb" else []
    result = go(virtual, selected, level="reboot")
    assert ids(result)[0] == f"enable MIG mode: {A}" and f"enable MIG mode: {B}" in ids(result)
    assert [step["id"] for step in result["pending"]] == [FINISH, *created]
    first = result["pending"][0]
    assert "only a reboot applies" in first["pending_reason"] and first["needs"] == "reboot"
    assert (result["reboot_required"], result["reset_required"], result["changed"]) == (True, [A], True)
    assert result["after"][A] == {"enabled": False, "instances": []} and result["after"][B]["enabled"]
    assert f"{A} MIG off, on after a reboot" in result["diff"][0]["after"]
    assert virtual.modes[A] == [False, True]
    virtual.writes.clear()
    for check in (True, False):  # before the reboot
        again = go(virtual, selected, level="reboot", check=check)
        assert (again["plan"], again["changed"], again["reboot_required"]) == ([], False, True)
        assert [step["id"] for step in again["pending"]] == [FINISH, *created] and virtual.writes == []
        assert again["reset_required"] == [A]
    virtual.reboot()
    booted(tmp_path, "second")
    last = go(virtual, selected, level="reboot")
    assert set(created) <= set(ids(last)) and (last["pending"], last["reboot_required"]) == ([], False)
    assert go(virtual, selected)["changed"] is False
    assert virtual.counts() == dict.fromkeys((A, B), {"1g.10gb": 7} if created else {})


def test_instances_go_before_a_mode_that_waits_for_a_reboot(virtual: Model, tmp_path: Path, journal: Path) -> None:
    virtual.reboot_only.clear()
    go(virtual, "all-balanced")
    virtual.reboot_only.add(A)
    result = go(virtual, state="absent", level="reboot")
    assert [step["id"] for step in result["pending"]] == [FINISH] and result["reboot_required"]
    assert len(result["destroyed"]) == 8 and result["after"][A] == {"enabled": True, "instances": []}
    assert virtual.modes == {A: [True, False], B: [False, False]}
    assert [entry["kind"] for entry in json.loads((journal / "mig.json").read_text())["entries"]] == ["gpu", "reboot"]
    virtual.reboot()
    booted(tmp_path, "second")
    assert go(virtual, state="absent", level="reboot")["plan"] == []
    assert not (journal / "mig.json").exists()


def test_a_reboot_that_did_not_help_is_no_reason_to_wait_for_another(virtual: Model, tmp_path: Path) -> None:
    """The next run tries to reset the GPU again."""
    go(virtual, "all-enabled", level="reboot")
    booted(tmp_path, "second")
    assert ids(go(virtual, "all-enabled", level="reboot", check=True)) == [f"enable MIG mode: {A}"]
    virtual.reboot_only.clear()
    assert ids(go(virtual, "all-enabled", level="reboot")) == [f"enable MIG mode: {A}"]
    assert virtual.modes[A] == [True, True]


def test_a_lower_level_takes_a_mode_back_that_waits_for_a_reboot(virtual: Model) -> None:
    go(virtual, "all-1g.10gb", level="reboot")
    assert ids(go(virtual, "all-disabled", devices=[A])) == [f"disable MIG mode: {A}"]
    assert virtual.modes[A] == [False, False]
    with pytest.raises(HostError, match="set disruption to reboot"):
        go(virtual, "all-1g.10gb", level="idle")


def on_bus(monkeypatch: pytest.MonkeyPatch, driver: str | None, device_id: str = "20b2") -> None:
    functions = tuple(Function(pci, "10de", device_id, "10de:0000", "0302", driver) for pci in (A, B))
    monkeypatch.setattr(pci_module, "read_bus", lambda _root: Bus(functions, (), False, None))


def test_a_driver_that_nvml_cannot_ask_tells_nothing_so_nothing_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    on_bus(monkeypatch, "nvidia")
    model = hosts()
    model.available, model.error = False, "NVML cannot be used (LIB_RM_VERSION_MISMATCH)."
    work = work_module.MigRun(work_module.Request("present", None, "all-1g.10gb", None, "idle", True), model)  # type: ignore[arg-type]
    result = work.run()
    assert result["plan"] == [] and [step["id"] for step in result["pending"]] == [f"configure MIG: {A}",
                                                                                    f"configure MIG: {B}"]
    assert "LIB_RM_VERSION_MISMATCH" in result["pending"][0]["pending_reason"]
    assert len(work.warnings) == 2 and f"The MIG state of GPU {A} is unknown" in work.warnings[0]
    assert "LIB_RM_VERSION_MISMATCH" in work.warnings[0]
    assert go(model, "all-1g.10gb")["pending"] == result["pending"]


def test_check_mode_before_a_reload_plans_for_gpus_that_nvml_cannot_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    on_bus(monkeypatch, "nvidia")
    model = hosts()
    model.available, model.error = False, "NVML cannot be used (LIB_RM_VERSION_MISMATCH)."
    request = work_module.Request("present", None, "all-1g.10gb", None, "idle", True, after_reload=True)
    work = work_module.MigRun(request, model)  # type: ignore[arg-type]
    result = work.run()
    assert (result["pending"], work.warnings) == ([], [])
    assert ids(result) == ids(go(hosts(), "all-1g.10gb"))
    waits = work_module.MigRun(request._replace(check=False), model).run()  # type: ignore[arg-type]
    assert [step["id"] for step in waits["pending"]] == [f"configure MIG: {A}", f"configure MIG: {B}"]


@pytest.mark.parametrize("selected", ["all-1g.10gb", "all-disabled"])
def test_a_gpu_that_does_not_answer_keeps_no_other_from_its_layout(
        selected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_bus(monkeypatch, "nvidia")
    for spoil in (lambda model: model.silent.append((0, "GPU_IS_LOST")), lambda model: model.ill.add(A)):
        model = hosts()
        go(model, "all-3g.40gb")
        model.writes.clear()
        spoil(model)
        work = work_module.MigRun(work_module.Request("present", None, selected, None, "idle", False), model)  # type: ignore[arg-type]
        result = work.run()
        assert result["touched"] == [B] and [step["id"] for step in result["pending"]] == [f"configure MIG: {A}"]
        assert {write[1] for write in model.writes} == {B}
        assert f"The MIG state of GPU {A} is unknown" in work.warnings[0]
        assert "GPU_IS_LOST" in work.warnings[0] or "RESET_REQUIRED" in work.warnings[0]


def test_where_no_gpu_answers_all_waits_and_nothing_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    on_bus(monkeypatch, "nvidia")
    model = hosts()
    model.silent = [(0, "GPU_IS_LOST"), (1, "GPU_IS_LOST")]
    assert [step["target"] for step in go(model, "all-1g.10gb")["pending"]] == [A, B]
    with pytest.raises(DeviceError, match="GPU 0 does not answer: GPU_IS_LOST"):
        go(model, state="gathered")


def test_where_the_bus_is_hidden_a_gpu_that_does_not_answer_waits_by_its_number() -> None:
    model = hosts()
    model.silent = [(0, "GPU_IS_LOST")]
    result = go(model, "all-1g.10gb")
    assert [step["id"] for step in result["pending"]] == ["configure MIG: GPU 0"]
    assert model.counts() == {A: None, B: {"1g.10gb": 7}}
    model.silent.append((1, "GPU_IS_LOST"))
    with pytest.raises(DeviceError, match="GPU 0 does not answer: GPU_IS_LOST"):
        go(model, "all-1g.10gb")


def test_who_may_not_ask_is_told_so() -> None:
    model = hosts()
    model.ill, model.error_name = {A, B}, "NO_PERMISSION"
    with pytest.raises(DeviceError, match="NO_PERMISSION"):
        go(model, "all-1g.10gb")


def test_a_gpu_keeps_its_number_where_another_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    on_bus(monkeypatch, "nvidia")
    model = hosts()
    model.silent = [(0, "GPU_IS_LOST")]
    document = {"version": "v1", "mig-configs": {"one": [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}}]}}
    waits = go(model, config=document)
    assert (waits["plan"], [step["target"] for step in waits["pending"]]) == ([], [A]) and model.counts()[B] is None
    document["mig-configs"]["one"][0]["devices"] = [1]  # type: ignore[index]
    go(model, config=document)
    assert model.counts()[B] == {"7g.80gb": 1}


def test_what_a_gpu_had_that_does_not_answer_stays_on_record(
        journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_bus(monkeypatch, "nvidia")
    model = hosts()
    go(model, "all-1g.10gb")
    model.silent = [(0, "GPU_IS_LOST")]
    go(model, state="absent")
    assert model.counts()[B] is None
    with Journal("mig", str(journal), readonly=True) as kept:
        assert list(kept.of_kind("gpu")) == [f"gpu-of-{A.replace(':', '-')}"]
    model.silent = []
    go(model, state="absent")
    assert model.counts() == {A: None, B: None}


@pytest.mark.parametrize(("device_id", "profile", "enabled"), [("20b2", "1g.10gb", True), ("2330", "1g.10gb", False)])
def test_check_mode_plans_from_what_a_reload_of_the_driver_leaves(device_id: str, profile: str, enabled: bool) -> None:
    """A reload removes all instances; only Ampere keeps the mode."""
    model = Model((A, device_id))
    go(model, f"all-{profile}")
    request = work_module.Request("present", None, f"all-{profile}", None, "idle", True, None, True)
    check = work_module.MigRun(request, model).run()  # type: ignore[arg-type]
    model.placed[A].clear()
    model.modes[A] = [enabled, enabled]
    assert ids(check) == ids(go(model, f"all-{profile}")) != []
    assert all(step["assumed"] for step in check["plan"])


def test_only_the_destroyed_instance_is_made_again() -> None:
    model = hosts()
    go(model, "all-1g.10gb")
    del model.placed[B][2]
    model.writes.clear()
    result = go(model, "all-1g.10gb", level="never")
    assert ids(result) == [f"create MIG instances: {B} 1g.10gb at 2"]
    assert model.writes == [("create", B, "1g.10gb", 2), ("create_compute", B, 2, 1, 0)]


def test_what_fits_is_kept() -> None:
    model = hosts()
    go(model, "all-1g.10gb")
    result = go(model, config=config(**BALANCED))
    assert model.counts() == {A: BALANCED, B: BALANCED}
    assert (len(result["kept"]), len(result["created"]), len(result["destroyed"])) == (4, 4, 10)


def test_what_lies_elsewhere_is_not_moved() -> None:
    """Only the profile of an instance counts: a wanted instance is never created again at another place."""
    model = hosts()
    device = model.gpus[0]
    model.modes[A] = [True, True]
    grid = {profile.name: profile for profile in model.profiles(device, model.modes[device.pci][0])}
    for name, start in (("3g.40gb", 0), ("1g.10gb", 5), ("1g.10gb", 6)):
        model.create(device, grid[name], start)
        model.create_compute(device, grid[name], start, grid[name].slices, 0)
    model.writes.clear()
    assert go(model, config=config(**{"3g.40gb": 1, "1g.10gb": 2}), devices=[A], level="never")["changed"] is False
    result = go(model, config=config(**{"2g.20gb": 1, "1g.10gb": 2}), devices=[A])
    assert [(one["device"], one["start"]) for one in result["destroyed"]] == [("3g.40gb", 0)]
    assert {5, 6} < set(model.placed[A])
    assert not [write for write in model.writes if write[0] == "destroy" and write[2] == "1g.10gb"]


def test_never_leaves_mode_and_instances_and_says_why() -> None:
    model = hosts()
    result = go(model, "all-1g.10gb", level="never")
    assert (result["changed"], model.writes) == (False, [])
    assert result["pending"][0]["pending_reason"] == "gpu_disruption is 'never', this needs 'idle' or higher"
    assert [step["id"] for step in result["pending"]] == ids(go(hosts(), "all-1g.10gb"))


def test_never_leaves_instances_that_nobody_uses() -> None:
    """Creating an instance disturbs nobody; destroying one can, even if no process uses it at the moment."""
    model = hosts()
    go(model, "all-1g.10gb")
    model.writes.clear()
    result = go(model, "all-7g.80gb", level="never")
    assert (result["changed"], model.writes) == (False, [])
    assert [step["needs"] for step in result["pending"]] == ["idle", "never"] * 2
    assert result["reset_required"] == []


def test_a_busy_gpu_waits_while_the_other_goes_on() -> None:
    model = hosts()
    go(model, "all-1g.10gb")
    model.clients_of[A] = [(4242, 6)]
    result = go(model, config=config(**BALANCED))
    assert model.counts() == {A: {"1g.10gb": 7}, B: BALANCED}
    assert result["pending"][0]["id"] == f"stop GPU clients: {A} job (4242)"
    assert result["pending"][0]["needs"] == "drain"


@pytest.mark.parametrize("wanted, before", [("all-1g.10gb", None), ("all-disabled", {}), ("all-enabled", None)])
def test_a_gpu_in_use_does_not_change_its_mode(wanted: str, before: t.Any) -> None:
    """No instance is removed, but a client of the GPU would lose it."""
    model = hosts()
    if before is not None:
        go(model, "all-enabled")
    model.writes.clear()
    model.clients_of[A] = [(4242, None)]
    result = go(model, wanted)
    assert result["pending"][0]["id"] == f"stop GPU clients: {A} job (4242)"
    assert model.counts()[A] == before and not [write for write in model.writes if write[1] == A]
    assert [write for write in model.writes if write[1] == B]


def test_what_fits_instead_is_named_in_a_few_ways() -> None:
    profiles = {profile.name: profile for profile in boards.profiles_of("20b2") or []}
    board = Board(list(profiles.values()))

    def nearest(**counts: int) -> str:
        return planning.nearest(board, {(name, profiles[name].slices): count for name, count in counts.items()})

    assert nearest(**{"4g.40gb": 1, "3g.40gb": 2}) == "2 x 3g.40gb or 1 x 3g.40gb, 1 x 4g.40gb"
    assert nearest(**{"7g.80gb": 1, "4g.40gb": 1}) == "1 x 4g.40gb or 1 x 7g.80gb"
    assert nearest(**{"7g.80gb": 2, "4g.40gb": 2}) == "1 x 4g.40gb or 1 x 7g.80gb"
    assert nearest(**{"7g.80gb": 1, "4g.40gb": 2, "3g.40gb": 2, "2g.20gb": 3}) == (
        "3 x 2g.20gb or 2 x 2g.20gb, 1 x 3g.40gb")


def test_busy_instances_are_spared_where_others_do() -> None:
    model = hosts()
    go(model, "all-1g.10gb")
    model.clients_of[A] = [(4242, 6), (4243, 5)]
    result = go(model, config=config(**{"1g.10gb": 2}), devices=[A])
    assert result["pending"] == []
    assert sorted(model.placed[A]) == [5, 6]


@pytest.mark.parametrize("wanted, words", [
    (config(**{"4g.40gb": 2}), "2 x 4g.40gb do not fit together on GPU 0000:07:00.0 (NVIDIA A100-SXM4-80GB). "
                               "These fit, for example: 1 x 4g.40gb."),
    (config(**{"1g.5gb": 1}), "has no profile 1g.5gb"),
])
def test_refused_before_anything_changes(wanted: t.Any, words: str) -> None:
    model = hosts()
    with pytest.raises(InputError) as caught:
        go(model, config=wanted)
    assert words in str(caught.value)
    assert model.writes == []


@pytest.mark.parametrize("number", range(1, 19))
def test_a_failing_write_gives_the_gpu_its_former_layout(number: int) -> None:
    """A change from 3g + 3g to seven small instances needs 2 x 2 destructions and 7 x 2 creations."""
    model = Model((A, "20b2"))
    go(model, "all-3g.40gb")
    model.writes.clear()
    model.fail = number
    with pytest.raises(DeviceError, match="The former layout of GPU .* is restored"):
        go(model, "all-1g.10gb")
    assert model.counts() == {A: {"3g.40gb": 2}}
    model.fail = None
    go(model, "all-1g.10gb")
    assert model.counts() == {A: {"1g.10gb": 7}}


def test_a_failure_after_the_mode_was_switched_on_switches_it_off() -> None:
    model = Model((A, "20b2"))
    model.fail = 5
    with pytest.raises(DeviceError):
        go(model, "all-1g.10gb")
    assert model.counts() == {A: None}


def test_killed_anywhere_the_next_run_ends_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    for number in range(1, 19):
        model = Model((A, "20b2"))
        go(model, "all-3g.40gb")
        count, write = len(model.writes), model._write

        def kill(*what: t.Any, stop: int = count + number, model: Model = model, write: t.Any = write) -> None:
            if len(model.writes) + 1 == stop:
                raise Killed
            write(*what)

        monkeypatch.setattr(model, "_write", kill)
        with pytest.raises(Killed):
            go(model, "all-1g.10gb")
        monkeypatch.setattr(model, "_write", write)
        go(model, "all-1g.10gb")
        assert model.counts() == {A: {"1g.10gb": 7}}, number


def test_absent_puts_back_what_was_there_at_first(journal: Path) -> None:
    model = hosts()
    go(model, "all-3g.40gb", devices=[B])
    go(model, state="absent")
    assert model.counts() == {A: None, B: None}
    assert not journal.parent.exists()
    # Somebody's own layout, then two of ours: theirs returns, with its placements.
    device = model.gpus[0]
    model.modes[A] = [True, True]
    grid = {profile.name: profile for profile in model.profiles(device, model.modes[device.pci][0])}
    for start in (1, 5):
        model.create(device, grid["1g.10gb"], start)
        model.create_compute(device, grid["1g.10gb"], start, 1, 0)
    go(model, "all-balanced")
    go(model, "all-disabled")
    waiting = go(model, state="absent", level="never")
    assert waiting["pending"] and not waiting["changed"]
    check = go(model, state="absent", check=True)
    result = go(model, state="absent")
    assert ids(check) == ids(result)
    assert (sorted(model.placed[A]), model.counts()) == ([1, 5], {A: {"1g.10gb": 2}, B: None})
    assert go(model, state="absent")["changed"] is False
    assert not journal.parent.exists()


def test_absent_gives_back_all_or_says_so() -> None:
    model = hosts()
    go(model, "all-enabled")
    with pytest.raises(InputError, match="devices: the option cannot be used with state absent"):
        go(model, state="absent", devices=[A])
    assert model.counts() == {A: {}, B: {}}


def test_absent_killed_anywhere_leaves_no_trace(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 16):
        model = Model((A, "20b2"))
        go(model, "all-1g.10gb")
        count, write = len(model.writes), model._write

        def kill(*what: t.Any, stop: int = count + number, model: Model = model, write: t.Any = write) -> None:
            write(*what)
            if len(model.writes) == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(model, "_write", kill)
        with pytest.raises(KeyboardInterrupt):
            go(model, state="absent")
        monkeypatch.setattr(model, "_write", write)
        go(model, state="absent")
        assert model.counts() == {A: None}, number
        assert not journal.parent.exists(), number


@pytest.mark.parametrize("before", [
    {"enabled": True}, {"enabled": True, "instances": [{"profile": "9g.90gb", "start": 0, "compute": [[1, 0]]}]},
    {"enabled": True, "instances": [{"profile": "3g.40gb", "start": 0, "compute": []}] * 2},
    {"enabled": True, "instances": [{"profile": "3g.40gb", "start": 1, "compute": [[3]]}]}])
def test_a_journal_that_somebody_has_edited_is_named(journal: Path, before: t.Any) -> None:
    model = hosts()
    go(model, "all-1g.10gb", devices=[A])
    document = json.loads((journal / "mig.json").read_text())
    document["entries"][0]["before"] = before
    (journal / "mig.json").write_text(json.dumps(document))
    with pytest.raises(HostError, match=r"GPU 0000:07:00.0 .* cannot have the layout that .*mig.json"):
        go(model, state="absent")
    assert model.counts() == {A: {"1g.10gb": 7}, B: None}


def test_a_gpu_that_has_left_is_forgotten(journal: Path) -> None:
    go(hosts(), "all-enabled", devices=[B])
    work = work_module.MigRun(work_module.Request("absent", None, None, None, "idle", False), Model((A, "20b2")))  # type: ignore[arg-type]
    assert work.run()["changed"] is False
    assert "GPU-of-0000-0f-00.0".lower() in work.warnings[0]
    assert not journal.exists()


def test_devices_choose() -> None:
    for word in (B, "1", f"GPU-of-{B.replace(':', '-')}"):
        model = hosts()
        go(model, "all-enabled", devices=[word])
        assert model.counts() == {A: None, B: {}}, word
    for word, hint in (("7", r"\(NVIDIA A100-SXM4-80GB\)\.$"), ("420.0", "without quotes")):
        with pytest.raises(InputError, match=f"devices: this host has no GPU '{word}'.*{hint}"):
            go(hosts(), "all-enabled", devices=[word])


def test_the_others_need_not_suit_the_layout() -> None:
    model = Model((A, "20b2"), (B, "20b7"))
    go(model, config=config(**BALANCED), devices=["NVIDIA A100-SXM4-80GB"])
    assert model.counts() == {A: BALANCED, B: None}
    go(model, "all-1g.10gb", devices=[A])
    assert model.counts() == {A: {"1g.10gb": 7}, B: None}


def test_those_that_are_chosen_must_suit_it() -> None:
    with pytest.raises(InputError, match="'all-1g.10gb' for the GPUs of this host .*A30"):
        go(Model((A, "20b2"), (B, "20b7")), "all-1g.10gb", devices=[B])


def test_gathered_is_a_configuration_that_changes_nothing() -> None:
    model = Model((A, "20b2"), (B, "20b2"), (L, "26b9"))
    go(model, config={"version": "v1", "mig-configs": {"one": [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 2, "1g.10gb": 1}}]}})
    found = go(model, state="gathered")
    assert found["config"]["mig-configs"]["current"] == [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 2, "1g.10gb": 1}},
        {"devices": [1], "mig-enabled": False, "mig-devices": {}}]
    assert go(model, config=found["config"], level="never")["changed"] is False


def test_a_checkpoint_returns_exactly_that() -> None:
    model = hosts()
    go(model, config={"version": "v1", "mig-configs": {"one": [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 2, "2g.20gb": 1, "1g.10gb+me": 1}}]}})
    before = copy.deepcopy((model.counts(), model.placed))
    taken = go(model, state="gathered")["checkpoint"]
    assert taken == {"Version": "v1", "MigState": {"Devices": [
        {"UUID": f"GPU-of-{A.replace(':', '-')}", "MigMode": 1, "GpuInstances": [
            {"ProfileID": 1, "Placement": {"Start": 4, "Size": 2}, "ComputeInstances": [
                {"ProfileID": 1, "EngProfileID": 0}]},
            {"ProfileID": 2, "Placement": {"Start": 0, "Size": 4}, "ComputeInstances": [
                {"ProfileID": 0, "EngProfileID": 0}, {"ProfileID": 0, "EngProfileID": 0}]},
            {"ProfileID": 7, "Placement": {"Start": 6, "Size": 1}, "ComputeInstances": [
                {"ProfileID": 0, "EngProfileID": 0}]}]},
        {"UUID": f"GPU-of-{B.replace(':', '-')}", "MigMode": 0, "GpuInstances": None}]}}
    assert go(model, checkpoint=taken, level="never")["changed"] is False
    for other in ("all-1g.10gb", "all-7g.80gb", "all-disabled"):
        go(model, other)
        check = go(model, checkpoint=taken, check=True)
        assert ids(check) == ids(go(model, checkpoint=taken))
        assert (model.counts(), model.placed) == before, other
    del taken["MigState"]["Devices"][0]
    go(model, "all-1g.10gb")
    go(model, checkpoint=taken)
    assert model.counts() == {A: {"1g.10gb": 7}, B: None}


def checkpoint(uuid: str = f"GPU-of-{A.replace(':', '-')}", **instance: t.Any) -> dict[str, t.Any]:
    item = {"ProfileID": 2, "Placement": {"Start": 0, "Size": 4}, "ComputeInstances": None, **instance}
    return {"Version": "v1", "MigState": {"Devices": [{"UUID": uuid, "MigMode": 1, "GpuInstances": [item]}]}}


@pytest.mark.parametrize("document, words", [
    ({}, "checkpoint.Version: None is not a version"),
    ({"Version": "v1"}, "checkpoint.MigState: None is not a mapping"),
    (checkpoint("GPU-elsewhere"), "checkpoint.MigState.Devices[0].UUID: this host has no GPU gpu-elsewhere"),
    (checkpoint(ProfileID=9999), "Devices[0].GpuInstances[0].ProfileID: GPU 0000:07:00.0 (NVIDIA A100-SXM4-80GB) has"),
    (checkpoint(ProfileID="1g"), "ProfileID: '1g' is not a number"),
    (checkpoint(Placement={"Start": 2, "Size": 4}), "Placement: 3g.40gb of GPU 0000:07:00.0"),
    (checkpoint(ComputeInstances=[{"ProfileID": 1}, {"ProfileID": 1}]), "ComputeInstances: these compute instances do"),
    (checkpoint(ComputeInstances=[{"ProfileID": 99}]), "ComputeInstances: these compute instances do not fit"),
])
def test_a_wrong_checkpoint_is_refused_before_anything_changes(document: t.Any, words: str) -> None:
    model = hosts()
    with pytest.raises(InputError) as caught:
        go(model, checkpoint=document)
    assert words in str(caught.value)
    assert model.writes == []


def test_instances_of_a_checkpoint_that_overlap() -> None:
    document = checkpoint()
    instances = document["MigState"]["Devices"][0]["GpuInstances"]
    instances.append({**instances[0], "ProfileID": 0, "Placement": {"Start": 3, "Size": 1}})
    with pytest.raises(InputError, match="do not fit together on GPU 0000:07:00.0"):
        go(hosts(), checkpoint=document)
    document["MigState"]["Devices"] *= 2
    with pytest.raises(InputError, match=r"Devices\[1\].UUID: GPU .* has two entries"):
        go(hosts(), checkpoint=document)


def test_of_two_runs_at_once_one_fails_clearly(journal: Path) -> None:
    model = hosts()
    with Journal("mig", str(journal)), pytest.raises(JournalError, match="Another run has held"):
        go(model, "all-1g.10gb")
    assert model.writes == []
    assert go(model, "all-1g.10gb")["changed"]


H100 = {"version": "v1", "mig-configs": {"h100": [
    {"device-filter": "0x233010DE", "devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]}}


@pytest.mark.parametrize("document, selected, devices, words", [
    (H100, None, None, "has no entry for a GPU of this host that supports MIG (NVIDIA A100-SXM4-80GB)"),
    (H100, None, [], "devices selects no GPU of this host"),
    (None, "all-1g.10gb", [], "devices selects no GPU of this host")])
def test_what_concerns_no_gpu_says_so(document: t.Any, selected: str | None, devices: t.Any, words: str) -> None:
    job = work_module.MigRun(work_module.Request("present", document, selected, devices, "idle", False), hosts())  # type: ignore[arg-type]
    assert job.run()["changed"] is False and words in job.warnings[0]


def test_gpus_of_a_configuration_by_uuid() -> None:
    model = hosts()
    document = {"version": "v1", "mig-configs": {"one": [
        {"devices": [f"GPU-of-{B.replace(':', '-')}"], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}}]}}
    go(model, config=document)
    assert model.counts() == {A: None, B: {"7g.80gb": 1}}


def test_a_host_without_gpu() -> None:
    with pytest.raises(HostError, match="no NVIDIA GPU"):
        go(Model(), "all-disabled")


# What mig-parted 0.15 was seen to reach on eight A100 80GB, one configuration after the other (all None: MIG off).
SEEN = [
    ("all-1g.10gb", {"1g.10gb": 7}, {"1g.10gb": 7}),
    ("half", None, {"1g.10gb": 7}),
    ("two-ci", {"1c.3g.40gb": 6}, {"1c.3g.40gb": 6}),
    ("all-disabled", None, None),
]
DOCUMENT = {"version": "v1", "mig-configs": {
    "all-1g.10gb": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}],
    "half": [{"devices": [0, 1, 2, 3], "mig-enabled": False},
             {"devices": [4, 5, 6, 7], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}],
    "two-ci": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 6}}],
    "all-disabled": [{"devices": "all", "mig-enabled": False}]}}


def test_ends_where_mig_parted_ended() -> None:
    model = Model(*[(f"0000:{number:02x}:00.0", "20b2") for number in range(8)])
    for name, first, last in SEEN:
        go(model, name, config=DOCUMENT)
        assert list(model.counts().values()) == [first] * 4 + [last] * 4, name


@pytest.mark.parametrize("well", [True, False])
def test_containers_are_told_where_the_unit_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, well: bool) -> None:
    started: list[bool] = []

    def refresh(_run: t.Any) -> bool:
        started.append(True)
        return well

    monkeypatch.setattr(_cdi, "refresh", refresh)
    monkeypatch.setattr(_cdi, "UNIT_FILE", str(tmp_path / "unit"))
    model = hosts()
    go(model, "all-1g.10gb")
    assert started == []
    (tmp_path / "unit").touch()
    go(model, "all-balanced", check=True)
    assert started == []
    job = work_module.MigRun(work_module.Request("present", None, "all-balanced", None, "idle", False), model)  # type: ignore[arg-type]
    job.run()
    assert (started, bool(job.warnings)) == ([True], not well)
    go(model, "all-balanced")
    assert started == [True]


def test_a_killed_run_tells_them_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[bool] = []
    monkeypatch.setattr(_cdi, "refresh", lambda _run: started.append(True) or True)
    monkeypatch.setattr(_cdi, "UNIT_FILE", str(tmp_path / "unit"))
    (tmp_path / "unit").touch()
    model = hosts()
    with monkeypatch.context() as patch:
        patch.setattr(work_module.MigRun, "_check_result", lambda *_args: (one for one in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            go(model, "all-1g.10gb")
    assert started == []
    assert go(model, "all-1g.10gb")["changed"] is False
    assert started == [True]


def test_instances_in_free_space_wait_where_operands_have_to_learn_of_them() -> None:
    """This is a Node, in the first pass for all hosts. A step that the level forbids has its own reason. GPU B must
    change its mode."""
    model = hosts()
    go(model, "all-1g.10gb", devices=[A])
    model.placed[A].pop(3)
    before = copy.deepcopy(model.placed)
    for check in (True, False):
        request = work_module.Request("present", None, "all-1g.10gb", None, "never", check, create=False)
        result = work_module.MigRun(request, model).run()  # type: ignore[arg-type]
        assert model.placed == before and not result["changed"] and result["in_free_space"] == [A]
        assert [(one["target"][:12], one["needs"], one["pending_reason"]) for one in result["pending"]][0] == (
            A, "never", planning.LATER)
        assert "gpu_disruption is 'never'" in result["pending"][1]["pending_reason"]
    request = work_module.Request("present", None, "all-1g.10gb", None, "idle", False, create=False)
    result = work_module.MigRun(request, model).run()  # type: ignore[arg-type]
    assert model.placed == before and result["in_free_space"] == [A] and not result["changed"]
    assert go(model, "all-1g.10gb", devices=[A], level="never")["in_free_space"] == [A]
    assert model.placed != before and go(model, "all-1g.10gb", devices=[A])["in_free_space"] == []


@pytest.mark.parametrize(("selected", "started"), [("all-1g.10gb", 1), ("all-enabled", 1), ("all-disabled", 0)])
def test_settings_are_applied_again_after_a_change_of_the_mode(
        selected: str, started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset forgets them. The unit is started once for all GPUs, and not if none has changed its mode."""
    unit, commands = tmp_path / "gpuops-settings.service", []

    def run(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        commands.append(" ".join(argv))
        return Completed(tuple(argv), 1, "", "")

    monkeypatch.setattr(clients, "SETTINGS", str(unit))
    model = hosts()
    for present in (False, True):
        if present:
            unit.write_text("")
        request = work_module.Request("present", None, selected, None, "idle", False)
        job = work_module.MigRun(request, model)  # type: ignore[arg-type]
        job.command = run
        job.run()
        assert commands.count("systemctl restart gpuops-settings.service") == (started if present else 0)
        assert len([one for one in job.warnings if "may have lost settings" in one]) == (started if present else 0)
        go(model, "all-disabled")
    go(model, "all-1g.10gb")
    job = work_module.MigRun(work_module.Request("present", None, "all-balanced", None, "idle", False),
                             model)  # type: ignore[arg-type]
    job.command, former = run, len(commands)
    job.run()
    assert "systemctl restart gpuops-settings.service" not in commands[former:]


def test_clocks_do_not_count_as_locked_after_a_change_of_the_mode(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset unlocks them, which nobody can read. The other GPU keeps its lock."""
    monkeypatch.setattr(clients, "JOURNAL_ROOT", str(tmp_path / "j"))
    model = hosts()
    with Journal("gpu_settings", str(tmp_path / "j")) as journal:
        for device in model.devices():
            journal.keep("locked", f"{model.uuid(device).lower()}/locked_memory_clocks", "this load")
        every = list(journal.of_kind("locked"))
    for level, selected, kept in (("never", "all-1g.10gb", every), ("idle", "all-1g.10gb", every[1:]),
                                  ("idle", "all-disabled", every[1:])):
        go(model, selected, devices=[A], level=level)
        with Journal("gpu_settings", str(tmp_path / "j"), True) as journal:
            assert list(journal.of_kind("locked")) == kept
