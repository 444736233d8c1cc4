# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kills a run with all processes that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """A process and all its descendants, including those in sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found


def kill(pid: int) -> None:
    """Sends SIGKILL to a process and all its descendants. The workers of Ansible create their own sessions, so no
    process group contains them all."""
    for one in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
