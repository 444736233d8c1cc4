# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was there before each change of a host: write-ahead, versioned, locked.

One journal a concern (C(driver), C(container_toolkit), C(mig)) under C(/var/lib/gpuops/journal):
C(CONCERN.json) holds entries C({kind, key, before, after}), C(CONCERN.blobs/) the former bytes of files by SHA-256,
C(CONCERN.lock) the lock. C(before) is what stood there when this collection first came; it is recorded once, before
the first change, and never overwritten. C(after) is what we put there, recorded before it is put there. So at removal:
what equals C(after) is ours and C(before) returns; what equals C(before) needs nothing; anything else was edited by
somebody since. While a file of ours is replaced, C(was) is the one that stands there until then. An empty journal
leaves no file. All of this holds after a power cut too: what is recorded is on the disk before what it is about.

A file may serve several concerns, such as a package repository. Whoever comes later takes over the C(before) of the
first, and only the last one to leave puts it back. While a file is kept, replaced or put back, the folder of the
journals is locked, against all other concerns.

What a journal says, root does. So one that somebody else could have written is refused.
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
# Why a folder of ours is not removed: there is something in it, a link or file is in its place, or a mount.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY)
# Seconds between two looks at a lock.
_PAUSE = 0.05


class Journal:
    """A journal, opened by C(with): locked and writable, or with C(readonly=True) (check mode) neither.

    wait: seconds to wait for another run's lock before JournalError.
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

    def __exit__(self, *exc: t.Any) -> None:
        try:
            if self._lock is not None:
                # Where another run is at it, or somebody has removed it all: the next run tidies up.
                with contextlib.suppress(FileNotFoundError, JournalError), self._alone():
                    self._tidy()
        finally:
            self._release()

    # -- entries

    def keep(self, kind: str, key: str, before: t.Any) -> None:
        """Records what was there, unless it is on record already. before: plain data."""
        if (kind, key) not in self.entries:
            self.entries[(kind, key)] = {"before": before, "after": None}
            self._saved = False
        self._save()

    def note(self, kind: str, key: str, after: t.Any) -> None:
        """Records what we are about to put there. The entry must have been kept."""
        entry = self.entries[(kind, key)]
        if entry["after"] != after:
            entry["after"] = after
            self._saved = False
        self._save()

    def get(self, kind: str, key: str) -> dict[str, t.Any] | None:
        """C({before, after}) or None."""
        return self.entries.get((kind, key))

    def of_kind(self, kind: str) -> dict[str, dict[str, t.Any]]:
        """C({key: {before, after}}) of one kind, in order of recording."""
        return {key: entry for (entry_kind, key), entry in self.entries.items() if entry_kind == kind}

    def shared(self, kind: str, key: str) -> Journal | None:
        """The journal of another concern that has this entry too, None where we are the only one."""
        return next((other for other in self._others() if (kind, key) in other.entries), None)

    def _others(self) -> t.Iterator[Journal]:
        """The journals of all other concerns, as they are on disk."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = sorted(os.listdir(self.root))
        for name in names:
            concern, ending = os.path.splitext(name)
            if ending == ".json" and concern != self.concern:
                with Journal(concern, self.root, readonly=True) as other:
                    yield other

    def forget(self, kind: str, key: str) -> None:
        """Drops an entry after its former state has been restored."""
        if self.entries.pop((kind, key), None) is not None:
            self._saved = False
        self._save()

    # -- files

    def keep_file(self, path: str) -> None:
        """Records bytes, owner and mode of a file, or that there is none, and which parent folders are missing."""
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
        # Saved together with the file: folders alone would stay on record, as a removal goes by the files.
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
        """What was there before the first concern that keeps this file."""
        data = other.former_bytes(path)
        if data is not None:
            self._store(data)
        self.keep("file", path, other.entries[("file", path)]["before"])

    def _store(self, data: bytes) -> str:
        make_folders(self.blobs, 0o700)
        write_atomic(os.path.join(self.blobs, digest(data)), data, mode=0o600)
        return digest(data)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Replaces a file with the former content kept; makes missing parent folders."""
        destination(path)  # what cannot be replaced is not put on record
        with self._alone():
            self._replace(path, digest(data))
            make_folders(os.path.dirname(path))
            sweep(path)
            write_atomic(path, data, mode)
        self.entries[("file", path)].pop("was", None)

    def remove_file(self, path: str) -> None:
        """Removes a file with the former content kept."""
        with self._alone():
            self._replace(path, "absent")
            remove(path)
        self.entries[("file", path)].pop("was", None)

    def _replace(self, path: str, after: str) -> None:
        """Records what a file will be. A run that is stopped before it is so leaves what we put there earlier."""
        self._keep_file(path)
        entry = self.entries[("file", path)]
        now = _content(path)
        if now != after and self.file_is(path) == "ours" and entry.get("was") != now:
            entry["was"] = now
            self._saved = False
        self.note("file", path, after)

    def former_bytes(self, path: str) -> bytes | None:
        """The bytes that a kept file had, None where there was none."""
        entry = self.entries[("file", path)]
        blob = entry["before"].get("blob")
        if blob is None:
            return None
        data = read_bytes(os.path.join(self.blobs, blob))
        if data is None or digest(data) != blob:
            raise JournalError(f"The backup of {path} in {self.blobs} is missing or damaged.",
                               "Restore the file by hand, then delete the journal.")
        return data

    def file_is(self, path: str) -> str:
        """How a kept file stands now: C(before), C(ours), which is any concern's that keeps it, or C(edited)."""
        now = _content(path)
        if now == self.entries[("file", path)]["before"].get("blob", "absent"):
            return "before"
        return "ours" if self._is_ours(path, now) else "edited"

    def _is_ours(self, path: str, content: str) -> bool:
        """Whether this collection has put it there, for whatever concern."""
        def known(journal: Journal) -> bool:
            entry = journal.get("file", path)
            return entry is not None and content in (entry["after"], entry.get("was"))
        return known(self) or any(known(other) for other in self._others())

    def restore_file(self, path: str) -> None:
        """Puts back bytes, owner and mode of a kept file, or removes it and the folders that we made; forgets it.

        A file that another concern keeps as well stays; so does what is there instead of it and is no file, such as the
        link to C(/dev/null) with which somebody has masked it since.
        """
        data = self.former_bytes(path)
        with self._alone():
            if self.shared("file", path) is None:
                self._put_back(path, self.entries[("file", path)]["before"], data)
            sweep(path)
            self.drop_folders(path)
            self.forget("file", path)

    def _put_back(self, path: str, before: t.Mapping[str, t.Any], data: bytes | None) -> None:
        real, follow = path, False
        with contextlib.suppress(HostError):  # else it is a link of another user, which is replaced or removed
            real, follow = resolve(path), True
        if follow and os.path.lexists(real) and not os.path.isfile(real):
            return
        if before["state"] == "link":
            # Where it led, whatever it leads to by now. A file that has taken its place makes room.
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
        """Removes and forgets the folders that we made, all or those above a path; one that is not empty stays."""
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
                        continue  # it goes with the last of them
                    # Else another concern has it on record, or somebody put something there since: then it is theirs.
                if os.path.isdir(os.path.dirname(folder)):
                    fsync_directory(os.path.dirname(folder))
                self.forget("directory", folder)

    # -- steps (the StepLog of _result.apply)

    def begin(self, step: Step) -> None:
        """Write-ahead record of a step."""
        self.unfinished, self._saved = step.as_dict(), False
        self._save()

    def done(self, step: Step) -> None:
        """The step has run."""
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
                # The former holder removes its lock and the folder at its end, and may have done so just now.
                if time.monotonic() >= deadline:
                    raise
                continue
            try:
                self._wait_for(lock, self._lock_path, deadline)
                # Or it has removed the file between our open and our lock.
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
        """Locks it. Raises JournalError where another run has it until the deadline."""
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
        """Keeps other concerns, which may have the same files, from changing them or their records."""
        if self.readonly:
            raise self._readonly()
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._wait_for(handle, self.root, time.monotonic() + self.wait)
            yield
        finally:
            os.close(handle)

    def _check_trust(self) -> None:
        """Raises JournalError where something else is there, or others than root could have written it."""
        folders = [os.path.dirname(self.root), self.root, self.blobs]
        for path in [*folders, self.path, self._lock_path]:
            try:
                found = os.stat(path) if path in folders[:2] else os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            folder = path in folders
            if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode):
                raise JournalError(f"{path} is not a {'folder' if folder else 'file'}.",
                                   "See what it is (ls -ld), move it away, then run again.", path=path)
            # In a folder that is sticky, others can add files of their own only.
            sticky = folder and found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022 and not sticky:
                raise JournalError(
                    f"{path} has mode {stat.S_IMODE(found.st_mode):04o} and belongs to user {found.st_uid}: others "
                    f"than root could have changed what {self.path} says, and a removal does what it says.",
                    f"Check that file, or remove it: then what was there before cannot be put back. Then: chown "
                    f"root:root {path} && chmod {'0700' if folder else '0600'} {path}.", path=path)

    def _load(self) -> None:
        data = read_bytes(self.path)
        if data is None:
            return
        try:
            document = json.loads(data)
            version = document["version"]
            if isinstance(version, bool) or not isinstance(version, int) or version < 1:
                raise ValueError(f"{version!r} is no format of a journal")
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
                    raise ValueError(f"{kind} {key} is not a path with what was there")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise JournalError(f"{self.path} is damaged: {error!r}.",
                               "Mend it, or remove it: then what was there before the first change cannot be put "
                               "back any more.") from error

    def _readonly(self) -> JournalError:
        return JournalError(f"{self.path} was opened for reading.", "This is a bug: report it.")

    def _save(self) -> None:
        """Unless all is on the disk. What a full disk has refused, the next change tries again."""
        if self._saved:
            return
        if self.readonly:
            raise self._readonly()
        document = {"version": VERSION, "unfinished": self.unfinished,
                    "entries": [{"kind": kind, "key": key, **entry} for (kind, key), entry in self.entries.items()]}
        write_atomic(self.path, json.dumps(document, indent=1).encode() + b"\n", mode=0o600)
        self._saved = True

    def _tidy(self) -> None:
        """Removes former bytes that no entry needs any more, which may be secret; of an empty journal everything."""
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
    """Whether it has what a removal needs to restore a file or folder, as keep_file records it."""
    if before["state"] not in ("absent", "directory", "file", "link"):
        return False
    if "blob" in before:
        shape = before.get("file", before)
        int(shape["mode"], 8)
        if [type(one) for one in (before["blob"], shape["uid"], shape["gid"])] != [str, int, int]:
            return False
    return before["state"] != "link" or isinstance(before["target"], str)


def _content(path: str) -> str:
    """The digest of what is there now, or C(absent)."""
    data = read_bytes(path)
    return "absent" if data is None else digest(data)
