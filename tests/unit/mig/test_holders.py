# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The clients of a GPU: named by pid, unit and container, stopped if allowed, and started again."""

from __future__ import annotations

import os
import signal
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, DeviceError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import apply as apply_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import clients as clients_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import holders, work
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model

A, B = "0000:07:00.0", "0000:0f:00.0"
CONTAINER = "0123456789ab" + "c" * 52
SERVICE, BOX, SESSION, DCGM, SECOND, POD, NEXT = 4001, 4002, 4003, 4004, 4005, 4006, 4007
UID = "0a1b2c3d-1111-2222-3333-444455556666"
CGROUPS = {SERVICE: "/system.slice/train.service", SECOND: "/system.slice/serve.service",
           BOX: f"/system.slice/docker-{CONTAINER}.scope",
           POD: f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
                f"cri-containerd-{CONTAINER}.scope",
           NEXT: f"/kubepods/besteffort/podffff2c3d-1111-2222-3333-444455556666/{CONTAINER}",
           SESSION: "/user.slice/user-0.slice/session-3.scope", DCGM: "/system.slice/nvidia-dcgm.service"}


class Host:
    """A host on which processes end when their service is stopped or when they get a signal."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.root, self.model = folder / "root", model
        self.calls: list[str] = []
        self.refused: set[str] = set()
        for pid, group in CGROUPS.items():
            (self.root / f"proc/{pid}").mkdir(parents=True)
            (self.root / f"proc/{pid}/cgroup").write_text(f"0::{group}\n")

    def opens(self, pid: int, pci: str, minor: int) -> None:
        """A process that has opened the device of the GPU, but that NVML does not list."""
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
        if "--gpu-reset" in argv:
            self.model.heal(argv[-1])
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


def place(made: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the module reads, writes, starts and signals belongs to the simulated host."""
    journal = str(made.root.parent / "j")
    monkeypatch.setattr(work, "Journal", lambda concern, readonly: Journal(concern, journal, readonly))
    monkeypatch.setattr(work, "Root", lambda: Root(str(made.root)))
    monkeypatch.setattr(work, "run", made.run)
    monkeypatch.setattr(_cdi, "UNIT_FILE", str(made.root.parent / "none"))
    monkeypatch.setattr(os, "kill", made.kill)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path, Model((A, "20b2"), (B, "20b2")))
    place(made, monkeypatch)
    go(made, "all-1g.10gb", "idle")
    made.model.writes.clear()
    return made


def go(host: Host, selected: str, level: str = "drain", check: bool = False) -> dict[str, t.Any]:
    request = work.Request("present", None, selected, None, level, check)
    return work.MigRun(request, host.model).run()  # type: ignore[arg-type]


def test_holders_are_named_and_stopped_by_their_own_means(host: Host) -> None:
    host.model.clients_of[A] = [(SERVICE, 0), (BOX, 1), (SESSION, 6)]
    waiting = go(host, "all-7g.80gb", "idle")
    named = f"job ({SERVICE}, train.service), job ({BOX}, container 0123456789ab), job ({SESSION}, session-3.scope)"
    assert waiting["pending"][0]["id"] == f"stop GPU clients: {A} {named}"
    assert (host.calls, host.model.counts()[B]) == ([], {"7g.80gb": 1})
    assert waiting["holders"][0] == {"pid": SERVICE, "name": "job", "gpu": A, "instance": 0, "unit": "train.service",
                                     "container": None}
    check = go(host, "all-7g.80gb", check=True)
    assert host.calls == []
    done = go(host, "all-7g.80gb")
    assert [step["id"] for step in check["plan"]] == [step["id"] for step in done["plan"]]
    assert done["plan"][-1]["id"] == "start stopped service again: train.service"
    assert host.calls == ["systemctl stop train.service", f"kill {BOX}", f"kill {SESSION}",
                          "systemctl start train.service"]
    assert host.model.counts() == {A: {"7g.80gb": 1}, B: {"7g.80gb": 1}}
    assert go(host, "all-7g.80gb")["changed"] is False


def test_a_process_in_a_pod_is_never_signalled(host: Host) -> None:
    """Only an eviction respects disruption budgets. The pod is named, and all changes of its GPU are pending at every
    level."""
    (host.root / f"var/log/pods/ml_train-0_{UID}").mkdir(parents=True)
    host.model.clients_of[A] = [(SERVICE, 0), (POD, 1), (NEXT, 6)]
    for level in ("never", "idle", "drain", "reboot"):
        waiting = go(host, "all-7g.80gb", level)
        assert waiting["pending"][0]["id"].startswith(f"stop GPU clients: {A} job ({SERVICE}, train.service), job (")
        assert waiting["pending"][0]["pending_reason"] == (
            "in use by pod ml/train-0, pod ffff2c3d-1111-2222-3333-444455556666; evict these pods: run the playbook "
            "gpuops.nvidia.mig or the module gpuops.nvidia.node_drain")
        assert host.calls == [] and host.model.counts()[A] == {"1g.10gb": 7}
    assert host.model.counts()[B] == {"7g.80gb": 1}


def test_a_service_of_a_systemd_in_a_pod_is_none_of_the_host(host: Host) -> None:
    (host.root / f"proc/{POD}/cgroup").write_text("0::/kubepods/besteffort/pod7/system.slice/train.service\n")
    host.model.clients_of[A] = [(POD, 0)]
    waiting = go(host, "all-7g.80gb")
    assert waiting["pending"][0]["pending_reason"].startswith("in use by pod of unknown name; evict")
    assert stoppable(Root(str(host.root)), [{"pid": POD, "unit": "train.service"}]) == ()


def test_a_transient_service_cannot_be_started_again(host: Host) -> None:
    """A user has started it with systemd-run. A change of MIG ends it like any other process; a change of the driver
    does not."""
    transient = host.root / "run/systemd/transient/train.service"
    transient.parent.mkdir(parents=True)
    transient.touch()
    host.model.clients_of[A] = [(SERVICE, 0), (SECOND, 1)]
    done = go(host, "all-7g.80gb")
    assert host.calls == ["systemctl stop serve.service", f"kill {SERVICE}", "systemctl start serve.service"]
    assert host.model.counts()[A] == {"7g.80gb": 1} and not done["pending"]
    root = Root(str(host.root))
    assert stoppable(root, [{"pid": pid, "unit": unit} for pid, unit in (
        (SERVICE, "train.service"), (SECOND, "serve.service"))]) == ("serve.service",)


def test_a_pod_that_is_not_in_the_way_hinders_nothing(host: Host) -> None:
    host.model.clients_of[A] = [(POD, 0), (BOX, 6)]
    document = {"version": "v1", "mig-configs": {"one": [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 1, "1g.10gb": 1}}]}}
    request = work.Request("present", document, "one", [A], "drain", False)
    work.MigRun(request, host.model).run()  # type: ignore[arg-type]
    assert host.calls == [f"kill {BOX}"] and host.model.clients_of[A] == [(POD, 0)]


def test_a_client_that_is_in_a_pod_when_it_would_be_signalled_is_not(host: Host,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Process ids are reused, so clients are read again before a service stops."""
    host.model.clients_of[A] = [(SERVICE, 0), (BOX, 1)]
    apply = apply_module.Executor.__call__

    def later(executor: apply_module.Executor, step: t.Any) -> None:
        (host.root / f"proc/{BOX}/cgroup").write_text(f"0::{CGROUPS[POD]}\n")
        apply(executor, step)

    monkeypatch.setattr(apply_module.Executor, "__call__", later)
    with pytest.raises(HostError, match="processes in pods are never signalled.*Evict these pods"):
        go(host, "all-7g.80gb")
    assert host.calls == [] and host.model.counts()[A] == {"1g.10gb": 7}


def test_a_gpu_that_a_pod_holds_open_is_freed_through_its_node(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    destroy = host.model.destroy_compute

    def refuse(device: t.Any, compute: t.Any) -> None:
        if device.pci == A:
            raise DeviceError("GPU: nvmlComputeInstanceDestroy failed with IN_USE.", name="IN_USE", gpu=A)
        destroy(device, compute)

    monkeypatch.setattr(host.model, "destroy_compute", refuse)
    host.opens(POD, A, 0)
    assert go(host, "all-7g.80gb", "idle")["pending"][0]["pending_reason"].startswith(
        f"in use by watcher ({POD}, pod {UID}) since the plan was made; evict these pods")


def test_a_service_on_two_gpus_is_started_once_after_both(host: Host) -> None:
    host.model.clients_of = {A: [(SERVICE, 0)], B: [(SERVICE, 0)]}
    done = go(host, "all-7g.80gb")
    assert [step["action"] for step in done["plan"]].count("start stopped service again") == 1
    assert host.calls[-1] == "systemctl start train.service"


def test_services_start_in_the_reverse_order_of_stopping(host: Host) -> None:
    """The service that stopped first can depend on the others."""
    host.model.clients_of = {A: [(SERVICE, 0)], B: [(SECOND, 0), (SERVICE, 1)]}
    check = go(host, "all-7g.80gb", check=True)
    done = go(host, "all-7g.80gb")
    stopped = [call.split()[-1] for call in host.calls if "stop" in call]
    started = [call.split()[-1] for call in host.calls if "start" in call]
    assert sorted(stopped) == ["serve.service", "train.service", "train.service"]
    assert started == list(dict.fromkeys(stopped))[::-1]
    assert [step["id"] for step in check["plan"]] == [step["id"] for step in done["plan"]]


def test_who_is_not_in_the_way_goes_on(host: Host) -> None:
    """A change of instances affects only the clients of the instances that are removed."""
    host.model.clients_of[A] = [(SERVICE, 6), (SECOND, 0)]
    document = {"version": "v1", "mig-configs": {"one": [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 1, "1g.10gb": 1}}]}}
    request = work.Request("present", document, "one", [A], "drain", False)
    done = work.MigRun(request, host.model).run()  # type: ignore[arg-type]
    assert done["plan"][0]["id"] == f"stop GPU clients: {A} job ({SERVICE}, train.service)"
    assert host.calls == ["systemctl stop train.service", "systemctl start train.service"]
    assert host.model.clients_of[A] == [(SECOND, 0)]


def test_a_service_that_ends_slowly_is_waited_for_and_gets_no_signal(host: Host,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 10:
            host.end(SERVICE)

    monkeypatch.setattr(clients_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(clients_module.time, "sleep", sleep)
    run = host.run
    monkeypatch.setattr(work, "run", lambda argv, **options: Completed(tuple(argv), 0, "", "") if "stop" in argv
                        else run(argv, **options))
    host.model.clients_of[A] = [(SERVICE, 0)]
    go(host, "all-7g.80gb")
    assert host.calls == ["systemctl start train.service"]
    assert clock[0] < 30


def test_services_start_again_where_the_run_fails(host: Host) -> None:
    host.model.clients_of[A] = [(SERVICE, 0)]
    host.model.fail = 3
    with pytest.raises(DeviceError, match="The former layout of GPU .* is restored"):
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
        patch.setattr(holders.Pauses, "start_all", lambda _self: None)  # a killed process does nothing at its end
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
    with pytest.raises(CommandError, match="The service was stopped for the change of MIG"):
        go(host, "all-7g.80gb")
    assert host.model.counts()[A] == {"7g.80gb": 1}
    assert go(host, "all-7g.80gb")["changed"] is False


def test_who_only_has_the_gpu_open_is_in_the_way_of_a_reset_alone(host: Host) -> None:
    host.opens(BOX, A, 0)
    host.opens(DCGM, A, 0)
    assert go(host, "all-7g.80gb")["holders"] == []
    done = go(host, "all-disabled")
    assert [(holder["pid"], holder["gpu"]) for holder in done["holders"]] == [(BOX, A)]
    assert host.calls == [f"kill {BOX}"]


def test_a_process_that_does_not_end_is_named_and_nothing_changes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda _pid, _number: None)
    monkeypatch.setattr(clients_module, "_STOP_LIMIT", 0)
    host.model.clients_of[A] = [(BOX, 1)]
    with pytest.raises(HostError, match=r"job \(4002, container 0123456789ab\) did not end") as caught:
        go(host, "all-7g.80gb")
    assert caught.value.details["holders"][0]["container"] == "0123456789ab"
    assert host.model.writes == []


def test_in_use_by_nobody_who_is_listed_is_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_device: t.Any, _compute: t.Any) -> None:
        raise DeviceError("GPU: nvmlComputeInstanceDestroy failed with IN_USE.", name="IN_USE", gpu=A)

    monkeypatch.setattr(host.model, "destroy_compute", refuse)
    with pytest.raises(DeviceError, match="No process is listed that uses GPU") as caught:
        go(host, "all-7g.80gb", "idle")
    assert caught.value.details["holders"] == [] and host.model.counts()[A] == {"1g.10gb": 7}


@pytest.mark.parametrize("gone", [0, 6])
@pytest.mark.parametrize(("level", "before"), [("idle", []), ("drain", []), ("drain", [(SERVICE, 6)])])
def test_a_process_that_comes_after_the_plan_leaves_its_gpu_pending(  # noqa: PLR0913
        host: Host, monkeypatch: pytest.MonkeyPatch, gone: int, level: str, before: list[t.Any]) -> None:
    """The other GPU is changed. gone: how many idle instances have been destroyed by then; they are created again."""
    destroy, made = host.model.destroy_compute, []

    def refuse(device: t.Any, compute: t.Any) -> None:
        made.append(compute)
        if device.pci == A and len(made) > gone:
            host.model.clients_of[A] = [(BOX, 0)]
            raise DeviceError("GPU: nvmlComputeInstanceDestroy failed with IN_USE.", name="IN_USE", gpu=A)
        destroy(device, compute)

    host.model.clients_of[A] = list(before)
    monkeypatch.setattr(host.model, "destroy_compute", refuse)
    result = go(host, "all-7g.80gb", level)
    assert host.model.counts() == {A: {"1g.10gb": 7}, B: {"7g.80gb": 1}}
    first, second = result["pending"]
    assert first["pending_reason"] == f"in use by job ({BOX}, container 0123456789ab) since the plan was made"
    assert (first["action"], second["action"]) == ("destroy MIG instances", "create MIG instances")
    assert second["pending_reason"] == f"it follows '{first['id']}'"
    assert [step["target"][:12] for step in result["plan"] if "MIG" in step["action"]] == [B, B]
    assert [step["action"] for step in result["plan"] if "MIG" not in step["action"]] == (
        ["stop GPU clients", "start stopped service again"] if before else [])
    assert {one["pid"] for one in result["holders"]} == {BOX} and result["after"][A] == result["before"][A]
    with Journal("mig", str(host.root.parent / "j"), True) as journal:
        assert journal.unfinished is None
    monkeypatch.undo()
    place(host, monkeypatch)
    host.model.clients_of.clear()
    assert not go(host, "all-7g.80gb", level)["pending"] and host.model.counts()[A] == {"7g.80gb": 1}


def test_of_a_shared_gpu_instance_only_the_busy_part_waits(host: Host) -> None:
    document = {"version": "v1", "mig-configs": {"three": [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 6}}], "two": [
            {"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 5}}]}}

    def reach(name: str) -> dict[str, t.Any]:
        request = work.Request("present", document, name, None, "idle", False)
        return work.MigRun(request, host.model).run()  # type: ignore[arg-type]

    reach("three")
    host.model.clients_of[A] = [(SERVICE, 0, 0), (SERVICE, 0, 1), (BOX, 4, 0)]
    result = reach("two")
    assert result["pending"] == []
    assert [one["gpu"] for one in result["destroyed"]] == [A, B]
    assert host.model.placed[A][0][1] >= {(1, 0), (1, 1)} and (1, 0) in host.model.placed[A][4][1]


def test_where_the_part_is_not_told_it_may_be_any(host: Host) -> None:
    """NVML always reports the GPU instance of a process, but not always its compute instance."""
    document = {"version": "v1", "mig-configs": {name: [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": count}}]
        for name, count in (("six", 6), ("five", 5), ("three", 3))}}

    def reach(name: str) -> dict[str, t.Any]:
        request = work.Request("present", document, name, [A], "idle", False)
        return work.MigRun(request, host.model).run()  # type: ignore[arg-type]

    reach("six")
    host.model.writes.clear()
    host.model.clients_of[A] = [(SERVICE, 0), (BOX, 4)]
    waiting = reach("five")
    assert (waiting["pending"][0]["needs"], host.model.writes) == ("drain", [])
    host.model.clients_of[A] = [(SERVICE, 4)]
    assert [one["start"] for one in reach("three")["destroyed"]] == [0, 0, 0]
    assert sorted(host.model.placed[A]) == [4]


def test_of_the_parts_of_an_instance_exactly_the_busy_ones_stay(host: Host) -> None:
    document = {"version": "v1", "mig-configs": {name: [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.40gb": count}}]
        for name, count in (("six", 6), ("two", 2))}}
    for name in ("six", "two"):
        request = work.Request("present", document, name, [A], "idle", False)
        result = work.MigRun(request, host.model).run()  # type: ignore[arg-type]
        host.model.clients_of[A] = [(SERVICE, 0, 2), (BOX, 4, 1)]
    assert result["pending"] == []
    assert {start: parts for start, (_profile, parts) in host.model.placed[A].items()} == {0: {(1, 2)}, 4: {(1, 1)}}
