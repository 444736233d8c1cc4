# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How several labs and gates share one machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import venv
from lab.tools import alone, write_whole
from tests.lab.conftest import ROOT

HOLD = ("import sys; from pathlib import Path; from lab.tools import alone\n"
        "with alone(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()")


@pytest.mark.parametrize("name", ["", "lock"])
def test_one_at_a_time(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          cwd=ROOT, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        handle = os.open(path, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(handle)
        other.communicate("")
    with alone(path):
        pass
    assert [found.name for found in tmp_path.iterdir()] == [name] * bool(name)


def test_a_lock_that_is_not_given_up_is_named(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(SystemExit, match=f"still holds the lock of {tmp_path} after 0 s"), \
            alone(tmp_path, limit=0):
        pass


def test_who_waited_for_a_lock_that_is_gone_takes_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock = tmp_path / "lock", fcntl.flock

    def removed_by_the_holder(handle: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        path.unlink()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", removed_by_the_holder)
    with alone(path):
        assert path.exists()


def test_who_reads_sees_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "play.yml"
    write_whole(path, "former\n")
    with path.open() as reader:
        write_whole(path, "new\n")
        assert reader.read() == "former\n"
    assert path.read_text() == "new\n" and path.stat().st_mode & 0o777 == 0o644
    before = path.stat()
    write_whole(path, "new\n")
    assert path.stat().st_ino == before.st_ino and list(tmp_path.iterdir()) == [path]


def test_an_environment_takes_the_place_of_another_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs in the environment always finds its files: the former ones until the new ones are
    complete."""
    made, target = tmp_path / "made", tmp_path / "place" / "venv"
    (made / "bin").mkdir(parents=True)
    (made / "pyvenv.cfg").write_text(f"command = python -m venv {made}\n")
    (made / "bin" / "pip").write_text(f"#!{made}/bin/python\n")
    (tmp_path / "wanted").write_text("ansible-core")
    monkeypatch.setattr(venv, "BUILD", tmp_path / "build")
    monkeypatch.setattr(venv, "cached", lambda *_inputs: made)
    assert venv.make(target, [tmp_path / "wanted"], "run") == target / "bin"
    (target / "former").touch()
    seen = []

    def complete(fresh: Path) -> None:
        seen.append((target / "former").exists())
        (fresh / "complete").touch()

    venv.make(target, [tmp_path / "wanted"], "tests", complete)
    assert seen == [True] and (target / "complete").exists() and not (target / "former").exists()
    assert (target / "bin" / "pip").read_text() == f"#!{target}/bin/python\n"
    assert (made / "bin" / "pip").read_text() == f"#!{made}/bin/python\n"
    assert not list((tmp_path / "build").iterdir())
