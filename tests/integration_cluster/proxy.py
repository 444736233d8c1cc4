# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A proxy of the API server that fails as networks and busy servers do."""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import wire


class Flaky:
    """Passes requests on, except those for which fault(number, method, path) returns a fault.

    Faults: a status (returned without asking the server), C(drop) (the connection breaks before the request is passed
    on), C(lose) (it breaks afterwards: the server has acted).
    """

    def __init__(self, kubeconfig: str, fault: Callable[[int, str, str], int | str | None]) -> None:
        configuration = wire._load(kubeconfig, None, str(Path(kubeconfig).parent))
        self.target = urlsplit(configuration.host)
        self.context: ssl.SSLContext = wire._tls(configuration, kubeconfig)
        self.fault = fault
        self.count = 0
        self.lock = threading.Lock()
        self.seen: list[tuple[str, str, int | str | None]] = []

    def __enter__(self) -> Self:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                outer.serve(self)

            do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

            def log_message(self, *words: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def kubeconfig(self, folder: Path) -> str:
        """Writes a kubeconfig for this proxy."""
        address = f"http://127.0.0.1:{self.server.server_address[1]}"
        path = folder / "flaky.kubeconfig"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {}}],
            "clusters": [{"name": "x", "cluster": {"server": address}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}))
        return str(path)

    def serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """Serves one request."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self.lock:
            self.count += 1
            fault = self.fault(self.count, handler.command, handler.path)
            self.seen.append((handler.command, handler.path, fault))
        if isinstance(fault, int):
            self.refuse(handler, fault)
            return
        if fault != "drop":
            status, data = self.ask(handler, body)
        if fault:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        self.reply(handler, status, data)

    def ask(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """Returns the answer of the real server."""
        upstream = http.client.HTTPSConnection(str(self.target.hostname), self.target.port, context=self.context)
        headers = {name: value for name, value in handler.headers.items() if name not in ("Host", "Connection")}
        upstream.request(handler.command, handler.path, body or None, headers)
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        return answer.status, data

    def refuse(self, handler: http.server.BaseHTTPRequestHandler, status: int) -> None:
        """Sends a failure as the API server words it."""
        data = json.dumps({"kind": "Status", "status": "Failure", "code": status, "message": "injected",
                           "reason": "Injected"}).encode()
        self.reply(handler, status, data, {"Retry-After": "0"} if status == 429 else {})

    def reply(self, handler: http.server.BaseHTTPRequestHandler, status: int, data: bytes,
              headers: dict[str, str] | None = None) -> None:
        """Sends an answer."""
        handler.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json",
                            "Content-Length": str(len(data))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)
