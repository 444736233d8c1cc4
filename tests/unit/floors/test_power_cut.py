# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal after a kill or a power cut between any two system calls: the former content can always be restored."""

from __future__ import annotations

import os
import shutil
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.tests.unit.floors.disk import Disk, Tree, read_tree, write_tree

THEIRS, OURS, NEWER = b"# theirs\r\n", b"ours\n", b"ours, newer\n"


class Place:
    """The disk of a host below one folder: C(etc/app.conf), which is theirs, and two files that are ours alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = {name: str(root / "etc" / name) for name in ("app.conf", "plain.conf", "conf.d/new.conf")}

    def journal(self, concern: str = "demo") -> Journal:
        return Journal(concern, root=str(self.root / "lib" / "gpuops" / "journal"))

    def write(self, name: str, data: bytes = OURS, concern: str = "demo") -> None:
        with self.journal(concern) as journal:
            journal.write_file(self.paths[name], data)

    def note(self, name: str) -> None:
        with self.journal() as journal:
            journal.keep("unit", name, {"enabled": False})
            journal.note("unit", name, {"enabled": True})

    def drop(self, name: str) -> None:
        with self.journal() as journal:
            journal.remove_file(self.paths[name])

    def remove(self, concern: str = "demo") -> None:
        """Does what a removal does: restores all recorded content."""
        with self.journal(concern) as journal:
            for path in journal.of_kind("file"):
                journal.restore_file(path)
            for name in journal.of_kind("unit"):
                journal.forget("unit", name)


def place(folder: Path, tree: Tree | None = None) -> Place:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_tree({"etc": {"app.conf": (THEIRS, 0o640, os.geteuid(), os.getegid())}, "lib": {}} if tree is None else tree,
               folder)
    return Place(folder)


Act = t.Callable[[Place], None]
CASES: dict[str, tuple[list[Act], Act]] = {
    "a changed file": ([], lambda one: one.write("app.conf")),
    "a new file in a new folder": ([], lambda one: one.write("conf.d/new.conf")),
    "a second change": ([lambda one: one.write("app.conf")], lambda one: one.write("app.conf", NEWER)),
    "a second file": ([lambda one: one.write("app.conf")], lambda one: one.write("conf.d/new.conf")),
    "a removed file": ([], lambda one: one.drop("app.conf")),
    "our own file removed": ([lambda one: one.write("conf.d/new.conf")], lambda one: one.drop("conf.d/new.conf")),
    "a note": ([lambda one: one.write("app.conf")], lambda one: one.note("x.service")),
    "a restored file": ([lambda one: one.write("app.conf")], Place.remove),
    "a new file in a folder of theirs": ([], lambda one: one.write("plain.conf")),
    "a restored new file in a folder of theirs": ([lambda one: one.write("plain.conf")], Place.remove),
    "a restored new file": ([lambda one: one.write("conf.d/new.conf")], Place.remove),
    "both restored": ([lambda one: one.write("app.conf"), lambda one: one.write("conf.d/new.conf")], Place.remove),
    "a removed file restored": ([lambda one: one.drop("app.conf")], Place.remove),
    "of two concerns": ([lambda one: one.write("app.conf", concern="other")], lambda one: one.write("app.conf")),
    "of two concerns the first leaves": (
        [lambda one: one.write("app.conf", concern="other"), lambda one: one.write("app.conf")],
        lambda one: one.remove("other")),
}


def check(image: Place, theirs: Tree) -> None:
    """Checks that the content is theirs, or that it is recorded as our own with the former content."""
    journals = []
    for concern in ("demo", "other"):
        with Journal(concern, root=image.journal().root, readonly=True) as journal:
            journals.append(journal)
    for name, path in image.paths.items():
        former = theirs["etc"].get(name, (None,))[0]
        now = read_bytes(path)
        kept = [journal for journal in journals if journal.get("file", path)]
        assert now == former or kept, f"{name} is {now!r}, and no journal knows what it was"
        for journal in kept:
            assert journal.former_bytes(path) == former, name
        assert now == former or "ours" in [journal.file_is(path) for journal in kept], f"{name} is taken for an edit"


def _units(image: Place) -> list[tuple[str, object]]:
    """The records of units in the journal of a disk."""
    with Journal("demo", root=image.journal().root, readonly=True) as journal:
        return [(name, journal.get("unit", name)) for name in journal.of_kind("unit")]


@pytest.mark.parametrize("case", CASES)
def test_what_was_there_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The run is recorded once. Then each possible disk is read, and a removal follows, or another run and then a
    removal."""
    before, act = CASES[case]
    monkeypatch.setattr(os, "fsync", lambda _handle: None)  # what it is for is what the recorder models
    one = place(tmp_path / "host")
    theirs = read_tree(one.root)
    for earlier in before:
        earlier(one)
    disk = Disk(one.root)
    with monkeypatch.context() as patch:
        disk.record(patch)
        act(one)
    disk.stop()
    images = list(disk.images())
    assert len(images) > 4, "hardly anything was recorded"
    recorded = _units(one)
    for tree in disk.images(ended=True):
        assert _units(place(tmp_path / "copy", tree)) == recorded, "a note is lost with a power cut"
    for number, tree in enumerate(images):
        for again in (False, True):
            found = place(one.root, tree)
            try:
                check(found, theirs)
                if again:
                    act(found)
                for concern in ("other", "demo"):
                    found.remove(concern)
                assert read_tree(found.root) == theirs
            except BaseException:
                print(f"image {number} of {len(images)}, {'the run again, then ' * again}a removal: {tree}")
                raise


def test_what_is_recorded_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests the model itself: a write without fsync can be lost, and so can a rename without fsync of its folder."""
    (tmp_path / "f").write_bytes(b"old")
    disk = Disk(tmp_path)
    with monkeypatch.context() as patch:
        disk.record(patch)
        (tmp_path / "new").write_bytes(b"new")
        os.replace(tmp_path / "new", tmp_path / "f")
        (tmp_path / "d").mkdir()
    disk.stop()
    names = {tuple((name, node[0] if isinstance(node, tuple) else "folder") for name, node in image.items())
             for image in disk.images()}
    assert names == {(("f", b"old"),), (("f", b"old"), ("new", b"")), (("f", b"old"), ("new", b"new")),
                     (("f", b""),), (("f", b"new"),), (("d", "folder"), ("f", b"")), (("d", "folder"), ("f", b"new"))}
