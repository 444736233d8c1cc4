# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pathlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import wire
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import apply, node_by_node, removal
from ansible_collections.gpuops.nvidia.tests.unit.cluster.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.cluster.server import ApiServer


@pytest.fixture
def api(tmp_path: pathlib.Path) -> Iterator[ApiServer]:
    """An API server without objects."""
    server = ApiServer(tmp_path)
    yield server
    server.close()


@pytest.fixture
def client(api: ApiServer) -> Client:
    """A client of it."""
    return Client(str(api.kubeconfig))


@pytest.fixture(autouse=True)
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Where a test has a server nobody really waits: neither for objects nor before a request is tried again."""
    clock = Clock()
    if "api" in request.fixturenames:
        for module in (apply, node_by_node, removal, wire):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return clock
