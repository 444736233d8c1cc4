# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all connections to a cluster share."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import wire
from urllib3.connection import HTTPSConnection


def test_a_connection_changes_nothing_of_the_context_that_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3 would set the protocols again for each connection while OpenSSL copies them for the connection of another
    thread."""
    changes: list[Any] = []
    real = ssl.SSLContext.set_alpn_protocols
    monkeypatch.setattr(ssl.SSLContext, "set_alpn_protocols",
                        lambda self, protocols: (changes.append(protocols), real(self, protocols)))
    settings: dict[str, Any] = {"ca_certs": "file"}
    wire._use_context(settings, ssl.create_default_context())
    assert changes == [["http/1.1"]] and list(settings) == ["ssl_context"]
    for _number in range(2):
        here, there = socket.socketpair()
        with here, there:
            there.close()
            connection = HTTPSConnection("localhost", ssl_context=settings["ssl_context"])
            monkeypatch.setattr(connection, "_new_conn", lambda here=here: here)
            with pytest.raises((ssl.SSLError, OSError)):
                connection.connect()
    assert changes == [["http/1.1"]]
