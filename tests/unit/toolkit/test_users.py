# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files in the home of a user, whom nothing keeps from replacing them by links: real processes with this identity."""

from __future__ import annotations

import json
import os
import pwd
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import rootless
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import apply
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, run
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import config, read, step_executor, users
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import host_answer, registry, toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import ROOTLESS_INFO
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState

NOBODY = pwd.getpwnam("nobody")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another identity")


@pytest.fixture
def tmp_path() -> t.Iterator[Path]:
    """A folder that every user can reach. Each process of pytest closes the folder of pytest to other users."""
    with tempfile.TemporaryDirectory(prefix="gpuops-users-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that its user can reach."""
    found = tmp_path / "home"
    found.mkdir(mode=0o700)
    os.chown(found, NOBODY.pw_uid, NOBODY.pw_gid)
    return found


@pytest.fixture
def user(home: Path) -> users.Identity:
    return users.Identity(users.Account("nobody", NOBODY.pw_uid, NOBODY.pw_gid, str(home)), run)


@pytest.fixture
def journal(tmp_path: Path) -> t.Iterator[Journal]:
    with Journal("container_toolkit", root=str(tmp_path / "state" / "journal")) as opened:
        yield opened


def test_a_new_file_belongs_to_the_user_and_goes_with_its_folders(
        user: users.Identity, home: Path, journal: Journal) -> None:
    path = home / ".config" / "docker" / "daemon.json"
    files = users.UserFiles(journal, user)
    assert user.read(str(path)) == users.File(None, None, [str(path.parent), str(path.parent.parent)])
    files.write(str(path), b"{}\n")
    info = path.stat()
    assert (info.st_uid, info.st_gid, info.st_mode & 0o777) == (NOBODY.pw_uid, NOBODY.pw_gid, 0o644)
    assert files.state(str(path), user.read(str(path)).data) == "ours"
    files.write(str(path), b'{"a": 1}\n')
    path.write_bytes(b"edited")
    assert files.state(str(path), user.read(str(path)).data) == "edited"
    files.restore(str(path))
    assert list(home.iterdir()) == [] and journal.of_kind("user_file") == {}


def test_a_file_of_the_user_is_restored_with_its_mode(user: users.Identity, home: Path, journal: Journal) -> None:
    path = home / "daemon.json"
    path.write_bytes(b"\xff theirs")
    os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
    path.chmod(0o600)
    files = users.UserFiles(journal, user)
    files.write(str(path), b"ours")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"ours", 0o600)
    path.chmod(0o640)
    files.restore(str(path))
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"\xff theirs", 0o600)
    assert [one.name for one in home.iterdir()] == ["daemon.json"]


def test_a_link_of_the_user_leads_only_where_the_user_may_go(
        user: users.Identity, home: Path, journal: Journal, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    link = home / "daemon.json"
    link.symlink_to(secret)
    files = users.UserFiles(journal, user)
    with pytest.raises(HostError, match="nobody cannot read .*daemon.json: permission denied"):
        files.write(str(link), b"x")
    secret.chmod(0o644)  # readable for everybody, writable for root only
    with pytest.raises(HostError, match="nobody cannot write .*daemon.json"):
        files.write(str(link), b"x")
    with pytest.raises(HostError, match="nobody cannot write"):
        user.check_writable(str(link))
    assert secret.read_text() == "of root" and link.is_symlink()
    own = home / "dotfiles"
    own.write_text("{}")
    os.chown(own, NOBODY.pw_uid, NOBODY.pw_gid)
    link.unlink()
    link.symlink_to(own)
    user.check_writable(str(link))
    users.UserFiles(journal, user).write(str(link), b"ours")
    assert link.is_symlink() and own.read_bytes() == b"ours"


def test_a_folder_that_becomes_a_link_after_the_first_run(
        user: users.Identity, home: Path, journal: Journal, tmp_path: Path) -> None:
    path = home / "docker" / "daemon.json"
    files = users.UserFiles(journal, user)
    files.write(str(path), b"ours")
    theirs = tmp_path / "etc"
    theirs.mkdir()
    (theirs / "daemon.json").write_text("of root")
    path.parent.rename(home / "away")
    path.parent.symlink_to(theirs)
    with pytest.raises(HostError, match="nobody cannot remove"):
        files.restore(str(path))
    assert (theirs / "daemon.json").read_text() == "of root"


@pytest.mark.parametrize("kind", ["folder", "pipe", "nothing"])
def test_what_is_not_a_file(user: users.Identity, home: Path, kind: str) -> None:
    path = home / "daemon.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("gone")
    with pytest.raises(HostError, match="it is not a file|a link to a file that does not exist"):
        user.read(str(path))


def test_the_home_of_somebody_else(user: users.Identity, home: Path) -> None:
    os.chown(home, 0, 0)
    home.chmod(0o755)
    with pytest.raises(HostError, match="nobody cannot write"):
        user.check_writable(str(home / ".config" / "docker" / "daemon.json"))
    with pytest.raises(HostError, match=r"nobody cannot write .*: .*Permission denied"):
        user.write(str(home / "x"), b"", "644")


def test_commands_have_no_terminal_and_no_variables_of_root(
        user: users.Identity, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of root")
    shown = user(["sh", "-c", "env; id -u; id -g; id -G; ps -o tty= -p $$"]).stdout
    assert "SECRET" not in shown and f"HOME={home}" in shown and f"XDG_RUNTIME_DIR=/run/user/{NOBODY.pw_uid}" in shown
    assert shown.splitlines()[-4:] == [str(NOBODY.pw_uid), *[str(NOBODY.pw_gid)] * 2, "?"]
    with pytest.raises(ValueError, match="no other variables"):
        user(["env"], env={"A": "1"})
    assert user.config_folder() == f"{home}/.config" and not user.exists(str(home / "x")) and user.exists(str(home))


def test_a_rerun_after_a_kill_knows_what_it_has_written(user: users.Identity, home: Path, journal: Journal) -> None:
    path = home / "daemon.json"
    files = users.UserFiles(journal, user)
    files.write(str(path), b"first")

    def killed(*_words: str) -> None:
        raise KeyboardInterrupt

    user.write = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        files.write(str(path), b"second")
    assert files.state(str(path), b"first") == files.state(str(path), b"second") == "ours"
    del user.write
    (home / "daemon.json.gpuops-abcdefgh").write_text("of a killed run")
    os.chown(home / "daemon.json.gpuops-abcdefgh", NOBODY.pw_uid, NOBODY.pw_gid)
    files.write(str(path), b"second")
    assert [one.name for one in home.iterdir()] == ["daemon.json"]
    assert files.state(str(path), b"first") == "edited"


@pytest.mark.parametrize(("name", "why"), [("no-such-user", "no such user"), ("root", "not rootless")])
def test_users_that_cannot_be_configured(name: str, why: str) -> None:
    with pytest.raises(InputError, match=f"rootless_users: .*{why}") as caught:
        users.checked(name)
    assert caught.value.details["value"] == name and caught.value.details["allowed"]


# -- reading, planning and executing, with a simulated manager of the user


class Host:
    """A host with the rootless Docker of builder. Only the manager of the user and dockerd are simulated."""

    def __init__(self, home: Path, state: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self.state = home, state
        self.file = home / ".config" / "docker" / "daemon.json"
        self.running, self.starts, self.breaks, self.containers = True, 0, False, 0
        self.verbs: list[list[str]] = []
        self.named = ["builder"]  # the option rootless_users
        account = users.Account("builder", NOBODY.pw_uid, NOBODY.pw_gid, str(home))
        patch.setattr(users, "find", lambda name: account if name == "builder" else None)
        patch.setattr(read, "find", users.find)
        patch.setattr(read, "which", lambda name: "/usr/bin/dockerd" if name == "dockerd" else None)
        patch.setattr(config, "APPLY_LIMIT", 0)

    def info(self) -> str:
        data = json.loads(self.file.read_text()) if self.file.exists() else {}
        return json.dumps({"Runtimes": {"runc": {}, **data.get("runtimes", {})}, "DefaultRuntime": "runc",
                           "LiveRestoreEnabled": False, "ContainersRunning": self.containers, "ContainersPaused": 0,
                           "CDISpecDirs": data.get("cdi-spec-dirs", [])})

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = list(argv)
        of_user = words[0] == "setsid"
        if words[-1] == "--version":
            return Completed(tuple(words), 0, "Docker version 26.1.5", "")
        if "systemctl" in words:
            words = words[words.index("systemctl") + 1:]
            assert not of_user or words[0] == "--user"
            if not of_user or words[1:2] == ["show-environment"]:
                return Completed((), 0, "", "")
            if words[1] == "show":
                text = f"a{self.starts}" if "--value" in words else (
                    f"Id=docker.service\nLoadState=loaded\nActiveState={'active' if self.running else 'inactive'}\n"
                    f"UnitFileState=enabled\nInvocationID=a{self.starts}")
                return Completed((), 0, text, "")
            if words[1] in ("restart", "reload"):
                self.verbs.append(words[1:])
                self.starts += words[1] == "restart"
                failed = self.breaks and "nvidia" in self.info()
                return Completed((), int(failed), "", "Job failed." if failed else "")
            return Completed((), 0, "active", "")
        if "journalctl" in words:
            return Completed((), 0, "failed to start daemon", "")
        if any("docker -H" in word for word in words):
            if not of_user:
                return Completed((), 1, "", "")
            return Completed((), int(self.containers > 0 and "json" not in words[-1]), self.info(), "")
        return run(argv, **options)

    def request(self, state: str) -> dict[str, t.Any]:
        return {"runtimes": [registry.RUNTIMES["docker"].probe.as_request()], "markers": [], "config_path": None,
                "state": state, "drop_in_path": None, "repository": {"url": "", "key": "k", "fingerprint": "A" * 40},
                "disruption": "idle", "rootless_users": self.named,
                "user_info": ROOTLESS_INFO}

    def see(self, state: str = "present") -> HostState:
        with Journal("container_toolkit", root=str(self.state), readonly=True) as journal:
            seen = read.read_state(self.request(state), journal, self.run)
        seen["packages"] = {"installed": {}, "version": None, "steps": []}
        seen["cdi"] = {"specs": [], "driver": None, "steps": [], "pending": [], "warnings": []}
        answer = {"host_state": json.loads(json.dumps(seen)), "options": {
            "state": state, "runtime": ["podman"], "mode": "auto", "config_path": None, "drop_in_path": None,
            "nvidia_runtime_name": "nvidia", "nvidia_runtime_path": None, "rootless_users": self.named,
            "set_as_default": False, "cdi": True, "nri": False, "settings": {}, "disruption": "idle"}}
        assert host_answer.fault("read", answer) is None
        return host_answer.state_of(answer)

    def converge(self, state: str = "present", **options: t.Any) -> list[str]:
        wish = Options(False, True, "auto", rootless_users=["builder"], state=state, **options)
        seen = self.see(state)
        steps = toolkit_steps.plan(HostState(**{**vars(seen), "runtimes": {
            key: one for key, one in seen.runtimes.items() if one.user}}), wish).steps
        with Journal("container_toolkit", root=str(self.state)) as journal:
            work = step_executor.StepExecutor(self.request(state), journal, self.run)
            raws = json.loads(json.dumps(toolkit_steps.as_request(steps)))
            apply([step_executor.step_from_json(raw) for raw in raws], work.execute, journal)
        return [step.action for step in steps]


@pytest.fixture
def builder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(home, tmp_path / "state" / "journal", monkeypatch)


def test_a_run_of_the_option_writes_restarts_and_is_removed(builder: Host) -> None:
    assert builder.converge() == ["write file", "reload service", "restart service"]
    assert builder.verbs == [["reload", "docker.service"], ["restart", "docker.service"]]
    assert builder.file.stat().st_uid == NOBODY.pw_uid and "nvidia" in builder.info()
    assert builder.converge() == []
    assert builder.converge(nvidia_runtime_name="gpu") == ["edit file", "reload service"]
    assert '"gpu"' in builder.file.read_text() and '"nvidia"' not in builder.file.read_text()
    assert builder.converge("absent")[0] == "remove file"
    assert list(builder.home.iterdir()) == [] and builder.verbs[-1] == ["restart", "docker.service"]
    assert builder.converge("absent") == []


def test_gpu_info_says_what_the_users_have(builder: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rootless, "JOURNAL_ROOT", str(builder.state))
    monkeypatch.setattr(rootless, "find", users.find)
    assert rootless.read_rootless(Root(), builder.run) == {}
    builder.converge()
    assert rootless.read_rootless(Root(), builder.run) == {"builder": {"classes": ["nvidia"], "running": True}}
    builder.file.write_text("[]")
    assert rootless.read_rootless(Root(), builder.run) == {"builder": {"classes": None, "running": None}}
    for refused in ([1], ["a"], "nvidia", None, {"x" * 1025: {}}, {"\ud800": {}}, {str(n): {} for n in range(1001)}):
        builder.file.write_text(json.dumps({"runtimes": refused}))
        assert rootless.read_rootless(Root(), builder.run) == {"builder": {"classes": None, "running": True}}, refused
    longest = {f"{n:01024}": {} for n in range(1000)}
    builder.file.write_text(json.dumps({"runtimes": longest}))
    found = rootless.read_rootless(Root(), builder.run)
    assert found["builder"]["classes"] == list(longest)
    assert answer_shapes.FACTS.needed["rootless"].fault(found) is None
    monkeypatch.setattr(rootless, "find", lambda _name: None)
    assert rootless.read_rootless(Root(), builder.run) == {}


def test_a_daemon_that_does_not_start_gets_its_former_file(builder: Host) -> None:
    builder.breaks = True
    with pytest.raises(HostError, match="docker.service of builder did not apply .* Its former files are restored"):
        builder.converge()
    assert not builder.file.exists()
    builder.breaks = False
    assert builder.converge()[0] == "write file" and builder.converge() == []


def test_a_restart_that_waits_is_known_after_the_file_is_restored(builder: Host) -> None:
    builder.converge()
    builder.containers = 1
    seen = builder.see("absent")
    plan = toolkit_steps.plan(seen, Options(False, True, "auto", state="absent"))
    assert [(step.action, step.needs) for step in plan.steps] == [
        ("remove file", "never"), ("restart service", "drain")]
    with Journal("container_toolkit", root=str(builder.state)) as journal:
        work = step_executor.StepExecutor(builder.request("absent"), journal, builder.run)
        raws = json.loads(json.dumps(toolkit_steps.as_request(plan.steps[:1])))
        apply([step_executor.step_from_json(raw) for raw in raws], work.execute, journal)
    builder.containers = 0
    assert builder.converge("absent") == ["restart service"]
    assert builder.converge("absent") == []


def test_a_file_of_a_user_is_not_read_as_root(builder: Host, tmp_path: Path) -> None:
    builder.converge()
    secret = tmp_path / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    builder.file.unlink()
    builder.file.symlink_to(secret)
    with pytest.raises(HostError, match="builder cannot read"):
        builder.see()
    assert "builder cannot read" in builder.see("absent").unread["builder"]


@pytest.mark.parametrize("how", ["folder", "encoding", "size", "text", "shape", "locked", "hangs", "words"])
def test_a_user_cannot_prevent_runs_and_removals(
        builder: Host, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder.converge()
    before = builder.file.read_bytes()
    sane, answer = builder.run, builder.info()
    builder.info = lambda: answer  # type: ignore[method-assign]  # the daemon still has its former file
    if how == "folder":
        builder.file.unlink()
        builder.file.mkdir()
    elif how == "locked":
        builder.file.parent.chmod(0o500)
    elif how in ("hangs", "words"):
        def hostile(argv: t.Sequence[str], **options: t.Any) -> Completed:
            if how == "hangs" and argv[0] == "setsid":
                raise CommandError(argv, None, "", "")
            done = sane(argv, **options)
            return done._replace(stdout=done.stdout + "\nExecStart={ argv[]=dockerd " + "x " * 1001 + ";")
        builder.run = hostile  # type: ignore[method-assign]
    else:
        builder.file.write_bytes({"encoding": b"\xff", "size": b" " * (4 * 2**20 + 1), "text": b"{",
                                "shape": b'{"runtimes": [], "features": 1}'}[how])
    builder.named = []
    seen = builder.see()
    plan = toolkit_steps.plan(HostState(unread=seen.unread), Options(False, True, "auto"))
    assert [warning for warning in plan.warnings if "builder" in warning] or how in ("text", "shape", "locked")
    removal = toolkit_steps.plan(builder.see("absent"), Options(False, True, "auto", state="absent"))
    if how == "shape":  # the user has removed our part, so there is nothing to restore
        assert removal.left_out == removal.steps == []
        return
    assert removal.left_out == ["builder"] and removal.steps == []
    assert [step.id for step in removal.pending] == ["restore files: docker of builder"]
    with Journal("container_toolkit", root=str(builder.state)) as journal:
        request = {**builder.request("absent"), "kept_users": removal.left_out}
        step_executor.StepExecutor(request, journal, sane).forget_restored()
    vars(builder).pop("run", None)
    vars(builder).pop("info")
    if how == "folder":
        builder.file.rmdir()
    elif how == "locked":
        builder.file.parent.chmod(0o755)
    builder.file.write_bytes(before)
    os.chown(builder.file, NOBODY.pw_uid, NOBODY.pw_gid)
    assert builder.converge("absent")[0] == "remove file" and not builder.file.exists()


def test_the_files_of_a_deleted_user_are_left_out(builder: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    builder.converge()
    monkeypatch.setattr(read, "find", lambda _name: None)
    seen = builder.see("absent")
    assert (seen.users, seen.journal.files) == ({}, {})
    assert builder.converge("absent") == []
