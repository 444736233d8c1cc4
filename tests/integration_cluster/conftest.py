# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab import runs
from lab.controlplane import api, binary, nodes
from lab.controlplane import cluster as clusters
from lab.stages import ROOT
from tests.integration_cluster import quick
from tests.waiting import until

runs.begin()
pytest.register_assert_rewrite("tests.integration_cluster.drifts")
NAME = f"itest{os.getpid()}"  # two gates run side by side
_NUMBERS = itertools.count()
# Files of tests that have the cluster alone, each with its own Nodes. The last one stops etcd.
ALONE = ("test_adopt", "test_compared", "test_states", "test_releases", "test_secrets", "test_upgrade_fleet",
         "test_faulty_clusters")
SYSTEM = ("default", "kube-system", "kube-public", "kube-node-lease")
WRITES = ("create", "update", "patch", "delete", "deletecollection")


class Audit:
    """The requests that the API server has received since a given time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()

    def start(self) -> None:
        """Starts to count from now on."""
        self.offset = self.path.stat().st_size if self.path.exists() else 0

    @property
    def tries(self) -> list[str]:
        """The URIs of dry-run requests."""
        return [one["uri"] for one in self._read() if "dryRun" in one["uri"]]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """C([{verb, uri, agent, code, stage, resource, name}]), without dry-run requests."""
        return [one for one in self._read() if "dryRun" not in one["uri"]]

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(max(self.offset - 1, 0))
            parts = file.read().split(b"\n")
        # A request of somebody else may be half written at both ends; one's own are there before their answers are.
        lines = [json.loads(line) for line in parts[1 if self.offset else 0:-1]]
        return [{"verb": line["verb"], "uri": line["requestURI"], "agent": line.get("userAgent", ""),
                 "code": line.get("responseStatus", {}).get("code", 0), "stage": line["stage"],
                 "resource": line.get("objectRef", {}).get("resource"),
                 "name": line.get("objectRef", {}).get("name")} for line in lines]

    @property
    def writes(self) -> list[dict[str, Any]]:
        """The requests that change something. A review of permissions is sent like an object, but changes nothing."""
        return [one for one in self.requests
                if one["verb"] in WRITES and one["resource"] != "selfsubjectaccessreviews"]


@contextmanager
def running(name: str) -> Iterator[clusters.Cluster]:
    """A cluster without Nodes that is removed at the end."""
    lab = [sys.executable, "-m", "lab", "cluster"]
    try:
        subprocess.run([*lab, "up", "--name", name, "--nodes", "empty"], cwd=ROOT, check=True, timeout=1800)
        yield clusters.load(name)
    finally:
        if name in clusters.names():
            subprocess.run([*lab, "down", "--name", name], cwd=ROOT, check=True, timeout=120)


@pytest.fixture(scope="session")
def empty() -> Iterator[clusters.Cluster]:
    """The cluster of the session. A test that needs it for itself uses L(occupied)."""
    with running(NAME) as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts tests that need a cluster of their own to the front, one after another: starting a cluster takes ten
    seconds of CPU time. These tests remove the Nodes of the fixture L(cluster), so they must not use it.
    """
    items.sort(key=lambda item: item.path.stem not in ALONE)
    wrong = [item.nodeid for item in items
             if item.path.stem in ALONE and "cluster" in getattr(item, "fixturenames", ())]
    if wrong:
        raise pytest.UsageError(f"{', '.join(wrong)}: uses the fixture cluster, whose Nodes it removes")


@contextmanager
def occupied(made: clusters.Cluster, *wanted: nodes.Node) -> Iterator[clusters.Cluster]:
    """The cluster with these Nodes and without objects of other tests. At the end, it is in its former state."""
    nodes.create(made, [*wanted], nodes.Labels())
    try:
        yield made
    finally:
        leave(made)


def leave(made: clusters.Cluster) -> None:
    """Removes all objects that are not part of the cluster itself. Pods are removed first, because they need their
    Nodes to end."""
    with made.api() as server:
        def go(where: str, keep: Callable[[dict[str, Any]], bool] = lambda one: False) -> None:
            def others() -> list[dict[str, Any]]:
                return [one for one in server.objects(where) if not keep(one)]

            for one in others():
                server.request("DELETE", f"{where}/{one['metadata']['name']}", missing_ok=True)
            until(lambda: not others(), f"{where} are gone")

        rights = "/apis/rbac.authorization.k8s.io/v1"
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        defined = [one["spec"] for one in server.objects(definitions) if not of_kwok(one)]
        go("/api/v1/namespaces", lambda one: one["metadata"]["name"] in SYSTEM)
        go("/api/v1/namespaces/default/serviceaccounts", lambda one: one["metadata"]["name"] == "default")
        for kind in ("clusterrolebindings", "clusterroles"):
            go(f"{rights}/{kind}", lambda one: "kubernetes.io/bootstrapping" in one["metadata"].get("labels", {}))
        go("/apis/node.k8s.io/v1/runtimeclasses")
        go(definitions, of_kwok)
        for one in defined:
            where = f"/apis/{one['group']}/{one['versions'][0]['name']}/{one['names']['plural']}"
            until(lambda where=where: not server.request("GET", where, missing_ok=True),  # type: ignore[misc]
                  f"{where} is no longer served")
        go(nodes.NODES)


def of_kwok(definition: dict[str, Any]) -> bool:
    return bool(definition["spec"]["group"] == "kwok.x-k8s.io")


@pytest.fixture(scope="session", autouse=True)
def surroundings() -> Iterator[None]:
    """Removes clusters from the environment, and makes the line width the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", "/nonexistent")
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture(scope="session")
def cluster(empty: clusters.Cluster) -> clusters.Cluster:
    """A cluster for all tests, with the Nodes gpu-1, gpu-2 and cpu-1; tests that write Nodes create their own ones."""
    nodes.create(empty, nodes.plain(2, 1, "a100-80", "ubuntu24.04"), nodes.Labels())
    return empty


class Kubectl:
    """kubectl as the administrator uses it; simple commands do not start the program."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig
        made = clusters.load(Path(kubeconfig).parent.name)
        self.server = api.direct(made.ports["api"], made.folder / "pki", "admin")
        self.command = ["kubectl", "--kubeconfig", kubeconfig, "--cache-dir", f"{kubeconfig}.cache"]
        self.program = binary.program()

    def __call__(self, *words: str, stdin: object = None, editor: str = "") -> str:
        """Runs a command; returns its output. stdin: an object, passed as JSON; editor: the program that C(edit)
        opens."""
        with contextlib.suppress(quick.Unknown):
            return quick.run(self.server, words, stdin)
        done = subprocess.run([*self.command, *words], executable=self.program, text=True, capture_output=True,
                              input=None if stdin is None else json.dumps(stdin), check=False, timeout=300,
                              env={**os.environ, **clusters.KUBECTL, "KUBE_EDITOR": editor})
        assert done.returncode == 0, f"kubectl {words}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        """Returns an object with managedFields."""
        found: dict[str, Any] = json.loads(self("get", *words, "--output", "json", "--show-managed-fields"))
        return found


@pytest.fixture(scope="session")
def kubectl(kubeconfig: str) -> Kubectl:
    """kubectl for this cluster."""
    return Kubectl(kubeconfig)


@pytest.fixture(scope="session")
def kubeconfig(cluster: clusters.Cluster) -> str:
    """The path of the kubeconfig, for modules."""
    return str(cluster.kubeconfig)


@pytest.fixture
def client(kubeconfig: str) -> Client:
    """A separate client for each test."""
    return Client(kubeconfig)


@pytest.fixture
def audit(cluster: clusters.Cluster) -> Audit:
    """The requests that the API server receives from now on."""
    return Audit(cluster.audit_log)


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Returns names for namespaces and cluster-wide objects that no other test uses."""
    words = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())
    return lambda: f"{words[:40].strip('-')}-{next(_NUMBERS)}"
