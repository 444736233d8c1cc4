# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parallel runs of tests on one machine: none finds the labs of another, and none uses what another has reserved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from lab import runs
from lab.controlplane import processes
from lab.host import lab as labs
from tests.lab.conftest import ROOT

# A run with a cluster "main", whose one process is given by its id.
RUN = """
import sys
from lab import runs
from lab.controlplane import cluster, processes
runs.begin()
assert cluster.names() == []
made = cluster.Cluster("main", {"api": 1}, {"etcd": (int(sys.argv[1]), processes.began(int(sys.argv[1])))})
made.save()
print(made.folder, flush=True)
sys.stdin.read()
"""


class Run:
    """A process that is a run, with a process of a cluster, in a separate cache."""

    def __init__(self, cache: Path) -> None:
        self.part = subprocess.Popen(["sleep", "1000"])
        self.mark = self.part.pid, processes.began(self.part.pid)
        env = {name: value for name, value in os.environ.items() if name != runs.VARIABLE}
        self.process = subprocess.Popen([sys.executable, "-c", RUN, str(self.part.pid)], cwd=ROOT, text=True,
                                        env={**env, "XDG_CACHE_HOME": str(cache)}, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        while said.startswith("removing"):
            said = self.process.stdout.readline()
        self.cluster = Path(said.strip())

    @property
    def there(self) -> tuple[bool, bool]:
        """Whether its cluster is recorded and runs."""
        return self.cluster.exists(), processes.runs(self.mark)

    def kill(self) -> None:
        """Kills it, so that it cannot clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def end(self) -> None:
        """Ends it normally, and waits."""
        self.process.communicate("", timeout=120)
        self.part.kill()
        self.part.wait(60)


def test_runs_have_clusters_of_the_same_name_and_tidy_up(tmp_path: Path) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    assert first.cluster != second.cluster
    assert first.there == second.there == (True, True), "who begins leaves what runs alone"
    second.end()
    assert (first.there, second.there) == ((True, True), (False, False))
    first.kill()
    assert first.there == (True, True)
    third = Run(tmp_path)
    assert (first.there, third.there) == ((False, False), (True, True)), "who begins removes what a killed run left"
    third.end()
    first.part.wait(60)
    assert not list(runs_folder(tmp_path).iterdir())


def test_purge_is_refused_while_a_run_uses_the_lab(tmp_path: Path) -> None:
    run = Run(tmp_path)
    env = {name: value for name, value in os.environ.items() if name != runs.VARIABLE}
    done = subprocess.run([sys.executable, "-m", "lab", "down", "--purge"], cwd=ROOT, text=True, capture_output=True,
                          env={**env, "XDG_CACHE_HOME": str(tmp_path)}, timeout=60, check=False)
    assert done.returncode == 1
    assert f"tests still run on this machine, in the processes {run.process.pid}" in done.stderr
    assert run.there == (True, True)
    run.end()


def runs_folder(cache: Path) -> Path:
    """The folder of the runs in a cache."""
    return cache / "gpuops" / "runs"


def test_a_network_is_chosen_by_one_lab_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    both_chose = threading.Barrier(2)
    choose = labs.free_network

    def slowly(name: str) -> str:
        found = choose("same")
        with suppress(threading.BrokenBarrierError):  # the other one waits for us to record ours
            both_chose.wait(0.5)
        return found

    monkeypatch.setattr(labs, "free_network", slowly)
    monkeypatch.setattr(labs, "NETWORKS_LOCK", tmp_path / "networks.lock")  # labs of other gates hold this machine's
    monkeypatch.setattr(labs, "ensure_network", lambda lab: None)
    monkeypatch.setattr(labs, "ensure_repo", lambda lab, image: None)
    made = [labs.Lab(name, "") for name in ("one", "other")]
    threads = [threading.Thread(target=labs.connect, args=(lab, "image")) for lab in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made[0].network.startswith("10.213.") and made[0].network != made[1].network
