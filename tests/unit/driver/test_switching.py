# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole runs on a simulated host: the queries on a converged host, rollbacks, GPU clients, killed runs."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import stat
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import (
    attempt,
    manage,
    modules,
    removal,
    rollback,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import (
    module_parameters as options_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_deb import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.module_parameters import BOOT_FILE, boot_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import SERVICES, DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, GpuopsError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt import Apt
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYNVML
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import PERSISTENCED

from tests.unit.driver.conftest import Tree

OLD, NEW, KERNEL = "580.126.20", "595.91.07", "6.1.0-28-amd64"
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset")
USES = {"nvidia_uvm": "nvidia", "nvidia_modeset": "nvidia", "nvidia_drm": "nvidia_modeset"}
TRAIN = "train.service"


@dataclass
class Model(Tree):
    """A host: what is on its disk, in its kernel and running, and what fails there. lines: the commands that were
    run."""

    disk: str | None = None
    built: str | None = None
    loaded: dict[str, str] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    fails: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    full: bool = False

    def check_free_space(self, *_words: t.Any) -> None:
        """The disk has space for one driver; the installation of a second one fills it."""
        if self.full:
            raise HostError("The file system of /usr has 900 MiB left, the driver needs 1024 MiB there.")

    def begin(self, version: str | None) -> None:
        """A host with a GPU and a working driver."""
        self.put("etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
        self.put("proc/sys/kernel/osrelease", KERNEL)
        self.put(f"lib/modules/{KERNEL}/build/Makefile")
        for key, value in {"vendor": "0x10de", "device": "0x20b5", "class": "0x030200"}.items():
            self.put(f"sys/bus/pci/devices/0000:07:00.0/{key}", value)
        self.put(PYNVML[1:])
        self.put(BOOT_FILE[1:], boot_text(Spec(), "none").decode())
        if version:
            self.disk = self.built = version
            self.loaded = dict.fromkeys(MODULES, version)
            self.active = {PERSISTENCED}
        self.show()

    def show(self) -> None:
        """Writes the files that match the state."""
        for folder in ("sys/module", "proc/driver", "usr/lib/x86_64-linux-gnu", "var/lib/dkms"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        for name, version in self.loaded.items():
            self.put(f"sys/module/{name}/version", version)
            users = [user for user, used in USES.items() if used == name and user in self.loaded]
            self.put(f"sys/module/{name}/refcnt", str(len(users)))
            for user in users:
                self.put(f"sys/module/{name}/holders/{user}")
        if "nvidia" in self.loaded:
            self.put("proc/driver/nvidia/version", f"NVIDIA UNIX Open Kernel Module for x86_64 {self.loaded['nvidia']}")
            self.put("proc/driver/nvidia/gpus/0000:07:00.0/information", "Device Minor: \t 0\n")
            self.put("dev/nvidia0")
        if self.disk:
            self.link("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", f"libnvidia-ml.so.{self.disk}")
            self.put(f"var/lib/dkms/nvidia/{self.disk}/source")
        if self.built:
            arch = os.uname().machine
            self.link(f"var/lib/dkms/nvidia/kernel-{KERNEL}-{arch}", f"{self.built}/{KERNEL}/{arch}")

    def process(self, pid: int, unit: str) -> None:
        self.put(f"proc/{pid}/comm", "python3\n")
        self.put(f"proc/{pid}/cgroup", f"0::/system.slice/{unit}\n")
        self.link(f"proc/{pid}/fd/0", "/dev/nvidia0")

    def run(self, argv: t.Sequence[str], *, check: bool = True, hint: str = "", **options: t.Any) -> Completed:
        self.lines.append(" ".join(argv))
        before = self.disk, self.built, dict(self.loaded)
        rc, out, err = self._answer(list(argv))
        if before != (self.disk, self.built, self.loaded):
            self.show()
        if check and rc:
            raise CommandError(argv, rc, out, err, hint)
        return Completed(tuple(argv), rc, out, err)

    def _answer(self, argv: list[str]) -> tuple[int, str, str]:
        program, words = argv[0], argv[1:]
        name = words[-1].replace("-", "_") if words else ""
        if f"{program} {name} {self.disk}" in self.fails:
            return 1, "", f"{program}: ERROR: could not insert '{name}': Key was rejected by service"
        if program == "modprobe":
            self.loaded.setdefault(name, self.built or "")
        elif program == "rmmod":
            self.loaded.pop(name)
        elif program == "dkms":
            if f"dkms {words[4]}" in self.fails:
                return 10, "", "Bad return status"
            self.built = words[4]
        elif program == "nvidia-smi":
            return 0, f"{self.loaded['nvidia']}\n", ""
        elif program == "systemctl":
            return self._systemctl(words)
        return 0, "", ""

    def _systemctl(self, words: list[str]) -> tuple[int, str, str]:
        units = [word for word in words if word.endswith(".service")]
        if words[0] == "show":
            return 0, "\n\n".join(
                f"LoadState={'loaded' if unit in (PERSISTENCED, TRAIN, *self.active) else 'not-found'}\n"
                f"ActiveState={'active' if unit in self.active else 'inactive'}\nUnitFileState=enabled"
                for unit in units), ""
        if words[0] in ("start", "enable"):
            if f"start {units[0]} {self.disk}" in self.fails:
                return 1, "", "Job failed."
            self.active.add(units[0])
        else:
            self.active.discard(units[0])
            if units[0] not in SERVICES:
                shutil.rmtree(self.folder / "proc/4711")
        return 0, "", ""


class Delivery:
    """The packages of the simulated host."""

    name, dkms, installation, warnings = "cuda_repository", True, "compute-only", ()

    def __init__(self, host: Host, model: Model) -> None:
        self.host, self.model = host, model

    def installed(self) -> str | None:
        return self.model.disk

    def plan(self, now: DriverState, flavour: str) -> tuple[str, list[Step]]:
        wanted = self.host.spec.version or self.model.disk or NEW
        if wanted == self.model.disk:
            return wanted, []
        return wanted, [Step("install packages", wanted, data={"packages": {"nvidia-kernel-open-dkms": wanted}})]

    def displaced(self) -> list[Step]:
        return []

    def absent(self) -> list[Step]:
        there = bool(self.model.disk)
        return [Step("purge packages", "all", data={"packages": ["nvidia-kernel-open-dkms"]})] if there else []

    def execute(self, step: Step) -> bool:
        if step.action == "install packages":
            self.model.disk, self.model.built = step.target, None
        elif step.action == "purge packages":
            self.model.disk = self.model.built = None
        else:
            return False
        self.model.show()
        return True

    def forget_restored(self) -> None:
        pass

    def remaining(self) -> list[str]:
        return []


def place(made: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module reads and writes the simulated host."""
    monkeypatch.setattr(manage, "Journal", functools.partial(Journal, root=str(made.folder / "journal")))
    monkeypatch.setattr(manage, "check_free_space", made.check_free_space)
    monkeypatch.setattr(attempt, "choose", lambda host, _now: (Delivery(host, made), []))
    monkeypatch.setattr(rollback, "installed",
                        lambda _host, _now: (Delivery.name, made.disk, Delivery.installation) if made.disk else None)
    monkeypatch.setattr(removal, "removable", lambda host, _now: [Delivery(host, made)])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model(tmp_path)
    place(made, monkeypatch)
    return made


def present(model: Model, version: str | None, level: str = "idle", check: bool = False) -> dict[str, t.Any]:
    model.lines.clear()
    return Driver(Spec(version), level, check, model.run, Root(str(model.folder))).present()


def fails(model: Model, version: str, level: str = "idle") -> GpuopsError:
    with pytest.raises(GpuopsError) as caught:
        present(model, version, level)
    return caught.value


def kept(model: Model) -> dict[tuple[str, str], t.Any]:
    with Journal("driver", root=str(model.folder / "journal"), readonly=True) as journal:
        return journal.entries


def actions(result: dict[str, t.Any]) -> list[str]:
    return [step["action"] for step in result["plan"]]


def test_a_converged_host_is_asked_twice(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands run: dpkg-query and systemctl show. apt does not run."""
    monkeypatch.undo()
    monkeypatch.setattr(manage, "Journal", functools.partial(Journal, root=str(model.folder / "journal")))
    monkeypatch.setattr(Apt, "is_configured", lambda *_words: True)
    monkeypatch.setattr("ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work.PackageWork."
                        "_has_repository", lambda _self: True)
    model.begin(NEW)
    source = CudaRepository.for_distribution("debian", "12", "x86_64")
    assert source is not None
    names = [*source.packages(NEW, "open", True), source.pins(NEW)[0], "libnvidia-ml1"]
    packages = "".join(f"{name}\tamd64\t{NEW}-1\tii \n" for name in [*names, "dpkg"])
    answer = model.run

    def run(argv: t.Sequence[str], **options: t.Any) -> Completed:
        done = answer(argv, **options)
        return Completed(done.argv, 0, packages, "") if argv[0] == "dpkg-query" else done

    result = Driver(Spec(version=NEW, source="cuda_repository"), "never", False, run, Root(str(model.folder))).present()
    assert (result["changed"], result["pending"], result["reasons"]) == (False, [], [])
    assert [line.split()[0] for line in model.lines] == ["systemctl", "dpkg-query"]
    assert model.lines[0].startswith("systemctl show ") and not (model.folder / "journal").exists()


def test_switch(model: Model) -> None:
    model.begin(OLD)
    model.loaded["nvidia_drm"] = OLD
    model.show()
    said = present(model, NEW, check=True)
    result = present(model, NEW)
    assert actions(said) == actions(result) == [
        "unload modules", "install packages", "build modules", *["load module"] * 4, "enable and start service"]
    assert model.loaded == dict.fromkeys([*MODULES, "nvidia_drm"], NEW) and model.active == {PERSISTENCED}
    assert ("former", "driver") not in kept(model)
    assert present(model, NEW)["plan"] == []


@pytest.mark.parametrize("fault", [f"dkms {NEW}", f"modprobe nvidia_uvm {NEW}", f"start {PERSISTENCED} {NEW}"])
def test_a_failure_returns_to_the_former_driver(model: Model, fault: str) -> None:
    model.begin(OLD)
    model.loaded["nvidia_drm"] = OLD
    model.show()
    model.fails = {fault}
    error = fails(model, NEW)
    assert error.details["rolled_back"] == OLD and error.message.endswith(f"The former driver {OLD} is restored.")
    assert (model.disk, model.built) == (OLD, OLD)
    assert model.loaded == dict.fromkeys([*MODULES, "nvidia_drm"], OLD) and model.active == {PERSISTENCED}
    assert ("former", "driver") not in kept(model)
    assert present(model, OLD)["plan"] == []


def test_the_way_back_is_not_refused_for_the_room_that_a_failed_driver_has_taken(
        model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.begin(OLD)
    model.fails = {f"dkms {NEW}"}
    execute = Delivery.execute

    def fill(self: Delivery, step: Step) -> bool:
        model.full = True
        return execute(self, step)

    monkeypatch.setattr(Delivery, "execute", fill)
    assert fails(model, NEW).details["rolled_back"] == OLD
    assert fails(model, NEW).message.startswith("The file system of /usr has 900 MiB left")


def test_a_journal_that_cannot_be_read_in_time_hinders_no_way_back(
        model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.begin(OLD)
    model.fails = {f"dkms {NEW}"}
    answer = model._answer

    def hang(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "journalctl":
            raise CommandError(argv, None, "", "", "The limit was 60 s.")
        return answer(argv)

    monkeypatch.setattr(model, "_answer", hang)
    error = fails(model, NEW)
    assert error.details["rolled_back"] == OLD and "DKMS did not build" in error.message


def test_a_file_system_that_refuses_leads_back_too(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.begin(OLD)
    execute = Delivery.execute

    def refuse(self: Delivery, step: Step) -> bool:
        if step.target == NEW:
            execute(self, step)
            raise OSError(errno.EROFS, "Read-only file system", "/usr/share/keyrings")
        return execute(self, step)

    monkeypatch.setattr(Delivery, "execute", refuse)
    error = fails(model, NEW)
    assert error.message.startswith("/usr/share/keyrings: Read-only file system")
    assert error.details["rolled_back"] == OLD and model.loaded["nvidia"] == OLD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
@pytest.mark.parametrize("check", [True, False])
def test_a_masked_file_is_told_before_anything_is_changed(model: Model, monkeypatch: pytest.MonkeyPatch,
                                                          check: bool) -> None:
    """The test replaces the null device; otherwise, a defect would destroy that of this machine."""
    model.begin(OLD)
    null, masked = model.folder / "null", model.folder / BOOT_FILE[1:]
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    monkeypatch.setattr(os, "devnull", str(null))
    masked.unlink()
    masked.symlink_to(null)
    with pytest.raises(HostError, match="modules-load.d.*not a file.*must not exist on this host"):
        present(model, NEW, check=check)
    assert (model.disk, model.loaded["nvidia"], null.is_char_device()) == (OLD, OLD, True)
    assert os.readlink(masked) == str(null) and not [key for key in kept(model) if key[0] == "file"]


def test_a_gpu_that_hangs_is_hardware_and_takes_no_driver_away(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.begin(None)
    answer = model._answer

    def hang(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "nvidia-smi":
            raise CommandError(argv, None, "", "", "The limit was 120 s.")
        return answer(argv)

    monkeypatch.setattr(model, "_answer", hang)
    error = fails(model, NEW, "never")
    assert "ran out of time" in error.message and "removed again" not in error.message
    assert (model.disk, model.loaded["nvidia"]) == (NEW, NEW)


@pytest.mark.parametrize("state", ["present", "adopted"])
def test_a_lost_gpu_takes_no_driver_away_and_is_told(model: Model, monkeypatch: pytest.MonkeyPatch,
                                                     state: str) -> None:
    model.begin(OLD if state == "present" else NEW)
    answer, text = model._answer, "Unable to determine the device handle for GPU1: GPU is lost."
    monkeypatch.setattr(model, "_answer", lambda argv: (15, text, "") if argv[0] == "nvidia-smi" else answer(argv))
    result = getattr(Driver(Spec(NEW), "idle", False, model.run, Root(str(model.folder))), state)()
    assert (model.disk, model.loaded["nvidia"], result["reasons"]) == (NEW, NEW, [])
    warning, = result["warnings"]
    assert text in warning and "Reset the GPU" in warning


def test_a_value_that_a_module_refuses_leads_back_to_the_values_that_worked(
        model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.begin(OLD)
    path = str(model.folder / "zz-gpuops-nvidia.conf")
    monkeypatch.setattr(options_module, "OPTIONS_FILE", path)
    answer = model._answer

    def refuse(argv: list[str]) -> tuple[int, str, str]:
        if argv == ["modprobe", "nvidia-uvm"] and os.path.exists(path):
            return 1, "", "modprobe: ERROR: could not insert 'nvidia_uvm': Invalid argument"
        if argv[:3] == ["modinfo", "-F", "parm"]:
            return 0, "uvm_disable_hmm:Force-disable HMM (bool)\n", ""
        return answer(argv)

    monkeypatch.setattr(model, "_answer", refuse)
    spec = Spec(OLD, module_parameters={"nvidia_uvm": {"uvm_disable_hmm": "maybe"}})
    with pytest.raises(GpuopsError) as caught:
        Driver(spec, "idle", False, model.run, Root(str(model.folder))).present()
    assert "Invalid argument" in caught.value.message and caught.value.details["rolled_back"] == OLD
    assert not os.path.exists(path)
    assert model.loaded == dict.fromkeys(MODULES, OLD) and model.active == {PERSISTENCED}
    assert present(model, OLD)["plan"] == []


def test_a_rejected_signature_is_explained(model: Model) -> None:
    model.begin(OLD)
    model.fails = {f"modprobe nvidia {NEW}"}
    error = fails(model, NEW)
    assert "Key was rejected by service" in error.message and error.details["rolled_back"] == OLD
    assert error.details["explained"][0]["meaning"].startswith("Secure Boot is on")


def test_a_failed_way_back_names_both_and_the_next_run_knows_the_former_driver(model: Model) -> None:
    model.begin(OLD)
    model.fails = {f"dkms {NEW}", f"dkms {OLD}"}
    error = fails(model, NEW)
    assert error.details["rolled_back"] is None and OLD in error.details["rollback_error"]
    assert f"The rollback to driver {OLD} failed, too" in error.message and NEW in error.message
    assert kept(model)["former", "driver"]["before"]["version"] == OLD
    model.fails = {f"dkms {NEW}"}
    assert fails(model, NEW).details["rolled_back"] == OLD
    assert present(model, OLD)["plan"] == [] and model.active == {PERSISTENCED}


def test_a_failed_first_install_is_taken_away(model: Model) -> None:
    model.begin(None)
    (model.folder / "journal").mkdir()
    model.fails = {f"dkms {NEW}"}
    error = fails(model, NEW, "never")
    assert (model.disk, model.loaded, error.details["rolled_back"]) == (None, {}, None)
    assert error.message.endswith("Everything that this run installed is removed again.") and kept(model) == {}


def test_a_failed_repair_has_nothing_to_return_to(model: Model) -> None:
    model.begin(OLD)
    model.built, model.fails = None, {f"dkms {OLD}"}
    model.show()
    error = fails(model, OLD)
    assert error.details["rolled_back"] is None and "The rollback" not in error.message
    assert model.loaded["nvidia"] == OLD


def test_services_of_others_wait_for_drain_and_start_again(model: Model) -> None:
    model.begin(OLD)
    model.active.add(TRAIN)
    model.process(4711, TRAIN)
    waiting = present(model, NEW)
    assert not waiting["changed"] and waiting["pending"][0]["pending_reason"].startswith(f"held by {TRAIN}; ")
    assert waiting["holders"][0]["unit"] == TRAIN
    result = present(model, NEW, "drain")
    assert actions(result)[0] == "unload modules" and actions(result)[-1] == "start stopped service again"
    assert model.active == {TRAIN, PERSISTENCED} and model.loaded["nvidia"] == NEW


@pytest.mark.parametrize("unit", ["user@1000.service/app.slice/train.service", "slurmd.service", "session-1.scope",
                                  "cron.service", "pbs.service", "actions.runner.site.gpu1.service",
                                  f"docker-{'ab' * 32}.scope"])
def test_work_of_others_is_never_stopped(model: Model, unit: str) -> None:
    model.begin(OLD)
    model.process(4711, unit)
    if unit.startswith("user@"):
        model.put("proc/4711/cgroup", f"0::/user.slice/user-1000.slice/{unit}\n")
    result = present(model, NEW, "drain")
    assert not result["changed"] and "in use by python3 (pid 4711" in result["pending"][0]["pending_reason"]
    assert not result["reboot_required"] and not any("stop" in line for line in model.lines)


def test_a_reboot_loads_what_is_held(model: Model) -> None:
    model.begin(OLD)
    model.process(4711, "session-1.scope")
    said = present(model, NEW, "reboot", check=True)
    result = present(model, NEW, "reboot")
    assert actions(said) == actions(result) == ["install packages", "build modules"]
    assert said["reboot_required"] and result["reboot_required"] and result["pending"][0]["action"] == "unload modules"
    assert model.loaded["nvidia"] == OLD and model.disk == NEW
    shutil.rmtree(model.folder / "proc/4711")
    model.loaded, model.active = {}, set()  # the reboot
    model.show()
    model.fails = {f"modprobe nvidia_uvm {NEW}"}
    assert fails(model, NEW, "reboot").details["rolled_back"] == OLD
    assert model.loaded["nvidia"] == OLD


def test_a_driver_that_a_reboot_has_loaded_is_looked_at_before_the_former_one_is_forgotten(
        model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same applies if a run was killed after its last step."""
    model.begin(OLD)
    model.process(4711, "session-1.scope")
    present(model, NEW, "reboot")
    shutil.rmtree(model.folder / "proc/4711")
    model.loaded = dict.fromkeys(MODULES, NEW)  # the reboot: modules and service start by themselves
    model.show()
    answer = model._answer

    def fail(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "nvidia-smi" and model.loaded["nvidia"] == NEW:
            return 9, "", "No devices were found"
        return answer(argv)

    monkeypatch.setattr(model, "_answer", fail)
    error = fails(model, NEW, "reboot")
    assert "No devices were found" in error.message and error.details["rolled_back"] == OLD
    assert (model.disk, model.loaded["nvidia"]) == (OLD, OLD) and ("former", "driver") not in kept(model)


def test_a_failure_beside_a_held_module_leaves_it_at_work(model: Model) -> None:
    model.begin(OLD)
    model.process(4711, "session-1.scope")
    model.fails = {f"dkms {NEW}"}
    assert fails(model, NEW, "reboot").details["rolled_back"] == OLD
    assert (model.disk, model.built, model.loaded) == (OLD, OLD, dict.fromkeys(MODULES, OLD))
    assert not any(line.startswith(("rmmod", "systemctl stop")) for line in model.lines)


def test_an_adopted_driver_that_does_not_work_is_explained(model: Model) -> None:
    model.begin(NEW)
    model.loaded = dict.fromkeys(MODULES, OLD)
    model.show()
    with pytest.raises(GpuopsError) as caught:
        Driver(Spec(), "never", False, model.run, Root(str(model.folder))).adopted()
    assert "and the libraries have different versions" in caught.value.message
    assert "set driver_state: present, and driver.enabled: true if the policy" in caught.value.hint


def test_options_without_effect_on_an_adopted_driver_are_named(model: Model) -> None:
    model.begin(NEW)
    spec = Spec(hold_kernel=True, fabric_manager_settings={"FABRIC_MODE": 0}, imex_nodes=[], module_parameters={},
                source="runfile", runfile={"src": "/a.run"}, repository=t.cast(t.Any, {"url": None}))
    result = Driver(spec, "never", False, model.run, Root(str(model.folder))).adopted()
    assert result["warnings"] == [
        "source, runfile, fabric_manager_settings, hold_kernel: no effect with state adopted, which only verifies the "
        "driver."]
    assert "warnings" not in Driver(Spec(), "never", False, model.run, Root(str(model.folder))).adopted()


def test_a_killed_run_starts_what_it_had_stopped_even_where_it_may_not_go_on(model: Model) -> None:
    model.begin(OLD)
    with Journal("driver", root=str(model.folder / "journal")) as journal:
        journal.keep("paused", PERSISTENCED, None)
    model.active.clear()
    model.process(4711, "session-1.scope")
    result = present(model, NEW)
    assert actions(result) == ["enable and start service"] and model.active == {PERSISTENCED}
    assert result["pending"][0]["action"] == "unload modules"


def test_libraries_of_another_version_are_told(model: Model) -> None:
    model.begin(NEW)
    model.loaded = dict.fromkeys(MODULES, OLD)
    model.show()
    said = present(model, None, "never")
    assert "Driver/library version mismatch" in said["pending"][0]["reason"] and said["reboot_required"]
    assert any("Driver/library version mismatch" in reason for reason in said["reasons"])
    assert present(model, None)["reasons"] == [] and model.loaded["nvidia"] == NEW


def test_what_is_removed_under_drain_stays_stopped(model: Model) -> None:
    model.begin(OLD)
    model.active.add(TRAIN)
    model.process(4711, TRAIN)
    driver = Driver(Spec(), "drain", False, model.run, Root(str(model.folder)))
    assert driver.absent()["plan"][0]["action"] == "unload modules"
    assert (model.disk, model.loaded, TRAIN in model.active, kept(model)) == (None, {}, False, {})


def test_units_are_stopped_in_order() -> None:
    assert list(SERVICES)[-1] == PERSISTENCED


def waits(result: dict[str, t.Any], why: str) -> None:
    """The unload and the steps after it are pending, and the result names the job."""
    assert "unload modules" not in actions(result) and result["pending"][0]["action"] == "unload modules"
    assert result["pending"][0]["pending_reason"] == why
    later = [step["pending_reason"] for step in result["pending"][1:]]
    assert later and set(later) == {f"it follows '{result['pending'][0]['id']}'"}
    assert [holder["pid"] for holder in result["holders"]] == [4711]
    assert f"{result['pending'][0]['id']} waits: {why}" in result["reasons"]


@pytest.mark.parametrize("where", ["present", "absent"])
def test_a_job_that_starts_after_the_plan_keeps_its_services(model: Model, monkeypatch: pytest.MonkeyPatch,
                                                            where: str) -> None:
    """A download can take place between the plan and the unload, so clients are read again before a service stops."""
    model.begin(OLD)

    def start(what: t.Any) -> t.Any:
        def later(*words: t.Any) -> t.Any:
            if not (model.folder / "proc" / "4711").exists():
                model.process(4711, "session-1.scope")
            return what(*words)
        return later

    monkeypatch.setattr(attempt.Attempt, "apply", start(attempt.Attempt.apply))
    monkeypatch.setattr(removal.Removal, "execute", start(removal.Removal.execute))
    model.lines.clear()
    waits(getattr(Driver(Spec(NEW), "idle", False, model.run, Root(str(model.folder))), where)(),
          "the modules are in use by python3 (pid 4711, session-1.scope) on 0000:07:00.0 since the plan was made; "
          "nothing was stopped")
    assert (model.active, model.loaded, model.disk) == ({PERSISTENCED}, dict.fromkeys(MODULES, OLD), OLD)
    assert not [line for line in model.lines if "stop" in line or "start" in line or "rmmod" in line]
    with Journal("driver", root=str(model.folder / "journal"), readonly=True) as journal:
        assert journal.unfinished is None and journal.get("former", "driver") is None


@pytest.mark.parametrize("where", ["present", "absent"])
@pytest.mark.parametrize("late", ["systemctl stop", *(f"rmmod {name}" for name in (*MODULES[1:], MODULES[0]))])
def test_a_job_that_starts_while_modules_go_keeps_a_whole_driver(model: Model, monkeypatch: pytest.MonkeyPatch,
                                                                where: str, late: str) -> None:
    """Whenever the job starts, modules that were unloaded and services that were stopped come back, and the pending
    steps name the job."""
    model.begin(OLD)
    answer = model._answer

    def held(argv: list[str]) -> tuple[int, str, str]:
        if " ".join(argv).startswith(late) and not (model.folder / "proc" / "4711").exists():
            model.process(4711, "session-1.scope")
        if argv[0] == "rmmod" and (model.folder / "proc" / "4711").exists():
            return 1, "", f"rmmod: ERROR: Module {argv[1]} is in use\n"
        return answer(argv)

    monkeypatch.setattr(model, "_answer", held)
    waits(getattr(Driver(Spec(NEW), "idle", False, model.run, Root(str(model.folder))), where)(),
          "the modules are in use by python3 (pid 4711, session-1.scope) on 0000:07:00.0 since the plan was made; "
          "they are loaded again")
    assert (model.active, model.loaded, model.disk) == ({PERSISTENCED}, dict.fromkeys(MODULES, OLD), OLD)
    assert not any(kind == "paused" for kind, _unit in kept(model))


def test_a_job_that_ends_is_followed_by_the_change(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run executes the pending steps."""
    model.begin(OLD)
    monkeypatch.setattr(modules, "read_holders", lambda _root: [
        {"pid": 4711, "name": "python3", "gpu": None, "instance": None, "unit": None, "container": None}])
    first = present(model, NEW)
    monkeypatch.undo()
    place(model, monkeypatch)
    again = present(model, NEW)
    assert first["pending"] and actions(again)[0] == "unload modules" and not again["pending"]
    assert (model.loaded, model.disk) == (dict.fromkeys(MODULES, NEW), NEW)


@pytest.mark.parametrize("where", ["present", "absent"])
def test_modules_that_do_not_come_back_are_an_error(model: Model, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A module that could not be loaded again is an error, not a pending change."""
    model.begin(OLD)
    answer = model._answer

    def held(argv: list[str]) -> tuple[int, str, str]:
        if argv == ["rmmod", "nvidia"]:
            model.process(4711, "session-1.scope")
            return 1, "", "rmmod: ERROR: Module nvidia is in use\n"
        return (1, "", "modprobe: ERROR: no") if argv == ["modprobe", "nvidia_uvm"] else answer(argv)

    monkeypatch.setattr(model, "_answer", held)
    with pytest.raises(HostError, match=r"nvidia cannot be unloaded: .*; in use by python3 \(pid 4711"):
        getattr(Driver(Spec(NEW), "idle", False, model.run, Root(str(model.folder))), where)()
