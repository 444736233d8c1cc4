# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records what a module does on a host; the file is copied to a lab host together with a wrapper of its Python.

C(acts) beside this file gets a line of JSON for each signal that the process sends (number and process) and for each
program that it starts (arguments): Python reports both as audit events. C(nvml) gets the name of each call of the
simulated NVML by the process or a program that it starts.
"""

from __future__ import annotations

import json
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
ACTS = os.open(os.path.join(FOLDER, "acts"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def words_of(event, args):  # type: ignore[no-untyped-def]
    """The words of a signal or a program; None for all other events."""
    if event in ("os.kill", "os.killpg") and args[1]:
        return ["signal", args[1], args[0]]
    if event == "subprocess.Popen":
        return list(args[1]) if isinstance(args[1], (list, tuple)) else ["sh", args[1]]
    if event in ("os.exec", "os.posix_spawn"):
        return list(args[1])
    return ["sh", args[0]] if event == "os.system" else None


def record(event, args):  # type: ignore[no-untyped-def]
    """The audit hook."""
    words = words_of(event, args)
    if words:
        os.write(ACTS, (json.dumps(words, default=os.fsdecode) + "\n").encode())


os.environ["GPUSIM_TRACE"] = os.path.join(FOLDER, "nvml")
sys.addaudithook(record)
