# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a command and writes its cost: C(python -m tests.gates.measured FILE COMMAND ...).

FILE gets the CPU seconds, user and system, of the command and of all its ended descendants. This process adopts daemons
that leave their parents (hosts, control planes), as otherwise nobody would count them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

SET_CHILD_SUBREAPER = 36  # linux/prctl.h
GRACE = 5.0  # seconds for what ends because the command has ended; daemons that stay do not count


def main(file: Path, argv: list[str]) -> int:
    """Returns the command's exit code."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, lambda *_ignored: None)  # the command decides how it ends, and is waited for
    command = subprocess.Popen(argv)
    while True:
        ended, status = os.wait()
        if ended == command.pid:
            break
    end = time.monotonic() + GRACE
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < end:
            time.sleep(0.01)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    file.write_text(f"{usage.ru_utime + usage.ru_stime:.1f}\n")
    command.returncode = os.waitstatus_to_exitcode(status)
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
