# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a GPU: named by pid, unit and container, stopped where that is allowed, and started again."""

from __future__ import annotations

import os
import signal
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, DeviceError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import _holders, _work
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model

A, B = "0000:07:00.0", "0000:0f:00.0"
CONTAINER = "0123456789ab" + "c" * 52
SERVICE, POD, SESSION, DCGM = 4001, 4002, 4003, 4004
CGROUPS = {SERVICE: "/system.slice/train.service", POD: f"/kubepods.slice/cri-containerd-{CONTAINER}.scope",
           SESSION: "/user.slice/user-0.slice/session-3.scope", DCGM: "/system.slice/nvidia-dcgm.service"}


class Host:
    """A host on which processes end when their service is stopped or they get a signal."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.root, self.model = folder / "root", model
        self.calls: list[str] = []
        self.refused: set[str] = set()
        for pid, group in CGROUPS.items():
            (self.root / f"proc/{pid}").mkdir(parents=True)
            (self.root / f"proc/{pid}/cgroup").write_text(f"0::{group}\n")

    def opens(self, pid: int, pci: str, minor: int) -> None:
        """A process with the GPU's device open, of which NVML knows nothing."""
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(exist_ok=True)
        (folder / "7").symlink_to(f"/dev/nvidia{minor}")
        (self.root / f"proc/{pid}/comm").write_text("watcher\n")
        (self.root / "dev").mkdir(exist_ok=True)
        (self.root / f"dev/nvidia{minor}").touch()
        information = self.root / f"proc/driver/nvidia/gpus/{pci}"
        information.mkdir(parents=True, exist_ok=True)
        (information / "information").write_text(f"Device Minor: \t {minor}\n")

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = " ".join(argv)
        if "show" in argv:
            return Completed(tuple(argv), 0, "\n".join(["LoadState=not-found\n"] * 3), "")
        self.calls.append(words)
        if words in self.refused and options.get("check", True):
            raise CommandError(argv, 1, "", "no", options.get("hint", ""))
        if words.startswith("systemctl stop"):
            for pid, group in CGROUPS.items():
                if group.endswith(argv[-1]):
                    self.end(pid)
        return Completed(tuple(argv), 0, "", "")

    def end(self, pid: int) -> None:
        for clients in self.model.clients_of.values():
            clients[:] = [one for one in clients if one[0] != pid]
        for link in (self.root / f"proc/{pid}/fd").glob("*"):
            link.unlink()

    def kill(self, pid: int, number: int) -> None:
        assert number == signal.SIGTERM
        self.calls.append(f"kill {pid}")
        self.end(pid)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path, Model((A, "20b2"), (B, "20b2")))
    monkeypatch.setattr(_work, "Journal", lambda concern, readonly: Journal(concern, str(tmp_path / "j"), readonly))
    monkeypatch.setattr(_work, "Root", lambda: Root(str(made.root)))
    monkeypatch.setattr(_work, "run", made.run)
    monkeypatch.setattr(_cdi, "UNIT_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(os, "kill", made.kill)
    go(made, "all-1g.10gb", "idle")
    made.model.writes.clear()
    return made


def go(host: Host, selected: str, level: str = "drain", check: bool = False) -> dict[str, t.Any]:
    request = _work.Request("present", None, selected, None, level, check)
    return _work.Work(request, host.model).run()  # type: ignore[arg-type]


def test_holders_are_named_and_stopped_by_their_own_means(host: Host) -> None:
    host.model.clients_of[A] = [(SERVICE, 0), (POD, 1), (SESSION, 6)]
    waiting = go(host, "all-7g.80gb", "idle")
    named = f"job ({SERVICE}, train.service), job ({POD}, container 0123456789ab), job ({SESSION}, session-3.scope)"
    assert waiting["pending"][0]["id"] == f"stop GPU clients: {A} {named}"
    assert (host.calls, host.model.counts()[B]) == ([], {"7g.80gb": 1})
    assert waiting["holders"][0] == {"pid": SERVICE, "name": "job", "gpu": A, "instance": 0, "unit": "train.service",
                                     "container": None}
    check = go(host, "all-7g.80gb", check=True)
    assert host.calls == []
    done = go(host, "all-7g.80gb")
    assert [step["id"] for step in check["plan"]] == [step["id"] for step in done["plan"]]
    assert done["plan"][-1]["id"] == "start stopped service again: train.service"
    assert host.calls == ["systemctl stop train.service", f"kill {POD}", f"kill {SESSION}",
                          "systemctl start train.service"]
    assert host.model.counts() == {A: {"7g.80gb": 1}, B: {"7g.80gb": 1}}
    assert go(host, "all-7g.80gb")["changed"] is False


def test_a_service_on_two_gpus_is_started_once_after_both(host: Host) -> None:
    host.model.clients_of = {A: [(SERVICE, 0)], B: [(SERVICE, 0)]}
    done = go(host, "all-7g.80gb")
    assert [step["action"] for step in done["plan"]].count("start stopped service again") == 1
    assert host.calls[-1] == "systemctl start train.service"


def test_services_start_again_where_the_run_fails(host: Host) -> None:
    host.model.clients_of[A] = [(SERVICE, 0)]
    host.model.fail = 3
    with pytest.raises(DeviceError, match="has its former layout again"):
        go(host, "all-7g.80gb")
    assert host.calls == ["systemctl stop train.service", "systemctl start train.service"]
    assert host.model.counts()[A] == {"1g.10gb": 7}


def test_services_of_a_killed_run_start_again_in_the_next(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.model.clients_of[A] = [(SERVICE, 0)]

    class Killed(BaseException):
        pass

    def kill(*_what: t.Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(host.model, "_write", kill)
        patch.setattr(_holders.Pauses, "start_all", lambda _self: None)  # a killed process does nothing at its end
        with pytest.raises(Killed):
            go(host, "all-7g.80gb")
    host.calls.clear()
    done = go(host, "all-1g.10gb", "idle")
    assert [step["id"] for step in done["plan"]] == ["start stopped service again: train.service"]
    assert host.calls == ["systemctl start train.service"]
    assert go(host, "all-1g.10gb", "idle")["changed"] is False


def test_a_service_that_does_not_start_again_is_said_once(host: Host) -> None:
    host.model.clients_of[A] = [(SERVICE, 0)]
    host.refused.add("systemctl start train.service")
    with pytest.raises(CommandError, match="It was stopped while MIG changed"):
        go(host, "all-7g.80gb")
    assert host.model.counts()[A] == {"7g.80gb": 1}
    assert go(host, "all-7g.80gb")["changed"] is False


def test_who_only_has_the_gpu_open_is_in_the_way_of_a_reset_alone(host: Host) -> None:
    host.opens(POD, A, 0)
    host.opens(DCGM, A, 0)
    assert go(host, "all-7g.80gb")["holders"] == []
    done = go(host, "all-disabled")
    assert [(holder["pid"], holder["gpu"]) for holder in done["holders"]] == [(POD, A)]
    assert host.calls == [f"kill {POD}"]


def test_a_process_that_does_not_end_is_named_and_nothing_changes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda _pid, _number: None)
    monkeypatch.setattr("ansible_collections.gpuops.nvidia.plugins.module_utils._mig._apply._STOP_LIMIT", 0)
    host.model.clients_of[A] = [(POD, 1)]
    with pytest.raises(HostError, match=r"job \(4002, container 0123456789ab\) did not end") as caught:
        go(host, "all-7g.80gb")
    assert caught.value.details["holders"][0]["container"] == "0123456789ab"
    assert host.model.writes == []


@pytest.mark.parametrize("known", [True, False])
def test_in_use_says_by_whom_or_that_nobody_is_listed(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                      known: bool) -> None:
    def refuse(_device: t.Any, _compute: t.Any) -> None:
        raise DeviceError("GPU: nvmlComputeInstanceDestroy failed with IN_USE.", name="IN_USE", gpu=A)

    monkeypatch.setattr(host.model, "destroy_compute", refuse)
    if known:
        host.opens(SERVICE, A, 0)
    with pytest.raises(DeviceError) as caught:
        go(host, "all-7g.80gb", "idle")
    words = "It is held by watcher (4001, train.service)" if known else "No process is listed as using it"
    assert words in str(caught.value)
    assert [holder["pid"] for holder in caught.value.details["holders"]] == ([SERVICE] if known else [])
    assert host.model.counts()[A] == {"1g.10gb": 7}


def test_of_a_shared_gpu_instance_only_the_busy_part_waits(host: Host) -> None:
    document = {"version": "v1", "mig-configs": {"three": [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 6}}], "two": [
            {"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 5}}]}}

    def reach(name: str) -> dict[str, t.Any]:
        request = _work.Request("present", document, name, None, "idle", False)
        return _work.Work(request, host.model).run()  # type: ignore[arg-type]

    reach("three")
    host.model.clients_of[A] = [(SERVICE, 0, 0), (SERVICE, 0, 1), (POD, 4, 0)]
    result = reach("two")
    assert result["pending"] == []
    assert [one["gpu"] for one in result["destroyed"]] == [A, B]
    assert host.model.placed[A][0][1] >= {(1, 0), (1, 1)} and (1, 0) in host.model.placed[A][4][1]
