# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be on a disk after a power cut: records the system calls below a folder, and replays a part of them.

The rules are those that POSIX guarantees, not those of one file system:

- a change of a directory (a file or folder made, renamed or removed in it) is sure to be there only once that directory
  has been fsynced; of the later changes of one directory any number may be there, in their order, and directories are
  independent of each other;
- the content, mode and owner of a file are sure to be there only once the file has been fsynced; before that it may
  have its former content, none, or the new one.

If only a process is killed and the machine continues, nothing is lost.
"""

from __future__ import annotations

import itertools
import os
import stat
import typing as t
from pathlib import Path

# A file is (bytes, mode, uid, gid), a folder a mapping of names.
Content = t.Tuple[bytes, int, int, int]
Tree = t.Dict[str, t.Any]
# (object, what): a directory gets (name, object or None) entries, a file its content; "sync" stands for fsync.
Event = t.Tuple[int, t.Any]
_CALLS = ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "symlink", "link", "truncate")


def read_tree(folder: Path) -> Tree:
    """The content of a folder as a tree."""
    found: Tree = {}
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            found[path.name] = os.readlink(path)
        elif path.is_dir():
            found[path.name] = read_tree(path)
        else:
            info = path.stat()
            found[path.name] = (path.read_bytes(), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)
    return found


def write_tree(tree: Tree, folder: Path) -> None:
    """Writes a tree to an empty folder."""
    for name, node in tree.items():
        path = folder / name
        if isinstance(node, str):
            path.symlink_to(node)
        elif isinstance(node, dict):
            path.mkdir()
            write_tree(node, path)
        else:
            path.write_bytes(node[0])
            path.chmod(node[1])
            os.chown(path, node[2], node[3])


class Disk:
    """Records what happens below a folder, whose initial content is durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[Event] = []
        self.start: dict[int, t.Any] = {}  # directories (names to objects) and files (content) at the start
        self.kinds: list[str] = []
        self._live: dict[str, int] = {}
        self._last: dict[int, t.Any] = {}
        self._look()
        self._add_start()

    def record(self, patch: t.Any) -> None:
        """Starts recording. patch: a MonkeyPatch; its context ends the recording, after which L(stop) must be
        called."""
        for name in _CALLS:
            patch.setattr(os, name, self._recorded(name, getattr(os, name)))

    def stop(self) -> None:
        """Records what happened after the last call, and proves that the record is complete."""
        self._look()
        assert self._tree(0, self._applied(len(self.events), {})) == read_tree(self.root)

    def images(self, ended: bool = False) -> t.Iterator[Tree]:
        """Every tree that can exist after a power cut at any moment, each once; ended: only after the last
        operation."""
        seen: set[str] = set()
        for moment in range(len(self.events) if ended else 0, len(self.events) + 1):
            for choice in self._choices(moment):
                tree = self._tree(0, self._applied(moment, choice))
                if repr(tree) not in seen:
                    seen.add(repr(tree))
                    yield tree

    # -- recording

    def _recorded(self, name: str, real: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        def call(what: t.Any, *args: t.Any, **options: t.Any) -> t.Any:
            self._look()  # what has been written since the last call, which may be lost still
            path = os.readlink(f"/proc/self/fd/{what}") if name == "fsync" else os.path.join(str(self.root), what)
            moved = self._live.get(path)
            result = real(what, *args, **options)
            if name == "fsync" and moved is not None:
                self.events.append((moved, "sync"))
            elif name in ("replace", "rename") and moved is not None:
                self._rename(path, str(args[0]), moved)
            self._look()
            return result
        return call

    def _rename(self, old: str, new: str, moved: int) -> None:
        """Records a rename as one change that exists completely or not at all; both names are in the same directory."""
        assert os.path.dirname(old) == os.path.dirname(new), "a rename between folders has no model here"
        self.events.append((self._live[os.path.dirname(new)],
                            ((os.path.basename(old), None), (os.path.basename(new), moved))))
        self._live[new] = self._live.pop(old)

    def _look(self) -> None:
        """Appends the differences between the live folder and the record: names and contents."""
        found = {str(self.root): False}
        for folder, folders, files in os.walk(self.root):
            found.update({os.path.join(folder, name): False for name in folders})
            found.update({os.path.join(folder, name): True for name in files})
        for path in sorted(set(self._live) - set(found), reverse=True):
            del self._live[path]
            self._name(path, None)
        for path, is_file in found.items():
            if path not in self._live:
                self._live[path] = len(self.kinds)
                self.kinds.append("file" if is_file else "directory")
                if path != str(self.root):
                    self._name(path, self._live[path])
            if is_file:
                info = os.lstat(path)
                content = os.readlink(path) if stat.S_ISLNK(info.st_mode) else (
                    Path(path).read_bytes(), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)
                if self._last.get(self._live[path]) != content:
                    self._last[self._live[path]] = content
                    self.events.append((self._live[path], content))

    def _name(self, path: str, what: int | None) -> None:
        parent = self._live.get(os.path.dirname(path))
        if parent is not None:  # else the parent has gone with it
            self.events.append((parent, ((os.path.basename(path), what),)))

    def _add_start(self) -> None:
        self.start = self._applied(len(self.events), {})
        self.events.clear()

    # -- playing back

    def _applied(self, moment: int, kept: t.Mapping[int, int]) -> dict[int, t.Any]:
        """Directories and files at a moment, with only this many events of the objects in kept."""
        state = {ident: dict(was) if isinstance(was, dict) else was for ident, was in self.start.items()}
        count: dict[int, int] = {}
        for ident, what in self.events[:moment]:
            count[ident] = count.get(ident, 0) + 1
            if what == "sync" or count[ident] > kept.get(ident, moment):
                continue
            if self.kinds[ident] == "directory":
                for name, entry in what:
                    state.setdefault(ident, {})[name] = entry
            else:
                state[ident] = what
        return state

    def _choices(self, moment: int) -> t.Iterator[dict[int, int]]:
        """The possible numbers of events of each object that have reached the disk: at least those up to its last
        fsync."""
        of: dict[int, list[t.Any]] = {}
        for ident, what in self.events[:moment]:
            of.setdefault(ident, []).append(what)
        ranges = [[(ident, number) for number in range(_synced(events), len(events) + 1)]
                  for ident, events in of.items()]
        return (dict(choice) for choice in itertools.product(*ranges))

    def _tree(self, ident: int, state: t.Mapping[int, t.Any]) -> Tree:
        tree: Tree = {}
        for name, entry in sorted((state.get(ident) or {}).items()):
            if entry is not None:
                empty: Content = (b"", 0o600, os.geteuid(), os.getegid())
                tree[name] = (self._tree(entry, state) if self.kinds[entry] == "directory" else state.get(entry, empty))
        return tree


def _synced(events: t.Sequence[t.Any]) -> int:
    """The number of events up to the last fsync."""
    return max((number + 1 for number, what in enumerate(events) if what == "sync"), default=0)
