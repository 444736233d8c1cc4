# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs gates in parallel: the longest first, each as soon as its prerequisites are ready, and never more than the cores
can run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from lab.stages import PATIENCE, Stage, Stages, clock, last_line, processor_seconds
from tests.gates.table import Gate, environment

LIMIT = 45.0  # minutes after which a gate is killed; one that takes long by itself after twice its time
# So many gates run side by side on every machine, more only where the processors have been idle for a while: on one
# that is slow or busy, many at once would each reach their limits, and none would end sooner.
ALWAYS, IDLE, WHILE = 3, 0.15, 5.0  # gates, share of all processors, seconds
HEARTBEAT = 60.0  # seconds between signs of life where the output is no terminal


class Load:
    """The load of the processors of this machine since a gate was started, over the last C(WHILE) seconds."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float]] = []

    def idle(self) -> bool:
        """Whether the processors have capacity for another gate. Must be called repeatedly."""
        now, worked = time.monotonic(), processor_seconds()
        self.looks.append((now, worked))
        while len(self.looks) > 2 and now - self.looks[1][0] >= WHILE:
            del self.looks[0]
        then, before = self.looks[0]
        return now - then >= WHILE and worked - before <= (1 - IDLE) * (now - then) * (os.cpu_count() or 1)

    def started(self) -> None:
        """Notes that a gate was started, whose load is visible only after a while."""
        self.looks.clear()


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts a gate, as pytest then names the tests that have failed and removes their clusters; kills what remains
    of it."""
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Schedule:
    """The waiting and running gates. capacity: the number of cores to use, by default those of this machine; load:
    how busy they are."""

    def __init__(self, stages: Stages, gates: Sequence[Gate], capacity: float = 0.0, load: Load | None = None) -> None:
        self.stages = stages
        self.load = load or Load()
        self.capacity = capacity or float(os.cpu_count() or 1)
        self.waiting = sorted(gates, key=lambda gate: -self.length(gate, gates))
        self.running: dict[str, tuple[Gate, Stage]] = {}
        self.passed: set[str] = set()
        self.left_out: dict[str, str] = {}
        self.beat = time.monotonic()

    @staticmethod
    def length(gate: Gate, gates: Sequence[Gate]) -> float:
        """Minutes of a gate plus those of the longest gate that waits for it: together they determine the total
        time."""
        return gate.minutes + max((other.minutes for other in gates if gate.name in other.needs), default=0.0)

    def run(self) -> None:
        """Runs until no gate waits or runs. A gate that needs a failed gate is left out, with that reason."""
        while self.waiting or self.running:
            self._collect()
            self._drop()
            for gate in self._next():
                self._start(gate)
            self._show()
            time.sleep(0.2)

    def _next(self) -> list[Gate]:
        """The gates to start now. A single gate may need more cores than the machine has. A gate for which others wait
        starts even if all cores are taken. Otherwise short, narrow gates would start before it each time."""
        prerequisites = {name for gate in self.waiting for name in gate.needs}
        chosen: list[Gate] = []
        busy = sum(gate.cores for gate, _stage in self.running.values())
        more = max(ALWAYS - len(self.running), int(self.load.idle()))
        for gate in self.waiting:
            enough = busy + gate.cores <= self.capacity or not busy or gate.name in prerequisites
            fits = len(chosen) < more and enough
            if fits and all(name in self.passed for name in gate.needs):
                chosen.append(gate)
                busy += gate.cores
        return chosen

    def _start(self, gate: Gate) -> None:
        self.waiting.remove(gate)
        self.load.started()
        cost = self.stages.logs / f"{gate.name.replace(' ', '-')}.cost"
        cost.unlink(missing_ok=True)
        measured = [sys.executable, "-m", "tests.gates.measured", str(cost), *gate.argv]
        self.running[gate.name] = gate, self.stages.start(gate.name, measured, environment(gate.name))

    def _collect(self) -> None:
        """Collects gates that have ended, and ends gates that take too long."""
        for gate, stage in list(self.running.values()):
            assert stage.process is not None
            seconds, limit = time.monotonic() - stage.started, max(LIMIT, 2 * gate.minutes)
            if stage.process.poll() is None:
                if seconds > limit * 60:
                    end(stage.process)
                    with stage.log.open("a") as log:
                        log.write(f"\nkilled: it took longer than {limit:.0f} minutes\n")
                else:
                    continue
            del self.running[gate.name]
            cost = stage.log.with_suffix(".cost")
            stage.processor = float(cost.read_text()) if cost.exists() else None
            self.stages.end(stage)
            if not stage.rc:
                self.passed.add(gate.name)

    def _drop(self) -> None:
        """Leaves out gates that can no longer start."""
        names = {gate.name for gate in self.waiting} | set(self.running) | self.passed
        for gate in list(self.waiting):
            gone = [name for name in gate.needs if name not in names]
            if gone:
                self.waiting.remove(gate)
                self.left_out[gate.name] = f"{' and '.join(gone)} did not pass"

    def _show(self) -> None:
        """Prints a line about the running gates; if the output is no terminal, only from time to time."""
        now = time.monotonic()
        if self.stages.tty:
            running = ", ".join(f"{name} {clock(now - stage.started)}" for name, (_gate, stage) in self.running.items())
            print(f"\r\033[K{clock(now - self.stages.started)}  {running}"[:150], end="", flush=True)
        elif now - self.beat > HEARTBEAT:
            self.beat = now
            print(f"{clock(now - self.stages.started)}, {len(self.waiting)} wait", flush=True)
            for name, (_gate, stage) in self.running.items():
                print(f"  {name} {clock(now - stage.started)}: {last_line(stage.log)[:100]}", flush=True)
