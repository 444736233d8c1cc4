# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cause why an operand does not become ready, from the log that the API server returns. About 35 s."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab.controlplane import cluster as clusters
from tests.integration_cluster.conftest import Audit
from tests.integration_cluster.test_verify import INITS, Site, verify

SAID = "Unloading nouveau driver\nfailed to unload nouveau driver: rmmod: ERROR: Module nouveau is in use\n"


class Kubelet(http.server.BaseHTTPRequestHandler):
    """Returns the logs of all containers, because simulated Nodes have none."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(SAID.encode())

    def log_message(self, *words: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def kubelet(cluster: clusters.Cluster) -> Iterator[int]:
    """The port of a simulated kubelet."""
    (key,) = Path(cluster.folder).rglob("server.key")
    keys = key.parent
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture
def site(cluster: clusters.Cluster, client: Client, fresh: Callable[[], str]) -> Iterator[Site]:
    """Two Nodes on which the driver fails and all other operands wait."""
    made = Site(cluster, client, fresh())
    made.deliver(*INITS)
    made.until(lambda: [made.ready(name) for name in INITS] == [2, 2, 2])
    for component, container, words in (("driver", "k8s-driver-manager", ()),
                                        ("validator", "driver-validation", ("--running",)),
                                        ("device_plugin", "toolkit-validation", ("--running",))):
        made.lab("crash", "on", "--app", made.app(component), "--container", container, *words)
        made.faults.append(("crash", "--app", made.app(component)))
    made.until(lambda: [made.ready(name) for name in INITS] == [0, 0, 0])
    yield made
    made.close()


def endpoint(site: Site, node: str, port: int) -> None:
    """Makes the API server request the logs of the Node from this port."""
    with site.made.api() as server:
        server.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"daemonEndpoints": {"kubeletEndpoint": {
            "Port": port}}}}, "application/strategic-merge-patch+json")


def test_the_root_is_told_once_with_its_log(site: Site, kubelet: int, kubeconfig: str, audit: Audit,
                                            tmp_path: Path) -> None:
    # A kubelet that does not answer fails nothing.
    for node in site.nodes:
        endpoint(site, node, 9)
    [cause] = site.conclude(*INITS, timeout=1)[0]["driver"]["causes"]
    assert "the kubelet of the node does not respond" in cause["log_problem"] and cause["log"] == []
    assert cause["cause"].startswith("the driver manager cannot prepare the node") and cause["pod"] in cause["do"][0]
    for node in site.nodes:
        endpoint(site, node, kubelet)
    audit.start()
    run = verify(site, tmp_path, kubeconfig=kubeconfig, timeout=2)
    text = run.output
    assert run.rc == 2 and "1 failing" not in text
    assert "2 failing: " in text and "(the kernel module nouveau uses the GPU)" in text
    problems = [line for line in text.splitlines() if "likely cause" in line and not line.startswith("fatal")]
    assert len(problems) == 1 and "2 nodes" in problems[0] and "k8s-driver-manager Init:0/1" in problems[0], text
    # One on the way, each pod's at the end. The server notes when an answer begins and, maybe later, when it ends.
    asked = [one["uri"] for one in audit.requests if "/log?" in one["uri"] and one["stage"] == "ResponseStarted"]
    assert len(asked) == 3 and len(set(asked)) == 2
    assert all("container=k8s-driver-manager&previous=true" in uri for uri in asked)
    checks, _waited = site.conclude(*INITS, timeout=1)
    [cause] = checks["driver"]["causes"]
    assert cause["nodes"] == site.nodes and cause["log"] == SAID.splitlines()
    assert cause["holds_up"] == {"validator": 2, "device_plugin": 2} and cause["since"]
    assert checks["validator"]["detail"].endswith(f"waits for driver on 2 nodes, {short(site)}")


def short(site: Site) -> str:
    """The two Nodes as one word, as in the message."""
    first, second = site.nodes
    same = len([one for one, other in zip(first, second) if one == other])
    return f"{first[:same]}[{first[same:]}-{second[same:]}]"
