# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that outlive the command that has started them, identified by their id and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

Mark = tuple[int, int]  # process id, and its start in the kernel's ticks, which tells it from a later one of that id


def start(program: Path, name: str, arguments: list[str], folder: Path) -> Mark:
    """Starts C(program) under another name, detached; its output goes to C(folder/logs/name.log)."""
    log = folder / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KWOK_WORKDIR": str(folder / "kwok"),
                   "GOGC": "400"}  # collecting garbage takes half of their processor time; there is enough memory
    with log.open("ab") as stream:
        process = subprocess.Popen([name, *arguments], executable=program, cwd=folder, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True)
    return process.pid, began(process.pid)


def stat(pid: int) -> list[str]:
    """The fields of C(/proc/PID/stat) after the name, the state first; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def began(pid: int) -> int:
    """When a process started, 0 where there is none."""
    return int((stat(pid) or ["0"] * 20)[19])


def runs(mark: Mark) -> bool:
    """Whether exactly this process runs; one that has ended but has not been waited for does not."""
    fields = stat(mark[0])
    return bool(fields) and fields[0] != "Z" and int(fields[19]) == mark[1]


def memory(mark: Mark) -> int:
    """Resident memory in MiB."""
    for line in Path(f"/proc/{mark[0]}/status").read_text().splitlines() if runs(mark) else ():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0


def stop(marks: list[Mark], patience: float = 60.0) -> None:
    """Kills processes and waits until they have ended: they would only save data that is discarded, or that etcd has
    already saved."""
    for mark in marks:
        if runs(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(mark[0], signal.SIGKILL)
    end = time.monotonic() + patience
    while any(map(runs, marks)):
        if time.monotonic() > end:
            raise SystemExit(f"processes that do not end: {[pid for pid, start in marks if runs((pid, start))]}")
        time.sleep(0.02)
