# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml on a cluster that fails in the middle of a run, or that another run changes at the same time."""

from __future__ import annotations

import http.server
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import MANAGER, Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes
from tests import processes
from tests.integration import user
from tests.integration.warm import Warm
from tests.integration_cluster import plays
from tests.integration_cluster.conftest import Audit, occupied
from tests.integration_cluster.proxy import Flaky
from tests.unit.simulated.clusters import plan
from tests.waiting import until

NODE, SPACE = "gpu-1", "gpu-operator"
OLD, NEW = "24.6.2", "26.7.0"
LIMIT = 240.0
SHIPPED = [row for row in kinds.KINDS.values() if row.shipped]


class Site:
    """A cluster with one GPU Node and without objects of ours."""

    def __init__(self, made: clusters.Cluster, folder: Path) -> None:
        self.made, self.folder = made, folder
        self.kubeconfig = str(made.kubeconfig)
        self.client, self.audit = Client(self.kubeconfig), Audit(made.audit_log)

    def inventory(self, kubeconfig: str, release: str) -> dict[str, Any]:
        """An inventory with all components of a release in the cluster."""
        return {"gpu_control": {"hosts": {"cluster": plays.LOCAL}, "vars": {
            "gpu_placement": "cluster", "gpu_kubeconfig": kubeconfig, "gpu_release": release}}}

    def run(self, kubeconfig: str = "", release: str = NEW) -> user.Run:
        """Runs site.yml to its end. kubeconfig: that of a proxy, if any."""
        self.audit.start()
        return plays.run(self.folder, "site", self.inventory(kubeconfig or self.kubeconfig, release))

    def start(self, server: Flaky, release: str = NEW, other: bool = False) -> Started:
        """Starts site.yml through a proxy, in parallel with the test. other: starts it in parallel with another run."""
        plays.install()
        folder, env = self.folder / release, user.environment()
        folder.mkdir()
        ansible = Warm(user.PYTHON, env, folder) if other else user.WARM.server(env)
        return Started(ansible, folder, self.inventory(server.kubeconfig(folder), release))

    def found(self) -> dict[str, dict[str, Any]]:
        """Maps C(resource/name) to the metadata of our objects, and of the Node."""
        live = {f"{row.plural}/{item['metadata']['name']}": item for row in SHIPPED
                for item in self.client.list_row(row, metadata_only=True) if objects.is_ours(item)}
        live[f"nodes/{NODE}"], = self.client.list("v1", "Node", metadata_only=True)
        return {name: item["metadata"] for name, item in live.items()}

    def assert_converged(self, release: str = NEW) -> None:
        """Checks that all objects of a release exist and no others, and that another run writes nothing."""
        with self.unchanged(release):
            last = self.run(release=release)
            assert last.rc == 0, last.output

    @contextmanager
    def unchanged(self, release: str = NEW) -> Iterator[None]:
        """Checks that all objects of a release exist and no others, and that the block writes nothing."""
        before = self.found()
        assert before.keys() == {f"nodes/{NODE}", *names(release)}
        yield
        assert not written(self.audit)
        assert ours(self.found()) == ours(before)


def names(release: str = NEW) -> set[str]:
    """The names C(resource/name) of all objects of a release in this cluster."""
    cluster = plan(release=release, namespace=SPACE, node_os=["ubuntu24.04"])
    wanted = objects.wanted({name: render(name, cluster) for name in (objects.SHARED, *ORDER)})
    return {f"{one.kind.plural}/{one.manifest['metadata']['name']}" for one in wanted}


def ours(found: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Our part of each object. Controllers continue to write statuses, which change the resourceVersion."""
    return {name: (one["uid"], one.get("generation"), one["labels"], [
        entry["time"] for entry in one["managedFields"] if entry["manager"] == MANAGER]) for name, one in found.items()}


def written(audit: Audit, code: int = 0) -> Counter[str]:
    """Maps C(resource/name) to the number of our writes. code: 201 for created objects."""
    return Counter(f"{one['resource']}/{one['name']}" for one in audit.writes
                   if one["agent"] == MANAGER and one["code"] in ((code,) if code else (200, 201)))


class Started:
    """A run of site.yml that is started in parallel with others. The API server has no other clients meanwhile."""

    def __init__(self, server: Warm, folder: Path, inventory: dict[str, Any]) -> None:
        self.server, self.folder, self.result = server, folder, (0, "it did not end")
        (folder / "inventory.json").write_text(json.dumps(inventory))
        server.child = 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        """Runs to its end."""
        argv = ["ansible-playbook", "-i", str(self.folder / "inventory.json"), "gpuops.nvidia.site"]
        env = {**user.environment(), "RECORD_FILE": str(self.folder / "record.jsonl")}
        self.result = self.server.run(argv, env, LIMIT, user.HOME)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *problem: object) -> None:
        if self.thread.is_alive():
            self.kill()

    def kill(self) -> None:
        """Kills the run as the kernel does when memory is short, without any cleanup."""
        processes.kill(until(lambda: self.server.child))
        self.thread.join()

    def end(self) -> tuple[int, str]:
        """Waits for the run; returns its exit code and output."""
        self.thread.join(LIMIT)
        return self.result


@pytest.fixture(scope="module")
def made(empty: clusters.Cluster) -> Iterator[clusters.Cluster]:
    with occupied(empty) as found:
        yield found


@pytest.fixture
def site(made: clusters.Cluster, tmp_path: Path) -> Iterator[Site]:
    found = Site(made, tmp_path)
    nodes.create(made, nodes.plain(1, 0, "a100-80", "ubuntu24.04"), nodes.Labels())
    yield found
    deliver.absent(found.client, None, 180, False)
    found.client.delete("v1", "Node", NODE)


def is_write(method: str, path: str) -> bool:
    """Whether a request writes an object and is no dry run."""
    return method == "PATCH" and "dryRun" not in path


class Outage(Flaky):
    """Stops etcd at the first write of a resource. etcd continues at the n-th further write, or at the end for 0.

    Meanwhile, the API server gives up requests after a moment; otherwise it would do so after a minute.
    """

    def __init__(self, site: Site, resource: str, attempts: int) -> None:
        super().__init__(site.kubeconfig, self.look)
        self.etcd, self.resource, self.attempts = site.made.marks["etcd"][0], resource, attempts
        self.stopped = self.over = False
        self.tries: Counter[str] = Counter()

    def look(self, _number: int, method: str, path: str) -> None:
        """Called for each request before it is passed on."""
        if self.over or not is_write(method, path):
            return
        if not self.stopped and f"/{self.resource}/" in path:
            self.stopped = True
            os.kill(self.etcd, signal.SIGSTOP)
        if self.stopped:
            self.tries[path] += 1
            if self.tries[path] == self.attempts:
                self.end()

    def end(self) -> None:
        """Lets etcd continue."""
        os.kill(self.etcd, signal.SIGCONT)
        self.over = True

    def __exit__(self, *problem: object) -> None:
        self.end()
        super().__exit__(*problem)

    def ask(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """Returns the answer of the API server itself."""
        if self.stopped and not self.over:
            handler.path += ("&" if "?" in handler.path else "?") + "timeout=300ms"
        return super().ask(handler, body)


def test_etcd_stops_in_the_middle_of_a_run(site: Site) -> None:
    """If the outage is longer than a run retries, the run has one error and the next run completes the work. If it is
    shorter, the run itself continues."""
    with Outage(site, "serviceaccounts", 0) as server:
        failed = site.run(server.kubeconfig(site.folder))
    assert failed.rc == 2, failed.output
    (message,) = failed.errors()
    assert f"ServiceAccount {SPACE}/node-feature-discovery: the API server could not apply it (Timeout)" in message
    assert message.endswith("Read the logs of the API server and of etcd, then run again."), message
    left = site.found()
    with Outage(site, "daemonsets", 3) as server:
        done = site.run(server.kubeconfig(site.folder))
        assert done.rc == 0 and server.over, done.output
    assert f"namespaces/{SPACE}" in left and not written(site.audit).keys() & left.keys() - {f"nodes/{NODE}"}
    site.assert_converged()


class Distant(Flaky):
    """Delays each answer, and delays those for DaemonSets until all of these have been written."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.kubeconfig, lambda *_words: None)
        self.latency = threading.Event()
        self.daemon_sets = threading.Barrier(sum(name.startswith("daemonsets/") for name in names()), timeout=60)

    def ask(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """Returns the answer with a delay."""
        answer = super().ask(handler, body)
        self.latency.wait(0.1)
        if is_write(handler.command, handler.path) and "/daemonsets/" in handler.path:
            self.daemon_sets.wait()
        return answer


def test_every_answer_comes_late(site: Site) -> None:
    """Requests for objects of one kind wait in parallel, and a run without work makes few requests."""
    with Distant(site) as server:
        first = site.run(server.kubeconfig(site.folder))
        assert first.rc == 0, first.output
        assert set(written(site.audit).values()) == {1}
        server.seen.clear()
        with site.unchanged():
            again = site.run(server.kubeconfig(site.folder))
        assert again.rc == 0, again.output
        assert len(server.seen) < 40


def after_daemon_sets(act: Callable[[], object]) -> Callable[[int, str, str], None]:
    """Calls a function when a run reads DaemonSets for the first time after it has written some: all its writes are
    done then."""
    written: list[str] = []

    def look(_number: int, method: str, path: str) -> None:
        if "/daemonsets" not in path:
            return
        if is_write(method, path):
            written.append(path)
        elif method == "GET" and written:
            written.clear()
            act()

    return look


def test_two_releases_at_once(site: Site) -> None:
    """Both runs have planned for an empty cluster. In the end, one run names the fields that the other one has
    overwritten, and the other one names what the first has left. A further run of one release then removes all of the
    other.
    """
    whole = Audit(site.made.audit_log)
    begun, first_done, second_done = threading.Event(), threading.Event(), threading.Event()

    def overwritten() -> None:
        first_done.set()
        assert second_done.wait(LIMIT)

    look = after_daemon_sets(second_done.set)

    def late(number: int, method: str, path: str) -> None:
        if is_write(method, path):
            begun.set()
            assert first_done.wait(LIMIT)
        look(number, method, path)

    with Flaky(site.kubeconfig, late) as old, Flaky(site.kubeconfig, after_daemon_sets(overwritten)) as new, \
            site.start(old, OLD) as last:
        assert begun.wait(LIMIT)
        with site.start(new, NEW, other=True) as first:
            ends = {"nvidia-driver-daemonset differs in spec.": first.end()}
            first_done.set()  # also where that one failed before
        ends["RuntimeClass nvidia-cdi is no longer planned"] = last.end()
    for words, (code, output) in ends.items():
        said = " ".join(output.split())
        assert code == 2 and words in said and "Run site.yml: it repairs this" in said, output
    assert written(whole)["daemonsets/nvidia-driver-daemonset"] == 2
    done = site.run(release=OLD)
    assert done.rc == 0 and "runtimeclasses/nvidia-cdi" in written(site.audit), done.output
    site.assert_converged(OLD)


def test_a_run_is_killed_while_it_delivers(site: Site) -> None:
    """The next run continues: existing objects are not written again, and nothing is created twice."""
    whole = Audit(site.made.audit_log)
    begun: list[Started] = []
    writes: list[str] = []
    half = len(names()) // 2

    def kill(_number: int, method: str, path: str) -> str | None:
        """Kills the run at a write in the middle, which still reaches the server. Later requests have no sender any
        more."""
        if not is_write(method, path):
            return None
        writes.append(path)
        if len(writes) == half:
            begun[0].kill()
        return "drop" if len(writes) > half else None

    with Flaky(site.kubeconfig, kill) as server:
        begun.append(site.start(server))
        assert begun[0].end()[0] == -signal.SIGKILL
    left = site.found()
    assert half // 2 < len(left) <= half + 1
    done = site.run()
    assert done.rc == 0, done.output
    assert not (written(site.audit).keys() & left.keys()) - {f"nodes/{NODE}"}
    assert set(written(whole, 201).values()) == {1}
    site.assert_converged()
