# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kills, failed restarts, refusals and secrets."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
import typing as t
from types import SimpleNamespace

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils import _files, _result
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run as real_run
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import config
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import read as read_module
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Proposal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState, ProgramResult
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.conftest import SHAPES
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import Played

KUBEADM = (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes()


class _Killed(BaseException):
    """Ends the run here, as signal 9 does."""


def _kill(monkeypatch: pytest.MonkeyPatch, number: int, before: bool) -> None:
    count = iter(range(number + 1))
    real = _result.run_step

    def step(execute: t.Any, one: t.Any) -> None:
        last = next(count, number) == number
        if last and before:
            raise _Killed
        real(execute, one)
        if last:
            raise _Killed

    monkeypatch.setattr(_result, "run_step", step)


@pytest.mark.parametrize("state", ["present", "absent"])
@pytest.mark.parametrize("version", ["1.7", "2.2"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_killed_at_any_step(host: t.Any, monkeypatch: pytest.MonkeyPatch, version: str, state: str, before: bool,
                            number: int) -> None:
    one = host(version, KUBEADM)
    former = one.shape()
    one.converge()
    wanted = one.shape()
    if state == "present":
        one.converge("absent")
    planned = one.plan(state)[0]
    with monkeypatch.context() as patch:
        _kill(patch, number, before)
        if number < len(planned):
            with pytest.raises(_Killed):
                one.converge(state)
    restarts = one.restarts
    one.converge(state)
    assert one.converge(state) == []
    end = one.shape()
    if state == "present":
        ignored = {name for name in end if name.startswith("state/")}
        assert {name: end[name] for name in end if name not in ignored} == {
            name: wanted[name] for name in wanted if not name.startswith("state/")}
        one.converge("absent")
        assert one.shape() == former
    else:
        assert end == former
    last = number == len(planned) - 1
    assert one.restarts - restarts >= (0 if last and not before else 1)


def test_a_restart_owed_is_made_good_alone(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("1.7", KUBEADM)
    with monkeypatch.context() as patch:
        _kill(patch, 0, before=False)
        with pytest.raises(_Killed):
            one.converge()
    assert one.restarts == 0
    assert one.converge() == ["restart service: containerd.service"]
    assert one.converge() == []


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_former_files_return_when_it_does_not_come_back(host: t.Any, version: str) -> None:
    one = host(version, KUBEADM)
    one.breaks = True
    with pytest.raises(HostError, match=r"former files are restored, and it runs with them.*failed to load plugin"):
        one.converge()
    assert one.config.read_bytes() == KUBEADM
    assert not one.drop_in.parent.exists()
    assert one.restarts == 2
    one.breaks = False
    one.converge()
    assert one.converge() == []
    one.converge("absent")
    assert one.config.read_bytes() == KUBEADM
    assert not one.drop_in.parent.exists()


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_a_removal_rolled_back_can_be_done_again(host: t.Any, version: str) -> None:
    one = host(version, KUBEADM)
    former = one.shape()
    one.converge()
    wanted = one.effective()
    one.bad_restart = one.restarts + 1
    with pytest.raises(HostError, match="former files are restored, and it runs with them"):
        one.converge("absent")
    assert one.effective() == wanted
    assert one.converge("absent") != []
    assert one.shape() == former


def test_another_drop_in_path_rolled_back_is_still_known(host: t.Any) -> None:
    one = host("2.2", b"version = 3\n")
    former = one.shape()
    one.converge()
    old, one.drop_in = one.drop_in, one.folder / "other.d" / "50-gpu.toml"
    one.bad_restart = one.restarts + 1
    with pytest.raises(HostError, match="former files are restored"):
        one.converge()
    assert old.exists()
    one.converge("absent")
    assert one.shape() == former


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_a_removal_killed_before_its_end_keeps_the_users_edits(host: t.Any, monkeypatch: pytest.MonkeyPatch,
                                                               version: str) -> None:
    one = host(version, KUBEADM)
    one.converge()
    for path in (one.config, one.drop_in) if version == "2.2" else (one.config,):
        path.write_text(path.read_text() + '\n[plugins."io.containerd.internal.v1.opt"]\npath = "/srv" # mine\n')
    files = len([step for step in one.plan("absent")[0] if "file" in step.action])
    with monkeypatch.context() as patch:
        _kill(patch, files - 1, before=False)
        with pytest.raises(_Killed):
            one.converge("absent")
    rest = one.config.read_bytes()
    assert b"# mine" in rest
    one.converge("absent")
    assert one.config.read_bytes() == rest
    assert one.drop_in.exists() == (version == "2.2")


def test_an_owed_restart_that_somebody_did_is_not_owed(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("1.7", KUBEADM)
    with monkeypatch.context() as patch:
        _kill(patch, 0, before=False)
        with pytest.raises(_Killed):
            one.converge()
    assert one.see().journal.restart == {"containerd.service": "restart"}
    one.invocation = "b1"
    assert one.see().journal.restart == {}
    assert one.converge() == []
    # The next one is owed anew, with what has been read since as the last good start.
    read = one.config.read_bytes()
    one.bad_restart = 1
    with pytest.raises(HostError, match="former files are restored, and it runs with them"):
        one.converge(mode="cdi")
    assert one.config.read_bytes() == read


@pytest.mark.parametrize("version", ["1.7", "2.2"])
def test_removal_after_the_runtime_was_uninstalled(host: t.Any, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    one = host(version, KUBEADM)
    former = one.shape()
    one.converge()
    monkeypatch.setattr(read_module, "which", lambda _name: None)
    assert "containerd" not in one.see().runtimes
    steps = one.converge("absent")
    assert not any("service" in step for step in steps)
    assert one.shape() == former


def test_the_roles_removal_passes_what_it_was_given() -> None:
    role = pathlib.Path(__file__).parents[3] / "roles" / "container_toolkit"
    task = yaml.safe_load((role / "tasks" / "remove.yml").read_text())[0]["gpuops.nvidia.container_toolkit"]
    options = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["remove"]["options"]
    assert set(task) - {"state"} == {name.removeprefix("container_toolkit_") for name in options}
    # On a host that is a Node the first pass disturbs nothing, as with the installation.
    install = yaml.safe_load((role / "tasks" / "host.yml").read_text())[0]["gpuops.nvidia.container_toolkit"]
    assert task["disruption"] == install["disruption"] and "else container_toolkit_level" in task["disruption"]


def test_one_that_does_not_run_is_not_started(host: t.Any) -> None:
    one = host("1.7", KUBEADM)
    one.running = False
    assert one.converge() == [f"edit file: {one.config}"]
    assert one.converge() == []
    assert one.restarts == 0


def test_a_file_that_changes_meanwhile_is_not_overwritten(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("1.7", KUBEADM)
    steps, _proposal = one.plan()
    one.config.write_bytes(KUBEADM + b"# later\n")
    with monkeypatch.context() as patch:
        patch.setattr(type(one), "plan", lambda *_args, **_options: (steps, None))
        with pytest.raises(HostError, match="changed while"):
            one.converge()
    assert one.config.read_bytes() == KUBEADM + b"# later\n"


@pytest.mark.parametrize(("version", "content", "message"), [
    ("1.7", b"version = 2\n[plugins\n", "not valid|rejects|Expected"),
    ("1.7", b"version = 3\n", "rejects .* unsupported config version"),
    ("2.2", b'version = 3\nimports = ["gone.toml"]\n', "gone.toml"),
    ("2.2", b"\xef\xbb\xbfversion = 2\n", "rejects .* invalid character"),
    ("1.7", b'version = 2\nroot = "\xff"\n', "not UTF-8"),
    ("1.7", b'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "gone"\n',
     "'gone' is not declared"),
])
def test_refusals_change_nothing(host: t.Any, version: str, content: bytes, message: str) -> None:
    one = host(version, content)
    former = one.tree()
    with pytest.raises((HostError, ValueError), match=message):
        one.converge(set_as_default=False)
    assert one.tree() == former


# As containerd 1.6.20 prints it of "x = [1,, 2]".
TRACE = """panic: unhandled token: "," [recovered]
\tpanic: interface conversion: interface {} is *errors.errorString, not string

goroutine 1 [running]:
github.com/pelletier/go-toml.LoadBytes.func1()
\tgithub.com/pelletier/go-toml/toml.go:415 +0xe7
main.main()
\tgithub.com/containerd/containerd/cmd/containerd/main.go:33 +0x37
"""
STRICT = 'time="2026-11-23T17:05:49Z" level=warning msg="Ignoring unknown key in TOML"\n'


@pytest.mark.parametrize(("rc", "printed", "journal", "words"), [
    (2, TRACE, "", 'it crashed: unhandled token: ","'),
    (-11, "", TRACE, 'from its log: it crashed: unhandled token: ","'),
    (1, STRICT, f"{STRICT}containerd: (3, 1): Can't convert 7(int64) to string\n",
     "from its log: containerd: (3, 1): Can't convert 7(int64) to string"),
    (1, f"{STRICT}containerd: no such thing.\n", "x", "containerd: no such thing"),
    (-9, STRICT, STRICT, "it printed nothing and was killed by signal 9"),
    (3, "", "", "it printed nothing and exited with 3"),
])
def test_a_file_that_the_daemon_rejects_is_told_in_its_own_words(
        host: t.Any, rc: int, printed: str, journal: str, words: str) -> None:
    one = host("1.6", KUBEADM)
    answers = {"dump": (rc, "", printed), "journalctl": (0, journal, "")}
    runs = one.run

    def run(argv: t.Sequence[str], **options: t.Any) -> Completed:
        said = answers.get(argv[-1], answers.get(argv[0]))
        return Completed(tuple(argv), *said) if said else runs(argv, **options)

    one.run = run
    with pytest.raises(HostError) as caught:
        one.converge()
    assert caught.value.message == f"containerd rejects {one.config}: {words}."


def test_byte_order_mark_stays_where_containerd_reads_it(host: t.Any) -> None:
    content = b"\xef\xbb\xbf" + KUBEADM
    one = host("1.7", content)
    one.converge()
    assert one.config.read_bytes().startswith(b"\xef\xbb\xbf")
    assert one.converge() == []
    one.converge("absent")
    assert one.config.read_bytes() == content


def test_a_foreign_drop_in_that_hides_ours_is_named(host: t.Any) -> None:
    one = host("1.7", b'version = 2\nimports = ["conf.d/*.toml"]\n')
    one.drop_in.parent.mkdir()
    other = one.drop_in.with_name("registries.toml")
    other.write_text('version = 2\n[plugins."io.containerd.grpc.v1.cri".registry]\nconfig_path = "/etc/certs"\n')
    former = one.tree()
    with pytest.raises(HostError, match=str(other)):
        one.converge()
    assert one.tree() == former


def test_an_owed_restart_stays_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.json"
    with Journal("container_toolkit", root=str(tmp_path / "journal")) as journal:
        work = config.ConfigFiles(journal, lambda *_args, **_options: Completed((), 0, "active\n", ""), "never")
        before = None
        for act, text in (("reload", "a"), ("restart", "b"), ("reload", "c")):
            work.handlers["write file"](Step("write file", str(path), data={
                "path": str(path), "text": text, "before": before, "baseline": None, "part": "main", "parts": [],
                "runtime": "docker", "default": "runc", "unit": "docker.service", "act": act}))
            before = text
        owed = journal.of_kind("restart")["docker.service"]["after"]
        assert (owed["act"], owed["files"][str(path)]["bytes"]) == ("restart", None)
        for act, left in (("reload", 1), ("restart", 0)):
            work.handlers[f"{act} service"](Step(f"{act} service", "docker.service", data={
                "unit": "docker.service", "act": act, "health": []}))
            assert len(journal.of_kind("restart")) == left


@pytest.mark.parametrize("state", ["present", "absent"])
@pytest.mark.parametrize(("level", "said", "restarted"), [
    ("idle", "false 0 0", True), ("idle", "false 1 0", False), ("idle", "false 0 1", False), ("idle", "", False),
    ("drain", "false 1 0", True), ("never", "true 1 0", True), ("never", "false 1 0", False)])
def test_docker_is_asked_again_before_a_restart_that_was_planned_without_containers(
        tmp_path: pathlib.Path, state: str, level: str, said: str, restarted: bool) -> None:
    """At the level never, the containers keep running. said: whether they keep running, and how many run and are
    paused."""
    path, live = str(tmp_path / "daemon.json"), level == "never"
    docker = Played(Docker(), "Docker version 26.1.5, build x", path, {path: json.dumps({"live-restore": live})},
                    unit="docker.service", facts={"info": ProgramResult(0, json.dumps({
                        "Runtimes": {"runc": {}}, "ContainersRunning": int(live), "ContainersPaused": 0,
                        "LiveRestoreEnabled": live}))})
    if state == "absent":
        docker.converge()
    (tmp_path / "daemon.json").write_text(docker.files[path])
    seen = HostState({"docker": docker.seen()})
    proposal = docker.propose() if state == "present" else Docker().propose_removal(docker.seen(), docker.journal())
    proposal.confirm, run = [], []
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\nset -- \"$5\" {said}\ncase $1 in\n'{{{{.LiveRestoreEnabled}}}}') echo $2;;\n"
                       "'{{.ContainersRunning}} {{.ContainersPaused}}') echo $3 $4;;\nesac\n")
    program.chmod(0o755)

    def runner(argv: t.Sequence[str], **options: t.Any) -> Completed:
        run.append(" ".join(argv[:2]))
        if argv[0] == "sh":
            return real_run(argv, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, **options)
        return Completed(tuple(argv), 0, "active\n", "")

    with Journal("container_toolkit", root=str(tmp_path / "journal")) as journal:
        work = config.ConfigFiles(journal, runner, level)
        steps = toolkit_steps.runtime_steps(seen, {"docker": proposal})
        with contextlib.nullcontext() if restarted else pytest.raises(InUse, match="containers have started"):
            for step in steps:
                work.handlers[step.action](step)
        assert ("systemctl restart" in run) == restarted
        assert (journal.get("restart", "docker.service") is None) == restarted


@pytest.mark.parametrize(("line", "path"), [
    ("{ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd ; ignore_errors=no }", None),
    ("{ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd --config /srv/c.toml ; x }", "/srv/c.toml"),
    ("{ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd -c=/srv/d.toml ; x }", "/srv/d.toml"),
    ("{ path=/bin/containerd ; argv[]=/bin/containerd --config ${CONTAINERD_CONFIG} ; x }", "/usr/share/c.toml"),
    ("{ path=/bin/containerd ; argv[]=/bin/containerd --config $CONTAINERD_CONFIG ; x }", "/usr/share/c.toml"),
    ("{ path=/bin/containerd ; argv[]=/bin/containerd --config $OTHER ; x }", "$OTHER"),
])
def test_configuration_file_of_the_unit(line: str, path: str | None) -> None:
    unit = {"ExecStart": line, "Environment": "PATH=/bin CONTAINERD_CONFIG=/usr/share/c.toml"}
    assert read_module._configured(unit, ["-c", "--config"]) == path


def test_a_daemon_that_hangs_is_one_that_cannot_be_asked(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("2.2", b"version = 3\n")

    def hang(argv: t.Sequence[str], **options: t.Any) -> Completed:
        if argv[0] != "systemctl":
            assert options["timeout"] < 30
            raise CommandError(list(argv), None, "", "")
        return type(one).run(one, argv, **options)

    with monkeypatch.context() as patch:
        patch.setattr(one, "run", hang)
        view = one.see().runtimes["containerd"]
        assert (view.version, view.dump and view.dump.rc) == ("", 124)
        with pytest.raises(HostError, match="did not answer"):
            one.plan()


def test_removal_after_somebody_removed_our_file(host: t.Any) -> None:
    one = host("2.2", b"version = 3\n")
    former = one.shape()
    one.converge()
    one.drop_in.unlink()
    one.converge("absent")
    assert one.shape() == former


def test_one_file_that_cannot_be_written_keeps_all_as_they_are(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("2.2", b"version = 3\n")
    former = one.tree()
    with monkeypatch.context() as patch:
        patch.setattr(_files, "_flags", lambda path: 0x10 if path == os.path.realpath(one.config) else 0)
        with pytest.raises(HostError, match=r"cannot be written: .*config.toml is immutable.*Nothing was changed"):
            one.converge()
    with monkeypatch.context() as patch:
        readonly = os.statvfs(one.root)
        patch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=readonly.f_flag | os.ST_RDONLY))
        with pytest.raises(HostError, match="its file system is read-only"):
            one.converge()
    assert one.tree() == former


def test_journal_ends_empty(host: t.Any) -> None:
    one = host("2.2", b"version = 3\n")
    one.converge()
    one.converge("absent")
    with Journal("container_toolkit", root=one.journal_root, readonly=True) as journal:
        assert journal.entries == {}
    assert not pathlib.Path(one.journal_root).parent.exists()


def test_a_daemon_that_has_not_read_its_files_is_restarted(host: t.Any) -> None:
    one = host("2.2", KUBEADM)
    one.converge()
    former = one.tree()
    for age, steps in ((60, ["restart service: containerd.service"]), (-60, [])):
        one.unit["StateChangeTimestampMonotonic"] = str(int((time.monotonic() - age) * 1_000_000))
        planned, _proposal = one.plan()
        assert [step.id for step in planned] == steps
    assert not one.see().runtimes["containerd"].stale
    one.unit["StateChangeTimestampMonotonic"] = str(int((time.monotonic() - 60) * 1_000_000))
    step, = one.plan()[0]
    assert (step.reason, step.needs) == ("its files have changed since it was started", "never")
    count = one.restarts
    assert one.converge() == ["restart service: containerd.service"]
    assert (one.restarts, one.converge()) == (count + 1, [])
    assert {name: entry for name, entry in one.tree().items() if name.startswith("containerd")} == {
        name: entry for name, entry in former.items() if name.startswith("containerd")}
    one.unit["StateChangeTimestampMonotonic"] = "1"
    one.bad_restart = one.restarts + 1
    with pytest.raises(HostError, match="Job for containerd.service failed. It runs again. Its log"):
        one.converge()


@pytest.mark.parametrize(("unit", "running", "pending"), [
    ({"UnitFileState": "enabled"}, True, None),
    ({"UnitFileState": "disabled", "WantedBy": "docker.service"}, True, None),
    ({"UnitFileState": "disabled"}, True, "enable service: containerd.service"),
    ({"UnitFileState": "disabled"}, False, "start service: containerd.service"),
    ({"TriggeredBy": "a.socket"}, False, "start service: containerd.service"),  # a socket that does not exist
    ({"LoadState": "masked"}, False, "unmask service: containerd.service"),
    ({"LoadState": "masked"}, True, "unmask service: containerd.service"),
])
def test_a_service_that_is_not_ours_to_start_is_told(
        host: t.Any, unit: dict[str, str], running: bool, pending: str | None) -> None:
    one = host("2.2", KUBEADM)
    one.unit, one.running = unit, running
    assert ("restart service: containerd.service" in one.converge()) == (running and unit.get("LoadState") != "masked")
    found = toolkit_steps.pending_steps(one.see(), {"containerd": Proposal()})
    assert [item.id for item in found] == ([pending] if pending else [])
    assert not pending or "does not change this" in found[0].pending_reason


@pytest.mark.parametrize(("socket", "service", "pending"), [
    ({"ActiveState": "active", "UnitFileState": "enabled"}, "disabled", None),
    ({"ActiveState": "active", "UnitFileState": "disabled"}, "disabled", "enable service: containerd.service"),
    ({"ActiveState": "active", "UnitFileState": "disabled"}, "enabled", None),
    ({"ActiveState": "inactive", "UnitFileState": "enabled"}, "disabled", "start service: containerd.service"),
    ({"ActiveState": "inactive", "UnitFileState": "disabled"}, "disabled", "start service: containerd.service"),
    ({"ActiveState": "inactive", "LoadState": "masked"}, "disabled", "start service: containerd.service"),
])
def test_a_socket_that_listens_starts_its_service(
        host: t.Any, socket: dict[str, str], service: str, pending: str | None) -> None:
    one = host("2.2", KUBEADM)
    one.running, one.unit = False, {"UnitFileState": service, "TriggeredBy": "a.socket"}
    run = one.run

    def with_socket(argv: t.Sequence[str], **options: t.Any) -> t.Any:
        if tuple(argv[:3]) != ("systemctl", "show", "a.socket"):
            return run(argv, **options)
        text = "".join(f"{key}={value}\n" for key, value in {"Id": "a.socket", "LoadState": "loaded", **socket}.items())
        return run(["true"])._replace(stdout=text)

    one.run = with_socket
    found = toolkit_steps.pending_steps(one.see(), {"containerd": Proposal()})
    assert [item.id for item in found] == ([pending] if pending else [])
