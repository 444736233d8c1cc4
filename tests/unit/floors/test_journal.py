# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import JournalError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "keep").touch()
    return tmp_path / "state" / "journal"


def test_former_bytes_owner_and_mode_return(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "config.toml"
    target.write_bytes(b"version = 2\r\n# mine\r\n")
    target.chmod(0o640)
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(target), b"ours")
        journal.write_file(str(target), b"ours again")
        assert journal.file_is(str(target)) == "ours"
    assert target.read_bytes() == b"ours again"
    with Journal("demo", root=str(root)) as journal:
        journal.restore_file(str(target))
    assert target.read_bytes() == b"version = 2\r\n# mine\r\n"
    assert target.stat().st_mode & 0o777 == 0o640


def test_an_empty_journal_leaves_nothing(root: Path, tmp_path: Path) -> None:
    new = tmp_path / "a" / "b" / "c.conf"
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(new), b"x")
    assert (root / "demo.json").exists()
    with Journal("demo", root=str(root)) as journal:
        journal.restore_file(str(new))
    assert not (tmp_path / "a").exists()
    assert not root.exists()


def test_a_folder_that_somebody_else_uses_by_now_stays(root: Path, tmp_path: Path) -> None:
    new = tmp_path / "a" / "b" / "c.conf"
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(new), b"x")
        (tmp_path / "a" / "foreign").touch()
        journal.restore_file(str(new))
    assert (tmp_path / "a" / "foreign").exists()
    assert not (tmp_path / "a" / "b").exists()
    assert not root.exists(), "what is somebody else's now is nothing to remember"


def test_a_folder_goes_with_the_last_of_several_files(root: Path, tmp_path: Path) -> None:
    files = [str(tmp_path / "a" / name) for name in ("one", "two", "b/three")]
    with Journal("demo", root=str(root)) as journal:
        for path in files:
            journal.write_file(path, b"x")
    for path in files:
        assert (tmp_path / "a").exists()
        with Journal("demo", root=str(root)) as journal:
            journal.restore_file(path)
    assert not (tmp_path / "a").exists() and not root.exists()


def test_a_step_that_has_run_is_on_record_no_more(root: Path) -> None:
    with Journal("demo", root=str(root)) as journal:
        journal.keep("unit", "x", None)
        apply([Step("restart", "containerd")], lambda _step: None, journal)
        with Journal("demo", root=str(root), readonly=True) as other:
            assert other.unfinished is None


def test_an_edit_since_is_seen(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(target), b"ours")
        target.write_bytes(b"ours and the user's")
        assert journal.file_is(str(target)) == "edited"
        target.write_bytes(b"old")
        assert journal.file_is(str(target)) == "before"


def test_a_link_stays_a_link(root: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(real)
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(link), b"new")
        assert link.is_symlink() and real.read_bytes() == b"new"
        journal.restore_file(str(link))
    assert link.is_symlink() and real.read_bytes() == b"old"


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("act", ["write", "remove"])
def test_a_link_returns(root: Path, tmp_path: Path, act: str, dangling: bool) -> None:
    """The same applies to a link without a target, and to one that we removed."""
    real, link = tmp_path / "real", tmp_path / "link"
    if not dangling:
        real.write_bytes(b"old")
    link.symlink_to("real")
    with Journal("demo", root=str(root)) as journal:
        if act == "write":
            journal.write_file(str(link), b"new")
        else:
            journal.remove_file(str(link))
        journal.restore_file(str(link))
    assert os.readlink(link) == "real"
    assert (real.read_bytes() if real.exists() else None) == (None if dangling else b"old")


def test_a_damaged_backup_is_said(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(target), b"ours")
        for blob in (root / "demo.blobs").iterdir():
            blob.write_bytes(b"rotten")
        with pytest.raises(JournalError, match="missing or damaged"):
            journal.restore_file(str(target))
        assert target.read_bytes() == b"ours"


def test_a_newer_or_broken_journal_is_refused(root: Path) -> None:
    root.mkdir(parents=True)
    (root / "demo.json").write_text(json.dumps({"version": 99, "entries": [], "unfinished": None}))
    with pytest.raises(JournalError, match="newer version"):
        Journal("demo", root=str(root)).__enter__()
    (root / "demo.json").write_text("{")
    with pytest.raises(JournalError, match="damaged"):
        Journal("demo", root=str(root), readonly=True).__enter__()


def test_a_second_run_waits_for_the_first_and_then_says_so(root: Path) -> None:
    program = ("import sys; sys.path[:0] = {path!r}\n"
               "from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal\n"
               "with Journal('demo', root={root!r}): print('held', flush=True); sys.stdin.read()\n")
    holder = subprocess.Popen([sys.executable, "-c", program.format(path=sys.path, root=str(root))],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(JournalError, match="Another run"):
            Journal("demo", root=str(root), wait=0.3).__enter__()
    finally:
        holder.communicate("")
    with Journal("demo", root=str(root), wait=0.3):
        pass
    assert not root.exists()


@pytest.mark.parametrize("made_again", [False, True])
def test_the_lock_is_that_of_the_file_which_stands_there(root: Path, monkeypatch: pytest.MonkeyPatch,
                                                         made_again: bool) -> None:
    """The former holder removes its lock at its end, for example between our opening and our locking of the file."""
    real = fcntl.flock

    def flock(handle: t.Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        (root / "demo.lock").unlink()
        if made_again:
            (root / "demo.lock").touch()
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with Journal("demo", root=str(root)), pytest.raises(JournalError, match="Another run"):
        Journal("demo", root=str(root), wait=0).__enter__()


def test_only_root_reads_the_journal(root: Path, tmp_path: Path) -> None:
    """Former contents can contain passwords."""
    target = tmp_path / "auth.conf"
    target.write_bytes(b"password = x")
    target.chmod(0o644)
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(target), b"ours")
    modes = {path.relative_to(root).parts[0]: path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()}
    assert modes["demo.json"] == modes["demo.blobs"] == 0o600
    assert (root.stat().st_mode & 0o777, (root / "demo.blobs").stat().st_mode & 0o777) == (0o700, 0o700)


def test_what_was_there_at_first_is_never_overwritten(root: Path) -> None:
    with Journal("demo", root=str(root)) as journal:
        journal.keep("unit", "x.service", {"enabled": False})
        journal.note("unit", "x.service", {"enabled": True})
        journal.keep("unit", "x.service", {"enabled": True})
        assert journal.get("unit", "x.service") == {"before": {"enabled": False}, "after": {"enabled": True}}


def test_another_concern_at_work_does_not_hold_this_one_up(root: Path, tmp_path: Path) -> None:
    with Journal("other", root=str(root)) as other, Journal("demo", root=str(root), wait=0) as journal:
        other.write_file(str(tmp_path / "f"), b"theirs")
        journal.write_file(str(tmp_path / "f"), b"ours")
        assert journal.former_bytes(str(tmp_path / "f")) is None
        journal.restore_file(str(tmp_path / "f"))
        assert (tmp_path / "f").exists()
        other.restore_file(str(tmp_path / "f"))
    assert not (tmp_path / "f").exists()


def test_a_note_is_on_the_disk_at_once(root: Path) -> None:
    with Journal("demo", root=str(root)) as journal:
        journal.keep("unit", "x.service", {"enabled": False})
        journal.note("unit", "x.service", {"enabled": True})
        with Journal("demo", root=str(root), readonly=True) as other:
            assert other.get("unit", "x.service") == {"before": {"enabled": False}, "after": {"enabled": True}}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_returns(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    os.chown(target, 12, 34)
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(target), b"ours")
        assert (target.stat().st_uid, target.stat().st_gid) == (12, 34)
        os.chown(target, 0, 0)
        journal.restore_file(str(target))
    assert (target.read_bytes(), target.stat().st_uid, target.stat().st_gid) == (b"old", 12, 34)


def test_a_file_that_stands_as_before_is_not_written(root: Path, tmp_path: Path) -> None:
    """Whoever restored it may also have changed its mode, which is then kept."""
    target = tmp_path / "f"
    target.write_bytes(b"old")
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(target), b"ours")
        target.write_bytes(b"old")
        target.chmod(0o600)
        journal.restore_file(str(target))
    assert target.stat().st_mode & 0o777 == 0o600


def test_what_we_put_there_before_is_an_edit_once_it_has_been_replaced(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "f"
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(target), b"ours")
        journal.write_file(str(target), b"ours, newer")
        target.write_bytes(b"ours")
        assert journal.file_is(str(target)) == "edited"
        journal.remove_file(str(target))
        target.write_bytes(b"ours, newer")
        assert journal.file_is(str(target)) == "edited"


def test_what_another_concern_has_made_elsewhere_is_not_ours_to_keep(root: Path, tmp_path: Path) -> None:
    with Journal("other", root=str(root)) as other:
        other.write_file(str(tmp_path / "a" / "f"), b"x")
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(tmp_path / "b" / "f"), b"x")
        assert (tmp_path / "b" / "f").stat().st_mode & 0o777 == 0o644
        journal.restore_file(str(tmp_path / "b" / "f"))
    assert not (root / "demo.json").exists()
    assert (tmp_path / "a" / "f").exists()


def test_a_folder_that_we_make_again_goes_with_our_file(root: Path, tmp_path: Path) -> None:
    """The folder belonged to somebody else, who has removed it with its content."""
    new = tmp_path / "a" / "f"
    new.parent.mkdir()
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(new), b"x")
    shutil.rmtree(new.parent)
    with Journal("demo", root=str(root)) as journal:
        journal.write_file(str(new), b"x")
    with Journal("demo", root=str(root)) as journal:
        journal.restore_file(str(new))
    assert not new.parent.exists() and not root.exists()


def test_what_a_killed_run_left_beside_a_file_goes_with_the_next_write(root: Path, tmp_path: Path) -> None:
    """A similar file of somebody else stays."""
    target = tmp_path / "f"
    with Journal("demo", root=str(root)) as journal:
        (tmp_path / ".f.gpuops-x1y2z3").touch()
        (tmp_path / ".other.gpuops-x1y2z3").touch()
        journal.write_file(str(target), b"ours")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [".other.gpuops-x1y2z3", "f", "keep"]


def test_readonly_reads_without_a_lock_and_refuses_to_write(root: Path) -> None:
    with Journal("demo", root=str(root), readonly=True) as journal, pytest.raises(JournalError):
        journal.keep("unit", "x", {"active": True})
    assert not root.exists()


def test_a_killed_step_is_on_record(root: Path) -> None:
    def die(step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Journal("demo", root=str(root)) as journal:
        apply([Step("restart", "containerd")], die, journal)
    with Journal("demo", root=str(root), readonly=True) as journal:
        assert journal.unfinished is not None and journal.unfinished["id"] == "restart: containerd"
    assert os.listdir(root)


def test_what_two_concerns_share_goes_with_the_last(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    new, changed = folder / "new", tmp_path / "changed"
    changed.write_bytes(b"theirs")
    for concern in ("first", "second"):
        with Journal(concern, root=str(root)) as journal:
            journal.write_file(str(new), b"ours")
            journal.write_file(str(changed), b"ours")
            assert journal.former_bytes(str(changed)) == b"theirs"
    with Journal("first", root=str(root)) as journal:
        for path in (new, changed):
            journal.restore_file(str(path))
    assert (new.read_bytes(), changed.read_bytes()) == (b"ours", b"ours")
    assert not (root / "first.json").exists()
    with Journal("second", root=str(root)) as journal:
        for path in (new, changed):
            journal.restore_file(str(path))
    assert changed.read_bytes() == b"theirs"
    assert not folder.exists() and not root.exists()


def test_a_folder_of_two_concerns_goes_with_the_last_file_in_it(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    for concern in ("first", "second"):
        with Journal(concern, root=str(root)) as journal:
            journal.write_file(str(folder / concern), b"ours")
    for concern in ("first", "second"):
        with Journal(concern, root=str(root)) as journal:
            journal.restore_file(str(folder / concern))
        assert not (root / f"{concern}.json").exists()
    assert not folder.exists() and not root.exists()
