# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of tests. Each run has its own labs, clusters and virtual machines, so that several runs can use one machine in
parallel.

The environment variable C(GPUOPS_RUN) names the run; without it, the labs are those that users start by hand. A process
that begins a run holds the lock of the run's folder until it ends, however it ends. The remains of an ended run are
removed when the next one begins.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from lab.tools import alone, cache_root

VARIABLE = "GPUOPS_RUN"
NAME = re.compile(r"[a-z][a-z0-9]{0,6}|[0-9]{1,7}")  # a user's, or that of the process that began the run
CODE = Path(__file__).resolve().parent.parent
LIMIT = 900.0  # seconds for the removal of all that a run has


def current() -> str:
    """The name of the run in the environment; empty if there is none."""
    name = os.environ.get(VARIABLE, "")
    if name and not NAME.fullmatch(name):
        raise SystemExit(f"{VARIABLE}={name!r}: want a letter and at most 6 letters or digits")
    return name


def folder() -> Path:
    """The folder in which the labs, clusters and virtual machines of this run are recorded."""
    return runs_folder() / current() if current() else cache_root()


def runs_folder() -> Path:
    """The folders of all runs."""
    return cache_root() / "runs"


def names() -> list[str]:
    """The runs that have a folder."""
    return sorted(path.name for path in runs_folder().glob("*"))


def running() -> list[str]:
    """The runs whose process has not ended."""
    return [name for name in names() if _held(runs_folder() / name)]


def _held(folder_of_run: Path) -> bool:
    """Whether a process holds the lock of a run."""
    handle = os.open(folder_of_run, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def title(name: str) -> str:
    """A name that contains that of this run, for places that all runs share, such as the names of containers."""
    return f"{current()}.{name}" if current() else name


def begin() -> None:
    """Makes this process, and its future child processes, a run; does nothing if they already are one."""
    if current():
        return
    name = str(os.getpid())
    runs_folder().mkdir(parents=True, exist_ok=True)
    with alone(runs_folder()):
        clear()
        (runs_folder() / name).mkdir(exist_ok=True)
        # Open, and so locked, until this process ends; programs that it starts do not inherit it.
        fcntl.flock(os.open(runs_folder() / name, os.O_RDONLY), fcntl.LOCK_EX)
    os.environ[VARIABLE] = name
    atexit.register(end, name)


def end(name: str) -> None:
    """Removes everything of this process's run; processes that it forked do not."""
    if name == str(os.getpid()):
        with alone(runs_folder()):
            remove(name)


def clear() -> None:
    """Removes everything of runs whose process has ended. A run with a name that a user gave it stays."""
    for name in set(names()) - set(running()):
        if name.isdecimal():
            print(f"removing what the ended run {name} has left", flush=True)
            remove(name)


def remove(name: str) -> None:
    """Removes all labs, clusters and virtual machines of a run."""
    place = runs_folder() / name
    if any(place.iterdir()):
        try:
            subprocess.run([sys.executable, "-m", "lab", "down", "--all"], cwd=CODE, text=True, check=True,
                           env={**os.environ, VARIABLE: name}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=LIMIT)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
            print(f"Cannot remove everything that run {name} made: {problem} {problem.output or ''}\n"
                  f"Run: {VARIABLE}={name} python3 -m lab down --all", file=sys.stderr, flush=True)
            return
    shutil.rmtree(place, ignore_errors=True)
