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
    """Shows only the differing lines of two snapshots, because the report of a failed gate is short."""
    if op != "==" or not isinstance(left, list) or not isinstance(right, list) or len(right) < 50:
        return None
    return ["the same (- is gone, + has come)", *(
        line for line in difflib.unified_diff(list(map(str, right)), list(map(str, left)), "", "", "", n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@")))]


class LabHosts:
    """A lab, controlled by its command line; commands on its hosts do not use it, because a test runs hundreds of
    them."""

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
        """The inventory with the lab hosts only; its path does not change while the lab exists."""
        return [Path(self("inventory").strip().splitlines()[-1])]

    @property
    def wishes(self) -> list[Path]:
        """The same inventory with the variables of the demo."""
        return [*self.hosts, ROOT / "lab" / "demo" / "hosts.yml"]

    def save(self, host: str) -> str:
        """Saves the disk of the host; returns the argument for C(reset). See lab.host.lab.save for what is not kept."""
        return labs.save(labs.load(self.name), host)

    def reset(self, host: str, saved: str = "") -> None:
        """Replaces the host with a fresh one, or with one that has the saved disk."""
        labs.reset(labs.load(self.name), host, saved)

    def sh(self, host: str, script: str) -> str:
        """Runs a shell script on a host as root; returns its output."""
        return engine.enter(self._container(host), "sh", "-c", script).stdout

    def snapshot(self, host: str) -> list[str]:
        """/etc, units and packages, one line each."""
        return engine.enter(self._container(host), "sh", stdin=snapshot.SCRIPT).stdout.splitlines()

    def files(self, host: str) -> list[str]:
        """All files of a host, one line each, which changes when the file is written."""
        return self.sh(host, snapshot.FILES).splitlines()

    def snapshot_beside_driver(self, host: str) -> list[str]:
        """The same without the files that Python can write at any time beside the pynvml of the driver, and which are
        removed with the driver."""
        return [line for line in self.snapshot(host) if "gpuops/python/__pycache__" not in line]

    def _container(self, host: str) -> str:
        return labs.load(self.name).container(host)

    def put_killer(self, host: str) -> None:
        """Copies the Python that kills modules to a host, as /opt/killer/python3."""
        self.put_python(host, KILLER)

    def put_python(self, host: str, folder: Path) -> str:
        """Copies a Python that loads the sitecustomize.py of a folder to a host; returns its path."""
        target = f"/opt/{folder.name}"
        script = f"mkdir -p {target}\n"
        for source in (KILLER / "python3", folder / "sitecustomize.py"):
            script += f"cat > {target}/{source.name} <<'GPUOPS_END'\n{source.read_text()}GPUOPS_END\n"
        self.sh(host, f"{script}chmod 755 {target}/python3")
        return f"{target}/python3"


@contextmanager
def own_lab(name: str, hosts: str) -> Iterator[LabHosts]:
    """A lab with fresh hosts that exists for the duration of the block; a leftover lab of that name is removed
    first."""
    made = LabHosts(name)
    made("down")
    made("up", "--hosts", hosts)
    try:
        yield made
    finally:
        made("down")


@pytest.fixture(scope="session")
def lab() -> Iterator[LabHosts]:
    """gpu-a1 and gpu-a2 with 8 A100-80 each and gpu-l1 with 4 L40S, for tests of whole playbooks. Each test file resets
    the hosts."""
    # Its name is not that of a playbook: make check would take each test for one that runs it.
    with own_lab("three", labs.DEFAULT) as hosts:
        yield hosts


@pytest.fixture(scope="session", autouse=True)
def collection() -> Path:
    """The collection, installed from its tarball, in an environment that does not see the checkout."""
    return user.install()
