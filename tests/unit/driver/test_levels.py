# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each act of nvidia_driver at each level: whole runs, and the steps of the services for the fabric."""

from __future__ import annotations

import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.nouveau import DENY_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import gate_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import Services, restart
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER, IMEX, PERSISTENCED
from ansible_collections.gpuops.nvidia.tests.unit.driver.test_services import client
from ansible_collections.gpuops.nvidia.tests.unit.driver.test_signing import DER, VARIABLES
from ansible_collections.gpuops.nvidia.tests.unit.driver.test_switching import (
    NEW,
    OLD,
    TRAIN,
    USES,
    Model,
    model,  # noqa: F401
    place,
)
from ansible_collections.gpuops.nvidia.tests.unit.levels import NO, REBOOT, TABLE, YES, cases, on_page
from hypothesis import given, settings
from hypothesis import strategies as st

UNLOAD = "unload modules: nvidia_uvm nvidia_modeset nvidia"
ASKED = VARIABLES.format("MokNew")
BOX, SESSION = f"docker-{'ab' * 32}.scope", "session-1.scope"


class Act(t.NamedTuple):
    """The step and its command on a host with this driver and with a GPU client in this unit."""

    step: str
    command: str
    driver: str | None = OLD
    unit: str = ""
    prepare: t.Callable[[Model], None] = lambda _model: None
    state: str = "present"


class FabricAct(t.NamedTuple):
    """What happens to a service of the fabric while a unit uses a GPU; None: no unit uses one."""

    service: str
    verb: str
    unit: str | None = None


def stop_service(model: Model) -> None:  # noqa: F811
    model.active.clear()


def rival(*users: str) -> t.Callable[[Model], None]:
    """nouveau uses the GPU."""
    def prepare(model: Model) -> None:  # noqa: F811
        model.put(DENY_FILE[1:])
        model.loaded = dict.fromkeys(("nouveau", *users), "-")
        model.show()
    return prepare


def secure(model: Model) -> None:  # noqa: F811
    """Ubuntu with Secure Boot, where the enrolment of the key of DKMS has been requested."""
    model.put("etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
    model.put(VARIABLES.format("MokListRT")[1:], b"\6\0\0\0distributor")
    model.put(ASKED[1:], b"\7\0\0\0" + DER)
    model.put("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1")
    model.put("var/lib/shim-signed/mok/MOK.der", DER)


ACTS: dict[str, list[t.Union[Act, FabricAct]]] = {
    "install the first driver and load its modules": [Act("load module: nvidia", "modprobe nvidia", None)],
    "start a service of the driver that should run": [
        Act(f"enable and start service: {PERSISTENCED}", f"systemctl enable --now {PERSISTENCED}", NEW,
            prepare=stop_service)],
    "unload nouveau that nothing uses": [
        Act("unload conflicting module: nouveau", "rmmod nouveau", None, prepare=rival())],
    "unload nouveau that a console or a display uses": [
        Act("unload conflicting module: nouveau", "rmmod nouveau", None,
            prepare=rival("fbcon"))],
    "unload and load the modules while nothing uses a GPU": [Act(UNLOAD, "rmmod nvidia")],
    "unload and load the modules while a service of the system uses a GPU": [
        Act(UNLOAD, "rmmod nvidia", unit=unit) for unit in (TRAIN, "nvidia-mps.service")],
    "unload and load the modules while a container, a session or another process uses a GPU": [
        Act(UNLOAD, "rmmod nvidia", unit=unit) for unit in (BOX, SESSION)],
    "stop or restart the fabric manager or IMEX while nothing uses a GPU": [
        FabricAct(FABRIC_MANAGER, "disable --now"), FabricAct(IMEX, "restart")],
    "stop or restart the fabric manager or IMEX while a service of the system uses a GPU": [
        FabricAct(FABRIC_MANAGER, "restart", TRAIN), FabricAct(IMEX, "disable --now", TRAIN)],
    "stop or restart the fabric manager or IMEX while another process uses a GPU": [
        FabricAct(FABRIC_MANAGER, "disable --now", ""), FabricAct(IMEX, "restart", "")],
    "replace the driver while its key waits for the console": [Act(UNLOAD, "rmmod nvidia", prepare=secure)],
    "remove the driver while nothing uses a GPU": [Act(UNLOAD, "rmmod nvidia", state="absent")],
    "remove the driver while a service of the system uses a GPU": [
        Act(UNLOAD, "rmmod nvidia", unit=TRAIN, state="absent")],
    "remove the driver while another process uses a GPU": [Act(UNLOAD, "rmmod nvidia", unit=BOX, state="absent")],
}


def carried_out(model: Model, act: Act, level: str) -> str:  # noqa: F811
    """What a run reports about the step, which equals what it does."""
    model.begin(act.driver)
    act.prepare(model)
    if act.unit:
        model.active.add(act.unit)
        model.process(4711, act.unit)
    driver = Driver(Spec(NEW), level, False, model.run, Root(str(model.folder)))
    result = driver.present() if act.state == "present" else driver.absent()
    done = act.step in [step["id"] for step in result["plan"]]
    assert done == (act.command in model.lines) != (act.step in [step["id"] for step in result["pending"]])
    if done:
        return YES
    assert not [line for line in model.lines if line.startswith(("rmmod", "systemctl stop", "systemctl restart"))]
    # The role reboots at this level alone, and never for what takes somebody at the console.
    return REBOOT if level == "reboot" and result["reboot_required"] and not result["mok"]["pending"] else NO


def serviced(made: t.Any, act: FabricAct, level: str) -> str:
    """What the run does with the service."""
    made.works(persistenced="active", fabricmanager="active", imex="active")
    if act.unit is not None:
        client(made, act.unit)
    part = made.part(Services)
    if act.verb == "restart":
        phased = restart(part.host, made.now, made.desired, act.service, True)
    else:
        made.journal.keep("service", act.service, {"state": "inactive", "enabled": "disabled"})
        phased = part.plan(made.now, made.desired)
    allowed, pending = gate_driver([step for _phase, step in phased], level)
    for step in allowed:
        part.execute(step)
    done = ("systemctl", *act.verb.split(), act.service) in made.asked
    assert (len(allowed), len(pending), bool(made.asked)) == (done, not done, done)
    return YES if done else NO


@pytest.mark.parametrize(("act", "level", "said"), [
    pytest.param(one, level, said, id=f"{name}-{level}") for name, level, said in cases("driver")
    for one in ACTS[name]])
def test_an_act_needs_its_level(model: Model, made: t.Any, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
                                act: Act | FabricAct, level: str, said: str) -> None:
    monkeypatch.setitem(USES, "fbcon", "nouveau")
    found = carried_out(model, act, level) if isinstance(act, Act) else serviced(made, act, level)
    assert found == said


@pytest.mark.parametrize("level", ["idle", "drain"])
def test_the_way_back_stops_a_service_from_drain_on(model: Model, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
                                                    level: str) -> None:
    """systemd restarts a service until it finds the new driver, and the new driver then fails."""
    model.begin(OLD)
    model.fails = {f"start {PERSISTENCED} {NEW}"}
    answer = model._answer

    def start_client(argv: list[str]) -> tuple[int, str, str]:
        if argv == ["modprobe", "nvidia-uvm"] and model.disk == NEW:
            model.active.add(TRAIN)
            model.process(4711, TRAIN)
        return answer(argv)

    monkeypatch.setattr(model, "_answer", start_client)
    with pytest.raises(GpuopsError) as caught:
        Driver(Spec(NEW), level, False, model.run, Root(str(model.folder))).present()
    stopped = f"systemctl stop {TRAIN}" in model.lines
    assert (stopped, caught.value.details["rolled_back"]) == ((True, OLD) if level == "drain" else (False, None))
    assert TRAIN in model.active
    assert stopped or (f"held by {TRAIN}; gpu_disruption is 'idle', this needs 'drain' or higher"
                       in caught.value.details["rollback_error"])


def test_check_mode_foretells_that_a_key_waits_for_the_console(
        model: Model, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """This tells the playbook that no Node has to be taken out of service for the driver."""
    model.begin(OLD)
    secure(model)
    (model.folder / ASKED[1:]).unlink()
    model.put("usr/bin/mokutil")
    model.put("etc/shadow", "root:$6$salt$hash:19000:::::\n")
    answer = model._answer

    def ask(argv: list[str]) -> tuple[int, str, str]:
        if argv[:2] == ["mokutil", "--import"]:
            model.put(ASKED[1:], b"\7\0\0\0" + DER)
        return answer(argv)

    monkeypatch.setattr(model, "_answer", ask)
    for check in (True, False, False):
        result = Driver(Spec(NEW), "drain", check, model.run, Root(str(model.folder))).present()
        assert result["mok"] == {"enrolled": False, "pending": True}
        assert result["reboot_required"] and result["pending"][0]["needs"] == "reboot"
        assert all(step["action"] == "request enrolment of key" for step in result["plan"])


# -- hosts by chance

class Guarded(Model):
    """A host at a level below drain: a step that disturbs a GPU client fails the test. late: a unit that opens the GPU
    as soon as it can. loaded_before: whether modules were loaded before the run; at never, they stay loaded."""

    level, late, loaded_before = "never", "", False

    def _answer(self, argv: list[str]) -> tuple[int, str, str]:
        disturbs = argv[0] == "rmmod" and argv[1] != "nouveau" or argv[0] == "systemctl" and (
            argv[1] in ("stop", "restart") or argv[1] == "disable" and argv[-1] in (FABRIC_MANAGER, IMEX))
        if disturbs:
            assert not (self.folder / "proc/4711").exists(), f"{argv} with a GPU client"
            assert self.level == "idle" or not self.loaded_before, f"{argv} at the level never"
        if argv == ["rmmod", "nouveau"]:
            assert "fbcon" not in self.loaded
        assert argv[0] in ("rmmod", "modprobe", "dkms", "nvidia-smi", "systemctl", "modinfo", "journalctl", "mokutil",
                           "udevadm"), argv
        answer = super()._answer(argv)
        if self.late and argv == ["modprobe", "nvidia-uvm"]:
            self.active.add(self.late)
            self.process(4711, self.late)
        return answer


USERS = st.sampled_from(["", TRAIN, "nvidia-mps.service", BOX, SESSION, "kubepods-pod1.slice/cri-containerd-1.scope"])
FAULTS = st.sets(st.sampled_from([f"dkms {NEW}", f"modprobe nvidia_uvm {NEW}", f"start {PERSISTENCED} {NEW}"]),
                 max_size=1)


@given(st.sampled_from(["never", "idle"]), st.sampled_from(["present", "absent"]), st.sampled_from([None, OLD, NEW]),
       st.sampled_from([OLD, NEW]), USERS, USERS, st.sets(st.sampled_from([FABRIC_MANAGER, IMEX, PERSISTENCED])),
       FAULTS, st.sampled_from([(), ("nouveau",), ("nouveau", "fbcon")]), st.booleans())
@settings(max_examples=60)
def test_below_drain_no_run_disturbs_a_gpu_client(level: str, state: str, there: str | None, wanted: str, user: str,
                                                  late: str, services: set[str], faults: set[str],
                                                  rivals: tuple[str, ...], secured: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        host = Guarded(Path(folder))
        place(host, patch)
        patch.setattr(os, "fsync", lambda _number: None)
        patch.setitem(USES, "fbcon", "nouveau")
        host.begin(there)
        host.level, host.late, host.loaded_before, host.fails = level, late, bool(there), faults
        if rivals and not there:
            rival(*rivals[1:])(host)
        if secured:
            secure(host)
        if user and there:
            host.active.add(user)
            host.process(4711, user)
        host.active |= services
        with Journal("driver", root=str(host.folder / "journal")) as journal:
            for unit in services - {PERSISTENCED}:  # of a former run, and not wanted any more
                journal.keep("service", unit, {"state": "inactive", "enabled": "disabled"})
        driver = Driver(Spec(wanted), level, False, host.run, Root(folder))
        try:
            result = driver.present() if state == "present" else driver.absent()
        except GpuopsError:
            return
        assert all(allows(level, step["needs"]) for step in result["plan"])


def test_the_table_is_whole() -> None:
    assert ACTS.keys() == TABLE["driver"].keys()
    assert on_page("driver.md") == TABLE["driver"]
