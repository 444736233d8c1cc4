# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was there before each change of a host: write-ahead, versioned, locked. PRIVATE to the collection.

One journal a concern (C(driver), C(container_toolkit), C(mig)) under C(/var/lib/gpuops/journal):
C(CONCERN.json) holds entries C({kind, key, before, after}), C(CONCERN.blobs/) the former bytes of files by SHA-256,
C(CONCERN.lock) the lock. C(before) is what stood there when this collection first came; it is recorded once, before
the first change, and never overwritten. C(after) is what we put there, recorded before it is put there. So at removal:
what equals C(after) is ours and C(before) returns; what equals C(before) needs nothing; anything else was edited by
somebody since. An empty journal leaves no file.

A file may serve several concerns, such as a package repository. Whoever comes later takes over the C(before) of the
first, and only the last one to leave puts it back.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import JournalError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import (
    describe,
    digest,
    read_bytes,
    write_atomic,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

STATE_ROOT = "/var/lib/gpuops"
JOURNAL_ROOT = f"{STATE_ROOT}/journal"
VERSION = 1


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
        self._lock: t.IO[str] | None = None

    def __enter__(self) -> Journal:
        if not self.readonly:
            self._acquire()
        self._load()
        return self

    def __exit__(self, *exc: t.Any) -> None:
        if self._lock is not None:
            if not self.entries and self.unfinished is None:
                self._erase()
            self._lock.close()
            self._lock = None

    # -- entries

    def keep(self, kind: str, key: str, before: t.Any) -> None:
        """Records what was there, unless it is on record already. before: plain data."""
        if (kind, key) not in self.entries:
            self.entries[(kind, key)] = {"before": before, "after": None}
            self._save()

    def note(self, kind: str, key: str, after: t.Any) -> None:
        """Records what we are about to put there. The entry must have been kept."""
        entry = self.entries[(kind, key)]
        if entry["after"] != after:
            entry["after"] = after
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
        for name in sorted(os.listdir(self.root)) if os.path.isdir(self.root) else ():
            concern, ending = os.path.splitext(name)
            if ending == ".json" and concern != self.concern:
                with Journal(concern, self.root, readonly=True) as other:
                    yield other

    def forget(self, kind: str, key: str) -> None:
        """Drops an entry after its former state has been restored."""
        if self.entries.pop((kind, key), None) is not None:
            self._save()

    # -- files

    def keep_file(self, path: str) -> None:
        """Records bytes, owner and mode of a file, or that there is none, and which parent folders are missing."""
        parent = os.path.dirname(path)
        missing = []
        while parent and not os.path.isdir(parent):
            missing.append(parent)
            parent = os.path.dirname(parent)
        for folder in reversed(missing):
            self.keep("directory", folder, {"state": "absent"})
        if ("file", path) in self.entries:
            return
        for other_folder in [key for journal in self._others() for key in journal.of_kind("directory")]:
            if path.startswith(other_folder + "/"):
                self.keep("directory", other_folder, {"state": "absent"})
        other = self.shared("file", path)
        if other is not None:
            self._take_over(path, other)
            return
        before = describe(path)
        if before["state"] == "link":
            before["file"] = describe(os.path.realpath(path))
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
        os.makedirs(self.blobs, mode=0o700, exist_ok=True)
        write_atomic(os.path.join(self.blobs, digest(data)), data, mode=0o600)
        return digest(data)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Replaces a file with the former content kept; makes missing parent folders."""
        self.keep_file(path)
        self.note("file", path, digest(data))
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_atomic(path, data, mode)

    def remove_file(self, path: str) -> None:
        """Removes a file with the former content kept."""
        self.keep_file(path)
        self.note("file", path, "absent")
        if os.path.lexists(path):
            os.unlink(path)

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
        """How a kept file stands now: C(before), C(ours) or C(edited)."""
        entry = self.entries[("file", path)]
        data = read_bytes(path)
        now = "absent" if data is None else digest(data)
        if now == entry["before"].get("blob", "absent"):
            return "before"
        return "ours" if now == entry["after"] else "edited"

    def restore_file(self, path: str) -> None:
        """Puts back bytes, owner and mode of a kept file, or removes it and the folders that we made; forgets it.

        A file that another concern keeps as well stays.
        """
        before = self.entries[("file", path)]["before"]
        data = self.former_bytes(path)
        if self.shared("file", path) is not None:
            pass
        elif data is None:
            if os.path.lexists(path):
                os.unlink(path)
        elif self.file_is(path) != "before":
            shape = before.get("file", before)
            write_atomic(path, data, int(shape["mode"], 8), shape["uid"], shape["gid"])
        self.forget("file", path)
        self.drop_folders(path)

    def drop_folders(self, path: str | None = None) -> None:
        """Removes and forgets the folders that we made, all or those above a path; one that is not empty stays."""
        for folder in sorted(self.of_kind("directory"), reverse=True):
            if path is None or path.startswith(folder + "/"):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    pass
                except OSError:
                    if self.shared("directory", folder) is None:
                        continue  # somebody else put something there since: it is theirs now
                self.forget("directory", folder)

    # -- steps (the StepLog of _result.apply)

    def begin(self, step: Step) -> None:
        """Write-ahead record of a step."""
        self.unfinished = step.as_dict()
        self._save()

    def done(self, step: Step) -> None:
        """The step has run."""
        self.unfinished = None
        self._save()

    # -- storage

    def _acquire(self) -> None:
        path = os.path.join(self.root, f"{self.concern}.lock")
        deadline = time.monotonic() + self.wait
        while True:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
            lock = open(path, "a", encoding="utf-8")  # noqa: SIM115 - held until __exit__
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The former holder may have removed the file between our open and our lock.
                if os.path.exists(path) and os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                    self._lock = lock
                    return
                lock.close()
            except BlockingIOError as error:
                lock.close()
                if time.monotonic() >= deadline:
                    raise JournalError(f"Another run has held {path} for over {self.wait:.0f} s.",
                                       "Wait until it has ended, then run again.") from error
                time.sleep(0.2)

    def _load(self) -> None:
        data = read_bytes(self.path)
        if data is None:
            return
        try:
            document = json.loads(data)
            version = document["version"]
            if version > VERSION:
                raise JournalError(f"{self.path} was written by a newer version of the collection (format {version}).",
                                   f"Run that version; this one reads up to format {VERSION}.")
            self.entries = {(item["kind"], item["key"]): {"before": item["before"], "after": item["after"]}
                            for item in document["entries"]}
            self.unfinished = document["unfinished"]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{self.path} is damaged: {error!r}.",
                               "Mend it, or remove it: then what was there before the first change cannot be put "
                               "back any more.") from error

    def _save(self) -> None:
        if self.readonly:
            raise JournalError(f"{self.path} was opened for reading.", "This is a bug: report it.")
        document = {"version": VERSION, "unfinished": self.unfinished,
                    "entries": [{"kind": kind, "key": key, **entry} for (kind, key), entry in self.entries.items()]}
        write_atomic(self.path, json.dumps(document, indent=1).encode() + b"\n", mode=0o600)

    def _erase(self) -> None:
        if os.path.isdir(self.blobs):
            for name in os.listdir(self.blobs):
                os.unlink(os.path.join(self.blobs, name))
            os.rmdir(self.blobs)
        for path in (self.path, os.path.join(self.root, f"{self.concern}.lock")):
            if os.path.lexists(path):
                os.unlink(path)
        for folder in (self.root, os.path.dirname(self.root)):
            try:
                os.rmdir(folder)
            except OSError:
                break
