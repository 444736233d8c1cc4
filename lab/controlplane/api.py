# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sends many requests to a cluster without starting kubectl, which takes half a second of CPU time.

For a cluster of the lab, the credentials are known; for another cluster, kubectl's proxy uses its credentials and
listens on a private socket.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
APPLY = "application/apply-patch+yaml"
WORKERS = 16
KEPT = 30.0  # seconds for which an idle connection is used again; the API server closes one after 90


class Connection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        """Opens the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Api:
    """Requests over connections that C(connect) makes; each thread has its own."""

    def __init__(self, connect: Callable[[], http.client.HTTPConnection]) -> None:
        self.connect, self.own = connect, threading.local()

    def connection(self) -> http.client.HTTPConnection:
        """This thread's."""
        if time.monotonic() - getattr(self.own, "used", -KEPT) >= KEPT:
            self.own.connection = self.connect()
        self.own.used = time.monotonic()
        kept: http.client.HTTPConnection = self.own.connection
        return kept

    def request(self, verb: str, where: str, body: object = None, kind: str = "application/json",
                missing_ok: bool = False) -> dict[str, Any]:
        """Sends one request and returns the answer; stops with the message of the server if it refuses. body: an
        object, or its text; missing_ok: empty on 404."""
        connection = self.connection()
        try:
            text = body if body is None or isinstance(body, str) else json.dumps(body)
            connection.request(verb, where, text, {"Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read().decode()
        except BaseException:
            connection.close()  # the next request opens it again
            raise
        if answer.status == 404 and missing_ok:
            return {}
        if answer.status >= 300:
            raise SystemExit(f"{verb} {where}: {answer.status} {text.strip()[:500]}")
        return dict(json.loads(text))

    def apply(self, where: str, body: dict[str, Any] | str) -> dict[str, Any]:
        """Server-side apply with the field manager C(gpuops-lab), which takes over the fields of others. body: an
        object, or its YAML."""
        return self.request("PATCH", f"{where}?fieldManager=gpuops-lab&force=true", body, APPLY)

    def objects(self, where: str) -> list[dict[str, Any]]:
        """The objects of a list."""
        return list(self.request("GET", where)["items"])


def many(action: Callable[[T], object], items: Iterable[T]) -> None:
    """Calls a function for all items, several at once."""
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(action, items))


def direct(port: int, keys: Path, user: str) -> Api:
    """An Api on this machine. keys: the folder with C(ca.crt) and the user's key and certificate."""
    trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    trust.load_cert_chain(keys / f"{user}.crt", keys / f"{user}.key")
    return Api(lambda: http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trust))


@contextmanager
def proxy(program: str, kubectl: list[str], limit: float = 120.0) -> Iterator[Api]:
    """An Api while C(kubectl proxy) runs. kubectl: the words of the command up to the verb."""
    with tempfile.TemporaryDirectory(prefix="gpuops-") as folder:
        path = Path(folder) / "proxy"  # short, as a socket's path must be
        process = subprocess.Popen([*kubectl, "proxy", "--unix-socket", str(path)], executable=program, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with process:
            try:
                assert process.stdout is not None
                with selectors.DefaultSelector() as waiting:
                    waiting.register(process.stdout, selectors.EVENT_READ)
                    said = process.stdout.readline() if waiting.select(limit) else f"nothing said within {limit:.0f} s"
                if "Starting to serve" not in said:
                    raise SystemExit(f"kubectl proxy: {said.strip()}")
                yield Api(lambda: Connection(path))
            finally:
                process.kill()
