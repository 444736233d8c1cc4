# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal records the former state of a host before each change.

Each concern (C(driver), C(container_toolkit), C(mig)) has a journal in C(/var/lib/gpuops/journal): C(CONCERN.json)
with entries C({kind, key, before, after}), C(CONCERN.blobs/) with the former content of files by SHA-256, and the lock
C(CONCERN.lock). C(before) is the state before the first change by this collection, and is never overwritten. C(after)
is the state after the last change, recorded before this change. So at removal: a state equal to C(after) is owned and
C(before) is restored; a state equal to C(before) needs no change; any other state was edited. While an owned file is
replaced, C(was) is its digest until then. An empty journal has no files. A record is on the disk before its change, so
it survives a power failure.

Several concerns can own the same file, such as that of a package repository. A later concern copies C(before) of the
first one, and the last one restores it. Meanwhile the folder of the journals is locked against other concerns.

Root executes what the journal contains, so a journal that other users could have written is refused.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import stat
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, JournalError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import (
    describe,
    destination,
    digest,
    fsync_directory,
    make_folders,
    read_bytes,
    remove,
    resolve,
    sweep,
    write_atomic,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

STATE_ROOT = "/var/lib/gpuops"
JOURNAL_ROOT = f"{STATE_ROOT}/journal"
VERSION = 1
# Errors for a folder that cannot be removed: it is not empty, replaced by a link or file, or a mount point.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY)
# Seconds between two attempts to get a lock.
_PAUSE = 0.05


class Journal:
    """A journal; a context manager. readonly: for check mode, without a lock.

    entries: C({(kind, key): {before, after}}). unfinished: the step that a killed run had begun. wait: seconds to wait
    for the lock of another run before JournalError.
    """

    def __init__(self, concern: str, root: str = JOURNAL_ROOT, readonly: bool = False, wait: float = 30) -> None:
        self.concern = concern
        self.root = root
        self.readonly = readonly
        self.wait = wait
        self.path = os.path.join(root, f"{concern}.json")
        self.blobs = os.path.join(root, f"{concern}.blobs")
        self.entries: dict[tuple[str, str], dict[str, t.Any]] = {}
        self.unfinished: dict[str, t.Any] | None = None
        self._lock: int | None = None
        self._saved = True
        self._lock_path = os.path.join(root, f"{concern}.lock")

    def __enter__(self) -> Journal:
        try:
            if not self.readonly:
                self._acquire()
                sweep(self.path)
            self._check_trust()
            self._load()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._lock is not None:
                # If another run locks the folder or somebody has deleted it, the next run cleans up.
                with contextlib.suppress(FileNotFoundError, JournalError), self._alone():
                    self._tidy()
        finally:
            self._release()

    # -- entries

    def keep(self, kind: str, key: str, before: t.Any) -> None:
        """Records the former state, unless it is already recorded. before: plain data."""
        if (kind, key) not in self.entries:
            self.entries[(kind, key)] = {"before": before, "after": None}
            self._saved = False
        self._save()

    def note(self, kind: str, key: str, after: t.Any) -> None:
        """Records the state after the next change. The entry must exist, see L(keep)."""
        entry = self.entries[(kind, key)]
        if entry["after"] != after:
            entry["after"] = after
            self._saved = False
        self._save()

    def get(self, kind: str, key: str) -> dict[str, t.Any] | None:
        """C({before, after}), None without an entry."""
        return self.entries.get((kind, key))

    def of_kind(self, kind: str) -> dict[str, dict[str, t.Any]]:
        """C({key: {before, after}}) of one kind, in the order of recording."""
        return {key: entry for (entry_kind, key), entry in self.entries.items() if entry_kind == kind}

    def shared(self, kind: str, key: str) -> Journal | None:
        """The journal of another concern with this entry, None if there is none."""
        return next((other for other in self._others() if (kind, key) in other.entries), None)

    def _others(self) -> t.Iterator[Journal]:
        """Yields the journals of all other concerns."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = sorted(os.listdir(self.root))
        for name in names:
            concern, ending = os.path.splitext(name)
            if ending == ".json" and concern != self.concern:
                with Journal(concern, self.root, readonly=True) as other:
                    yield other

    def forget(self, kind: str, key: str) -> None:
        """Deletes an entry, after its former state is restored."""
        if self.entries.pop((kind, key), None) is not None:
            self._saved = False
        self._save()

    # -- files

    def keep_file(self, path: str) -> None:
        """Records the content, owner and mode of a file, or that it is missing, and its missing parent folders."""
        with self._alone():
            self._keep_file(path)

    def _keep_file(self, path: str) -> None:
        real = resolve(path)
        parent = os.path.dirname(path)
        made = []
        while parent and not os.path.isdir(parent):
            made.append(parent)
            parent = os.path.dirname(parent)
        if ("file", path) not in self.entries:
            made += [folder for journal in self._others() for folder in journal.of_kind("directory")
                     if path.startswith(folder + "/")]
        # Saved together with the file, because a removal finds folders through their files.
        new = [("directory", folder) for folder in reversed(made) if ("directory", folder) not in self.entries]
        self.entries.update({key: {"before": {"state": "absent"}, "after": None} for key in new})
        self._saved = self._saved and not new
        if ("file", path) in self.entries:
            self._save()
            return
        other = self.shared("file", path)
        if other is not None:
            self._take_over(path, other)
            return
        before = describe(path)
        if before["state"] == "link":
            before["file"] = describe(real)
        data = read_bytes(path)
        if data is not None:
            before["blob"] = self._store(data)
        self.keep("file", path, before)

    def _take_over(self, path: str, other: Journal) -> None:
        """Copies the former state from the first concern that owns this file."""
        data = other.former_bytes(path)
        if data is not None:
            self._store(data)
        self.keep("file", path, other.entries[("file", path)]["before"])

    def _store(self, data: bytes) -> str:
        make_folders(self.blobs, 0o700)
        write_atomic(os.path.join(self.blobs, digest(data)), data, mode=0o600)
        return digest(data)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Replaces a file after recording its former state. Creates missing parent folders."""
        destination(path)  # do not record a file that cannot be replaced
        with self._alone():
            self._replace(path, digest(data))
            make_folders(os.path.dirname(path))
            sweep(path)
            write_atomic(path, data, mode)
        self.entries[("file", path)].pop("was", None)

    def remove_file(self, path: str) -> None:
        """Removes a file after recording its former state."""
        with self._alone():
            self._replace(path, "absent")
            remove(path)
        self.entries[("file", path)].pop("was", None)

    def _replace(self, path: str, after: str) -> None:
        """Records the next content of a file. A run that is killed before the change leaves the present content."""
        self._keep_file(path)
        entry = self.entries[("file", path)]
        current = _content(path)
        if current != after and self.file_is(path) == "ours" and entry.get("was") != current:
            entry["was"] = current
            self._saved = False
        self.note("file", path, after)

    def former_bytes(self, path: str) -> bytes | None:
        """The former content of a recorded file, None if it was missing. Raises JournalError."""
        entry = self.entries[("file", path)]
        blob = entry["before"].get("blob")
        if blob is None:
            return None
        data = read_bytes(os.path.join(self.blobs, blob))
        if data is None or digest(data) != blob:
            raise JournalError(f"The backup of {path} in {self.blobs} is missing or damaged.",
                               "Restore the file yourself, then delete the journal.")
        return data

    def file_is(self, path: str) -> str:
        """The state of a recorded file: C(before), C(ours) (written for any concern), or C(edited)."""
        current = _content(path)
        if current == self.entries[("file", path)]["before"].get("blob", "absent"):
            return "before"
        return "ours" if self._is_ours(path, current) else "edited"

    def _is_ours(self, path: str, content: str) -> bool:
        """Whether this collection has written the content, for any concern."""
        def known(journal: Journal) -> bool:
            entry = journal.get("file", path)
            return entry is not None and content in (entry["after"], entry.get("was"))
        return known(self) or any(known(other) for other in self._others())

    def restore_file(self, path: str) -> None:
        """Restores a recorded file with owner and mode, or removes it and created folders. Deletes the entry.

        A file that another concern owns, too, stays. Something else in place of the file stays, too, such as a link to
        C(/dev/null), which masks a unit.
        """
        data = self.former_bytes(path)
        with self._alone():
            if self.shared("file", path) is None:
                self._restore(path, self.entries[("file", path)]["before"], data)
            sweep(path)
            self.drop_folders(path)
            self.forget("file", path)

    def _restore(self, path: str, before: t.Mapping[str, t.Any], data: bytes | None) -> None:
        real, follow = path, False
        with contextlib.suppress(HostError):  # otherwise a link of another user, which is replaced or removed
            real, follow = resolve(path), True
        if follow and os.path.lexists(real) and not os.path.isfile(real):
            return
        if before["state"] == "link":
            # The former target, whatever the target is now. A file in place of the link is removed.
            real = resolve(os.path.join(os.path.dirname(path), before["target"]))
            if not os.path.islink(path):
                remove(path)
                make_folders(os.path.dirname(path))
                os.symlink(before["target"], path)
                fsync_directory(os.path.dirname(path))
        if data is not None:
            if read_bytes(real) != data:
                shape = before.get("file", before)
                make_folders(os.path.dirname(real))
                attributes = {name: base64.b64decode(value) for name, value in shape.get("attributes", {}).items()}
                write_atomic(real, data, int(shape["mode"], 8), shape["uid"], shape["gid"], attributes, follow)
            return
        if real != path and self._is_ours(path, _content(real)):
            remove(real)
        if before["state"] != "link":
            remove(path)

    def drop_folders(self, path: str | None = None) -> None:
        """Removes created folders that are empty, and deletes their entries. path: only for parents of this path."""
        for folder in sorted(self.of_kind("directory"), reverse=True):
            if path is None or path.startswith(folder + "/"):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if error.errno not in _TAKEN:
                        raise
                    if any(file != path and file.startswith(folder + "/") for file in self.of_kind("file")):
                        continue  # it is removed together with the last file
                    # Otherwise it belongs to another concern, or contains foreign files.
                if os.path.isdir(os.path.dirname(folder)):
                    fsync_directory(os.path.dirname(folder))
                self.forget("directory", folder)

    # -- steps (implements L(_result.StepLog))

    def begin(self, step: Step) -> None:
        """Records that a step is about to run."""
        self.unfinished, self._saved = step.as_dict(), False
        self._save()

    def done(self, step: Step) -> None:
        """Records that the step has run."""
        self.unfinished, self._saved = None, False
        self._save()

    # -- storage

    def _acquire(self) -> None:
        deadline = time.monotonic() + self.wait
        while self._lock is None:
            self._check_trust()
            try:
                make_folders(os.path.dirname(self.root))
                make_folders(self.root, 0o700)
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except (FileNotFoundError, FileExistsError):
                # Another run may have removed its lock file and the folder just now.
                if time.monotonic() >= deadline:
                    raise
                continue
            try:
                self._wait_for(lock, self._lock_path, deadline)
                # Another run may have removed the file after it was opened.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock), os.stat(self._lock_path)):
                        self._lock = lock
            finally:
                if self._lock is None:
                    os.close(lock)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _wait_for(self, handle: int, path: str, deadline: float) -> None:
        """Locks a file. Raises JournalError if another run holds the lock until the deadline."""
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise JournalError(f"Another run has held {path} for over {self.wait:.0f} s.",
                                       "Wait until it has ended, then run again.") from error
                time.sleep(_PAUSE)

    @contextlib.contextmanager
    def _alone(self) -> t.Iterator[None]:
        """Locks out other concerns, which may own the same files."""
        if self.readonly:
            raise self._readonly()
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._wait_for(handle, self.root, time.monotonic() + self.wait)
            yield
        finally:
            os.close(handle)

    def _check_trust(self) -> None:
        """Raises JournalError if users other than root could have written the journal, or a type is wrong."""
        folders = [os.path.dirname(self.root), self.root, self.blobs]
        for path in [*folders, self.path, self._lock_path]:
            try:
                found = os.stat(path) if path in folders[:2] else os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            folder = path in folders
            if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode):
                raise JournalError(f"{path} is not a {'folder' if folder else 'file'}.",
                                   "Check it (ls -ld), move it away, then run again.", path=path)
            # In a sticky folder, other users can only add files.
            sticky = folder and found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022 and not sticky:
                raise JournalError(
                    f"{path} has mode {stat.S_IMODE(found.st_mode):04o} and belongs to user {found.st_uid}: users "
                    f"other than root could have changed {self.path}, which a removal executes.",
                    f"Check that file, or delete it; then the former state cannot be restored. Then run chown "
                    f"root:root {path} && chmod {'0700' if folder else '0600'} {path}.", path=path)

    def _load(self) -> None:
        data = read_bytes(self.path)
        if data is None:
            return
        try:
            document = json.loads(data)
            version = document["version"]
            if isinstance(version, bool) or not isinstance(version, int) or version < 1:
                raise ValueError(f"{version!r} is not a journal format")
            if version > VERSION:
                raise JournalError(f"{self.path} was written by a newer version of the collection (format {version}).",
                                   f"Run that version; this one reads up to format {VERSION}.")
            self.entries = {(item["kind"], item["key"]): {name: item[name] for name in ("before", "after", "was")
                                                          if name != "was" or name in item}
                            for item in document["entries"]}
            self.unfinished = document["unfinished"]
            if not isinstance(self.unfinished, (dict, type(None))):
                raise ValueError(f"unfinished is {self.unfinished!r}")
            for (kind, key), entry in self.entries.items():
                if kind in ("file", "directory") and not (os.path.isabs(key) and _is_state(entry["before"])):
                    raise ValueError(f"{kind} {key} is not a path with a former state")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise JournalError(f"{self.path} is damaged: {error!r}.",
                               "Repair it, or delete it; then the former state cannot be restored.") from error

    def _readonly(self) -> JournalError:
        return JournalError(f"{self.path} was opened for reading.", "This is a bug: report it.")

    def _save(self) -> None:
        """Writes the journal if it has changed. If this fails, such as on a full disk, the next change tries again."""
        if self._saved:
            return
        if self.readonly:
            raise self._readonly()
        document = {"version": VERSION, "unfinished": self.unfinished,
                    "entries": [{"kind": kind, "key": key, **entry} for (kind, key), entry in self.entries.items()]}
        write_atomic(self.path, json.dumps(document, indent=1).encode() + b"\n", mode=0o600)
        self._saved = True

    def _tidy(self) -> None:
        """Removes former contents that no entry needs (they may be secret), and all files of an empty journal."""
        empty = not self.entries and self.unfinished is None
        kept = {entry["before"]["blob"] for entry in self.of_kind("file").values() if "blob" in entry["before"]}
        if empty and os.path.lexists(self.path):
            os.unlink(self.path)
        for name in os.listdir(self.blobs) if os.path.isdir(self.blobs) and (empty or self._saved) else ():
            if name not in kept:
                os.unlink(os.path.join(self.blobs, name))
        if not empty:
            return
        with contextlib.suppress(OSError):
            os.rmdir(self.blobs)
        if os.path.lexists(self._lock_path):
            os.unlink(self._lock_path)
        with contextlib.suppress(OSError):
            os.rmdir(self.root)
            os.rmdir(os.path.dirname(self.root))


def _is_state(before: t.Mapping[str, t.Any]) -> bool:
    """Whether a former state is complete, as L(Journal.keep_file) records it."""
    if before["state"] not in ("absent", "directory", "file", "link"):
        return False
    if "blob" in before:
        shape = before.get("file", before)
        int(shape["mode"], 8)
        if [type(one) for one in (before["blob"], shape["uid"], shape["gid"])] != [str, int, int]:
            return False
    return before["state"] != "link" or isinstance(before["target"], str)


def _content(path: str) -> str:
    """The digest of the current content, or C(absent)."""
    data = read_bytes(path)
    return "absent" if data is None else digest(data)
