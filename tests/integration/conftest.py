# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pytest

from lab import runs
from lab.host import engine, snapshot
from lab.host import lab as labs
from lab.stages import ROOT
from tests.integration import user

runs.begin()
KILLER = Path(__file__).parent / "killer"


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Of two snapshots only the lines that differ: what a failed gate prints has room for those alone."""
    if op != "==" or not isinstance(left, list) or not isinstance(right, list) or len(right) < 50:
        return None
    return ["the same (- is gone, + has come)", *(
        line for line in difflib.unified_diff(list(map(str, right)), list(map(str, left)), "", "", "", n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@")))]


class LabHosts:
    """A lab, by its command line; on its hosts without it, which a test does a hundred times."""

    def __init__(self, name: str = "main") -> None:
        self.name = name

    def __call__(self, command: str, *words: str) -> str:
        """C(python3 -m lab COMMAND WORDS); returns its output."""
        done = subprocess.run([sys.executable, "-m", "lab", command, "--name", self.name, *words], cwd=ROOT,
                              capture_output=True, text=True, check=False, timeout=1800)
        if done.returncode:
            raise AssertionError(f"lab {command} {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    @cached_property
    def hosts(self) -> list[Path]:
        """The inventory for the lab hosts alone, which is the same as long as the lab is there."""
        return [Path(self("inventory").strip().splitlines()[-1])]

    @property
    def wishes(self) -> list[Path]:
        """The same with what the demo wants of the hosts."""
        return [*self.hosts, ROOT / "lab" / "demo" / "hosts.yml"]

    def save(self, host: str) -> str:
        """Keeps the host's disk; returns what C(reset) takes. See lab.host.lab.save for what is not kept."""
        return labs.save(labs.load(self.name), host)

    def reset(self, host: str, saved: str = "") -> None:
        """A fresh host in its place, or one with the disk that was kept."""
        labs.reset(labs.load(self.name), host, saved)

    def sh(self, host: str, script: str) -> str:
        """Runs a shell script on a host as its root; returns what it prints."""
        return engine.enter(self._container(host), "sh", "-c", script).stdout

    def snapshot(self, host: str) -> list[str]:
        """/etc, units and packages, a line each."""
        return engine.enter(self._container(host), "sh", stdin=snapshot.SCRIPT).stdout.splitlines()

    def files(self, host: str) -> list[str]:
        """All files of a host, a line each that differs once somebody has written to it."""
        return self.sh(host, snapshot.FILES).splitlines()

    def snapshot_beside_driver(self, host: str) -> list[str]:
        """The same without what Python puts beside the driver's pynvml when it likes, which goes with the driver."""
        return [line for line in self.snapshot(host) if "gpuops/python/__pycache__" not in line]

    def _container(self, host: str) -> str:
        return labs.load(self.name).container(host)

    def put_killer(self, host: str) -> None:
        """Copies the killing Python to a host, as /opt/killer/python3."""
        self.put_python(host, KILLER)

    def put_python(self, host: str, folder: Path) -> str:
        """Copies a Python that runs the sitecustomize.py of a folder to a host; returns its path."""
        target = f"/opt/{folder.name}"
        script = f"mkdir -p {target}\n"
        for source in (KILLER / "python3", folder / "sitecustomize.py"):
            script += f"cat > {target}/{source.name} <<'GPUOPS_END'\n{source.read_text()}GPUOPS_END\n"
        self.sh(host, f"{script}chmod 755 {target}/python3")
        return f"{target}/python3"


@contextmanager
def own_lab(name: str, hosts: str) -> Iterator[LabHosts]:
    """A lab of fresh hosts that is there for as long as the block; one of the name that was left over goes first."""
    made = LabHosts(name)
    made("down")
    made("up", "--hosts", hosts)
    try:
        yield made
    finally:
        made("down")


@pytest.fixture(scope="session")
def lab() -> Iterator[LabHosts]:
    """gpu-a1 and gpu-a2 with 8 A100-80 each, gpu-l1 with 4 L40S, of tests of whole playbooks. Each file resets them."""
    # Its name is not that of a playbook: make check would take each test for one that runs it.
    with own_lab("three", labs.DEFAULT) as hosts:
        yield hosts


@pytest.fixture(scope="session", autouse=True)
def collection() -> Path:
    """The collection, installed from its tarball where the checkout is not seen."""
    return user.install()
