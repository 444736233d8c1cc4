# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole runs of gpu_settings on the simulated NVML: what is written, kept, refused, restored, and told."""

from __future__ import annotations

import json
import shutil
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    DeviceError,
    GpuopsError,
    HostError,
    InputError,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import pci
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import Bus, Function
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import work
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.device import SettingsNvml

from lab.nvml.build import build
from tests.conformance.conftest import Machine

pytestmark = pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="it needs a C compiler")
T4, RTX, H100 = "0000:17:00.0", "0000:18:00.0", "0000:1b:00.0"
ALL = {"gpus": "all", "persistence": True}
HOPPER = {"gpus": ["H100 80GB HBM3"], "power_limit": 500, "locked_graphics_clocks": {"min": 1200, "max": 1800}}


class Host:
    """A host with a T4, an RTX PRO 6000 and an H100."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.gpus = Machine(build(), folder / "state")
        monkeypatch.setenv("GPUSIM_STATE", str(self.gpus.state))
        monkeypatch.setenv("GPUSIM_TRACE", str(folder / "trace"))
        self.gpus.sim("init", "--driver", "595.91.07", "t4=1", "rtxpro6000=1", "h100-80=1")
        self.journal = folder / "var" / "journal"
        monkeypatch.setattr(work, "Journal", lambda concern, readonly: Journal(concern, str(self.journal), readonly))
        monkeypatch.setattr(work, "Root", lambda: Root(str(folder / "root")))
        self.boot_id = folder / "root" / "proc" / "sys" / "kernel" / "random" / "boot_id"
        self.boot_id.parent.mkdir(parents=True)
        self.boot_id.write_text("one\n")

    def go(self, *entries: dict[str, t.Any], state: str = "present", level: str = "never", check: bool = False
           ) -> dict[str, t.Any]:
        self.request = work.Request(state, list(entries), level, check)
        with SettingsNvml() as nvml:
            self.run = work.SettingsRun(self.request, nvml)
            return self.run.run()

    def refused(self, *entries: dict[str, t.Any], **options: t.Any) -> GpuopsError:
        """The error of a run, which has written nothing."""
        before = self.gpus.state.read_text()
        with pytest.raises(GpuopsError) as caught:
            self.go(*entries, **options)
        assert self.gpus.state.read_text() == before and not self.journal.exists()
        return caught.value

    def settings(self) -> list[str]:
        """The settings of the simulated GPUs that are not as shipped, and their persistence modes."""
        lines = self.gpus.state.read_text().splitlines()
        modes = "".join(line.split("|")[10] for line in lines if line.startswith("gpu "))
        return [*(line for line in lines if line.startswith("settings ")), modes]

    def writes(self) -> list[str]:
        """The calls that have changed something since the last question."""
        trace = self.folder / "trace"
        found = [line for line in trace.read_text().split() if "Set" in line or "Reset" in line]
        trace.write_text("")
        return found


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def ids(result: dict[str, t.Any]) -> list[str]:
    return [step["id"] for step in result["plan"]]


def test_check_run_again_and_removal(host: Host) -> None:
    shipped = host.settings()
    check = host.go(ALL, HOPPER, {"gpus": ["0"], "ecc": False, "power_limit": 65.5}, check=True)
    assert host.writes() == [] and not host.journal.exists()
    done = host.go(ALL, HOPPER, {"gpus": ["0"], "ecc": False, "power_limit": 65.5})
    assert {**check, "diff": []} == {**done, "diff": []} and check["diff"] == done["diff"] and done["changed"]
    assert ids(done) == [
        f"set persistence mode: {T4} on", f"set ECC mode: {T4} off", f"set power limit: {T4} 65.5 W",
        f"set persistence mode: {RTX} on",
        f"set persistence mode: {H100} on", f"set power limit: {H100} 500 W",
        f"lock graphics clocks: {H100} 1200-1800 MHz"]
    assert host.writes() == [*["nvmlDeviceSetPersistenceMode", "nvmlDeviceSetEccMode"],
                             "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetPersistenceMode",
                             "nvmlDeviceSetPersistenceMode", "nvmlDeviceSetPowerManagementLimit",
                             "nvmlDeviceSetGpuLockedClocks"]
    assert host.settings() == ["settings 0 65500 5001 585 0 0 0 0 0 1 0",
                               "settings 2 500000 2619 1980 1200 1800 0 0 0 1 1", "111"]
    assert done["reset_required"] == [T4]
    assert [change["effect"] for change in done["changes"]] == ["now", "reset", *["now"] * 5]
    assert done["after"][H100] == {
        "persistence": True, "ecc": True, "compute_mode": "default", "power_limit": 500,
        "application_clocks": {"memory": 2619, "graphics": 1980}, "locked_graphics_clocks": {"min": 1200, "max": 1800}}
    assert f"-{H100}" not in str(done["diff"]) and f"{H100} NVIDIA H100 80GB HBM3 power_limit: 700 W\n" in (
        done["diff"][0]["before"])

    again = host.go(ALL, HOPPER, {"gpus": ["0"], "ecc": False, "power_limit": 65.5})
    assert not again["changed"] and host.writes() == [] and again["reset_required"] == [T4]
    assert again["before"] == again["after"] == done["after"]

    removed = host.go(state="absent")
    assert host.settings() == shipped and removed["changed"] and not host.journal.exists()
    assert ids(removed)[:3] == [f"restore power limit: {T4} 70 W", f"restore ECC mode: {T4} on",
                                f"restore persistence mode: {T4} off"]
    assert not host.go(state="absent")["changed"] and not host.go()["changed"]


def test_a_setting_that_is_not_declared_any_more_gets_its_former_value(host: Host) -> None:
    with SettingsNvml() as nvml:
        device = nvml.devices()[2]
        nvml.write(device, "power_limit", 650)  # before the first run, by somebody else
    host.go(HOPPER)
    assert ids(host.go({**HOPPER, "power_limit": 400})) == [f"set power limit: {H100} 400 W"]
    done = host.go({"gpus": ["all"], "persistence": True})
    assert ids(done)[-3:] == [f"set persistence mode: {H100} on", f"unlock graphics clocks: {H100}",
                              f"restore power limit: {H100} 650 W"]
    kinds = [(entry["kind"], entry["key"].partition("/")[2])
             for entry in json.loads((host.journal / "gpu_settings.json").read_text())["entries"]]
    assert kinds == [("setting", "persistence")] * 3


def test_locked_clocks_count_as_set_only_while_the_driver_stays_loaded(host: Host) -> None:
    host.go(HOPPER)
    assert not host.go(HOPPER)["changed"]
    host.gpus.sim("reload")
    host.boot_id.write_text("two\n")
    assert ids(host.go(HOPPER)) == [f"set power limit: {H100} 500 W", f"lock graphics clocks: {H100} 1200-1800 MHz"]
    assert not host.go(HOPPER)["changed"]


def test_what_another_program_has_changed_is_set_again(host: Host) -> None:
    host.go(HOPPER)
    with SettingsNvml() as nvml:
        nvml.write(nvml.devices()[2], "power_limit", 300)
    assert ids(host.go(HOPPER)) == [f"set power limit: {H100} 500 W"]


@pytest.mark.parametrize(("entry", "told"), [
    ({"gpus": "all", "power_limit": 300},
     "300 W is outside of the range of GPU 0000:17:00.0 (Tesla T4). Allowed: 60 to 70 W"),
    ({"gpus": [H100], "power_limit": 199.999}, "Allowed: 200 to 700 W"),
    ({"gpus": ["Tesla T4"], "application_clocks": {"memory": 5000, "graphics": 585}}, "Allowed: 405, 5001 MHz"),
    ({"gpus": ["Tesla T4"], "application_clocks": {"memory": 5001, "graphics": 586}}, "nearest are 585 and 600 MHz"),
    ({"gpus": [H100], "locked_graphics_clocks": {"min": 100, "max": 1800}}, "Allowed: 345 to 1980 MHz"),
    ({"gpus": [H100], "locked_memory_clocks": {"min": 1593, "max": 3000}}, "Allowed: 1593 to 2619 MHz"),
    ({"gpus": ["0"], "locked_memory_clocks": {"min": 405, "max": 5001}}, "only on Ampere and later"),
    ({"gpus": [RTX], "application_clocks": {"memory": 405, "graphics": 585}}, "NVML reports that it is not supported"),
])
def test_wrong_values_are_refused_before_anything_is_written(host: Host, entry: dict[str, t.Any], told: str) -> None:
    error = host.refused({"gpus": ["all"], "persistence": True}, entry)
    assert isinstance(error, InputError) and told in str(error) and error.details["path"].startswith("entries[1].")


def test_an_entry_for_all_gpus_leaves_out_those_without_the_setting(host: Host) -> None:
    done = host.go({"gpus": "all", "persistence": True, "locked_memory_clocks": {"min": 1593, "max": 2619}})
    assert [step for step in ids(done) if step.startswith("lock")] == [
        f"lock memory clocks: {RTX} 1593-2619 MHz", f"lock memory clocks: {H100} 1593-2619 MHz"]
    assert host.run.warnings == ["entries[0].locked_memory_clocks does not apply to GPU 0000:17:00.0 (Tesla T4): the "
                                 "driver locks these clocks only on Ampere and later."]


def test_the_compute_mode_of_a_gpu_in_mig_mode(host: Host) -> None:
    with SettingsNvml() as nvml:
        nvml.set_mode(nvml.devices()[2], True)
    assert "each MIG device has its own compute mode" in str(host.refused(
        {"gpus": [H100], "compute_mode": "prohibited"}))


def test_persistence_off_is_a_warning(host: Host) -> None:
    host.go(HOPPER)
    warning, = host.run.warnings
    assert "The persistence mode of GPU 0000:1b:00.0 (NVIDIA H100 80GB HBM3) is off" in warning
    host.go(HOPPER, ALL)
    assert host.run.warnings == []


def test_gathered_settings_are_a_declaration_without_changes(host: Host) -> None:
    host.go(ALL, HOPPER, {"gpus": ["0"], "ecc": False, "compute_mode": "exclusive_process"})
    found = host.go(state="gathered")
    assert not found["changed"] and found["reset_required"] == [T4]
    assert [entry["gpus"] for entry in found["entries"]] == [
        [line.split("|")[2]] for line in host.gpus.state.read_text().splitlines() if line.startswith("gpu ")]
    assert found["entries"][2]["locked_graphics_clocks"] == {"min": 1200, "max": 1800}
    assert found["limits"][T4] == {
        "power_limit": [60, 70], "memory_clocks": [5001, 405], "graphics_clocks": [300, 1590]}
    host.writes()
    assert not host.go(*found["entries"])["changed"] and host.writes() == []


def test_a_gpu_that_does_not_answer_is_left_out(host: Host) -> None:
    host.go(ALL)
    host.gpus.sim("fault", "set", "gpu-lost", "2")
    done = host.go({"gpus": "all", "power_limit": 70, "persistence": True}, {"gpus": [RTX], "power_limit": 300})
    assert ids(done) == [f"set power limit: {RTX} 300 W"]
    pending, = done["pending"]
    assert pending["id"] == "set GPU settings: GPU 2" and "GPU_IS_LOST" in pending["pending_reason"]
    removed = host.go(state="absent")
    assert len(removed["pending"]) == 1 and host.journal.exists()
    host.gpus.sim("fault", "clear")
    assert ids(host.go(state="absent")) == [f"restore persistence mode: {H100} off"] and not host.journal.exists()


def test_a_gpu_that_is_gone_is_forgotten(host: Host) -> None:
    host.go(ALL)
    host.gpus.sim("fault", "set", "off-bus", "2")
    host.go(state="absent")
    assert not host.journal.exists()


def test_a_failure_names_its_step_and_the_next_run_continues(host: Host) -> None:
    host.gpus.sim("fault", "set", "no-permission", "2")
    with pytest.raises(DeviceError, match=f"set persistence mode: {H100} on: .*NO_PERMISSION"):
        host.go(ALL)
    host.gpus.sim("fault", "clear")
    assert ids(host.go(ALL)) == [f"set persistence mode: {H100} on"]
    host.go(state="absent")
    assert host.settings() == ["000"] and not host.journal.exists()


def test_a_setting_that_does_not_stay_is_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SettingsNvml, "write", lambda *_words: None)
    with pytest.raises(HostError, match="power_limit is 70 W after it was set to 60 W"):
        host.go({"gpus": ["0"], "power_limit": 60})


def test_without_a_driver_check_mode_plans_and_a_run_waits(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus((Function(H100, "10de", "2330", "10de:16c1", "0302", None),), (), False, None)
    monkeypatch.setattr(pci, "read_bus", lambda _root: bus)
    host.gpus.sim("driver", "none")
    done = host.go(ALL, HOPPER, {"gpus": ["GPU-unknown"], "ecc": False}, check=True)
    assert ids(done) == [f"set persistence mode: {H100} on", f"set power limit: {H100} 500 W",
                         f"lock graphics clocks: {H100} 1200-1800 MHz"]
    assert all(step["assumed"] for step in done["plan"]) and done["reset_required"] == []
    waits = host.go(ALL, HOPPER)
    assert not waits["changed"] and waits["plan"] == waits["changes"] == waits["reset_required"] == []
    assert [(step["id"], step["pending_reason"]) for step in waits["pending"]] == [
        (step["id"], "the driver is not loaded yet") for step in done["plan"]] and not host.journal.exists()
    assert host.run.warnings[-1] == (
        "No setting is applied, because the driver is not loaded yet. Install and load the driver (module "
        "nvidia_driver), or reboot if it waits for a reboot, then run again.")
    assert not host.go(state="absent")["changed"]
    host.gpus.sim("driver", "595.91.07")
    host.go(ALL)
    host.gpus.sim("driver", "none")
    with pytest.raises(HostError, match="The former settings cannot be restored"):
        host.go(state="absent")
    for check in (False, True):
        pending, = host.go(check=check)["pending"]
        assert pending["id"] == "restore GPU settings: this host" and host.journal.exists()
    host.gpus.sim("driver", "595.91.07")
    assert len(host.go()["plan"]) == 3 and not host.journal.exists()


@pytest.mark.parametrize(("error", "why"), [
    (None, "the NVIDIA driver is not installed"),
    ("NVML cannot be used (LIB_RM_VERSION_MISMATCH). Reload.",
     "the driver does not answer: NVML cannot be used (LIB_RM_VERSION_MISMATCH). Reload")])
def test_why_settings_wait_for_the_driver(host: Host, monkeypatch: pytest.MonkeyPatch, error: str | None,
                                          why: str) -> None:
    bus = Bus((Function(H100, "10de", "2330", "10de:16c1", "0302", None),), (), False, None)
    monkeypatch.setattr(pci, "read_bus", lambda _root: bus)
    nvml = SettingsNvml()
    nvml.error = error
    result = work.SettingsRun(work.Request("present", [HOPPER], "never", False), nvml).run()
    assert {step["pending_reason"] for step in result["pending"]} == {why}
    monkeypatch.setattr(pci, "read_bus", lambda _root: bus._replace(gpus=()))
    with pytest.raises(HostError, match="This host has no NVIDIA GPU"):
        work.SettingsRun(work.Request("present", [HOPPER], "never", False), nvml).run()


def test_no_gpu_and_no_matching_entry(host: Host) -> None:
    host.go({"gpus": ["NVIDIA B200"], "power_limit": 800})
    assert host.run.warnings == ["No entry selects a GPU of this host (NVIDIA H100 80GB HBM3, NVIDIA RTX PRO 6000 "
                                 "Blackwell Server Edition, Tesla T4)."]
    for number in ("0", "1", "2"):
        host.gpus.sim("fault", "set", "off-bus", number)
    assert "This host has no NVIDIA GPU" in str(host.refused(ALL))


def test_application_clocks(host: Host) -> None:
    done = host.go({"gpus": ["Tesla T4"], "application_clocks": {"memory": 5001, "graphics": 1590}})
    assert ids(done) == [f"set application clocks: {T4} 5001 MHz memory and 1590 MHz graphics"]
    assert host.settings()[0] == "settings 0 70000 5001 1590 0 0 0 0 0 1 1"
    host.go(state="absent")
    assert host.settings() == ["000"]
