# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pathlib
import pickle
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import yamltext
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import wire
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import apply, node_by_node, removal, render
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer

# By the text of a rendered template what it says: tests render the same few thousand texts over and over.
READ: dict[str, bytes] = {}


def read_once(text: str, origin: str, own: bool = False) -> list[yamltext.Document]:
    """The same as yamltext.parse, with a cache: parsing takes ten times as long as a copy of the result."""
    if text not in READ:
        READ[text] = pickle.dumps([document.data for document in yamltext.parse(text, origin, own=own)])
    return [yamltext.Document(data) for data in pickle.loads(READ[text])]


@pytest.fixture(scope="session", autouse=True)
def rendered() -> Iterator[None]:
    """The product's own reader parses every text once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "parse", read_once)
        yield


@pytest.fixture
def api(tmp_path: pathlib.Path) -> Iterator[ApiServer]:
    """An API server without objects."""
    server = ApiServer(tmp_path)
    yield server
    server.close()


@pytest.fixture
def client(api: ApiServer) -> Client:
    """A client of this API server."""
    return Client(str(api.kubeconfig))


@pytest.fixture(autouse=True)
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In tests with a server, nothing really waits: neither for objects nor before a request is repeated."""
    clock = Clock()
    if "api" in request.fixturenames:
        for module in (apply, node_by_node, removal, wire):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return clock
