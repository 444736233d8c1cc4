# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of ansible-playbook that share one start: warm_server.py imports Ansible once and forks a process for each run.

A start takes three quarters of a second of CPU time, and the gates make some 500 runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import processes

SERVER = Path(__file__).with_name("warm_server.py")


class Warm:
    """The server for one environment; it ends with this process."""

    def __init__(self, python: Path, env: dict[str, str], folder: Path) -> None:
        self.folder, self.child = folder, 0  # the process of the newest run
        self.process = subprocess.Popen([str(python), str(SERVER)], env=env, cwd=folder, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._line() == "ready", "Ansible cannot be imported in the user's environment"

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the server of ansible-playbook runs has ended"
        return line.strip()

    def run(self, argv: Sequence[str], env: dict[str, str], limit: float, cwd: Path) -> tuple[int, str]:
        """Runs ansible-playbook; returns its exit code and output. A run that takes longer than limit seconds is killed
        and raises an AssertionError."""
        assert self.process.stdin
        output = self.folder / f"output-{os.getpid()}"
        order = {"argv": list(argv), "env": env, "cwd": str(cwd), "output": str(output)}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        try:
            self.child = int(self._line())
            return self._end(self.child, argv, output, limit)
        except BaseException:
            # A test that was interrupted has not read all that the server says of its run.
            self.process.kill()
            self.process.wait()
            raise

    def _end(self, child: int, argv: Sequence[str], output: Path, limit: float) -> tuple[int, str]:
        late = threading.Event()

        def kill() -> None:
            late.set()
            processes.kill(child)

        timer = threading.Timer(limit, kill)
        timer.start()
        try:
            code = int(self._line())
        except BaseException:
            kill()
            raise
        finally:
            timer.cancel()
        text = output.read_text(errors="replace")
        assert not late.is_set(), f"{' '.join(argv)} took longer than {limit:.0f} s:\n{text}"
        return code, text


@dataclass
class Pool:
    """One server for each environment."""

    python: Path
    folder: Path
    servers: dict[str, Warm]

    def run(self, argv: Sequence[str], env: dict[str, str], limit: float, cwd: Path) -> tuple[int, str]:
        """See L(Warm.run)."""
        return self.server(env).run(argv, env, limit, cwd)

    def server(self, env: dict[str, str]) -> Warm:
        """Returns the server for an environment: Ansible reads its settings on import, so each server has fixed
        settings."""
        settings = json.dumps({key: value for key, value in env.items() if key != "RECORD_FILE"}, sort_keys=True)
        if settings not in self.servers or self.servers[settings].process.poll() is not None:
            self.servers[settings] = Warm(self.python, env, self.folder)
        return self.servers[settings]
