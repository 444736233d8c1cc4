# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading and atomically replacing files without losing owner, mode or links. PRIVATE to the collection."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import sys
import tempfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError

# linux/fs.h: FS_IOC_GETFLAGS of 64-bit systems, FS_IMMUTABLE_FL and FS_APPEND_FL.
_GETFLAGS, _UNCHANGEABLE = 0x80086601, 0x10 | 0x20


def read_bytes(path: str) -> bytes | None:
    """The content, or None where there is no such file. A link is followed."""
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}.", "Check its type and permissions.") from error


def read_text(path: str) -> str | None:
    """As L(read_bytes), decoded as UTF-8 with replacement."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def digest(data: bytes) -> str:
    """The SHA-256 of data in hex."""
    return hashlib.sha256(data).hexdigest()


def describe(path: str) -> dict[str, t.Any]:
    """What stands at path: C({state: absent}), C({state: link, target}) or C({state: file, mode, uid, gid, sha256}).

    mode is an octal string such as C(0644). A directory is C({state: directory, mode, uid, gid}).
    """
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"state": "absent"}
    owner: dict[str, t.Any] = {"mode": f"{stat.S_IMODE(info.st_mode):04o}", "uid": info.st_uid, "gid": info.st_gid}
    if stat.S_ISLNK(info.st_mode):
        return {"state": "link", "target": os.readlink(path)}
    if stat.S_ISDIR(info.st_mode):
        return {"state": "directory", **owner}
    return {"state": "file", **owner, "sha256": digest(read_bytes(path) or b"")}


def fsync_directory(path: str) -> None:
    """Makes a rename in this directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: str, data: bytes, mode: int = 0o644, uid: int | None = None, gid: int | None = None) -> None:
    """Puts data at path in one step: a reader sees the old content or the new, never a part.

    An existing file keeps its owner and mode; a link stays, its target is replaced; a new file gets C(mode).
    uid and gid, where given, win over what stands there. Parent directories must exist.
    Raises HostError where the file system refuses (read-only, immutable).
    """
    real = os.path.realpath(path)
    parent = os.path.dirname(real)
    try:
        try:
            old = os.stat(real)
            mode, owner, group = stat.S_IMODE(old.st_mode), old.st_uid, old.st_gid
        except FileNotFoundError:
            owner, group = os.geteuid(), os.getegid()
        handle, temporary = tempfile.mkstemp(prefix=".gpuops-", dir=parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                if os.geteuid() == 0:
                    os.fchown(stream.fileno(), owner if uid is None else uid, group if gid is None else gid)
                os.fsync(stream.fileno())
            os.replace(temporary, real)
        except BaseException:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise
        fsync_directory(parent)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}.",
                        "Check for a read-only file system or an immutable flag (lsattr).") from error


def check_writable(path: str) -> None:
    """Raises HostError where L(write_atomic) would be refused: a read-only file system, an immutable file or folder.

    Parent folders may be missing. Asked before the first of several files is written.
    """
    real = os.path.realpath(path)
    parent = os.path.dirname(real)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    why = ""
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        why = "its file system is read-only"
    if os.path.exists(real) and not os.path.isfile(real):
        why = f"{real}, to which it leads, is no file (is a unit masked?)"
    for one in (real, parent):
        if os.path.exists(one) and _flags(one) & _UNCHANGEABLE:
            why = f"{one} is immutable (chattr +i)"
    if why:
        raise HostError(f"{path} cannot be written: {why}. Nothing was changed.",
                        "Make it writable first; where the system is meant to be read-only, set it in the image.",
                        path=path)


def _flags(path: str) -> int:
    """The inode's flags, 0 where the file system has none."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(handle, _GETFLAGS, bytes(8))[:4], sys.byteorder)
    except OSError:
        return 0
    finally:
        os.close(handle)
