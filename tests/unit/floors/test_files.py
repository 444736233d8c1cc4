# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes files: what is never replaced, which attributes a replaced file keeps, and the text of errors."""

from __future__ import annotations

import errno
import os
import stat
import struct
import tempfile
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _files
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, refused
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import (
    check_writable,
    read_bytes,
    sweep,
    write_atomic,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away and makes devices")
SERVICE = 4711  # the user of some service


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _identities(folder: Path) -> list[tuple[str, int, int, int]]:
    """Name, inode, mode and change time of everything in a folder. Reading a link changes its access time."""
    found = [(path.name, path.lstat()) for path in sorted(folder.iterdir())]
    return [(name, info.st_ino, info.st_mode, info.st_mtime_ns) for name, info in found]


NO_FILES: dict[str, t.Callable[[Path], None]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device": _device,
    "a loop": lambda path: path.symlink_to(path.name),
}


@as_root
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str, linked: bool) -> None:
    there, path = tmp_path / "there", tmp_path / "x.conf"
    NO_FILES[kind](there if linked else path)
    if linked:
        path.symlink_to(there)
    before = _identities(tmp_path)
    for act in (check_writable, lambda one: write_atomic(one, b"ours")):
        with pytest.raises(HostError, match="x.conf cannot be written: .*not a file"):
            act(str(path))
    assert _identities(tmp_path) == before
    if kind not in ("a folder", "a loop"):
        assert read_bytes(str(path)) == b"", "it is not waited for"


@as_root
def test_a_mask_is_named_and_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test replaces the null device; otherwise, a defect would destroy that of this machine."""
    path, null = tmp_path / "x.conf", tmp_path / "null"
    _device(null)
    monkeypatch.setattr(os, "devnull", str(null))
    path.symlink_to(null)
    with pytest.raises(HostError, match=f"cannot be written: its target {null} .*must not exist on this host"):
        write_atomic(str(path), b"ours")
    assert os.readlink(path) == str(null) and null.is_char_device()


def test_a_link_and_linked_folders_are_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "real" / "x.conf").symlink_to("../file")
    write_atomic(str(tmp_path / "folder" / "x.conf"), b"ours")
    assert (tmp_path / "file").read_bytes() == b"ours"
    assert (tmp_path / "folder").is_symlink() and (tmp_path / "real" / "x.conf").is_symlink()


@as_root
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("folder", [True, False])
def test_root_follows_no_link_of_another_user_to_what_is_not_theirs(tmp_path: Path, folder: bool, exists: bool) -> None:
    """The folder can belong to a service; through a link of its user, root could write to any place."""
    (tmp_path / "etc").mkdir()
    if exists:
        (tmp_path / "etc" / "x").write_bytes(b"root's")
    service = tmp_path / "service"
    service.mkdir()
    os.chown(service, SERVICE, SERVICE)
    link = service / ("sub" if folder else "x")
    link.symlink_to(tmp_path / "etc" if folder else tmp_path / "etc" / "x")
    os.lchown(link, SERVICE, SERVICE)
    path = service / "sub" / "x" if folder else link
    for act in (check_writable, lambda one: write_atomic(one, b"ours")):
        with pytest.raises(HostError, match=f"{link} is a link of user {SERVICE} to .*/etc"):
            act(str(path))
    assert [each.read_bytes() for each in (tmp_path / "etc").iterdir()] == [b"root's"] * exists
    os.lchown(link, 0, 0)
    write_atomic(str(path), b"ours")
    assert (tmp_path / "etc" / "x").read_bytes() == b"ours", "root has said that it is meant"


@as_root
def test_a_user_may_link_to_files_of_their_own(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.touch()
    link.symlink_to(real)
    os.chown(real, SERVICE, SERVICE)
    os.lchown(link, SERVICE, SERVICE)
    write_atomic(str(link), b"ours")
    assert real.read_bytes() == b"ours" and real.stat().st_uid == SERVICE


@as_root
def test_a_link_that_is_not_followed_is_replaced(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "x.prom"
    secret.write_bytes(b"root's")
    secret.chmod(0o600)
    link.symlink_to(secret)
    os.lchown(link, SERVICE, SERVICE)
    write_atomic(str(link), b"ours", follow=False)
    assert (link.read_bytes(), secret.read_bytes(), link.is_symlink()) == (b"ours", b"root's", False)
    assert link.stat().st_mode & 0o777 == 0o644


def _acl(*users: int) -> bytes:
    """rw for the owner and for these users, nothing for others (linux/posix_acl_xattr.h)."""
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), *((2, 6, user) for user in users), (4, 0, nobody), (16, 6, nobody), (32, 0, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ATTRIBUTES = {"user.origin": b"admin", "system.posix_acl_access": _acl(SERVICE),
              "security.selinux": b"system_u:object_r:container_config_t:s0\0"}


def _set(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"{name} cannot be set here: {error.strerror}")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_replaced_file_keeps_acl_and_labels(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.conf"
    path.write_bytes(b"theirs")
    path.chmod(0o660)
    _set(path, name, ATTRIBUTES[name])
    mode = path.stat().st_mode
    write_atomic(str(path), b"ours")
    assert os.getxattr(path, name) == ATTRIBUTES[name]
    assert (path.read_bytes(), path.stat().st_mode) == (b"ours", mode)


def test_a_replaced_file_gets_no_acl_from_its_folder(tmp_path: Path) -> None:
    """The former file had no ACL."""
    path = tmp_path / "key"
    path.write_bytes(b"theirs")
    path.chmod(0o640)
    _set(tmp_path, "system.posix_acl_default", _acl(SERVICE))
    write_atomic(str(path), b"ours")
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert path.stat().st_mode & 0o777 == 0o640
    write_atomic(str(tmp_path / "new"), b"ours")
    assert "system.posix_acl_access" in os.listxattr(tmp_path / "new"), "for new files the folder decides"


@pytest.mark.parametrize(("number", "hint"), [
    (errno.ENOSPC, "Free space"), (errno.EDQUOT, "Free space"), (errno.EIO, "journalctl -k"), (errno.EBUSY, "mount"),
    (errno.EPERM, "lsattr")])
@pytest.mark.parametrize("call", ["mkstemp", "fsync", "replace"])
def test_an_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int,
                                  hint: str) -> None:
    path = tmp_path / "x.conf"
    path.write_bytes(b"theirs")

    def fail(*_args: t.Any, **_named: t.Any) -> t.Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile if call == "mkstemp" else os, call, fail)
    with pytest.raises(HostError, match=f"x.conf cannot be written: {os.strerror(number)}.*{hint}"):
        write_atomic(str(path), b"ours")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"theirs"]


def test_a_folder_that_cannot_be_made_durable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError) as caught:
        _files.remove(str(tmp_path / "x"))
    assert str(refused(caught.value)).startswith(f"{tmp_path}: Input/output error. Its disk")


@pytest.mark.parametrize(("blocks", "inodes"), [(0, 100), (100, 0)])
def test_a_full_file_system_is_told_before_anything_is_changed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, inodes: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(
        f_flag=0, f_blocks=100, f_bfree=blocks, f_files=100, f_ffree=inodes))
    with pytest.raises(HostError, match="no space is left on its file system. Nothing was changed. Free space"):
        check_writable(str(tmp_path / "new" / "x.conf"))


@pytest.mark.parametrize("marked", ["file", "folder"])
def test_what_is_immutable_is_told_before_anything_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              marked: str) -> None:
    """chattr needs a suitable file system, which not every test machine has."""
    path = tmp_path / "x.conf"
    path.write_bytes(b"theirs")
    check_writable(str(path))
    locked = path if marked == "file" else tmp_path
    monkeypatch.setattr(_files, "_flags", lambda one: 0x10 if one == str(locked) else 0x80000)
    with pytest.raises(HostError, match=f"x.conf cannot be written: {locked} is immutable .*Nothing was changed"):
        check_writable(str(path))


def test_a_read_only_file_system_is_told_before_anything_is_changed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(
        f_flag=os.ST_RDONLY | os.ST_NOSUID, f_blocks=100, f_bfree=50, f_files=100, f_ffree=50))
    with pytest.raises(HostError, match="is read-only. Nothing was changed. .*write the file in its image"):
        check_writable(str(tmp_path / "new" / "x.conf"))


def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "conf.d").touch()
    with pytest.raises(HostError, match="conf.d is not a folder"):
        check_writable(str(tmp_path / "conf.d" / "x.conf"))


def test_what_is_no_temporary_file_of_ours_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / ".x.gpuops-abcdefgh").touch()
    (tmp_path / ".x.gpuops-folder").mkdir()
    sweep(str(tmp_path / "x"))
    assert [each.name for each in tmp_path.iterdir()] == [".x.gpuops-folder"]
