# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A static HTTP server for the repositories, also with TLS, with redirects, and with faults on demand."""

from __future__ import annotations

import functools
import http.server
import ssl
import sys
import time
from pathlib import Path
from typing import Any

# Seconds that the fault "slow" adds to each answer.
DELAY = 3.0
KEY_SUFFIXES = (".pub", "gpgkey")
FAULTS = ("down", "slow", "wrong-key")
# Below this path is the same, each file by a redirect, as mirrors send their clients to another place.
MOVED = "/moved/"


def read_faults(path: Path | None) -> set[str]:
    """The words in the faults file; none if there is no file."""
    if path is None or not path.is_file():
        return set()
    return set(path.read_text(encoding="utf-8").split())


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files; the faults file is read at each request."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, faults: Path | None, log: Path | None, **words: Any) -> None:
        self.faults = faults
        self.log = log
        super().__init__(*arguments, **words)

    def send_head(self) -> Any:
        """The same as in the base class, after applying faults."""
        faults = read_faults(self.faults)
        if "down" in faults:
            self.close_connection = True
            self.send_error(503, "the fault 'down' is set")
            return None
        if "slow" in faults:
            time.sleep(DELAY)
        if "wrong-key" in faults and self.path.endswith(KEY_SUFFIXES):
            self.path = "/wrong-key"
        if self.path.startswith(MOVED):
            self.send_response(302)
            self.send_header("Location", self.path[len(MOVED) - 1:])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        """Lists no folders, as the vendor's server."""
        self.send_error(404, "no such file")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Writes one line for each request, only to the log file."""
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(f"{self.log_date_time_string()} {self.address_string()} {format % arguments}\n")


class Server(http.server.ThreadingHTTPServer):
    """Uses one thread for each connection; the threads end with the server."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects, or does not trust the certificate, is no error of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def make_server(root: Path, bind: str, port: int, faults: Path | None = None, log: Path | None = None,
                tls: Path | None = None) -> Server:
    """A server that is bound, and serves when it is started. tls: a PEM file with its key and its certificate."""
    server = Server((bind, port), functools.partial(Handler, directory=str(root), faults=faults, log=log))
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls)
        # The handshake is the connection's thread's work: a client that refuses the certificate delays no other.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def serve(root: Path, bind: str, port: int, faults: Path | None, log: Path | None, tls: Path | None) -> None:
    """Serve until interrupted; prints the address first."""
    if not root.is_dir():
        raise SystemExit(f"{root} is no folder; make one by: python -m lab.packages build --out {root}")
    with make_server(root, bind, port, faults, log, tls) as server:
        print(f"{'https' if tls else 'http'}://{bind}:{server.server_address[1]}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)
