# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Long work as named stages: progress while a stage runs, its log in a file, and a table of stages and minutes at the
end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLOURS = re.compile(r"\033\[[0-9;?]*[A-Za-z]")
PATIENCE = 60  # seconds for stages to end when they are told to
HEARTBEAT = 30  # seconds between signs of life where the output is no terminal


@dataclass
class Stage:
    """A command and its result. rc is None while it runs; processor is its CPU time in seconds, if it was measured."""

    name: str
    log: Path
    process: subprocess.Popen[bytes] | None
    started: float
    rc: int | None = None
    seconds: float = 0.0
    processor: float | None = None
    note: str = ""


class Stages:
    """Runs stages one after another, or some in parallel (start, then join)."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.logs = ROOT / ".build" / "logs" / title
        self.logs.mkdir(parents=True, exist_ok=True)
        self.done: list[Stage] = []
        self.running: list[Stage] = []
        self.started, self.processor = time.monotonic(), processor_seconds()
        self.tty = sys.stdout.isatty()

    def start(self, name: str, argv: Sequence[str], env: dict[str, str] | None = None, cwd: Path = ROOT) -> Stage:
        """Starts a command in the background, its output in a log."""
        log = self.logs / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(list(argv), stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}, cwd=cwd,
                                       start_new_session=True)
        stage = Stage(name, log, process, time.monotonic())
        self.running.append(stage)
        return stage

    def join(self, stage: Stage) -> bool:
        """Waits for a started stage, shows its progress, and on failure the end of its log."""
        assert stage.process is not None
        beat = time.monotonic()
        # One that ended beside others is timed by the last that it wrote.
        idle = time.time() - stage.log.stat().st_mtime if stage.process.poll() is not None else 0.0
        print(f"{stage.name} ...", end="" if self.tty else "\n", flush=True)
        while stage.process.poll() is None:
            time.sleep(0.2)
            if self.tty:
                print(f"\r\033[K{stage.name} {clock(time.monotonic() - stage.started)}  {last_line(stage.log)[:90]}",
                      end="", flush=True)
            elif time.monotonic() - beat > HEARTBEAT:
                beat = time.monotonic()
                print(f"  {stage.name} {clock(beat - stage.started)}: {last_line(stage.log)[:110]}", flush=True)
        self.end(stage, idle)
        return stage.rc == 0

    def end(self, stage: Stage, idle: float = 0.0) -> None:
        """Records a stage that has ended, idle seconds ago, and prints its result."""
        assert stage.process is not None
        stage.rc = stage.process.returncode
        stage.seconds = time.monotonic() - stage.started - idle
        stage.note = last_line(stage.log)
        self.running.remove(stage)
        self.done.append(stage)
        mark = "ok" if stage.rc == 0 else f"FAILED ({stage.rc})"
        start = "\r\033[K" if self.tty else "  "
        print(f"{start}{stage.name}: {mark} in {clock(stage.seconds)}", flush=True)
        if stage.rc:
            text = stage.log.read_text(errors="replace").splitlines()
            print("\n".join(f"    {line}" for line in text[-60:]))
            print(f"    (the whole log: {stage.log.relative_to(ROOT)})", flush=True)

    def run(self, name: str, argv: Sequence[str], env: dict[str, str] | None = None, cwd: Path = ROOT) -> bool:
        """Starts a stage and waits for it."""
        return self.join(self.start(name, argv, env, cwd))

    @contextmanager
    def shown(self, name: str) -> Iterator[Stage]:
        """A stage whose output goes to the terminal; the caller sets rc."""
        stage = Stage(name, self.logs, None, time.monotonic(), rc=0)
        print(f"\n== {name}", flush=True)
        try:
            yield stage
        finally:
            stage.seconds = time.monotonic() - stage.started
            self.done.append(stage)

    def stop(self) -> None:
        """Ends the stages that still run in the background, and waits for them; kills those that do not end."""
        running = [stage.process for stage in self.running if stage.process and stage.process.poll() is None]
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def failed(self) -> list[str]:
        """The names of the stages that failed."""
        return [stage.name for stage in self.done if stage.rc]

    def table(self) -> str:
        """Stages, minutes and, where they were measured, minutes of a processor; stages overlap."""
        width = max([len(stage.name) for stage in self.done] + [5])
        measured = any(stage.processor is not None for stage in self.done)
        rows = [f"{'stage':<{width}}  {'min:s':>6}{'  core-min' if measured else ''}  result",
                f"{'-' * width}  ------{'  --------' if measured else ''}  ------"]
        for stage in self.done:
            cores = f"  {clock(stage.processor) if stage.processor is not None else '':>8}" if measured else ""
            row = f"{stage.name:<{width}}  {clock(stage.seconds):>6}{cores}  {'ok' if stage.rc == 0 else 'FAILED':<6}"
            rows.append(f"{row}  {stage.note[:70]}".rstrip())
        whole = f"  {clock(processor_seconds() - self.processor):>8}  all of this machine" if measured else ""
        rows.append(f"{'in all':<{width}}  {clock(time.monotonic() - self.started):>6}{whole}")
        return "\n".join(rows)


def processor_seconds() -> float:
    """The CPU time of all processors of this machine since its start, in seconds."""
    words = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    user, nice, system, _idle, _wait, irq, softirq, _steal = map(int, words)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def clock(seconds: float) -> str:
    """C(m:ss)."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def last_line(log: Path) -> str:
    """The last line with text in a log, without colours."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        text = stream.read().decode(errors="replace").replace("\r", "\n")
    lines = [line for line in text.splitlines() if line.strip()]
    return COLOURS.sub("", lines[-1]).strip() if lines else ""
