# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Getting a .run file onto the host: its digest, room for it, and the file, verified before it can run.

The digest is the user's. Without one it is that of the file which the vendor puts beside each archive, taken by HTTPS
alone: the connection then vouches for it. Anything else is refused, for the file runs as root.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import time
import typing as t
import urllib.error
import urllib.request

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import Archive, parse_digest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import STATE_ROOT
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import fetch_advice

FOLDER = f"{STATE_ROOT}/runfile"
# Seconds: without a byte, and in all.
_SILENCE = 30
_LIMIT = 3600
_CHUNK = 1 << 20
# How many times its size an archive takes there: itself, what is in it (xz, about a third), the modules built of that.
_UNPACKED = 6
_PROXY = "the proxy (the option proxy)"


def path_of(archive: Archive) -> str:
    """Where the verified file lies on the host."""
    return f"{FOLDER}/{os.path.basename(archive.src) or 'driver.run'}"


def wanted_digest(archive: Archive) -> str:
    """The SHA-256 that the file must have. Raises InputError, RepositoryError."""
    if archive.sha256:
        return archive.sha256
    if not archive.src.startswith("https://"):
        raise InputError(f"{archive.src} runs as root, and nothing vouches for it.",
                         "Give the digest that its publisher names, as sha256: and 64 hexadecimal digits.",
                         path="runfile.checksum")
    try:
        with _open(archive.digest_url, _HttpsOnly()) as answer:
            secure = answer.geturl().startswith("https://")
            found = parse_digest(answer.read(4096).decode("utf-8", "replace"))
    except RepositoryError as error:
        raise RepositoryError(error.message, f"Give the digest as runfile.checksum, or: {error.hint}",
                              **error.details) from error
    if not secure or not found:
        raise RepositoryError(f"{archive.digest_url} {'holds no digest' if secure else 'led away from HTTPS'}.",
                              "Give the digest as runfile.checksum.", url=archive.digest_url)
    return found


def is_here(archive: Archive, digest: str) -> bool:
    """Whether a run before this one has fetched and verified the file."""
    path = path_of(archive)
    return os.path.isfile(path) and _digest_of(path) == digest


def size_of(archive: Archive) -> int:
    """Bytes of the file where it comes from, 0 where a server does not say. Raises RepositoryError, InputError."""
    if not archive.is_url:
        if not os.path.isfile(archive.src):
            raise InputError(f"There is no file {archive.src} on this host.", "Put it there, or give a URL.",
                             path="runfile.src", value=archive.src)
        return os.path.getsize(archive.src)
    with _open(archive.src + archive.query) as answer:
        length = str(answer.headers.get("Content-Length"))
        return int(length) if re.match(r"[0-9]{1,18}\Z", length) else 0


def check_room(size: int) -> None:
    """Raises HostError where the file, what is in it, and what is built of it have no room beside each other."""
    there = FOLDER
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    state = os.statvfs(there)
    free, wanted = state.f_bavail * state.f_frsize, _UNPACKED * size
    if free < wanted:
        raise HostError(f"The file system of {there} has {_mebi(free)} MiB free; unpacking the driver takes about "
                        f"{_mebi(wanted)} MiB.", "Make room, then run again.", path=there, free=free, needed=wanted)


def fetch(archive: Archive, digest: str) -> None:
    """Puts the file in its place, verified; nothing stays of one that is not what it should be.

    Raises RepositoryError, HostError.
    """
    path = path_of(archive)
    part = f"{path}.part"
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    try:
        found = _copy(archive, part)
        if found != digest:
            raise HostError(f"{archive.src} has the digest sha256:{found}, not sha256:{digest}.",
                            "Nothing was installed. Compare with what its publisher names; correct runfile.checksum "
                            "only if that is what it says.", found=found, expected=digest)
        os.replace(part, path)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror or error}.", "Make room, then run again.",
                        path=path) from error
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _copy(archive: Archive, part: str) -> str:
    """Writes what comes, readable by root alone; returns its digest."""
    whole = hashlib.sha256()
    end = time.monotonic() + _LIMIT
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream, _source(archive) as source:
        for chunk in _chunks(source, archive.src):
            whole.update(chunk)
            stream.write(chunk)
            if time.monotonic() > end:
                raise RepositoryError(f"{archive.src} was not fetched within {_LIMIT} s.", fetch_advice("", _PROXY),
                                      url=archive.src)
        stream.flush()
        os.fsync(stream.fileno())
    return whole.hexdigest()


def _source(archive: Archive) -> t.ContextManager[t.Any]:
    return _open(archive.src + archive.query) if archive.is_url else open(archive.src, "rb")


def _chunks(source: t.Any, src: str) -> t.Iterator[bytes]:
    """What a connection brings; its errors name the address, those of a disk are the caller's."""
    while True:
        try:
            chunk = source.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise RepositoryError(f"{src} cannot be read to its end: {error}.", fetch_advice(str(error), _PROXY),
                                  url=src) from error
        if not chunk:
            return
        yield chunk


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to HTTP: one that leads back to HTTPS from there may be somebody else's."""

    def redirect_request(self, req: t.Any, fp: t.Any, code: int, msg: str, headers: t.Any, newurl: str) -> t.Any:
        """See the base class."""
        if not newurl.lower().startswith("https://"):
            raise urllib.error.URLError("it led away from HTTPS")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _open(url: str, *handlers: urllib.request.BaseHandler) -> t.Iterator[t.Any]:
    """An answer, by the proxies of the environment and the host's certificates. Raises RepositoryError."""
    try:
        answer = urllib.request.build_opener(*handlers).open(url, timeout=_SILENCE)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason, url = getattr(error, "reason", error), url.partition("?")[0]
        code = f"{error.code} " if isinstance(error, urllib.error.HTTPError) else ""
        raise RepositoryError(f"{url} cannot be fetched: {code}{reason}.", fetch_advice(str(reason), _PROXY),
                              url=url) from error
    with contextlib.closing(answer):
        yield answer


def _digest_of(path: str) -> str:
    whole = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            whole.update(chunk)
    return whole.hexdigest()


def _mebi(size: int) -> int:
    return -(-size // (1 << 20))
