# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a runtime's service after a change of its files decides whether these stay."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import config

UNIT, THEIRS, OURS = "containerd.service", "theirs\n", "theirs\nours\n"
HEALTH = ["ctr", "plugins", "ls"]
PLUGINS = {"io.containerd.grpc.v1.cri": "ok", "io.containerd.runtime.v1.linux": "ok", "io.containerd.v1.zfs": "skip"}


class Daemon:
    """A daemon that reads its file when it is restarted. spoilt: the output of systemctl and ctr while the file has our
    part."""

    def __init__(self, path: Path, **spoilt: t.Any) -> None:
        self.path = path
        self.spoilt = spoilt
        self.calls: list[str] = []
        self.read = path.read_text() if path.exists() else None
        self.state, self.invocation, self.patience = "active", "a", 0

    def __call__(self, argv: t.Sequence[str], *, check: bool = True, **options: t.Any) -> Completed:
        words = tuple(argv)
        self.calls.append(" ".join(words))
        rc, out, err = self._answer(words)
        if check and rc:
            raise CommandError(words, rc, out, err)
        return Completed(words, rc, out, err)

    def _answer(self, words: tuple[str, ...]) -> tuple[int, str, str]:
        spoilt = self.spoilt if self.read and "ours" in self.read else {}
        if words in (("systemctl", "restart", UNIT), ("systemctl", "reload", UNIT)):
            self.read = self.path.read_text() if self.path.exists() else None
            self.invocation += "a"
            spoilt = self.spoilt if self.spoilt.get("always") or self.read and "ours" in self.read else {}
            self.state = spoilt.get("state", "active")
            if spoilt.get("hangs"):
                raise CommandError(words, None, "", "")
            return spoilt.get("rc", 0), "", spoilt.get("stderr", "")
        if words == tuple(HEALTH):
            if spoilt.get("stuck"):
                raise CommandError(words, None, "", "")
            plugins = {**PLUGINS, **spoilt.get("plugins", {})}
            rows = [" ".join([*name.rsplit(".", 1), "linux/amd64", state]) for name, state in plugins.items() if state]
            return spoilt.get("mute", 0), "\n".join(["TYPE ID PLATFORMS STATUS", "not ok", *rows]), ""
        if words == ("confirm",):
            self.patience -= 1
            return (0 if self.patience < 0 else 1), "", ""
        return {
            ("systemctl", "is-active", UNIT): (0 if self.state == "active" else 3, f"{self.state}\n", ""),
            ("systemctl", "show", UNIT, "--value", "-p", "InvocationID"): (0, f"{self.invocation}\n", ""),
            ("systemctl", "reset-failed", UNIT): (1, "", "not failed"),
            ("journalctl", "-u", UNIT, "--no-pager", "-o", "cat"): (0, "one\ntwo\n", ""),
        }[tuple(word for word in words if not word.startswith("--since=@"))]


class Place:
    """A host with one configuration file."""

    def __init__(self, folder: Path, theirs: str | None = THEIRS, **spoilt: t.Any) -> None:
        self.path = folder / "etc" / "conf.d" / "config.toml"
        (folder / "etc").mkdir()
        if theirs is not None:
            self.path.parent.mkdir()
            self.path.write_text(theirs)
        self.daemon = Daemon(self.path, **spoilt)
        self.root = str(folder / "state" / "journal")

    def journal(self) -> Journal:
        return Journal("container_toolkit", root=self.root)

    def write(self, text: str | None = OURS, baseline: str | None = None, parts: t.Sequence[str] = ("nvidia",),
              act: str = "restart") -> None:
        before = self.path.read_text() if self.path.exists() else None
        with self.journal() as journal:
            config_files = config.ConfigFiles(journal, self.daemon, "never")
            config_files.handlers["edit file"](Step("edit file", str(self.path), data={
                "path": str(self.path), "text": text, "before": before, "baseline": baseline, "part": "main",
                "parts": list(parts), "runtime": "containerd", "default": "runc", "unit": UNIT, "act": act}))

    def restart(self, act: str = "restart", health: t.Sequence[str] = HEALTH, **more: t.Any) -> None:
        with self.journal() as journal:
            config.ConfigFiles(journal, self.daemon, "never").handlers[f"{act} service"](
                Step(f"{act} service", UNIT, data={"unit": UNIT, "act": act, "health": health, **more}))

    def restore(self) -> None:
        with self.journal() as journal:
            work = config.ConfigFiles(journal, self.daemon, "never")
            work.handlers["restore file"](Step("restore file", str(self.path), data={
                "path": str(self.path), "before": self.path.read_text(), "unit": UNIT, "act": "restart"}))

    def kept(self, kind: str) -> dict[str, t.Any]:
        with Journal("container_toolkit", root=self.root, readonly=True) as journal:
            return journal.of_kind(kind)


@pytest.mark.parametrize(("spoilt", "words"), [
    ({"state": "activating"}, "it is activating"),
    ({"rc": 1, "stderr": "Job for containerd.service failed.\nSee more.\n"}, "configuration: Job for containerd.service"
     " failed. Its former"),
    ({"rc": 5}, "systemctl restart exited with 5"),
    ({"hangs": True}, "systemctl restart containerd.service"),
    ({"plugins": {"io.containerd.grpc.v1.cri": "error"}}, "without the plugins io.containerd.grpc.v1.cri. Its"),
    ({"plugins": {"io.containerd.runtime.v1.linux": None}}, "without the plugins io.containerd.runtime.v1.linux. Its"),
    ({"stuck": True}, "without the plugins io.containerd.grpc.v1.cri, io.containerd.runtime.v1.linux. Its"),
    # The first thing that went wrong is the one that is told.
    ({"rc": 5, "mute": 1}, "systemctl restart exited with 5"),
    ({"mute": 1}, "without the plugins io.containerd.grpc.v1.cri, io.containerd.runtime.v1.linux. Its"),
])
@pytest.mark.parametrize("theirs", [THEIRS, None])
def test_one_that_does_not_come_back_as_it_was_gets_its_former_file(tmp_path: Path, spoilt: dict[str, t.Any],
                                                                   words: str, theirs: str | None) -> None:
    one = Place(tmp_path, theirs, **spoilt)
    one.write()
    with pytest.raises(HostError) as caught:
        one.restart(confirm=["confirm"])
    assert words in str(caught.value)
    assert "Its former files are restored, and it runs with them. Its log: one / two" in str(caught.value)
    assert (one.path.read_text() if one.path.exists() else None) == theirs
    assert one.path.parent.exists() == (theirs is not None)
    assert (one.daemon.state, one.daemon.read) == ("active", theirs)
    assert "systemctl reset-failed containerd.service" in one.daemon.calls
    assert one.kept("restart") == {}


def test_one_that_comes_back_as_it_was_keeps_it(tmp_path: Path) -> None:
    one = Place(tmp_path, plugins={"io.containerd.v1.zfs": "error", "io.containerd.v1.new": "ok"})
    one.write()
    assert one.kept("restart")[UNIT]["after"]["act"] == "restart"
    one.restart()
    assert (one.path.read_text(), one.kept("restart")) == (OURS, {})


def test_one_that_could_not_be_asked_before_is_not_judged_by_its_plugins(tmp_path: Path) -> None:
    one = Place(tmp_path, plugins={"io.containerd.grpc.v1.cri": "error"})
    one.write()
    one.restart(health=[])
    assert one.path.read_text() == OURS


def test_a_restart_by_somebody_else_makes_good_what_was_owed(tmp_path: Path) -> None:
    """Then the daemon's current configuration is its last good one."""
    one = Place(tmp_path)
    one.write()
    one.daemon(["systemctl", "restart", UNIT])
    one.daemon.spoilt = {"state": "failed"}
    one.daemon.read = None
    one.write("theirs\nours again\n", act="reload")
    assert one.kept("restart")[UNIT]["after"]["act"] == "reload"
    one.daemon.spoilt = {"rc": 1}
    with pytest.raises(HostError, match="former files are restored"):
        one.restart()
    assert one.path.read_text() == OURS


def test_a_restart_stays_owed_where_not_even_the_former_file_helps(tmp_path: Path) -> None:
    one = Place(tmp_path, state="failed", always=True)
    one.write()
    with pytest.raises(HostError, match="but it does not start with them either: it is failed"):
        one.restart()
    assert one.path.read_text() == THEIRS
    assert one.kept("restart")[UNIT]["after"]["act"] == "restart"


def test_a_reload_is_done_when_the_daemon_has_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(config.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(config.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    one = Place(tmp_path)
    one.write(act="reload")
    one.daemon.patience = 5
    one.restart("reload", confirm=["confirm"])
    assert (one.daemon.calls.count("confirm"), one.path.read_text(), one.kept("restart")) == (6, OURS, {})
    one.write(OURS + "more\n", act="reload")
    one.daemon.patience = 10 ** 6
    with pytest.raises(HostError, match="it still runs with its former configuration"):
        one.restart("reload", confirm=["confirm"])
    assert one.path.read_text() == OURS
    assert 60 < clock[0] < 70


def test_what_is_set_and_the_former_default_are_on_record(tmp_path: Path) -> None:
    one = Place(tmp_path)
    one.write(parts=["b"])
    one.write(OURS + "more\n", parts=["c", "a"])
    path = str(one.path)
    assert one.kept("config")[path] == {"before": {"part": "main", "runtime": "containerd"}, "after": ["a", "c"]}
    assert one.kept("default_runtime")["containerd"]["before"] == "runc"
    one.restart()
    one.restore()
    assert (one.path.read_text(), one.kept("config")) == (THEIRS, {})
    assert one.kept("restart")[UNIT]["after"]["act"] == "restart"  # what has been put back must be read, too


@pytest.mark.parametrize("theirs", [THEIRS, None])
def test_an_edit_of_theirs_returns_without_our_part(tmp_path: Path, theirs: str | None) -> None:
    """They have edited the file and changed its mode since: a removal restores their current version."""
    one = Place(tmp_path, theirs)
    one.write()
    one.path.write_text(OURS + "edited\n")
    one.path.chmod(0o600)
    one.write("theirs\nours\nedited\nagain\n", baseline="theirs\nedited\n")
    with one.journal() as journal:
        assert journal.file_is(str(one.path)) == "ours"
    assert {path.stat().st_mode & 0o777 for path in Path(one.root).glob("*.blobs*")} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in Path(one.root).glob("*.blobs/*")} == {0o600}
    one.restore()
    assert (one.path.read_text(), one.path.stat().st_mode & 0o777) == ("theirs\nedited\n", 0o600)


def test_the_first_edit_found_may_be_the_whole_file(tmp_path: Path) -> None:
    """As long as no file is recorded, there is nothing to replace."""
    one = Place(tmp_path)
    one.write(baseline="other\n")
    one.restore()
    assert one.path.read_text() == THEIRS


def test_a_file_that_changes_meanwhile_is_not_given_back(tmp_path: Path) -> None:
    one = Place(tmp_path)
    one.write()
    work = config.ConfigFiles(one.journal(), one.daemon, "never")
    with pytest.raises(HostError, match="changed while its new content was being computed"):
        work.handlers["restore file"](Step("restore file", str(one.path), data={
            "path": str(one.path), "before": "older\n", "unit": UNIT, "act": "restart"}))
    assert one.path.read_text() == OURS


def test_a_file_on_record_alone_is_removed(tmp_path: Path) -> None:
    """Another journal would restore a file: without an entry of it, the existing file is ours."""
    one = Place(tmp_path)
    one.write()
    with one.journal() as journal:
        journal.forget("file", str(one.path))
    one.write(None)
    assert (one.path.exists(), one.kept("config")) == (False, {})
