# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import runs
from lab.host import engine
from lab.host import lab as labs
from tests.waiting import until

runs.begin()

ROOT = Path(__file__).resolve().parents[2]
NAME = "labtest"
HOST = "gpu-t1"


class Host:
    """The host of a private lab, controlled by the command line of the lab."""

    def __init__(self, record: labs.Lab) -> None:
        self.record = record
        self.cuda = record.url + record.repositories["cuda_path"]

    def lab(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs C(python3 -m lab WORDS)."""
        done = subprocess.run([sys.executable, "-m", "lab", words[0], "--name", NAME, *words[1:]], cwd=ROOT, text=True,
                              capture_output=True, check=False, timeout=600)
        if check and done.returncode:
            raise AssertionError(f"lab {' '.join(words)}: {done.stdout}{done.stderr}")
        return done

    def sh(self, script: str) -> str:
        """The output of a shell script, which must succeed."""
        done = self.run(script)
        assert not done.returncode, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def fails(self, script: str) -> str:
        """The output of a shell script, which must fail."""
        done = self.run(script)
        assert done.returncode, done.stdout
        return done.stdout + done.stderr

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Does the same as C(lab exec) without starting Python for each call."""
        return engine.enter(self.record.container(HOST), "sh", "-c", script, check=False, timeout=600)

    def fault(self, name: str, state: str, target: str = HOST) -> None:
        """Sets or clears a fault."""
        self.lab("fault", target, name, state)

    def snapshot(self) -> list[str]:
        """The lines of a snapshot."""
        return self.lab("snapshot", HOST).stdout.splitlines()

    def add_repository(self, key: str = "cuda-archive-keyring.gpg") -> None:
        """Adds the repository by hand, as the guide of the vendor describes."""
        self.sh(f"""set -e
            python3 -c 'import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1]).read())' \
                {self.cuda}{key} > /usr/share/keyrings/cuda.gpg
            echo 'deb [signed-by=/usr/share/keyrings/cuda.gpg] {self.cuda} /' > /etc/apt/sources.list.d/cuda.list""")

    def install(self, *packages: str) -> None:
        """Installs packages without questions."""
        self.sh("export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && "
                f"apt-get install -qq -y --no-install-recommends --allow-downgrades {' '.join(packages)} 2>&1")

    def until(self, script: str) -> None:
        """Waits for an event on the host: until a shell script succeeds."""
        self.sh(f"for _ in $(seq 600); do if {script}; then exit 0; fi; sleep 0.2; done; exit 1")

    def until_holds(self, unit: str) -> None:
        """Waits until the shell of a unit has opened its files and has become C(sleep), because systemd does not wait
        for this."""
        self.until(f"grep -qsx sleep /proc/$(systemctl show --property MainPID --value {unit})/comm")

    def reboot(self) -> None:
        """Reboots and waits."""
        boot = "systemctl show --property=UserspaceTimestampMonotonic"
        before = self.sh(boot)
        self.lab("exec", HOST, "systemctl reboot", check=False)

        def back() -> bool:
            said = self.run(f"{boot} && systemctl is-system-running --wait").stdout
            return before not in said and "running" in said

        until(back, "the host is back", 300)


@pytest.fixture(scope="session")
def private() -> Iterator[Host]:
    """A lab of one host with 8 A100-80 for the session."""
    subprocess.run([sys.executable, "-m", "lab", "up", "--name", NAME, "--hosts", f"{HOST}=a100-80:8"], cwd=ROOT,
                   check=True, timeout=3600)
    yield Host(labs.load(NAME))
    subprocess.run([sys.executable, "-m", "lab", "down", "--name", NAME], cwd=ROOT, check=True, timeout=600)


@pytest.fixture(scope="module")
def host(private: Host) -> Host:
    """A fresh host for each file."""
    private.lab("reset", HOST)
    return private
