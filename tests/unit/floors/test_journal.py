# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import subprocess
import sys
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
