# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads files, and replaces them atomically with the same owner, mode, attributes and links."""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import sys
import tempfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, next_step

# linux/fs.h: FS_IOC_GETFLAGS of 64-bit systems, FS_IMMUTABLE_FL and FS_APPEND_FL.
_GETFLAGS, _UNCHANGEABLE = 0x80086601, 0x10 | 0x20
# Extended attributes for access (ACLs, security labels) and those of users. Others belong to the content (IMA) or to
# the file system.
_KEPT = ("system.", "user.", "security.selinux", "security.SMACK64")
# The number of links that the kernel follows.
_LINKS = 40


def read_bytes(path: str) -> bytes | None:
    """The content of a file, None if it does not exist. Links are followed; devices and pipes count as empty."""
    try:
        if not os.path.isdir(path) and not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as handle:
            return handle.read()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None  # ValueError: an impossible name, such as one that contains NUL
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}.", "Check its type and permissions.") from error


def read_text(path: str) -> str | None:
    """As L(read_bytes), decoded as UTF-8. Invalid bytes are replaced."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def digest(data: bytes) -> str:
    """The SHA-256 digest of data as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def describe(path: str) -> dict[str, t.Any]:
    """The state of path: C({state: absent}), C({state: link, target}) or C({state: file, mode, uid, gid, sha256}).

    A directory is C({state: directory, mode, uid, gid}). mode is an octal string such as C(0644). If a file has
    extended attributes that L(write_atomic) keeps, C(attributes) has their names and values (Base64).
    """
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"state": "absent"}
    owner: dict[str, object] = {"mode": f"{stat.S_IMODE(info.st_mode):04o}", "uid": info.st_uid, "gid": info.st_gid}
    if stat.S_ISLNK(info.st_mode):
        return {"state": "link", "target": os.readlink(path)}
    if stat.S_ISDIR(info.st_mode):
        return {"state": "directory", **owner}
    attributes = {name: base64.b64encode(value).decode() for name, value in read_attributes(path).items()}
    return {"state": "file", **owner, "sha256": digest(read_bytes(path) or b""),
            **({"attributes": attributes} if attributes else {})}


def read_attributes(path: str | int) -> dict[str, bytes]:
    """The extended attributes to keep when the content of a file is replaced; empty if they are not supported."""
    found: dict[str, bytes] = {}
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for name in os.listxattr(path):
                if name.startswith(_KEPT):
                    found[name] = os.getxattr(path, name)
    return found


def _give_attributes(handle: int, attributes: t.Mapping[str, bytes]) -> None:
    """Sets exactly these attributes, as far as permitted. Removes the default ACL that a folder gives to a new file."""
    for name in read_attributes(handle):
        if name not in attributes and not name.startswith("security."):
            with contextlib.suppress(OSError):
                os.removexattr(handle, name)
    for name, value in attributes.items():
        with contextlib.suppress(OSError):
            os.setxattr(handle, name, value)


def fsync_directory(path: str) -> None:
    """Makes changes of the entries of a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = path  # errors of a handle have none
        raise
    finally:
        os.close(handle)


def make_folders(path: str, mode: int = 0o755) -> None:
    """Creates folders durably. Otherwise a power failure could delete a new folder and all files in it."""
    missing, folder = [], path
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(path, mode=mode, exist_ok=True)
    for folder in reversed(missing):
        fsync_directory(os.path.dirname(folder))


def remove(path: str) -> None:
    """Removes a file or link durably, if it exists."""
    if os.path.lexists(path):
        os.unlink(path)
    if os.path.isdir(os.path.dirname(path)):
        fsync_directory(os.path.dirname(path))


def _temporary(path: str) -> str:
    return f".{os.path.basename(path)}.gpuops-"


def sweep(path: str) -> None:
    """Removes temporary files that a killed L(write_atomic) has left. No other process may write path now."""
    for real in sorted({path, os.path.realpath(path)}):
        parent = os.path.dirname(real)
        for name in os.listdir(parent) if os.path.isdir(parent) else ():
            rest = os.path.join(parent, name)
            if name.startswith(_temporary(real)) and os.path.isfile(rest):
                os.unlink(rest)


def _links(path: str) -> t.Iterator[str]:
    """Yields the symbolic links in path, including those of its folders."""
    reached, names = "/", os.path.abspath(path).split("/")[::-1]
    followed = 0
    while names and followed < _LINKS:
        name = names.pop()
        reached = os.path.normpath(os.path.join(reached, name))
        if os.path.islink(reached):
            followed += 1
            yield reached
            names += os.readlink(reached).split("/")[::-1]
            reached = "/" if os.readlink(reached).startswith("/") else os.path.dirname(reached)


def resolve(path: str) -> str:
    """The real path, with links resolved.

    As root, raises HostError if a link belongs to a user who does not own the file. Otherwise the user of a service
    could make root write or delete any file through a link in a folder of the service.
    """
    real = os.path.realpath(path)
    there = real
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    for link in _links(path) if os.geteuid() == 0 else ():
        owner = os.lstat(link).st_uid
        if owner not in (0, os.lstat(there).st_uid):
            raise HostError(f"{path} cannot be written: {link} is a link of user {owner} to {os.readlink(link)}, which "
                            f"is not that user's.", f"Remove the link, or give it to root (chown -h root {link}).",
                            path=path)
    return real


def destination(path: str) -> str:
    """The file that a write to path replaces. Raises HostError if it is not a regular file, or as L(resolve) does."""
    real = resolve(path)
    if os.path.lexists(real) and not os.path.isfile(real):
        leads = "it" if real == os.path.abspath(path) else f"its target {real}"
        hint = "Move it away, then run again."
        if real == os.devnull:
            hint = ("This link means that the file must not exist on this host: remove the link (for a unit: systemctl "
                    "unmask), or omit what needs the file.")
        raise HostError(f"{path} cannot be written: {leads} is not a file (is a unit masked?).", hint, path=path)
    return real


def write_atomic(path: str, data: bytes, mode: int = 0o644, uid: int | None = None, gid: int | None = None,
                 attributes: t.Mapping[str, bytes] | None = None, follow: bool = True) -> None:
    """Replaces a file atomically: a reader sees the old content or the new one, never a part.

    An existing file keeps its owner, mode, ACL and security labels. A new file gets C(mode) and C(attributes). uid and
    gid, if set, take precedence. The target of a link is replaced; follow: C(False) replaces the link itself. The
    parent folder must exist. Raises HostError if the file system is read-only or full, the file is immutable, path is
    not a file (such as a masked unit), or as L(resolve) does.
    """
    try:
        if follow or not os.path.islink(path):
            real = destination(path)
        else:
            real = os.path.join(resolve(os.path.dirname(path)), os.path.basename(path))
        parent = os.path.dirname(real)
        owner, group = os.geteuid(), os.getegid()
        if os.path.lexists(real) and not os.path.islink(real):
            old = os.stat(real)
            mode, owner, group = stat.S_IMODE(old.st_mode), old.st_uid, old.st_gid
            attributes = read_attributes(real)
        handle, temporary = tempfile.mkstemp(prefix=_temporary(real), dir=parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                if os.geteuid() == 0:
                    os.fchown(stream.fileno(), owner if uid is None else uid, group if gid is None else gid)
                if attributes is not None:
                    _give_attributes(stream.fileno(), attributes)
                os.fsync(stream.fileno())
            os.replace(temporary, real)
        except BaseException:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise
        fsync_directory(parent)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}.",
                        next_step(error, "Check for a read-only file system or an immutable flag (lsattr)."),
                        path=path) from error


def check_writable(path: str) -> None:
    """Raises HostError if L(write_atomic) would: the file system is full or read-only, the file immutable or masked.

    Parent folders may be missing. Call it before the first of several files is written.
    """
    real = destination(path)
    parent = os.path.dirname(real)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    system = os.statvfs(parent)
    why, hint = "", "Make it writable, or, if the system is read-only by design, write the file in its image."
    if system.f_flag & os.ST_RDONLY:
        why = "its file system is read-only"
    elif system.f_blocks and not system.f_bfree or system.f_files and not system.f_ffree:
        why, hint = "no space is left on its file system", next_step(OSError(errno.ENOSPC, ""), hint)
    elif not os.path.isdir(parent):
        why = f"{parent} is not a folder"
    for place in (real, parent):
        if os.path.exists(place) and _flags(place) & _UNCHANGEABLE:
            why = f"{place} is immutable (chattr +i)"
    if why:
        raise HostError(f"{path} cannot be written: {why}. Nothing was changed.", hint, path=path)


def _flags(path: str) -> int:
    """The flags of the inode, 0 if the file system has none."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(handle, _GETFLAGS, bytes(8))[:4], sys.byteorder)
    except OSError:
        return 0
    finally:
        os.close(handle)
