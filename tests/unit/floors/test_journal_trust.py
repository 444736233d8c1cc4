# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal when others interfere: its folder, its files, links, parallel runs, failing disks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, JournalError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.tests.unit.floors.disk import read_tree
from ansible_collections.gpuops.nvidia.tests.unit.floors.test_power_cut import CASES, NEWER, OURS, Place, check, place

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
SERVICE = 4711  # the user of some service


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal"


def _journal_of(root: Path, concern: str = "demo", **options: t.Any) -> Journal:
    return Journal(concern, root=str(root), **options)


def _write(root: Path, path: Path, data: bytes = OURS, concern: str = "demo") -> None:
    with _journal_of(root, concern) as journal:
        journal.write_file(str(path), data)


def _restore(root: Path, path: Path, concern: str = "demo") -> None:
    with _journal_of(root, concern) as journal:
        journal.restore_file(str(path))


# -- what others could have written

PARTS = {"state": "", "folder": "journal", "blobs": "journal/demo.blobs", "journal": "journal/demo.json"}


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_what_others_could_have_written_is_refused(root: Path, tmp_path: Path, part: str, readonly: bool) -> None:
    """The journal decides what root restores. The message names the path and its mode; nothing is changed."""
    target = tmp_path / "f"
    target.write_bytes(b"theirs")
    _write(root, target)
    path = root.parent / PARTS[part]
    mode = path.stat().st_mode
    for bad in (mode | 0o002, mode | 0o020):
        path.chmod(bad)
        with pytest.raises(JournalError, match=f"{path} has mode {bad & 0o7777:04o} .*users other than root.*chmod"):
            _journal_of(root, readonly=readonly).__enter__()
    path.chmod(mode)
    _restore(root, target)
    assert target.read_bytes() == b"theirs"


@as_root
@pytest.mark.parametrize("part", PARTS)
def test_what_belongs_to_others_is_refused(root: Path, tmp_path: Path, part: str) -> None:
    (tmp_path / "f").touch()
    _write(root, tmp_path / "f")
    os.chown(root.parent / PARTS[part], SERVICE, SERVICE)
    with pytest.raises(JournalError, match=f"belongs to user {SERVICE}"):
        _journal_of(root, readonly=True).__enter__()


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("name", ["demo.lock", "demo.json"])
@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("../../f")])
def test_what_is_no_file_is_said(root: Path, tmp_path: Path, make: t.Callable[[Path], None], name: str,
                                 readonly: bool) -> None:
    """Check mode reports it, too, although it needs no lock: a run would fail."""
    root.mkdir(parents=True, mode=0o700)
    make(root / name)
    with pytest.raises(JournalError, match=f"{name} is not a file. Check it"):
        _journal_of(root, readonly=readonly).__enter__()
    assert not (tmp_path / "f").exists()


def test_a_file_in_the_place_of_the_folder_is_said(root: Path) -> None:
    root.parent.mkdir(mode=0o700)
    root.touch()
    with pytest.raises(JournalError, match="journal is not a folder"):
        _journal_of(root).__enter__()


@pytest.mark.parametrize("entry", [
    {"kind": "file", "key": "/x", "before": None, "after": None},
    {"kind": "file", "key": "/x", "before": {}, "after": None},
    {"kind": "directory", "key": "x", "before": {"state": "absent"}, "after": None},
    {"kind": "file", "key": 3, "before": {"state": "absent"}, "after": None},
    {"kind": "file", "key": "/x", "before": {"state": "kept"}, "after": None},
    {"kind": "file", "key": "/x", "before": {"state": "file", "blob": "0"}, "after": None},
    {"kind": "file", "key": "/x", "before": {"state": "file", "blob": "0", "mode": 420, "uid": 0, "gid": 0}},
    {"kind": "file", "key": "/x", "before": {"state": "file", "blob": "0", "mode": "rw", "uid": 0, "gid": 0},
     "after": None},
    {"kind": "file", "key": "/x", "before": {"state": "file", "blob": "0", "mode": "0644", "uid": "0", "gid": 0},
     "after": None},
    {"kind": "file", "key": "/x", "before": {"state": "link"}, "after": None}])
def test_an_entry_that_no_run_has_written_is_damage(root: Path, entry: dict[str, t.Any]) -> None:
    root.mkdir(parents=True, mode=0o700)
    (root / "demo.json").write_text(json.dumps({"version": 1, "entries": [entry], "unfinished": None}))
    with pytest.raises(JournalError, match="demo.json is damaged"):
        _journal_of(root).__enter__()
    (root / "demo.json").unlink()
    with _journal_of(root, wait=0):
        pass  # the lock was not kept


@pytest.mark.parametrize("document", [
    {"version": 0, "entries": [], "unfinished": None}, {"version": "1", "entries": [], "unfinished": None},
    {"version": True, "entries": [], "unfinished": None}, {"version": 1.5, "entries": [], "unfinished": None},
    {"entries": [], "unfinished": None}, {"version": 1, "entries": {}}, {"version": 1, "unfinished": None},
    {"version": 1, "entries": [], "unfinished": "restart"}, {"version": 1, "entries": ["x"], "unfinished": None},
    [], 1])
def test_a_journal_of_another_shape_is_damage(root: Path, document: t.Any) -> None:
    root.mkdir(parents=True, mode=0o700)
    (root / "demo.json").write_text(json.dumps(document))
    for readonly in (True, False):
        with pytest.raises(JournalError, match="demo.json is damaged"):
            _journal_of(root, readonly=readonly).__enter__()


# -- runs at the same time

@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_the_folder_may_go_while_the_lock_is_taken(root: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The run of another concern ends and removes the folder, which is empty."""
    real = _journal.make_folders

    def make_folders(path: str, mode: int = 0o755) -> None:
        if path == str(root):
            monkeypatch.setattr(_journal, "make_folders", real)
            if moment == "before":
                raise FileNotFoundError(2, "No such file or directory", path)
            if moment == "between":  # of os.makedirs' mkdir and its look at what is there
                raise FileExistsError(17, "File exists", path)
            real(path, mode)
            shutil.rmtree(root.parent)
        else:
            real(path, mode)

    monkeypatch.setattr(_journal, "make_folders", make_folders)
    with _journal_of(root) as journal:
        journal.keep("unit", "x", None)
    assert (root / "demo.json").exists()


def test_a_file_that_goes_is_not_kept_by_another_meanwhile(root: Path, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the file would be removed although the record of the other run says that it exists."""
    target = tmp_path / "f"
    _write(root, target)
    other = threading.Thread(target=_write, args=(root, target, OURS, "other"))
    real = _journal.remove

    def remove(path: str) -> None:
        other.start()
        other.join(0.5)
        real(path)

    monkeypatch.setattr(_journal, "remove", remove)
    _restore(root, target)
    other.join()
    assert target.read_bytes() == OURS
    monkeypatch.undo()
    _restore(root, target, "other")
    assert not target.exists() and not root.exists()


def test_a_file_that_comes_is_kept_once(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs keep the file at the same time: neither records the content of the other as the former one."""
    target = tmp_path / "f"
    other = threading.Thread(target=_write, args=(root, target, NEWER, "other"))
    real = _journal.describe

    def describe(path: str) -> t.Any:
        if path == str(target):
            monkeypatch.setattr(_journal, "describe", real)
            _start(other)
        return real(path)

    monkeypatch.setattr(_journal, "describe", describe)
    with _journal_of(root) as journal:
        journal.write_file(str(target), OURS)
        other.join()
        assert journal.file_is(str(target)) == "ours", "it is the other concern's"
    _restore(root, target)
    _restore(root, target, "other")
    assert not target.exists() and not root.exists()


def _start(other: threading.Thread) -> None:
    other.start()
    other.join(0.5)


# -- our own files

def test_an_update_of_our_own_file_is_no_edit_after_kills(root: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs were killed between the record and the write of the file, each with another content."""
    target = tmp_path / "f"
    _write(root, target, b"first")
    for data in (b"second", b"third"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            def die(path: str, *args: t.Any, _real: t.Any = _journal.write_atomic) -> None:
                if path == str(target):
                    raise KeyboardInterrupt
                _real(path, *args)

            patch.setattr(_journal, "write_atomic", lambda *args, mode=0o644, _die=die: _die(*args, mode))
            _write(root, target, data)
        with _journal_of(root, readonly=True) as journal:
            assert (journal.file_is(str(target)), target.read_bytes()) == ("ours", b"first")


def test_an_update_by_another_concern_is_no_edit(root: Path, tmp_path: Path) -> None:
    for concern, data in (("demo", OURS), ("other", NEWER)):
        _write(root, tmp_path / "f", data, concern)
    with _journal_of(root) as journal:
        assert journal.file_is(str(tmp_path / "f")) == "ours"
        (tmp_path / "f").write_bytes(b"edited")
        assert journal.file_is(str(tmp_path / "f")) == "edited"


def test_former_bytes_go_with_their_entry(root: Path, tmp_path: Path) -> None:
    """The bytes can be keys. They are removed with the entry, including those that a killed run has left."""
    for name in ("key", "other"):
        (tmp_path / name).write_bytes(name.encode())
        _write(root, tmp_path / name)
    (root / "demo.blobs" / ".half.gpuops-x1y2z3w4").write_bytes(b"-----BEGIN")
    _restore(root, tmp_path / "key")
    assert [path.read_bytes() for path in (root / "demo.blobs").iterdir()] == [b"other"]
    _restore(root, tmp_path / "other")
    assert not root.exists()


@pytest.mark.parametrize("name", ["user.origin", "security.selinux"])
def test_the_labels_of_a_file_that_is_gone_return(root: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"theirs")
    try:
        os.setxattr(target, name, b"system_u:object_r:x_t:s0\0")
    except OSError as error:
        pytest.skip(f"{name} cannot be set here: {error.strerror}")
    _write(root, target)
    target.unlink()
    _restore(root, target)
    assert os.getxattr(target, name) == b"system_u:object_r:x_t:s0\0" and target.read_bytes() == b"theirs"


# -- links

@pytest.fixture
def null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A replacement for the null device: a failing test must not destroy that of this machine. A pipe is not a regular
    file either."""
    os.mkfifo(tmp_path / "null")
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    return tmp_path / "null"


def test_a_masked_file_is_not_put_on_record(root: Path, tmp_path: Path, null: Path) -> None:
    (tmp_path / "f").symlink_to(null)
    with pytest.raises(HostError, match="must not exist on this host"):
        _write(root, tmp_path / "f")
    assert os.readlink(tmp_path / "f") == str(null) and not root.exists()


@pytest.mark.parametrize("before", [None, b"theirs"])
def test_a_file_that_was_masked_since_stays_masked(root: Path, tmp_path: Path, null: Path,
                                                   before: bytes | None) -> None:
    target = tmp_path / "f"
    if before:
        target.write_bytes(before)
    _write(root, target)
    target.unlink()
    target.symlink_to(null)
    with _journal_of(root, readonly=True) as journal:
        assert journal.file_is(str(target)) == "edited"
    with pytest.raises(HostError, match="must not exist on this host"):
        _write(root, target)
    _restore(root, target)
    assert os.readlink(target) == str(null) and null.is_fifo() and not root.exists()


def test_a_folder_in_the_place_of_our_file_stays(root: Path, tmp_path: Path) -> None:
    _write(root, tmp_path / "f")
    (tmp_path / "f").unlink()
    (tmp_path / "f").mkdir()
    _restore(root, tmp_path / "f")
    assert (tmp_path / "f").is_dir() and not root.exists()


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("since", ["replaced", "led elsewhere", "removed"])
def test_a_link_that_somebody_has_changed_since(root: Path, tmp_path: Path, since: str, dangling: bool) -> None:
    """Content that was written through the link is restored; a file in its place is removed; its new target belongs to
    somebody else."""
    real, link, new = tmp_path / "real", tmp_path / "link", tmp_path / "new"
    if not dangling:
        real.write_bytes(b"theirs")
    new.write_bytes(b"newer, theirs")
    link.symlink_to("real")
    _write(root, link)
    link.unlink()
    if since == "replaced":
        link.write_bytes(OURS)
    elif since == "led elsewhere":
        link.symlink_to("new")
    _restore(root, link)
    assert os.readlink(link) == ("new" if since == "led elsewhere" else "real")
    assert (real.read_bytes() if real.exists() else None) == (None if dangling else b"theirs")
    assert new.read_bytes() == b"newer, theirs" and not root.exists()


def test_what_somebody_has_put_where_a_dangling_link_leads_stays(root: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to("real")
    _write(root, link)
    real.write_bytes(b"theirs")
    _restore(root, link)
    assert real.read_bytes() == b"theirs" and os.readlink(link) == "real"


def test_our_file_that_somebody_has_moved_behind_a_link_goes_with_it(root: Path, tmp_path: Path) -> None:
    target, moved = tmp_path / "f", tmp_path / "srv"
    _write(root, target)
    target.rename(moved)
    target.symlink_to(moved)
    _restore(root, target)
    assert not os.path.lexists(target) and not moved.exists()


def test_a_file_returns_also_where_its_folder_has_gone(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "theirs" / "f"
    target.parent.mkdir()
    target.write_bytes(b"theirs")
    _write(root, target)
    shutil.rmtree(target.parent)
    _restore(root, target)
    assert target.read_bytes() == b"theirs"


@as_root
@pytest.mark.parametrize("before", [None, b"theirs"])
def test_a_link_of_another_user_is_not_followed_at_restore(root: Path, tmp_path: Path, before: bytes | None) -> None:
    target, secret = tmp_path / "f", tmp_path / "secret"
    secret.write_bytes(b"root's")
    if before:
        target.write_bytes(before)
    with _journal_of(root) as journal:
        journal.keep_file(str(target))  # such as the output of a service
    target.unlink(missing_ok=True)
    target.symlink_to(secret)
    os.lchown(target, SERVICE, SERVICE)
    _restore(root, target)
    assert secret.read_bytes() == b"root's"
    assert (target.read_bytes() if os.path.lexists(target) else None) == before and not target.is_symlink()


@as_root
def test_a_link_of_another_user_is_not_kept(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"root's")
    (tmp_path / "f").symlink_to("secret")
    os.lchown(tmp_path / "f", SERVICE, SERVICE)
    with pytest.raises(HostError, match="is a link of user"), _journal_of(root) as journal:
        journal.keep_file(str(tmp_path / "f"))
    assert not root.exists()


# -- failing disks

def test_what_a_full_disk_has_refused_is_recorded_by_the_next_change(root: Path, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The same applies within a run, which can continue with the rollback."""
    target, real = tmp_path / "f", _journal.write_atomic
    room: list[bool] = []

    def write_atomic(path: str, *args: t.Any, **named: t.Any) -> None:
        if path.endswith("demo.json") and not room:
            raise HostError(f"{path} cannot be written: No space left on device.")
        real(path, *args, **named)

    monkeypatch.setattr(_journal, "write_atomic", write_atomic)
    with _journal_of(root) as journal:
        for _again in range(3):
            with pytest.raises(HostError, match="No space left"):
                journal.write_file(str(target), OURS)
        assert not target.exists()
        room.append(True)
        journal.write_file(str(target), OURS)
        with _journal_of(root, readonly=True) as other:
            assert other.file_is(str(target)) == "ours"


FAULTS = ((tempfile, "mkstemp"), (os, "fsync"), (os, "replace"), (os, "mkdir"), (os, "unlink"), (os, "rmdir"),
          (os, "symlink"), (os, "fchmod"))


def _failing(patch: pytest.MonkeyPatch, number: int, at: int) -> list[str]:
    """Makes each of these calls fail once with an error number, from the at-th call on; returns the calls."""
    calls: list[str] = []

    def wrap(name: str, real: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        def call(*args: t.Any, **named: t.Any) -> t.Any:
            calls.append(name)
            if len(calls) == at + 1:
                raise OSError(number, os.strerror(number))
            return real(*args, **named)
        return call

    for module, name in FAULTS:
        patch.setattr(module, name, wrap(name, getattr(module, name)))
    return calls


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("case", CASES)
def test_a_disk_that_fails_at_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, number: int) -> None:
    """The former state exists or is recorded; another run and then a removal restore all of it."""
    before, act = CASES[case]
    monkeypatch.setattr(os, "fsync", lambda _handle: None)
    for at in range(200):
        one = place(tmp_path / "host")
        theirs = read_tree(one.root)
        for earlier in before:
            earlier(one)
        with monkeypatch.context() as patch:
            calls = _failing(patch, number, at)
            try:
                act(one)
            except (GpuopsError, OSError):
                pass
            else:
                # Nothing is to be told where the act has gone through, a folder was there already or stays.
                assert len(calls) <= at or calls[at] in ("rmdir", "mkdir"), calls[at]
        try:
            check(one, theirs)
            for again in (act, Place.remove):
                again(one)
            one.remove("other")
            assert read_tree(one.root) == theirs
        except BaseException:
            print(f"call {at}: {calls[:at + 1]}")
            raise
        if len(calls) <= at:
            break
    assert 4 < at < 199
