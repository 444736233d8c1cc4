# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads a .run file to the host, and verifies it before it is run.

The user can set the digest. Otherwise, the digest is read from the file that NVIDIA publishes for each archive, only
over HTTPS. A .run file without a digest is refused, because it runs as root.
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
# Maximum seconds without receiving data, and for the whole download.
_SILENCE = 30
_LIMIT = 3600
_CHUNK = 1 << 20
# The required space as a multiple of the archive's size: the archive, its content (three times) and built modules.
_UNPACKED = 6
_PROXY = "the option proxy"


class Readable(t.Protocol):
    """A file or a response that can be read."""

    def read(self, size: int = ...) -> bytes:
        """Reads at most size bytes. Returns an empty value at the end."""


def path_of(archive: Archive) -> str:
    """The path of the verified file on the host."""
    return f"{FOLDER}/{os.path.basename(archive.src) or 'driver.run'}"


def wanted_digest(archive: Archive) -> str:
    """The expected SHA-256 digest of the file. Raises InputError, RepositoryError."""
    if archive.sha256:
        return archive.sha256
    if not archive.src.startswith("https://"):
        raise InputError(f"{archive.src} runs as root and has no digest.",
                         "Set the digest that its publisher names: sha256: and 64 hexadecimal digits.",
                         path="runfile.checksum")
    try:
        with _open(archive.digest_url, _HttpsOnly()) as answer:
            secure = answer.geturl().startswith("https://")
            found = parse_digest(answer.read(4096).decode("utf-8", "replace"))
    except RepositoryError as error:
        raise RepositoryError(error.message, f"Set runfile.checksum, or: {error.hint}",
                              **error.details) from error
    if not secure or not found:
        raise RepositoryError(f"{archive.digest_url} {'has no digest' if secure else 'redirects to HTTP'}.",
                              "Set runfile.checksum.", url=archive.digest_url)
    return found


def is_downloaded(archive: Archive, digest: str) -> bool:
    """Whether an earlier run has downloaded and verified the file."""
    path = path_of(archive)
    return os.path.isfile(path) and _digest_of(path) == digest


def size_of(archive: Archive) -> int:
    """The size of the file in bytes, 0 if the server does not report the size. Raises RepositoryError, InputError."""
    if not archive.is_url:
        if not os.path.isfile(archive.src):
            raise InputError(f"There is no file {archive.src} on this host.", "Copy it to the host, or set a URL.",
                             path="runfile.src", value=archive.src)
        return os.path.getsize(archive.src)
    with _open(archive.src + archive.query) as answer:
        length = str(answer.headers.get("Content-Length"))
        return int(length) if re.match(r"[0-9]{1,18}\Z", length) else 0


def check_free_space(size: int) -> None:
    """Raises HostError if there is too little space for the file, its content and built modules. size: in bytes."""
    folder = FOLDER
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    state = os.statvfs(folder)
    free, needed = state.f_bavail * state.f_frsize, _UNPACKED * size
    if free < needed:
        raise HostError(f"The file system of {folder} has {_mebi(free)} MiB left; the .run file needs about "
                        f"{_mebi(needed)} MiB.", "Free some space, then run again.", path=folder, free=free,
                        needed=needed)


def fetch(archive: Archive, digest: str) -> None:
    """Downloads and verifies the file. Deletes the file if its digest differs from the expected digest.

    Raises RepositoryError, HostError.
    """
    path = path_of(archive)
    part = f"{path}.part"
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    try:
        found = _copy(archive, part)
        if found != digest:
            raise HostError(f"{archive.src} has the digest sha256:{found}, not sha256:{digest}.",
                            "Nothing was installed. Compare it with the digest that its publisher names. Correct "
                            "runfile.checksum only if they are equal.", found=found, expected=digest)
        os.replace(part, path)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror or error}.", "Free some space, then run again.",
                        path=path) from error
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _copy(archive: Archive, part: str) -> str:
    """Copies or downloads the archive to a file (part) that only root can read. Returns its digest."""
    digest = hashlib.sha256()
    end = time.monotonic() + _LIMIT
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream, _source(archive) as source:
        for chunk in _chunks(source, archive.src):
            digest.update(chunk)
            stream.write(chunk)
            if time.monotonic() > end:
                raise RepositoryError(f"{archive.src} was not fetched within {_LIMIT} s.", fetch_advice("", _PROXY),
                                      url=archive.src)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()


def _source(archive: Archive) -> t.ContextManager[Readable]:
    return _open(archive.src + archive.query) if archive.is_url else open(archive.src, "rb")


def _chunks(source: Readable, src: str) -> t.Iterator[bytes]:
    """Yields the content in pieces. Raises RepositoryError if the connection fails. src: the URL, for errors."""
    while True:
        try:
            chunk = source.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise RepositoryError(f"The download of {src} was interrupted: {error}.", fetch_advice(str(error), _PROXY),
                                  url=src) from error
        if not chunk:
            return
        yield chunk


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to HTTP, because a response over HTTP could be forged and redirect to another HTTPS server."""

    def redirect_request(self, req: urllib.request.Request, fp: t.IO[bytes], code: int, msg: str,
                         headers: http.client.HTTPMessage, newurl: str) -> urllib.request.Request | None:
        """See the base class."""
        if not newurl.lower().startswith("https://"):
            raise urllib.error.URLError("it redirects to HTTP")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _open(url: str, *handlers: urllib.request.BaseHandler) -> t.Iterator[http.client.HTTPResponse]:
    """Yields the response. Uses the proxies in the environment and the certificates of the host. Raises
    RepositoryError."""
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
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def _mebi(size: int) -> int:
    return -(-size // (1 << 20))
