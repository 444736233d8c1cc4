# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that are not healthy are reset once, below the level drain only while no process uses them."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _gpu_reset
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._gpu_reset import HOST, Request, ResetRun
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import clients, holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model
from ansible_collections.gpuops.nvidia.tests.unit.mig.test_holders import (
    POD,
    SECOND,
    SERVICE,
    SESSION,
    UID,
    A,
    B,
    Host,
    place,
)

WHY = "the driver recommends the action reset"
RESET = "nvidia-smi --gpu-reset -i "


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path, Model((A, "20b2"), (B, "20b2")))
    place(made, monkeypatch)
    monkeypatch.setattr(_gpu_reset, "Journal",
                        lambda concern, readonly: Journal(concern, str(tmp_path / "j"), readonly))
    monkeypatch.setattr(clients, "JOURNAL_ROOT", str(tmp_path / "j"))
    return made


def go(host: Host, *gpus: str, level: str = "idle", **more: t.Any) -> dict[str, t.Any]:
    check, again, reboot = more.get("check", False), more.get("again", False), more.get("reboot", "")
    request = Request(dict.fromkeys(gpus, WHY), reboot, level, check, again)
    return ResetRun(request, host.model, Root(str(host.root)), host.run,  # type: ignore[arg-type]
                    str(host.root.parent / "state" / "remedies.json"), lambda: 1.8e9).run()


def ids(steps: t.Sequence[dict[str, t.Any]]) -> list[str]:
    return [str(step["id"]) for step in steps]


def test_an_idle_gpu_is_reset_once(host: Host) -> None:
    before = go(host, A, B, check=True)
    assert host.calls == [] and not (host.root.parent / "state").exists()
    done = go(host, A, B)
    assert ids(done["plan"]) == ids(before["plan"]) == [f"reset GPU: {A}", f"reset GPU: {B}"]
    assert host.calls == [f"{RESET}{A}", f"{RESET}{B}"] and done["changed"] and done["reset"] == [A, B]
    again = go(host, A, level="reboot")
    assert not again["changed"] and again["refused"] == [A] and len(host.calls) == 2
    assert again["pending"][0]["pending_reason"] == (
        "a run has done the same at 2027-01-15T08:00:00Z, so a person has to look at it")
    assert go(host, A, again=True)["reset"] == [A]


@pytest.mark.parametrize(("level", "done"), [("never", False), ("idle", False), ("drain", True), ("reboot", True)])
def test_processes_are_stopped_from_the_level_drain_on(host: Host, level: str, done: bool) -> None:
    host.model.clients_of[A] = [(SERVICE, None), (SESSION, None)]
    result = go(host, A, level=level)
    assert host.calls == (["systemctl stop train.service", f"kill {SESSION}", f"{RESET}{A}",
                           "systemctl start train.service"] if done else [])
    assert (len(result["pending"]), len(result["plan"])) == ((0, 3) if done else (2, 0))
    assert [one["pid"] for one in result["holders"]] == [SERVICE, SESSION]


def test_a_service_that_uses_several_gpus_is_stopped_and_started_once(host: Host) -> None:
    host.model.clients_of = {A: [(SERVICE, None)], B: [(SERVICE, None), (SESSION, None)]}
    before = go(host, A, B, level="drain", check=True)
    done = go(host, A, B, level="drain")
    assert ids(before["plan"]) == ids(done["plan"])
    assert host.calls == ["systemctl stop train.service", f"{RESET}{A}", f"kill {SESSION}", f"{RESET}{B}",
                          "systemctl start train.service"]


@pytest.mark.parametrize("group", ["system.slice/sshd.service", "system.slice/slurmd.service",
                                   "system.slice/cron.service", "user.slice/user-0.slice/train.service"])
def test_a_service_that_runs_users_work_is_not_stopped(host: Host, group: str) -> None:
    (host.root / f"proc/{SERVICE}/cgroup").write_text(f"0::/{group}\n")
    host.model.clients_of[A] = [(SERVICE, None)]
    go(host, A, level="drain")
    assert host.calls == [f"kill {SERVICE}", f"{RESET}{A}"]


@pytest.mark.parametrize("unit", ["enabled", "masked", "missing"])
def test_settings_are_applied_again_after_a_reset(host: Host, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    """The unit has not run since it was installed, or it has failed: it is started in any case."""
    link, path = host.root.parent / "wants", host.root.parent / "gpuops-settings.service"
    monkeypatch.setattr(clients, "SETTINGS", str(link / path.name))
    if unit != "missing":
        link.mkdir()
        (link / path.name).symlink_to(path if unit == "enabled" else os.devnull)
        path.write_text("")
    host.model.clients_of[B] = [(SERVICE, None)]
    go(host, A, B, again=True, level="drain")
    assert host.calls[3:] == [*["systemctl restart gpuops-settings.service"] * (unit == "enabled"),
                              "systemctl start train.service"]
    calls = len(host.calls)
    go(host)
    assert len(host.calls) == calls


def test_clocks_of_a_reset_gpu_do_not_count_as_locked(host: Host) -> None:
    """Nobody can read locked clocks, so the journal of gpu_settings must not say that they are set."""
    def locked() -> list[str]:
        with Journal("gpu_settings", str(host.root.parent / "j"), True) as journal:
            return list(journal.of_kind("locked"))

    keys = {pci: f"gpu-of-{pci.replace(':', '-')}/locked_graphics_clocks" for pci in (A, B)}
    with Journal("gpu_settings", str(host.root.parent / "j")) as journal:
        for key in keys.values():
            journal.keep("setting", key, None)
            journal.keep("locked", key, "this load")
    go(host, A, check=True)
    go(host, A, level="never")
    assert locked() == list(keys.values())
    host.refused.add(f"{RESET}{A}")
    with pytest.raises(HostError):
        go(host, A)  # who knows what it has done
    assert locked() == [keys[B]]
    host.model.silent = [(0, "RESET_REQUIRED")]  # its UUID is unknown
    host.refused.clear()
    go(host, A, again=True)
    assert locked() == []


def test_a_process_in_a_pod_gets_no_signal(host: Host) -> None:
    (host.root / f"var/log/pods/ml_train-0_{UID}").mkdir(parents=True)
    host.model.clients_of[A] = [(POD, None), (SERVICE, None)]
    result = go(host, A, B, level="reboot")
    assert host.calls == [f"{RESET}{B}"] and result["reset"] == [B] and result["refused"] == []
    assert "in use by pod ml/train-0; evict these pods" in result["pending"][0]["pending_reason"]


def test_a_gpu_that_does_not_answer_is_reset(host: Host) -> None:
    host.model.silent = [(0, "RESET_REQUIRED")]
    assert go(host, A)["reset"] == [A]


def test_a_reset_that_has_not_helped_is_said_and_the_others_go_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.model.silent = [(0, "RESET_REQUIRED")]
    monkeypatch.setattr(host.model, "heal", lambda _pci: None)
    result = go(host, A, B)
    assert (result["unanswered"], result["reset"], host.calls) == ([A], [A, B], [f"{RESET}{A}", f"{RESET}{B}"])
    host.model.silent = []
    assert go(host, B, again=True)["unanswered"] == []


@pytest.mark.parametrize("answers", [False, True])
def test_processes_that_have_a_sick_gpu_open_are_found(host: Host, answers: bool) -> None:
    """NVML lists no process of a GPU that needs a reset."""
    if answers:
        host.model.ill.add(A)
    else:
        host.model.silent = [(0, "RESET_REQUIRED")]
    host.opens(SERVICE, A, 0)
    host.opens(SESSION, B, 1)
    assert go(host, A)["pending"][0]["id"] == f"stop GPU clients: {A} watcher ({SERVICE}, train.service)"
    assert not (host.root.parent / "state").exists()
    assert go(host, A, level="drain")["reset"] == [A]
    assert host.calls == ["systemctl stop train.service", f"{RESET}{A}", "systemctl start train.service"]


def test_a_reset_that_is_refused_because_the_gpu_is_in_use_does_not_count(host: Host) -> None:
    words = (f"The following GPUs could not be reset:\n  GPU 0000{A}: In use by another client\n\n1 device is "
             "currently being used by one or more other processes")
    run = host.run

    def refuse(argv: t.Sequence[str], **options: t.Any) -> Completed:
        if "--gpu-reset" in argv:
            raise CommandError(argv, 19, words, "")
        return run(argv, **options)

    host.run = refuse  # type: ignore[method-assign]
    with pytest.raises(HostError, match=f"GPU {A} could not be reset: .*In use by.* fuser -v /dev/nvidia"):
        go(host, A)
    host.run = run  # type: ignore[method-assign]
    assert go(host, A)["reset"] == [A]
    record = host.root.parent / "state" / "remedies.json"
    former = record.read_text()
    host.run = refuse  # type: ignore[method-assign]
    with pytest.raises(HostError):
        go(host, A, again=True)
    assert record.read_text() == former


def test_a_gpu_that_is_gone_after_the_reset_of_another_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.model, "open", lambda: host.model.silent.append((1, "GPU_IS_LOST")))
    host.model.clients_of[B] = [(SERVICE, None)]
    with pytest.raises(HostError, match=f"GPU {B} does not answer after the reset of GPU {A}. Reboot the host."):
        go(host, A, B, level="drain")
    assert host.calls == [f"{RESET}{A}"]
    assert list(json.loads((host.root.parent / "state" / "remedies.json").read_text())) == [A]


def test_services_of_a_killed_run_start_again_in_the_next(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(_clients: clients.Clients, _pci: str) -> None:
        raise Killed

    host.model.clients_of[A] = [(SERVICE, None), (SECOND, None)]
    with monkeypatch.context() as patch:
        patch.setattr(clients.Clients, "reset", kill)
        patch.setattr(holders.Pauses, "start_all", lambda _self: None)  # a killed process does nothing at its end
        with pytest.raises(Killed):
            go(host, A, level="drain")
    host.calls.clear()
    host.model.available = False  # NVML is not needed for this
    check = go(host, level="never", check=True)
    assert host.calls == [] and ids(check["plan"]) == [
        "start service: serve.service", "start service: train.service"]
    done = go(host, level="never")
    assert ids(done["plan"]) == ids(check["plan"]) and done["changed"]
    assert host.calls == ["systemctl start serve.service", "systemctl start train.service"]
    assert not go(host, level="never")["changed"] and not (host.root.parent / "j").exists()


def test_services_of_a_killed_run_stay_stopped_for_the_next_reset(host: Host) -> None:
    with Journal("mig", str(host.root.parent / "j")) as journal:
        journal.keep("paused", "train.service", None)
    done = go(host, A)
    assert ids(done["plan"]) == [f"reset GPU: {A}", "start service: train.service"]
    assert host.calls == [f"{RESET}{A}", "systemctl start train.service"]


def test_a_reset_that_fails_counts_and_services_start_again(host: Host) -> None:
    host.refused.add(f"{RESET}{A}")
    host.model.clients_of[A] = [(SERVICE, None)]
    with pytest.raises(HostError, match=f"GPU {A} could not be reset"):
        go(host, A, B, level="drain")
    assert host.calls[-1] == "systemctl start train.service"
    assert go(host, A)["refused"] == [A]


def test_a_reboot_is_recorded_and_no_gpu_is_reset(host: Host) -> None:
    assert go(host, A, reboot="it is lost", level="drain")["pending"][0]["needs"] == "reboot"
    found = go(host, A, reboot="it is lost", level="reboot", check=True)
    assert found["reboot_required"] and ids(found["plan"]) == [f"reboot: {HOST}"]
    assert go(host, A, reboot="it is lost", level="reboot")["reboot_required"] and host.calls == []
    after = go(host, A, reboot="it is lost", level="reboot")
    assert not after["reboot_required"] and after["refused"] == [HOST] and not after["changed"]
    assert go(host) == {**go(host), "changed": False, "plan": [], "pending": [], "refused": []}


def test_what_is_wrong_is_refused(host: Host) -> None:
    with pytest.raises(InputError, match="'0' is no PCI address"):
        go(host, "0")
    host.model.available, host.model.error = False, "NVML cannot be used (DRIVER_NOT_LOADED)."
    with pytest.raises(HostError, match="No GPU can be reset: NVML cannot be used"):
        go(host, A)
    record = host.root.parent / "state" / "remedies.json"
    record.parent.mkdir()
    record.write_text('{"0000:07:00.0": 5}')
    with pytest.raises(HostError, match="is damaged"):
        go(host, A)
    assert not go(host)["changed"]
