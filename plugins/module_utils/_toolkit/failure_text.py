# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reason why a program failed, from its output. PRIVATE to the collection."""

from __future__ import annotations

import re

_NOISE = re.compile(r"level=(warning|info|debug)\b")
# The first line of a Go traceback.
_CRASH = re.compile(r"^(?:panic|fatal error): (.+?)(?: \[recovered\])?$", re.MULTILINE)


def failure(rc: int, stderr: str, journal: str = "", most: int = 3) -> str:
    """The last lines of stderr without warnings. If there are none, those of the unit's log, or else the exit status.

    rc: negative for a signal. journal: the log. most: the number of lines.
    """
    for prefix, text in (("", stderr), ("from its log: ", journal)):
        crashes = _CRASH.findall(text)
        if crashes:
            return f"{prefix}it crashed: {crashes[-1]}"
        lines = [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
        if lines:
            return prefix + " / ".join(lines[-most:]).rstrip(".")
    return f"it printed nothing and {f'was killed by signal {-rc}' if rc < 0 else f'exited with {rc}'}"
